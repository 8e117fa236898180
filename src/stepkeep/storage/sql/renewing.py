"""Records of an encrypted store stored anew with other bytes, a few at a time: when it gets another data key.

Ids, sizes, bases and chain values stay; only what is encrypted changes, with the digests of stored bytes. A part of a
session is read by pages, and the next page begins behind the last row that was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from stepkeep.errors import Corrupt
from stepkeep.storage.port import Event, Renewal, Renewed
from stepkeep.storage.sql import bodies, row_mapping, sessions
from stepkeep.storage.sql.attachments import annotations_where, read_events
from stepkeep.storage.sql.connection import Conditions, Connection, Row

T = TypeVar("T")

MAX_ROWS: Final = 200
MAX_BYTES: Final = 1 << 20
"""How much is stored anew in one transaction: savers wait for its end."""

Place: TypeAlias = tuple[Any, ...]

_OF_BODY: Final = "sid = ? AND checkpoint = ? AND name = ? AND is_redundant = ?"
_BODIES: Final = (
    "SELECT checkpoint, name, is_redundant, stored_size FROM bodies WHERE sid = ?"
    " AND (checkpoint, name, is_redundant) > (?, ?, ?) AND substr(data, 1, 2) <> ?"
    " ORDER BY checkpoint, name, is_redundant LIMIT ?"
)
_BLOBS: Final = (
    "SELECT digest, stored_size FROM blobs WHERE digest > ? AND substr(data, 1, 2) <> ?"
    " AND digest IN (SELECT r.digest FROM blob_refs r WHERE r.sid = ?) ORDER BY digest LIMIT ?"
)
_ANNOTATIONS: Final = (
    "SELECT number, length(data) FROM annotations WHERE sid = ? AND number > ? AND substr(data, 1, 2) <> ?"
    " ORDER BY number LIMIT ?"
)
_HEADERS: Final = "SELECT seq, header FROM checkpoints WHERE sid = ? AND seq > ? ORDER BY seq LIMIT ?"
_OLDER: Final = " + ".join(
    f"(SELECT count(*) FROM {table} WHERE substr(data, 1, 2) <> ?{own})"
    for table, own in (("bodies", ""), ("blobs", ""), ("annotations", " AND sid <> 0"))
)


def count_older(tx: Connection, mark: bytes) -> int:
    (count,) = tx.one(f"SELECT {_OLDER}", (mark, mark, mark)) or (0,)
    return int(count)


def renew(tx: Connection, sid: int, uid: str, part: str, after: Place, renewal: Renewal) -> Renewed:
    return _PARTS[part](tx, sid, uid, after, renewal)


def _stored_anew(
    rows: Sequence[tuple[Place, T]],
    renewed: Callable[[T], T],
    store: Callable[[Place, T], None],
    *,
    is_last: bool = False,
) -> Renewed:
    count = damaged = 0
    for place, record in rows:
        try:
            new = renewed(record)
        except (Corrupt, msgspec.MsgspecError):
            damaged += 1
            continue
        if new is not record:
            store(place, new)
            count += 1
    return Renewed(count, damaged, rows[-1][0] if rows and not is_last else None)


def _session(tx: Connection, sid: int, uid: str, _: Place, renewal: Renewal) -> Renewed:
    found = [((), sessions.by_uid(tx, uid)[1])]
    return _stored_anew(found, renewal.session, lambda _, new: sessions.write(tx, sid, new), is_last=True)


def _branches(tx: Connection, sid: int, uid: str, _: Place, renewal: Renewal) -> Renewed:
    found = [((), branch) for branch in sessions.stored_branches(tx, sid)]
    return _stored_anew(
        found,
        partial(renewal.branch, uid),
        lambda _, new: sessions.put_branch(tx, sid, new),
        is_last=True,
    )


def _events(tx: Connection, sid: int, uid: str, after: Place, renewal: Renewal) -> Renewed:
    (last,) = after or (0,)

    def store(place: Place, new: Event) -> None:
        data = msgspec.json.encode(new.data).decode()
        tx.put("UPDATE events SET data = ? WHERE sid = ? AND number = ?", (data, sid, *place))

    found = read_events(tx, sid, last, MAX_ROWS)
    return _stored_anew(
        [((event.number,), event) for event in found],
        partial(renewal.event, uid),
        store,
        is_last=len(found) < MAX_ROWS,
    )


def _checkpoints(tx: Connection, sid: int, _: str, after: Place, renewal: Renewal) -> Renewed:
    found = tx.all(_HEADERS, (sid, *(after or (0,)), MAX_ROWS))
    update = "UPDATE checkpoints SET header = ? WHERE sid = ? AND seq = ?"
    return _stored_anew(
        [((seq,), bytes(raw)) for seq, raw in found],
        renewal.header,
        lambda place, new: tx.put(update, (new, sid, *place)),
        is_last=len(found) < MAX_ROWS,  # what is saved meanwhile needs no renewal
    )


def _annotations(tx: Connection, sid: int, uid: str, after: Place, renewal: Renewal) -> Renewed:
    places = _within(tx.all(_ANNOTATIONS, (sid, *(after or (0,)), renewal.mark, MAX_ROWS)))
    update = "UPDATE annotations SET data = ?, digest = ? WHERE number = ?"
    return _stored_anew(
        [(place, note) for place in places for note in annotations_where(tx, _number(place))],
        partial(renewal.annotation, uid),
        lambda place, new: tx.put(update, (new.data, new.digest, *place)),
    )


def _number(place: Place) -> Conditions:
    return Conditions(("number = ?", *place))


def _blobs(tx: Connection, sid: int, uid: str, after: Place, renewal: Renewal) -> Renewed:
    places = _within(tx.all(_BLOBS, (*(after or ("",)), renewal.mark, sid, MAX_ROWS)))
    found = [(place, bodies.blob(tx, *place)) for place in places]
    update = "UPDATE blobs SET data = ?, stored_digest = ? WHERE digest = ?"
    return _stored_anew(
        [(place, blob) for place, blob in found if blob is not None],
        partial(renewal.blob, uid),
        lambda place, new: tx.put(update, (new.data, new.stored_digest, *place)),
    )


def _bodies(tx: Connection, sid: int, uid: str, after: Place, renewal: Renewal) -> Renewed:
    places = _within(tx.all(_BODIES, (sid, *(after or ("", "", -1)), renewal.mark, MAX_ROWS)))
    read = f"SELECT {row_mapping.INFO_COLUMNS}, b.data FROM bodies b WHERE {_OF_BODY}"
    update = f"UPDATE bodies SET data = ?, digest = ? WHERE {_OF_BODY}"
    return _stored_anew(
        [(place, row_mapping.body(row)) for place in places for row in tx.all(read, (sid, *place))],
        partial(renewal.body, uid),
        lambda place, new: tx.put(update, (new.data, new.digest, sid, *place)),
    )


_PARTS: Final = {
    "session": _session,
    "branches": _branches,
    "events": _events,
    "checkpoints": _checkpoints,
    "annotations": _annotations,
    "blobs": _blobs,
    "bodies": _bodies,
}


def _within(found: Sequence[Row]) -> list[Place]:
    """The places of the first rows that one transaction may take, by the sizes in their last column; one at least."""
    total, places = 0, list[Place]()
    for *place, size in found:
        total += size
        if places and total > MAX_BYTES:
            break
        places.append(tuple(place))
    return places
