"""The capped log of each session."""

from __future__ import annotations

from typing import Any

import msgspec

from stepkeep.storage.port import MAX_EVENTS, Event
from stepkeep.storage.sql.connection import Connection


def record(tx: Connection, sid: int, type: str, data: dict[str, Any], *, time_us: int) -> Event:
    row = tx.one("SELECT max(number) FROM events WHERE sid = ?", (sid,))
    number = (row[0] or 0) + 1 if row else 1
    insert(tx, sid, Event(number=number, time_us=time_us, type=type, data=data))
    tx.put("DELETE FROM events WHERE sid = ? AND number <= ?", (sid, number - MAX_EVENTS))
    return Event(number=number, time_us=time_us, type=type, data=data)


def insert(tx: Connection, sid: int, event: Event) -> None:
    tx.put(
        "INSERT INTO events (sid, number, time_us, type, data) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (sid, event.number, event.time_us, event.type, msgspec.json.encode(event.data).decode()),
    )


def read(tx: Connection, sid: int, *, after: int, limit: int | None) -> list[Event]:
    rows = tx.all(
        "SELECT number, time_us, type, data FROM events WHERE sid = ? AND number > ? ORDER BY number LIMIT ?",
        (sid, after, MAX_EVENTS if limit is None else limit),
    )
    return [
        Event(number=number, time_us=time_us, type=type, data=msgspec.json.decode(data))
        for number, time_us, type, data in rows
    ]
