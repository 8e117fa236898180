"""Room at the end of SQLite's write-ahead log, written before it is needed.

A commit that makes the log longer has its sync wait for the journal of the file system, which notes the new size; one
that writes where the file has blocks already waits for its own bytes alone. SQLite's log only becomes longer until it
is used again from its beginning, after about a thousand pages: many conversations end before that.

The room is zeros. A frame of zeros names no page, so whoever reads the log takes it for its end.
"""

from __future__ import annotations

import os
from typing import Final

PAGE_BYTES: Final = 4096
LOG_HEADER: Final = 32
FRAME_HEADER: Final = 24
FRAME_BYTES: Final = FRAME_HEADER + PAGE_BYTES

FRAMES_AT_ONCE: Final = 128
"""How much room is made, half a megabyte: enough for a dozen saves, and made in the time of two."""

ROOM_LEFT: Final = 128
"""Room is made only where the disk has so many times as much left: what is left of a full one is for saves."""

MAX_FRAMES: Final = 1000
"""Where SQLite begins anew: a log that is longer has a reader in its way, and is not made longer still."""


def make_room(path: str, identity: tuple[int, int]) -> int:
    """Make room behind the last frame of the log that is this file, unless another process did or the disk has little
    left; its size then.

    Only for who is in a write transaction and wrote nothing in it yet: nobody else writes to the log. What is made is
    synced by the commit that follows.

    Raises:
        OSError: there is none to be had. The log is as it was.
    """
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = os.fstat(file)
        end = found.st_size
        if (found.st_dev, found.st_ino) != identity or not _is_used_up(file, end):
            return end
        room = _missing(end)
        disk = os.fstatvfs(file)
        if room * ROOM_LEFT > disk.f_bavail * disk.f_frsize:
            return end
        try:
            if os.pwrite(file, bytes(room), end) == room:
                return end + room
            raise OSError("the disk is full")
        except OSError:
            os.ftruncate(file, end)
            raise
    finally:
        os.close(file)


def _missing(end: int) -> int:
    """How many bytes make the log end with whole frames of room."""
    frames = min(_frames(end) + FRAMES_AT_ONCE, MAX_FRAMES)
    return max(0, LOG_HEADER + frames * FRAME_BYTES - end)


def _is_used_up(file: int, end: int) -> bool:
    """Whether the last whole frame of the log is one that was written."""
    last = LOG_HEADER + (_frames(end) - 1) * FRAME_BYTES
    return last >= LOG_HEADER and any(os.pread(file, FRAME_HEADER, last))


def _frames(end: int) -> int:
    return (end - LOG_HEADER) // FRAME_BYTES
