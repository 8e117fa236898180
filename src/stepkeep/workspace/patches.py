"""Differences of files in the form that `git apply` takes: text as hunks, everything else as binary patches.

Between two checkpoints, from a checkpoint to the live tree, or from a commit to a checkpoint.
"""

from __future__ import annotations

import base64
import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final

import msgspec

from stepkeep.codec.integrity import digest
from stepkeep.engine import Engine
from stepkeep.errors import Conflict, NotFound
from stepkeep.workspace.capture import own_files
from stepkeep.workspace.captured_files import content_of
from stepkeep.workspace.file_diff import FileChange, SkippedPaths
from stepkeep.workspace.git import Git, is_commit
from stepkeep.workspace.manifest import FileEntry, Manifest, is_safe
from stepkeep.workspace.scan import NotRead, opened_root, read_file

BATCH_PATHS: Final = 256
BATCH_BYTES: Final = 16_000_000

_LINK: Final = 0o120000
_FILE: Final = 0o100644
_PROGRAM: Final = 0o100755
_MODES: Final = {"100644": _FILE, "100755": _PROGRAM, "120000": _LINK}
_QUOTED: Final = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


class PatchSide(msgspec.Struct, frozen=True):
    """One side of a difference: the mode git would record, and the content; of a link its target."""

    mode: int
    content: bytes


class CommitPatches(msgspec.Struct, frozen=True, kw_only=True):
    """How to rebuild a captured tree elsewhere by hand: check the commit out, then `git apply` each patch at its top.

    Without `is_complete` the patches would be larger than was asked for, and there are none.
    """

    commit: str | None
    branch: str | None
    patches: tuple[str, ...]
    is_complete: bool = True


def side_of(entry: FileEntry, content: Callable[[FileEntry], bytes]) -> PatchSide:
    """A captured file as git would record it."""
    if entry.is_link:
        return PatchSide(_LINK, os.fsencode(entry.target))
    return PatchSide(_PROGRAM if entry.mode & 0o100 else _FILE, content(entry))


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
    return "".join([*head, *names, *hunks(lines_of(was), lines_of(becomes))])


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


# --- against a commit --------------------------------------------------------------------------------------------


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


class _Recorded(msgspec.Struct, frozen=True):
    """A file in a commit: its mode, and the name of its content."""

    mode: int
    id: str


def _captured(engine: Engine, entry: FileEntry | None) -> PatchSide | None:
    return None if entry is None else side_of(entry, lambda each: engine.load_blob(each.digest))


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


# --- texts, line by line -----------------------------------------------------------------------------------------

CONTEXT: Final = 3
MAX_TEXT_BYTES: Final = 2_000_000
MAX_LINES: Final = 20_000
"""Beyond these a text is treated like a binary file: comparing it line by line would take too long."""


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


def hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """The hunks of a unified diff, each with its own line end."""
    for group in _matcher(old, new).get_grouped_opcodes(CONTEXT):
        (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = group[0], group[-1]
        yield f"@@ -{_range(old_start, old_end)} +{_range(new_start, new_end)} @@\n"
        for tag, from_old, to_old, from_new, to_new in group:
            if tag == "equal":
                yield from _marked_lines(" ", old[from_old:to_old])
                continue
            yield from _marked_lines("-", old[from_old:to_old])
            yield from _marked_lines("+", new[from_new:to_new])


def _range(start: int, end: int) -> str:
    length = end - start
    first = start + 1 if length else start
    return str(first) if length == 1 else f"{first},{length}"


def _marked_lines(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


def counts(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """How many lines were added, and how many removed."""
    added = removed = 0
    for tag, from_old, to_old, from_new, to_new in _matcher(old, new).get_opcodes():
        if tag != "equal":
            removed += to_old - from_old
            added += to_new - from_new
    return added, removed


def _matcher(old: Sequence[str], new: Sequence[str]) -> SequenceMatcher[str]:
    # Lines that occur all the time make long texts slow to compare: there they are left out of the search.
    return SequenceMatcher(None, old, new, autojunk=len(old) + len(new) > 2000)


# --- changes between captures, for a reader ----------------------------------------------------------------------


class LineCounts(msgspec.Struct, frozen=True):
    """Lines added and removed; None for a file that has none, such as a picture."""

    added: int | None
    removed: int | None


class ChangeReader:
    """Reads both sides of changes. `live_root` is set where the newer side is the live tree instead of a checkpoint."""

    def __init__(self, engine: Engine, live_root: str | None = None) -> None:
        self._engine = engine
        self._live_root = live_root

    def patch(self, change: FileChange) -> str:
        """The change as a patch; permissions other than of a program are not part of it."""
        return patch_of(change.path, *self._sides(change))

    def counts(self, change: FileChange) -> LineCounts:
        old, new = self._sides(change)
        before, after = b"" if old is None else old.content, b"" if new is None else new.content
        if not is_text(before) or not is_text(after):
            return LineCounts(None, None)
        return LineCounts(*counts(lines_of(before), lines_of(after)))

    def _sides(self, change: FileChange) -> tuple[PatchSide | None, PatchSide | None]:
        old = None if change.old is None else side_of(change.old, self._stored)
        new = None if change.new is None else side_of(change.new, self._newer)
        return old, new

    def _stored(self, entry: FileEntry) -> bytes:
        return content_of(self._engine, entry)

    def _newer(self, entry: FileEntry) -> bytes:
        return self._stored(entry) if self._live_root is None else _live(self._live_root, entry)


def _live(root: str, entry: FileEntry) -> bytes:
    """The content of a file that was looked at a moment ago, if it still is the same."""
    try:
        with opened_root(root) as descriptor:
            content, _ = read_file(descriptor, entry.path, entry.size)
    except (NotRead, OSError):
        content = None
    if content is None or digest(content) != entry.digest:
        raise Conflict(f"{entry.path!r} changed while it was compared: try again", code="files_changed")
    return content
