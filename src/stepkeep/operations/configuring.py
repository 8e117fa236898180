"""The configuration: what is in force, where it came from, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from stepkeep import config
from stepkeep.config import Candidate, Problem, Setting
from stepkeep.operations.views import Config, ConfigFile, ProblemView, SettingView


def inspect_config(store: str | None = None) -> Config:
    """All keys, the files that were looked for, and all problems. Never refuses: what is wrong is in the result."""
    flags: Mapping[str, object] = {"store": store}
    settings, problems = config.inspect_here(flags)
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
