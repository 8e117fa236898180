"""Who may run a session: leases with fencing tokens that only ever grow."""

from __future__ import annotations

from typing import Final

import msgspec

from stepkeep.errors import Conflict
from stepkeep.processes import Owner
from stepkeep.storage.port import Lease
from stepkeep.storage.sql.connection import Connection, Row


def check_fence(tx: Connection, sid: int, uid: str, fence: int | None) -> None:
    """Refuse a writer whose lease was taken over or released; expiry alone does not make a token stale."""
    if fence is not None:
        check_held(tx.one(HELD, (sid,)), uid, fence)


HELD: Final = "SELECT token, is_held FROM leases WHERE sid = ?"


def check_held(row: Row | None, uid: str, fence: int) -> None:
    """The same for the row that `HELD` found."""
    if row is None or row[0] != fence or not row[1]:
        raise lost(uid)


def is_run(uid: str, lease: Lease) -> Conflict:
    return Conflict(
        f"session {uid} is run by {lease.owner.label or 'another process'}"
        f" (pid {lease.owner.pid} on {lease.owner.host})",
        code="lease_held",
        session=uid,
    )


def lost(uid: str) -> Conflict:
    return Conflict(
        f"the lease on session {uid} was taken over or released: this writer must stop",
        code="lease_lost",
        retryable=False,
        session=uid,
    )


def read(tx: Connection, sid: int) -> Lease | None:
    row = tx.one("SELECT token, owner, expires_us FROM leases WHERE sid = ? AND is_held = 1", (sid,))
    return None if row is None else from_row(row)


def from_row(row: Row) -> Lease:
    """The lease in the columns `token, owner, expires_us`."""
    return Lease(token=row[0], owner=msgspec.json.decode(row[1], type=Owner), expires_us=row[2])


def acquire(
    tx: Connection, sid: int, uid: str, owner: Owner, *, now_us: int, expires_us: int, replacing: int | None
) -> Lease:
    held = read(tx, sid)
    if held is not None and held.expires_us > now_us and held.token != replacing:
        raise is_run(uid, held)
    row = tx.one("SELECT token FROM leases WHERE sid = ?", (sid,))
    token = (row[0] if row else 0) + 1
    tx.put(
        "INSERT INTO leases (sid, token, owner, expires_us, is_held) VALUES (?, ?, ?, ?, 1) ON CONFLICT (sid)"
        " DO UPDATE SET token = excluded.token, owner = excluded.owner, expires_us = excluded.expires_us, is_held = 1",
        (sid, token, msgspec.json.encode(owner).decode(), expires_us),
    )
    return Lease(token=token, owner=owner, expires_us=expires_us)


def renew(tx: Connection, sid: int, uid: str, token: int, *, expires_us: int) -> Lease:
    check_fence(tx, sid, uid, token)
    tx.put("UPDATE leases SET expires_us = ? WHERE sid = ?", (expires_us, sid))
    lease = read(tx, sid)
    if lease is None:
        raise lost(uid)
    return lease


def release(tx: Connection, sid: int, token: int) -> None:
    tx.put("UPDATE leases SET is_held = 0 WHERE sid = ? AND token = ?", (sid, token))
