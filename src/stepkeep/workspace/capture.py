"""Taking a picture of a tree: what changed is read, the rest is known from the capture before."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Final

import msgspec

from stepkeep.codec.patch import DEFAULT_CEILING_BYTES
from stepkeep.engine import Engine
from stepkeep.storage.port import Blob
from stepkeep.workspace.contents import Reader
from stepkeep.workspace.git import Git, Repository
from stepkeep.workspace.ignore import OWN_IGNORE, Rules, first_rules, own_rules
from stepkeep.workspace.looks import (
    NEVER,
    Folders,
    Look,
    all_looks,
    corrected,
    folders_of,
    look_at_path,
)
from stepkeep.workspace.manifest import UNSEEN, Entry, Manifest, Skipped
from stepkeep.workspace.names import is_safe, parents
from stepkeep.workspace.own_files import own_files
from stepkeep.workspace.scan import Scan, content_of, opened_root


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a tree is captured. What goes beyond is reported; `ignore` are more rules, as in an ignore file."""

    max_file_bytes: int = 50_000_000
    max_total_bytes: int = 1_000_000_000
    ignore: tuple[str, ...] = ()


DEFAULT_LIMITS: Final = Limits()


class Earlier:
    """An earlier capture of the same tree, arranged for the next one. Its entries alone tell enough of it."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    @cached_property
    def folders(self) -> Folders:
        return folders_of(self.manifest.entries)

    @cached_property
    def places(self) -> dict[str, int]:
        """Where in the list each path is."""
        return {entry.path: number for number, entry in enumerate(self.manifest.entries)}

    def entry(self, path: str) -> Entry | None:
        place = self.places.get(path)
        return None if place is None else self.manifest.entries[place]

    def followed_by(self, captured: Captured) -> Earlier:
        """The capture that came next, as the earlier one from then on."""
        after = Earlier(captured.manifest)
        after.folders = captured.folders
        if captured.replaced is not None:
            after.places = self.places
        return after


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """A captured tree: its manifest, the blobs that are not stored yet, and what the files looked like exactly.

    `replaced` are the entries, old and new, in which it differs from the capture before; None where also paths came
    or went.
    """

    manifest: Manifest
    blobs: tuple[Blob, ...]
    folders: Folders
    fresh: dict[str, Look]
    replaced: tuple[tuple[Entry, Entry], ...] | None
    read_files: int
    read_bytes: int

    def look(self, path: str) -> Look | None:
        """How a captured file looked; None for a path that was not captured."""
        return self.fresh.get(path) or look_at_path(self.folders, path)


def real_root(root: str | os.PathLike[str]) -> str:
    """The root of a workspace by its one true name."""
    return os.path.realpath(os.fsdecode(root))


def capture(
    engine: Engine,
    root: str,
    *,
    previous: Earlier | None = None,
    limits: Limits = DEFAULT_LIMITS,
    also: Sequence[str] = (),
    with_blobs: bool = True,
    now_ns: Callable[[], int] = time.time_ns,
) -> Captured:
    """Capture a tree. Nothing is stored, and nothing below the root is changed.

    `previous` is an earlier capture of the same tree: what looks the same is not read again. `also` are paths that
    are captured whatever rules and caps say, or recorded as absent.
    """
    began_ns = now_ns()
    before = Earlier(Manifest(root=root)) if previous is None else previous
    repository = Git(root).look()
    try:
        with opened_root(root) as descriptor:
            scan = Scan(
                own_files(engine.backend.url, root).__contains__,
                known=before.folders,
                on_left_out=None if repository is None else repository.ask_for_tracked,
            )
            scan.tree(descriptor, _rules(repository, limits))
            left_out: list[str] = []
            if repository is not None:
                left_out += repository.not_checked_out()
            if repository is not None and scan.left_out:
                tracked = repository.tracked.paths
                left_out += _add_tracked(scan, descriptor, tracked, own_rules(limits.ignore))
            absent = [path for path in sorted(set(also)) if not scan.path(descriptor, path)]
            over = _over_the_caps(scan, limits, frozenset(also))
            reader = Reader(
                engine, descriptor, skipped=scan.skipped, began_ns=began_ns, with_blobs=with_blobs
            )
            entries = reader.entries(scan.found, before.entry)
        folders = corrected(scan.folders, _marks(scan, entries, over))
        merged, replaced = _merged(before, folders, entries)
        git = None if repository is None else repository.state()
    finally:
        if repository is not None:
            repository.stop()
    manifest = Manifest(
        root=root,
        git=git,
        skipped=tuple(sorted(scan.skipped, key=lambda each: each.path)),
        absent=tuple(absent),
        left_out=tuple(sorted(set(left_out))),
        entries=merged,
    )
    return Captured(
        manifest=manifest,
        blobs=tuple(reader.blobs.values()),
        folders=folders,
        fresh={path: scan.found[path] for path in entries},
        replaced=replaced,
        read_files=reader.read_files,
        read_bytes=reader.read_bytes,
    )


def _marks(scan: Scan, entries: dict[str, Entry], over: Iterable[str]) -> dict[str, Look | None]:
    """How the looks of a scan become those of a capture: what is not in it goes, what is too young is not trusted."""
    marks: dict[str, Look | None] = dict.fromkeys(over)
    for path, look in scan.found.items():
        entry = entries.get(path)
        marks[path] = None if entry is None else NEVER if entry.seen == UNSEEN else look
    return marks


def _merged(
    before: Earlier, folders: Folders, entries: dict[str, Entry]
) -> tuple[tuple[Entry, ...], tuple[tuple[Entry, Entry], ...] | None]:
    """All entries by path: those that were looked at anew, and of the capture before those that look the same.

    Also which of them were replaced, unless others came or went.
    """
    outside = [path for path in entries if look_at_path(folders, path) is None]
    count = sum(len(folder.looks) for folder in folders.values()) + len(outside)
    pairs = [(before.entry(path), entry) for path, entry in entries.items()]
    replaced = tuple((old, new) for old, new in pairs if old is not None and old != new)
    if count == len(before.manifest.entries) and all(old is not None for old, _ in pairs):
        merged = list(before.manifest.entries)
        for _, new in replaced:
            merged[before.places[new.path]] = new
        return tuple(merged), replaced
    present = {path for path, _ in all_looks(folders)}
    kept = [each for each in before.manifest.entries if each.path in present and each.path not in entries]
    return tuple(sorted([*kept, *entries.values()], key=attrgetter("path"))), None


# --- what belongs to the tree ------------------------------------------------------------------------------------


def _rules(repository: Repository | None, limits: Limits) -> Rules:
    if repository is None:
        return first_rules(limits.ignore)
    return first_rules(limits.ignore, above=repository.above, everywhere=repository.everywhere)


def _add_tracked(scan: Scan, root: int, tracked: Iterable[str], rules: Rules) -> set[str]:
    """Add what git tracks of what a rule leaves out: it belongs to the project. What our own rules leave out of it."""
    known, left_out = {"": rules.within("", own=content_of(root, OWN_IGNORE))}, set()
    for path in tracked:
        if path in scan.left_out or any(above in scan.left_out for above in parents(path)):
            is_ours = any(scan.is_excluded(each) for each in (path, *parents(path)))
            if not is_safe(path) or is_ours:
                continue
            top = _left_out_by(root, path, known)
            if top is None:
                scan.path(root, path)
            else:
                left_out.add(top)
    return left_out


def _left_out_by(root: int, path: str, known: dict[str, Rules]) -> str | None:
    """The path, or the directory above it with a slash at its end, that a `.stepkeepignore` leaves out."""
    rules, above = known[""], ""
    for step in [*reversed(list(parents(path))), path]:
        if rules.is_ignored(step, step.rpartition("/")[2], is_directory=step != path):
            return step if step == path else f"{step}/"
        if step != path:
            above = step
            if above not in known:
                known[above] = rules.within(above, own=content_of(root, f"{above}/{OWN_IGNORE}"))
            rules = known[above]
    return None


def _over_the_caps(scan: Scan, limits: Limits, exempt: frozenset[str]) -> list[str]:
    """Drop what is too large, and of the rest the largest until all fits; report each."""
    folders = scan.folders.values()
    outside = {path: look for path, look in scan.found.items() if look_at_path(scan.folders, path) is None}
    total = sum(each.size_bytes for each in folders) + sum(look[3] for look in outside.values())
    largest = max(
        [each.largest_bytes for each in folders] + [look[3] for look in outside.values()], default=0
    )
    if total <= limits.max_total_bytes and largest <= limits.max_file_bytes:
        return []
    looks = {**dict(all_looks(scan.folders)), **outside}
    sizes = {path: look[3] for path, look in looks.items() if stat.S_ISREG(look[4])}
    dropped = list(_too_large(sizes, limits, exempt))
    for each in dropped:
        scan.found.pop(each.path, None)
    scan.skipped += dropped
    return [each.path for each in dropped]


def _too_large(sizes: dict[str, int], limits: Limits, exempt: frozenset[str]) -> Iterable[Skipped]:
    total = sum(sizes.values())
    for path in sorted(sizes, key=lambda path: (-sizes[path], path)):
        size, is_exempt = sizes[path], path in exempt
        limit = DEFAULT_CEILING_BYTES if is_exempt else limits.max_file_bytes
        if size > limit:
            reason = f"larger than {limit:,} bytes"
        elif total > limits.max_total_bytes and size and not is_exempt:
            reason = f"all files together are larger than {limits.max_total_bytes:,} bytes"
        else:
            continue
        total -= size
        yield Skipped(path, reason, size)
