"""Handing sessions out to those who will run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stepkeep.model import SessionInfo
from stepkeep.processes import Owner
from stepkeep.storage.port import Claimed, ClaimQuery, Lease
from stepkeep.storage.sql import leases, sessions
from stepkeep.storage.sql.connection import Connection, Row, marks
from stepkeep.storage.sql.rows import SESSION_COLUMNS, SESSION_NAMES

_PAGE: Final = 100
_UPDATED: Final = 1 + SESSION_NAMES.index("updated_us")

MayTake = Callable[[SessionInfo, Lease | None], bool]


def claim(
    tx: Connection, query: ClaimQuery, owner: Owner, may_take: MayTake, *, now_us: int, expires_us: int
) -> Claimed | None:
    """The first that may be taken, with its lease. Only that one's row is held, so savers and others go on."""
    place: tuple[int, int] = (-1, -1)
    while True:
        rows = _page(tx, query, place)
        for row in rows:
            place = int(row[_UPDATED]), int(row[0])
            lease = None if row[-3] is None else leases.from_row(row[-3:])
            session = sessions.intact_or_none(row[:-3])
            if session is None or not may_take(session, _running(lease, now_us)):
                continue
            taken = _take(tx, place[1], owner, may_take, now_us=now_us, expires_us=expires_us)
            if taken is not None:
                return taken
        if len(rows) < _PAGE:
            return None


def _page(tx: Connection, query: ClaimQuery, place: tuple[int, int]) -> list[Row]:
    statuses = [str(status) for status in query.statuses]
    return tx.all(
        f"SELECT sessions.sid, {SESSION_COLUMNS}, token, owner, expires_us FROM sessions"
        " LEFT JOIN leases ON leases.sid = sessions.sid AND is_held = 1"
        f" WHERE status IN ({marks(len(statuses))}) AND metadata LIKE ?"
        " AND (updated_us, sessions.sid) > (?, ?) ORDER BY updated_us, sessions.sid LIMIT ?",
        (*statuses, f"%{query.metadata_part}%", *place, _PAGE),
    )


def _take(
    tx: Connection, sid: int, owner: Owner, may_take: MayTake, *, now_us: int, expires_us: int
) -> Claimed | None:
    """Hold the row and look again: another may have been faster. One that is held right now is left to its holder."""
    row = tx.one(f"SELECT sid, {SESSION_COLUMNS} FROM sessions WHERE sid = ?{tx.locks.free}", (sid,))
    session = None if row is None else sessions.intact_or_none(row)
    if session is None:
        return None
    running = _running(leases.read(tx, sid), now_us)
    if not may_take(session, running):
        return None
    lease = leases.acquire(
        tx,
        sid,
        session.uid,
        owner,
        now_us=now_us,
        expires_us=expires_us,
        replacing=None if running is None else running.token,
    )
    return Claimed(session=session, lease=lease)


def _running(lease: Lease | None, now_us: int) -> Lease | None:
    return lease if lease is not None and lease.expires_us > now_us else None
