"""Everything in memory: the reference backend, and the oracle of the tests.

Read it as the executable form of the promises in `port`. A write copies the tables it changes, works on the
copies, and puts them in place at its end. So a reader sees all of it or nothing (V2), needs no lock, and an
exception leaves nothing behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from stepkeep import typed
from stepkeep.codec import integrity
from stepkeep.errors import BackendUnavailable, InvalidInput, StepkeepError
from stepkeep.model import Branch, SessionInfo, utc_now_us
from stepkeep.processes import Owner, tell_of_forks
from stepkeep.storage import conflicts, port
from stepkeep.storage.memory_tables import (
    SessionTable,
    Tables,
    check_head,
    is_wanted_header,
    is_wanted_session,
    names_of,
    page,
    unpack,
)

_FIXED_FIELDS = frozenset({"uid", "key", "created_us", "version", "last_seq", "gaps"})


class MemoryBackend:
    """A store that lives as long as this object. `clock` gives the time of leases, and of nothing else.

    `secure` and `reclaim` have no meaning here: memory that is let go is the interpreter's.
    """

    capabilities = port.Capabilities()
    url = "memory:"

    def __init__(self, *, clock: Callable[[], int] = utc_now_us) -> None:
        self._clock = clock
        self._is_closed = False
        self._tables = Tables()
        self._lock = threading.RLock()
        self._key_record: str | None = None
        self._encrypting = port.Encrypting()
        tell_of_forks(self)

    def _reading(self) -> Tables:
        if self._is_closed:
            raise BackendUnavailable("this store is closed", code="store_closed", retryable=False)
        return self._tables

    @contextmanager
    def _writing(self, *uids: str) -> Iterator[Tables]:
        """Tables to change, put in place when the block ends without an exception."""
        with self._lock:
            tables = self._reading().copy(uids)
            yield tables
            self._tables = tables

    # --- sessions and branches -------------------------------------------------------------------------

    def create_session(self, session: SessionInfo) -> SessionInfo:
        with self._writing() as tables:
            self._check_admitted()
            if tables.uid_of(session.key) is not None or session.uid in tables.session_tables:
                raise conflicts.session_exists(session)
            return tables.add(session).session

    def session(self, uid: str) -> SessionInfo:
        return self._reading().of(uid).session

    def session_by_key(self, key: str) -> SessionInfo | None:
        tables = self._reading()
        uid = tables.uid_of(key)
        return None if uid is None else tables.of(uid).session

    def sessions(self, query: port.SessionQuery) -> Iterator[SessionInfo]:
        found = [table.session for table in self._reading().session_tables.values()]
        wanted = [((s.updated_us, s.uid), s) for s in found if is_wanted_session(s, query)]
        return iter(page(wanted, newest_first=True, after=query.after, limit=query.limit))

    def update_session(
        self,
        uid: str,
        changes: dict[str, Any],
        *,
        expect_version: int | None = None,
        fence: int | None = None,
    ) -> SessionInfo:
        with self._writing(uid) as tables:
            table = tables.of(uid, fence)
            session = table.session
            if expect_version is not None and expect_version != session.version:
                raise conflicts.version_changed(session, expect_version)
            changed = _changed(session, changes)
            if changed.branch not in table.branches:
                raise conflicts.branch_not_found(session, changed.branch)
            table.put_session(replace(changed, version=session.version + 1))
            return table.session

    def delete_session(
        self,
        uid: str,
        *,
        secure: bool = False,  # noqa: ARG002
        fence: int | None = None,
        expect: SessionInfo | None = None,
    ) -> None:
        with self._writing() as tables:
            table = tables.of(uid, fence)
            if expect is not None:
                self._check_as_expected(table, expect, fence)
            del tables.session_tables[uid]

    def delete_sessions(
        self,
        expected: Sequence[SessionInfo],
        *,
        secure: bool = False,  # noqa: ARG002
    ) -> list[int | StepkeepError]:
        outcomes: list[int | StepkeepError] = []
        with self._writing() as tables:
            for expect in expected:
                try:
                    self._check_as_expected(tables.of(expect.uid), expect)
                except StepkeepError as exc:
                    outcomes.append(exc)
                else:
                    gone = tables.session_tables.pop(expect.uid)
                    outcomes.append(sum(body.stored_size for body in gone.records()))
        return outcomes

    def _check_as_expected(self, table: SessionTable, expect: SessionInfo, fence: int | None = None) -> None:
        if table.session != expect:
            raise conflicts.session_changed(expect)
        self._check_not_leased(table, fence)

    def branch(self, uid: str, name: str) -> Branch | None:
        return self._reading().of(uid).branch(name)

    def branches(self, uid: str) -> list[Branch]:
        return self._reading().of(uid).all_branches()

    def set_branch(
        self, uid: str, branch: Branch, *, expect_head: str | None = port.ANY_HEAD, fence: int | None = None
    ) -> Branch:
        with self._writing(uid) as tables:
            table = tables.of(uid, fence)
            head = table.head(branch.name)
            check_head(uid, branch.name, head, expect_head)
            located = table.located(replace(branch, head=head) if branch.head == port.ANY_HEAD else branch)
            table.put_branch(located)
            return located

    # --- records ---------------------------------------------------------------------------------------

    def append(self, batch: Sequence[port.Append], seal: port.Seal) -> list[port.Appended | StepkeepError]:
        with self._writing(*(item.draft.session for item in batch)) as tables:
            return conflicts.append_in_order(batch, tables.append, seal)

    def load_head(
        self, uid: str, branch: str | None = None, *, known: tuple[str, str] | None = None
    ) -> port.StoredHead | None:
        table = self._reading().of(uid)
        head = table.head(branch or table.session.branch)
        stored = None if head is None else table.headers.get(head)
        if stored is None:
            return None
        chains = {name: table.chain(stored.header.id, name, known) for name in stored.header.contents}
        found = {name: chain for name, chain in chains.items() if chain}
        return port.StoredHead(session=table.session, row=stored.row, chains=found)

    def headers(self, query: port.HeaderQuery) -> Iterator[port.HeaderRow]:
        session_tables = self._reading().some(query.session)
        if query.project is not None:
            session_tables = [table for table in session_tables if table.session.project == query.project]
        stored = [
            s for table in session_tables for s in table.headers.values() if is_wanted_header(s.header, query)
        ]
        by_time = query.session is None
        wanted = [((s.header.time_us if by_time else s.header.seq, s.header.id), s.row) for s in stored]
        return iter(page(wanted, newest_first=query.newest_first, after=query.after, limit=query.limit))

    def body(self, uid: str, checkpoint: str, name: str) -> port.Body | None:
        return self._reading().of(uid).bodies.get((checkpoint, name))

    def body_chain(self, uid: str, checkpoint: str, name: str) -> list[port.Body]:
        return self._reading().of(uid).chain(checkpoint, name)

    def all_chains(self, uid: str, checkpoints: Sequence[str]) -> list[port.Body]:
        table = self._reading().of(uid)
        links = [
            link
            for checkpoint, name in table.bodies
            if checkpoint in checkpoints
            for link in table.chain(checkpoint, name)
        ]
        found = {(body.checkpoint, body.name): msgspec.structs.replace(body, blobs=()) for body in links}
        return list(found.values())

    def redundant_delta(self, uid: str, checkpoint: str, name: str) -> port.Body | None:
        return self._reading().of(uid).redundant.get((checkpoint, name))

    def bodies(self, uid: str, checkpoints: Sequence[str] | None = None) -> list[port.BodyInfo]:
        records = self._reading().of(uid).records()
        names = port.BodyInfo.__struct_fields__
        return [
            port.BodyInfo(**{name: getattr(body, name) for name in names})
            for body in records
            if checkpoints is None or body.checkpoint in checkpoints
        ]

    def replace_body(
        self, uid: str, body: port.Body, *, expect_digest: str, fence: int | None = None
    ) -> None:
        with self._writing(uid) as tables:
            table = tables.of(uid, fence)
            key = (body.checkpoint, body.name)
            if key not in table.bodies:
                raise conflicts.body_not_found(body)
            if table.bodies[key].digest != expect_digest:
                raise conflicts.body_changed(body)
            table.check_bases([body])
            table.bodies[key] = body
            table.redundant.pop(key, None)

    def blob(self, digest: str, session: str | None = None) -> port.Blob | None:  # noqa: ARG002
        return self._reading().blobs.get(digest)

    def has_blobs(self, digests: Sequence[str], session: str | None = None) -> set[str]:  # noqa: ARG002
        return set(digests) & self._reading().blobs.keys()

    def blob_sizes(self, uid: str) -> dict[str, port.BlobSize]:
        tables = self._reading()
        table = tables.of(uid)
        elsewhere = {blob for each in tables.some(None) if each is not table for blob in each.blobs()}
        return {
            blob: port.BlobSize(len(tables.blobs[blob].data), blob in elsewhere)
            for blob in table.blobs() & tables.blobs.keys()
        }

    def remove(
        self,
        uid: str,
        checkpoints: Sequence[str],
        *,
        secure: bool = False,  # noqa: ARG002
        fence: int | None = None,
        keep_heads: bool = False,
    ) -> port.Removed:
        with self._writing(uid) as tables:
            table = tables.of(uid, fence)
            named = dict.fromkeys(checkpoints)
            there = [checkpoint for checkpoint in named if checkpoint in table.headers]
            held = table.held() if keep_heads else set()
            refused = table.refused(checkpoint for checkpoint in there if checkpoint not in held)
            refused |= held.intersection(there)
            going = [checkpoint for checkpoint in there if checkpoint not in refused]
            table.drop_headers(going)
            _, stored_bytes = table.peel([key for key in table.bodies if key[0] in set(going)])
            return port.Removed(
                removed=tuple(going),
                refused=tuple(checkpoint for checkpoint in there if checkpoint in refused),
                missing=tuple(checkpoint for checkpoint in named if checkpoint not in there),
                stored_bytes=stored_bytes,
            )

    def sweep(
        self,
        *,
        session: str | None = None,
        limit: int = 1000,
        annotations_before_us: int | None = None,
        secure: bool = False,  # noqa: ARG002
    ) -> port.Swept:
        with self._lock, self._writing(*self._reading().session_tables) as tables:
            done = port.Swept()
            for table in tables.some(session):
                done = _swept(table, done, limit, annotations_before_us)
            loose = tables.loose_blobs()
            freed = sum(len(tables.blobs.pop(digest).data) for digest in loose[:limit])
            return replace(
                done,
                blobs=len(loose[:limit]),
                stored_bytes=done.stored_bytes + freed,
                has_more=done.has_more or len(loose) > limit,
            )

    def adopt_session(
        self, session: SessionInfo, branches: Sequence[Branch] = (), events: Sequence[port.Event] = ()
    ) -> SessionInfo:
        with self._writing(session.uid) as tables:
            self._check_admitted()
            if tables.uid_of(session.key) not in (None, session.uid):
                raise conflicts.key_taken(session)
            table = tables.session_tables.get(session.uid) or tables.add(session)
            table.adopt_session(session)
            for branch in branches:
                table.put_branch(branch)
            if session.branch not in table.branches:
                table.put_branch(Branch(name=session.branch, created_us=session.created_us))
            for event in events:
                table.put_event(event)
            return table.session

    def adopt(
        self,
        uid: str,
        raw: bytes,
        *,
        bodies: Sequence[port.Body],
        blobs: Sequence[port.Blob] = (),
        annotations: Sequence[port.Annotation] = (),
    ) -> bool:
        with self._writing(uid) as tables:
            is_new = tables.adopt(uid, raw, bodies, blobs)
            for each in annotations if is_new else ():
                tables.of(uid).annotations.setdefault((each.target, each.kind, each.name), each)
            return is_new

    # --- annotations, events ---------------------------------------------------------------------------

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
        with self._writing(uid) as tables:
            table = tables.of(uid, fence)
            if (target, kind, name) in table.annotations and not replace:
                return False
            table.annotations[target, kind, name] = port.Annotation(
                target=target, kind=kind, name=name, data=data, time_us=time_us, digest=integrity.digest(data)
            )
            return True

    def annotations(
        self, uid: str, targets: Sequence[port.Target] | None = None, kind: str | None = None
    ) -> list[port.Annotation]:
        table = self._reading().of(uid)
        wanted = set(targets or ())
        for stored in table.headers.values():
            names = names_of(stored.header)
            wanted |= names if names & wanted else set()
        found = [
            each
            for each in table.annotations.values()
            if (kind is None or each.kind == kind) and (targets is None or each.target in wanted)
        ]
        return sorted(found, key=lambda each: each.time_us)

    def record_event(self, uid: str, type: str, data: dict[str, Any], *, time_us: int) -> port.Event:
        with self._writing(uid) as tables:
            return tables.of(uid).add_event(type, data, time_us)

    def events(self, uid: str, *, after: int = 0, limit: int | None = None) -> list[port.Event]:
        events = self._reading().of(uid).events
        return [unpack(events[number], port.Event) for number in sorted(events) if number > after][:limit]

    # --- leases ----------------------------------------------------------------------------------------

    def acquire_lease(
        self, uid: str, owner: Owner, *, seconds: float, replacing: int | None = None
    ) -> port.Lease:
        with self._writing(uid) as tables:
            table = tables.of(uid)
            self._check_not_leased(table, replacing)
            table.last_token += 1
            table.lease = port.Lease(token=table.last_token, owner=owner, expires_us=self._end(seconds))
            return table.lease

    def renew_lease(self, uid: str, token: int, *, seconds: float) -> port.Lease:
        with self._writing(uid) as tables:
            table = tables.of(uid, token)
            assert table.lease is not None
            table.lease = replace(table.lease, expires_us=self._end(seconds))
            return table.lease

    def release_lease(self, uid: str, token: int) -> None:
        with self._writing(uid) as tables:
            table = tables.of(uid)
            if table.lease is not None and table.lease.token == token:
                table.lease = None

    def lease(self, uid: str) -> port.Lease | None:
        return self._reading().of(uid).lease

    def _check_not_leased(self, table: SessionTable, token: int | None) -> None:
        lease = table.lease
        if lease is not None and lease.expires_us > self._clock() and lease.token != token:
            raise conflicts.lease_held(table.session.uid, lease)

    def _end(self, seconds: float) -> int:
        return self._clock() + round(seconds * 1_000_000)

    # --- keys ------------------------------------------------------------------------------------------

    def key_record(self) -> str | None:
        return self._key_record

    def set_key_record(self, record: str, *, expect: str | None, secure: bool = False) -> None:  # noqa: ARG002
        with self._lock:
            if expect != self._key_record:
                raise conflicts.keys_changed(self.url)
            if expect is None and self._reading().session_tables:
                raise conflicts.store_not_empty(self.url)
            self._key_record = record

    def admit_encrypted(self, key: int | None) -> None:
        self._encrypting.key = key

    def _check_admitted(self) -> None:
        if self._key_record is not None and self._encrypting.key is None:
            raise conflicts.key_missing(self.url)

    # --- the whole -------------------------------------------------------------------------------------

    def inconsistencies(self, uid: str | None = None) -> list[port.Inconsistency]:
        """None: headers are found by themselves."""
        self._reading().some(uid)
        return []

    def usage(self, uid: str | None = None) -> port.Usage:
        tables = self._reading()
        session_tables = tables.some(uid)
        records = [
            (body, body.checkpoint in table.headers) for table in session_tables for body in table.records()
        ]
        hidden = [body for body, is_kept in records if not is_kept]
        blobs = [
            b for digest, b in tables.blobs.items() if uid is None or digest in session_tables[0].blobs()
        ]
        return port.Usage(
            sessions=len(session_tables),
            checkpoints=sum(len(table.headers) for table in session_tables),
            bodies=len(records),
            body_bytes=sum(body.stored_size for body, _ in records),
            hidden_bodies=len(hidden),
            hidden_bytes=sum(body.stored_size for body in hidden),
            blobs=len(blobs),
            blob_bytes=sum(len(blob.data) for blob in blobs),
        )

    def reclaim(self, max_bytes: int) -> int:  # noqa: ARG002
        self._reading()
        return 0

    def close(self) -> None:
        self._is_closed = True

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, is_child: bool) -> None:  # noqa: ARG002  (both sides only go on)
        self._lock.release()


def _swept(
    table: SessionTable, done: port.Swept, limit: int, annotations_before_us: int | None
) -> port.Swept:
    """What is done after sweeping one session too, within what `done` leaves of the limit."""
    bodies, freed = table.peel(table.hidden(), limit - done.bodies)
    orphans = [] if annotations_before_us is None else table.orphans(annotations_before_us)
    going = orphans[: limit - done.annotations]
    for key in going:
        del table.annotations[key]
    return replace(
        done,
        bodies=done.bodies + bodies,
        annotations=done.annotations + len(going),
        stored_bytes=done.stored_bytes + freed,
        has_more=done.has_more or bool(table.unused(table.hidden())) or len(going) < len(orphans),
    )


def _changed(session: SessionInfo, changes: dict[str, Any]) -> SessionInfo:
    fields = asdict(session)
    if fixed := changes.keys() & _FIXED_FIELDS | changes.keys() - fields.keys():
        raise conflicts.unchangeable(fixed)
    try:
        return typed.convert(fields | changes, SessionInfo)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"not a session: {exc}", session=session.uid) from exc
