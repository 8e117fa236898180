"""Bodies and blobs: what is stored for a checkpoint's contents, and what may go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.errors import Conflict, NotFound
from holdfast.storage.port import Blob, Body, BodyInfo
from holdfast.storage.sql import rows
from holdfast.storage.sql.connection import Connection, marks

MAX_CHAIN: Final = 256
"""More links than any writer makes: a longer chain is damage, and must not be followed for ever."""

_INSERT = (
    "INSERT INTO bodies (sid, checkpoint, name, is_spare, is_hidden, codec, size, stored_size, digest, base, member,"
    " group_bytes, data) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_CHAIN = f"""WITH RECURSIVE chain (n, checkpoint) AS (
  SELECT 0, CAST(? AS TEXT)
  UNION ALL
  SELECT chain.n + 1, b.base FROM chain JOIN bodies b
    ON b.sid = ? AND b.checkpoint = chain.checkpoint AND b.name = ? AND b.is_spare = 0
    WHERE b.base IS NOT NULL AND chain.n < {MAX_CHAIN}
)
SELECT {rows.INFO_COLUMNS}, b.data FROM chain JOIN bodies b
  ON b.sid = ? AND b.checkpoint = chain.checkpoint AND b.name = ? AND b.is_spare = 0
  ORDER BY chain.n"""
_IS_NEEDED = (
    "EXISTS (SELECT 1 FROM bodies d WHERE d.sid = b.sid AND d.base = b.checkpoint AND d.name = b.name"
    " AND d.is_spare = 0)"
)


# A damaged flag alone must never cost a living checkpoint its body.
_IS_OWNED = "EXISTS (SELECT 1 FROM checkpoints c WHERE c.id = b.checkpoint AND c.sid = b.sid)"


def insert(tx: Connection, sid: int, bodies: Sequence[Body]) -> bool:
    """Store records; False, and nothing of them, when a hidden one is in the place of one of them."""
    for body in bodies:
        if not _insert_one(tx, sid, body):
            tx.run(
                "DELETE FROM bodies WHERE sid = ? AND checkpoint = ? AND is_hidden = 0",
                (sid, body.checkpoint),
            )
            tx.run("DELETE FROM blob_refs WHERE sid = ? AND checkpoint = ?", (sid, body.checkpoint))
            return False
    return True


def _insert_one(tx: Connection, sid: int, body: Body) -> bool:
    is_new = tx.run(
        _INSERT,
        (
            sid,
            body.checkpoint,
            body.name,
            int(body.is_spare),
            body.codec,
            body.size,
            body.stored_size,
            body.digest,
            body.base,
            body.member,
            body.group_bytes,
            body.data,
        ),
    )
    if is_new and body.blobs:
        tx.run_many(
            "INSERT INTO blob_refs (sid, checkpoint, name, is_spare, digest) VALUES (?, ?, ?, ?, ?)",
            [(sid, body.checkpoint, body.name, int(body.is_spare), blob) for blob in body.blobs],
        )
    return bool(is_new)


def is_in_place(tx: Connection, sid: int, body: Body) -> bool:
    row = tx.one(
        "SELECT data FROM bodies WHERE sid = ? AND checkpoint = ? AND name = ? AND is_spare = ?",
        (sid, body.checkpoint, body.name, int(body.is_spare)),
    )
    return row is not None and row[0] == body.data


def check_references(tx: Connection, sid: int, bodies: Sequence[Body], blobs: Sequence[Blob] = ()) -> None:
    """Refuse bodies whose base or blobs are not stored: a sweep may have been faster than this save (V5).

    A spare is no reference, so its base may be gone: it is then only useless.
    """
    for body in bodies:
        if body.base is None or body.is_spare:
            continue
        found = tx.one(
            "SELECT 1 FROM bodies WHERE sid = ? AND checkpoint = ? AND name = ? AND is_spare = 0",
            (sid, body.base, body.name),
        )
        if found is None:
            raise Conflict(
                f"body {body.name!r} of {body.checkpoint} is patched against {body.base}, which is gone",
                code="base_gone",
                checkpoint=body.checkpoint,
            )
    named = {digest for body in bodies for digest in body.blobs} - {blob.digest for blob in blobs}
    missing = named - stored_blobs(tx, sorted(named))
    if missing:
        raise Conflict(f"blob {min(missing)} is gone: send it again", code="blob_gone")


def chain(tx: Connection, sid: int, checkpoint: str, name: str) -> list[Body]:
    found = tx.all(_CHAIN, (checkpoint, sid, name, sid, name))
    blobs = _blobs_of(tx, sid, [row[0] for row in found], name, is_spare=False)
    return [rows.body(row, blobs.get(row[0], ())) for row in found]


def one(tx: Connection, sid: int, checkpoint: str, name: str, *, is_spare: bool) -> Body | None:
    row = tx.one(
        f"SELECT {rows.INFO_COLUMNS}, b.data FROM bodies b"
        " WHERE b.sid = ? AND b.checkpoint = ? AND b.name = ? AND b.is_spare = ?",
        (sid, checkpoint, name, int(is_spare)),
    )
    if row is None:
        return None
    return rows.body(row, _blobs_of(tx, sid, [checkpoint], name, is_spare=is_spare).get(checkpoint, ()))


def _blobs_of(
    tx: Connection, sid: int, checkpoints: Sequence[str], name: str, *, is_spare: bool
) -> dict[str, tuple[str, ...]]:
    """The blobs that the records of a body name, by checkpoint, sorted."""
    blobs: dict[str, tuple[str, ...]] = {}
    for checkpoint, digest in tx.all(
        f"SELECT checkpoint, digest FROM blob_refs WHERE sid = ? AND checkpoint IN ({marks(len(checkpoints))})"
        " AND name = ? AND is_spare = ? ORDER BY digest",
        (sid, *checkpoints, name, int(is_spare)),
    ):
        blobs[checkpoint] = (*blobs.get(checkpoint, ()), digest)
    return blobs


def infos(tx: Connection, sid: int) -> list[BodyInfo]:
    blobs: dict[tuple[str, str, int], list[str]] = {}
    for checkpoint, name, is_spare, digest in tx.all(
        "SELECT checkpoint, name, is_spare, digest FROM blob_refs WHERE sid = ? ORDER BY digest", (sid,)
    ):
        blobs.setdefault((checkpoint, name, is_spare), []).append(digest)
    found = tx.all(
        f"SELECT {rows.INFO_COLUMNS} FROM bodies b WHERE b.sid = ? ORDER BY b.checkpoint, b.name, b.is_spare",
        (sid,),
    )
    return [rows.body_info(row, tuple(blobs.get((row[0], row[1], row[9]), ()))) for row in found]


def replace(tx: Connection, sid: int, body: Body, expect_digest: str) -> None:
    row = tx.one(
        "SELECT digest, is_hidden FROM bodies WHERE sid = ? AND checkpoint = ? AND name = ? AND is_spare = 0",
        (sid, body.checkpoint, body.name),
    )
    if row is None:
        raise NotFound(
            f"{body.checkpoint} has no body {body.name!r}", code="body_not_found", checkpoint=body.checkpoint
        )
    if row[0] != expect_digest:
        raise Conflict(f"body {body.name!r} of {body.checkpoint} changed meanwhile", code="body_changed")
    check_references(tx, sid, (body,))
    _delete(tx, sid, body.checkpoint, body.name)
    insert(tx, sid, (body,))
    if row[1]:
        _hide(tx, sid, body.checkpoint, body.name)


def drop_or_hide(tx: Connection, sid: int, checkpoint: str) -> int:
    """Remove the bodies of a removed checkpoint; those that others are patched against are only hidden.

    The stored bytes that went.
    """
    freed = 0
    for name, is_needed in tx.all(
        f"SELECT b.name, CASE WHEN {_IS_NEEDED} THEN 1 ELSE 0 END FROM bodies b"
        " WHERE b.sid = ? AND b.checkpoint = ? AND b.is_spare = 0",
        (sid, checkpoint),
    ):
        if is_needed:
            _hide(tx, sid, checkpoint, name)
        else:
            freed += _drop(tx, sid, checkpoint, name)
    return freed


def is_hidden(tx: Connection, sid: int, checkpoint: str, name: str) -> bool:
    row = tx.one(
        "SELECT 1 FROM bodies WHERE sid = ? AND checkpoint = ? AND name = ? AND is_hidden = 1",
        (sid, checkpoint, name),
    )
    return row is not None


def show(tx: Connection, sid: int, checkpoint: str) -> None:
    """Let hidden bodies belong to a checkpoint again."""
    tx.run("UPDATE bodies SET is_hidden = 0 WHERE sid = ? AND checkpoint = ?", (sid, checkpoint))


def sweep(tx: Connection, sid: int | None, limit: int) -> tuple[int, int]:
    """Remove hidden bodies nothing is patched against, leaf by leaf; (how many, stored bytes)."""
    of_session, values = ("AND b.sid = ?", [sid]) if sid is not None else ("", [])
    count = freed = 0
    while count < limit:
        found = tx.all(
            f"SELECT b.sid, b.checkpoint, b.name FROM bodies b WHERE b.is_hidden = 1 AND b.is_spare = 0 {of_session}"
            f" AND NOT {_IS_NEEDED} AND NOT {_IS_OWNED} LIMIT ?",
            (*values, limit - count),
        )
        if not found:
            break
        for owner, checkpoint, name in found:
            freed += _drop(tx, owner, checkpoint, name)
            count += 1
    return count, freed


def _hide(tx: Connection, sid: int, checkpoint: str, name: str) -> None:
    tx.run(
        "UPDATE bodies SET is_hidden = 1 WHERE sid = ? AND checkpoint = ? AND name = ?",
        (sid, checkpoint, name),
    )


def _drop(tx: Connection, sid: int, checkpoint: str, name: str) -> int:
    """Remove a body with its spare, and the spares patched against it, which are useless now; their stored bytes."""
    (useless,) = tx.one(
        "SELECT coalesce(sum(stored_size), 0) FROM bodies WHERE sid = ? AND base = ? AND name = ? AND is_spare = 1",
        (sid, checkpoint, name),
    ) or (0,)
    tx.run(
        "DELETE FROM bodies WHERE sid = ? AND base = ? AND name = ? AND is_spare = 1", (sid, checkpoint, name)
    )
    return int(useless) + _delete(tx, sid, checkpoint, name)


def _delete(tx: Connection, sid: int, checkpoint: str, name: str) -> int:
    """Remove a body with its spare; their stored bytes."""
    (freed,) = tx.one(
        "SELECT coalesce(sum(stored_size), 0) FROM bodies WHERE sid = ? AND checkpoint = ? AND name = ?",
        (sid, checkpoint, name),
    ) or (0,)
    for table in ("bodies", "blob_refs"):
        tx.run(f"DELETE FROM {table} WHERE sid = ? AND checkpoint = ? AND name = ?", (sid, checkpoint, name))
    return int(freed)


# --- blobs -----------------------------------------------------------------------------------------------------


def insert_blobs(tx: Connection, blobs: Iterable[Blob]) -> None:
    tx.run_many(
        "INSERT INTO blobs (digest, size, codec, stored_digest, stored_size, data) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO NOTHING",
        [
            (blob.digest, blob.size, blob.codec, blob.stored_digest, len(blob.data), blob.data)
            for blob in blobs
        ],
    )


def blob(tx: Connection, digest: str) -> Blob | None:
    row = tx.one(f"SELECT {rows.BLOB_COLUMNS} FROM blobs WHERE digest = ?", (digest,))
    return None if row is None else rows.blob(row)


def stored_blobs(tx: Connection, digests: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for start in range(0, len(digests), 500):
        part = digests[start : start + 500]
        found.update(
            row[0] for row in tx.all(f"SELECT digest FROM blobs WHERE digest IN ({marks(len(part))})", part)
        )
    return found


def sweep_blobs(tx: Connection, limit: int) -> tuple[int, int]:
    """Remove blobs that no body names; (how many, stored bytes)."""
    found = tx.all(
        "SELECT digest, stored_size FROM blobs WHERE NOT EXISTS"
        " (SELECT 1 FROM blob_refs r WHERE r.digest = blobs.digest) LIMIT ?",
        (limit,),
    )
    for digest, _ in found:
        tx.run("DELETE FROM blobs WHERE digest = ?", (digest,))
    return len(found), sum(stored_size for _, stored_size in found)
