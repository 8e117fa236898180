"""Differences of files: which paths differ between two trees, and patches in the form that `git apply` takes.

Between two checkpoints, from a checkpoint to the live tree, or from a commit to a checkpoint. A patch has text as hunks
and everything else as binary patches.
"""

from __future__ import annotations

import base64
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from difflib import unified_diff
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from stepkeep.codec.integrity import digest
from stepkeep.engine import Engine
from stepkeep.errors import Conflict, NotFound
from stepkeep.history.documents import CheckpointInfo, describe_one
from stepkeep.model import Header
from stepkeep.workspace.capture import DEFAULT_LIMITS, CaptureLimits, capture_live, own_files
from stepkeep.workspace.captured_files import content_of, load_manifest, newest_capture
from stepkeep.workspace.git import Git, is_commit
from stepkeep.workspace.manifest import FileEntry, GitState, Manifest, PathFilter, is_safe, parents, to_text
from stepkeep.workspace.renames import find_renames
from stepkeep.workspace.scan import NotRead, opened_root, read_file

BATCH_PATHS: Final = 256
BATCH_BYTES: Final = 16_000_000
MAX_TEXT_BYTES: Final = 2_000_000
MAX_LINES: Final = 20_000
"""Beyond these a text is treated like a binary file: comparing it line by line would take too long."""

_LINK: Final = 0o120000
_FILE: Final = 0o100644
_PROGRAM: Final = 0o100755
_MODES: Final = {"100644": _FILE, "100755": _PROGRAM, "120000": _LINK}
_QUOTED: Final = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}

FileChangeKind: TypeAlias = Literal["added", "removed", "changed", "mode"]


# --- which paths differ ------------------------------------------------------------------------------------------


class FileChange(NamedTuple):
    """One path that differs: only its permissions (`mode`), or its content, target or kind (`changed`)."""

    kind: FileChangeKind
    path: str
    old: FileEntry | None
    new: FileEntry | None


def compare_files(older: Manifest, newer: Manifest, wanted: PathFilter) -> tuple[list[FileChange], list[str]]:
    """What changed from one tree to another, by path, and the paths that are unknown: one of the trees skipped them, so
    that nobody can tell whether they were added or removed."""
    before, after = older.by_path(), newer.by_path()
    unknown = SkippedPaths(older, newer)
    changes: list[FileChange] = []
    missed = [path for path in _skipped_once(older, newer) if path in wanted]
    for path in sorted(before.keys() | after.keys()):
        if path not in wanted:
            continue
        old, new = before.get(path), after.get(path)
        if (old is None or new is None) and path in unknown:
            missed.append(path)
        elif (change := change_of(path, old, new)) is not None:
            changes.append(change)
    return changes, sorted(missed)


def _skipped_once(older: Manifest, newer: Manifest) -> set[str]:
    """Paths that one tree skipped and the other does not have."""
    sides = [{each.path for each in manifest.skipped} for manifest in (older, newer)]
    once = sides[0] ^ sides[1]
    if not once:
        return once
    entries = {entry.path for manifest in (older, newer) for entry in manifest.entries}
    return once - entries - {f"{above}/" for path in entries for above in parents(path)}


def change_of(path: str, old: FileEntry | None, new: FileEntry | None) -> FileChange | None:
    """How one path differs; None when it does not."""
    if old is None:
        return FileChange("added", path, None, new)
    if new is None:
        return FileChange("removed", path, old, None)
    if old.is_same(new):
        return None
    is_only_mode = old.digest == new.digest and old.target == new.target and old.is_link == new.is_link
    return FileChange("mode" if is_only_mode else "changed", path, old, new)


class SkippedPaths:
    """The paths that captures skipped, with everything below a skipped directory. Their absence proves nothing."""

    def __init__(self, *manifests: Manifest, more: Iterable[str] = ()) -> None:
        self._paths = {*more, *(each.path for manifest in manifests for each in manifest.skipped)}

    def __contains__(self, path: str) -> bool:
        return path in self._paths or any(above + "/" in self._paths for above in parents(path))


# --- for a reader ------------------------------------------------------------------------------------------------


class ChangedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One changed path, as text that can be shown: bytes that are not UTF-8 are written as escapes. Modes are octal
    text; the counts of lines are None where they were not asked for, or for a file that has no lines."""

    kind: FileChangeKind
    path: str
    old_mode: str | None
    new_mode: str | None
    old_size_bytes: int | None
    new_size_bytes: int | None
    added_lines: int | None = None
    removed_lines: int | None = None


class RenamedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that has another name, whether or not it was edited too."""

    old_path: str
    path: str


class FilesDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Which files differ. `newer` is None where the live tree at `live_root` is meant. `unknown` are paths that one
    of the two did not capture. `renames` are pairs of a removed and an added path in `changes` that are one file."""

    older: CheckpointInfo
    newer: CheckpointInfo | None
    live_root: str | None
    older_git: GitState | None
    total: int
    added: int
    removed: int
    changed: int
    mode: int
    changes: tuple[ChangedFile, ...]
    unknown: tuple[str, ...]
    patch: str | None
    renames: tuple[RenamedFile, ...]

    @property
    def summary(self) -> str:
        """How many files changed in which way."""
        renamed = len(self.renames)
        counts = {"added": self.added - renamed, "removed": self.removed - renamed, "renamed": renamed}
        counts |= {"changed": self.changed, "mode": self.mode}
        return ", ".join(f"{number:,} {kind}" for kind, number in counts.items() if number) or "no changes"


def files_diff(
    engine: Engine,
    older: Header,
    newer: Header | None,
    *,
    live: Manifest | None,
    wanted: PathFilter,
    line_counts: bool,
    patch: bool,
) -> FilesDiff:
    """Which files differ between two checkpoints, or without `newer` from one to the tree as it is `live`."""
    before = load_manifest(engine, older)
    after = live if newer is None else load_manifest(engine, newer)
    assert after is not None
    changes, unknown = compare_files(before, after, wanted)
    sides = ChangeSides(engine, None if newer is not None else after.root)
    return FilesDiff(
        older=describe_one(engine, older),
        newer=None if newer is None else describe_one(engine, newer),
        live_root=None if newer is not None else to_text(after.root),
        older_git=before.git,
        total=len(changes),
        added=sum(change.kind == "added" for change in changes),
        removed=sum(change.kind == "removed" for change in changes),
        changed=sum(change.kind == "changed" for change in changes),
        mode=sum(change.kind == "mode" for change in changes),
        changes=tuple(changed_file(change, *sides.line_counts(change, line_counts)) for change in changes),
        unknown=tuple(map(to_text, unknown)),
        patch="".join(patch_of(change.path, *sides.of(change)) for change in changes) if patch else None,
        renames=tuple(sides.renames(changes)),
    )


def changed_file(
    change: FileChange, added_lines: int | None = None, removed_lines: int | None = None
) -> ChangedFile:
    """A change as it is shown."""
    old, new = change.old, change.new
    return ChangedFile(
        kind=change.kind,
        path=to_text(change.path),
        old_mode=None if old is None else f"{old.mode:o}",
        new_mode=None if new is None else f"{new.mode:o}",
        old_size_bytes=None if old is None else old.size,
        new_size_bytes=None if new is None else new.size,
        added_lines=added_lines,
        removed_lines=removed_lines,
    )


class ChangeSides:
    """Reads both sides of changes. `live_root` is set where the newer side is the live tree instead of a checkpoint."""

    def __init__(self, engine: Engine, live_root: str | None) -> None:
        self._engine = engine
        self._live_root = live_root

    def of(self, change: FileChange) -> tuple[PatchSide | None, PatchSide | None]:
        old = None if change.old is None else _side(change.old, content_of(self._engine, change.old))
        new = None if change.new is None else _side(change.new, self._newer(change.new))
        return old, new

    def line_counts(self, change: FileChange, are_wanted: bool) -> tuple[int | None, int | None]:
        """How many lines were added, and how many removed; None for a file that has none, such as a picture."""
        if not are_wanted:
            return None, None
        old, new = (b"" if side is None else side.content for side in self.of(change))
        if not is_text(old) or not is_text(new):
            return None, None
        signs = Counter(line[0] for line in hunks(old, new))
        return signs["+"], signs["-"]

    def renames(self, changes: Iterable[FileChange]) -> Iterator[RenamedFile]:
        removed = [change.old for change in changes if change.kind == "removed" and change.old]
        added = [change.new for change in changes if change.kind == "added" and change.new]
        found = find_renames(removed, added, lambda old: content_of(self._engine, old), self._newer)
        for path, old in found.items():
            yield RenamedFile(old_path=to_text(old.path), path=to_text(path))

    def _newer(self, entry: FileEntry) -> bytes:
        """The content; in the live tree that of a file that was looked at a moment ago, if it still is the same."""
        if self._live_root is None or entry.is_link:
            return content_of(self._engine, entry)
        try:
            with opened_root(self._live_root) as descriptor:
                content, _ = read_file(descriptor, entry.path, entry.size)
        except (NotRead, OSError):
            content = None
        if content is None or digest(content) != entry.digest:
            raise Conflict(f"{entry.path!r} changed while it was compared: try again", code="files_changed")
        return content


# --- since the newest capture ------------------------------------------------------------------------------------


class CodeChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What changed since the newest capture: the paths, and the commit where the repository stands now."""

    paths: tuple[str, ...]
    commit: str | None
    is_commit_new: bool


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
    paths = tuple(change.path for change in compare_files(before, now, PathFilter())[0])
    old, new = (None if each.git is None else each.git.commit for each in (before, now))
    if not paths and old == new:
        return None
    if notify is not None:
        notify(paths, new)
    return CodeChanges(paths=paths, commit=new, is_commit_new=old != new)


# --- one patch ---------------------------------------------------------------------------------------------------


class PatchSide(NamedTuple):
    """One side of a difference: the mode git would record, and the content; of a link its target."""

    mode: int
    content: bytes


def _side(entry: FileEntry, content: bytes) -> PatchSide:
    """A captured file as git would record it."""
    return PatchSide(_LINK if entry.is_link else _PROGRAM if entry.mode & 0o100 else _FILE, content)


def patch_of(path: str, old: PatchSide | None, new: PatchSide | None, *, algorithm: str = "sha1") -> str:
    """The patch that turns one side into the other; empty when they are equal. None stands for: not there."""
    if old == new:
        return ""
    if old is not None and new is not None and (old.mode == _LINK) != (new.mode == _LINK):
        parts = patch_of(path, old, None, algorithm=algorithm), patch_of(path, None, new, algorithm=algorithm)
        return "".join(parts)
    before, after = quoted(f"a/{path}"), quoted(f"b/{path}")
    head = [f"diff --git {before} {after}\n", *_mode_lines(old, new)]
    was, becomes = b"" if old is None else old.content, b"" if new is None else new.content
    if was == becomes and old is not None and new is not None:
        return "".join(head)
    ids = [_id_or_zeros(side, algorithm) for side in (old, new)]
    head.append(f"index {ids[0]}..{ids[1]}\n")
    if not (is_text(was) and is_text(becomes)):
        return "".join([*head, "GIT binary patch\n", _literal(becomes), _literal(was)])
    if was == becomes:
        return "".join(head)
    names = [f"--- {_marked(old, before)}\n", f"+++ {_marked(new, after)}\n"]
    return "".join([*head, *names, *hunks(was, becomes)])


def _marked(side: PatchSide | None, name: str) -> str:
    """A name with a space needs a mark where it ends."""
    if side is None:
        return "/dev/null"
    return f"{name}\t" if " " in name and not name.startswith('"') else name


def _mode_lines(old: PatchSide | None, new: PatchSide | None) -> Iterator[str]:
    if old is None and new is not None:
        yield f"new file mode {new.mode:o}\n"
    elif new is None and old is not None:
        yield f"deleted file mode {old.mode:o}\n"
    elif old is not None and new is not None and old.mode != new.mode:
        yield f"old mode {old.mode:o}\n"
        yield f"new mode {new.mode:o}\n"


def _id_or_zeros(side: PatchSide | None, algorithm: str) -> str:
    name = object_id(b"" if side is None else side.content, algorithm)
    return "0" * len(name) if side is None else name


def object_id(content: bytes, algorithm: str = "sha1") -> str:
    """The name git gives to content."""
    return hashlib.new(algorithm, b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _literal(content: bytes) -> str:
    packed = zlib.compress(content)
    rows = [f"literal {len(content)}\n"]
    for at in range(0, len(packed), 52):
        piece = packed[at : at + 52]
        length = chr(ord("A") + len(piece) - 1) if len(piece) <= 26 else chr(ord("a") + len(piece) - 27)
        rows.append(length + base64.b85encode(piece, pad=True).decode() + "\n")
    return "".join([*rows, "\n"])


def quoted(path: str) -> str:
    """A name as git writes it in a patch: in quotes where it has bytes that a line cannot show."""
    raw = os.fsencode(path)
    if all(32 <= byte < 127 and byte not in (34, 92) for byte in raw):
        return path
    return '"' + "".join(map(_escaped, raw)) + '"'


def _escaped(byte: int) -> str:
    if byte in _QUOTED:
        return "\\" + _QUOTED[byte]
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"


def is_text(content: bytes) -> bool:
    """Whether content can be shown as lines: UTF-8 without NUL, and not too long."""
    if len(content) > MAX_TEXT_BYTES or b"\0" in content or content.count(b"\n") > MAX_LINES:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def lines_of(content: bytes) -> list[str]:
    """The lines with their ends; only a line feed ends one."""
    pieces = content.decode().split("\n")
    lines = [piece + "\n" for piece in pieces[:-1]]
    return [*lines, pieces[-1]] if pieces[-1] else lines


def hunks(old: bytes, new: bytes) -> Iterator[str]:
    """The hunks of a unified diff of two texts, line by line."""
    for line in islice(unified_diff(lines_of(old), lines_of(new)), 2, None):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


# --- against a commit --------------------------------------------------------------------------------------------


class CommitPatches(msgspec.Struct, frozen=True, kw_only=True):
    """How to rebuild a captured tree elsewhere by hand: check the commit out, then `git apply` each patch at its top.

    Without `is_complete` the patches would be larger than was asked for, and there are none.
    """

    commit: str | None
    branch: str | None
    patches: tuple[str, ...]
    is_complete: bool = True


def commit_patches(
    engine: Engine, manifest: Manifest, root: str, *, max_bytes: int | None = None
) -> CommitPatches:
    """The commit that a captured tree was based on, and the patches from there to the captured files.

    `root` is where the repository is now; it is only read. Without a commit every file is a patch that adds it.
    Removals come first, so that the patches apply one after the other. Beyond `max_bytes` there are none.

    Raises:
        NotFound: the repository at `root` does not have that commit (`commit_not_found`).
    """
    git, where = manifest.git, Git(root)
    commit = None if git is None else git.commit
    base = {} if commit is None else _tree(where, commit)
    algorithm = "sha256" if len(commit or "") == 64 else "sha1"
    entries, prefix = manifest.by_path(), "" if git is None else git.prefix
    differing = list(_differing(engine, manifest, base, algorithm))
    differing.sort(key=lambda path: (path in entries, path))
    patches: list[str] = []
    left = max_bytes
    for some in _batches(differing, lambda path: entries[path].size if path in entries else 0):
        contents = _contents(where, [base[path].id for path in some if path in base])
        for path in some:
            recorded = base.get(path)
            old = None if recorded is None else PatchSide(recorded.mode, contents[recorded.id])
            patch = patch_of(prefix + path, old, _captured(engine, entries.get(path)), algorithm=algorithm)
            patches.append(patch)
            left = None if left is None else left - len(patch)
        if left is not None and left < 0:
            break
    branch, is_complete = None if git is None else git.branch, left is None or left >= 0
    return CommitPatches(
        commit=commit, branch=branch, patches=tuple(patches) if is_complete else (), is_complete=is_complete
    )


def _batches(paths: Iterable[str], size_of: Callable[[str], int]) -> Iterator[list[str]]:
    """The paths in pieces of which each has contents of a bounded size."""
    batch: list[str] = []
    size = 0
    for path in paths:
        batch.append(path)
        size += size_of(path)
        if len(batch) >= BATCH_PATHS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Recorded(NamedTuple):
    """A file in a commit: its mode, and the name of its content."""

    mode: int
    id: str


def _captured(engine: Engine, entry: FileEntry | None) -> PatchSide | None:
    return None if entry is None else _side(entry, content_of(engine, entry))


def _differing(
    engine: Engine, manifest: Manifest, base: dict[str, _Recorded], algorithm: str
) -> Iterator[str]:
    """The paths that are not in the commit as they were captured; what the capture did not look at is left out."""
    own = own_files(engine.backend.url, manifest.root)
    not_seen = [*manifest.left_out, *own, *(f"{each}/" for each in own)]
    entries, skipped = manifest.by_path(), SkippedPaths(manifest, more=not_seen)
    for path in sorted(base.keys() | entries.keys()):
        new = _captured(engine, entries.get(path))
        if new is None:
            if path not in skipped:
                yield path
        elif base.get(path) != _Recorded(new.mode, object_id(new.content, algorithm)):
            yield path


def _tree(git: Git, commit: str) -> dict[str, _Recorded]:
    """The files of a commit at and below the workspace; other repositories inside it are left out."""
    output = (
        git.call("ls-tree", "-r", "-z", "--end-of-options", commit).output() if is_commit(commit) else None
    )
    if output is None:
        raise NotFound(
            f"the repository has no commit {commit[:64]!r}: fetch it, or name another workspace",
            code="commit_not_found",
        )
    found = {}
    for record in output.split(b"\0"):
        facts, _, path = record.partition(b"\t")
        mode, _, name = facts.decode("ascii").partition(" ")
        if mode in _MODES and is_safe(os.fsdecode(path)):
            found[os.fsdecode(path)] = _Recorded(_MODES[mode], name.partition(" ")[2])
    return found


def _contents(git: Git, ids: list[str]) -> dict[str, bytes]:
    if not ids:
        return {}
    wanted = sorted(set(ids))
    output = git.call("cat-file", "--batch", reads=True).output("\n".join([*wanted, ""]).encode()) or b""
    found, at = {}, 0
    for name in wanted:
        end = output.find(b"\n", at)
        words = output[at:end].split(b" ")
        if end < 0 or len(words) != 3:
            raise NotFound(f"the repository has no object {name}: fetch it", code="commit_not_found")
        size = int(words[2])
        found[name] = output[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return found
