"""Who may run a session: leases with fencing tokens that only ever grow, and handing sessions out to runners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from stepkeep import typed
from stepkeep.model import SessionInfo
from stepkeep.processes import Owner
from stepkeep.storage import conflicts
from stepkeep.storage.port import Claimed, ClaimQuery, Lease
from stepkeep.storage.sql import sessions
from stepkeep.storage.sql.connection import Conditions, Connection, Row, marks, parts
from stepkeep.storage.sql.row_mapping import SESSION_COLUMNS, SESSION_NAMES

_PAGE: Final = 100
_UPDATED: Final = 1 + SESSION_NAMES.index("updated_us")

TOKEN: Final = "SELECT token, is_held FROM leases WHERE sid = ?"

MayTake = Callable[[SessionInfo, Lease | None], bool]


def read(tx: Connection, sid: int) -> Lease | None:
    row = tx.one("SELECT token, owner, expires_us FROM leases WHERE sid = ? AND is_held = 1", (sid,))
    return None if row is None else _lease(row)


def of_session(tx: Connection, uid: str) -> Lease | None:
    """The lease that is held on a session, by one statement; `NotFound` if there is no such session."""
    held = "FROM sessions s LEFT JOIN leases l ON l.sid = s.sid AND l.is_held = 1 WHERE s.uid = ?"
    row = tx.one(f"SELECT l.token, l.owner, l.expires_us {held}", (uid,))
    if row is None:
        raise sessions.missing(tx, uid)
    return None if row[0] is None else _lease(row)


def running_among(tx: Connection, sids: Sequence[int], now_us: int) -> dict[int, Lease]:
    """The leases on these sessions that are held and have not run out, by the number of the session."""
    held = "SELECT token, owner, expires_us, sid FROM leases WHERE is_held = 1 AND expires_us > ? AND sid IN ({})"
    found = [tx.all(held.format(marks(len(some))), (now_us, *some)) for some in parts(sids)]
    return {row[3]: _lease(row) for rows in found for row in rows}


def _lease(row: Row) -> Lease:
    return Lease(token=row[0], owner=typed.from_json(row[1], Owner), expires_us=row[2])


def running(lease: Lease | None, now_us: int) -> Lease | None:
    """The lease if it has not run out."""
    return lease if lease is not None and lease.expires_us > now_us else None


def acquire(
    tx: Connection, sid: int, uid: str, owner: Owner, *, now_us: int, expires_us: int, replacing: int | None
) -> Lease:
    held = running(read(tx, sid), now_us)
    if held is not None and held.token != replacing:
        raise conflicts.lease_held(uid, held)
    row = tx.one("SELECT token FROM leases WHERE sid = ?", (sid,))
    token = (row[0] if row else 0) + 1
    tx.put(
        "INSERT INTO leases (sid, token, owner, expires_us, is_held) VALUES (?, ?, ?, ?, 1) ON CONFLICT (sid)"
        " DO UPDATE SET token = excluded.token, owner = excluded.owner, expires_us = excluded.expires_us, is_held = 1",
        (sid, token, msgspec.json.encode(owner).decode(), expires_us),
    )
    return Lease(token=token, owner=owner, expires_us=expires_us)


def claim(
    tx: Connection, query: ClaimQuery, owner: Owner, may_take: MayTake, *, now_us: int, expires_us: int
) -> Claimed | None:
    """The first that may be taken, with its lease. Only that one's row is held, so savers and others go on."""
    after: tuple[int, int] = (-1, -1)
    while True:
        rows = _page(tx, query, after)
        for row in rows:
            after = int(row[_UPDATED]), int(row[0])
            lease = None if row[-3] is None else running(_lease(row[-3:]), now_us)
            session = sessions.intact_or_none(row[:-3])
            if session is None or not may_take(session, lease):
                continue
            taken = _take(tx, after[1], owner, may_take, now_us=now_us, expires_us=expires_us)
            if taken is not None:
                return taken
        if len(rows) < _PAGE:
            return None


def _page(tx: Connection, query: ClaimQuery, after: tuple[int, int]) -> list[Row]:
    where = Conditions(("metadata LIKE ?", f"%{query.metadata_part}%"))
    where.among("status", [str(status) for status in query.statuses])
    where.add("(updated_us, sessions.sid) > (?, ?)", *after)
    return tx.all(
        f"SELECT sessions.sid, {SESSION_COLUMNS}, token, owner, expires_us FROM sessions"
        f" LEFT JOIN leases ON leases.sid = sessions.sid AND is_held = 1{where}"
        " ORDER BY updated_us, sessions.sid LIMIT ?",
        (*where.values, _PAGE),
    )


def _take(
    tx: Connection, sid: int, owner: Owner, may_take: MayTake, *, now_us: int, expires_us: int
) -> Claimed | None:
    """Hold the row and look again: another may have been faster. One that is held right now is left to its holder."""
    row = tx.one(f"SELECT sid, {SESSION_COLUMNS} FROM sessions WHERE sid = ?{tx.locks.free}", (sid,))
    session = None if row is None else sessions.intact_or_none(row)
    if session is None:
        return None
    held = running(read(tx, sid), now_us)
    if not may_take(session, held):
        return None
    replacing = None if held is None else held.token
    lease = acquire(tx, sid, session.uid, owner, now_us=now_us, expires_us=expires_us, replacing=replacing)
    return Claimed(session=session, lease=lease)
