"""What differs between two trees, by their manifests; pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from stepkeep.workspace.manifest import Entry, Manifest
from stepkeep.workspace.names import PathFilter, parents


class FileChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    MODE = "mode"


class FileChange(msgspec.Struct, frozen=True):
    """One path that differs: only its permissions (`mode`), or its content, target or kind (`changed`)."""

    kind: FileChangeKind
    path: str
    old: Entry | None = None
    new: Entry | None = None


class FileComparison(msgspec.Struct, frozen=True):
    """All changes between two trees, by path. `unknown` are paths that one of the two did not capture.

    `live_root` is set where the newer one is no checkpoint, but the tree that is there now.
    """

    changes: tuple[FileChange, ...]
    unknown: tuple[str, ...] = ()
    live_root: str | None = None

    @property
    def total(self) -> int:
        return len(self.changes)

    def count(self, kind: FileChangeKind) -> int:
        return sum(change.kind is kind for change in self.changes)

    @property
    def summary(self) -> str:
        counts = [(kind, self.count(kind)) for kind in FileChangeKind]
        return ", ".join(f"{number} {kind}" for kind, number in counts if number) or "no changes"


def compare_files(older: Manifest, newer: Manifest, wanted: PathFilter | None = None) -> FileComparison:
    """What changed from one tree to another. A path that one of them skipped is unknown, not removed."""
    before, after = older.by_path(), newer.by_path()
    unknown = SkippedPaths(older, newer)
    changes: list[FileChange] = []
    missed = [path for path in _skipped_once(older, newer) if wanted is None or path in wanted]
    for path in sorted(before.keys() | after.keys()):
        if wanted is not None and path not in wanted:
            continue
        old, new = before.get(path), after.get(path)
        if (old is None or new is None) and path in unknown:
            missed.append(path)
        elif (change := change_of(path, old, new)) is not None:
            changes.append(change)
    return FileComparison(tuple(changes), tuple(sorted(missed)))


def _skipped_once(older: Manifest, newer: Manifest) -> set[str]:
    """What one tree skipped and the other does not have at all: perhaps it is new, perhaps it went."""
    sides = [{each.path for each in manifest.skipped} for manifest in (older, newer)]
    once = sides[0] ^ sides[1]
    if not once:
        return once
    entries = {entry.path for manifest in (older, newer) for entry in manifest.entries}
    return once - entries - {f"{above}/" for path in entries for above in parents(path)}


def change_of(path: str, old: Entry | None, new: Entry | None) -> FileChange | None:
    """How one path differs; None when it does not."""
    if old is None:
        return FileChange(FileChangeKind.ADDED, path, None, new)
    if new is None:
        return FileChange(FileChangeKind.REMOVED, path, old, None)
    if old.is_same(new):
        return None
    is_only_mode = old.digest == new.digest and old.target == new.target and old.is_link == new.is_link
    return FileChange(FileChangeKind.MODE if is_only_mode else FileChangeKind.CHANGED, path, old, new)


class SkippedPaths:
    """What captures say they skipped, with everything below a directory: it is never judged by its absence."""

    def __init__(self, *manifests: Manifest, more: Iterable[str] = ()) -> None:
        self._paths = {*more, *(each.path for manifest in manifests for each in manifest.skipped)}

    def __contains__(self, path: str) -> bool:
        return path in self._paths or any(above + "/" in self._paths for above in parents(path))
