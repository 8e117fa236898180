"""Configuration files: which ones count, and what is wrong with them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from stepkeep.yaml_lines import Node, parse, read_text

PROJECT_FILE: Final = "stepkeep.yaml"
USER_FILE: Final = "config.yaml"
MAX_DEPTH: Final = 16

Scope = Literal["project", "user"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in a configuration. `source` is the file, the variable or `flag`; `line` counts from 1."""

    source: str
    line: int | None
    key: str
    message: str

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that was looked for. `is_used` is False when it is missing, or `note` says why it does not count."""

    path: Path
    scope: Scope
    exists: bool
    is_used: bool
    note: str = ""


# --- finding ---------------------------------------------------------------------------------------------------

_IS_LINUX: Final = bool(sys.platform == "linux")


def user_file() -> Path:
    """Where this user's own configuration is looked for."""
    if _IS_LINUX:
        # The same place without platformdirs, which takes longer to import than a store to open.
        folder = os.environ.get("XDG_CONFIG_HOME", "").strip() or "~/.config"
        return Path(folder, "stepkeep", USER_FILE).expanduser()
    from platformdirs import user_config_path

    return user_config_path("stepkeep") / USER_FILE


def candidates(cwd: Path | None, user_path: Path | None) -> tuple[Candidate, ...]:
    """The files that were looked for, those that win first: each folder upward to the first hit, then the user's."""
    found = [] if cwd is None else list(_upward(cwd.absolute()))
    if user_path is not None:
        exists = os.path.lexists(user_path)
        found.append(Candidate(user_path, "user", exists, exists))
    return tuple(found)


def _upward(folder: Path) -> Iterator[Candidate]:
    for parent in (folder, *folder.parents):
        path = parent / PROJECT_FILE
        if not os.path.lexists(path):
            yield Candidate(path, "project", exists=False, is_used=False)
        elif _is_planted(path):
            note = "ignored: it belongs to another user, in a folder that everyone can write to"
            yield Candidate(path, "project", exists=True, is_used=False, note=note)
        else:
            yield Candidate(path, "project", exists=True, is_used=True)
            return


def _is_planted(path: Path) -> bool:
    """Whether someone else may have put the file there, as in `/tmp`: it could send states to a store of theirs."""
    try:
        folder, file = path.parent.stat(), path.lstat()
    except OSError:
        return False  # reading it will say what is wrong
    return bool(folder.st_mode & stat.S_IWOTH) and file.st_uid not in (0, os.geteuid())


# --- reading ---------------------------------------------------------------------------------------------------


def read(path: Path) -> Node | None:
    """The content of a file, None when there is nothing but comments.

    Raises:
        Unreadable: it is not a file, too large, not UTF-8, not YAML, too deep, or uses aliases or tags.
    """
    return parse(read_text(path), max_depth=MAX_DEPTH)
