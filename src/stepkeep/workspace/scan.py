"""Walking a tree and reading its files, without ever following a link.

Every directory is opened relative to the one above it. A file whose stat signature is the recorded one is not asked
about any further; what is read is what a file held at one moment, or nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from stepkeep.codec.integrity import digest
from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput
from stepkeep.storage.port import Blob
from stepkeep.workspace.ignore import GIT_IGNORE, OWN_IGNORE, Rules
from stepkeep.workspace.manifest import (
    STAGING_PREFIX,
    UNSEEN,
    FileEntry,
    Ignored,
    PrivateFolder,
    Seen,
    Skipped,
    is_vcs_name,
)

MAX_DEPTH: Final = 200
MAX_IGNORED: Final = 1000
"""With more ignored files in one folder they are not listed one by one."""
MAX_RULES_BYTES: Final = 10_000_000
"""A larger ignore file is not read."""

DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_KIND_BITS: Final = 0o170000
_OPEN_TO_ALL: Final = 0o055
_CAPTURED: Final = frozenset({stat.S_IFREG, stat.S_IFLNK})
_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Scan:
    """The files of a tree, compared with an earlier capture of it.

    `folders` are all files and links that belong to it; `found` those whose stat signature is not
    the recorded one. `skipped` was left out for another reason than a rule. `left_out` are files and directories that
    a rule leaves out, with that rule, and `on_left_out` is called at the first of them. `own` are the paths of the
    store itself. `private` are directories that not everybody may look into. `has_leftovers` tells of folders in which
    a restore prepares, or prepared, files.
    """

    def __init__(
        self,
        own: Container[str] = (),
        *,
        known: Folders | None = None,
        on_left_out: Callable[[], None] = lambda: None,
    ) -> None:
        self.found: dict[str, StatSignature] = {}
        self.folders: Folders = {}
        self.skipped: list[Skipped] = []
        self.left_out: dict[str, Ignored] = {}
        self.private: list[PrivateFolder] = []
        self.has_leftovers = False
        self._known: Folders = {} if known is None else known
        self.own = own
        self._on_left_out = on_left_out

    def tree(self, root: int, rules: Rules) -> None:
        """Add everything below the root that no rule leaves out."""
        self._directory(root, "", rules, 0)

    def path(self, root: int, path: str) -> bool:
        """Add one path, whatever the rules say; False when nothing is there, or a directory.

        Where it cannot be told whether something is there, the path is skipped.
        """
        if path in self:
            return True
        try:
            signature = signature_of(status_of(root, path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as exc:
            self.skipped.append(Skipped(path, f"unreadable: {exc.strerror}"))
            return True
        if stat.S_ISDIR(signature[4]):
            return False
        self._file(path, signature)
        return True

    def __contains__(self, path: str) -> bool:
        return path in self.found or signature_at(self.folders, path) is not None

    def _directory(self, directory: int, path: str, rules: Rules, depth: int) -> None:
        lead = path + "/" if path else ""
        here = self._listing(directory, lead)
        rules = self._rules_within(directory, path, here, rules)
        known = self._known.get(path)
        expected = self._expected(known, here, lead, rules)
        if here == expected:
            same, more = expected, dict[str, StatSignature]()
        else:
            same = {name: signature for name, signature in expected.items() if here.get(name) == signature}
            others = {name: signature for name, signature in here.items() if name not in same}
            more = self._others(directory, lead, others, rules, depth)
        if known is not None and known.rules is rules and len(same) == len(known.signatures) and not more:
            self.folders[path] = known
        else:
            self.folders[path] = folder_of(rules, {**same, **more})

    def _listing(self, directory: int, lead: str) -> dict[str, StatSignature]:
        """The stat signature of everything in a directory."""
        try:
            with os.scandir(directory) as listing:
                # This runs for every file of the tree at every capture: it does nothing that it can spare.
                return {entry.name: signature_of(entry.stat(follow_symlinks=False)) for entry in listing}
        except OSError:
            return dict(self._listing_one_by_one(directory, lead))

    def _listing_one_by_one(self, directory: int, lead: str) -> Iterator[tuple[str, StatSignature]]:
        for name in os.listdir(directory):
            try:
                yield name, signature_of(os.stat(name, dir_fd=directory, follow_symlinks=False))
            except FileNotFoundError:
                continue  # it vanished meanwhile: it is not there
            except OSError as exc:
                self.skipped.append(Skipped(lead + name, f"unreadable: {exc.strerror}"))

    def _expected(
        self, known: FolderSignatures | None, here: Mapping[str, StatSignature], lead: str, rules: Rules
    ) -> dict[str, StatSignature]:
        """The recorded signatures of the files here that belong to the tree under these rules."""
        if known is None:
            return {}
        if known.rules is rules:
            return known.signatures
        return {
            name: signature
            for name, signature in known.signatures.items()
            if here.get(name) == signature and not self._is_left_out(lead + name, name, False, rules)
        }

    def _others(
        self, directory: int, lead: str, here: Mapping[str, StatSignature], rules: Rules, depth: int
    ) -> dict[str, StatSignature]:
        """Examine what is new or changed, descend into directories, and return the files among it."""
        files: dict[str, StatSignature] = {}
        for name, signature in here.items():
            path, is_directory = lead + name, stat.S_ISDIR(signature[4])
            if self._is_left_out(path, name, is_directory, rules):
                continue
            if is_directory:
                if signature[4] & _OPEN_TO_ALL != _OPEN_TO_ALL:
                    self.private.append(PrivateFolder(path, signature[4] & 0o777))
                self._below(directory, name, path, rules, depth + 1)
            elif self._file(path, signature):
                files[name] = signature
        return files

    def _is_left_out(self, path: str, name: str, is_directory: bool, rules: Rules) -> bool:
        if name.startswith(STAGING_PREFIX):
            self.has_leftovers = True
            return True
        if is_vcs_name(name, is_directory=is_directory):
            return True
        if path in self.own:
            return True
        rule = rules.ignored_by(path, name, is_directory)
        if not rule:
            return False
        if not self.left_out:
            self._on_left_out()
        self.left_out[path] = Ignored(f"{path}/" if is_directory else path, rule)
        return True

    def ignored(self) -> tuple[Ignored, ...]:
        """What rules left out, in order: of a folder with very many such files only that they are there."""
        folders: dict[str, list[Ignored]] = {}
        for path, each in self.left_out.items():
            folders.setdefault(path.rpartition("/")[0], []).append(each)
        found: list[Ignored] = []
        for folder, listed in folders.items():
            is_long = len(listed) > MAX_IGNORED
            found += [Ignored(f"{folder}/*" if folder else "*", listed[0].rule)] if is_long else listed
        return tuple(sorted(found, key=attrgetter("path")))

    def _rules_within(self, directory: int, path: str, names: Mapping[str, object], rules: Rules) -> Rules:
        is_repository = bool(path) and ".git" in names
        if GIT_IGNORE not in names and OWN_IGNORE not in names and not is_repository:
            return rules
        return rules.within(
            path,
            git=ignore_file(directory, GIT_IGNORE) if GIT_IGNORE in names else None,
            own=ignore_file(directory, OWN_IGNORE) if OWN_IGNORE in names else None,
            is_repository=is_repository,
        )

    def _below(self, parent: int, name: str, path: str, rules: Rules, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.skipped.append(Skipped(path + "/", f"more than {MAX_DEPTH} directories deep"))
            return
        try:
            directory = os.open(name, DIRECTORY_FLAGS, dir_fd=parent)
            try:
                self._directory(directory, path, rules, depth)
            finally:
                os.close(directory)
        except FileNotFoundError:
            return  # it vanished meanwhile: it is not there
        except OSError as exc:
            self.skipped.append(Skipped(path + "/", f"unreadable: {exc.strerror}"))

    def _file(self, path: str, signature: StatSignature) -> bool:
        kind = signature[4] & _KIND_BITS
        if kind not in _CAPTURED:
            self.skipped.append(Skipped(path, _KINDS.get(kind, "of an unknown kind")))
            return False
        self.found[path] = signature
        return True


def status_of(root: int, path: str) -> os.stat_result:
    """The status of what is at a path below the root, or `OSError`."""
    with opened_parent(root, path) as (directory, name):
        return os.stat(name, dir_fd=directory, follow_symlinks=False)


def ignore_file(directory: int, path: str) -> bytes | None:
    """An ignore file; None where it is missing, a link or unreadable. git does not follow such links either."""
    try:
        with opened_parent(directory, path) as (parent, name):
            descriptor = os.open(name, FILE_FLAGS, dir_fd=parent)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        content = file.read(MAX_RULES_BYTES + 1)
    return content if len(content) <= MAX_RULES_BYTES else None


@contextmanager
def opened_root(root: str) -> Iterator[int]:
    """The root as a directory; links on the way to it are followed, because the caller named it.

    Raises:
        InvalidInput: it is not a directory, or cannot be read.
    """
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise InvalidInput(
            f"the workspace {root!r} cannot be opened: {exc.strerror}", code="invalid_workspace"
        ) from exc
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_parent(
    root: int, path: str, make: Callable[[int, str, str], None] | None = None
) -> Iterator[tuple[int, str]]:
    """The directory of a path below the root, opened step by step without following a link, and the last name.

    `make` is called for a directory that is missing, with the one above it, its name and its path. Raises `OSError`
    where a step is not a directory.
    """
    *parents, name = path.split("/")
    current, is_own = root, False
    try:
        for depth, part in enumerate(parents, 1):
            try:
                below = os.open(part, DIRECTORY_FLAGS, dir_fd=current)
            except FileNotFoundError:
                if make is None:
                    raise
                make(current, part, "/".join(parents[:depth]))
                below = os.open(part, DIRECTORY_FLAGS, dir_fd=current)
            if is_own:
                os.close(current)
            current, is_own = below, True
        yield current, name
    finally:
        if is_own:
            os.close(current)


# --- stat signatures: what files looked like when they were captured, by directory -------------------------------

StatSignature: TypeAlias = tuple[int, int, int, int, int]
"""`mtime` and `ctime` in nanoseconds, inode, size and mode. A change of content or permissions changes `ctime`,
whatever is done to `mtime`."""

signature_of: Final[Callable[[os.stat_result], StatSignature]] = attrgetter(
    "st_mtime_ns", "st_ctime_ns", "st_ino", "st_size", "st_mode"
)

NO_SIGNATURE: Final[StatSignature] = (0, 0, 0, 0, 0)
"""A signature that no file has, so that the file is read again."""


class FolderSignatures(NamedTuple):
    """The signatures of the captured files of one directory, and the ignore rules that held there (None: unknown).

    Immutable, so that captures share those of unchanged directories.
    """

    rules: Rules | None
    signatures: dict[str, StatSignature]
    size_bytes: int = 0
    largest_bytes: int = 0


Folders: TypeAlias = dict[str, FolderSignatures]
"""Directory, empty for the root -> what was captured in it."""


def folder_of(rules: Rules | None, signatures: dict[str, StatSignature]) -> FolderSignatures:
    sizes = [signature[3] for signature in signatures.values()]
    return FolderSignatures(rules, signatures, sum(sizes), max(sizes, default=0))


def folders_of(entries: tuple[FileEntry, ...]) -> Folders:
    """The signatures that the entries of a manifest record, by directory."""
    signatures: dict[str, dict[str, StatSignature]] = {}
    for entry in entries:
        directory, _, name = entry.path.rpartition("/")
        signatures.setdefault(directory, {})[name] = recorded_signature(entry)
    return {directory: folder_of(None, found) for directory, found in signatures.items()}


def recorded_signature(entry: FileEntry) -> StatSignature:
    """The signature that an entry records."""
    seen = entry.seen
    if seen == UNSEEN:
        return NO_SIGNATURE
    mode = stat.S_IFLNK | 0o777 if entry.is_link else entry.mode
    return seen.mtime_ns, seen.ctime_ns, seen.inode, entry.size, mode


def corrected(folders: Folders, marks: Mapping[str, StatSignature | None]) -> Folders:
    """The folders with other signatures for some paths; None removes a path."""
    after, by_folder = dict(folders), dict[str, dict[str, StatSignature | None]]()
    for path, signature in marks.items():
        directory, _, name = path.rpartition("/")
        if directory in folders and name in folders[directory].signatures:
            by_folder.setdefault(directory, {})[name] = signature
    for directory, changes in by_folder.items():
        signatures = {**folders[directory].signatures, **changes}
        kept = {name: signature for name, signature in signatures.items() if signature is not None}
        after[directory] = folder_of(folders[directory].rules, kept)
    return after


def signature_at(folders: Folders, path: str) -> StatSignature | None:
    directory, _, name = path.rpartition("/")
    folder = folders.get(directory)
    return None if folder is None else folder.signatures.get(name)


def all_signatures(folders: Folders) -> Iterator[tuple[str, StatSignature]]:
    """Every path with its signature."""
    for directory, folder in folders.items():
        lead = directory + "/" if directory else ""
        for name, signature in folder.signatures.items():
            yield lead + name, signature


# --- reading what changed ----------------------------------------------------------------------------------------

BATCH_FILES: Final = 256
BATCH_BYTES: Final = 16_000_000
RACY_NS: Final = 100_000_000
COARSE_NS: Final = 2_000_000_000
"""How old a file must be before an unchanged time proves unchanged content: file systems store times in steps."""


class ContentReader:
    """Reads files below an opened root. What cannot be read is added to `skipped`; files that vanished are left out."""

    def __init__(
        self,
        engine: Engine,
        root: int,
        *,
        session: str | None,
        skipped: list[Skipped],
        began_ns: int,
        with_blobs: bool,
    ) -> None:
        self._engine = engine
        self._session = session
        self._root = root
        self._skipped = skipped
        self._began_ns = began_ns
        self._with_blobs = with_blobs
        self._databases: set[tuple[int, int]] | None = None
        self._batch: dict[str, bytes] = {}
        self._batch_bytes = 0
        self.blobs: dict[str, Blob] = {}
        self.read_files = 0

    def entries(
        self, found: dict[str, StatSignature], known: Callable[[str], FileEntry | None]
    ) -> dict[str, FileEntry]:
        """The entries of the files in `found`, by path; a file that changed since gets its new signature there."""
        entries = {}
        for path in sorted(found):
            signature, entry = found[path], known(path)
            if entry is not None and recorded_signature(entry) == signature:
                entries[path] = entry
                continue
            try:
                entries[path], found[path] = self._read(path, signature)
            except Vanished:
                continue
            except NotRead as exc:
                self._skipped.append(Skipped(path, str(exc), signature[3]))
        self._flush()
        return entries

    def _read(self, path: str, signature: StatSignature) -> tuple[FileEntry, StatSignature]:
        if stat.S_ISLNK(signature[4]):
            target = read_link(self._root, path)
            size = len(os.fsencode(target))
            return FileEntry(path, stat.S_IFLNK, size, target=target, seen=self._seen(signature)), signature
        if self._is_open_database(path, signature[2]):
            raise NotRead("this process has it open for writing, perhaps as a database")
        content, status = read_file(self._root, path, signature[3])
        signature = signature_of(status)
        self.read_files += 1
        name = digest(content)
        self._keep(name, content)
        return FileEntry(
            path, stat.S_IFREG | (signature[4] & 0o777), len(content), name, seen=self._seen(signature)
        ), signature

    def _is_open_database(self, path: str, inode: int) -> bool:
        """Whether this process has the file open for reading and writing.

        Whoever opens such a file again and closes it takes away the locks this process holds on it: a database in use
        would lose its protection. So it is not read.
        """
        if self._databases is None:
            self._databases = _open_databases()
        if any(each[0] == inode for each in self._databases):
            with suppress(OSError):
                status = status_of(self._root, path)
                return (status.st_ino, status.st_dev) in self._databases
        return False

    def _seen(self, signature: StatSignature) -> Seen:
        """Times and inode of a file; `UNSEEN` if it is so young that its content could change without changing them."""
        mtime_ns, ctime_ns, inode, _, _ = signature
        is_coarse = mtime_ns % 1_000_000_000 == 0 and ctime_ns % 1_000_000_000 == 0
        if max(mtime_ns, ctime_ns) + (COARSE_NS if is_coarse else RACY_NS) > self._began_ns:
            return UNSEEN
        return Seen(mtime_ns, ctime_ns, inode)

    def _keep(self, name: str, content: bytes) -> None:
        if not self._with_blobs or name in self.blobs or name in self._batch:
            return
        self._batch[name] = content
        self._batch_bytes += len(content)
        if len(self._batch) >= BATCH_FILES or self._batch_bytes >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Compress what the store does not have; only that stays in memory."""
        stored = self._engine.backend.has_blobs(list(self._batch), self._session) if self._batch else set()
        for name, content in self._batch.items():
            if name not in stored:
                self.blobs[name] = self._engine.make_blob(content)
        self._batch, self._batch_bytes = {}, 0


# --- reading one file --------------------------------------------------------------------------------------------

TRIES: Final = 3


class NotRead(Exception):
    """Why a file was not read, in a few words."""


class Vanished(NotRead):
    """The file is not there any more."""


def read_file(root: int, path: str, size: int) -> tuple[bytes, os.stat_result]:
    """The content of a file below the root, and its status then; `size` is what the scan saw.

    Raises:
        NotRead: it cannot be read, or changes all the time. `Vanished`: it is gone.
    """
    with _parent_to_read(root, path) as (directory, name):
        for _ in range(TRIES):
            read = _read(directory, name, size)
            if read is not None:
                return read
    raise NotRead("changes while it is read")


@contextmanager
def _parent_to_read(root: int, path: str) -> Iterator[tuple[int, str]]:
    try:
        with opened_parent(root, path) as found:
            yield found
    except FileNotFoundError as exc:
        raise Vanished("it vanished") from exc
    except OSError as exc:
        is_other = exc.errno in (errno.EINVAL, errno.ELOOP)  # a link became a file, or the reverse
        raise NotRead("it became something else" if is_other else f"unreadable: {exc.strerror}") from exc


def _read(directory: int, name: str, size: int) -> tuple[bytes, os.stat_result] | None:
    descriptor = os.open(name, FILE_FLAGS, dir_fd=directory)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise NotRead("it became something else")
        if before.st_size > max(2 * size, size + 1_000_000):
            raise NotRead("changes while it is read")  # the caps were checked for its size a moment ago
        content = _at_most(file.fileno(), before.st_size + 1)
        after = os.fstat(descriptor)
    is_still = signature_of(before) == signature_of(after) and len(content) == after.st_size
    return (content, after) if is_still else None


def _at_most(descriptor: int, limit: int) -> bytes:
    pieces, size = [], 0
    while size < limit and (piece := os.read(descriptor, min(limit - size, 1 << 24))):
        pieces.append(piece)
        size += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_link(root: int, path: str) -> str:
    """Where a link points to, as it is written there."""
    with _parent_to_read(root, path) as (directory, name):
        return os.readlink(name, dir_fd=directory)


def _open_databases() -> set[tuple[int, int]]:
    """Inode and device of the files this process has open for reading and writing."""
    found = set()
    for each in os.scandir("/dev/fd"):
        with suppress(OSError):
            status = os.fstat(int(each.name))
            is_both = fcntl.fcntl(int(each.name), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
            if is_both and stat.S_ISREG(status.st_mode):
                found.add((status.st_ino, status.st_dev))
    return found
