"""Reading one file so that what is returned is what it held at one moment, or not at all."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from stepkeep.workspace.scan import FILE_FLAGS, opened_parent, status_of

TRIES: Final = 3


class NotRead(Exception):
    """Why a file was not read, in a few words."""


class Vanished(NotRead):
    """The file is not there any more."""


def read_file(root: int, path: str, size: int) -> tuple[bytes, os.stat_result]:
    """The content of a file below the root, and its status then; `size` is what the scan saw.

    Raises:
        NotRead: it cannot be read, or changes all the time. `Vanished`: it is gone.
    """
    try:
        with opened_parent(root, path) as (directory, name):
            for _ in range(TRIES):
                read = _read(directory, name, size)
                if read is not None:
                    return read
    except FileNotFoundError as exc:
        raise Vanished("it vanished") from exc
    except OSError as exc:
        raise NotRead(f"unreadable: {exc.strerror}") from exc
    raise NotRead("changes while it is read")


def _read(directory: int, name: str, size: int) -> tuple[bytes, os.stat_result] | None:
    descriptor = os.open(name, FILE_FLAGS, dir_fd=directory)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise NotRead("it became something else")
        if before.st_size > max(2 * size, size + 1_000_000):
            raise NotRead("changes while it is read")  # the caps were checked for its size a moment ago
        content = _at_most(file.fileno(), before.st_size + 1)
        after = os.fstat(descriptor)
    is_still = _signature(before) == _signature(after) and len(content) == after.st_size
    return (content, after) if is_still else None


def _at_most(descriptor: int, limit: int) -> bytes:
    pieces, size = [], 0
    while size < limit and (piece := os.read(descriptor, min(limit - size, 1 << 24))):
        pieces.append(piece)
        size += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode


def read_link(root: int, path: str) -> str:
    """Where a link points to, as it is written there."""
    try:
        with opened_parent(root, path) as (directory, name):
            return os.readlink(name, dir_fd=directory)
    except FileNotFoundError as exc:
        raise Vanished("it vanished") from exc
    except OSError as exc:
        raise NotRead("it became something else") from exc


def open_databases() -> frozenset[tuple[int, int]]:
    """The files this process has open for reading and writing, as inode and device.

    Whoever opens such a file again and closes it takes away the locks this process holds on it: a database in use
    would lose its protection. So they are not read.
    """
    found = set()
    for each in Path("/dev/fd").iterdir():
        try:
            status = os.fstat(int(each.name))
            is_both = fcntl.fcntl(int(each.name), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        except OSError:
            continue
        if is_both and stat.S_ISREG(status.st_mode):
            found.add((status.st_ino, status.st_dev))
    return frozenset(found)


def is_among(files: frozenset[tuple[int, int]], root: int, path: str, inode: int) -> bool:
    """Whether a file below the root, whose inode is known, is one of these."""
    if not any(each[0] == inode for each in files):
        return False
    try:
        status = status_of(root, path)
    except OSError:
        return False
    return (status.st_ino, status.st_dev) in files
