"""Files written so that they survive a kill and a loss of power, in folders that are never left.

Every folder is opened part by part from the root without following links, and every file relative to its folder:
no name leads outside (V10). A new file is written under a temporary name of its own, synced, and only then given
its name by a link, which fails if the name is taken. A sync that failed is a failed write: the file is thrown away
and never synced again, since the second answer would not be true.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from stepkeep.errors import SCHEMA_INVALID, WRITE_FAILED, BackendUnavailable, Corrupt
from stepkeep.storage.files.layouts import temporary_name

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS: Final = frozenset(
    {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL}
)
"""How file systems say that they have no hard links, or no more of them."""

_FINAL: Final = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EFBIG,
        errno.ENOTDIR,
        errno.ELOOP,
    }
)
"""Failures that a repeat will not mend."""


class Fingerprint(NamedTuple):
    """What tells without reading that a file is still the one that was written."""

    size: int
    mtime_ns: int


class OpenFolder:
    """An open directory, closed at the end of its `with` block. All names are of files directly in it."""

    def __init__(self, descriptor: int, root: Path, location: str) -> None:
        self._fd = descriptor
        self._root = root
        self.location = location

    def __str__(self) -> str:
        return str(self._root / self.location)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def below(self, name: str, *, create: bool = False) -> OpenFolder:
        """A folder directly in this one, opened without following links."""
        return OpenFolder(_enter(self._fd, name, create=create), self._root, f"{self.location}/{name}")

    # --- writing

    def write_temporary(self, content: bytes) -> str:
        """A new synced file under a name of its own; nothing is left of one that could not be written."""
        name = temporary_name(secrets.token_hex(8))
        descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=self._fd)
        try:
            try:
                _write_all(descriptor, content)
                sync_file(descriptor)
            finally:
                os.close(descriptor)
        except BaseException:
            self.discard(name)
            raise
        return name

    def give_name(self, temporary: str, name: str) -> None:
        """Let a finished file be found under its name, which nothing has yet; `FileExistsError` if something has."""
        try:
            os.link(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd, follow_symlinks=False)
        except OSError as exc:
            if exc.errno not in _NO_LINKS:
                raise
            self._move_to_free(temporary, name)
        else:
            self.discard(temporary)  # where that fails it is a second name of the file, cleaned away later

    def _move_to_free(self, temporary: str, name: str) -> None:
        """Take the name with an empty file first, so that what replaces it by a rename replaces nobody's work."""
        os.close(os.open(name, _NEW_FILE, 0o600, dir_fd=self._fd))
        try:
            os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            self.discard(name)
            raise

    def put(self, name: str, content: bytes) -> None:
        """Write a file durably, over another one of that name in one step; the name is durable after `sync`."""
        temporary = self.write_temporary(content)
        try:
            self.replace(temporary, name)
        except BaseException:
            self.discard(temporary)
            raise

    def replace(self, temporary: str, name: str) -> None:
        """Let a finished file replace another in one step."""
        os.rename(temporary, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def move(self, name: str, target: OpenFolder, new_name: str) -> None:
        """Move a file over whatever is there, in one step."""
        os.rename(name, new_name, src_dir_fd=self._fd, dst_dir_fd=target._fd)

    def link(self, name: str, target: OpenFolder, new_name: str) -> bool:
        """Give a file a second name in another folder; where there are no links an independent copy, and False.

        Raises:
            FileExistsError: the name is taken by another file.
        """
        try:
            os.link(name, new_name, src_dir_fd=self._fd, dst_dir_fd=target._fd, follow_symlinks=False)
        except FileExistsError:
            one = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            if not os.path.samestat(one, os.stat(new_name, dir_fd=target._fd, follow_symlinks=False)):
                raise
        except OSError as exc:
            if exc.errno not in _NO_LINKS:
                raise
            target.give_name(target.write_temporary(self.read(name, limit=None)), new_name)
            return False
        return True

    def sync(self) -> None:
        """Make the names in the folder durable."""
        os.fsync(self._fd)

    def remove(self, name: str, *, secure: bool = False) -> None:
        """Remove a file, if it is there; with `secure` its bytes are overwritten first."""
        with suppress(FileNotFoundError):
            if secure:
                self._overwrite(name)
            os.unlink(name, dir_fd=self._fd)

    def occupy(self, name: str) -> None:
        """Put an empty file where there is none, so that its removal can be synced.

        What is gone already was removed by someone whose sync may have failed, and then may come back.
        """
        with suppress(OSError):
            os.close(os.open(name, _NEW_FILE, 0o600, dir_fd=self._fd))

    def _overwrite(self, name: str) -> None:
        with suppress(OSError):  # a symbolic link or a directory is only removed
            descriptor = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                _write_all(descriptor, bytes(os.fstat(descriptor).st_size))
                sync_file(descriptor)
            finally:
                os.close(descriptor)

    def discard(self, name: str) -> None:
        """Remove what is of no use any more; a failure leaves a leftover, which is cleaned later."""
        with suppress(OSError):
            os.unlink(name, dir_fd=self._fd)

    # --- reading

    def read(self, name: str, *, limit: int | None) -> bytes:
        """The bytes of a regular file of at most `limit` bytes.

        Raises:
            Corrupt: it is a symbolic link, not a regular file, or too large (`checkpoint_schema_invalid`).
        """
        try:
            descriptor = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self._fd
            )
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                raise Corrupt(f"{self}/{name} is a symbolic link: not followed", code=SCHEMA_INVALID) from exc
            raise
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise Corrupt(f"{self}/{name} is not a regular file", code=SCHEMA_INVALID)
            if limit is not None and found.st_size > limit:
                raise Corrupt(
                    f"{self}/{name} has {found.st_size} bytes, more than any checkpoint", code=SCHEMA_INVALID
                )
        except BaseException:
            os.close(descriptor)  # a directory cannot even be wrapped in a file
            raise
        with os.fdopen(descriptor, "rb") as file:
            return file.read() if limit is None else file.read(limit + 1)

    def fingerprint(self, name: str) -> Fingerprint:
        found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        return Fingerprint(found.st_size, found.st_mtime_ns)

    def look(self, name: str) -> Fingerprint | None:
        """The fingerprint of a file, None when there is none."""
        try:
            return self.fingerprint(name)
        except FileNotFoundError:
            return None

    def has(self, name: str) -> bool:
        return self.look(name) is not None

    def entries(self) -> list[os.DirEntry[str]]:
        with os.scandir(self._fd) as found:
            return list(found)


class Tree:
    """The root of a store, and the folders below it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, location: str, *, create: bool = False) -> OpenFolder:
        """A folder below the root, opened without following links; the root itself is never made here.

        Raises:
            FileNotFoundError: it is not there.
            NotADirectoryError: a part of the way is a file or a symbolic link.
        """
        return OpenFolder(self._descend(location, create=create), self.root, location)

    def _descend(self, location: str, *, create: bool = False, sync: bool = False) -> int:
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in location.split("/"):
            try:
                if sync:
                    os.fsync(descriptor)
                below = _enter(descriptor, part, create=create)
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor

    def sync_way(self, location: str) -> None:
        """Make the names on the way from the root to a folder durable."""
        os.close(self._descend(location, sync=True))

    def entries(self, location: str) -> list[os.DirEntry[str]]:
        """What is in a folder; nothing if it is not there."""
        with suppress(FileNotFoundError), self.folder(location) as folder:
            return folder.entries()
        return []

    def fingerprint(self, file: str) -> Fingerprint | None:
        """The fingerprint of a regular file, None when there is none."""
        try:
            found = os.lstat(self.root / file)
        except OSError:
            return None
        return Fingerprint(found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None

    def remove_empty(self, location: str) -> None:
        """Remove a folder if nothing is in it."""
        with suppress(OSError):
            (self.root / location).rmdir()


def split(file: str) -> tuple[str, str]:
    """The folder and the name of a file."""
    location, _, name = file.rpartition("/")
    return location, name


def _enter(parent: int, part: str, *, create: bool) -> int:
    try:
        return os.open(part, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(part, 0o700, dir_fd=parent)
        try:
            os.fsync(parent)
        except OSError:  # one whose sync failed must be made anew to be synced anew
            with suppress(OSError):
                os.rmdir(part, dir_fd=parent)
            raise
    return os.open(part, _DIRECTORY, dir_fd=parent)


def _write_all(descriptor: int, content: bytes) -> None:
    """A write may take only a part; what is left is written again until it is refused."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def sync_file(descriptor: int) -> None:
    """Let the disk itself have the data; macOS does so only when asked in its own way."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn failures of the file system into a failed write."""
    try:
        yield
    except OSError as exc:
        what = f"{exc.filename} in {path}" if isinstance(exc.filename, str) else path
        raise BackendUnavailable(
            f"{what} could not be written: {exc.strerror or exc}; nothing was stored",
            code=WRITE_FAILED,
            retryable=exc.errno not in _FINAL,
        ) from exc
