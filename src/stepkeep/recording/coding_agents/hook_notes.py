"""What the hooks of one agent leave for each other: small files in a folder of its session.

Every hook is a process of its own, and most of them must not open a store. Nothing here is ever needed: where a file
cannot be written, a thing is told twice or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256

from stepkeep.recording.coding_agents.hook_process import folder_of
from stepkeep.storage.disk import make_private_directory

MAX_TOLD = 2000
MAX_TREES = 100


def digest_of(text: str) -> str:
    """A short name for a session or a folder."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class HookNotes:
    """The notes of one session."""

    def __init__(self, environ: Mapping[str, str], session: str) -> None:
        self._state = folder_of(environ, "XDG_STATE_HOME", ".local/state")
        self._folder = f"{self._state}/agents/{digest_of(session)}"

    # --- what the person has to know

    def tell(self, text: str) -> None:
        """Let the next hook that answers tell the person."""
        _append(self._folder, "untold", text)

    def untold(self) -> str:
        """What nobody told yet; it counts as told from now on."""
        path = f"{self._folder}/untold"
        try:
            os.rename(path, f"{path}.{os.getpid()}")  # noqa: PTH104
        except OSError:
            return ""
        text = _read(f"{path}.{os.getpid()}")
        with suppress(OSError):
            os.unlink(f"{path}.{os.getpid()}")  # noqa: PTH108
        return "\n".join(dict.fromkeys(text.splitlines()))[:MAX_TOLD]

    def news(self, subject: str, names: Iterable[str]) -> list[str]:
        """Those of the names that were never told about a subject, in whichever session; they count as told now."""
        folder, file = f"{self._state}/told", digest_of(subject)
        known = set(_read(f"{folder}/{file}").splitlines())
        found = [name for name in names if name not in known and "\n" not in name]
        if found:
            _append(folder, file, "\n".join(found))
        return found

    # --- which trees have a capture

    def has_captured(self, root: str) -> bool:
        """Whether this session has a capture of a tree."""
        return os.path.exists(f"{self._folder}/{digest_of(root)}")  # noqa: PTH110

    def captured(self, root: str) -> None:
        if not self.has_captured(root):
            _append(self._folder, digest_of(root), root)

    def forget(self) -> None:
        """The session has ended."""
        with suppress(OSError):
            for name in os.listdir(self._folder)[:MAX_TREES]:  # noqa: PTH208
                os.unlink(f"{self._folder}/{name}")  # noqa: PTH108
            os.rmdir(self._folder)  # noqa: PTH106


def _append(folder: str, name: str, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(OSError, ValueError):
        make_private_directory(folder)
        descriptor = os.open(f"{folder}/{name}", flags, 0o600)
        try:
            os.write(descriptor, text.encode("utf-8", "replace") + b"\n")
        finally:
            os.close(descriptor)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read(1 << 20)
    except (OSError, ValueError):
        return ""
