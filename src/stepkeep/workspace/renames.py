"""Renames: which file of a newer tree is one of the older tree under another name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from stepkeep.errors import StepkeepError
from stepkeep.workspace.manifest import FileEntry

LIKE: Final = 0.5
"""How much of the larger one two files must share to be the same file, renamed and edited."""
MAX_PAIRS: Final = 400
MAX_BYTES: Final = 1_000_000
"""Beyond these only files with the same content are found: comparing all with all would take too long."""

Read: TypeAlias = Callable[[FileEntry], bytes]


def find_renames(
    removed: Iterable[FileEntry], added: Iterable[FileEntry], read_old: Read, read_new: Read
) -> dict[str, FileEntry]:
    """New path -> what it was. Each file was one at most: the one with the same content, else the most alike."""
    left = {entry.path: entry for entry in removed if _is_traceable(entry)}
    found: dict[str, FileEntry] = {}
    edited: list[FileEntry] = []
    by_digest = {entry.digest: entry for entry in left.values()}
    for new in filter(_is_traceable, added):
        old = by_digest.pop(new.digest, None)
        if old is None:
            edited.append(new)
        else:
            found[new.path] = left.pop(old.path)
    if len(left) * len(edited) > MAX_PAIRS:
        return found
    for new in edited:
        scores = {path: _likeness(old, new, read_old, read_new) for path, old in left.items()}
        best = max(scores, key=scores.__getitem__, default=None)
        if best is not None and scores[best] >= LIKE:
            found[new.path] = left.pop(best)
    return found


def _is_traceable(entry: FileEntry) -> bool:
    """An empty file, or a link, says nothing about where it came from."""
    return bool(entry.size) and not entry.is_link


def _likeness(old: FileEntry, new: FileEntry, read_old: Read, read_new: Read) -> float:
    """How many bytes of the larger one are in lines that both have."""
    small, large = sorted((old.size, new.size))
    if large > MAX_BYTES or small < large * LIKE:
        return 0.0
    try:
        both = Counter(read_old(old).splitlines(keepends=True)) & Counter(
            read_new(new).splitlines(keepends=True)
        )
    except StepkeepError:
        return 0.0  # what cannot be read is not compared
    return sum(len(line) * times for line, times in both.items()) / large
