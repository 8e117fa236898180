"""The folders of a user, found without heavy imports: the same that every command uses."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def log_file(environ: Mapping[str, str]) -> str:
    """The file in which hooks note what went wrong."""
    return (
        environ.get("STEPKEEP_HOOK_LOG")
        or f"{folder_of(environ, 'XDG_STATE_HOME', '.local/state')}/hooks.log"
    )


def folder_of(environ: Mapping[str, str], variable: str, default: str) -> str:
    if sys.platform == "darwin":
        return f"{home_of(environ)}/Library/Application Support/stepkeep"
    base = environ.get(variable, "").strip() or f"{home_of(environ)}/{default}"
    return f"{base}/stepkeep"


def home_of(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111
