"""The space that a store takes: giving it back, storing old history smaller, and a ballast file for full disks.

Everything here works in steps so small that savers never wait long. A sweep frees what nothing needs any more inside
the store; `reclaim` gives the freed space back to the file system.

Removing history takes room too: what goes is written to a log first. So a disk without a free byte could not be helped
by pruning. On a nearly full disk a ballast file holds some space, which pruning gives up when it finds no other. On
disks with room enough there is no such file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from stepkeep.engine import Engine
from stepkeep.errors import WRITE_FAILED, BackendUnavailable, InvalidInput
from stepkeep.model import MAX_SEQ
from stepkeep.storage.port import Backend, Compresses, KeepsFiles, Usage

T = TypeVar("T")

MIB: Final = 1024 * 1024

SWEEP_STEP: Final = 200
"""How many bodies, blobs and annotations one transaction of a sweep removes at most."""

MAX_STEP_BYTES: Final = 4 * MIB
"""How much is given back at once."""

MAX_PAUSE_SECONDS: Final = 0.1

HOUR_US: Final = 3_600_000_000
COMPRESS_STEP: Final = 20
"""How many checkpoints are compressed between two questions whether to stop."""

TIGHT_BYTES: Final = 64 * MIB
"""With more than this free on the disk, there is no ballast file."""

MAX_BALLAST_BYTES: Final = 4 * MIB
MIN_BALLAST_BYTES: Final = 64 * 1024
_BALLAST: Final = ("-ballast", "ballast")
_BALLAST_SHARE: Final = 4
"""The ballast takes a fourth of what is free."""


def most_bytes(engine: Engine, uid: str, limit: int | None) -> int:
    """No less than a session takes. It is counted only where the whole store takes more than `limit`."""
    if limit is None:
        return 0
    size = database_bytes(engine.backend.url)
    if size is not None and size <= limit:
        return size
    usage = engine.backend.usage(uid)
    if isinstance(engine.backend, KeepsFiles):
        return sum(engine.backend.file_bytes(uid).values()) + usage.blob_bytes
    return usage.body_bytes + usage.blob_bytes


def counted_bytes(backend: Backend, usage: Usage) -> int:
    """What a store takes, as its budget and its limit count it.

    A server uses the room of what was removed again and never gives it back, so there what is stored counts.
    """
    has_files = backend.url.startswith("sqlite:") or isinstance(backend, KeepsFiles)
    return usage.store_bytes if has_files else usage.body_bytes + usage.blob_bytes


def database_bytes(url: str, *, room_for_log: int = 0) -> int | None:
    """What the database file of a store takes, with its log; None for a store that is not one file.

    With room for a log, what it takes when the log is full and moves into the database.
    """
    kind, _, path = url.partition(":")
    if kind != "sqlite":
        return None
    log = _size(f"{path}-wal")
    return _size(path) + (2 * max(log, room_for_log) if room_for_log else log)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


# --- giving space back -----------------------------------------------------------------------------------------


def reclaim(engine: Engine, *, max_bytes: int = MAX_SEQ, step_bytes: int = MAX_STEP_BYTES) -> int:
    """Give freed space back to the file system, all or at most about `max_bytes`; the bytes that were given back.

    Each step is a transaction of its own. Repeatable, and safe while others save.
    """
    for name, value in (("max_bytes", max_bytes), ("step_bytes", step_bytes)):
        if value < 1:
            raise InvalidInput(f"{name} must be at least 1, not {value}", code="invalid_setting")
    given_back = 0
    while given_back < max_bytes:
        step = min(step_bytes, max_bytes - given_back)
        freed = in_turn(engine, lambda step=step: engine.backend.reclaim(step))  # type: ignore[misc]
        if freed <= 0:
            break
        given_back += freed
    return given_back


def sweep(engine: Engine, session: str | None = None, *, annotations_before_us: int | None = None) -> int:
    """Remove all bodies and blobs that nothing needs, of one session or of the store; the stored bytes that went.

    Annotations older than the given time whose checkpoint never came go too.
    """
    freed = 0
    has_more = True
    while has_more:
        swept = in_turn(
            engine,
            lambda: engine.backend.sweep(
                session=session, limit=SWEEP_STEP, annotations_before_us=annotations_before_us
            ),
        )
        freed += swept.stored_bytes
        has_more = swept.has_more
    return freed


def in_turn(engine: Engine, write: Callable[[], T]) -> T:
    """Do one write that frees space, then leave the store to others for as long as it took.

    Where all wait for one lock, who waits looks again only now and then: a loop of writes without a pause would keep it
    out.
    """
    started = time.monotonic()
    result = spend_ballast(engine.backend.url, write)
    if engine.backend.capabilities.has_one_writer:
        time.sleep(min(time.monotonic() - started, MAX_PAUSE_SECONDS))
    return result


# --- compressing -----------------------------------------------------------------------------------------------


def count_compressible(engine: Engine, *, after_hours: int, now_us: int, session: str | None = None) -> int:
    """How many checkpoints of a session, or of all, are old enough to be compressed. Reads only."""
    backend = engine.backend
    if not isinstance(backend, Compresses):
        return 0
    return backend.compressible(_before_us(after_hours, now_us), session=session)


def compress_history(
    engine: Engine,
    *,
    after_hours: int,
    now_us: int,
    session: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """Compress what was saved at least so long ago, in a session or in all; how many checkpoints were.

    It may be stopped anywhere, also by a crash: what is left is done the next time.
    """
    backend = engine.backend
    done = 0
    while isinstance(backend, Compresses) and not should_stop():
        count = backend.compress(_before_us(after_hours, now_us), session=session, limit=COMPRESS_STEP)
        done += count
        if count < COMPRESS_STEP:
            break
    return done


def _before_us(after_hours: int, now_us: int) -> int:
    """A checkpoint that is exactly as old as that counts as old enough."""
    return now_us - after_hours * HOUR_US + 1


# --- ballast ---------------------------------------------------------------------------------------------------


def hold_ballast(url: str) -> None:
    """Take some space beside a store while there is some, if there is little; give it back where there is enough.

    Whatever goes wrong with the ballast file, the store works without.
    """
    file = beside_store(url, *_BALLAST)
    if file is None:
        return
    with suppress(OSError):
        free = free_bytes(os.path.dirname(file))
        if free >= TIGHT_BYTES:
            os.unlink(file)
        elif free // _BALLAST_SHARE >= MIN_BALLAST_BYTES:
            _make(file, min(free // _BALLAST_SHARE, MAX_BALLAST_BYTES))


def spend_ballast(url: str, work: Callable[[], T]) -> T:
    """Do work that frees space, on a full disk with the space that was held."""
    try:
        return work()
    except BackendUnavailable as exc:
        if exc.code != WRITE_FAILED or not _release(beside_store(url, *_BALLAST)):
            raise
    try:
        return work()
    finally:
        hold_ballast(url)


def _release(file: str | None) -> bool:
    """Give the space back; False if none was held."""
    try:
        if file is not None:
            os.unlink(file)
    except OSError:
        return False
    return file is not None


def beside_store(url: str, ending: str, name: str) -> str | None:
    """Where a file of ours lies beside a database, or in the sidecar of a folder; None for a store without files.

    The URL is that of an open store, whose path is absolute.
    """
    kind, _, path = url.partition(":")
    if kind == "sqlite":
        return path + ending
    return f"{path.partition('?')[0]}/.stepkeep/{name}" if kind == "files" else None


def free_bytes(folder: str | os.PathLike[str]) -> int:
    """What a user may still write to the disk that a folder is on."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def store_free_bytes(url: str) -> int | None:
    """What the disk of an open store has left; None where that cannot be told, or there is no disk."""
    beside = beside_store(url, "", "")
    try:
        return None if beside is None else free_bytes(os.path.dirname(beside))
    except OSError:
        return None


def _make(file: str, size: int) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.unlink(file)
    finally:
        os.close(descriptor)
