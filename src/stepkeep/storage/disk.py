"""Facts about the file system under a store, and making names in a directory durable.

What opens a SQLite store takes paths as text as well: hooks of agents do without `pathlib`, whose import takes longer.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Final

from stepkeep.errors import BackendUnavailable, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NETWORK_TYPES: Final = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "ceph",
        "glusterfs",
        "lustre",
        "afs",
        "fuse.sshfs",
        "fuse.glusterfs",
    }
)


def file_system_type(path: str | Path) -> str | None:
    """The type of the file system `path` is on, where the kernel tells."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            mounts = file.read()
    except OSError:
        return None
    name = os.path.realpath(path)
    best, kind = "", None  # of the mounts on the way to it the deepest, and of these the last
    for line in mounts.splitlines():
        left, separator, right = line.partition(" - ")
        if not separator:
            continue
        mount = left.split(" ")[4]
        if "\\" in mount:
            import re  # seldom has a mount such a name

            mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount)
        if (name == mount or name.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, right.split(" ")[0]
    return kind


def sync_directory(directory: int | str | Path) -> None:
    """Make the names in a directory durable. A failure is raised: it means the names may be lost."""
    if isinstance(directory, int):
        os.fsync(directory)
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_way_to(directory: str) -> None:
    """Make the names of a directory and of those above it durable, as far up as they belong to this user.

    Whoever made them may have been stopped before it could, and nothing tells that afterwards.
    """
    above = directory
    while above != (above := os.path.dirname(above)):
        try:
            if os.stat(above).st_uid != os.geteuid():
                return
            sync_directory(above)
        except PermissionError:
            return


def make_private_directory(path: str | Path) -> None:
    """Make a directory, and those above it that are missing, each for its owner only."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path) or "."
    make_private_directory(parent)
    try:
        os.mkdir(path, mode=0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return
    try:
        sync_directory(parent)
    except OSError:
        # A name whose sync failed may never become durable. Made anew, it is synced anew.
        with suppress(OSError):
            os.rmdir(path)
        raise


def temporary_beside(path: Path, ending: str = "tmp") -> Path:
    """A name that nothing has yet, in the same directory, so that it can be moved into place."""
    return path.with_name(f".stepkeep-{os.urandom(8).hex()}.{ending}")


def write_new(path: Path, content: bytes) -> None:
    """Write a new file durably, for its owner only; its name becomes durable with the directory."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def check_replaceable(path: Path) -> None:
    """Refuse to put a file where a directory, a device or a pipe is: replacing `/dev/null` breaks a machine."""
    if path.is_dir():
        raise InvalidInput(f"{path} is a directory: name a file in it", code="not_a_file")
    if path.exists() and not path.is_file():
        raise InvalidInput(f"{path} is a device or a pipe, not a file: name a file", code="not_a_file")


def put_in_place(temporary: Path, path: Path, *, replace: bool) -> None:
    """Give a finished file its name, durably; without `replace` an existing one is `FileExistsError`."""
    if replace or not _linked(temporary, path):
        temporary.replace(path)
    sync_directory(path.parent)


def _linked(temporary: Path, path: Path) -> bool:
    """Link the file under its name, which unlike a rename never replaces; False where links are not possible."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:
        if path.exists():
            raise FileExistsError(path) from None
        return False
    temporary.unlink()
    return True


def write_file(path: Path, content: bytes, *, force: bool) -> None:
    """Write a file whole or not at all, durable, for its owner only, and over an existing one only with `force`.

    Raises:
        InvalidInput: there is something at `path` that must not be replaced.
        BackendUnavailable: it cannot be written (`export_failed`).
    """
    with new_file(path, force=force) as file:
        file.write(content)


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """The same for a file that is written piece by piece; it gets its name when the block ends without an error."""
    check_replaceable(path)
    temporary = temporary_beside(path)
    with file_errors(path, code="export_failed"):
        try:
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            put_in_place(temporary, path, replace=force)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def file_errors(path: Path, *, code: str) -> Iterator[None]:
    """Turn the errors of writing `path` into ours: `file_exists` for one that is in the way, else `code`."""
    try:
        yield
    except FileExistsError as exc:
        raise InvalidInput(f"{path} exists: use --force to replace it", code="file_exists") from exc
    except (OSError, ValueError) as exc:
        if isinstance(exc, InvalidInput):
            raise
        reason = getattr(exc, "strerror", None) or exc
        raise BackendUnavailable(f"{path} cannot be written: {reason}", code=code, retryable=False) from exc
