"""A little space beside a store on a nearly full disk, which pruning gives up when it finds no other.

Removing history takes room too: what goes is written to a log first. So a disk without a free byte could not be
helped by pruning. On disks with room enough there is no such file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from stepkeep.errors import WRITE_FAILED, BackendUnavailable
from stepkeep.storage.urls import database_file, directory_of

T = TypeVar("T")

TIGHT_BYTES: Final = 64 * 1024 * 1024
"""With more than this free, nothing is held."""

MAX_BYTES: Final = 4 * 1024 * 1024
MIN_BYTES: Final = 64 * 1024
_SHARE: Final = 4
"""Of what is free, a fourth is held."""


class Reserve:
    """The space that is held beside one store. Whatever goes wrong with it, the store works without."""

    def __init__(self, url: str) -> None:
        self._file = _file_of(url)

    def hold(self) -> None:
        """Take some space while there is some, if there is little; give it back where there is enough."""
        if self._file is None:
            return
        with suppress(OSError):
            disk = os.statvfs(self._file.parent)
            free = disk.f_bavail * disk.f_frsize
            if free >= TIGHT_BYTES:
                self._file.unlink(missing_ok=True)
            elif free // _SHARE >= MIN_BYTES:
                self._make(min(free // _SHARE, MAX_BYTES))

    def _make(self, size: int) -> None:
        descriptor = os.open(str(self._file), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            self.release()
        finally:
            os.close(descriptor)

    def release(self) -> bool:
        """Give the space back; False if none was held."""
        if self._file is None:
            return False
        try:
            self._file.unlink()
        except OSError:
            return False
        return True

    def spend(self, work: Callable[[], T]) -> T:
        """Do work that frees space, on a full disk with the space that was held."""
        try:
            return work()
        except BackendUnavailable as exc:
            if exc.code != WRITE_FAILED or not self.release():
                raise
        try:
            return work()
        finally:
            self.hold()


def _file_of(url: str) -> Path | None:
    if (file := database_file(url)) is not None:
        return Path(f"{file.absolute()}-reserve")
    if (folder := directory_of(url)) is not None:
        return folder.absolute() / ".stepkeep" / "reserve"
    return None
