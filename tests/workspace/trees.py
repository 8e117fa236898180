"""Trees on disk as plain values, to be compared."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TypeAlias

Tree: TypeAlias = dict[str, tuple[int, bytes]]
"""Path -> permissions and content; of a link its kind and target."""


def tree_of(root: Path) -> Tree:
    """Every file and link below a root, but for `.git`, read without the code under test."""
    found: Tree = {}
    for name, folders, files in os.walk(root):
        folder = Path(name)
        folders[:] = [each for each in folders if each != ".git"]
        links = [each for each in folders if (folder / each).is_symlink()]
        for path in (folder / each for each in [*files, *links]):
            status, place = path.lstat(), str(path.relative_to(root))
            if stat.S_ISLNK(status.st_mode):
                found[place] = (stat.S_IFLNK, os.fsencode(path.readlink()))
            elif stat.S_ISREG(status.st_mode):
                found[place] = (stat.S_IMODE(status.st_mode), path.read_bytes())
    return found


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
