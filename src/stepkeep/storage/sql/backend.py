"""The port over SQL. A driver adds how to read, how to run a transaction, and how to give space back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec

from stepkeep.codec.integrity import digest as digest_of
from stepkeep.errors import INTEGRITY_MISMATCH, Corrupt, StepkeepError
from stepkeep.logs import Log
from stepkeep.model import Branch, SessionInfo, Status, utc_now_us
from stepkeep.processes import Owner
from stepkeep.storage import conflicts, port
from stepkeep.storage.port import ANY_HEAD, Annotation, Append, Appended, Blob, Body, Event, HeaderRow, Seal
from stepkeep.storage.sql import attachments, leases, renewing
from stepkeep.storage.sql import bodies as body_rows
from stepkeep.storage.sql import checkpoints as checkpoint_rows
from stepkeep.storage.sql import sessions as session_rows
from stepkeep.storage.sql.checkpoints import Batch, DamagedPage
from stepkeep.storage.sql.connection import Connection, NotUnique
from stepkeep.storage.sql.sessions import NeedsRepair, intact, repair

log = Log("stepkeep.storage")

T = TypeVar("T")
P = ParamSpec("P")

_KEY_RECORD: Final = "SELECT value FROM meta WHERE name = 'encryption'"


class SqlBackend(ABC):
    """Everything the port promises, in terms of `_read` and `_write`."""

    capabilities = port.Capabilities(takes_deltas=True)
    url: str

    def __init__(self, *, clock: Callable[[], int] = utc_now_us) -> None:
        self._clock = clock
        self._encrypting = port.Encrypting()

    # --- what a driver adds

    @abstractmethod
    def _read(self, work: Callable[[Connection], T]) -> T:
        """Run statements that only read."""

    def _read_one(self, work: Callable[[Connection], T]) -> T:
        """Run one statement that only reads."""
        return self._read(work)

    @abstractmethod
    def _write(self, work: Callable[[Connection], T], *, secure: bool = False) -> T:
        """Run statements in one transaction that is durable on return; an exception leaves nothing behind."""

    def _write_keyed(self, work: Callable[[Connection], T]) -> T:
        """Like `_write`, for work that finds by their keys the records it stored before: it may be done again."""
        return self._write(work)

    def _write_beside(self, work: Callable[[Connection], T]) -> T:
        """Like `_write`, for work that leaves the rows of sessions and branches as they are."""
        return self._write(work)

    @abstractmethod
    def _store_bytes(self) -> int:
        """What the whole store takes on disk."""

    @abstractmethod
    def reclaim(self, max_bytes: int) -> int: ...

    @abstractmethod
    def close(self) -> None: ...

    # --- damaged rows are rebuilt where they are found

    def _reading(self, work: Callable[[Connection], T], *, key: str | None = None) -> T:
        try:
            return self._read(work)
        except NeedsRepair:
            self._write(lambda tx: repair(tx, key=key))
            return _refusing_damage(self._read, work)

    def _read_mended(
        self, read: Callable[[Connection], list[tuple[T, SessionInfo | None]]]
    ) -> list[tuple[T, SessionInfo | None]]:
        """What `read` finds; damaged rows, for which it has None, are rebuilt first where they can be."""
        found = self._read(read)
        if any(session is None for _, session in found):
            self._write(repair)
            found = self._read(read)
        return found

    def _writing(
        self, work: Callable[[Connection], T], *, secure: bool = False, is_beside: bool = False
    ) -> T:
        try:
            return self._write_beside(work) if is_beside else self._write(work, secure=secure)
        except NeedsRepair:
            self._write(repair)
            return _refusing_damage(self._write, work, secure=secure)

    def _read_session(
        self,
        uid: str,
        read: Callable[Concatenate[Connection, int, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """What `read` finds in a session; it gets the session's number."""
        return self._reading(lambda tx: read(tx, session_rows.sid_of(tx, uid), *args, **kwargs))

    def _in_session(
        self,
        uid: str,
        work: Callable[[Connection, int, SessionInfo], T],
        *,
        fence: int | None = None,
        secure: bool = False,
    ) -> T:
        """Run a transaction on one session, after its fence was checked."""

        def transaction(tx: Connection) -> T:
            sid, session = session_rows.by_uid(tx, uid)
            self._check_key(tx)
            _check_fence(tx, sid, uid, fence)
            return work(tx, sid, session)

        return self._writing(transaction, secure=secure)

    def _beside_session(
        self, uid: str, work: Callable[[Connection, int], T], *, fence: int | None = None
    ) -> T:
        """The same where the rows of session and branches stay as they are; its row is not read if it is at hand."""

        def transaction(tx: Connection) -> T:
            known = (tx.rows_at_hand() or {}).get(uid)
            sid = session_rows.by_uid(tx, uid)[0] if known is None else known.sid
            self._check_key_at_hand(tx)
            _check_fence(tx, sid, uid, fence)
            return work(tx, sid)

        return self._writing(transaction, is_beside=True)

    # --- sessions and branches

    def create_session(self, session: SessionInfo) -> SessionInfo:
        def transaction(tx: Connection) -> SessionInfo:
            self._check_admitted(tx)
            return session_rows.create(tx, session)

        return self._writing(transaction)

    def session(self, uid: str) -> SessionInfo:
        return self._reading(lambda tx: session_rows.by_uid(tx, uid)[1])

    def session_by_key(self, key: str) -> SessionInfo | None:
        return self._reading(lambda tx: session_rows.by_key(tx, key), key=key)

    def sessions(self, query: port.SessionQuery) -> Iterator[SessionInfo]:
        after, left = query.after, query.limit
        page_size = session_rows.FIRST_PAGE  # many callers only want the first few
        while left is None or left > 0:
            size = page_size if left is None else min(page_size, left)
            page_size = session_rows.PAGE
            page = self._session_page(query, after, size)
            for after, session in page:  # noqa: B007  (the next page begins behind the last one)
                if session is None:
                    log.warning("a damaged session row is left out of the list: run verify")
                    continue
                left = None if left is None else left - 1
                yield session
            if len(page) < size:
                return

    def _session_page(
        self, query: port.SessionQuery, after: tuple[int, str] | None, size: int
    ) -> list[tuple[tuple[int, str], SessionInfo | None]]:
        return self._read_mended(lambda tx: session_rows.page(tx, query, after, size))

    def update_session(
        self,
        uid: str,
        changes: dict[str, Any],
        *,
        expect_version: int | None = None,
        fence: int | None = None,
    ) -> SessionInfo:
        return self._in_session(
            uid,
            lambda tx, sid, session: session_rows.update(tx, sid, session, changes, expect_version),
            fence=fence,
        )

    def delete_session(
        self, uid: str, *, secure: bool = False, fence: int | None = None, expect: SessionInfo | None = None
    ) -> None:
        def transaction(tx: Connection, sid: int, session: SessionInfo) -> None:
            if expect is not None:
                lease = leases.running(leases.read(tx, sid), self._now_us(tx))
                _check_as_expected(session, expect, lease, fence)
            self._delete_sessions(tx, {sid: uid})

        self._in_session(uid, transaction, fence=fence, secure=secure)

    def delete_sessions(
        self, expected: Sequence[SessionInfo], *, secure: bool = False
    ) -> list[int | StepkeepError]:
        try:
            return self._write(lambda tx: self._delete_expected(tx, expected), secure=secure)
        except NeedsRepair:
            self._write(repair)
        # What could not be rebuilt is refused alone.
        return self._write(lambda tx: self._delete_expected(tx, expected, is_repaired=True), secure=secure)

    def _delete_expected(
        self, tx: Connection, expected: Sequence[SessionInfo], *, is_repaired: bool = False
    ) -> list[int | StepkeepError]:
        rows = session_rows.rows_of(tx, [expect.uid for expect in expected])
        lost = next((expect.uid for expect in expected if expect.uid not in rows), None)
        if lost is not None and not is_repaired:
            session_rows.check_none_hides(tx, lost)
        leased = leases.running_among(tx, [row[0] for row in rows.values()], self._now_us(tx))
        decided: list[int | StepkeepError] = []  # the number of each that goes
        going: dict[int, str] = {}
        for expect in expected:
            row = rows.pop(expect.uid, None)
            try:
                if row is None:
                    raise conflicts.session_not_found(expect.uid)
                session = _refusing_damage(intact, row) if is_repaired else intact(row)
                _check_as_expected(session, expect, leased.get(row[0]))
            except StepkeepError as exc:
                decided.append(exc)
            else:
                decided.append(row[0])
                going[row[0]] = expect.uid
        freed = self._delete_sessions(tx, going)
        return [freed[each] if isinstance(each, int) else each for each in decided]

    def _delete_sessions(self, tx: Connection, uids: Mapping[int, str]) -> dict[int, int]:
        """Remove sessions, given by their numbers; the stored bytes of the bodies of each."""
        return session_rows.delete(tx, list(uids))

    def branch(self, uid: str, name: str) -> Branch | None:
        return self._read_session(uid, session_rows.branch, name)

    def branches(self, uid: str) -> list[Branch]:
        return self._read_session(uid, session_rows.branches)

    def set_branch(
        self, uid: str, branch: Branch, *, expect_head: str | None = ANY_HEAD, fence: int | None = None
    ) -> Branch:
        return self._in_session(
            uid, lambda tx, sid, _: session_rows.set_branch(tx, sid, uid, branch, expect_head), fence=fence
        )

    # --- records

    def append(self, batch: Sequence[Append], seal: Seal) -> list[Appended | StepkeepError]:
        try:
            try:
                return self._write_keyed(partial(self._append_batch, batch=batch, seal=seal))
            except NotUnique:  # a name that was taken to be free: who holds it is looked up
                return self._write_keyed(partial(self._append_batch, batch=batch, seal=seal, is_careful=True))
        except NeedsRepair:
            self._write(repair)
        except DamagedPage as exc:
            raise Corrupt(f"{self.url} is damaged: {exc}; recover it into a new store") from exc
        # What could not be rebuilt is refused alone: a damaged session must not fail the saves of others.
        return self._write_keyed(
            partial(self._append_batch, batch=batch, seal=seal, is_repaired=True, is_careful=True)
        )

    def _append_batch(
        self,
        tx: Connection,
        batch: Sequence[Append],
        seal: Seal,
        *,
        is_repaired: bool = False,
        is_careful: bool = False,
    ) -> list[Appended | StepkeepError]:
        at_hand = tx.rows_at_hand()
        rows = Batch(tx, batch, at_hand, is_careful=is_careful or at_hand is None)
        append = rows.append
        if is_repaired:

            def append(item: Append, seal: Seal) -> Appended:
                return _refusing_damage(rows.append, item, seal)

        outcomes = conflicts.append_in_order(batch, append, seal)
        rows.flush()
        self._check_key_at_hand(tx)
        self._saved(rows)
        return outcomes

    def _saved(self, rows: Batch) -> None:  # noqa: B027  (most need nothing of it)
        """What a batch leaves behind if its commit succeeds, for a driver that builds upon it."""

    def load_head(
        self, uid: str, branch: str | None = None, *, known: tuple[str, str] | None = None
    ) -> port.StoredHead | port.Unchanged | None:
        return self._read_one(lambda tx: body_rows.head(tx, uid, branch, known))

    def headers(self, query: port.HeaderQuery) -> Iterator[HeaderRow]:
        sid = None
        if query.session is not None:
            uid = query.session
            sid = self._reading(lambda tx: session_rows.sid_of(tx, uid))
        return self._header_pages(sid, query)

    def _header_pages(self, sid: int | None, query: port.HeaderQuery) -> Iterator[HeaderRow]:
        after, left = query.after, query.limit
        page_size = checkpoint_rows.FIRST_PAGE  # many callers only want the first few
        while left is None or left > 0:
            size = page_size if left is None else min(page_size, left)
            page_size = checkpoint_rows.PAGE
            page = self._header_page(sid, query, after, size)
            for after, row in page:  # noqa: B007  (the next page begins behind the last one)
                yield row
            if len(page) < size:
                return
            left = None if left is None else left - len(page)

    def _header_page(
        self, sid: int | None, query: port.HeaderQuery, after: tuple[int, str] | None, size: int
    ) -> list[tuple[tuple[int, str], HeaderRow]]:
        return self._read_one(lambda tx: checkpoint_rows.page(tx, sid, query, after, size))

    def body(self, uid: str, checkpoint: str, name: str) -> Body | None:
        found = self._read_session(uid, body_rows.stored, checkpoint, name, is_redundant=False)
        return next(iter(found), None)

    def body_chain(self, uid: str, checkpoint: str, name: str) -> list[Body]:
        return self._read_session(uid, body_rows.chain, checkpoint, name)

    def all_chains(self, uid: str, checkpoints: Sequence[str]) -> list[Body]:
        return self._read_session(uid, body_rows.all_chains, checkpoints)

    def redundant_delta(self, uid: str, checkpoint: str, name: str) -> Body | None:
        found = self._read_session(uid, body_rows.stored, checkpoint, name, is_redundant=True)
        return next(iter(found), None)

    def bodies(self, uid: str, checkpoints: Sequence[str] | None = None) -> list[port.BodyInfo]:
        return self._read_session(uid, body_rows.infos, checkpoints)

    def replace_body(self, uid: str, body: Body, *, expect_digest: str, fence: int | None = None) -> None:
        self._in_session(uid, lambda tx, sid, _: body_rows.replace(tx, sid, body, expect_digest), fence=fence)

    def blob(self, digest: str, session: str | None = None) -> Blob | None:  # noqa: ARG002
        return self._read(lambda tx: body_rows.blob(tx, digest))

    def has_blobs(self, digests: Sequence[str], session: str | None = None) -> set[str]:  # noqa: ARG002
        return self._read(lambda tx: body_rows.stored_blobs(tx, digests))

    def blob_sizes(self, uid: str) -> dict[str, port.BlobSize]:
        return self._read_session(uid, body_rows.blob_sizes)

    def remove(
        self,
        uid: str,
        checkpoints: Sequence[str],
        *,
        secure: bool = False,
        fence: int | None = None,
        keep_heads: bool = False,
    ) -> port.Removed:
        return self._in_session(
            uid,
            lambda tx, sid, session: self._remove(tx, sid, session, checkpoints, keep_heads),
            fence=fence,
            secure=secure,
        )

    def _remove(
        self, tx: Connection, sid: int, session: SessionInfo, checkpoints: Sequence[str], keep_heads: bool
    ) -> port.Removed:
        return checkpoint_rows.remove(tx, sid, session, checkpoints, keep_heads=keep_heads)

    def sweep(
        self,
        *,
        session: str | None = None,
        limit: int = 1000,
        annotations_before_us: int | None = None,
        secure: bool = False,
    ) -> port.Swept:
        def transaction(tx: Connection) -> port.Swept:
            if not secure:
                self._let_a_crash_undo(tx)
            return self._sweep(tx, session, limit, annotations_before_us)

        return self._writing(transaction, secure=secure)

    def _let_a_crash_undo(self, tx: Connection) -> None:  # noqa: B027  (most backends have nothing to do)
        """What the transaction does is done again if it is lost: a server need not wait for its disk."""

    def _sweep(self, tx: Connection, uid: str | None, limit: int, before_us: int | None) -> port.Swept:
        sid = None if uid is None else session_rows.sid_of(tx, uid)
        bodies, body_bytes = body_rows.sweep(tx, sid, limit)
        blobs, blob_bytes = body_rows.sweep_blobs(tx, limit)
        late = 0 if before_us is None else attachments.sweep_annotations(tx, sid, before_us, limit)
        return port.Swept(
            bodies=bodies,
            blobs=blobs,
            annotations=late,
            stored_bytes=body_bytes + blob_bytes,
            has_more=limit in (bodies, blobs, late),
        )

    def adopt_session(
        self, session: SessionInfo, branches: Sequence[Branch] = (), events: Sequence[Event] = ()
    ) -> SessionInfo:
        def transaction(tx: Connection) -> SessionInfo:
            self._check_admitted(tx)
            sid, adopted = checkpoint_rows.adopt_session(tx, session)
            for branch in branches:
                session_rows.put_branch(tx, sid, branch)
            for event in events:
                attachments.insert_event(tx, sid, event)
            return adopted

        return self._writing(transaction)

    def adopt(
        self,
        uid: str,
        raw: bytes,
        *,
        bodies: Sequence[Body],
        blobs: Sequence[Blob] = (),
        annotations: Sequence[Annotation] = (),
    ) -> bool:
        left = self._store_ahead(blobs)

        def transaction(tx: Connection, sid: int, session: SessionInfo) -> bool:
            is_new = self._adopt(tx, sid, session, raw, bodies, left)
            for annotation in annotations:
                attachments.annotate(tx, sid, annotation, replace=False)
            return is_new

        return self._in_session(uid, transaction)

    def _store_ahead(self, blobs: Sequence[Blob]) -> Sequence[Blob]:
        """Store blobs that must be durable before the transaction that names them; those left to it."""
        return blobs

    def _adopt(
        self,
        tx: Connection,
        sid: int,
        session: SessionInfo,
        raw: bytes,
        bodies: Sequence[Body],
        blobs: Sequence[Blob],
    ) -> bool:
        return checkpoint_rows.adopt(tx, sid, session, raw, bodies, blobs)

    # --- annotations, events, leases

    def annotate(
        self,
        uid: str,
        target: port.Target,
        kind: str,
        name: str,
        data: bytes,
        *,
        time_us: int,
        replace: bool = False,
        fence: int | None = None,
    ) -> bool:
        annotation = Annotation(
            target=target, kind=kind, name=name, data=data, time_us=time_us, digest=digest_of(data)
        )
        return self._beside_session(
            uid,
            lambda tx, sid: attachments.annotate(tx, sid, annotation, replace=replace),
            fence=fence,
        )

    def annotations(
        self, uid: str, targets: Sequence[port.Target] | None = None, kind: str | None = None
    ) -> list[Annotation]:
        return self._read_session(uid, attachments.read_annotations, targets, kind)

    def record_event(self, uid: str, type: str, data: dict[str, Any], *, time_us: int) -> Event:
        return self._beside_session(
            uid, lambda tx, sid: attachments.record_event(tx, sid, type, data, time_us=time_us)
        )

    def events(self, uid: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        return self._read_session(uid, attachments.read_events, after, limit)

    def acquire_lease(
        self, uid: str, owner: Owner, *, seconds: float, replacing: int | None = None
    ) -> port.Lease:
        def transaction(tx: Connection, sid: int) -> port.Lease:
            now_us = self._now_us(tx)
            return leases.acquire(
                tx, sid, uid, owner, now_us=now_us, expires_us=_later(now_us, seconds), replacing=replacing
            )

        return self._beside_session(uid, transaction)

    def renew_lease(self, uid: str, token: int, *, seconds: float) -> port.Lease:
        def transaction(tx: Connection, sid: int) -> port.Lease:
            expires_us = _later(self._now_us(tx), seconds)
            tx.put("UPDATE leases SET expires_us = ? WHERE sid = ?", (expires_us, sid))
            lease = leases.read(tx, sid)
            if lease is None:
                raise conflicts.lease_lost(uid)
            return lease

        return self._beside_session(uid, transaction, fence=token)

    def release_lease(self, uid: str, token: int) -> None:
        release = "UPDATE leases SET is_held = 0 WHERE sid = ? AND token = ?"
        self._beside_session(uid, lambda tx, sid: tx.put(release, (sid, token)))

    def lease(self, uid: str) -> port.Lease | None:
        return self._reading(lambda tx: leases.of_session(tx, uid))

    def leased(self, *, now: bool = True) -> frozenset[str]:
        held = (
            "SELECT uid FROM leases JOIN sessions ON sessions.sid = leases.sid"
            " WHERE is_held = 1 AND expires_us > ?"
        )
        rows = self._read(lambda tx: tx.all(held, (self._now_us(tx) if now else -1,)))
        return frozenset(uid for (uid,) in rows)

    def claim(
        self,
        query: port.ClaimQuery,
        owner: Owner,
        *,
        seconds: float,
        may_take: Callable[[SessionInfo, port.Lease | None], bool],
    ) -> port.Claimed | None:
        def transaction(tx: Connection) -> port.Claimed | None:
            now_us = self._now_us(tx)
            expires_us = _later(now_us, seconds)
            return leases.claim(tx, query, owner, may_take, now_us=now_us, expires_us=expires_us)

        return self._write(transaction)

    def _now_us(self, tx: Connection) -> int:  # noqa: ARG002  (a server is asked through it)
        """The time leases are measured by; a server uses its own."""
        return self._clock()

    # --- the keys of an encrypted store

    def key_record(self) -> str | None:
        return self._read(self._stored_keys)

    def set_key_record(self, record: str, *, expect: str | None, secure: bool = False) -> None:
        def transaction(tx: Connection) -> None:
            self._hold_keys(tx, is_changed=True)
            if expect != self._stored_keys(tx):
                raise conflicts.keys_changed(self.url)
            if expect is None and tx.one("SELECT 1 FROM sessions LIMIT 1"):
                raise conflicts.store_not_empty(self.url)
            self._store_keys(tx, record)

        self._write(transaction, secure=secure)

    def _hold_keys(self, tx: Connection, *, is_changed: bool) -> None:  # noqa: B027  (some have one writer at a time)
        """Until the transaction ends nobody else changes the key record; if this one does, nobody else holds it."""

    def _stored_keys(self, tx: Connection) -> str | None:
        row = tx.one(_KEY_RECORD)
        return None if row is None else str(row[0])

    def _store_keys(self, tx: Connection, record: str) -> None:
        tx.run("DELETE FROM meta WHERE name = 'encryption'")
        tx.run("INSERT INTO meta (name, value) VALUES ('encryption', ?)", (record,))

    def admit_encrypted(self, key: int | None) -> None:
        self._encrypting.key = key

    def _check_admitted(self, tx: Connection) -> None:
        """An encrypted store takes nothing that is not: a plain handle to an empty one begins with a session."""
        if self._encrypting.key is not None:
            self._hold_keys(tx, is_changed=False)  # who changes the data key must see the new session
            self._check_key(tx)
        elif self._stored_keys(tx) is not None:
            raise conflicts.key_missing(self.url)

    def _check_key(self, tx: Connection) -> None:
        """Refuse what is encrypted with a data key that is not the newest: soon nobody could read it.

        To be called while the session is held. If the key changes after this, who encrypts everything anew waits for
        the session, and finds what is stored now.
        """
        key = self._encrypting.key
        if key is None:
            return
        from stepkeep.storage.key_slots import key_number  # few stores are encrypted

        if key_number(self._stored_keys(tx)) != key:
            raise conflicts.other_key(self.url)

    def _check_key_at_hand(self, tx: Connection) -> None:
        """The same after a look at the rows at hand, by which a driver may know that nobody changed it since."""
        self._check_key(tx)

    def all_sessions(self) -> list[str]:
        rows = self._read(lambda tx: tx.all("SELECT uid FROM sessions ORDER BY sid"))
        return [str(uid) for (uid,) in rows]

    def renew(self, uid: str, part: str, after: tuple[Any, ...], renewal: port.Renewal) -> port.Renewed:
        return self._in_session(uid, lambda tx, sid, _: renewing.renew(tx, sid, uid, part, after, renewal))

    def count_older(self, mark: bytes) -> int:
        return self._read(lambda tx: renewing.count_older(tx, mark))

    # --- the store

    def inconsistencies(self, uid: str | None = None) -> list[port.Inconsistency]:
        if uid is not None:
            return self._read_session(uid, checkpoint_rows.inconsistencies)
        message = "the row of a session is damaged, and its key cannot be proven: open it by its key"
        damaged = self._read(session_rows.damaged)
        return [port.Inconsistency(str(row[1]), message, INTEGRITY_MISMATCH) for row in damaged]

    def usage(self, uid: str | None = None) -> port.Usage:
        counted = self._reading(lambda tx: checkpoint_rows.usage(tx, uid))
        return msgspec.structs.replace(counted, store_bytes=self._store_bytes())

    def kinds(self) -> list[tuple[port.Kind, SessionInfo]]:
        found = self._read_mended(session_rows.kinds)
        return list({kind: session for kind, session in found if session is not None}.items())

    def of_kind(self, kind: port.Kind, status: Status) -> Iterator[SessionInfo]:
        after, size = (-1, -1), session_rows.FEW  # mostly the first one is too young already
        is_full = True
        while is_full:
            page = self._read_mended(
                partial(session_rows.page_of_kind, kind=kind, status=status, after=after, limit=size)
            )
            for after, session in page:  # noqa: B007  (the next page begins behind the last one)
                if session is not None:
                    yield session
            is_full, size = len(page) == size, session_rows.FIRST_PAGE

    def session_count(self) -> int:
        (count,) = self._read(lambda tx: tx.one("SELECT count(*) FROM sessions")) or (0,)
        return int(count)

    def session_bytes(self) -> dict[str, int]:
        sizes = "SELECT sid, sum(stored_size) AS total FROM bodies GROUP BY sid"
        rows = self._read(
            lambda tx: tx.all(f"SELECT uid, total FROM sessions JOIN ({sizes}) AS b ON b.sid = sessions.sid")
        )
        return {uid: int(total) for uid, total in rows}


def _check_as_expected(
    session: SessionInfo, expect: SessionInfo, lease: port.Lease | None, fence: int | None = None
) -> None:
    """Refuse to remove a session that changed, or that another runs."""
    if session != expect:
        raise conflicts.session_changed(session)
    if lease is not None and lease.token != fence:
        raise conflicts.lease_held(session.uid, lease)


def _check_fence(tx: Connection, sid: int, uid: str, fence: int | None) -> None:
    # Expiry alone does not make a token stale.
    if fence is not None and tx.one(leases.TOKEN, (sid,)) != (fence, 1):
        raise conflicts.lease_lost(uid)


def _refusing_damage(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do work after a repair: what still needs one cannot be rebuilt."""
    try:
        return work(*args, **kwargs)
    except NeedsRepair as exc:
        if exc.missing is not None:
            raise conflicts.session_not_found(exc.missing) from exc
        raise Corrupt(
            f"{exc}, and its key cannot be proven: open the session by its key, or run verify"
        ) from exc


def _later(now_us: int, seconds: float) -> int:
    return now_us + round(seconds * 1_000_000)
