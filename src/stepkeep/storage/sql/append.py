"""Appending checkpoints, with as few statements as there can be.

One statement brings everything that decides about a save: session, branch, the newest number, what it builds upon.
Then come header, bodies, and once for the whole batch the rows of branch and session. All checks come before the first
write, so a refusal leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from stepkeep.codec.integrity import chain_of, open_header, row_digest
from stepkeep.model import Branch, Header, SessionInfo, Status
from stepkeep.storage import conflicts
from stepkeep.storage.port import Append, Appended, HeaderRow, Seal
from stepkeep.storage.sql import bodies, sessions
from stepkeep.storage.sql.attachments import record_event
from stepkeep.storage.sql.connection import Connection, Row, Value, marks
from stepkeep.storage.sql.row_mapping import (
    BRANCH_FIELDS,
    HEADER_COLUMNS,
    SESSION_FIELDS,
    SESSION_NAMES,
    branch_from,
    branch_row,
    check_branch,
    check_session,
    header_row,
    session_from,
)

_SESSION: Final = len(SESSION_NAMES)
_BRANCH: Final = len(BRANCH_FIELDS) + 1
_LOOKUP: Final = ", ".join(
    (
        "s.sid",
        *(f"s.{name}" for name in SESSION_NAMES),
        *(f"b.{name} AS branch_{name}" for name in (*BRANCH_FIELDS, "digest")),
        # No number is given twice (V3), even if damage raised one of those that are stored.
        "(SELECT max(seq) FROM checkpoints WHERE sid = s.sid) AS highest",
        "(SELECT header FROM checkpoints WHERE id = b.head) AS head_header",
        "(SELECT id FROM checkpoints WHERE id = ?) AS own",
        "(SELECT 1 FROM bodies WHERE sid = s.sid AND checkpoint = ? LIMIT 1) AS remains",
    )
)
_FROM: Final = "FROM sessions s LEFT JOIN branches b ON b.sid = s.sid AND b.name = ? WHERE s.uid = ?"
_BY_KEY: Final = "(SELECT id FROM checkpoints WHERE sid = s.sid AND idempotency_key = ?) AS by_key"
_BY_EXTERNAL_ID: Final = (
    "(SELECT id FROM checkpoints WHERE sid = s.sid AND branch = ? AND external_id = ?) AS external"
)
_TOKEN: Final = "(SELECT token FROM leases WHERE sid = s.sid AND is_held = 1) AS token"
_BASE: Final = "(SELECT 1 FROM bodies WHERE sid = s.sid AND checkpoint = ? AND name = ? AND is_redundant = 0)"
_PARENT: Final = "(SELECT header FROM checkpoints WHERE id = ?)"
_ORIGINAL: Final = (
    f"SELECT {HEADER_COLUMNS} FROM checkpoints c JOIN sessions s ON s.sid = c.sid WHERE c.id = ?"
)

INSERT_CHECKPOINT: Final = (
    "INSERT INTO checkpoints (sid, seq, id, branch, time_us, step, status, external_id, idempotency_key, header)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_CHANGED: Final = ("updated_us", "status", "finished_us", "error", "last_seq")
_UPDATED, _STATUS, _FINISHED, _ERROR, _LAST_SEQ = (SESSION_FIELDS.index(name) for name in _CHANGED)
_CURRENT: Final = SESSION_FIELDS.index("branch")
_KEY: Final = SESSION_FIELDS.index("key")
_HEAD, _HEAD_SEQ = BRANCH_FIELDS.index("head"), BRANCH_FIELDS.index("head_seq")
_UPDATE_SESSION: Final = (
    f"UPDATE sessions SET {', '.join(f'{name} = ?' for name in (*_CHANGED, 'digest'))} WHERE sid = ?"
)
_READ_BACK: Final = (
    "SELECT c.sid, c.seq, c.header, b.name, b.is_redundant, b.data FROM checkpoints c"
    " LEFT JOIN bodies b ON b.sid = c.sid AND b.checkpoint = c.id WHERE c.id = ?"
)


class DamagedPage(Exception):
    """The database itself is damaged where a save would go."""


class SessionRows:
    """A session, and those of its branches that a batch saves to, as columns that follow the saves."""

    def __init__(self, sid: int, row: Row) -> None:
        self.sid = sid
        self.columns: list[Any] = list(row[: len(SESSION_FIELDS)])
        self._rest = row[len(SESSION_FIELDS) :]
        self.branches: dict[str, list[Any]] = {}
        self.chains: dict[str, str] = {}

    def advance(self, header: Header, seq: int, branch: list[Any], chain: str) -> None:
        """What a save makes of its session and branch."""
        is_finished = header.status.is_finished
        columns = self.columns
        columns[_UPDATED] = max(columns[_UPDATED], header.time_us)
        columns[_STATUS] = str(header.status)
        columns[_FINISHED] = header.time_us if is_finished else None
        columns[_ERROR] = columns[_ERROR] if is_finished else None
        columns[_LAST_SEQ] = seq
        branch[_HEAD], branch[_HEAD_SEQ] = header.id, seq
        self.branches[header.branch] = branch
        self.chains[header.branch] = chain

    def write(self, tx: Connection) -> None:
        for columns in self.branches.values():
            tx.put(sessions.PUT_BRANCH, (self.sid, *columns, row_digest(*columns)))
        changed = [self.columns[SESSION_FIELDS.index(name)] for name in _CHANGED]
        tx.put(_UPDATE_SESSION, (*changed, row_digest(*self.columns, self._rest[1]), self.sid))

    def left(self) -> Iterator[tuple[SessionInfo, Branch]]:
        """The session as the batch leaves it, with each branch that it saved to."""
        key_digest, description, _ = self._rest
        digest = row_digest(*self.columns, description)
        session = session_from((*self.columns, key_digest, description, digest))
        for columns in self.branches.values():
            yield session, branch_from((*columns, row_digest(*columns)))


class Batch:
    """Appends of one transaction. What they make of sessions and branches is written once, by `flush`."""

    def __init__(self, tx: Connection, items: Sequence[Append]) -> None:
        self._tx = tx
        self.opened: dict[str, SessionRows] = {}
        if tx.locks.change:
            # Held from the start and in one order for all, before anything of them is read.
            uids = sorted({item.draft.session for item in items})
            tx.all(
                f"SELECT sid FROM sessions WHERE uid IN ({marks(len(uids))}) ORDER BY sid{tx.locks.change}",
                uids,
            )

    def append(self, item: Append, seal: Seal) -> Appended:
        """Store one checkpoint, or raise why it is refused."""
        tx, draft = self._tx, item.draft
        row, rest = self._look_up(item)
        opened = self._open(draft.session, row)
        highest, head_header, own, remains = row[1 + _SESSION + _BRANCH : 5 + _SESSION + _BRANCH]
        if item.fence is not None and next(rest) != item.fence:
            raise conflicts.lease_lost(draft.session)
        original = own or (next(rest) if draft.idempotency_key is not None else None)
        if original is not None:
            return Appended(row=_same_content(tx, original, draft), is_new=False)
        columns = opened.columns
        if item.on_current and columns[_CURRENT] != draft.branch:
            raise conflicts.branch_switched(columns[_KEY], columns[_CURRENT], draft)
        branch = opened.branches.get(draft.branch) or self._branch(opened.sid, draft.branch, row)
        head = branch[_HEAD] if branch is not None else None
        sessions.check_head(head, draft.branch, draft.session, item.expect_head)
        if draft.external_id is not None:
            check_free(next(rest), draft)
        for required in draft.requires:
            sessions.location(tx, opened.sid, draft.session, required)
        # A sweep may have been faster than this save (V5).
        for body in item.bodies:
            if body.base is not None and not body.is_redundant and not next(rest):
                raise conflicts.base_gone(body)
        bodies.check_blobs(tx, item.bodies, item.blobs)
        if remains:
            raise conflicts.id_taken(draft)
        parents, chains = item.parents, [_chain(raw) for raw in rest]
        if parents is None:
            parents = (head,) if head else ()
            chains = [opened.chains.get(draft.branch) or _chain(head_header)] if head else []
        seq = max(columns[_LAST_SEQ], highest if isinstance(highest, int) else 0) + 1
        raw = seal(draft, seq, parents, chains)
        if item.blobs:
            bodies.insert_blobs(tx, item.blobs)
        bodies.insert(tx, opened.sid, item.bodies)
        insert_header(tx, opened.sid, seq, draft, raw)
        if branch is None:
            branch = list(branch_row(new_branch(tx, opened.sid, draft, parents))[:-1])
        if not draft.status.is_finished and Status(columns[_STATUS]).is_finished:
            data = {"was": columns[_STATUS], "checkpoint": draft.id}
            record_event(tx, opened.sid, "session_reopened", data, time_us=draft.time_us)
        opened.advance(draft, seq, branch, chain_of(raw))
        if not tx.trusts_storage:
            _check_stored(tx, opened.sid, seq, raw, item)
        return Appended(
            row=HeaderRow(id=draft.id, session=draft.session, seq=seq, branch=draft.branch, raw=raw),
            is_new=True,
        )

    def flush(self) -> None:
        """Write the rows of the sessions and branches that were saved to."""
        for opened in self.opened.values():
            if opened.branches:
                opened.write(self._tx)

    def _look_up(self, item: Append) -> tuple[Row, Iterator[Any]]:
        """The row with everything that decides about a save; behind the fixed columns those that this one needs."""
        draft = item.draft
        columns = [_LOOKUP]
        values: list[Value] = [draft.id, draft.id]
        if item.fence is not None:
            columns.append(_TOKEN)
        if draft.idempotency_key is not None:
            columns.append(_BY_KEY)
            values.append(draft.idempotency_key)
        if draft.external_id is not None:
            columns.append(_BY_EXTERNAL_ID)
            values += (draft.branch, draft.external_id)
        for body in item.bodies:
            if body.base is not None and not body.is_redundant:
                columns.append(f"{_BASE} AS base_{len(columns)}")
                values += (body.base, body.name)
        for parent in item.parents or ():
            columns.append(f"{_PARENT} AS parent_{len(columns)}")
            values.append(parent)
        row = self._tx.one(f"SELECT {', '.join(columns)} {_FROM}", (*values, draft.branch, draft.session))
        if row is None:
            raise sessions.missing(self._tx, draft.session)
        return row, iter(row[5 + _SESSION + _BRANCH :])

    def _open(self, uid: str, row: Row) -> SessionRows:
        opened = self.opened.get(uid)
        if opened is None:
            sessions.checked(check_session, row[1 : 1 + _SESSION])
            opened = self.opened[uid] = SessionRows(int(row[0]), row[1 : 1 + _SESSION])
        return opened

    def _branch(self, sid: int, name: str, row: Row) -> list[Any] | None:
        """The columns of the branch in a row; None when it begins with this save."""
        found = row[1 + _SESSION : 1 + _SESSION + _BRANCH]
        if found[0] is None:
            sessions.check_not_lost(self._tx, sid, name)
            return None
        sessions.checked(check_branch, found)
        return list(found[:-1])


def _chain(raw: object) -> str | None:
    """The chain value of a parent, None where that is not stored."""
    return chain_of(raw) if isinstance(raw, bytes) else None


def _check_stored(tx: Connection, sid: int, seq: int, raw: bytes, item: Append) -> None:
    """Read back what was written: in a damaged page an insert can go astray without any error.

    By its id, as it will be looked for: that leads through the index into the table.

    Raises:
        DamagedPage: it did; the whole transaction must be undone.
    """
    found = tx.all(_READ_BACK, (item.draft.id,))
    expected: set[Row] = {
        (sid, seq, raw, body.name, int(body.is_redundant), body.data) for body in item.bodies
    }
    if set(found) != (expected or {(sid, seq, raw, None, None, None)}):
        raise DamagedPage("what was just written does not read back")


def _same_content(tx: Connection, original: str, draft: Header) -> HeaderRow:
    row = header_row(tx.one(_ORIGINAL, (original,)) or ())
    header = open_header(row.raw, expect_id=row.id)
    held = (header.session, header.contents, header.step, header.status)
    if held != (draft.session, draft.contents, draft.step, draft.status):
        raise conflicts.idempotency_mismatch(draft, row.id)
    return row


def check_free(holder: str | None, header: Header) -> None:
    """Refuse an external id that a checkpoint of the branch has already."""
    if holder is not None:
        raise conflicts.external_id_exists(header, holder)


def columns_of(header: Header) -> tuple[Value, ...]:
    """The columns of a checkpoint that repeat what its header says, so that it is found by them."""
    status = str(header.status)
    return header.branch, header.time_us, header.step, status, header.external_id, header.idempotency_key


def insert_header(tx: Connection, sid: int, seq: int, header: Header, raw: bytes) -> None:
    tx.put(INSERT_CHECKPOINT, (sid, seq, header.id, *columns_of(header), raw))
    if header.tags:
        tx.run_many(
            "INSERT INTO tags (sid, seq, tag) VALUES (?, ?, ?)", [(sid, seq, tag) for tag in set(header.tags)]
        )
    if header.requires:
        tx.run_many(
            "INSERT INTO requirements (sid, seq, required) VALUES (?, ?, ?)",
            [(sid, seq, required) for required in set(header.requires)],
        )


def new_branch(tx: Connection, sid: int, header: Header, parents: Sequence[str]) -> Branch:
    """A branch begun by a checkpoint: it forks where the first parent is."""
    branch = Branch(name=header.branch, created_us=header.time_us)
    fork = sessions.find_location(tx, sid, parents[0]) if parents else None
    if fork is None:
        return branch
    return msgspec.structs.replace(branch, fork=parents[0], fork_seq=fork[0], fork_branch=fork[1])


def advanced_session(session: SessionInfo, header: Header, seq: int) -> SessionInfo:
    """What a save makes of its session."""
    is_finished = header.status.is_finished
    return msgspec.structs.replace(
        session,
        updated_us=max(session.updated_us, header.time_us),
        status=header.status,
        finished_us=header.time_us if is_finished else None,
        error=session.error if is_finished else None,
        last_seq=seq,
    )
