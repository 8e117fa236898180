"""Command files for coding agents, installed on request."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Final

from holdfast.errors import BackendUnavailable, InvalidInput

COMMAND_FILE: Final = "checkpoint.md"
DIRECTORY: Final = Path(".claude") / "commands"
"""Where coding agents look for the commands of a project."""


def command_text() -> str:
    """The `/checkpoint` command as a Markdown command file."""
    return resources.files(__name__).joinpath(COMMAND_FILE).read_text(encoding="utf-8")


def install_command(project: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the `/checkpoint` command into a project, and return its path. Repeating it is harmless.

    Raises:
        InvalidInput: another file is there (code `file_exists`), and `overwrite` was not given.
        BackendUnavailable: it could not be written.
    """
    path, text = Path(project) / DIRECTORY / COMMAND_FILE, command_text()
    try:
        if path.is_symlink() or (
            path.exists() and path.read_text(encoding="utf-8", errors="replace") != text
        ):
            if not overwrite:
                raise InvalidInput(
                    f"{path} exists and is another file: keep it, or overwrite it", code="file_exists"
                )
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise BackendUnavailable(
            f"{path} could not be written: {exc}", code="export_failed", retryable=False
        ) from exc
    return path
