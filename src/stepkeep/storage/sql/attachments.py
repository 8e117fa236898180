"""What is attached: events to a session, annotations to checkpoints that are there or may come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stepkeep import typed
from stepkeep.storage.port import MAX_EVENTS, Annotation, Event, Target
from stepkeep.storage.sql.connection import Conditions, Connection, Query, Row, among

# --- annotations -----------------------------------------------------------------------------------------------

ANNOTATION_COLUMNS = ("target", "kind", "name", "data", "time_us", "digest")
_COLUMNS = ", ".join(ANNOTATION_COLUMNS)
_LOCATION = "sid = ? AND target = ? AND kind = ? AND name = ?"


def column_of(target: Target) -> str:
    """How a target is written: an id as it is, a (branch, external id) as a JSON pair, which no id looks like."""
    return target if isinstance(target, str) else msgspec.json.encode(target).decode()


def _target_of(column: str) -> Target:
    if not column.startswith("["):
        return column
    branch, external_id = typed.from_json(column, tuple[str, str])
    return branch, external_id


def annotate(tx: Connection, sid: int, annotation: Annotation, *, replace: bool) -> bool:
    """Store it; False when there was one and it stays. The session is held, so nobody else puts one there."""
    location = (sid, column_of(annotation.target), annotation.kind, annotation.name)
    stored = (annotation.data, annotation.time_us, annotation.digest)
    is_there = tx.one(f"SELECT 1 FROM annotations WHERE {_LOCATION}", location)
    if is_there and not replace:
        return False
    if is_there:
        tx.put(
            f"UPDATE annotations SET data = ?, time_us = ?, digest = ? WHERE {_LOCATION}",
            (*stored, *location),
        )
    else:
        tx.put(
            f"INSERT INTO annotations (sid, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", (*location, *stored)
        )
    return True


def read_annotations(
    tx: Connection, sid: int, targets: Sequence[Target] | None, kind: str | None
) -> list[Annotation]:
    where = Conditions(("sid = ?", sid), ("kind = ?", kind))
    where.among("target", None if targets is None else _aliases(tx, sid, targets))
    return annotations_where(tx, where)


def annotations_where(tx: Connection, where: Conditions) -> list[Annotation]:
    # Mostly there are none or few, for which SQLite would prepare a sorter each time.
    rows = sorted(
        tx.all(f"SELECT number, {_COLUMNS} FROM annotations{where}", where.values), key=_when_attached
    )
    return [annotation_from(row[1:]) for row in rows]


def annotation_from(row: Row) -> Annotation:
    """An annotation from the columns of `ANNOTATION_COLUMNS`."""
    target, kind, name, data, time_us, stored = row
    return Annotation(
        target=_target_of(target), kind=kind, name=name, data=bytes(data), time_us=time_us, digest=stored
    )


def _when_attached(row: Row) -> tuple[int, int]:
    number, time_us = row[0], row[5]
    return time_us if isinstance(time_us, int) else 0, number  # damage can make anything of a time


def _aliases(tx: Connection, sid: int, targets: Sequence[Target]) -> list[str]:
    """Every way the targets may be written: an id also as its (branch, external id), and the other way round."""
    where = Conditions(("sid = ?", sid))
    where.among("id", [target for target in targets if isinstance(target, str)])
    pairs = tx.all(
        f"SELECT branch, external_id FROM checkpoints{where} AND external_id IS NOT NULL", where.values
    )
    ids = tx.ask([_id_of(sid, target) for target in targets if not isinstance(target, str)])
    found = {column_of((branch, external_id)) for branch, external_id in pairs}
    found |= {column_of(id) for rows in ids for (id,) in rows}
    return sorted(found | {column_of(target) for target in targets})


def _id_of(sid: int, target: tuple[str, str]) -> Query:
    """Finds the id of a (branch, external id)."""
    return "SELECT id FROM checkpoints WHERE sid = ? AND branch = ? AND external_id = ?", (sid, *target)


def remove_annotations(tx: Connection, sid: int, targets: Sequence[Target]) -> None:
    """Remove what is attached to these targets, as they are written."""
    columns = [column_of(target) for target in targets]
    among(tx, "DELETE FROM annotations WHERE sid = ? AND target IN ({})", sid, columns)


def sweep_annotations(tx: Connection, sid: int | None, before_us: int, limit: int) -> int:
    """Remove annotations whose checkpoint has not come in time."""
    where = Conditions(("a.time_us < ?", before_us), ("a.sid = ?", sid))
    where.add("NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.id = a.target AND c.sid = a.sid)")
    rows = tx.all(f"SELECT a.number, a.sid, a.target FROM annotations a{where}", where.values)
    orphans = [number for number, owner, target in rows if not _pair_is_stored(tx, owner, target)][:limit]
    gone = tx.ask([("DELETE FROM annotations WHERE number = ? RETURNING number", (n,)) for n in orphans])
    return sum(map(len, gone))


def _pair_is_stored(tx: Connection, sid: int, column: str) -> bool:
    target = _target_of(column)
    return not isinstance(target, str) and tx.one(*_id_of(sid, target)) is not None


# --- events: the capped log of each session --------------------------------------------------------------------


def record_event(tx: Connection, sid: int, type: str, data: dict[str, Any], *, time_us: int) -> Event:
    row = tx.one("SELECT max(number) FROM events WHERE sid = ?", (sid,))
    number = (row[0] or 0) + 1 if row else 1
    event = Event(number=number, time_us=time_us, type=type, data=data)
    insert_event(tx, sid, event)
    tx.put("DELETE FROM events WHERE sid = ? AND number <= ?", (sid, number - MAX_EVENTS))
    return event


def insert_event(tx: Connection, sid: int, event: Event) -> None:
    tx.put(
        "INSERT INTO events (sid, number, time_us, type, data) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (sid, event.number, event.time_us, event.type, msgspec.json.encode(event.data).decode()),
    )


def read_events(tx: Connection, sid: int, after: int, limit: int | None) -> list[Event]:
    rows = tx.all(
        "SELECT number, time_us, type, data FROM events WHERE sid = ? AND number > ? ORDER BY number LIMIT ?",
        (sid, after, MAX_EVENTS if limit is None else limit),
    )
    return [
        Event(number=number, time_us=time_us, type=type, data=msgspec.json.decode(data))
        for number, time_us, type, data in rows
    ]
