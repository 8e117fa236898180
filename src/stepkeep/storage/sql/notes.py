"""Keyed bytes about checkpoints that are there, or may come."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepkeep.codec.integrity import digest
from stepkeep.storage.port import Annotation, Target
from stepkeep.storage.sql.connection import Connection, Query, Value, marks

_COLUMNS = "target, kind, name, data, time_us, digest"
_PLACE = "sid = ? AND target = ? AND kind = ? AND name = ?"


def column_of(target: Target) -> str:
    """How a target is written: an id as it is, a (branch, external id) as a JSON pair, which no id looks like."""
    return target if isinstance(target, str) else msgspec.json.encode(target).decode()


def _target_of(column: str) -> Target:
    if not column.startswith("["):
        return column
    branch, external_id = msgspec.json.decode(column, type=tuple[str, str])
    return branch, external_id


def put(tx: Connection, sid: int, annotation: Annotation, *, replace: bool) -> bool:
    """Store it; False when one was in its place and stays. The session is held, so nobody else puts one there."""
    place = (sid, column_of(annotation.target), annotation.kind, annotation.name)
    stored = (annotation.data, annotation.time_us, annotation.digest)
    is_there = tx.one(f"SELECT 1 FROM annotations WHERE {_PLACE}", place)
    if is_there and not replace:
        return False
    if is_there:
        tx.put(f"UPDATE annotations SET data = ?, time_us = ?, digest = ? WHERE {_PLACE}", (*stored, *place))
    else:
        tx.put(f"INSERT INTO annotations (sid, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", (*place, *stored))
    return True


def new(target: Target, kind: str, name: str, data: bytes, time_us: int) -> Annotation:
    return Annotation(target=target, kind=kind, name=name, data=data, time_us=time_us, digest=digest(data))


def read(tx: Connection, sid: int, targets: Sequence[Target] | None, kind: str | None) -> list[Annotation]:
    conditions, values = ["sid = ?"], [sid]
    bound: list[Value] = list(values)
    if targets is not None:
        columns = aliases(tx, sid, targets)
        conditions.append(f"target IN ({marks(len(columns))})")
        bound += columns
    if kind is not None:
        conditions.append("kind = ?")
        bound.append(kind)
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM annotations WHERE {' AND '.join(conditions)} ORDER BY time_us, number", bound
    )
    return [
        Annotation(
            target=_target_of(target), kind=kind, name=name, data=bytes(data), time_us=time_us, digest=stored
        )
        for target, kind, name, data, time_us, stored in rows
    ]


def aliases(tx: Connection, sid: int, targets: Sequence[Target]) -> list[str]:
    """Every way the targets may be written: an id also as its (branch, external id), and the other way round."""
    other = tx.ask([_other_name(sid, target) for target in targets])
    found = {column_of(row[0] if len(row) == 1 else row) for rows in other for row in rows}
    return sorted(found | {column_of(target) for target in targets})


def _other_name(sid: int, target: Target) -> Query:
    """Finds the (branch, external id) of an id, or the id of a (branch, external id)."""
    if isinstance(target, str):
        pair = (
            "SELECT branch, external_id FROM checkpoints WHERE id = ? AND sid = ? AND external_id IS NOT NULL"
        )
        return pair, (target, sid)
    return "SELECT id FROM checkpoints WHERE sid = ? AND branch = ? AND external_id = ?", (sid, *target)


def remove(tx: Connection, sid: int, targets: Sequence[Target]) -> None:
    """Remove what is attached to these targets, as they are written."""
    columns = [column_of(target) for target in targets]
    tx.put(f"DELETE FROM annotations WHERE sid = ? AND target IN ({marks(len(columns))})", (sid, *columns))


def sweep(tx: Connection, sid: int | None, before_us: int, limit: int) -> int:
    """Remove annotations whose checkpoint has not come in time."""
    of_session, values = ("AND a.sid = ?", [sid]) if sid is not None else ("", [])
    rows = tx.all(
        "SELECT a.number, a.sid, a.target FROM annotations a WHERE a.time_us < ?"
        f" {of_session} AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.id = a.target AND c.sid = a.sid)",
        (before_us, *values),
    )
    orphans = [number for number, owner, target in rows if not _pair_is_stored(tx, owner, target)][:limit]
    gone = tx.ask([("DELETE FROM annotations WHERE number = ? RETURNING number", (n,)) for n in orphans])
    return sum(map(len, gone))


def _pair_is_stored(tx: Connection, sid: int, column: str) -> bool:
    target = _target_of(column)
    if isinstance(target, str):
        return False
    found = tx.one(
        "SELECT 1 FROM checkpoints WHERE sid = ? AND branch = ? AND external_id = ?", (sid, *target)
    )
    return found is not None
