"""Sessions and branches as rows, and how damaged or lost ones are rebuilt.

Headers are the truth: they are sealed, and everything else can be derived from them but what a session says of
itself, of which a sealed copy lies beside its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from stepkeep import typed
from stepkeep.codec.integrity import digest
from stepkeep.errors import Corrupt
from stepkeep.logs import Log
from stepkeep.model import MAIN_BRANCH, MAX_SEQ, Branch, BranchState, Header, SessionInfo, Status
from stepkeep.storage import conflicts
from stepkeep.storage.port import ANY_HEAD, Kind, SessionQuery
from stepkeep.storage.sql.attachments import record_event
from stepkeep.storage.sql.connection import Conditions, Connection, Row, marks, parts
from stepkeep.storage.sql.row_mapping import (
    BRANCH_COLUMNS,
    BRANCH_FIELDS,
    SESSION_COLUMNS,
    SESSION_FIELDS,
    SESSION_NAMES,
    branch_from,
    branch_row,
    intact_header,
    open_description,
    readable_branch,
    readable_session,
    session_from,
    session_row,
)
from stepkeep.storage.sql.tables import ENDED, ENDED_US, SESSION_TABLES

log = Log("stepkeep.storage")

T = TypeVar("T")

_CHANGEABLE: Final = frozenset(SESSION_FIELDS) - {"uid", "key", "created_us", "version", "last_seq", "gaps"}
FEW: Final = 5
FIRST_PAGE: Final = 100
PAGE: Final = 1000
_PLAUSIBLE_LEAD: Final = 1000
"""How far a damaged counter may be ahead of what is stored and still be believed."""

_INSERT = (
    f"INSERT INTO sessions ({SESSION_COLUMNS}) VALUES ({marks(len(SESSION_NAMES))}) ON CONFLICT DO NOTHING"
)
_ALL = f"SELECT sid, {SESSION_COLUMNS} FROM sessions"
_BY_UID = f"{_ALL} WHERE uid = ?"
_UID, _UPDATED = (1 + SESSION_FIELDS.index(name) for name in ("uid", "updated_us"))
# Either column finds the row, so that damage to one of them cannot hide the session.
_BY_KEY = f"{_ALL} WHERE key_digest = ? OR key = ?"
_COUNTER_COLUMNS = ("last_seq", "gaps", "digest")
_COUNTERS = [SESSION_NAMES.index(name) for name in _COUNTER_COLUMNS]
_WRITE_COUNTERS = f"UPDATE sessions SET {', '.join(f'{name} = ?' for name in _COUNTER_COLUMNS)} WHERE sid = ?"
_ACTIVE_US = "CASE WHEN created_us > updated_us THEN created_us ELSE updated_us END"
_KINDS = (
    "WITH RECURSIVE found (kind) AS (SELECT min(kind) FROM sessions UNION ALL"
    " SELECT (SELECT min(kind) FROM sessions WHERE kind > found.kind) FROM found WHERE found.kind IS NOT NULL)"
    " SELECT kind FROM found WHERE kind IS NOT NULL"
)
PUT_BRANCH = (
    f"INSERT INTO branches (sid, {BRANCH_COLUMNS}) VALUES ({marks(len(BRANCH_FIELDS) + 2)}) ON CONFLICT (sid, name)"
    f" DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in (*BRANCH_FIELDS, 'digest') if name != 'name')}"
)


class NeedsRepair(Exception):
    """A session or branch row must be rebuilt in a write transaction before it can be used.

    `missing` is a session that was not found while a row is damaged, which may be the one that is looked for.
    """

    def __init__(self, message: str, *, missing: str | None = None) -> None:
        super().__init__(message)
        self.missing = missing


# --- sessions --------------------------------------------------------------------------------------------------


def create(tx: Connection, session: SessionInfo) -> SessionInfo:
    is_taken = tx.one(_BY_KEY, (digest(session.key.encode()), session.key)) or tx.one(_BY_UID, (session.uid,))
    if is_taken or not tx.run(_INSERT, session_row(session)):
        raise conflicts.session_exists(session)
    sid = sid_of(tx, session.uid)
    put_branch(tx, sid, Branch(name=session.branch, created_us=session.created_us))
    return session


def sid_of(tx: Connection, uid: str) -> int:
    row = tx.one(f"SELECT sid FROM sessions WHERE uid = ?{tx.locks.change}", (uid,))
    if row is None:
        raise missing(tx, uid)
    return int(row[0])


def by_uid(tx: Connection, uid: str) -> tuple[int, SessionInfo]:
    """The session and its number; `NeedsRepair` when it must be rebuilt first.

    A transaction that writes holds it from here on: of the writers of one session each sees what the last one left.
    """
    row = tx.one(_BY_UID + tx.locks.change, (uid,))
    if row is None:
        raise missing(tx, uid)
    return int(row[0]), intact(row)


def rows_of(tx: Connection, uids: Sequence[str]) -> dict[str, Row]:
    """The rows of the sessions that are there, by uid, each with its number first, unchecked.

    A transaction that writes holds them from here on, taken in the order in which all take them.
    """
    numbers = [
        sid
        for some in parts(uids)
        for (sid,) in tx.all(f"SELECT sid FROM sessions WHERE uid IN ({marks(len(some))})", some)
    ]
    rows = [
        row
        for some in parts(sorted(numbers))
        for row in tx.all(f"{_ALL} WHERE sid IN ({marks(len(some))}) ORDER BY sid{tx.locks.change}", some)
    ]
    return {row[_UID]: row for row in rows}


def missing(tx: Connection, uid: str) -> Exception:
    try:
        check_none_hides(tx, uid)
    except NeedsRepair as exc:
        return exc
    return conflicts.session_not_found(uid)


def check_none_hides(tx: Connection, uid: str) -> None:
    """Raise `NeedsRepair` if a damaged row may be the session that is not found."""
    if not tx.trusts_storage and damaged(tx):
        raise NeedsRepair(f"session {uid} is not found", missing=uid)


def by_key(tx: Connection, key: str) -> SessionInfo | None:
    row = tx.one(_BY_KEY + tx.locks.change, (digest(key.encode()), key))
    return None if row is None else intact(row)


def intact(row: Row) -> SessionInfo:
    """The session in a row that begins with its number; `NeedsRepair` when it must be rebuilt first."""
    try:
        return session_from(row[1:])
    except Corrupt as exc:
        raise NeedsRepair(str(exc)) from exc


def checked(check: Callable[[Row], T], row: Row) -> T:
    """What `check` makes of a row; `NeedsRepair` when that must be rebuilt first."""
    try:
        return check(row)
    except Corrupt as exc:
        raise NeedsRepair(str(exc)) from exc


def page(
    tx: Connection, query: SessionQuery, after: tuple[int, str] | None, limit: int
) -> list[tuple[tuple[int, str], SessionInfo | None]]:
    """One page of (position in the order, session); None where the row is damaged."""
    where = Conditions(
        ("project = ?", query.project),
        ("workflow = ?", query.workflow),
        ("updated_us < ?", query.updated_before_us),
    )
    where.among("status", query.statuses and [str(status) for status in query.statuses])
    where.prefix("key", query.key_prefix)
    if after is not None:
        where.add("(updated_us, uid) < (?, ?)", *after)
    rows = tx.all(f"{_ALL}{where} ORDER BY updated_us DESC, uid DESC LIMIT ?", (*where.values, limit))
    return [((row[_UPDATED], row[_UID]), intact_or_none(row)) for row in rows]


def kinds(tx: Connection) -> list[tuple[Kind, SessionInfo | None]]:
    """A few sessions of each kind; None where the row is damaged. A kind is found by one step in the index."""
    found = [kind for (kind,) in tx.all(_KINDS)]
    few = tx.ask([(f"{_ALL} WHERE kind = ? LIMIT ?", (kind, FEW)) for kind in found])
    return [(kind, intact_or_none(row)) for kind, rows in zip(found, few, strict=True) for row in rows]


def page_of_kind(
    tx: Connection, kind: Kind, status: Status, after: tuple[int, int], limit: int
) -> list[tuple[tuple[int, int], SessionInfo | None]]:
    """One page of (position in the order, session), as `LooksOver.of_kind` has them; None where the row is damaged."""
    order = ENDED_US if status.is_finished else _ACTIVE_US
    where = Conditions(("kind = ?", kind), ("status = ?", str(status)))
    if status.is_finished:
        where.add(ENDED)
    where.add(f"({order}, sid) > (?, ?)", *after)
    rows = tx.all(
        f"SELECT {order}, sid, {SESSION_COLUMNS} FROM sessions{where} ORDER BY {order}, sid LIMIT ?",
        (*where.values, limit),
    )
    return [((int(row[0]), int(row[1])), intact_or_none(row[1:])) for row in rows]


def intact_or_none(row: Row) -> SessionInfo | None:
    """The session in a row that begins with its number; None if it is damaged."""
    try:
        return session_from(row[1:])
    except Corrupt:
        return None


def damaged(tx: Connection) -> list[Row]:
    """Every damaged row, with its number first."""
    return [row for row in tx.all(_ALL) if intact_or_none(row) is None]


def update(
    tx: Connection, sid: int, session: SessionInfo, changes: dict[str, Any], expect_version: int | None
) -> SessionInfo:
    unknown = changes.keys() - _CHANGEABLE
    if unknown:
        raise conflicts.unchangeable(unknown)
    if expect_version is not None and session.version != expect_version:
        raise conflicts.version_changed(session, expect_version)
    wanted = changes.get("branch", session.branch)
    if wanted != session.branch and branch(tx, sid, wanted) is None:
        raise conflicts.branch_not_found(session, wanted)
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


def delete(tx: Connection, sids: Sequence[int]) -> dict[int, int]:
    """Remove sessions with all that belongs to them; the stored bytes of the bodies of each."""
    freed = dict.fromkeys(sids, 0)
    for some in parts(sids):
        own = f"WHERE sid IN ({marks(len(some))})"
        for table in (*SESSION_TABLES, "sessions"):
            if table != "bodies":
                tx.put(f"DELETE FROM {table} {own}", some)
        for sid, stored_size in tx.all(f"DELETE FROM bodies {own} RETURNING sid, stored_size + 0", some):
            freed[sid] += int(stored_size or 0)
    return freed


# --- branches --------------------------------------------------------------------------------------------------


def branch(tx: Connection, sid: int, name: str) -> Branch | None:
    """The branch; `NeedsRepair` when it must be rebuilt first."""
    row = tx.one(f"SELECT {BRANCH_COLUMNS} FROM branches WHERE sid = ? AND name = ?", (sid, name))
    if row is not None:
        return checked(branch_from, row)
    check_not_lost(tx, sid, name)
    return None


def check_not_lost(tx: Connection, sid: int, name: str) -> None:
    """Raise `NeedsRepair` if a branch without row has checkpoints."""
    if _has_checkpoints(tx, sid, name) and _is_branch(tx, sid, name):
        raise NeedsRepair(f"the row of branch {name!r} is lost")


def _has_checkpoints(tx: Connection, sid: int, name: str) -> bool:
    return bool(tx.one("SELECT 1 FROM checkpoints WHERE sid = ? AND branch = ? LIMIT 1", (sid, name)))


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
        if name not in known and _is_branch(tx, sid, name):
            raise NeedsRepair(f"the row of branch {name!r} is lost")
    return found


def held(tx: Connection, sid: int, session: SessionInfo) -> frozenset[str]:
    """The newest checkpoint, and heads and forks of branches that are current, or open and pinned; if stored."""
    newest = tx.all("SELECT id FROM checkpoints WHERE sid = ? ORDER BY seq DESC LIMIT 1", (sid,))
    named = {
        checkpoint
        for branch in stored_branches(tx, sid)
        if branch.name == session.branch or (branch.is_pinned and branch.state is BranchState.OPEN)
        for checkpoint in (branch.head, branch.fork)
        if checkpoint is not None
    }
    where = Conditions(("sid = ?", sid))
    where.among("id", sorted(named))
    found = tx.all(f"SELECT id FROM checkpoints{where}", where.values)
    return frozenset(row[0] for row in [*found, *newest])


def _is_branch(tx: Connection, sid: int, name: object) -> bool:
    """Whether the session, or an intact header, names such a branch: a damaged column alone proves nothing."""
    if not isinstance(name, str):
        return False
    if tx.one("SELECT 1 FROM sessions WHERE sid = ? AND branch = ?", (sid, name)):
        return True
    rows = tx.all("SELECT header FROM checkpoints WHERE sid = ? AND branch = ?", (sid, name))
    return any(
        header is not None and header.branch == name for header in (intact_header(raw) for (raw,) in rows)
    )


def put_branch(tx: Connection, sid: int, branch: Branch) -> None:
    tx.put(PUT_BRANCH, (sid, *branch_row(branch)))


def set_branch(tx: Connection, sid: int, uid: str, wanted: Branch, expect_head: str | None) -> Branch:
    current = branch(tx, sid, wanted.name)
    current_head = current.head if current else None
    check_head(current_head, wanted.name, uid, expect_head)
    head = current_head if wanted.head == ANY_HEAD else wanted.head
    head_seq = location(tx, sid, uid, head)[0] if head else 0
    filled = msgspec.structs.replace(wanted, head=head, head_seq=head_seq)
    if wanted.fork and wanted.fork_branch is None:
        fork_seq, fork_branch = location(tx, sid, uid, wanted.fork)
        filled = msgspec.structs.replace(filled, fork_seq=fork_seq, fork_branch=fork_branch)
    put_branch(tx, sid, filled)
    return filled


def check_head(head: str | None, name: str, uid: str, expect_head: str | None) -> None:
    if expect_head not in (ANY_HEAD, head):
        raise conflicts.head_moved(uid, name, head, expect_head)


def find_location(tx: Connection, sid: int, checkpoint: object) -> Row | None:
    """The (seq, branch) of a checkpoint, if the session has it."""
    if not isinstance(checkpoint, str):
        return None
    return tx.one("SELECT seq, branch FROM checkpoints WHERE id = ? AND sid = ?", (checkpoint, sid))


def location(tx: Connection, sid: int, uid: str, checkpoint: str) -> Row:
    """The (seq, branch) of a checkpoint that the session must have."""
    found = find_location(tx, sid, checkpoint)
    if found is None:
        raise conflicts.checkpoint_not_found(uid, checkpoint)
    return found


# --- rebuilding ------------------------------------------------------------------------------------------------


def repair(tx: Connection, *, key: str | None = None) -> None:
    """Rebuild every damaged or lost session and branch row from what the headers say.

    `key` is a key known to exist.
    """
    if tx.locks.change:
        _hold_damaged(tx)
    for row in damaged(tx):
        _repair_session(tx, row, key)
    for row in _damaged_branches(tx):
        _repair_branch(tx, row)
    for sid, name in tx.all(_LOST_BRANCHES):
        if _is_branch(tx, sid, name):
            _rebuild_branch(tx, sid, name, {})


_LOST_BRANCHES: Final = (
    "SELECT c.sid, c.branch FROM checkpoints c WHERE NOT EXISTS"
    " (SELECT 1 FROM branches b WHERE b.sid = c.sid AND b.name = c.branch)"
    " UNION SELECT s.sid, s.branch FROM sessions s WHERE NOT EXISTS"
    " (SELECT 1 FROM branches b WHERE b.sid = s.sid AND b.name = s.branch)"
)


def _hold_damaged(tx: Connection) -> None:
    """Keep other writers away from what will be rebuilt; what they rebuilt or saved meanwhile is seen afterwards."""
    rows = [*damaged(tx), *_damaged_branches(tx), *tx.all(_LOST_BRANCHES)]
    sids = sorted({row[0] for row in rows})
    tx.all(f"SELECT sid FROM sessions WHERE sid IN ({marks(len(sids))}) ORDER BY sid{tx.locks.change}", sids)


def _damaged_branches(tx: Connection) -> list[Row]:
    found: list[Row] = []
    for row in tx.all(f"SELECT sid, {BRANCH_COLUMNS} FROM branches"):
        try:
            branch_from(row[1:])
        except Corrupt:
            found.append(row)
    return found


def _repair_session(tx: Connection, row: Row, known_key: str | None) -> None:
    """Rebuild one row, unless its key cannot be proven: then it stays until someone asks for it by its key."""
    sid, *columns, key_digest, sealed, _ = row
    description = open_description(sealed)
    fields = {**readable_session(columns), **description}
    key = fields["key"] if description else _proven_key(fields.get("key"), known_key, key_digest)
    if key is None:
        return
    newest, oldest = _first_intact(tx, sid, "DESC"), _first_intact(tx, sid, "ASC")
    if newest is not None and oldest is not None:
        fields = {"status": newest.status, "created_us": oldest.time_us, **fields}
        fields |= {"uid": newest.session, "updated_us": newest.time_us}
    fields |= {"key": key, "last_seq": _counter(tx, sid, fields)}
    if not tx.one("SELECT 1 FROM branches WHERE sid = ? AND name = ?", (sid, fields.get("branch"))):
        fields["branch"] = newest.branch if newest else MAIN_BRANCH
    session = typed.convert({"uid": f"lost-{sid}", "created_us": 0, "updated_us": 0, **fields}, SessionInfo)
    if session.status.is_finished and session.finished_us is None:
        session = msgspec.structs.replace(session, finished_us=session.updated_us)
    write(tx, sid, session)
    log.warning("the row of session %r was damaged and is rebuilt from its checkpoints", session.key)
    record_event(tx, sid, "session_repaired", {}, time_us=session.updated_us)


def _proven_key(read: str | None, known: str | None, key_digest: object) -> str | None:
    """The key of a damaged row, if the digest of the key confirms it."""
    for key in (known, read):
        if key is not None and (digest(key.encode()) == key_digest or key == known == read):
            return key
    return None


def _counter(tx: Connection, sid: int, fields: dict[str, Any]) -> int:
    """A counter no lower than any number that was ever given (V3): each is stored, or recorded as a gap.

    The damaged row's own counter is believed where it is a little higher, since the newest header may be lost.
    """
    (highest,) = tx.one("SELECT max(seq) FROM checkpoints WHERE sid = ?", (sid,)) or (None,)
    ends = [last for _, last in fields.get("gaps", ()) if last < MAX_SEQ]
    known = max([highest or 0, *ends])
    own = int(fields.get("last_seq", 0))
    return own if known <= own <= known + _PLAUSIBLE_LEAD else known


def _repair_branch(tx: Connection, row: Row) -> None:
    """Rebuild a damaged row under its name; a name that no checkpoint has is itself the damage."""
    sid, *columns, stored_digest = row
    fields = readable_branch(columns)
    name, fork = fields.get("name"), fields.get("fork")
    # A name that is not valid UTF-8 was read with replacements and finds nothing: then the digest does.
    tx.run("DELETE FROM branches WHERE sid = ? AND (name = ? OR digest = ?)", (sid, name, stored_digest))
    is_fork = (
        fields.get("head") == fork and find_location(tx, sid, fork) is not None
    )  # nobody saved on it yet
    if name and (is_fork or _has_checkpoints(tx, sid, name)):
        _rebuild_branch(tx, sid, name, fields)


def _rebuild_branch(tx: Connection, sid: int, name: str, fields: dict[str, Any]) -> None:
    own = "FROM checkpoints WHERE sid = ? AND branch = ? ORDER BY seq"
    newest = tx.one(f"SELECT id, seq {own} DESC LIMIT 1", (sid, name))
    oldest = tx.one(f"SELECT header, time_us {own} LIMIT 1", (sid, name))
    if newest is not None and oldest is not None:
        fields = {"created_us": oldest[1], **fields, "head": newest[0], "head_seq": newest[1]}
        fields |= _fork_of(tx, sid, name, oldest)
    rebuilt = typed.convert({"created_us": 0, **fields, "name": name}, Branch)
    put_branch(tx, sid, rebuilt)
    log.warning("the row of branch %r was damaged and is rebuilt from its checkpoints", name)
    record_event(tx, sid, "branch_repaired", {"branch": name}, time_us=rebuilt.created_us)


def _fork_of(tx: Connection, sid: int, name: str, oldest: Row) -> dict[str, Any]:
    """Where a branch left another, as its oldest checkpoint tells."""
    header = intact_header(oldest[0])
    parent = header.parents[0] if header is not None and header.parents else None
    found = find_location(tx, sid, parent)
    if found is None or found[1] == name:
        return {"fork": None, "fork_branch": None, "fork_seq": 0}
    return {"fork": parent, "fork_branch": found[1], "fork_seq": found[0]}


def _first_intact(tx: Connection, sid: int, order: str) -> Header | None:
    """The first header of a session that verifies."""
    rows = tx.all(f"SELECT header FROM checkpoints WHERE sid = ? ORDER BY seq {order}", (sid,))
    return next((header for header in (intact_header(raw) for (raw,) in rows) if header is not None), None)
