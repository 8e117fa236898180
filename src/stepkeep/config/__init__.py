"""Configuration: files, environment and flags become settings that say where each value came from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stepkeep.config.files import Candidate, Problem, user_file
from stepkeep.config.settings import Origin, Setting, Settings, inspect, load

__all__ = [
    "Candidate",
    "Origin",
    "Problem",
    "Setting",
    "Settings",
    "here",
    "inspect",
    "inspect_here",
    "load",
    "user_file",
]


def here(flags: Mapping[str, object] | None = None) -> Settings:
    """The settings of this process: its working directory, environment and user, under the given flags.

    Raises:
        InvalidInput: code `invalid_config`, as `load`.
    """
    return load(cwd=_cwd(), environ=os.environ, flags=flags, user_path=user_file())


def inspect_here(flags: Mapping[str, object] | None = None) -> tuple[Settings, tuple[Problem, ...]]:
    """As `here`, but with the problems as a result."""
    return inspect(cwd=_cwd(), environ=os.environ, flags=flags, user_path=user_file())


def _cwd() -> Path | None:
    """The working directory; None when it was removed under us."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None
