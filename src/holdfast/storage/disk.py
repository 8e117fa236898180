"""Facts about the file system under a store, and making names in a directory durable."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

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


def network_file_system(path: Path) -> str | None:
    """The type of the network file system `path` is on, None when it is local or cannot be told."""
    kind = file_system_type(path)
    return kind if kind in NETWORK_TYPES else None


def file_system_type(path: Path) -> str | None:
    """The type of the file system `path` is on, where the kernel tells."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return type_at(os.path.realpath(path), mounts)


def type_at(path: str, mountinfo: str) -> str | None:
    """The type of the mount that holds `path`: of those on the way to it the deepest, and of these the last."""
    best, kind = "", None
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        if not separator:
            continue
        mount = _unescape(left.split(" ")[4])
        if (path == mount or path.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, right.split(" ")[0]
    return kind


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def sync_directory(directory: int | Path) -> None:
    """Make the names in a directory durable. A failure is raised: it means the names may be lost."""
    if isinstance(directory, int):
        os.fsync(directory)
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private_directory(path: Path) -> None:
    """Make a directory, and those above it that are missing, each for its owner only."""
    if path.is_dir():
        return
    make_private_directory(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    sync_directory(path.parent)
