"""The PostgreSQL backend: any number of machines on one server, also behind a transaction pooler.

Every call is one transaction, without session locks; settings and prepared statements stay with a connection only where
no pooler is between. Writers of one session take turns by its row (V3, V9); those of other sessions do not wait. An
optimistic append is one statement.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from itertools import count, repeat
from typing import Final, TypeVar

import msgspec
import psycopg

from stepkeep.codec.integrity import digest
from stepkeep.errors import InvalidInput, StepkeepError, Unsupported
from stepkeep.logs import Log
from stepkeep.model import SessionInfo
from stepkeep.processes import tell_of_forks
from stepkeep.storage.port import Annotation, Append, Appended, Capabilities, Seal, Target
from stepkeep.storage.postgres import address, migrations
from stepkeep.storage.postgres.connections import (
    Collided,
    Pool,
    Raw,
    Settings,
    Transaction,
    is_collision,
    is_lost,
    translate,
)
from stepkeep.storage.postgres.optimistic_append import (
    CachedHead,
    HeadCache,
    SealedSave,
    append_call,
    seal_batch,
)
from stepkeep.storage.sql.attachments import ANNOTATION_COLUMNS, annotation_from, column_of
from stepkeep.storage.sql.backend import SqlBackend
from stepkeep.storage.sql.checkpoints import Batch
from stepkeep.storage.sql.connection import Connection

log = Log("stepkeep.storage")

T = TypeVar("T")

COLLISION_REPEATS: Final = 20
LOST_REPEATS: Final = 3
_LONGEST_PAUSE_SECONDS: Final = 0.5

_ANNOTATE: Final = "SELECT add_annotation(?, ?, ?, ?, ?, ?, ?, ?)"
_ANNOTATIONS: Final = (
    f"SELECT {', '.join(f'a.{name}' for name in ANNOTATION_COLUMNS)} FROM sessions s"
    " LEFT JOIN checkpoints c ON c.id = ? AND c.sid = s.sid"
    " LEFT JOIN annotations a ON a.sid = s.sid AND a.kind = ?"
    " AND a.target IN (?, '[' || to_json(c.branch) || ',' || to_json(c.external_id) || ']')"
    " WHERE s.uid = ? ORDER BY a.time_us, a.number"
)
_NOW: Final = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"


class PostgresBackend(SqlBackend):
    """A store in one schema of a database, made on demand.

    Leases are measured by the server's clock, so those of the clients may differ; a `clock` replaces it in tests.
    """

    capabilities = Capabilities(has_one_writer=False)

    def __init__(self, url: str, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__()
        self._server_clock = clock
        self._address = address.parse(url)
        self.url = self._address.url
        self._settings = Settings(self._address)
        self._heads = HeadCache()
        self._pool = Pool(
            self._connect,
            name=self._address.url,
            size=self._address.pool_size,
            wait_seconds=self._address.timeout_seconds,
        )
        try:
            self._prepare()
        except BaseException:
            self._pool.close()
            raise
        tell_of_forks(self)

    def _connect(self) -> Raw:
        raw = Raw.connect(**self._address.parameters, autocommit=True, prepare_threshold=None)
        try:
            migrations.check_server(raw.info.server_version, raw.info.parameter_status("server_encoding"))
            self._settings.keep(raw)
        except BaseException:
            raw.close()
            raise
        return raw

    def _prepare(self) -> None:
        name, url = self._address.schema, self._address.url
        is_current, fsync = self._read(
            lambda tx: (migrations.is_current(tx, name, url), tx.one("SHOW fsync"))
        )
        if not is_current:
            self._write(lambda tx: migrations.migrate(tx, name, url))
        self._functions = self._read_one(lambda tx: migrations.functions(tx, name))
        if fsync == ("off",):
            log.warning("%s runs with fsync off: a loss of power can take saves that were acknowledged", url)

    # --- transactions

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._repeatedly(Transaction(work, self._settings, is_write=False), is_keyed=True)

    def _read_one(self, work: Callable[[Connection], T]) -> T:
        return self._repeatedly(
            Transaction(work, self._settings, is_write=False, is_single=True), is_keyed=True
        )

    def _write(self, work: Callable[[Connection], T], *, secure: bool = False) -> T:
        result = self._repeatedly(Transaction(work, self._settings, is_write=True), is_keyed=False)
        if secure:
            log.warning(
                "%s keeps removed bytes in dead rows until it is vacuumed, and in its log", self._address.url
            )
        return result

    def _write_keyed(self, work: Callable[[Connection], T]) -> T:
        return self._repeatedly(Transaction(work, self._settings, is_write=True), is_keyed=True)

    def _repeatedly(
        self, transaction: Transaction[T], *, is_keyed: bool, collisions: int = COLLISION_REPEATS
    ) -> T:
        """Do it again where that is safe: always when nothing was stored, else when the work is keyed.

        Work that others have so many `collisions` with is given up (`Collided`).
        """
        is_unknown = False  # stays so: a later try that fails says nothing about the commit of an earlier one
        for done in count(1):
            try:
                with self._pool.borrow() as raw:
                    return transaction.run(raw)
            except psycopg.Error as exc:
                if is_lost(exc):
                    self._pool.drop_idle()
                    is_unknown = is_unknown or transaction.is_unknown
                    may_repeat = done <= LOST_REPEATS and (is_keyed or not is_unknown)
                else:
                    may_repeat = done <= collisions and is_collision(exc)
                if not may_repeat:
                    raise translate(exc, self._address.url, is_unknown=is_unknown) from exc
                # A little longer each time, and not the same for all who collided.
                longest = min(_LONGEST_PAUSE_SECONDS, 0.005 * 2**done)
                time.sleep(random.uniform(longest / 5, longest))
        raise AssertionError("unreachable")

    # --- sessions

    def create_session(self, session: SessionInfo) -> SessionInfo:
        """As everywhere; one that has no project gets that of the URL."""
        if session.project is None and self._address.project is not None:
            session = msgspec.structs.replace(session, project=self._address.project)
        return super().create_session(session)

    # --- saving

    def append(self, batch: Sequence[Append], seal: Seal) -> list[Appended | StepkeepError]:
        """Try the optimistic append first; the saves that it did not store go the way of all SQL backends."""
        outcomes: list[Appended | StepkeepError | None] = list(self._append_optimistically(batch, seal))
        rest = [item for item, outcome in zip(batch, outcomes, strict=True) if outcome is None]
        if not rest:
            return [outcome for outcome in outcomes if outcome is not None]
        try:
            asked = iter(super().append(rest, seal))
        except StepkeepError as exc:
            if len(rest) == len(batch):
                raise
            asked = repeat(exc)  # the others are stored
        return [next(asked) if outcome is None else outcome for outcome in outcomes]

    def _append_optimistically(self, batch: Sequence[Append], seal: Seal) -> list[Appended | None]:
        """What was stored; None for what was not."""
        if "append_checkpoint" not in self._functions:
            return [None] * len(batch)
        found = seal_batch(self._heads, batch, seal)
        # Every writer of several sessions locks them in the same order.
        sealed = sorted((save for save in found if save is not None), key=lambda save: save.before.sid)
        if not sealed:
            return [None] * len(batch)
        sql, values = append_call(sealed)
        transaction = Transaction(
            lambda tx: tx.call(sql, values), self._settings, is_write=True, is_single=True
        )
        try:
            answers = self._repeatedly(transaction, is_keyed=True, collisions=0)
        except (Collided, InvalidInput):
            # The long way looks at them one by one, and refuses the one that is outdated or invalid.
            answers = [False] * len(sealed)
        stored = {
            (save.row.session, save.row.seq): self._settled(save, is_stored)
            for save, is_stored in zip(sealed, answers, strict=True)
        }
        return [None if save is None else stored[save.row.session, save.row.seq] for save in found]

    def _settled(self, save: SealedSave, is_stored: bool) -> Appended | None:
        if not is_stored:
            self._heads.forget(save.row.session)
            return None
        self._heads.put(save.after)
        return Appended(row=save.row, is_new=True)

    def _saved(self, rows: Batch) -> None:
        for opened in rows.opened.values():
            for left in opened.left():
                self._heads.put(CachedHead(*left))

    # --- annotating

    def annotate(
        self,
        uid: str,
        target: Target,
        kind: str,
        name: str,
        data: bytes,
        *,
        time_us: int,
        replace: bool = False,
        fence: int | None = None,
    ) -> bool:
        """As everywhere. Most are new: these are stored by one call of a function, the others take the long way."""
        if fence is None and "add_annotation" in self._functions:
            key = self._encrypting.key
            given = (uid, column_of(target), kind, name, data, time_us, digest(data), key)
            call = Transaction(
                lambda tx: tx.call(_ANNOTATE, given), self._settings, is_write=True, is_single=True
            )
            if self._repeatedly(call, is_keyed=False) == [True]:
                return True
        return super().annotate(uid, target, kind, name, data, time_us=time_us, replace=replace, fence=fence)

    def annotations(
        self, uid: str, targets: Sequence[Target] | None = None, kind: str | None = None
    ) -> list[Annotation]:
        """As everywhere. Those of one kind that one checkpoint has are read by one statement."""
        rows = []
        if kind is not None and targets is not None and len(targets) == 1 and isinstance(targets[0], str):
            given = (targets[0], kind, targets[0], uid)
            rows = self._read_one(lambda tx: tx.all(_ANNOTATIONS, given))
        if not rows:  # others are asked for, or there is no such session, as far as its row tells
            return super().annotations(uid, targets, kind)
        return [annotation_from(row) for row in rows if row[0] is not None]

    def _let_a_crash_undo(self, tx: Connection) -> None:
        tx.put("SET LOCAL synchronous_commit = off")

    def _now_us(self, tx: Connection) -> int:
        if self._server_clock is not None:
            return self._server_clock()
        (now_us,) = tx.one(_NOW) or (0,)
        return int(now_us)

    # --- the keys of an encrypted store

    def _hold_keys(self, tx: Connection, *, is_changed: bool) -> None:
        # By a lock of its own: a program need not have the right to change the row.
        kind = "" if is_changed else "_shared"
        lock = f"SELECT pg_advisory_xact_lock{kind}(hashtextextended(?, 0))"
        tx.put(lock, (f"stepkeep keys {self._address.schema}",))

    def all_sessions(self) -> list[str]:
        if self._read(lambda tx: tx.one("SELECT row_security_active('sessions')")) != (False,):
            raise Unsupported(
                f"{self.url} shows its users only the sessions of their project: give it a new data key as a user who "
                "sees all",
                code="sessions_hidden",
            )
        return super().all_sessions()

    # --- space

    def _store_bytes(self) -> int:
        sizes = (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = ? AND c.relkind = 'r'"
        )
        (total,) = self._read(lambda tx: tx.one(sizes, (self._address.schema,))) or (0,)
        return int(total)

    def reclaim(self, max_bytes: int) -> int:  # noqa: ARG002  (the server's own vacuum does it)
        self._pool.check_open()
        return 0

    # --- closing and forking

    def close(self) -> None:
        self._pool.close()

    def before_fork(self) -> None:
        self._pool.before_fork()

    def after_fork(self, *, is_child: bool) -> None:
        self._pool.after_fork(is_child=is_child)
