"""Putting files in their places: prepared aside, each moved into place whole, and never through a link."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Final, Self

from stepkeep.workspace.manifest import STAGING_PREFIX, FileEntry, PrivateFolder, parents
from stepkeep.workspace.scan import DIRECTORY_FLAGS, StatSignature, opened_parent, signature_of

SYNC_EACH: Final = 64
"""Up to so many files are made durable one by one; more of them all at once."""


_NEW: Final = 0o777
"""The permissions of a new directory, but for those that the process takes away."""


class ChangedMeanwhile(Exception):
    """A path is not as the safety checkpoint has it: what is there now would be lost."""


class Staging:
    """A folder in the root where the files of one restore are prepared, for a `with` block. It is private, and gone
    afterwards; what a restore that was killed left behind is removed first. Directories that are made get the
    permissions that `private` ones had."""

    def __init__(self, root: int, private: Iterable[PrivateFolder] = ()) -> None:
        self._root = root
        self._modes = {each.path: each.mode for each in private}
        self._name = f"{STAGING_PREFIX}{secrets.token_hex(8)}"
        self._names: dict[str, str] = {}
        self._touched: set[str] = set()

    def __enter__(self) -> Self:
        remove_leftovers(self._root)
        os.mkdir(self._name, 0o700, dir_fd=self._root)
        self._folder = os.open(self._name, DIRECTORY_FLAGS, dir_fd=self._root)
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        with suppress(OSError):  # the next restore removes it
            _remove_folder(self._root, self._name, self._folder)
        os.close(self._folder)

    # --- preparing

    def prepare(self, entry: FileEntry, content: bytes) -> None:
        """Write what an entry holds, with its permissions, aside."""
        name = str(len(self._names))
        self._names[entry.path] = name
        if entry.is_link:
            os.symlink(entry.target, name, dir_fd=self._folder)
            return
        with _new_file(name, self._folder) as file:
            file.write(content)
            os.fchmod(file.fileno(), entry.mode & 0o777)
            if len(self._names) <= SYNC_EACH:
                file.flush()
                os.fsync(file.fileno())

    def prepared(self) -> None:
        """Everything is there: make it durable before the first move."""
        if len(self._names) > SYNC_EACH:
            os.sync()

    # --- moving

    def place(self, path: str, expected: StatSignature | None) -> None:
        """Move a prepared file to its path, over what is there if that is exactly as `expected`; None: nothing.

        Raises:
            ChangedMeanwhile: something else is there.
            OSError: it cannot be moved; the path is as it was.
        """
        with opened_parent(self._root, path, self._make_directory) as (directory, name):
            _check(directory, name, expected)
            try:
                os.rename(self._names[path], name, src_dir_fd=self._folder, dst_dir_fd=directory)
            except OSError as exc:
                if exc.errno != errno.EXDEV:
                    raise
                self._copy(self._names[path], directory, name)
        self._touched.add(path)

    def remove(self, path: str, expected: StatSignature) -> None:
        """Remove a file or link that is exactly as `expected`, and the directories that are empty then."""
        with opened_parent(self._root, path) as (directory, name):
            _check(directory, name, expected)
            os.unlink(name, dir_fd=directory)
        self._touched.add(path)
        for above in parents(path):
            try:
                with opened_parent(self._root, above) as (directory, name):
                    os.rmdir(name, dir_fd=directory)
            except OSError:
                return

    def placed(self) -> None:
        """Everything is in place: make the names durable, and those of directories that were made for them.

        Raises:
            OSError: they may not be.
        """
        directories = {above for path in self._touched for above in parents(path)}
        if len(directories) > SYNC_EACH:
            os.sync()
            return
        os.fsync(self._root)
        for path in sorted(directories):
            try:
                with opened_parent(self._root, f"{path}/.") as (directory, _):
                    os.fsync(directory)
            except (FileNotFoundError, NotADirectoryError):
                continue  # it became empty and was removed, which the directory above tells

    def _make_directory(self, parent: int, name: str, path: str) -> None:
        # What was private is never open for a moment, and who restores may write into it.
        _make_directory(parent, name, self._modes.get(path, _NEW) | 0o700)

    def _copy(self, prepared: str, directory: int, name: str) -> None:
        """The same where the path lies on another file system."""
        temporary = f"{STAGING_PREFIX}{secrets.token_hex(8)}"
        try:
            if stat.S_ISLNK(os.stat(prepared, dir_fd=self._folder, follow_symlinks=False).st_mode):
                os.symlink(os.readlink(prepared, dir_fd=self._folder), temporary, dir_fd=directory)
            else:
                _copy_file(self._folder, prepared, directory, temporary)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise


def write_new(root: int, entry: FileEntry, content: bytes) -> None:
    """Write what an entry holds to its path, where nothing is yet; for a folder of one's own, so nothing is synced.

    Raises:
        OSError: something is there, or a link is on the way.
    """
    with opened_parent(root, entry.path, lambda *at: _make_directory(*at[:2])) as (directory, name):
        if entry.is_link:
            os.symlink(entry.target, name, dir_fd=directory)
            return
        with _new_file(name, directory) as file:
            file.write(content)
            os.fchmod(file.fileno(), entry.mode & 0o777)


def remove_leftovers(root: int) -> None:
    """Remove the folders of restores that nobody works on any more."""
    with os.scandir(root) as listing:
        names = [each.name for each in listing if each.name.startswith(STAGING_PREFIX)]
    for name in names:
        with suppress(OSError):
            folder = os.open(name, DIRECTORY_FLAGS, dir_fd=root)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_folder(root, name, folder)
            finally:
                os.close(folder)


def _remove_folder(root: int, name: str, folder: int) -> None:
    with os.scandir(folder) as listing:
        files = [each.name for each in listing]
    for file in files:
        os.unlink(file, dir_fd=folder)
    os.rmdir(name, dir_fd=root)


def _make_directory(parent: int, name: str, mode: int = _NEW) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)


def _check(directory: int, name: str, expected: StatSignature | None) -> None:
    try:
        now = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        if expected is None:
            return
        raise ChangedMeanwhile from None
    if expected is None:
        if stat.S_ISDIR(now.st_mode):
            _remove_empty(directory, name)  # all that was in it has been removed, or this fails
            return
        raise ChangedMeanwhile
    if signature_of(now) != expected:
        raise ChangedMeanwhile


def _remove_empty(parent: int, name: str) -> None:
    """Remove a directory that holds nothing but empty ones, or `OSError`. No file or link is removed."""
    directory = os.open(name, DIRECTORY_FLAGS, dir_fd=parent)
    try:
        with os.scandir(directory) as listing:
            below = [each.name for each in listing if each.is_dir(follow_symlinks=False)]
        for each in below:
            _remove_empty(directory, each)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=parent)


def _new_file(name: str, directory: int) -> IO[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(name, flags, 0o600, dir_fd=directory), "wb")


def _copy_file(source: int, name: str, directory: int, temporary: str) -> None:
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=source)
    with os.fdopen(descriptor, "rb") as file, _new_file(temporary, directory) as copy:
        while piece := file.read(1 << 20):
            copy.write(piece)
        copy.flush()
        os.fchmod(copy.fileno(), stat.S_IMODE(os.fstat(descriptor).st_mode))
        os.fsync(copy.fileno())
