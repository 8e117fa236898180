"""The database beside the documents: which file holds which checkpoint, and which files are to go.

It is opened here, and set aside and made anew when it is damaged. Every change of files is announced by a number,
which the commit repeats: a number that no commit repeats tells that a writer was stopped on its way.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import apsw
import msgspec

from stepkeep.codec.integrity import open_header
from stepkeep.codec.readable import Layout
from stepkeep.errors import BackendUnavailable, Corrupt, InvalidInput, StepkeepError
from stepkeep.logs import Log
from stepkeep.model import Header, new_uid
from stepkeep.storage.disk import make_private_directory
from stepkeep.storage.files.durable_files import Fingerprint
from stepkeep.storage.files.layouts import INDEX, INTENT, NAMES, REBUILD, SIDECAR
from stepkeep.storage.sql.connection import Conditions, Connection, Row, parts
from stepkeep.storage.sqlite import SqliteBackend

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

_BLOCK_BYTES: Final = 4096
"""What file systems give to a file, at least and at a time."""

_ON_DISK: Final = f"(size + {_BLOCK_BYTES - 1}) / {_BLOCK_BYTES} * {_BLOCK_BYTES}"
_COLUMNS: Final = "file, checkpoint, session, size, mtime_ns, problem"
_OF_DOCUMENT: Final = ", ".join(f"d.{name}" for name in _COLUMNS.split(", "))


class DocumentEntry(msgspec.Struct, frozen=True, kw_only=True):
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
    is_secure: bool


def _entry(row: Row) -> DocumentEntry:
    file, checkpoint, session, size, mtime_ns, problem = row
    return DocumentEntry(
        file=file,
        checkpoint=checkpoint,
        session=session,
        fingerprint=Fingerprint(size, mtime_ns),
        problem=problem,
    )


def entries(tx: Connection) -> dict[str, DocumentEntry]:
    """Every file that was looked at."""
    return {row[0]: _entry(row) for row in tx.all(f"SELECT {_COLUMNS} FROM documents")}


def of_checkpoints(tx: Connection, checkpoints: Sequence[str]) -> dict[str, DocumentEntry]:
    """The files of these checkpoints."""
    found: dict[str, DocumentEntry] = {}
    for part in parts(checkpoints):
        where = Conditions()
        where.among("checkpoint", part)
        rows = tx.all(f"SELECT {_COLUMNS} FROM documents{where}", where.values)
        found |= {row[1]: _entry(row) for row in rows}
    return found


def of_checkpoint(tx: Connection, checkpoint: str) -> DocumentEntry | None:
    return of_checkpoints(tx, [checkpoint]).get(checkpoint)


def of_session(tx: Connection, uid: str) -> list[DocumentEntry]:
    return [_entry(row) for row in tx.all(f"SELECT {_COLUMNS} FROM documents WHERE session = ?", (uid,))]


def sessions(tx: Connection) -> list[str]:
    """The uid of every session that has a document."""
    return [row[0] for row in tx.all("SELECT DISTINCT session FROM documents WHERE session IS NOT NULL")]


_LAST_IN: Final = "SELECT file FROM documents WHERE file > ? AND file < ? ORDER BY file DESC LIMIT 1"


def _below(location: str) -> tuple[str, str]:
    """What the files in a folder and below it lie between."""
    return f"{location}/", f"{location}0"  # "0" comes right after "/"


def has_any_in(tx: Connection, location: str) -> bool:
    """Whether a file was looked at in a folder or below it."""
    return tx.one(_LAST_IN, _below(location)) is not None


def problems(tx: Connection) -> list[DocumentEntry]:
    """Files that look like checkpoints of ours and are not."""
    found = tx.all(f"SELECT {_COLUMNS} FROM documents WHERE problem IS NOT NULL ORDER BY file")
    return [_entry(row) for row in found]


def put(tx: Connection, entry: DocumentEntry) -> None:
    """Remember a file; what was known of it, or of another file of its checkpoint, is replaced."""
    if entry.checkpoint is not None:
        tx.run("DELETE FROM leftovers WHERE file = ?", (entry.file,))  # what holds a checkpoint must not go
    tx.run(
        f"INSERT OR REPLACE INTO documents ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
        (entry.file, entry.checkpoint, entry.session, *entry.fingerprint, entry.problem),
    )


def moved(tx: Connection, file: str, to: str, *, seen: Fingerprint, now: Fingerprint) -> None:
    """Remember that what a file held is in another one now; what was known of that one is replaced.

    A file that was not `seen` as it was written is doubted under its new name too.
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
    (size,) = tx.one(f"SELECT coalesce(sum({_ON_DISK}), 0) FROM documents") or (0,)
    return int(size)


def bytes_of_session(tx: Connection, uid: str) -> dict[str, int]:
    """What the file of each checkpoint takes of the disk."""
    sql = f"SELECT checkpoint, {_ON_DISK} FROM documents WHERE session = ? AND checkpoint IS NOT NULL"
    return {checkpoint: int(size) for checkpoint, size in tx.all(sql, (uid,))}


# --- files that are to go --------------------------------------------------------------------------------------


def leftovers(tx: Connection) -> list[Leftover]:
    found = tx.all("SELECT file, session, is_secure FROM leftovers ORDER BY file")
    return [Leftover(file=file, session=session, is_secure=bool(secure)) for file, session, secure in found]


def leave(tx: Connection, files: Iterable[str], session: str, *, is_secure: bool) -> None:
    tx.run_many(
        "INSERT INTO leftovers (file, session, is_secure) VALUES (?, ?, ?) ON CONFLICT (file)"
        " DO UPDATE SET is_secure = max(is_secure, excluded.is_secure)",
        [(file, session, int(is_secure)) for file in files],
    )


def cleared(tx: Connection, files: Iterable[str]) -> None:
    tx.run_many("DELETE FROM leftovers WHERE file = ?", [(file,) for file in files])


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


def header_of(tx: Connection, checkpoint: str | None) -> bytes | None:
    row = tx.one("SELECT header FROM checkpoints WHERE id = ?", (checkpoint,))
    return None if row is None else bytes(row[0])


@lru_cache(maxsize=16)
def opened(raw: bytes) -> Header:
    """The header in stored bytes, checked; asked for when it is saved, and again when the next save archives it."""
    return open_header(raw)


def header_and_last(tx: Connection, file: str, location: str) -> tuple[Header | None, str | None]:
    """The header of the checkpoint that a file holds, if it is intact, and the last name that is known in a folder."""
    held = "SELECT header FROM checkpoints WHERE id = (SELECT checkpoint FROM documents WHERE file = ?)"
    raw, last = tx.one(f"SELECT ({held}), ({_LAST_IN})", (file, *_below(location))) or (None, None)
    header = None
    with suppress(StepkeepError):
        header = opened(raw) if isinstance(raw, bytes) else None
    return header, None if last is None else last[len(location) + 1 :]


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


def before(tx: Connection, sid: int, seq: int) -> DocumentEntry | None:
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


def plain_before(tx: Connection, time_us: int, session: str | None, limit: int) -> list[DocumentEntry]:
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


def hidden_bodies(tx: Connection, sid: int, checkpoints: Sequence[str]) -> list[tuple[str, str, bool]]:
    """(checkpoint, name, is redundant delta) of the bodies of these checkpoints that are kept for others."""
    found: list[tuple[str, str, bool]] = []
    for part in parts(checkpoints):
        where = Conditions(("sid = ?", sid))
        where.among("checkpoint", part)
        rows = tx.all(f"SELECT checkpoint, name, is_redundant FROM bodies{where}", where.values)
        found += [(row[0], row[1], bool(row[2])) for row in rows]
    return found


def set_data(tx: Connection, sid: int, checkpoint: str, name: str, is_redundant: bool, data: bytes) -> None:
    """Keep the bytes of a body in the sidecar, or only its record when they are empty."""
    tx.run(
        "UPDATE bodies SET data = ? WHERE sid = ? AND checkpoint = ? AND name = ? AND is_redundant = ?",
        (data, sid, checkpoint, name, int(is_redundant)),
    )


log = Log("stepkeep.storage")


def open_sidecar(root: Path, *, clock: Callable[[], int], busy_seconds: float) -> SqliteBackend:
    """Open the sidecar of the store at `root`; one that is damaged is set aside, and a new one takes its place."""
    try:
        return _open_sidecar(root, clock=clock, busy_seconds=busy_seconds)
    except OSError as exc:
        raise BackendUnavailable(
            f"{root} cannot be used: {exc.strerror or exc}", code="store_not_writable", retryable=False
        ) from exc


def _open_sidecar(root: Path, *, clock: Callable[[], int], busy_seconds: float) -> SqliteBackend:
    if root.exists() and not root.is_dir():
        raise InvalidInput(f"{root} is a file: name a directory", code="not_a_store")
    folder = root / SIDECAR
    if folder.is_symlink():
        raise InvalidInput(f"{folder} is a symbolic link: not followed", code="not_a_store")

    def attempt() -> SqliteBackend:
        return SqliteBackend(folder / INDEX, clock=clock, busy_seconds=busy_seconds, tables=TABLES)

    make_private_directory(folder)
    if not (folder / REBUILD).exists():
        try:
            return attempt()
        except (Corrupt, InvalidInput) as exc:
            log.warning("the index of %s is damaged: %s", root, exc)
    with _alone(folder):
        if not (folder / REBUILD).exists():
            with suppress(Corrupt, InvalidInput):
                return attempt()  # another process was faster
        _set_aside(folder)
        (folder / REBUILD).unlink(missing_ok=True)
        return attempt()


def _set_aside(folder: Path) -> None:
    """Keep the damaged database for whoever wants to save what only it has: annotations, events, blobs."""
    name = f"damaged-{new_uid()}.db"
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            (folder / f"{INDEX}{suffix}").rename(folder / f"{name}{suffix}")
    log.warning("the damaged index is kept as %s, and a new one is made from the documents", folder / name)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def note_damage(root: Path) -> Iterator[None]:
    """Remember that the sidecar turned out to be damaged, so that the next opening makes a new one."""
    try:
        yield
    except Corrupt as exc:
        if isinstance(exc.__cause__, apsw.CorruptError | apsw.NotADBError):
            with suppress(OSError):
                (root / SIDECAR / REBUILD).touch(mode=0o600)
        raise


def detect_layout(root: Path) -> Layout:
    """The layout that the files at `root` have; `run` where there are none."""
    if (root / NAMES[Layout.WORKFLOW].top).is_dir():
        return Layout.WORKFLOW
    phases = NAMES[Layout.PHASE]
    with suppress(OSError):
        if any(phases.is_history(file.name) for file in (root / phases.top).iterdir()):
            return Layout.PHASE
    return Layout.RUN


# --- announcing changes of files: a number in a file, which the commit repeats in the sidecar ------------------


def announce(root: Path, number: str) -> None:
    """Write the number down before the first document is written.

    Not synced: it is for other processes that live on when this one is killed. After a loss of power the next
    opening compares all names anyway.
    """
    path = root / SIDECAR / INTENT
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, number.rjust(20).encode(), 0)
    finally:
        os.close(descriptor)


def announced(root: Path) -> str:
    """The number that was written last; if no commit repeats it, a writer was stopped on its way."""
    try:
        text = (root / SIDECAR / INTENT).read_text("ascii", errors="replace").strip()
    except FileNotFoundError:
        return "0"
    return text if text.isdecimal() else "0"
