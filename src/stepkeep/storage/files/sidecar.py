"""The database beside the documents: opened, and set aside and made anew when it is damaged."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from stepkeep.codec.readable import Layout
from stepkeep.errors import BackendUnavailable, Corrupt, InvalidInput
from stepkeep.model import new_uid
from stepkeep.storage.disk import make_private_directory
from stepkeep.storage.files.index import TABLES
from stepkeep.storage.files.layouts import INDEX, INTENT, NAMES, REBUILD, SIDECAR
from stepkeep.storage.sqlite import SqliteBackend

log = logging.getLogger("stepkeep.storage")


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
    """Keep the damaged database for whoever wants to save what only it has: notes, events, blobs."""
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
