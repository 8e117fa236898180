"""Names of files: how any bytes become text and come back, and which names are never touched.

Inside the process a path is the text that `os.fsdecode` gives. In a manifest it is readable text: UTF-8 where the
bytes are UTF-8, `\\xNN` for every other byte, and a backslash doubled. Both ways are exact.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

from stepkeep.errors import Corrupt, InvalidInput

VCS_FOLDERS: Final = frozenset({".hg", ".svn", ".bzr", ".jj", ".pijul", "_darcs", "CVS"})
"""Folders that belong to a version control system: never read, never written, whatever a rule says. So does `.git`,
in any case, and also as a file."""

STAGING_PREFIX: Final = ".stepkeep-restore-"
"""How the folder is called in which a restore prepares its files; it is never captured."""

_ESCAPED: Final = re.compile(r"\\(\\|x[0-9a-f]{2})")


def to_text(path: str) -> str:
    """A path of this process as readable text."""
    if path.isascii() and "\\" not in path:
        return path
    raw = os.fsencode(path).replace(b"\\", b"\\\\")
    return raw.decode("utf-8", "backslashreplace")


def from_text(text: str) -> str:
    """The path that readable text stands for.

    Raises:
        Corrupt: no path has that text.
    """
    if "\\" not in text and text.isascii():
        return text
    at, pieces = 0, bytearray()
    for match in _ESCAPED.finditer(text):
        pieces += _plain(text, at, match.start())
        pieces += b"\\" if match[1] == "\\" else bytes([int(match[1][1:], 16)])
        at = match.end()
    pieces += _plain(text, at, len(text))
    return os.fsdecode(bytes(pieces))


def _plain(text: str, start: int, end: int) -> bytes:
    piece = text[start:end]
    if "\\" in piece:
        raise Corrupt(f"{text[:200]!r} is not the name of a file")
    return piece.encode("utf-8", "surrogatepass")


def is_vcs_name(name: str, *, is_directory: bool) -> bool:
    """Whether a name is reserved for a version control system: `.git` also on a file system that ignores case."""
    return (is_directory and name in VCS_FOLDERS) or name.lower() == ".git"


def is_safe(path: str) -> bool:
    """Whether the path of a file stays below its root by its letters, and names nothing that is never touched."""
    *folders, name = path.split("/")
    return (
        "\0" not in path
        and _is_safe_name(name, is_directory=False)
        and all(_is_safe_name(each, is_directory=True) for each in folders)
    )


def _is_safe_name(name: str, *, is_directory: bool) -> bool:
    return (
        name not in ("", ".", "..")
        and not is_vcs_name(name, is_directory=is_directory)
        and not name.startswith(STAGING_PREFIX)
    )


def parents(path: str) -> Iterable[str]:
    """The directories above a path, the nearest first, without the root."""
    at = path.rfind("/")
    while at > 0:
        path = path[:at]
        yield path
        at = path.rfind("/")


class PathFilter:
    """Which paths are meant: all, or some files and everything below some directories."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self.paths = tuple(dict.fromkeys(_cleaned(path) for path in paths))

    def __bool__(self) -> bool:
        return bool(self.paths)

    def __contains__(self, path: str) -> bool:
        return not self.paths or any(is_at_or_below(path, wanted) for wanted in self.paths)


def is_at_or_below(path: str, top: str) -> bool:
    return top == "" or path == top or path.startswith(top + "/")


def _cleaned(path: str) -> str:
    cleaned = os.path.normpath(path) if path else "."
    if cleaned == ".":
        return ""
    if cleaned.startswith("/") or not is_safe(cleaned):
        raise InvalidInput(
            f"{path!r} is no path below the workspace: give it relative to its root", code="invalid_file_path"
        )
    return cleaned
