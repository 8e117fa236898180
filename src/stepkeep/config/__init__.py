"""Configuration: files, environment and flags become settings that say where each value came from.

In here: every key (`schema`), where the files are, which source wins, and the rules for a session that follow
(`settings`). Not in here: what a profile keeps (`policy`), and YAML itself (`yaml_lines`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from stepkeep.config.settings import AnyPath, ConfigFile, Setting, Settings, data_folder, inspect, user_file
from stepkeep.errors import InvalidInput

if TYPE_CHECKING:
    from stepkeep.config.schema import Problem

__all__ = [
    "Config",
    "Settings",
    "data_folder",
    "here",
    "inspect",
    "inspect_config",
    "inspect_here",
    "load",
    "user_file",
]


def load(
    *,
    cwd: AnyPath | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object] | None = None,
    user_path: AnyPath | None = None,
) -> Settings:
    """The settings from all sources. Nothing but the arguments and the files they lead to is read.

    `flags` are values by dotted key; a None counts as not given. Without `cwd` or `user_path` that file is left out.

    Raises:
        InvalidInput: code `invalid_config`; the message lists every problem with its file and line.
    """
    settings, problems = inspect(cwd=cwd, environ=environ, flags=flags, user_path=user_path)
    if problems:
        number = "" if len(problems) == 1 else f"{len(problems)} problems: "
        text = "; ".join(problem.text for problem in problems)
        raise InvalidInput(f"bad configuration: {number}{text}", code="invalid_config")
    return settings


def here(flags: Mapping[str, object] | None = None) -> Settings:
    """The settings of this process: its working directory, environment and user, under the given flags.

    Raises:
        InvalidInput: code `invalid_config`, as `load`.
    """
    return load(cwd=_cwd(), environ=os.environ, flags=flags, user_path=user_file())


def inspect_here(flags: Mapping[str, object] | None = None) -> tuple[Settings, tuple[Problem, ...]]:
    """As `here`, but with the problems as a result."""
    return inspect(cwd=_cwd(), environ=os.environ, flags=flags, user_path=user_file())


def _cwd() -> str | None:
    """The working directory; None when it was removed under us."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


# --- for people ------------------------------------------------------------------------------------------------


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the configuration. `value` is JSON: durations are seconds. `origin` is default, user, project,
    environment or flag; `source` is the file or variable."""

    key: str
    value: Any
    text: str
    origin: str
    source: str | None
    line: int | None


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration in force, or what is wrong with it. Of the files those that win come first."""

    settings: tuple[SettingView, ...]
    files: tuple[ConfigFile, ...]
    problems: tuple[Problem, ...]


def inspect_config(store: str | None = None) -> Config:
    """All keys, the files that were looked for, and all problems. Never refuses: what is wrong is in the result."""
    settings, problems = inspect_here({"store": store})
    return Config(settings=tuple(map(_view, settings)), files=settings.files, problems=problems)


def _view(setting: Setting) -> SettingView:
    from stepkeep.config.schema import text_of

    value, origin = setting.value, setting.origin
    if setting.name == "store" and value is not None:
        value = text_of(setting)  # without the password
    return SettingView(
        key=setting.name,
        value=int(value.total_seconds()) if isinstance(value, timedelta) else value,
        text=text_of(setting),
        origin=origin.layer,
        source=origin.source or None,
        line=origin.line,
    )
