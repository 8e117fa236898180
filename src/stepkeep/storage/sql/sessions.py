"""Sessions and branches as rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from stepkeep.codec.integrity import digest, open_header
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound, StepkeepError
from stepkeep.model import Branch, BranchState, Header, SessionInfo
from stepkeep.storage.port import ANY_HEAD, SessionQuery
from stepkeep.storage.sql.connection import Connection, Row, Value, marks
from stepkeep.storage.sql.rows import (
    BRANCH_COLUMNS,
    BRANCH_FIELDS,
    SESSION_COLUMNS,
    SESSION_FIELDS,
    SESSION_NAMES,
    branch_from,
    branch_row,
    session_from,
    session_row,
)
from stepkeep.storage.sql.schema import SESSION_TABLES

T = TypeVar("T")

_CHANGEABLE: Final = frozenset(SESSION_FIELDS) - {"uid", "key", "created_us", "version", "last_seq", "gaps"}
_PAGE: Final = 200

_INSERT = (
    f"INSERT INTO sessions ({SESSION_COLUMNS}) VALUES ({marks(len(SESSION_NAMES))}) ON CONFLICT DO NOTHING"
)
_BY_UID = f"SELECT sid, {SESSION_COLUMNS} FROM sessions WHERE uid = ?"
# Either column finds the row, so that damage to one of them cannot hide the session.
_BY_KEY = f"SELECT sid, {SESSION_COLUMNS} FROM sessions WHERE key_digest = ? OR key = ?"
_COUNTER_COLUMNS = ("last_seq", "gaps", "digest")
_COUNTERS = [SESSION_NAMES.index(name) for name in _COUNTER_COLUMNS]
_WRITE_COUNTERS = f"UPDATE sessions SET {', '.join(f'{name} = ?' for name in _COUNTER_COLUMNS)} WHERE sid = ?"
PUT_BRANCH = (
    f"INSERT INTO branches (sid, {BRANCH_COLUMNS}) VALUES ({marks(len(BRANCH_FIELDS) + 2)}) ON CONFLICT (sid, name)"
    f" DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in (*BRANCH_FIELDS, 'digest') if name != 'name')}"
)


class DamagedRow(Exception):
    """A session or branch row that must be rebuilt in a write transaction before it can be used."""


class MissingRow(DamagedRow):
    """A session that is not found while a row is damaged, and may be the one that is looked for."""

    def __init__(self, uid: str) -> None:
        super().__init__(f"session {uid} is not found")
        self.uid = uid


# --- sessions --------------------------------------------------------------------------------------------------


def create(tx: Connection, session: SessionInfo) -> SessionInfo:
    is_taken = tx.one(_BY_KEY, (digest(session.key.encode()), session.key)) or tx.one(_BY_UID, (session.uid,))
    if is_taken or not tx.run(_INSERT, session_row(session)):
        raise Conflict(
            f"a session {session.key!r} exists already", code="session_exists", session=session.key
        )
    sid = sid_of(tx, session.uid)
    put_branch(tx, sid, Branch(name=session.branch, created_us=session.created_us))
    return session


def sid_of(tx: Connection, uid: str) -> int:
    row = tx.one(f"SELECT sid FROM sessions WHERE uid = ?{tx.locks.change}", (uid,))
    if row is None:
        raise missing(tx, uid)
    return int(row[0])


def by_uid(tx: Connection, uid: str) -> tuple[int, SessionInfo]:
    """The session and its number; `DamagedRow` when it must be rebuilt first.

    A transaction that writes holds it from here on: of the writers of one session each sees what the last one left.
    """
    row = tx.one(_BY_UID + tx.locks.change, (uid,))
    if row is None:
        raise missing(tx, uid)
    return int(row[0]), checked(session_from, row[1:])


def missing(tx: Connection, uid: str) -> Exception:
    if tx.trusts_storage:
        return no_session(uid)
    rows = tx.all(f"SELECT {SESSION_COLUMNS} FROM sessions")
    return MissingRow(uid) if any(intact_or_none((0, *row)) is None for row in rows) else no_session(uid)


def by_key(tx: Connection, key: str) -> SessionInfo | None:
    row = tx.one(_BY_KEY + tx.locks.change, (digest(key.encode()), key))
    return None if row is None else checked(session_from, row[1:])


def checked(check: Callable[[Row], T], row: Row) -> T:
    """What `check` makes of a row; `DamagedRow` when that must be rebuilt first."""
    try:
        return check(row)
    except Corrupt as exc:
        raise DamagedRow(str(exc)) from exc


def no_session(uid: str) -> NotFound:
    return NotFound(
        f"no session {uid}: it was deleted or never existed", code="session_not_found", session=uid
    )


def page(
    tx: Connection, query: SessionQuery, after: tuple[int, str] | None, limit: int
) -> list[tuple[tuple[int, str], SessionInfo | None]]:
    """One page of (place in the order, session); None where the row is damaged."""
    where, values = _conditions(query, after)
    rows = tx.all(
        f"SELECT sid, {SESSION_COLUMNS} FROM sessions{where} ORDER BY updated_us DESC, uid DESC LIMIT ?",
        (*values, limit),
    )
    return [(_place(row), intact_or_none(row)) for row in rows]


def _place(row: Row) -> tuple[int, str]:
    fields = dict(zip(SESSION_FIELDS, row[1:], strict=False))
    return fields["updated_us"], fields["uid"]


def intact_or_none(row: Row) -> SessionInfo | None:
    try:
        return session_from(row[1:])
    except Corrupt:
        return None


def page_size(wanted: int | None) -> int:
    return _PAGE if wanted is None else min(_PAGE, wanted)


def damaged(tx: Connection) -> list[tuple[str, str]]:
    """Rows that could not be rebuilt."""
    rows = tx.all(f"SELECT sid, {SESSION_COLUMNS} FROM sessions")
    return [
        (str(row[1]), "the row of a session is damaged, and its key cannot be proven: open it by its key")
        for row in rows
        if intact_or_none(row) is None
    ]


def _conditions(query: SessionQuery, after: tuple[int, str] | None) -> tuple[str, list[Value]]:
    conditions: list[str] = []
    values: list[Value] = []

    def add(condition: str, *bound: Value) -> None:
        conditions.append(condition)
        values.extend(bound)

    if query.project is not None:
        add("project = ?", query.project)
    if query.workflow is not None:
        add("workflow = ?", query.workflow)
    if query.statuses is not None:
        add(f"status IN ({marks(len(query.statuses))})", *(str(status) for status in query.statuses))
    if query.key_prefix is not None:
        add("key >= ? AND substr(key, 1, ?) = ?", query.key_prefix, len(query.key_prefix), query.key_prefix)
    if query.updated_before_us is not None:
        add("updated_us < ?", query.updated_before_us)
    if after is not None:
        add("(updated_us, uid) < (?, ?)", *after)
    return (" WHERE " + " AND ".join(conditions) if conditions else ""), values


def update(
    tx: Connection, sid: int, session: SessionInfo, changes: dict[str, Any], expect_version: int | None
) -> SessionInfo:
    unknown = changes.keys() - _CHANGEABLE
    if unknown:
        raise InvalidInput(
            f"a session's {', '.join(sorted(unknown))} cannot be changed", code="invalid_change"
        )
    if expect_version is not None and session.version != expect_version:
        raise Conflict(
            f"session {session.key!r} is at version {session.version}, not {expect_version}: reload and retry",
            code="version_changed",
            session=session.uid,
        )
    wanted = changes.get("branch", session.branch)
    if wanted != session.branch and branch(tx, sid, wanted) is None:
        raise no_branch(session, wanted)
    changed = msgspec.structs.replace(session, **changes, version=session.version + 1)
    write(tx, sid, changed)
    return changed


def write(tx: Connection, sid: int, session: SessionInfo) -> None:
    """Replace the row of a session."""
    sets = ", ".join(f"{name} = ?" for name in SESSION_NAMES)
    tx.put(f"UPDATE sessions SET {sets} WHERE sid = ?", (*session_row(session), sid))


def write_counters(tx: Connection, sid: int, session: SessionInfo) -> None:
    """Replace only the columns that removing or adopting checkpoints changes."""
    row = session_row(session)
    tx.put(_WRITE_COUNTERS, (*(row[at] for at in _COUNTERS), sid))


def check_unchanged(session: SessionInfo, expect: SessionInfo) -> None:
    if session != expect:
        raise Conflict(
            f"session {session.key!r} changed meanwhile", code="session_changed", session=session.uid
        )


def delete(tx: Connection, sid: int) -> None:
    for table in SESSION_TABLES:
        tx.put(f"DELETE FROM {table} WHERE sid = ?", (sid,))
    tx.put("DELETE FROM sessions WHERE sid = ?", (sid,))


# --- branches --------------------------------------------------------------------------------------------------


_BY_NAME: Final = f"SELECT {BRANCH_COLUMNS} FROM branches WHERE sid = ? AND name = ?"


def branch(tx: Connection, sid: int, name: str) -> Branch | None:
    """The branch; `DamagedRow` when it must be rebuilt first."""
    row = tx.one(_BY_NAME, (sid, name))
    if row is not None:
        return checked(branch_from, row)
    check_not_lost(tx, sid, name)
    return None


def check_not_lost(tx: Connection, sid: int, name: str) -> None:
    """Raise `DamagedRow` if a branch without row has checkpoints."""
    if tx.one("SELECT 1 FROM checkpoints WHERE sid = ? AND branch = ? LIMIT 1", (sid, name)) and is_branch(
        tx, sid, name
    ):
        raise DamagedRow(f"the row of branch {name!r} is lost")


def stored_branches(tx: Connection, sid: int) -> list[Branch]:
    """The branches whose rows are there. Unlike `branches` this reads no checkpoints, so it is always fast."""
    rows = tx.all(f"SELECT {BRANCH_COLUMNS} FROM branches WHERE sid = ? ORDER BY created_us, name", (sid,))
    return [checked(branch_from, row) for row in rows]


def branches(tx: Connection, sid: int) -> list[Branch]:
    found = stored_branches(tx, sid)
    used = tx.all(
        "SELECT branch FROM sessions WHERE sid = ? UNION SELECT branch FROM checkpoints WHERE sid = ?",
        (sid, sid),
    )
    known = {branch.name for branch in found}
    for (name,) in used:
        if name not in known and is_branch(tx, sid, name):
            raise DamagedRow(f"the row of branch {name!r} is lost")
    return found


def held(tx: Connection, sid: int, session: SessionInfo) -> frozenset[str]:
    """The newest checkpoint, and heads and forks of branches that are current, or open and pinned; if stored."""
    newest = tx.one("SELECT id FROM checkpoints WHERE sid = ? ORDER BY seq DESC LIMIT 1", (sid,))
    named = {
        checkpoint
        for branch in stored_branches(tx, sid)
        if branch.name == session.branch or (branch.is_pinned and branch.state is BranchState.OPEN)
        for checkpoint in (branch.head, branch.fork)
        if checkpoint is not None
    }
    forks = sorted(named)
    found = tx.all(f"SELECT id FROM checkpoints WHERE sid = ? AND id IN ({marks(len(forks))})", (sid, *forks))
    return frozenset(row[0] for row in [*found, *([newest] if newest else [])])


def is_branch(tx: Connection, sid: int, name: object) -> bool:
    """Whether the session, or an intact header, names such a branch: a damaged column alone proves nothing."""
    if not isinstance(name, str):
        return False
    if tx.one("SELECT 1 FROM sessions WHERE sid = ? AND branch = ?", (sid, name)):
        return True
    rows = tx.all("SELECT header FROM checkpoints WHERE sid = ? AND branch = ?", (sid, name))
    return any(header is not None and header.branch == name for header in map(intact_header, rows))


def intact_header(row: Row) -> Header | None:
    try:
        return open_header(row[0] if isinstance(row[0], bytes) else b"")
    except StepkeepError:
        return None


def put_branch(tx: Connection, sid: int, branch: Branch) -> None:
    tx.put(PUT_BRANCH, (sid, *branch_row(branch)))


def set_branch(tx: Connection, sid: int, uid: str, wanted: Branch, expect_head: str | None) -> Branch:
    current = branch(tx, sid, wanted.name)
    check_head(current.head if current else None, wanted.name, uid, expect_head)
    head_seq = place(tx, sid, uid, wanted.head)[0] if wanted.head else 0
    filled = msgspec.structs.replace(wanted, head_seq=head_seq)
    if wanted.fork and wanted.fork_branch is None:
        fork_seq, fork_branch = place(tx, sid, uid, wanted.fork)
        filled = msgspec.structs.replace(filled, fork_seq=fork_seq, fork_branch=fork_branch)
    put_branch(tx, sid, filled)
    return filled


def check_head(head: str | None, name: str, uid: str, expect_head: str | None) -> None:
    if expect_head not in (ANY_HEAD, head):
        raise Conflict(
            f"the head of branch {name!r} is {head or 'empty'}, not {expect_head or 'empty'}: reload and retry",
            code="head_moved",
            session=uid,
            branch=name,
        )


def place(tx: Connection, sid: int, uid: str, checkpoint: str) -> tuple[int, str]:
    """The (seq, branch) of a stored checkpoint of the session."""
    row = tx.one("SELECT seq, branch FROM checkpoints WHERE id = ? AND sid = ?", (checkpoint, sid))
    if row is None:
        raise NotFound(
            f"session {uid} has no checkpoint {checkpoint}",
            code="checkpoint_not_found",
            session=uid,
            checkpoint=checkpoint,
        )
    return int(row[0]), str(row[1])


def no_branch(session: SessionInfo, name: str) -> NotFound:
    return NotFound(
        f"session {session.key!r} has no branch {name!r}",
        code="branch_not_found",
        session=session.uid,
        branch=name,
    )
