"""The configuration: what is in force, where it came from, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from stepkeep.config import Candidate, Problem, Setting, inspect_here


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the configuration. `value` is JSON: durations are seconds. `origin` is default, user, project,
    environment or flag; `source` is the file or variable."""

    key: str
    value: Any
    text: str
    origin: str
    source: str | None
    line: int | None


class ProblemView(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong in the configuration."""

    source: str
    line: int | None
    key: str
    message: str
    text: str


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was looked for, those that win first."""

    path: str
    scope: str
    exists: bool
    is_used: bool
    note: str


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration in force, or what is wrong with it."""

    settings: tuple[SettingView, ...]
    files: tuple[ConfigFile, ...]
    problems: tuple[ProblemView, ...]


def inspect_config(store: str | None = None) -> Config:
    """All keys, the files that were looked for, and all problems. Never refuses: what is wrong is in the result."""
    flags: Mapping[str, object] = {"store": store}
    settings, problems = inspect_here(flags)
    return Config(
        settings=tuple(_setting_view(setting) for setting in settings),
        files=tuple(_file(candidate) for candidate in settings.files),
        problems=tuple(_problem(problem) for problem in problems),
    )


def _setting_view(setting: Setting) -> SettingView:
    origin = setting.origin
    return SettingView(
        key=setting.name,
        value=_plain(setting),
        text=setting.text,
        origin=origin.layer,
        source=origin.source or None,
        line=origin.line,
    )


def _plain(setting: Setting) -> Any:
    if setting.name == "store" and setting.value is not None:
        return setting.text  # without the password
    return int(setting.value.total_seconds()) if isinstance(setting.value, timedelta) else setting.value


def _file(candidate: Candidate) -> ConfigFile:
    return ConfigFile(
        path=str(candidate.path),
        scope=candidate.scope,
        exists=candidate.exists,
        is_used=candidate.is_used,
        note=candidate.note,
    )


def _problem(problem: Problem) -> ProblemView:
    return ProblemView(
        source=problem.source,
        line=problem.line,
        key=problem.key,
        message=problem.message,
        text=str(problem),
    )
