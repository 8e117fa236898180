"""What differs between two trees, by their manifests, and whether a tree changed since it was captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from stepkeep.engine import Engine
from stepkeep.workspace.capture import DEFAULT_LIMITS, CaptureLimits, capture_live
from stepkeep.workspace.captured_files import newest_capture
from stepkeep.workspace.manifest import FileEntry, Manifest, PathFilter, parents


class FileChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    MODE = "mode"


class FileChange(msgspec.Struct, frozen=True):
    """One path that differs: only its permissions (`mode`), or its content, target or kind (`changed`)."""

    kind: FileChangeKind
    path: str
    old: FileEntry | None = None
    new: FileEntry | None = None


class FileComparison(msgspec.Struct, frozen=True):
    """All changes between two trees, by path. `unknown` are paths that one of the two did not capture.

    `live_root` is set where the newer side is the live tree instead of a checkpoint.
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
    """Paths that one tree skipped and the other does not have: nobody can tell whether they are new or were removed."""
    sides = [{each.path for each in manifest.skipped} for manifest in (older, newer)]
    once = sides[0] ^ sides[1]
    if not once:
        return once
    entries = {entry.path for manifest in (older, newer) for entry in manifest.entries}
    return once - entries - {f"{above}/" for path in entries for above in parents(path)}


def change_of(path: str, old: FileEntry | None, new: FileEntry | None) -> FileChange | None:
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
    """The paths that captures skipped, with everything below a skipped directory. Their absence proves nothing."""

    def __init__(self, *manifests: Manifest, more: Iterable[str] = ()) -> None:
        self._paths = {*more, *(each.path for manifest in manifests for each in manifest.skipped)}

    def __contains__(self, path: str) -> bool:
        return path in self._paths or any(above + "/" in self._paths for above in parents(path))


# --- since the newest capture ------------------------------------------------------------------------------------


class CodeChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What changed since the newest capture: the paths, and the commit where the repository stands now."""

    paths: tuple[str, ...]
    commit: str | None
    is_commit_new: bool
    comparison: FileComparison


def code_changed(
    engine: Engine,
    session: str,
    root: str,
    *,
    notify: Callable[[tuple[str, ...], str | None], object] | None = None,
    limits: CaptureLimits = DEFAULT_LIMITS,
) -> CodeChanges | None:
    """Compare the tree with its newest capture in a session; None when nothing changed. Nothing is stored.

    A tree that was never captured has changed in all its files. When something changed, `notify` is called with the
    paths and the commit: what reacts to modified code takes exactly these two.
    """
    found = newest_capture(engine, session, root)
    before = Manifest(root=root) if found is None else found[1]
    now = capture_live(engine, session, root, limits=limits).manifest
    comparison = compare_files(before, now)
    old, new = _commit(before), _commit(now)
    if not comparison.changes and old == new:
        return None
    changes = CodeChanges(
        paths=tuple(change.path for change in comparison.changes),
        commit=new,
        is_commit_new=old != new,
        comparison=comparison,
    )
    if notify is not None:
        notify(changes.paths, changes.commit)
    return changes


def _commit(manifest: Manifest) -> str | None:
    return None if manifest.git is None else manifest.git.commit
