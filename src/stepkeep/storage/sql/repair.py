"""Rebuilding damaged or lost session and branch rows from what the headers say.

Headers are the truth: they are sealed, and everything else can be derived from them but what a session says of
itself, of which a sealed copy lies beside its columns.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from stepkeep.codec.integrity import digest
from stepkeep.errors import Corrupt
from stepkeep.logs import Log
from stepkeep.model import MAIN_BRANCH, MAX_SEQ, Branch, Header, SessionInfo
from stepkeep.storage.sql import events
from stepkeep.storage.sql.connection import Connection, Row, marks
from stepkeep.storage.sql.rows import (
    BRANCH_COLUMNS,
    SESSION_COLUMNS,
    branch_from,
    open_description,
    readable_branch,
    readable_session,
)
from stepkeep.storage.sql.sessions import intact_header, intact_or_none, is_branch, put_branch, write

log = Log("stepkeep.storage")

_PLAUSIBLE_LEAD: Final = 1000


def repair(tx: Connection, *, key: str | None = None) -> None:
    """Rebuild every damaged or lost session and branch row from what the headers say.

    `key` is a key known to exist.
    """
    if tx.locks.change:
        _hold_damaged(tx)
    for row in _damaged_sessions(tx):
        _repair_session(tx, row, key)
    for row in _damaged_branches(tx):
        _repair_branch(tx, row)
    for sid, name in tx.all(_LOST_BRANCHES):
        if is_branch(tx, sid, name):
            _rebuild_branch(tx, sid, name, {})


_LOST_BRANCHES: Final = (
    "SELECT c.sid, c.branch FROM checkpoints c WHERE NOT EXISTS"
    " (SELECT 1 FROM branches b WHERE b.sid = c.sid AND b.name = c.branch)"
    " UNION SELECT s.sid, s.branch FROM sessions s WHERE NOT EXISTS"
    " (SELECT 1 FROM branches b WHERE b.sid = s.sid AND b.name = s.branch)"
)


def _hold_damaged(tx: Connection) -> None:
    """Keep other writers away from what will be rebuilt; what they rebuilt or saved meanwhile is seen afterwards."""
    rows = [*_damaged_sessions(tx), *_damaged_branches(tx), *tx.all(_LOST_BRANCHES)]
    sids = sorted({row[0] for row in rows})
    tx.all(f"SELECT sid FROM sessions WHERE sid IN ({marks(len(sids))}) ORDER BY sid{tx.locks.change}", sids)


def _damaged_sessions(tx: Connection) -> list[Row]:
    rows = tx.all(f"SELECT sid, {SESSION_COLUMNS} FROM sessions")
    return [row for row in rows if intact_or_none(row) is None]


def _damaged_branches(tx: Connection) -> list[Row]:
    rows = tx.all(f"SELECT sid, {BRANCH_COLUMNS} FROM branches")
    return [row for row in rows if _intact_branch(row[1:]) is None]


def _intact_branch(row: Row) -> Branch | None:
    try:
        return branch_from(row)
    except Corrupt:
        return None


def _repair_session(tx: Connection, row: Row, known_key: str | None) -> None:
    """Rebuild one row, unless its key cannot be proven: then it stays until someone asks for it by its key."""
    sid, *columns, key_digest, description, _ = row
    fields = {**readable_session(columns), **open_description(description)}
    key = _proven_key(
        fields.get("key"), known_key, key_digest, is_described=bool(open_description(description))
    )
    if key is None:
        return
    newest, oldest = _intact_ends(tx, sid)
    if newest is not None and oldest is not None:
        fields = {"status": newest.status, "created_us": oldest.time_us, **fields}
        fields |= {"uid": newest.session, "updated_us": newest.time_us}
    fields |= {"key": key, "last_seq": _counter(tx, sid, fields)}
    if not tx.one("SELECT 1 FROM branches WHERE sid = ? AND name = ?", (sid, fields.get("branch"))):
        fields["branch"] = newest.branch if newest else MAIN_BRANCH
    session = msgspec.convert({"uid": f"lost-{sid}", "created_us": 0, "updated_us": 0, **fields}, SessionInfo)
    if session.status.is_finished and session.finished_us is None:
        session = msgspec.structs.replace(session, finished_us=session.updated_us)
    write(tx, sid, session)
    log.warning("the row of session %r was damaged and is rebuilt from its checkpoints", session.key)
    events.record(tx, sid, "session_repaired", {}, time_us=session.updated_us)


def _proven_key(read: str | None, known: str | None, key_digest: object, *, is_described: bool) -> str | None:
    """The key of a damaged row: from its sealed copy, or one that the digest of the key confirms."""
    if is_described:
        return read
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
    name = fields.get("name")
    # A name that is no UTF-8 was read with replacements and finds nothing: then the digest does.
    tx.run("DELETE FROM branches WHERE sid = ? AND (name = ? OR digest = ?)", (sid, name, stored_digest))
    used = tx.one("SELECT 1 FROM checkpoints WHERE sid = ? AND branch = ? LIMIT 1", (sid, name))
    if name and used:
        _rebuild_branch(tx, sid, name, fields)
    elif name and fields.get("head") == fields.get("fork") and _is_stored(tx, sid, fields.get("fork")):
        _rebuild_branch(tx, sid, name, fields)  # a fork that nobody saved on yet


def _rebuild_branch(tx: Connection, sid: int, name: str, fields: dict[str, Any]) -> None:
    newest = tx.one(
        "SELECT id, seq FROM checkpoints WHERE sid = ? AND branch = ? ORDER BY seq DESC LIMIT 1", (sid, name)
    )
    oldest = tx.one(
        "SELECT header, time_us FROM checkpoints WHERE sid = ? AND branch = ? ORDER BY seq LIMIT 1",
        (sid, name),
    )
    if newest is not None and oldest is not None:
        fields = {"created_us": oldest[1], **fields, "head": newest[0], "head_seq": newest[1]}
        fields |= _fork_of(tx, sid, name, oldest[0])
    rebuilt = msgspec.convert({"created_us": 0, **fields, "name": name}, Branch)
    put_branch(tx, sid, rebuilt)
    log.warning("the row of branch %r was damaged and is rebuilt from its checkpoints", name)
    events.record(tx, sid, "branch_repaired", {"branch": name}, time_us=rebuilt.created_us)


def _is_stored(tx: Connection, sid: int, checkpoint: object) -> bool:
    return isinstance(checkpoint, str) and bool(
        tx.one("SELECT 1 FROM checkpoints WHERE id = ? AND sid = ?", (checkpoint, sid))
    )


def _fork_of(tx: Connection, sid: int, name: str, oldest: object) -> dict[str, Any]:
    """Where a branch left another, as its oldest checkpoint tells."""
    parent = _first_parent(oldest) if isinstance(oldest, bytes) else None
    found = (
        tx.one("SELECT branch, seq FROM checkpoints WHERE id = ? AND sid = ?", (parent, sid))
        if parent
        else None
    )
    if found is None or found[0] == name:
        return {"fork": None, "fork_branch": None, "fork_seq": 0}
    return {"fork": parent, "fork_branch": found[0], "fork_seq": found[1]}


def _first_parent(raw: bytes) -> str | None:
    header = intact_header((raw,))
    return None if header is None else next(iter(header.parents), None)


def _intact_ends(tx: Connection, sid: int) -> tuple[Header | None, Header | None]:
    """The newest and the oldest header of a session that verify."""
    return _first_intact(tx, sid, "DESC"), _first_intact(tx, sid, "ASC")


def _first_intact(tx: Connection, sid: int, order: str) -> Header | None:
    rows = tx.all(f"SELECT header FROM checkpoints WHERE sid = ? ORDER BY seq {order}", (sid,))
    return next((header for header in map(intact_header, rows) if header is not None), None)
