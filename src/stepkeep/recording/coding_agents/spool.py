"""Events of agents that are not saved yet: one durable file each, in a folder for each store.

A hook that cannot save leaves its event here, and the next one brings it in, in the order of the names. Whoever is at
work on an event holds the lock of its file: one that nobody holds was left behind. The name of a file is the key of its
save, so that bringing it in twice saves it once.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from stepkeep import typed
from stepkeep.errors import Corrupt
from stepkeep.recording.coding_agents.hook_events import HookEvent
from stepkeep.recording.coding_agents.hook_notes import digest_of
from stepkeep.recording.coding_agents.hook_process import folder_of
from stepkeep.storage.disk import make_private_directory, sync_directory

if TYPE_CHECKING:
    from stepkeep.codec.encryption import Cipher

FindCipher: TypeAlias = "Callable[[], Cipher | None]"
"""Finds what encrypts the events that wait for a store; None if that is not encrypted. Raises `OSError` where it is,
and there is no key: then nothing may be written."""

OWN_SECONDS: Final = 2.0
"""How long a hook that needs the events before its own waits for them, where other processes are saving them."""

STUCK_SECONDS: Final = 90
"""An event that is being saved for longer is taken over by the next hook."""

MAX_BROUGHT_IN: Final = 100
"""How many events one hook brings in: an agent waits for it."""

MAX_KEPT: Final = 2000
"""A store that is away for days must not fill the disk."""

_ENDING: Final = ".json"
_KEY_RECORD: Final = "keys"
_PLACE: Final = b"stepkeep spool"
_NEW: Final = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


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
    """The events that wait for one store; those for an encrypted one are encrypted too."""

    def __init__(self, folder: str, find_cipher: FindCipher = lambda: None) -> None:
        self._folder = folder
        self._find_cipher = find_cipher

    def key_record(self) -> str | None:
        """What was noted of the keys of the store, for when it cannot be opened; None if it is not encrypted, as far as
        is known, and empty where it is and nobody could open it yet."""
        try:
            with open(f"{self._folder}/{_KEY_RECORD}", encoding="utf-8") as file:  # noqa: PTH123
                return file.read()
        except (OSError, UnicodeDecodeError):
            return None

    def note_key_record(self, text: str) -> None:
        """Note that the store is encrypted: an event is never written in clear from now on."""
        if self.key_record() != text:
            make_private_directory(self._folder)
            temporary = f"{self._folder}/.{_KEY_RECORD}-{os.urandom(8).hex()}"
            descriptor = os.open(temporary, _NEW, 0o600)
            try:
                os.write(descriptor, text.encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, f"{self._folder}/{_KEY_RECORD}")  # noqa: PTH105

    def put(self, event: HookEvent) -> Spooled:
        """Keep an event durably. Raises `OSError` when that is not possible."""
        content = self._content_in(event)
        make_private_directory(self._folder)
        if len(os.listdir(self._folder)) >= MAX_KEPT:  # noqa: PTH208
            raise OSError(f"{self._folder} is full")
        name = f"{time.time_ns() // 1000:020d}-{os.urandom(8).hex()}-{digest_of(event.session)}"
        path, temporary = f"{self._folder}/{name}{_ENDING}", f"{self._folder}/.{name}"
        descriptor = os.open(temporary, _NEW, 0o600)
        try:
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

    def _content_in(self, event: HookEvent) -> bytes:
        content, cipher = msgspec.json.encode(event), self._find_cipher()
        return content if cipher is None else cipher.encrypt(content, _PLACE)

    def left_behind(
        self, own: str, *, until: Spooled | None = None, wait_seconds: float = 0.0
    ) -> tuple[list[Spooled], bool]:
        """The events up to one that nobody is at work on, oldest first, locked; and whether one of the session `own`
        is left out, because another process is saving it even after a wait. Those after it are left out too.
        """
        before = [name for name in _names(self._folder) if until is None or f"spool:{name}" < until.key]
        deadline, found, is_busy = time.monotonic() + wait_seconds, list[Spooled](), False
        for name in before[:MAX_BROUGHT_IN]:
            is_own = name.endswith(f"-{digest_of(own)}{_ENDING}")
            if is_own and is_busy:
                continue
            taken, is_held = _take(f"{self._folder}/{name}", deadline if is_own else 0.0, self._find_cipher)
            if taken is not None:
                found.append(taken)
            is_busy |= is_own and is_held
        return found, is_busy


def spool_root(environ: Mapping[str, str]) -> str:
    """The folder with the spools of all stores."""
    return f"{folder_of(environ, 'XDG_STATE_HOME', '.local/state')}/spool"


def is_being_saved(folder: str, session: str, *, until: float = 0.0) -> bool:
    """Whether other processes are still saving events of a session at that time, in any spool below a folder."""
    try:
        stores = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return False
    ending = f"-{digest_of(session)}{_ENDING}"
    paths = [f"{folder}/{store}/{name}" for store in stores for name in _names(f"{folder}/{store}")]
    return any(_is_held(path, until) for path in paths if path.endswith(ending))


def _names(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(_ENDING))  # noqa: PTH208
    except OSError:
        return []


def _take(path: str, until: float, find_cipher: FindCipher) -> tuple[Spooled | None, bool]:
    """The event in a file, locked; None with whether another process holds it even then."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None, False  # it was saved meanwhile
    is_held = False
    try:
        is_held = not _locked(descriptor, until) and not _is_stuck(path)
        if not is_held and os.path.exists(path):  # noqa: PTH110
            content = _content(descriptor)
            if not content.startswith(b"{"):
                cipher = find_cipher()
                if cipher is None:
                    raise Corrupt("an event is encrypted, and its store is not")
                content = cipher.decrypt(content, _PLACE)
            return Spooled(path, typed.from_json(content, HookEvent), descriptor), False
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, Corrupt):
        _set_aside(path)
    os.close(descriptor)
    return None, is_held


def _is_held(path: str, until: float) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not _locked(descriptor, until)
    finally:
        os.close(descriptor)


def _is_stuck(path: str) -> bool:
    """Whether an event was put there so long ago that who holds it does not come to an end."""
    began = path.rpartition("/")[2].partition("-")[0]
    return began.isdigit() and time.time() - int(began) / 1e6 > STUCK_SECONDS


def _set_aside(path: str) -> None:
    with suppress(OSError):
        os.rename(path, f"{path}.unreadable")  # noqa: PTH104


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _locked(descriptor: int, until: float) -> bool:
    """Take the lock, and wait for it until then; whether it was taken."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
            continue
        return True
