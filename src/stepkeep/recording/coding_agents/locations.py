"""Where a hook saves and where it logs: the same folders that every command uses, found without heavy imports."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepkeep.config import Settings

BUSY_SECONDS = 1.5
"""How long a hook waits for a store that others write to. The agent waits for the hook."""

_FILE = "stepkeep.yaml"


def store_url(given: str | None, environ: Mapping[str, str], cwd: str | None) -> str:
    """The store of a hook: the one it was given, else that of the environment, of the configuration, of the user.

    Raises:
        InvalidInput: the configuration is wrong.
    """
    if url := given or environ.get("STEPKEEP_STORE"):
        return url
    found = settings(environ, cwd)
    if found is not None and (url := found.store_url()):
        return url
    return f"sqlite:{data_folder(environ)}/stepkeep.db"


def settings(environ: Mapping[str, str], cwd: str | None) -> Settings | None:
    """The settings, where a file may have any; None means the defaults.

    Raises:
        InvalidInput: the configuration is wrong.
    """
    if not _has_configuration(environ, cwd):
        return None
    from stepkeep import config

    return config.here()


def _has_configuration(environ: Mapping[str, str], cwd: str | None) -> bool:
    """Whether there is a file. Reading one takes longer than all the rest."""
    if os.path.lexists(f"{folder_of(environ, 'XDG_CONFIG_HOME', '.config')}/config.yaml"):
        return True
    folder = cwd
    while folder:
        if os.path.lexists(f"{folder.rstrip('/')}/{_FILE}"):
            return True
        folder = os.path.dirname(folder) if folder != "/" else ""  # noqa: PTH120
    return False


def cwd() -> str | None:
    """The working directory; None when it was removed under us."""
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return None


def data_folder(environ: Mapping[str, str]) -> str:
    return folder_of(environ, "XDG_DATA_HOME", ".local/share")


def phases_home(environ: Mapping[str, str]) -> str | None:
    """The folder with the phase checkpoints of other programs, None when there is none."""
    home = environ.get("STEPKEEP_PHASES") or f"{home_of(environ)}/.pai"
    return home if os.path.isdir(f"{home}/checkpoints") else None  # noqa: PTH112


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
