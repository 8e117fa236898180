"""Where the key of an encrypted store comes from: a file, a command, or the environment itself.

Only the environment names it, never a configuration file: that of a folder may be anybody's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from stepkeep.config.settings import KEY_VARIABLES
from stepkeep.errors import BackendUnavailable, InvalidInput

KEY_FILE, KEY_COMMAND, KEY = KEY_VARIABLES

COMMAND_SECONDS: Final = 5.0
"""How long a command may take to print a key: hooks of agents wait for it."""

_MAX_KEY_BYTES: Final = 64 << 10


def key_of(environ: Mapping[str, str]) -> str | bytes | None:
    """The key that the environment names, by the first of its three variables that is set; None if none is.

    Raises:
        InvalidInput: the file cannot be used (`key_missing`).
        BackendUnavailable: the command failed (`key_unavailable`).
    """
    if name := environ.get(KEY_FILE):
        return read_key_file(os.path.expanduser(name))  # noqa: PTH111
    if command := environ.get(KEY_COMMAND):
        return key_from_command(command)
    return environ.get(KEY) or None


def read_key_file(path: str | os.PathLike[str]) -> bytes:
    """The key in a file; the end of a line is no part of it."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            content = file.read(_MAX_KEY_BYTES)
    except OSError as exc:
        raise InvalidInput(f"the key file {path} cannot be read: {exc.strerror}", code="key_missing") from exc
    return _stripped(content, f"the key file {path}")


def key_from_command(command: str) -> bytes:
    """What a command prints. It is split into words as a shell does, and no shell is started."""
    import shlex

    from stepkeep.processes.child import ChildCommand, run

    try:
        ended = run(ChildCommand(words=tuple(shlex.split(command))), timeout_seconds=COMMAND_SECONDS)
    except (OSError, ValueError, IndexError) as exc:
        raise BackendUnavailable(
            f"the command for the key cannot be run: {exc}", code="key_unavailable"
        ) from exc
    if ended.exit_code != 0 or ended.is_timed_out:
        why = "took too long" if ended.is_timed_out else f"ended with exit code {ended.exit_code}"
        raise BackendUnavailable(f"the command for the key {why}", code="key_unavailable")
    return _stripped(ended.stdout.head, "what the command for the key printed")


def _stripped(content: bytes, what: str) -> bytes:
    stripped = content.rstrip(b"\r\n")
    if not stripped:
        raise InvalidInput(f"{what} is empty", code="key_missing")
    return stripped


def new_key_file(path: str | os.PathLike[str]) -> bytes:
    """A key of 32 random bytes, written as a line of text into a new file that only its owner may read, durably."""
    from base64 import b64encode
    from pathlib import Path

    from stepkeep.storage.disk import file_errors, sync_directory

    place, key = Path(path).expanduser().absolute(), b64encode(os.urandom(32))
    with file_errors(place, code="key_unavailable"):
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError as exc:
            raise InvalidInput(f"{place} exists: it is not replaced", code="file_exists") from exc
        with os.fdopen(descriptor, "wb") as file:
            file.write(key + b"\n")
            file.flush()
            os.fsync(descriptor)
        sync_directory(place.parent)
    return key
