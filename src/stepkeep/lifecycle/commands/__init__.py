"""Command files for coding agents, installed on request."""

from __future__ import annotations

import os
import re
import shlex
from importlib import resources
from pathlib import Path
from typing import Final

from stepkeep.errors import BackendUnavailable, InvalidInput

COMMAND_FILE: Final = "checkpoint.md"
DIRECTORY: Final = Path(".claude") / "commands"
"""Where coding agents look for the commands of a project."""

_PLACES: Final = ("{program}", "{store}")
"""What differs between the files that we write."""


def command_text(program: str = "stepkeep", store: str | None = None) -> str:
    """The `/checkpoint` command as a Markdown command file: how it calls us, and with which store if it names one."""
    option = "" if store is None else f" --store {shlex.quote(store)}"
    return _template().replace("{program}", program).replace("{store}", option)


def install_command(project: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the `/checkpoint` command into a project, and return its path. Repeating it is harmless.

    Raises:
        InvalidInput: another file is there (code `file_exists`), and `overwrite` was not given.
        BackendUnavailable: it could not be written.
    """
    path = Path(project) / DIRECTORY / COMMAND_FILE
    write_command(path, command_text(), overwrite=overwrite)
    return path


def check_command(path: Path) -> None:
    """See whether a command file may be written: nothing is there, or what we wrote before, for whichever store.

    Raises:
        InvalidInput: another file is there, or a link (`file_exists`).
        BackendUnavailable: it cannot be read.
    """
    try:
        is_free = not path.is_symlink() and (not path.exists() or _is_ours(path))
    except OSError as exc:
        raise _failed(path, exc) from exc
    if not is_free:
        raise InvalidInput(
            f"{path} exists and is another file: keep it, or use --force to replace it", code="file_exists"
        )


def write_command(path: Path, text: str, *, overwrite: bool = False) -> None:
    """Write a command file in place of one that we wrote before, with `overwrite` of any. Raises as `check_command`."""
    if not overwrite:
        check_command(path)
    try:
        if path.is_symlink():
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise _failed(path, exc) from exc


def _template() -> str:
    return resources.files(__name__).joinpath(COMMAND_FILE).read_text(encoding="utf-8")


def _is_ours(path: Path) -> bool:
    """Whether a file says what ours says, whichever program and store it names."""
    pattern = re.escape(_template())
    for place in _PLACES:
        pattern = pattern.replace(re.escape(place), ".*")
    return re.fullmatch(pattern, path.read_text(encoding="utf-8", errors="replace")) is not None


def _failed(path: Path, exc: OSError) -> BackendUnavailable:
    return BackendUnavailable(f"{path} could not be written: {exc}", code="export_failed", retryable=False)
