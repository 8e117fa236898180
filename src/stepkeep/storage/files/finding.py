"""Files of other systems that are named as a layout names its own: found and read, never followed out of the folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from stepkeep.codec import document
from stepkeep.codec.foreign import MAX_BYTES
from stepkeep.codec.integrity import digest
from stepkeep.codec.readable import Layout
from stepkeep.errors import SCHEMA_INVALID, Corrupt
from stepkeep.storage.files.layouts import CHECKSUM, GZIP, NAMES, Names
from stepkeep.storage.files.writing import Folder, Tree, split

HERE: Final = "."
_MAX_CHECKSUM_BYTES: Final = 4096
_CHECKSUM: Final = re.compile(rb"([0-9a-fA-F]{64})(?:\s[^\n]*)?\n?")


class FoundFile(NamedTuple):
    """A file, by its path below the folder; `session` is the name of the folder it lies in, None without one."""

    file: str
    session: str | None
    is_pointer: bool

    @property
    def shown(self) -> str:
        return self.file.removeprefix(f"{HERE}/")


def find_files(directory: Path, layout: Layout) -> Iterator[FoundFile]:
    """Every file that may be a checkpoint by its name, those behind symbolic links included, unread.

    The folder is the root of such a store, the folder in it that holds all sessions, or that of one session.
    """
    names, tree = NAMES[layout], Tree(directory)
    top = names.top if (directory / names.top).is_dir() else HERE
    if not names.has_folders:
        yield from (FoundFile(f"{top}/{name}", None, False) for name in _names(tree, top, names))
        return
    if _is_session(directory / top, names):
        yield from _in_session(tree, top, directory.absolute().name, names)
        return
    for name in sorted(name for name, is_file in _entries(tree, top) if not is_file):
        yield from _in_session(tree, f"{top}/{name}", name, names)


def _is_session(folder: Path, names: Names) -> bool:
    return (folder / (names.pointer or "")).is_file() or (folder / names.history_of_folder(".")).is_dir()


def _in_session(tree: Tree, folder: str, session: str, names: Names) -> Iterator[FoundFile]:
    history = names.history_of_folder(folder)
    try:
        yield from (FoundFile(f"{history}/{name}", session, False) for name in _names(tree, history, names))
        if any(name == names.pointer for name, _ in _entries(tree, folder)):
            yield FoundFile(f"{folder}/{names.pointer}", session, True)
    except OSError:  # a symbolic link, or closed to us: told when the file itself is to be read
        yield FoundFile(f"{folder}/{names.pointer}", session, True)


def _names(tree: Tree, place: str, names: Names) -> list[str]:
    return sorted(name for name, _ in _entries(tree, place) if names.is_history(name))


def _entries(tree: Tree, place: str) -> list[tuple[str, bool]]:
    """The names in a folder, and whether each is a plain file."""
    try:
        with tree.folder(place) as folder:
            return [(entry.name, entry.is_file(follow_symlinks=False)) for entry in folder.entries()]
    except FileNotFoundError:
        return []


def read_foreign(directory: Path, found: FoundFile) -> tuple[bytes, str, list[str]]:
    """The bytes of a document, decompressed; the digest of the file; and what was checked on the way.

    Raises:
        Corrupt: it is a symbolic link, no regular file, too large, or not what the checksum beside it says.
    """
    place, name = split(found.file)
    try:
        with Tree(directory).folder(place) as folder:
            data = folder.read(name, limit=MAX_BYTES)
            checked = _check_beside(folder, name, data)
    except FileNotFoundError as exc:
        raise Corrupt("the file is gone", code="checkpoint_missing") from exc
    except NotADirectoryError as exc:
        raise Corrupt("its folder is a symbolic link: not followed", code=SCHEMA_INVALID) from exc
    except OSError as exc:
        raise Corrupt(f"the file cannot be read: {exc.strerror or exc}") from exc
    content = document.unzip(data, limit=MAX_BYTES) if name.endswith(GZIP) else data
    return content, digest(content), checked


def _check_beside(folder: Folder, name: str, data: bytes) -> list[str]:
    """A checksum in a file beside it, as `sha256sum` writes it."""
    try:
        given = _CHECKSUM.fullmatch(folder.read(name + CHECKSUM, limit=_MAX_CHECKSUM_BYTES))
    except FileNotFoundError:
        return []
    if given is None or digest(data).encode() != given[1].lower():
        raise Corrupt(f"the file does not match {name}{CHECKSUM}")
    return ["checksum file"]
