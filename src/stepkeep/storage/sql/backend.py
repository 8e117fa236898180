"""The port over SQL. A driver adds how to read, how to run a transaction, and how to give space back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from stepkeep.errors import INTEGRITY_MISMATCH, Conflict, Corrupt, StepkeepError
from stepkeep.logs import Log
from stepkeep.model import Branch, SessionInfo, utc_now_us
from stepkeep.processes import Owner
from stepkeep.storage.batch import append_in_order
from stepkeep.storage.port import (
    ANY_HEAD,
    Annotation,
    Append,
    Appended,
    Blob,
    BlobSize,
    Body,
    BodyInfo,
    Capabilities,
    Claimed,
    ClaimQuery,
    Event,
    HeaderQuery,
    HeaderRow,
    Inconsistency,
    Lease,
    Removed,
    Seal,
    SessionQuery,
    StoredHead,
    Swept,
    Target,
    Usage,
)
from stepkeep.storage.sql import bodies as body_rows
from stepkeep.storage.sql import checkpoints as checkpoint_rows
from stepkeep.storage.sql import claims, leases, notes
from stepkeep.storage.sql import events as event_rows
from stepkeep.storage.sql import sessions as session_rows
from stepkeep.storage.sql.append import Batch, DamagedPage
from stepkeep.storage.sql.connection import Connection
from stepkeep.storage.sql.repair import repair

log = Log("stepkeep.storage")

T = TypeVar("T")


class SqlBackend(ABC):
    """Everything the port promises, in terms of `_read` and `_write`."""

    capabilities = Capabilities(takes_deltas=True)

    def __init__(self, *, clock: Callable[[], int] = utc_now_us) -> None:
        self._clock = clock

    # --- what a driver adds

    @property
    @abstractmethod
    def url(self) -> str:
        """How to open this store again."""

    @abstractmethod
    def _read(self, work: Callable[[Connection], T]) -> T:
        """Run statements that only read."""

    @abstractmethod
    def _write(self, work: Callable[[Connection], T], *, secure: bool = False) -> T:
        """Run statements in one transaction that is durable on return; an exception leaves nothing behind."""

    def _write_keyed(self, work: Callable[[Connection], T]) -> T:
        """Like `_write`, for work that finds by their keys the records it stored before: it may be done again."""
        return self._write(work)

    @abstractmethod
    def _store_bytes(self) -> int:
        """What the whole store takes on disk."""

    @abstractmethod
    def reclaim(self, max_bytes: int) -> int:
        """Give freed space back; see the port."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; see the port."""

    # --- damaged rows are rebuilt where they are found

    def _reading(self, work: Callable[[Connection], T], *, key: str | None = None) -> T:
        try:
            return self._read(work)
        except session_rows.DamagedRow:
            self._write(lambda tx: repair(tx, key=key))
            return self._once_repaired(lambda: self._read(work))

    def _writing(self, work: Callable[[Connection], T], *, secure: bool = False) -> T:
        try:
            return self._write(work, secure=secure)
        except session_rows.DamagedRow:
            self._write(repair)
            return self._once_repaired(lambda: self._write(work, secure=secure))

    def _once_repaired(self, attempt: Callable[[], T]) -> T:
        try:
            return attempt()
        except session_rows.DamagedRow as exc:
            raise _beyond_repair(exc) from exc

    def _in_session(
        self,
        uid: str,
        work: Callable[[Connection, int, SessionInfo], T],
        *,
        fence: int | None,
        secure: bool = False,
    ) -> T:
        """Run a transaction on one session, after its fence was checked."""

        def transaction(tx: Connection) -> T:
            sid, session = session_rows.by_uid(tx, uid)
            leases.check_fence(tx, sid, uid, fence)
            return work(tx, sid, session)

        return self._writing(transaction, secure=secure)

    # --- sessions and branches

    def create_session(self, session: SessionInfo) -> SessionInfo:
        return self._writing(lambda tx: session_rows.create(tx, session))

    def session(self, uid: str) -> SessionInfo:
        return self._reading(lambda tx: session_rows.by_uid(tx, uid)[1])

    def session_by_key(self, key: str) -> SessionInfo | None:
        return self._reading(lambda tx: session_rows.by_key(tx, key), key=key)

    def sessions(self, query: SessionQuery) -> Iterator[SessionInfo]:
        after, left = query.after, query.limit
        while left is None or left > 0:
            size = session_rows.page_size(left)
            page = self._session_page(query, after, size)
            for after, session in page:  # noqa: B007  (the last place is where the next page begins)
                if session is None:
                    log.warning("a damaged session row is left out of the list: run verify")
                    continue
                left = None if left is None else left - 1
                yield session
            if len(page) < size:
                return

    def _session_page(
        self, query: SessionQuery, after: tuple[int, str] | None, size: int
    ) -> list[tuple[tuple[int, str], SessionInfo | None]]:
        page = self._read(lambda tx: session_rows.page(tx, query, after, size))
        if any(session is None for _, session in page):
            self._write(repair)
            page = self._read(lambda tx: session_rows.page(tx, query, after, size))
        return page

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
        self,
        uid: str,
        *,
        secure: bool = False,
        fence: int | None = None,
        expect: SessionInfo | None = None,
    ) -> None:
        def transaction(tx: Connection, sid: int, session: SessionInfo) -> None:
            if expect is not None:
                session_rows.check_unchanged(session, expect)
                lease = leases.read(tx, sid)
                if lease is not None and lease.token != fence and lease.expires_us > self._now_us(tx):
                    raise leases.is_run(uid, lease)
            session_rows.delete(tx, sid)

        self._in_session(uid, transaction, fence=fence, secure=secure)

    def branch(self, uid: str, name: str) -> Branch | None:
        return self._reading(lambda tx: session_rows.branch(tx, session_rows.sid_of(tx, uid), name))

    def branches(self, uid: str) -> list[Branch]:
        return self._reading(lambda tx: session_rows.branches(tx, session_rows.sid_of(tx, uid)))

    def set_branch(
        self, uid: str, branch: Branch, *, expect_head: str | None = ANY_HEAD, fence: int | None = None
    ) -> Branch:
        return self._in_session(
            uid, lambda tx, sid, _: session_rows.set_branch(tx, sid, uid, branch, expect_head), fence=fence
        )

    # --- records

    def append(self, batch: Sequence[Append], seal: Seal) -> list[Appended | StepkeepError]:
        try:
            return self._write_keyed(lambda tx: self._append_batch(tx, batch, seal))
        except session_rows.DamagedRow:
            self._write(repair)
        except DamagedPage as exc:
            raise Corrupt(f"{self.url} is damaged: {exc}; recover it into a new store") from exc
        # What could not be rebuilt is refused alone: a damaged session must not fail the saves of others.
        return self._write_keyed(lambda tx: self._append_batch(tx, batch, seal, is_repaired=True))

    def _append_batch(
        self, tx: Connection, batch: Sequence[Append], seal: Seal, *, is_repaired: bool = False
    ) -> list[Appended | StepkeepError]:
        rows = Batch(tx, batch)
        append = _refusing_damage(rows.append) if is_repaired else rows.append
        outcomes = append_in_order(batch, append, seal)
        rows.flush()
        self._saved(rows, outcomes)
        return outcomes

    def _saved(  # noqa: B027  (most need nothing of it)
        self, rows: Batch, outcomes: Sequence[Appended | StepkeepError]
    ) -> None:
        """What a batch leaves behind if its commit succeeds, for a driver that builds upon it."""

    def load_head(
        self, uid: str, branch: str | None = None, *, known: tuple[str, str] | None = None
    ) -> StoredHead | None:
        return self._read(lambda tx: body_rows.head(tx, uid, branch, known))

    def headers(self, query: HeaderQuery) -> Iterator[HeaderRow]:
        sid = None
        if query.session is not None:
            uid = query.session
            sid = self._reading(lambda tx: session_rows.sid_of(tx, uid))
        return self._header_pages(sid, query)

    def _header_pages(self, sid: int | None, query: HeaderQuery) -> Iterator[HeaderRow]:
        after, left = query.after, query.limit
        page_size = checkpoint_rows.FIRST_PAGE  # many callers only want the first few
        while left is None or left > 0:
            size = page_size if left is None else min(page_size, left)
            page_size = checkpoint_rows.PAGE
            page = self._header_page(sid, query, after, size)
            for after, row in page:  # noqa: B007  (the last place is where the next page begins)
                yield row
            if len(page) < size:
                return
            left = None if left is None else left - len(page)

    def _header_page(
        self, sid: int | None, query: HeaderQuery, after: tuple[int, str] | None, size: int
    ) -> list[tuple[tuple[int, str], HeaderRow]]:
        return self._read(lambda tx: checkpoint_rows.page(tx, sid, query, after, size))

    def body(self, uid: str, checkpoint: str, name: str) -> Body | None:
        return self._reading(
            lambda tx: body_rows.one(tx, session_rows.sid_of(tx, uid), checkpoint, name, is_redundant=False)
        )

    def body_chain(self, uid: str, checkpoint: str, name: str) -> list[Body]:
        return self._reading(lambda tx: body_rows.chain(tx, session_rows.sid_of(tx, uid), checkpoint, name))

    def redundant_delta(self, uid: str, checkpoint: str, name: str) -> Body | None:
        return self._reading(
            lambda tx: body_rows.one(tx, session_rows.sid_of(tx, uid), checkpoint, name, is_redundant=True)
        )

    def bodies(self, uid: str, checkpoints: Sequence[str] | None = None) -> list[BodyInfo]:
        return self._reading(lambda tx: body_rows.infos(tx, session_rows.sid_of(tx, uid), checkpoints))

    def replace_body(self, uid: str, body: Body, *, expect_digest: str, fence: int | None = None) -> None:
        self._in_session(uid, lambda tx, sid, _: body_rows.replace(tx, sid, body, expect_digest), fence=fence)

    def blob(self, digest: str) -> Blob | None:
        return self._read(lambda tx: body_rows.blob(tx, digest))

    def has_blobs(self, digests: Sequence[str]) -> set[str]:
        return self._read(lambda tx: body_rows.stored_blobs(tx, digests))

    def blob_sizes(self, uid: str) -> dict[str, BlobSize]:
        return self._reading(lambda tx: body_rows.blob_sizes(tx, session_rows.sid_of(tx, uid)))

    def remove(
        self,
        uid: str,
        checkpoints: Sequence[str],
        *,
        secure: bool = False,
        fence: int | None = None,
        keep_heads: bool = False,
    ) -> Removed:
        def transaction(tx: Connection, sid: int, session: SessionInfo) -> Removed:
            held = session_rows.held(tx, sid, session) if keep_heads else frozenset()
            free = [checkpoint for checkpoint in checkpoints if checkpoint not in held]
            done = checkpoint_rows.remove(tx, sid, session, free)
            refused = {*done.refused, *held}
            return msgspec.structs.replace(
                done, refused=tuple(id for id in dict.fromkeys(checkpoints) if id in refused)
            )

        return self._in_session(uid, transaction, fence=fence, secure=secure)

    def sweep(
        self,
        *,
        session: str | None = None,
        limit: int = 1000,
        annotations_before_us: int | None = None,
        secure: bool = False,
    ) -> Swept:
        def transaction(tx: Connection) -> Swept:
            sid = None if session is None else session_rows.sid_of(tx, session)
            body_count, body_bytes = body_rows.sweep(tx, sid, limit)
            blob_count, blob_bytes = body_rows.sweep_blobs(tx, limit)
            late = 0
            if annotations_before_us is not None:
                late = notes.sweep(tx, sid, annotations_before_us, limit)
            return Swept(
                bodies=body_count,
                blobs=blob_count,
                annotations=late,
                stored_bytes=body_bytes + blob_bytes,
                has_more=limit in (body_count, blob_count, late),
            )

        return self._writing(transaction, secure=secure)

    def adopt_session(
        self, session: SessionInfo, branches: Sequence[Branch] = (), events: Sequence[Event] = ()
    ) -> SessionInfo:
        return self._writing(lambda tx: _adopt_session(tx, session, branches, events))

    def adopt(
        self,
        uid: str,
        raw: bytes,
        *,
        bodies: Sequence[Body],
        blobs: Sequence[Blob] = (),
        annotations: Sequence[Annotation] = (),
    ) -> bool:
        return self._in_session(
            uid,
            lambda tx, sid, session: _adopt(tx, sid, session, raw, bodies, blobs, annotations),
            fence=None,
        )

    # --- annotations, events, leases

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
        annotation = notes.new(target, kind, name, data, time_us)
        return self._in_session(
            uid, lambda tx, sid, _: notes.put(tx, sid, annotation, replace=replace), fence=fence
        )

    def annotations(
        self, uid: str, targets: Sequence[Target] | None = None, kind: str | None = None
    ) -> list[Annotation]:
        return self._reading(lambda tx: notes.read(tx, session_rows.sid_of(tx, uid), targets, kind))

    def record_event(self, uid: str, type: str, data: dict[str, Any], *, time_us: int) -> Event:
        return self._in_session(
            uid, lambda tx, sid, _: event_rows.record(tx, sid, type, data, time_us=time_us), fence=None
        )

    def events(self, uid: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        return self._reading(
            lambda tx: event_rows.read(tx, session_rows.sid_of(tx, uid), after=after, limit=limit)
        )

    def acquire_lease(self, uid: str, owner: Owner, *, seconds: float, replacing: int | None = None) -> Lease:
        def transaction(tx: Connection, sid: int, session: SessionInfo) -> Lease:
            now_us = self._now_us(tx)
            return leases.acquire(
                tx,
                sid,
                session.uid,
                owner,
                now_us=now_us,
                expires_us=_later(now_us, seconds),
                replacing=replacing,
            )

        return self._in_session(uid, transaction, fence=None)

    def renew_lease(self, uid: str, token: int, *, seconds: float) -> Lease:
        return self._in_session(
            uid,
            lambda tx, sid, _: leases.renew(
                tx, sid, uid, token, expires_us=_later(self._now_us(tx), seconds)
            ),
            fence=None,
        )

    def release_lease(self, uid: str, token: int) -> None:
        self._in_session(uid, lambda tx, sid, _: leases.release(tx, sid, token), fence=None)

    def lease(self, uid: str) -> Lease | None:
        return self._reading(lambda tx: leases.read(tx, session_rows.sid_of(tx, uid)))

    def leased(self) -> frozenset[str]:
        def look(tx: Connection) -> frozenset[str]:
            rows = tx.all(
                "SELECT uid FROM leases JOIN sessions ON sessions.sid = leases.sid"
                " WHERE is_held = 1 AND expires_us > ?",
                (self._now_us(tx),),
            )
            return frozenset(uid for (uid,) in rows)

        return self._read(look)

    def claim(
        self,
        query: ClaimQuery,
        owner: Owner,
        *,
        seconds: float,
        may_take: Callable[[SessionInfo, Lease | None], bool],
    ) -> Claimed | None:
        def transaction(tx: Connection) -> Claimed | None:
            now_us = self._now_us(tx)
            expires_us = _later(now_us, seconds)
            return claims.claim(tx, query, owner, may_take, now_us=now_us, expires_us=expires_us)

        return self._write(transaction)

    def _now_us(self, tx: Connection) -> int:  # noqa: ARG002  (a server is asked through it)
        """The time leases are measured by; a server uses its own."""
        return self._clock()

    # --- the store

    def inconsistencies(self, uid: str | None = None) -> list[Inconsistency]:
        if uid is None:
            damaged = self._read(session_rows.damaged)
            return [Inconsistency(key, message, INTEGRITY_MISMATCH) for key, message in damaged]
        return self._reading(lambda tx: checkpoint_rows.inconsistencies(tx, session_rows.sid_of(tx, uid)))

    def usage(self, uid: str | None = None) -> Usage:
        counted = self._reading(lambda tx: self._usage(tx, uid))
        return msgspec.structs.replace(counted, store_bytes=self._store_bytes())

    def session_bytes(self) -> dict[str, int]:
        sizes = "SELECT sid, sum(stored_size) AS total FROM bodies GROUP BY sid"
        rows = self._read(
            lambda tx: tx.all(f"SELECT uid, total FROM sessions JOIN ({sizes}) AS b ON b.sid = sessions.sid")
        )
        return {uid: int(total) for uid, total in rows}

    def _usage(self, tx: Connection, uid: str | None) -> Usage:
        where, values = ("", ()) if uid is None else (" WHERE sid = ?", (session_rows.sid_of(tx, uid),))
        (session_count,) = tx.one(f"SELECT count(*) FROM sessions{where}", values) or (0,)
        (checkpoint_count,) = tx.one(f"SELECT count(*) FROM checkpoints{where}", values) or (0,)
        count, stored, hidden, hidden_bytes = tx.one(
            "SELECT count(*), coalesce(sum(stored_size), 0), coalesce(sum(is_hidden), 0),"
            f" coalesce(sum(stored_size * is_hidden), 0) FROM bodies{where}",
            values,
        ) or (0, 0, 0, 0)
        blob_count, blob_bytes = tx.one(
            "SELECT count(*), coalesce(sum(stored_size), 0) FROM blobs"
            + ("" if uid is None else f" WHERE digest IN (SELECT digest FROM blob_refs{where})"),
            values,
        ) or (0, 0)
        return Usage(
            sessions=session_count,
            checkpoints=checkpoint_count,
            bodies=count,
            body_bytes=int(stored),
            hidden_bodies=int(hidden),
            hidden_bytes=int(hidden_bytes),
            blobs=blob_count,
            blob_bytes=int(blob_bytes),
        )


def _refusing_damage(append: Callable[[Append, Seal], Appended]) -> Callable[[Append, Seal], Appended]:
    def refusing(item: Append, seal: Seal) -> Appended:
        try:
            return append(item, seal)
        except session_rows.DamagedRow as exc:
            raise _beyond_repair(exc) from exc

    return refusing


def _beyond_repair(exc: session_rows.DamagedRow) -> StepkeepError:
    if isinstance(exc, session_rows.MissingRow):
        return session_rows.no_session(exc.uid)
    return Corrupt(f"{exc}, and its key cannot be proven: open the session by its key, or run verify")


def _adopt_session(
    tx: Connection, session: SessionInfo, branches: Sequence[Branch], events: Sequence[Event]
) -> SessionInfo:
    """Store another store's session over what is here of it. The counter and the gaps never go back (V3)."""
    held = session_rows.by_key(tx, session.key)
    if held is not None and held.uid != session.uid:
        raise Conflict(
            f"the key {session.key!r} belongs to another session here", code="session_exists", retryable=False
        )
    if held is None:
        adopted = session_rows.create(tx, session)
    else:
        gaps = checkpoint_rows.merge_gaps([*held.gaps, *session.gaps], [])
        adopted = msgspec.structs.replace(session, last_seq=max(held.last_seq, session.last_seq), gaps=gaps)
    sid = session_rows.sid_of(tx, session.uid)
    session_rows.write(tx, sid, adopted)
    for branch in branches:
        session_rows.put_branch(tx, sid, branch)
    for event in events:
        event_rows.insert(tx, sid, event)
    return adopted


def _adopt(
    tx: Connection,
    sid: int,
    session: SessionInfo,
    raw: bytes,
    incoming: Sequence[Body],
    blobs: Sequence[Blob],
    incoming_notes: Sequence[Annotation],
) -> bool:
    is_new = checkpoint_rows.adopt(tx, sid, session, raw, incoming, blobs)
    for note in incoming_notes:
        notes.put(tx, sid, note, replace=False)
    return is_new


def _later(now_us: int, seconds: float) -> int:
    return now_us + round(seconds * 1_000_000)
