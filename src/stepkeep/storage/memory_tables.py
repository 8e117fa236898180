"""The tables of the memory backend, and how a checkpoint enters them: by `append`, or verbatim by `adopt`.

Values in them are never changed, so a copy of the dictionaries is a copy of everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from stepkeep import typed
from stepkeep.codec import integrity
from stepkeep.errors import Corrupt
from stepkeep.model import MAX_SEQ, Branch, BranchState, Header, SessionInfo
from stepkeep.storage import conflicts, port

T = TypeVar("T")
Key: TypeAlias = tuple[str, str]
"""Which body: (checkpoint, name)."""

_DIGEST_CHARS = 64


@dataclass
class Tables:
    session_tables: dict[str, SessionTable] = field(default_factory=dict)
    blobs: dict[str, port.Blob] = field(default_factory=dict)

    def copy(self, uids: Iterable[str]) -> Tables:
        """A copy, in which the tables of these sessions are copies too."""
        mine = {uid: self.session_tables[uid].copy() for uid in uids if uid in self.session_tables}
        return Tables(self.session_tables | mine, self.blobs.copy())

    def of(self, uid: str, fence: int | None = None) -> SessionTable:
        """The session's table; where a fence is given, it must be current."""
        if uid not in self.session_tables:
            raise conflicts.session_not_found(uid)
        table = self.session_tables[uid]
        if fence is not None and (table.lease is None or table.lease.token != fence):
            raise conflicts.lease_lost(uid)
        return table

    def add(self, session: SessionInfo) -> SessionTable:
        """The table of a new session, with the branch it is on."""
        table = SessionTable(key=session.key, row=pack(session))
        table.put_branch(Branch(name=session.branch, created_us=session.created_us))
        self.session_tables[session.uid] = table
        return table

    def some(self, uid: str | None) -> list[SessionTable]:
        """One session's table, or all."""
        return list(self.session_tables.values()) if uid is None else [self.of(uid)]

    def uid_of(self, key: str) -> str | None:
        return next((uid for uid, table in self.session_tables.items() if table.key == key), None)

    def stored(self, checkpoint: str) -> Stored | None:
        """The header with that id, which is unique over all sessions."""
        found = (table.headers.get(checkpoint) for table in self.session_tables.values())
        return next((stored for stored in found if stored is not None), None)

    def chain(self, checkpoint: str) -> str | None:
        stored = self.stored(checkpoint)
        return None if stored is None else integrity.chain_of(stored.raw)

    def loose_blobs(self) -> list[str]:
        named = {digest for table in self.session_tables.values() for digest in table.blobs()}
        return [digest for digest in self.blobs if digest not in named]

    # --- append -----------------------------------------------------------------------------------------

    def append(self, item: port.Append, seal: port.Seal) -> port.Appended:
        """Check everything, then store: a refused one leaves nothing behind for those after it."""
        draft = item.draft
        table = self.of(draft.session, item.fence)
        original = table.keyed(draft.idempotency_key) or self.stored(draft.id)
        if original is not None:
            # An idempotency key, or an id, stands for one content.
            held = original.header
            if (held.session, held.contents) != (draft.session, draft.contents) or (
                (held.step, held.status) != (draft.step, draft.status)
            ):
                raise conflicts.idempotency_mismatch(draft, held.id)
            return port.Appended(row=original.row, is_new=False)
        session, head = table.session, table.head(draft.branch)
        if item.on_current and session.branch != draft.branch:
            raise conflicts.branch_switched(session.key, session.branch, draft)
        check_head(session.uid, draft.branch, head, item.expect_head)
        table.check_external_id(draft)
        for required in draft.requires:
            table.header(required)
        self._check_bodies(table, item.bodies, item.blobs)
        if any((body.checkpoint, body.name) in table.bodies for body in item.bodies):
            raise conflicts.id_taken(draft)
        stored = self._seal(item, table.session.last_seq + 1, head, seal)
        self._put(table, stored, item.bodies, item.blobs)
        table.advance(stored.header)
        table.follow(draft, stored.header.seq)
        return port.Appended(row=stored.row, is_new=True)

    def _seal(self, item: port.Append, seq: int, head: str | None, seal: port.Seal) -> Stored:
        parents = item.parents
        if parents is None:
            parents = () if head is None else (head,)
        raw = seal(item.draft, seq, parents, [self.chain(parent) for parent in parents])
        return Stored(integrity.open_header(raw), raw)

    # --- adopt ------------------------------------------------------------------------------------------

    def adopt(self, uid: str, raw: bytes, bodies: Sequence[port.Body], blobs: Sequence[port.Blob]) -> bool:
        table = self.of(uid)
        header = integrity.open_header(raw)
        if header.session != uid:
            raise conflicts.foreign_checkpoint(header, uid)
        stored = self.stored(header.id)
        if stored is not None and stored.raw == raw:
            return False
        is_number_taken = any(s.header.seq == header.seq for s in table.headers.values())
        if stored is not None or is_number_taken or table.keyed(header.idempotency_key) is not None:
            raise conflicts.place_taken(header)
        table.check_external_id(header)
        self._check_bodies(table, bodies, blobs)
        # A hidden body has the same content (V4), and others are based on it: it shows again as it is.
        missing = [body for body in bodies if (body.checkpoint, body.name) not in table.bodies]
        self._put(table, Stored(header, raw), missing, blobs)
        branch = table.branch(header.branch)
        if branch is None or header.seq > branch.head_seq:
            table.advance(header)
        session = table.session
        table.put_session(replace(session, last_seq=max(session.last_seq, header.seq)))
        return True

    # --- both -------------------------------------------------------------------------------------------

    def _check_bodies(
        self, table: SessionTable, bodies: Sequence[port.Body], sent: Sequence[port.Blob]
    ) -> None:
        table.check_bases(bodies)
        there = self.blobs.keys() | {blob.digest for blob in sent}
        for digest in (digest for body in bodies for digest in body.blobs):
            if digest not in there:
                raise conflicts.blob_gone(digest)

    def _put(
        self, table: SessionTable, stored: Stored, bodies: Iterable[port.Body], blobs: Iterable[port.Blob]
    ) -> None:
        table.headers[stored.header.id] = stored
        for body in bodies:
            (table.redundant if body.is_redundant else table.bodies)[body.checkpoint, body.name] = body
        for blob in blobs:
            self.blobs.setdefault(blob.digest, blob)


def check_head(uid: str, branch: str, head: str | None, expect_head: str | None) -> None:
    if expect_head not in (port.ANY_HEAD, head):
        raise conflicts.head_moved(uid, branch, head, expect_head)


# --- one session -----------------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """A header as read when it was stored, by which it is found, and the sealed bytes that are given back."""

    header: Header
    raw: bytes

    @property
    def row(self) -> port.HeaderRow:
        header = self.header
        return port.HeaderRow(
            id=header.id, session=header.session, seq=header.seq, branch=header.branch, raw=self.raw
        )


def pack(value: object) -> bytes:
    """A row that shows damage, and that no caller can change through a dict it still holds."""
    data = msgspec.json.encode(value)
    return integrity.digest(data).encode() + data


def unpack(row: bytes, type_: type[T]) -> T:
    data = row[_DIGEST_CHARS:]
    if integrity.digest(data).encode() != row[:_DIGEST_CHARS]:
        raise Corrupt(f"a stored {type_.__name__.lower()} does not match its digest")
    return typed.from_json(data, type_)


def merge_gaps(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same numbers as the fewest closed ranges, in order."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def names_of(header: Header) -> set[port.Target]:
    """All targets that mean this checkpoint."""
    if header.external_id is None:
        return {header.id}
    return {header.id, (header.branch, header.external_id)}


@dataclass
class SessionTable:
    """One session. `key` stands beside the row so that a damaged row still holds its key."""

    key: str
    row: bytes
    branches: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, Stored] = field(default_factory=dict)
    bodies: dict[Key, port.Body] = field(default_factory=dict)
    redundant: dict[Key, port.Body] = field(default_factory=dict)
    annotations: dict[tuple[port.Target, str, str], port.Annotation] = field(default_factory=dict)
    events: dict[int, bytes] = field(default_factory=dict)
    last_event: int = 0
    lease: port.Lease | None = None
    last_token: int = 0

    def copy(self) -> SessionTable:
        own: dict[str, Any] = {name: t.copy() for name, t in vars(self).items() if isinstance(t, dict)}
        return replace_fields(self, **own)

    # --- session, branches, events ---------------------------------------------------------------------

    @property
    def session(self) -> SessionInfo:
        return unpack(self.row, SessionInfo)

    def put_session(self, session: SessionInfo) -> None:
        self.row = pack(session)

    def adopt_session(self, session: SessionInfo) -> None:
        """Take the session as sent, except that the counter never goes back (V3) and no gap is forgotten."""
        try:
            old = self.session
        except Corrupt:  # a damaged row is repaired by what is sent
            old = session
        seqs = [stored.header.seq for stored in self.headers.values()]
        last_seq = max(session.last_seq, old.last_seq, *seqs)
        self.key = session.key
        self.put_session(replace(session, last_seq=last_seq, gaps=merge_gaps([*session.gaps, *old.gaps])))

    def branch(self, name: str) -> Branch | None:
        row = self.branches.get(name)
        return None if row is None else unpack(row, Branch)

    def put_branch(self, branch: Branch) -> None:
        self.branches[branch.name] = pack(branch)

    def all_branches(self) -> list[Branch]:
        branches = [unpack(row, Branch) for row in self.branches.values()]
        return sorted(branches, key=lambda branch: (branch.created_us, branch.name))

    def head(self, name: str) -> str | None:
        branch = self.branch(name)
        return None if branch is None else branch.head

    def advance(self, header: Header) -> None:
        """Make the checkpoint the head of its branch, which is created where there is none."""
        branch = self.branch(header.branch) or self._new_branch(header)
        self.put_branch(replace(branch, head=header.id, head_seq=header.seq))

    def _new_branch(self, header: Header) -> Branch:
        branch = Branch(name=header.branch, created_us=header.time_us)
        parent = self.headers.get(header.parents[0]) if header.parents else None
        if parent is None or parent.header.branch == header.branch:
            return branch
        fork = parent.header
        return replace(branch, fork=fork.id, fork_branch=fork.branch, fork_seq=fork.seq)

    def located(self, branch: Branch) -> Branch:
        """The record with the location of its head and, where not given, of its fork filled in."""
        head_seq = 0 if branch.head is None else self.header(branch.head).seq
        if branch.fork is None or branch.fork_branch is not None:
            return replace(branch, head_seq=head_seq)
        fork = self.header(branch.fork)
        return replace(branch, head_seq=head_seq, fork_branch=fork.branch, fork_seq=fork.seq)

    def header(self, checkpoint: str) -> Header:
        if checkpoint not in self.headers:
            raise conflicts.checkpoint_not_found(self.session.uid, checkpoint)
        return self.headers[checkpoint].header

    def add_event(self, type_: str, data: dict[str, Any], time_us: int) -> port.Event:
        self.last_event += 1
        event = port.Event(number=self.last_event, time_us=time_us, type=type_, data=data)
        self.put_event(event)
        return unpack(self.events[event.number], port.Event)

    def put_event(self, event: port.Event) -> None:
        self.events[event.number] = pack(event)
        self.last_event = max(self.last_event, event.number)
        for number in sorted(self.events)[: -port.MAX_EVENTS]:
            del self.events[number]

    # --- what must hold before a write -----------------------------------------------------------------

    def check_external_id(self, header: Header) -> None:
        target = (header.branch, header.external_id)
        holders = [id_ for id_, stored in self.headers.items() if target in names_of(stored.header)]
        if header.external_id is not None and holders:
            raise conflicts.external_id_exists(header, holders[0])

    def check_bases(self, bodies: Iterable[port.Body]) -> None:
        for body in bodies:
            if body.base is not None and not body.is_redundant and (body.base, body.name) not in self.bodies:
                raise conflicts.base_gone(body)

    def keyed(self, idempotency_key: str | None) -> Stored | None:
        if idempotency_key is None:
            return None
        stored = self.headers.values()
        return next((s for s in stored if s.header.idempotency_key == idempotency_key), None)

    # --- records ---------------------------------------------------------------------------------------

    def chain(self, checkpoint: str, name: str, known: Key | None = None) -> list[port.Body]:
        """A body and those it is rebuilt from, up to one that is `known`, or that is missing."""
        chain: list[port.Body] = []
        at: str | None = checkpoint
        while at is not None and (at, name) in self.bodies:
            chain.append(self.bodies[at, name])
            at = None if (at, name) == known else chain[-1].base
        return chain

    def records(self) -> list[port.Body]:
        return [*self.bodies.values(), *self.redundant.values()]

    def blobs(self) -> set[str]:
        """The blobs that a record here keeps alive, those of hidden bodies included."""
        return {digest for body in self.records() for digest in body.blobs}

    def follow(self, draft: Header, seq: int) -> None:
        """Let the session's counter, status and times follow a checkpoint. Its version stays."""
        session = self.session
        is_finished = draft.status.is_finished
        if session.status.is_finished and not is_finished:
            self.add_event("session_reopened", {"checkpoint": draft.id}, draft.time_us)
        self.put_session(
            replace(
                session,
                last_seq=seq,
                status=draft.status,
                updated_us=max(session.updated_us, draft.time_us),
                finished_us=draft.time_us if is_finished else None,
                error=session.error if is_finished else None,
            )
        )

    def held(self) -> set[str]:
        """The newest checkpoint, and heads and forks of branches that are current, or open and pinned."""
        current = self.session.branch
        branches = [
            branch
            for branch in self.all_branches()
            if branch.name == current or (branch.is_pinned and branch.state is BranchState.OPEN)
        ]
        newest = max(self.headers.values(), key=lambda stored: stored.header.seq, default=None)
        named = {id_ for branch in branches for id_ in (branch.head, branch.fork) if id_ is not None}
        return named if newest is None else named | {newest.header.id}

    def refused(self, checkpoints: Iterable[str]) -> set[str]:
        """Those of the checkpoints that must stay: what stays requires them, directly or through another."""
        named = set(checkpoints)
        going = set(named)
        while True:
            staying = [stored.header for id_, stored in self.headers.items() if id_ not in going]
            required = {id_ for header in staying for id_ in header.requires} & going
            if not required:
                return named - going
            going -= required

    def drop_headers(self, checkpoints: Sequence[str]) -> None:
        """Remove headers and their annotations, record the gaps, and move heads that went."""
        gone = [self.headers.pop(checkpoint).header for checkpoint in checkpoints]
        targets = {target for header in gone for target in names_of(header)}
        self.annotations = {key: each for key, each in self.annotations.items() if key[0] not in targets}
        session = self.session
        gaps = merge_gaps([*session.gaps, *((header.seq, header.seq) for header in gone)])
        self.put_session(replace(session, gaps=gaps))
        for branch in self.all_branches():
            if branch.head in set(checkpoints):
                head = self._newest_on_line(branch)
                id_, seq = (head.id, head.seq) if head else (None, 0)
                self.put_branch(replace(branch, head=id_, head_seq=seq))

    def _newest_on_line(self, branch: Branch) -> Header | None:
        """The newest checkpoint of a branch, else of the one it comes from, up to the fork, and so on."""
        branches = {each.name: each for each in self.all_branches()}
        headers = [stored.header for stored in self.headers.values()]
        at, max_seq = branch.name, MAX_SEQ
        while at in branches:
            line = [header for header in headers if header.branch == at and header.seq <= max_seq]
            if line:
                return max(line, key=lambda header: header.seq)
            record = branches.pop(at)
            at, max_seq = record.fork_branch or "", record.fork_seq
        return None

    def unused(self, keys: Iterable[Key]) -> list[Key]:
        """Those of the bodies that nothing is based on. Redundant deltas do not count (V5)."""
        bases = {(body.base, body.name) for body in self.bodies.values()}
        return [key for key in keys if key in self.bodies and key not in bases]

    def hidden(self) -> list[Key]:
        return [key for key in self.bodies if key[0] not in self.headers]

    def peel(self, keys: Sequence[Key], limit: int | None = None) -> tuple[int, int]:
        """Remove the unused of these bodies until there is none; how many, and the bytes, redundant deltas included."""
        count = stored_bytes = 0
        while free := self.unused(keys)[: None if limit is None else limit - count]:
            for key in free:
                stored_bytes += self._drop_body(key)
            count += len(free)
        return count, stored_bytes

    def _drop_body(self, key: Key) -> int:
        """Remove a body, its redundant delta, and the redundant deltas based on it."""
        going = [k for k, redundant in self.redundant.items() if key in (k, (redundant.base, redundant.name))]
        dropped = [self.bodies.pop(key), *(self.redundant.pop(k) for k in going)]
        return sum(body.stored_size for body in dropped)

    def orphans(self, before_us: int) -> list[tuple[port.Target, str, str]]:
        """Annotations older than that whose checkpoint is not there."""
        known = {target for stored in self.headers.values() for target in names_of(stored.header)}
        return [
            key
            for key, each in self.annotations.items()
            if each.time_us < before_us and each.target not in known
        ]


# --- queries, answered condition by condition ------------------------------------------------------------------

Position: TypeAlias = tuple[int, str]


def is_wanted_session(session: SessionInfo, query: port.SessionQuery) -> bool:
    return (
        _is(query.project, session.project)
        and _is(query.workflow, session.workflow)
        and (query.statuses is None or session.status in query.statuses)
        and session.key.startswith(query.key_prefix or "")
        and (query.updated_before_us is None or session.updated_us < query.updated_before_us)
    )


def is_wanted_header(header: Header, query: port.HeaderQuery) -> bool:
    """Whether the header meets every condition on itself. Bounds of `seq` and time belong to the range."""
    return (
        _is(query.branch, header.branch)
        and _is(query.external_id, header.external_id)
        and _is(query.step, header.step)
        and _is(query.status, header.status)
        and (query.tag is None or query.tag in header.tags)
        and (query.ids is None or header.id in query.ids)
        and header.id.startswith(query.id_prefix or "")
        and _is_within(header.seq, query.min_seq, query.max_seq)
        and _is_within(header.time_us, query.since_us, query.until_us)
    )


def page(
    found: Iterable[tuple[Position, T]], *, newest_first: bool, after: Position | None, limit: int | None
) -> list[T]:
    """What was found, in the order of its positions, behind `after`, at most `limit`."""
    ordered = sorted(found, key=lambda item: item[0], reverse=newest_first)
    if after is not None:
        ordered = [item for item in ordered if (item[0] < after if newest_first else item[0] > after)]
    return [value for _, value in ordered[:limit]]


def _is(wanted: object, found: object) -> bool:
    return wanted is None or wanted == found


def _is_within(number: int, first: int | None, last: int | None) -> bool:
    return (first is None or first <= number) and (last is None or number <= last)
