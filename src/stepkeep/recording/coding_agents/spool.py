"""Events of agents that are not saved yet: one durable file each, in a folder for each store.

A hook that cannot save leaves its event here, and the next one brings it in, in the order of the names. Whoever is at
work on an event holds the lock of its file: one that nobody holds was left behind. The name of a file is the key of its
save, so that bringing it in twice saves it once.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import Final

import msgspec

from stepkeep import typed
from stepkeep.recording.coding_agents.hook_events import HookEvent
from stepkeep.storage.disk import make_private_directory, sync_directory

OWN_SECONDS: Final = 2.0
"""How long an event waits for the one before it in its own session, which another process is saving."""

MAX_BROUGHT_IN: Final = 100
"""How many events one hook brings in: an agent waits for it."""

MAX_KEPT: Final = 2000
"""A store that is away for days must not fill the disk."""

_ENDING: Final = ".json"


class Spooled:
    """An event in the spool, locked by this process and by those that are forked from it."""

    def __init__(self, path: str, event: HookEvent, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self.event = event

    @property
    def key(self) -> str:
        return f"spool:{os.path.basename(self._path)}"  # noqa: PTH119

    def done(self) -> None:
        """The event is saved. A file that cannot be removed is brought in again, and found saved."""
        with suppress(OSError):
            os.unlink(self._path)  # noqa: PTH108
        self.leave()

    def set_aside(self) -> None:
        """The event can never be saved: it stays for whoever wants to look at it."""
        _set_aside(self._path)
        self.leave()

    def leave(self) -> None:
        """Give the event to whoever comes next."""
        with suppress(OSError):
            os.close(self._descriptor)


class Spool:
    """The events that wait for one store."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def put(self, event: HookEvent) -> Spooled:
        """Keep an event durably. Raises `OSError` when that is not possible."""
        make_private_directory(self._folder)
        if len(os.listdir(self._folder)) >= MAX_KEPT:  # noqa: PTH208
            raise OSError(f"{self._folder} is full")
        name = f"{time.time_ns() // 1000:020d}-{os.urandom(8).hex()}"
        path, temporary = f"{self._folder}/{name}{_ENDING}", f"{self._folder}/.{name}"
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, 0o600)
        try:
            content = msgspec.json.encode(event)
            if os.write(descriptor, content) != len(content):
                raise OSError("the disk took only a part of it")
            os.fsync(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.rename(temporary, path)  # noqa: PTH104
            sync_directory(self._folder)
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            raise
        return Spooled(path, event, descriptor)

    def left_behind(self, own: str, *, until: Spooled | None = None) -> list[Spooled]:
        """The events up to one that nobody is at work on, oldest first, locked.

        Those of the session `own` are waited for.
        """
        try:
            names = sorted(name for name in os.listdir(self._folder) if name.endswith(_ENDING))  # noqa: PTH208
        except OSError:
            return []
        before = names if until is None else [name for name in names if f"spool:{name}" < until.key]
        deadline = time.monotonic() + OWN_SECONDS
        found = (self._take(f"{self._folder}/{name}", own, deadline) for name in before[:MAX_BROUGHT_IN])
        return [each for each in found if each is not None]

    def _take(self, path: str, own: str, until: float) -> Spooled | None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None  # it was saved meanwhile
        try:
            event = typed.from_json(_content(descriptor), HookEvent)
            if _locked(descriptor, until if event.session == own else 0.0, path):
                return Spooled(path, event, descriptor)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            _set_aside(path)
        os.close(descriptor)
        return None


def _set_aside(path: str) -> None:
    with suppress(OSError):
        os.rename(path, f"{path}.unreadable")  # noqa: PTH104


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _locked(descriptor: int, until: float, path: str) -> bool:
    """Take the lock, and wait for it until then; an event of one's own is taken without it after that.

    Whoever holds it too long then finds its event saved.
    """
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(0.02)
                continue
            return until > 0
        return os.path.exists(path)  # noqa: PTH110
