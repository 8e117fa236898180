"""The manifest: which files a checkpoint holds, as one JSON value, sorted, so that deltas of it are small.

Inside the process a path is the text that `os.fsdecode` gives. In a manifest it is readable text: UTF-8 where the
bytes are UTF-8, `\\xNN` for every other byte, and a backslash doubled. Both ways are exact.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from stepkeep import typed
from stepkeep.codec import exact
from stepkeep.engine import NewBody
from stepkeep.errors import Corrupt, InvalidInput, Unsupported

VERSION: Final = 1

MAX_REPLACED: Final = 8
"""With more changes than this a list is written anew: each is searched for in all of it."""

_ENTRIES: Final = b',"entries":['
"""Where the entries begin: text has no such quotes."""


class Seen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When and where a file was seen: as long as all of it is the same, so is the content.

    All zero for a file so young that it could have changed again without a trace.
    """

    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0


UNSEEN: Final = Seen()


class FileEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One file or symbolic link. `mode` is that of git: type and permissions. A link has a `target`, no digest."""

    path: str
    mode: int
    size: int
    digest: str = ""
    target: str = ""
    seen: Seen = UNSEEN

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)

    def is_same(self, other: FileEntry | None) -> bool:
        """Whether content, permissions and kind are the same."""
        return (
            other is not None
            and self.digest == other.digest
            and self.mode == other.mode
            and self.target == other.target
        )


class Skipped(msgspec.Struct, frozen=True, array_like=True):
    """Something that is there and was not captured, and why. A directory ends in a slash."""

    path: str
    reason: str
    size: int = 0


class Ignored(msgspec.Struct, frozen=True, array_like=True):
    """Something that was there and that a rule left out: the rule as a reader knows it. A directory ends in a slash;
    `folder/*` stands for more files of a folder than are listed one by one."""

    path: str
    rule: str


class PrivateFolder(msgspec.Struct, frozen=True, array_like=True):
    """A directory that not everybody may look into, and its permissions."""

    path: str
    mode: int


class GitState(msgspec.Struct, frozen=True, kw_only=True):
    """Where the repository stood: commit and branch (None: none yet, or detached), and whether tracked files differed.

    `prefix` is the location of the workspace below the top of the repository, empty or with a slash at its end.
    """

    commit: str | None = None
    branch: str | None = None
    is_dirty: bool = False
    prefix: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A captured tree. `absent` are paths that were looked for, whatever the rules, and were not there.

    `left_out` is what git tracks and nobody looked at: a rule of ours leaves it out, or it is not checked out. A
    directory ends in a slash. `ignored` is all that a rule left out; where it is None an earlier release captured the
    tree, and what was left out is not known. `git_problem` says why git could not tell what it tracks: then also
    tracked files are among those. Of directories only those are recorded that are `private`: the others get the
    permissions that new ones have.
    """

    version: int = VERSION
    root: str = ""
    git: GitState | None = None
    git_problem: str = ""
    skipped: tuple[Skipped, ...] = ()
    absent: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    ignored: tuple[Ignored, ...] | None = None
    private: tuple[PrivateFolder, ...] = ()
    entries: tuple[FileEntry, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def blobs(self) -> frozenset[str]:
        """The digests of all contents."""
        digests = {entry.digest for entry in self.entries}
        digests.discard("")  # what a link has
        return frozenset(digests)

    def by_path(self) -> dict[str, FileEntry]:
        return {entry.path: entry for entry in self.entries}


def body_of(manifest: Manifest) -> NewBody:
    """The body that stores a manifest; it names every blob."""
    return stored_as(manifest, msgspec.json.encode(_renamed(manifest, to_text)))


def stored_as(manifest: Manifest, content: bytes) -> NewBody:
    """The body of a manifest whose bytes are known."""
    return NewBody(
        content,
        exact.JSON,
        manifest.blobs,
        count=len(manifest.entries),
        total_bytes=manifest.size_bytes,
    )


def body_after(manifest: Manifest, before: bytes, replaced: Sequence[tuple[FileEntry, FileEntry]]) -> NewBody:
    """The same body, made from an earlier one in which only the `replaced` entries (old, new) differ."""
    edits = _edits(before, replaced)
    if edits is None:
        return body_of(manifest)
    head = msgspec.json.encode(_renamed(msgspec.structs.replace(manifest, entries=()), to_text))
    pieces, at = [head[: head.index(_ENTRIES)]], before.index(_ENTRIES)
    for start, end, new in edits:
        pieces += [before[at:start], new]
        at = end
    return stored_as(manifest, b"".join([*pieces, before[at:]]))


def _edits(
    before: bytes, replaced: Sequence[tuple[FileEntry, FileEntry]]
) -> list[tuple[int, int, bytes]] | None:
    """Where each old entry is, and what takes its place; None where that would take longer than writing all anew."""
    if len(replaced) > MAX_REPLACED:
        return None
    edits = []
    for old, new in replaced:
        # A text never holds the quotes that an entry begins with, so what is found is the entry and nothing else.
        piece, other = (msgspec.json.encode(_renamed_entry(each, to_text)) for each in (old, new))
        start = before.find(piece)
        if start < 0:
            return None
        edits.append((start, start + len(piece), other))
    return sorted(edits)


def manifest_of(content: bytes) -> Manifest:
    """The manifest in a body whose bytes were verified.

    Raises:
        Corrupt: it is not a manifest, or names something outside its root.
        Unsupported: a newer release wrote it.
    """
    try:
        manifest = typed.from_json(content, Manifest)
    except msgspec.DecodeError as exc:
        raise Corrupt(f"the list of files is damaged: {exc}") from exc
    if manifest.version != VERSION:
        raise Unsupported(f"this list of files has version {manifest.version}: a newer release wrote it")
    _check(manifest.entries)
    return _renamed(manifest, from_text)


def _check(entries: Iterable[FileEntry]) -> None:
    previous, safe_folders = "", {""}
    for entry in entries:
        path = entry.path
        if not _is_safe_below(path if _is_plain(path) else from_text(path), safe_folders) or path <= previous:
            raise Corrupt(f"the list of files names {path[:200]!r}, which cannot be there")
        if not (stat.S_ISREG(entry.mode) and entry.digest) and not entry.is_link:
            raise Corrupt(f"the list of files has {path[:200]!r}, which is neither a file nor a link")
        previous = path


def _renamed(manifest: Manifest, rename: Callable[[str], str]) -> Manifest:
    """The manifest with every name spelled the other way; almost always there is nothing to do."""
    git = manifest.git
    entries = [
        entry if _is_plain(entry.path) and _is_plain(entry.target) else _renamed_entry(entry, rename)
        for entry in manifest.entries
    ]
    return msgspec.structs.replace(
        manifest,
        root=rename(manifest.root),
        git=git and msgspec.structs.replace(git, prefix=rename(git.prefix)),
        skipped=tuple(msgspec.structs.replace(each, path=rename(each.path)) for each in manifest.skipped),
        absent=tuple(map(rename, manifest.absent)),
        left_out=tuple(map(rename, manifest.left_out)),
        ignored=manifest.ignored
        and tuple(msgspec.structs.replace(each, path=rename(each.path)) for each in manifest.ignored),
        private=tuple(msgspec.structs.replace(each, path=rename(each.path)) for each in manifest.private),
        entries=tuple(sorted(entries, key=attrgetter("path")) if rename is to_text else entries),
    )


def _is_plain(text: str) -> bool:
    """Whether both spellings are the same."""
    return text.isascii() and "\\" not in text


def _renamed_entry(entry: FileEntry, rename: Callable[[str], str]) -> FileEntry:
    return msgspec.structs.replace(entry, path=rename(entry.path), target=rename(entry.target))


# --- names of files: as text, and which are never touched --------------------------------------------------------

VCS_FOLDERS: Final = frozenset({".hg", ".svn", ".bzr", ".jj", ".pijul", "_darcs", "CVS"})
"""Folders that belong to a version control system: never read, never written, whatever a rule says. So does `.git`,
in any case, and also as a file."""

STAGING_PREFIX: Final = ".stepkeep-restore-"
"""How the folder is called in which a restore prepares its files; it is never captured."""

_ESCAPED: Final = re.compile(rb"\\(\\|x[0-9a-f]{2})?")


def to_text(path: str) -> str:
    """A path of this process as readable text."""
    if _is_plain(path):
        return path
    raw = os.fsencode(path).replace(b"\\", b"\\\\")
    return raw.decode("utf-8", "backslashreplace")


def from_text(text: str) -> str:
    """The path that readable text stands for.

    Raises:
        Corrupt: no path has that text.
    """
    if _is_plain(text):
        return text

    def unescaped(match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            raise Corrupt(f"{text[:200]!r} is not the name of a file")
        return b"\\" if match[1] == b"\\" else bytes([int(match[1][1:], 16)])

    return os.fsdecode(_ESCAPED.sub(unescaped, text.encode("utf-8", "surrogatepass")))


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


def _is_safe_below(path: str, safe_folders: set[str]) -> bool:
    """The same as `is_safe` for one of many paths; folders that were found safe are remembered."""
    folder, slash, name = path.rpartition("/")
    if folder not in safe_folders or (slash and not folder):
        if not is_safe(path):
            return False
        safe_folders.add(folder)
    return "\0" not in name and _is_safe_name(name, is_directory=False)


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
        self._tops = frozenset(self.paths)

    def __contains__(self, path: str) -> bool:
        tops = self._tops
        return not tops or "" in tops or path in tops or any(above in tops for above in parents(path))

    def naming_none(self, paths: Iterable[str]) -> list[str]:
        """Those that mean none of some paths."""
        if not any(self.paths):
            return []
        found = frozenset(name for path in paths for name in (path, *parents(path)))
        return [each for each in self.paths if each and each not in found]


def _cleaned(path: str) -> str:
    if not path:
        raise InvalidInput(
            "a path is empty: name a file or a folder, or '.' for all of them", code="invalid_file_path"
        )
    cleaned = os.path.normpath(path)
    if cleaned == ".":
        return ""
    if cleaned.startswith("/") or not is_safe(cleaned):
        raise InvalidInput(
            f"'{to_text(path)}' is not a path below the workspace: give it relative to its root",
            code="invalid_file_path",
        )
    return cleaned
