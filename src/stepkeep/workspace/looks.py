"""How files looked when they were captured, by directory: what still looks the same is not asked about any further."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from stepkeep.workspace.ignore import Rules
from stepkeep.workspace.manifest import UNSEEN, Entry

Look: TypeAlias = tuple[int, int, int, int, int]
"""`mtime` and `ctime` in nanoseconds, inode, size and mode. A change of content or permissions changes `ctime`,
whatever is done to `mtime`."""

look_of: Final[Callable[[os.stat_result], Look]] = attrgetter(
    "st_mtime_ns", "st_ctime_ns", "st_ino", "st_size", "st_mode"
)

NEVER: Final[Look] = (0, 0, 0, 0, 0)
"""How no file looks: what has it is read again."""


class Folder(NamedTuple):
    """The captured files of one directory and the rules they were found to belong to the tree under (None: not known).

    Folders are never changed, so that captures share those in which nothing changed.
    """

    rules: Rules | None
    looks: dict[str, Look]
    size_bytes: int = 0
    largest_bytes: int = 0


Folders: TypeAlias = dict[str, Folder]
"""Directory, empty for the root -> what was captured in it."""


def folder_of(rules: Rules | None, looks: dict[str, Look]) -> Folder:
    sizes = [look[3] for look in looks.values()]
    return Folder(rules, looks, sum(sizes), max(sizes, default=0))


def folders_of(entries: tuple[Entry, ...]) -> Folders:
    """The folders of a capture of which only the entries are known."""
    looks: dict[str, dict[str, Look]] = {}
    for entry in entries:
        directory, _, name = entry.path.rpartition("/")
        looks.setdefault(directory, {})[name] = recorded_look(entry)
    return {directory: folder_of(None, found) for directory, found in looks.items()}


def recorded_look(entry: Entry) -> Look:
    """How the file of an entry looked."""
    seen = entry.seen
    if seen == UNSEEN:
        return NEVER
    mode = stat.S_IFLNK | 0o777 if entry.is_link else entry.mode
    return seen.mtime_ns, seen.ctime_ns, seen.inode, entry.size, mode


def corrected(folders: Folders, marks: Mapping[str, Look | None]) -> Folders:
    """The folders with other looks for some paths; None takes a path out."""
    after, by_folder = dict(folders), dict[str, dict[str, Look | None]]()
    for path, look in marks.items():
        directory, _, name = path.rpartition("/")
        if directory in folders and name in folders[directory].looks:
            by_folder.setdefault(directory, {})[name] = look
    for directory, changes in by_folder.items():
        looks = {**folders[directory].looks, **changes}
        kept = {name: look for name, look in looks.items() if look is not None}
        after[directory] = folder_of(folders[directory].rules, kept)
    return after


def look_at_path(folders: Folders, path: str) -> Look | None:
    directory, _, name = path.rpartition("/")
    folder = folders.get(directory)
    return None if folder is None else folder.looks.get(name)


def all_looks(folders: Folders) -> Iterator[tuple[str, Look]]:
    """Every path, and how it looks."""
    for directory, folder in folders.items():
        lead = directory + "/" if directory else ""
        for name, look in folder.looks.items():
            yield lead + name, look
