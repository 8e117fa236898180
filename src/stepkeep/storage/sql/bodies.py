"""Bodies and blobs: what is stored for a checkpoint's contents, and what may go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from stepkeep.errors import Corrupt
from stepkeep.storage import conflicts
from stepkeep.storage.port import Blob, BlobSize, Body, BodyInfo, StoredHead
from stepkeep.storage.sql import row_mapping as rows
from stepkeep.storage.sql.connection import Conditions, Connection, Row, Value, among, marks, parts

MAX_CHAIN: Final = 256
"""More links than any writer makes: a longer chain is damage, and must not be followed for ever."""

MAX_ASKED: Final = 200
"""More checkpoints than that are picked out of all."""

_INSERT = (
    "INSERT INTO bodies (sid, checkpoint, name, is_redundant, is_hidden, codec, size, stored_size, digest, base,"
    " position, group_bytes, data) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# CROSS JOIN tells SQLite to begin with the chain: it would read every body of the session otherwise. The links are put
# in order here, by the last column: SQLite would hold the bytes of all of them once more to do it.
_CHAIN = f"""WITH RECURSIVE chain (n, checkpoint) AS (
  SELECT 0, b.checkpoint FROM bodies b WHERE b.checkpoint = ? AND b.sid = ? AND b.name = ? AND b.is_redundant = 0
  UNION ALL
  SELECT chain.n + 1, b.base FROM chain CROSS JOIN bodies b
    WHERE b.sid = ? AND b.checkpoint = chain.checkpoint AND b.name = ? AND b.is_redundant = 0
      AND b.base IS NOT NULL AND chain.n < {MAX_CHAIN}
)
SELECT {rows.INFO_COLUMNS}, b.data, chain.n FROM chain CROSS JOIN bodies b
  WHERE b.sid = ? AND b.checkpoint = chain.checkpoint AND b.name = ? AND b.is_redundant = 0"""
_CHAINS = f"""WITH RECURSIVE chain (checkpoint, name) AS (
  SELECT checkpoint, name FROM bodies WHERE sid = ? AND checkpoint IN ({{}}) AND is_redundant = 0
  UNION
  SELECT b.base, b.name FROM chain CROSS JOIN bodies b
    WHERE b.sid = ? AND b.checkpoint = chain.checkpoint AND b.name = chain.name AND b.is_redundant = 0
      AND b.base IS NOT NULL
)
SELECT {rows.INFO_COLUMNS}, b.data FROM chain CROSS JOIN bodies b
  WHERE b.sid = ? AND b.checkpoint = chain.checkpoint AND b.name = chain.name AND b.is_redundant = 0"""
# The same from the head of a branch, for all its bodies, with the rows it was found by beside the first links.
_HEAD = f"""WITH RECURSIVE chain (n, sid, checkpoint, name) AS (
  SELECT 0, s.sid, b.checkpoint, b.name FROM sessions s CROSS JOIN branches r CROSS JOIN bodies b
    WHERE s.uid = ? AND r.sid = s.sid AND r.name = coalesce(?, s.branch)
      AND b.sid = s.sid AND b.checkpoint = r.head AND b.is_redundant = 0
  UNION ALL
  SELECT chain.n + 1, chain.sid, b.base, b.name FROM chain CROSS JOIN bodies b
    WHERE b.sid = chain.sid AND b.checkpoint = chain.checkpoint AND b.name = chain.name AND b.is_redundant = 0
      AND b.base IS NOT NULL AND NOT (chain.checkpoint = ? AND chain.name = ?) AND chain.n < {MAX_CHAIN}
)
SELECT {rows.INFO_COLUMNS}, b.data,
    {", ".join(f"c.{name} AS header_{name}" for name in ("id", "seq", "branch", "header"))},
    {", ".join(f"s.{name} AS session_{name}" for name in rows.SESSION_NAMES)},
    {", ".join(f"r.{name} AS branch_{name}" for name in (*rows.BRANCH_FIELDS, "digest"))},
    chain.n
  FROM chain CROSS JOIN bodies b
    LEFT JOIN sessions s ON chain.n = 0 AND s.sid = chain.sid
    LEFT JOIN branches r ON chain.n = 0 AND r.sid = chain.sid AND r.name = coalesce(?, s.branch)
    LEFT JOIN checkpoints c ON chain.n = 0 AND c.id = chain.checkpoint
  WHERE b.sid = chain.sid AND b.checkpoint = chain.checkpoint AND b.name = chain.name AND b.is_redundant = 0"""
_INFO: Final = rows.INFO_COLUMNS.count(",") + 2  # with the data
_IS_NEEDED = (
    "EXISTS (SELECT 1 FROM bodies d WHERE d.sid = b.sid AND d.base = b.checkpoint AND d.name = b.name"
    " AND d.is_redundant = 0)"
)


# A damaged flag alone must never cost a living checkpoint its body.
_IS_OWNED = "EXISTS (SELECT 1 FROM checkpoints c WHERE c.id = b.checkpoint AND c.sid = b.sid)"


_LEAVES = (
    f"FROM bodies b WHERE b.is_hidden = 1 AND b.is_redundant = 0 AND NOT {_IS_NEEDED} AND NOT {_IS_OWNED}"
)


def insert(tx: Connection, sid: int, bodies: Sequence[Body]) -> None:
    """Store records that are not there yet."""
    for body in bodies:
        tx.put(
            _INSERT,
            (
                sid,
                body.checkpoint,
                body.name,
                int(body.is_redundant),
                body.codec,
                body.size,
                body.stored_size,
                body.digest,
                body.base,
                body.position,
                body.group_bytes,
                body.data,
            ),
        )
        if body.blobs:
            tx.run_many(
                "INSERT INTO blob_refs (sid, checkpoint, name, is_redundant, digest) VALUES (?, ?, ?, ?, ?)",
                [(sid, body.checkpoint, body.name, int(body.is_redundant), blob) for blob in body.blobs],
            )


def check_references(tx: Connection, sid: int, bodies: Sequence[Body], blobs: Sequence[Blob] = ()) -> None:
    """Refuse bodies whose base or blobs are not stored: a sweep may have been faster than this save (V5)."""
    named: set[str] = set()
    for body in bodies:
        named.update(body.blobs)
        # A redundant delta encoding is never a reference: without its base it is only useless.
        if body.base is not None and not body.is_redundant and not tx.one(BASE, (sid, body.base, body.name)):
            raise conflicts.base_gone(body)
    check_blobs(tx, named, blobs)


BASE: Final = "SELECT 1 FROM bodies WHERE sid = ? AND checkpoint = ? AND name = ? AND is_redundant = 0"


def check_blobs(tx: Connection, named: set[str], blobs: Sequence[Blob]) -> None:
    """Refuse blobs that are neither stored nor given; those found stay until the transaction ends."""
    elsewhere = sorted(named.difference(blob.digest for blob in blobs))
    missing = set(elsewhere) - stored_blobs(tx, elsewhere, lock=tx.locks.keep)
    if missing:
        raise conflicts.blob_gone(min(missing))


def chain(tx: Connection, sid: int, checkpoint: str, name: str) -> list[Body]:
    found = sorted(tx.all(_CHAIN, (checkpoint, sid, name, sid, name, sid, name)), key=itemgetter(-1))
    where = Conditions(("sid = ?", sid), ("name = ?", name), ("is_redundant = ?", 0))
    where.among("checkpoint", [row[0] for row in found])
    blobs = _blobs_named(tx, where)
    return [rows.body(row, blobs.get((row[0], name, 0), ())) for row in found]


def all_chains(tx: Connection, sid: int, checkpoints: Sequence[str]) -> list[Body]:
    """The bodies of several checkpoints and all they are rebuilt from, each once."""
    found: dict[Row, Body] = {}
    for part in parts(checkpoints):
        for row in tx.all(_CHAINS.format(marks(len(part))), (sid, *part, sid, sid)):
            found[row[:2]] = rows.body(row)
    return list(found.values())


def head(tx: Connection, uid: str, branch: str | None, known: tuple[str, str] | None) -> StoredHead | None:
    """The head of a branch with the chains of its bodies; see the port."""
    found = sorted(tx.all(_HEAD, (uid, branch, *(known or ("", "")), branch)), key=itemgetter(-1))
    if not found or found[0][_INFO] is None:
        return None
    first = found[0]
    session_end = _INFO + 4 + len(rows.SESSION_NAMES)
    try:
        session = rows.session_from(first[_INFO + 4 : session_end])
        rows.check_branch(first[session_end:-1])
    except Corrupt:
        return None
    chains: dict[str, list[Body]] = {}
    for row in found:
        chains.setdefault(row[1], []).append(rows.body(row))
    id, seq, on_branch, raw = first[_INFO : _INFO + 4]
    return StoredHead(
        session=session, row=rows.header_row((id, session.uid, seq, on_branch, raw)), chains=chains
    )


def stored(
    tx: Connection, sid: int, checkpoint: str, name: str | None = None, *, is_redundant: bool | None = None
) -> list[Body]:
    """The records of a checkpoint, or those with that name, with their bytes."""
    kind = None if is_redundant is None else int(is_redundant)
    where = Conditions(
        ("sid = ?", sid), ("checkpoint = ?", checkpoint), ("name = ?", name), ("is_redundant = ?", kind)
    )
    blobs = _blobs_named(tx, where)
    found = tx.all(
        f"SELECT {rows.INFO_COLUMNS}, b.data FROM bodies b{where} ORDER BY name, is_redundant", where.values
    )
    return [rows.body(row, blobs.get((row[0], row[1], row[9]), ())) for row in found]


def _blobs_named(tx: Connection, where: Conditions) -> dict[Row, tuple[str, ...]]:
    """The blobs that records name, sorted, by (checkpoint, name, is redundant)."""
    blobs: dict[Row, list[str]] = {}
    for *key, digest in tx.all(
        f"SELECT checkpoint, name, is_redundant, digest FROM blob_refs{where} ORDER BY digest", where.values
    ):
        blobs.setdefault(tuple(key), []).append(digest)
    return {key: tuple(digests) for key, digests in blobs.items()}


def infos(tx: Connection, sid: int, checkpoints: Sequence[str] | None = None) -> list[BodyInfo]:
    if checkpoints is not None and len(checkpoints) > MAX_ASKED:
        wanted = set(checkpoints)
        return [info for info in infos(tx, sid) if info.checkpoint in wanted]
    where = Conditions(("sid = ?", sid))
    where.among("checkpoint", checkpoints)
    blobs = _blobs_named(tx, where)
    found = tx.all(
        f"SELECT {rows.INFO_COLUMNS} FROM bodies b{where} ORDER BY checkpoint, name, is_redundant",
        where.values,
    )
    return [rows.body_info(row, blobs.get((row[0], row[1], row[9]), ())) for row in found]


def replace(tx: Connection, sid: int, body: Body, expect_digest: str) -> None:
    row = tx.one(
        "SELECT digest, is_hidden FROM bodies WHERE sid = ? AND checkpoint = ? AND name = ? AND is_redundant = 0",
        (sid, body.checkpoint, body.name),
    )
    if row is None:
        raise conflicts.body_not_found(body)
    if row[0] != expect_digest:
        raise conflicts.body_changed(body)
    check_references(tx, sid, (body,))
    for table in ("bodies", "blob_refs"):
        tx.put(
            f"DELETE FROM {table} WHERE sid = ? AND checkpoint = ? AND name = ?",
            (sid, body.checkpoint, body.name),
        )
    insert(tx, sid, (body,))
    if row[1]:
        tx.put(
            "UPDATE bodies SET is_hidden = 1 WHERE sid = ? AND checkpoint = ? AND name = ?",
            (sid, body.checkpoint, body.name),
        )


# A number, whatever damage made of the column.
_FREED = "RETURNING stored_size + 0"
_OF = "WHERE sid = ? AND checkpoint IN ({})"
# Redundant deltas whose base goes.
_USELESS = f"DELETE FROM bodies WHERE sid = ? AND is_redundant = 1 AND base IN ({{}}) AND name = ? {_FREED}"
_OWN = f"SELECT checkpoint, name FROM bodies {_OF}"
_BUILT_ON = "SELECT base, name, checkpoint FROM bodies WHERE sid = ? AND is_redundant = 0 AND base IN ({})"
_NO_BODY = (
    "NOT EXISTS (SELECT 1 FROM bodies b WHERE b.sid = blob_refs.sid AND b.checkpoint = blob_refs.checkpoint"
    " AND b.name = blob_refs.name)"
)


def drop_or_hide(tx: Connection, sid: int, checkpoints: Sequence[str]) -> int:
    """Remove the bodies of removed checkpoints, given newest first; those that others are based on are only hidden.

    Returns the stored bytes of what went.
    """
    names: dict[str, set[str]] = {}
    for checkpoint, name in among(tx, _OWN, sid, checkpoints):
        names.setdefault(checkpoint, set()).add(name)
    built: dict[tuple[str, str], list[str]] = {}
    for base, name, checkpoint in among(tx, _BUILT_ON, sid, checkpoints):
        built.setdefault((base, name), []).append(checkpoint)
    gone: dict[str, set[str]] = {}
    needed: dict[str, list[str]] = {}
    for checkpoint in checkpoints:
        for name in names.get(checkpoint, ()):
            if gone.setdefault(name, set()).issuperset(built.get((checkpoint, name), ())):
                gone[name].add(checkpoint)
            else:
                needed.setdefault(name, []).append(checkpoint)
    for name, kept in needed.items():
        among(tx, f"UPDATE bodies SET is_hidden = 1 {_OF} AND name = ?", sid, kept, name)
    useless = [row for name, going in gone.items() for row in among(tx, _USELESS, sid, sorted(going), name)]
    own = among(tx, f"DELETE FROM bodies {_OF} AND is_hidden = 0 {_FREED}", sid, checkpoints)
    among(tx, f"DELETE FROM blob_refs {_OF} AND {_NO_BODY}", sid, checkpoints)
    return freed_bytes([*useless, *own])


def sweep(tx: Connection, sid: int | None, limit: int) -> tuple[int, int]:
    """Remove hidden bodies nothing is based on, leaf by leaf; (how many, stored bytes)."""
    swept = _swept_sessions(tx, sid, limit)
    if swept is None:
        return 0, 0
    condition, values = swept
    count = freed = 0
    while count < limit:
        found = tx.all(
            f"SELECT b.sid, b.name, b.checkpoint {_LEAVES} {condition} LIMIT ?",
            (*values, limit - count),
        )
        if not found:
            break
        going: dict[tuple[int, str], list[str]] = {}
        for owner, name, checkpoint in found:
            going.setdefault((owner, name), []).append(checkpoint)
        for (owner, name), checkpoints in going.items():
            for sql in (_USELESS, f"DELETE FROM bodies {_OF} AND name = ? {_FREED}"):
                freed += freed_bytes(among(tx, sql, owner, checkpoints, name))
            among(tx, f"DELETE FROM blob_refs {_OF} AND name = ?", owner, checkpoints, name)
        count += len(found)
    return count, freed


def _swept_sessions(tx: Connection, sid: int | None, limit: int) -> tuple[str, list[Value]] | None:
    """The condition on what is swept: one session, or all; None where nothing may go.

    Where several may write, only those that nobody writes to now, and they are held: a save must not choose a base
    that goes. The others come next time, or another sweeper has them.
    """
    if sid is not None:
        return "AND b.sid = ?", [sid]
    if not tx.locks.free:
        return "", []
    # In one statement with a limit, a server would read all sessions to find these. A session whose hidden bodies are
    # all needed is left out: it would be held for nothing, and could keep others from ever being reached.
    found = tx.all(f"SELECT DISTINCT b.sid {_LEAVES} ORDER BY b.sid LIMIT ?", (limit,))
    if not found:
        return None
    rows = tx.all(
        f"SELECT sid FROM sessions WHERE sid IN ({marks(len(found))}) ORDER BY sid{tx.locks.free}",
        [sid for (sid,) in found],
    )
    return f"AND b.sid IN ({marks(len(rows))})", [row[0] for row in rows]


def freed_bytes(rows: Iterable[Row]) -> int:
    """The sum of the stored sizes that deletions returned; damage may have left none."""
    return sum(int(row[0] or 0) for row in rows)


# --- blobs -----------------------------------------------------------------------------------------------------


_INSERT_BLOB = (
    "INSERT INTO blobs (digest, size, codec, stored_digest, stored_size, data) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO NOTHING"
)


def insert_blobs(tx: Connection, blobs: Iterable[Blob]) -> None:
    """Store those that are missing; all of them stay until the transaction ends."""
    missing = sorted(blobs, key=lambda blob: blob.digest)
    while missing:
        for blob in missing:
            tx.put(
                _INSERT_BLOB,
                (blob.digest, blob.size, blob.codec, blob.stored_digest, len(blob.data), blob.data),
            )
        # One that was there may have gone with a sweep before it could be held: then it is stored again.
        found = stored_blobs(tx, [blob.digest for blob in missing], lock=tx.locks.keep)
        missing = [blob for blob in missing if blob.digest not in found]


def blob(tx: Connection, digest: str) -> Blob | None:
    row = tx.one(f"SELECT {rows.BLOB_COLUMNS} FROM blobs WHERE digest = ?", (digest,))
    return None if row is None else rows.blob(row)


def stored_blobs(tx: Connection, digests: Sequence[str], *, lock: str = "") -> set[str]:
    found = tx.ask(
        [
            (f"SELECT digest FROM blobs WHERE digest IN ({marks(len(part))}) ORDER BY digest{lock}", part)
            for part in parts(digests)
        ]
    )
    return {digest for rows in found for (digest,) in rows}


def blob_sizes(tx: Connection, sid: int) -> dict[str, BlobSize]:
    found = tx.all(
        "SELECT digest, stored_size, EXISTS"
        " (SELECT 1 FROM blob_refs r WHERE r.digest = blobs.digest AND r.sid <> ?) FROM blobs"
        " WHERE digest IN (SELECT digest FROM blob_refs WHERE sid = ?)",
        (sid, sid),
    )
    return {digest: BlobSize(size, bool(is_shared)) for digest, size, is_shared in found}


_IS_UNNAMED = "NOT EXISTS (SELECT 1 FROM blob_refs r WHERE r.digest = blobs.digest)"


def sweep_blobs(tx: Connection, limit: int) -> tuple[int, int]:
    """Remove blobs that no body names; (how many, stored bytes)."""
    found = tx.all(f"SELECT digest FROM blobs WHERE {_IS_UNNAMED} LIMIT ?{tx.locks.free}", (limit,))
    return remove_unnamed(tx, [digest for (digest,) in found])


def remove_unnamed(tx: Connection, digests: Sequence[str]) -> tuple[int, int]:
    """Remove those of these blobs that no body names; (how many, stored bytes).

    A save may have named one since it was found, so that is asked again.
    """
    gone = tx.ask(
        [
            (f"DELETE FROM blobs WHERE digest = ? AND {_IS_UNNAMED} RETURNING stored_size", (digest,))
            for digest in digests
        ]
    )
    return sum(map(len, gone)), sum(map(freed_bytes, gone))
