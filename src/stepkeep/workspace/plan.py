"""What a restore would do to a tree, decided from manifests alone; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from stepkeep.workspace.compare import FileChange, FileChangeKind, SkippedPaths, change_of
from stepkeep.workspace.manifest import Entry, Manifest, Skipped
from stepkeep.workspace.names import PathFilter, parents


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes a restore makes, from the live tree to the captured one.

    `conflicts` are paths of these that hold work no capture has. `blocked` stay as they are, and why.
    """

    changes: tuple[FileChange, ...]
    conflicts: tuple[str, ...]
    blocked: tuple[Skipped, ...]


def plan_restore(
    target: Manifest,
    live: Manifest,
    *,
    known: Sequence[Manifest],
    wanted: PathFilter,
    is_left_out: Callable[[str], bool],
) -> RestorePlan:
    """Decide for every path. `known` are captures that hold what may be overwritten.

    A live file that the target does not have is removed, unless the target's own rules leave it out
    (`is_left_out`) or the target did not capture it: then nothing is known of it. What would be removed or replaced
    and cannot be captured first is blocked.
    """
    before, after = live.by_path(), target.by_path()
    unknown, uncaptured = SkippedPaths(target), {each.path: each for each in live.skipped}
    absent = frozenset(target.absent)

    def is_unknown(path: str) -> bool:
        return path in unknown or (path not in absent and is_left_out(path))

    changes: list[FileChange] = []
    for path in sorted(before.keys() | after.keys()):
        change = change_of(path, before.get(path), after.get(path))
        if change is None or path not in wanted:
            continue
        if change.kind is FileChangeKind.REMOVED and is_unknown(path):
            continue
        if change.kind is FileChangeKind.ADDED and path in uncaptured:
            continue
        changes.append(change)
    blocked = [
        Skipped(path, f"what is there cannot be captured first: {each.reason}")
        for path, each in sorted(uncaptured.items())
        if path in wanted and path not in before and (path in after or not is_unknown(path))
    ]
    safe = [manifest.by_path() for manifest in known]
    conflicts = tuple(change.path for change in changes if not _is_known(change.old, safe))
    return RestorePlan(changes=tuple(changes), conflicts=conflicts, blocked=tuple(blocked))


def _is_known(old: Entry | None, safe: Iterable[dict[str, Entry]]) -> bool:
    return old is None or any(old.is_same(entries.get(old.path)) for entries in safe)


def in_the_way(changes: Sequence[FileChange]) -> list[FileChange]:
    """The removals without which others cannot happen: a file where a directory must be, or the reverse."""
    arriving = {change.path for change in changes if change.new is not None}
    above = {directory for path in arriving for directory in parents(path)}
    return [
        change
        for change in changes
        if change.new is None
        and (change.path in above or any(directory in arriving for directory in parents(change.path)))
    ]


def is_between(live: Manifest, old: Manifest, new: Manifest) -> bool:
    """Whether every file is as in one of two captures: a restore from one to the other stopped on its way."""
    before, after = old.by_path(), new.by_path()
    now = live.by_path()
    for path in now.keys() | before.keys() | after.keys():
        entry = now.get(path)
        if entry is None:
            if path in before and path in after:
                return False
        elif not entry.is_same(before.get(path)) and not entry.is_same(after.get(path)):
            return False
    return True
