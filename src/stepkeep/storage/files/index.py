"""What the sidecar knows of the documents: which file holds which checkpoint, and which files are to go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from stepkeep.storage.files.writing import Fingerprint
from stepkeep.storage.port import Body
from stepkeep.storage.sql import rows
from stepkeep.storage.sql.connection import Connection, Row, marks

TABLES: Final = (
    """CREATE TABLE documents (
  file TEXT PRIMARY KEY,
  checkpoint TEXT,
  session TEXT,
  size INTEGER NOT NULL,
  mtime_ns INTEGER NOT NULL,
  problem TEXT
) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX documents_checkpoint ON documents (checkpoint) WHERE checkpoint IS NOT NULL",
    "CREATE INDEX documents_session ON documents (session)",
    """CREATE TABLE leftovers (
  file TEXT PRIMARY KEY,
  session TEXT NOT NULL,
  is_secure INTEGER NOT NULL
) WITHOUT ROWID""",
)
"""Beside the tables of every SQL store: a file that was looked at, and a file that is to be removed."""

_COLUMNS: Final = "file, checkpoint, session, size, mtime_ns, problem"
_OF_DOCUMENT: Final = ", ".join(f"d.{name}" for name in _COLUMNS.split(", "))


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A file. It holds a checkpoint, or there is a problem with it."""

    file: str
    fingerprint: Fingerprint
    checkpoint: str | None = None
    session: str | None = None
    problem: str | None = None


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is to go: its checkpoint was removed, or another one holds the same."""

    file: str
    session: str
    is_secure: bool = False


def _entry(row: Row) -> Entry:
    file, checkpoint, session, size, mtime_ns, problem = row
    return Entry(
        file=file,
        checkpoint=checkpoint,
        session=session,
        fingerprint=Fingerprint(size, mtime_ns),
        problem=problem,
    )


def entries(tx: Connection) -> dict[str, Entry]:
    """Every file that was looked at."""
    return {row[0]: _entry(row) for row in tx.all(f"SELECT {_COLUMNS} FROM documents")}


def of_checkpoints(tx: Connection, checkpoints: Sequence[str]) -> dict[str, Entry]:
    """The files of these checkpoints."""
    found: dict[str, Entry] = {}
    for start in range(0, len(checkpoints), 500):
        part = checkpoints[start : start + 500]
        sql = f"SELECT {_COLUMNS} FROM documents WHERE checkpoint IN ({marks(len(part))})"
        found |= {row[1]: _entry(row) for row in tx.all(sql, part)}
    return found


def of_session(tx: Connection, uid: str) -> list[Entry]:
    return [_entry(row) for row in tx.all(f"SELECT {_COLUMNS} FROM documents WHERE session = ?", (uid,))]


def has_any_in(tx: Connection, place: str) -> bool:
    """Whether a file was looked at in a folder or below it."""
    sql = "SELECT 1 FROM documents WHERE file > ? AND file < ? LIMIT 1"
    return tx.one(sql, (f"{place}/", f"{place}0")) is not None  # "0" comes right after "/"


def problems(tx: Connection) -> list[Entry]:
    """Files that look like checkpoints and hold none of ours."""
    found = tx.all(f"SELECT {_COLUMNS} FROM documents WHERE problem IS NOT NULL ORDER BY file")
    return [_entry(row) for row in found]


def put(tx: Connection, entry: Entry) -> None:
    """Remember a file; what was known of it, or of another file of its checkpoint, is replaced."""
    if entry.checkpoint is not None:
        tx.run("DELETE FROM documents WHERE checkpoint = ?", (entry.checkpoint,))
        tx.run("DELETE FROM leftovers WHERE file = ?", (entry.file,))  # what holds a checkpoint must not go
    forget(tx, entry.file)
    tx.run(
        f"INSERT INTO documents ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
        (entry.file, entry.checkpoint, entry.session, *entry.fingerprint, entry.problem),
    )


def moved(tx: Connection, file: str, to: str, *, seen: Fingerprint, now: Fingerprint) -> None:
    """Remember that what a file held is in another one now; what was known of that one is replaced.

    A file that was not `seen` as it was written is doubted in its new place too.
    """
    tx.run("DELETE FROM leftovers WHERE file = ?", (to,))  # what holds a checkpoint must not go
    tx.run(
        "UPDATE OR REPLACE documents SET file = ?, size = ?,"
        " mtime_ns = CASE WHEN size = ? AND mtime_ns = ? THEN ? ELSE 0 END WHERE file = ?",
        (to, now.size, *seen, now.mtime_ns, file),
    )


def doubt(tx: Connection, checkpoint: str) -> None:
    """Take no file for the document that was written until it was read again, also where its time is the same."""
    tx.run("UPDATE documents SET mtime_ns = 0 WHERE checkpoint = ?", (checkpoint,))


def forget(tx: Connection, file: str) -> None:
    tx.run("DELETE FROM documents WHERE file = ?", (file,))


def stored_bytes(tx: Connection) -> int:
    (size,) = tx.one("SELECT coalesce(sum(size), 0) FROM documents") or (0,)
    return int(size)


# --- files that are to go --------------------------------------------------------------------------------------


def leftovers(tx: Connection) -> list[Leftover]:
    found = tx.all("SELECT file, session, is_secure FROM leftovers ORDER BY file")
    return [Leftover(file=file, session=session, is_secure=bool(secure)) for file, session, secure in found]


def leave(tx: Connection, files: Iterable[Leftover]) -> None:
    tx.run_many(
        "INSERT INTO leftovers (file, session, is_secure) VALUES (?, ?, ?) ON CONFLICT (file)"
        " DO UPDATE SET is_secure = max(is_secure, excluded.is_secure)",
        [(each.file, each.session, int(each.is_secure)) for each in files],
    )


def cleared(tx: Connection) -> None:
    tx.run("DELETE FROM leftovers")


# --- facts about the store -------------------------------------------------------------------------------------


def fact(tx: Connection, name: str) -> str | None:
    row = tx.one("SELECT value FROM meta WHERE name = ?", (name,))
    return None if row is None else str(row[0])


def state_fact(tx: Connection, name: str, value: str) -> None:
    tx.run(
        "INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


# --- rows of the store that documents are made of --------------------------------------------------------------


def header_of(tx: Connection, checkpoint: str) -> bytes | None:
    row = tx.one("SELECT header FROM checkpoints WHERE id = ?", (checkpoint,))
    return None if row is None else bytes(row[0])


def header_in(tx: Connection, file: str) -> bytes | None:
    """The stored header of the checkpoint that a file holds."""
    sql = "SELECT header FROM checkpoints WHERE id = (SELECT checkpoint FROM documents WHERE file = ?)"
    row = tx.one(sql, (file,))
    return None if row is None else bytes(row[0])


def mend_header(tx: Connection, checkpoint: str, raw: bytes) -> None:
    tx.run("UPDATE checkpoints SET header = ? WHERE id = ?", (raw, checkpoint))


def newest(tx: Connection, uid: str) -> str | None:
    """The checkpoint of a session with the highest number."""
    row = tx.one(
        "SELECT c.id FROM checkpoints c JOIN sessions s ON s.sid = c.sid WHERE s.uid = ?"
        " ORDER BY c.seq DESC LIMIT 1",
        (uid,),
    )
    return None if row is None else str(row[0])


def before(tx: Connection, sid: int, seq: int) -> Entry | None:
    """The file of the newest checkpoint of a session below a number."""
    row = tx.one(
        f"SELECT {_OF_DOCUMENT} FROM checkpoints c JOIN documents d ON d.checkpoint = c.id"
        " WHERE c.sid = ? AND c.seq < ? ORDER BY c.seq DESC LIMIT 1",
        (sid, seq),
    )
    return None if row is None else _entry(row)


_PLAIN_BEFORE: Final = (
    "FROM documents d JOIN checkpoints c ON c.id = d.checkpoint"
    " WHERE c.time_us < ? AND d.file LIKE '%.json' AND (? IS NULL OR d.session = ?)"
)


def plain_before(tx: Connection, time_us: int, session: str | None, limit: int) -> list[Entry]:
    """Plain documents of checkpoints saved before a time, of one session or of all, oldest first."""
    found = tx.all(
        f"SELECT {_OF_DOCUMENT} {_PLAIN_BEFORE} ORDER BY c.id LIMIT ?", (time_us, session, session, limit)
    )
    return [_entry(row) for row in found]


def count_plain_before(tx: Connection, time_us: int, session: str | None) -> int:
    (count,) = tx.one(f"SELECT count(*) {_PLAIN_BEFORE}", (time_us, session, session)) or (0,)
    return int(count)


def is_newest(tx: Connection, sid: int, seq: int) -> bool:
    return tx.one("SELECT 1 FROM checkpoints WHERE sid = ? AND seq > ? LIMIT 1", (sid, seq)) is None


def bodies_of(tx: Connection, sid: int, checkpoint: str) -> list[Body]:
    """The body records of a checkpoint, as the sidecar has them."""
    blobs: dict[tuple[str, int], list[str]] = {}
    for name, is_spare, blob in tx.all(
        "SELECT name, is_spare, digest FROM blob_refs WHERE sid = ? AND checkpoint = ? ORDER BY digest",
        (sid, checkpoint),
    ):
        blobs.setdefault((name, is_spare), []).append(blob)
    found = tx.all(
        f"SELECT {rows.INFO_COLUMNS}, b.data FROM bodies b WHERE b.sid = ? AND b.checkpoint = ?"
        " ORDER BY b.name, b.is_spare",
        (sid, checkpoint),
    )
    return [rows.body(row, tuple(blobs.get((row[1], row[9]), ()))) for row in found]


def hidden_bodies(tx: Connection, sid: int, checkpoints: Sequence[str]) -> list[tuple[str, str, bool]]:
    """(checkpoint, name, is spare) of the bodies of these checkpoints that are kept for others."""
    found: list[tuple[str, str, bool]] = []
    for start in range(0, len(checkpoints), 500):
        part = checkpoints[start : start + 500]
        sql = f"SELECT checkpoint, name, is_spare FROM bodies WHERE sid = ? AND checkpoint IN ({marks(len(part))})"
        found += [(row[0], row[1], bool(row[2])) for row in tx.all(sql, (sid, *part))]
    return found


def set_data(tx: Connection, sid: int, checkpoint: str, name: str, is_spare: bool, data: bytes) -> None:
    """Keep the bytes of a body in the sidecar, or only its record when they are empty."""
    tx.run(
        "UPDATE bodies SET data = ? WHERE sid = ? AND checkpoint = ? AND name = ? AND is_spare = ?",
        (data, sid, checkpoint, name, int(is_spare)),
    )
