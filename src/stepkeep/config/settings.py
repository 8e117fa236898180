"""The settings in force: flags over environment over the project's file over the user's file over defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from stepkeep.config.files import Candidate, Problem, candidates, read
from stepkeep.config.kinds import node_of
from stepkeep.config.schema import ANY, SCHEMA, Found, Key, lookup, nearest_key, values_of
from stepkeep.errors import InvalidInput
from stepkeep.policy.cleanup import CleanupPolicies, CleanupRule
from stepkeep.policy.retention import span_text
from stepkeep.yaml_lines import Unreadable

Layer = Literal["default", "user", "project", "environment", "flag"]
LAYERS: Final[tuple[Layer, ...]] = get_args(Layer)

VARIABLES: Final = {
    "STEPKEEP_STORE": "store",
    "STEPKEEP_PROFILE": "profile",
    "STEPKEEP_TIME_ZONE": "time.zone",
}
"""The environment variables that set a key. An empty one counts as not set."""

_WORKFLOWS: Final = "checkpoint.cleanup.workflows."
_SECRET: Final = re.compile(r"(://[^:@/]*:).*(?=@)|(password=)[^&]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from. `source` is the file or the variable."""

    layer: Layer
    source: str = ""
    line: int | None = None

    def __str__(self) -> str:
        if self.line is not None:
            return f"{self.source}:{self.line}"
        return self.source or self.layer

    @property
    def rank(self) -> int:
        return LAYERS.index(self.layer)


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it came from. None means that a limit was switched off, or nothing was set."""

    name: str
    value: Any
    origin: Origin

    @property
    def is_given(self) -> bool:
        return self.origin.layer != "default"

    @property
    def text(self) -> str:
        """The value for people; a password in a URL is hidden."""
        if self.value is None:
            key = _key(self.name)
            return key.kind.none_word if self.is_given else key.unset.replace("`", "")
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        if isinstance(self.value, tuple):
            return f"[{', '.join(self.value)}]"
        if isinstance(self.value, timedelta):
            return span_text(self.value)
        if self.name == "store":
            return _SECRET.sub(lambda match: f"{match[1] or match[2]}***", self.value)
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every key with its value: `settings["profile"]`. Keys are in snake_case."""

    entries: Mapping[str, Setting]
    files: tuple[Candidate, ...] = field(default=())

    def __getitem__(self, name: str) -> Any:
        return self.entries[name].value

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.entries.values())

    def origin(self, name: str) -> Origin:
        return self.entries[name].origin

    def given(self, section: str) -> dict[str, Any]:
        """What was set in a section, defaults left out, under the names inside it."""
        start = f"{section}."
        return {
            setting.name.removeprefix(start): setting.value
            for setting in self
            if setting.is_given and setting.name.startswith(start)
        }

    def store_url(self) -> str | None:
        """The URL of the store; None when nothing names one. Relative paths in a file begin at its folder."""
        url: str | None = self["store"]
        return url

    def retention_overrides(self, profile: str) -> dict[str, Any]:
        """What replaces the rules of a profile.

        The number to keep has several names. The source that wins elsewhere wins here too; within one source the
        key for that profile comes before `retention.keep_last`, and that before `checkpoint.history.max_count`.
        """
        overrides = self.given("retention")
        count = self._strongest(
            "agent.checkpoints.max_checkpoints_per_session" if profile == "agent" else None,
            "retention.keep_last",
            "checkpoint.history.max_count",
        )
        return overrides if count is None else overrides | {"keep_last": count.value}

    def cleanup_policies(self, profile: str) -> CleanupPolicies:
        """When sessions of a profile are cleaned; what was not set stays open, for the profile to decide."""
        ours = "agent.checkpoints.prune_after_days" if profile == "agent" else None
        completed = self._strongest(ours, "checkpoint.cleanup.completed_retention_days")
        failed = self._strongest(ours, "checkpoint.cleanup.failed_retention_days")
        return CleanupPolicies(
            enabled=self["checkpoint.cleanup.enabled"],
            completed=CleanupRule(retention_days=None if completed is None else completed.value),
            failed=CleanupRule(retention_days=None if failed is None else failed.value),
            test=CleanupRule(retention_days=self["checkpoint.cleanup.test_retention_days"]),
            workflows={name: CleanupRule(**rule) for name, rule in self.workflows().items()},
            stale_days=self["checkpoint.cleanup.stale_days"],
        )

    def _strongest(self, *names: str | None) -> Setting | None:
        """Of several keys for one thing, that of the strongest source; among equals the first. None: none is set."""
        settings = (self.entries[name] for name in names if name is not None)
        given = (setting for setting in settings if setting.is_given)
        return max(given, key=lambda setting: setting.origin.rank, default=None)

    def workflows(self) -> dict[str, dict[str, Any]]:
        """Cleanup of single workflows: name -> what is set of `retention_days` and `enabled`."""
        policies: dict[str, dict[str, Any]] = {}
        for name, value in self.given(_WORKFLOWS[:-1]).items():
            workflow, _, key = name.rpartition(".")
            policies.setdefault(workflow, {})[key] = value
        return policies


def load(
    *,
    cwd: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object] | None = None,
    user_path: Path | None = None,
) -> Settings:
    """The settings from all sources. Nothing but the arguments and the files they lead to is read.

    `flags` are values by dotted key; a None counts as not given. Without `cwd` or `user_path` that file is left out.

    Raises:
        InvalidInput: code `invalid_config`; the message lists every problem with its file and line.
    """
    settings, problems = inspect(cwd=cwd, environ=environ, flags=flags, user_path=user_path)
    if problems:
        number = "" if len(problems) == 1 else f"{len(problems)} problems: "
        text = "; ".join(map(str, problems))
        raise InvalidInput(f"bad configuration: {number}{text}", code="invalid_config")
    return settings


def inspect(
    *,
    cwd: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object] | None = None,
    user_path: Path | None = None,
) -> tuple[Settings, tuple[Problem, ...]]:
    """As `load`, but with the problems as a result; the settings hold what is right."""
    files = candidates(cwd, user_path)
    entries = {
        key.name: Setting(key.name, key.default, Origin("default")) for key in SCHEMA if ANY not in key.name
    }
    problems: list[Problem] = []
    for file in reversed(files):
        if file.is_used:
            found, wrong = _from_file(file.path)
            problems += wrong
            entries |= {item.name: _from_line(item, file) for item in found}
    for origin, values in _outside(environ, flags or {}):
        given, wrong = _from_values(origin, values)
        problems += wrong
        entries |= given
    return Settings(MappingProxyType(entries), files), tuple(problems)


def _from_file(path: Path) -> tuple[list[Found], list[Problem]]:
    try:
        return values_of(read(path), str(path))
    except Unreadable as exc:
        return [], [Problem(str(path), exc.line, "", exc.message)]


def _from_line(item: Found, file: Candidate) -> Setting:
    value = anchored(item.value, file.path.parent) if item.name == "store" else item.value
    return Setting(item.name, value, Origin(file.scope, str(file.path), item.line))


def _outside(
    environ: Mapping[str, str], flags: Mapping[str, object]
) -> Iterator[tuple[Origin, Mapping[str, object]]]:
    for variable, name in VARIABLES.items():
        if text := environ.get(variable):
            yield Origin("environment", f"${variable}"), {name: text}
    yield Origin("flag"), {name: value for name, value in flags.items() if value is not None}


def _from_values(origin: Origin, values: Mapping[str, object]) -> tuple[dict[str, Setting], list[Problem]]:
    given: dict[str, Setting] = {}
    problems: list[Problem] = []
    for name, value in values.items():
        known = lookup(name)
        if known is None:
            near = nearest_key(name)
            hint = "" if near is None else f": did you mean {near}?"
            problems.append(Problem(str(origin), None, name, f"unknown key {name!r}{hint}"))
            continue
        try:
            given[known[0]] = Setting(known[0], known[1].kind.parse(node_of(value)), origin)
        except ValueError as exc:
            problems.append(Problem(str(origin), None, known[0], f"{known[0]} {exc}"))
    return given, problems


def anchored(url: str, folder: Path) -> str:
    """The same URL, where a relative path of a file or folder begins at `folder`."""
    scheme, separator, path = url.partition(":")
    if not separator:
        scheme, path = "sqlite", url
    if scheme not in ("sqlite", "files") or path.startswith(("/", "~")):
        return url
    return f"{scheme}:{folder / path}"


def _key(name: str) -> Key:
    known = lookup(name)
    assert known is not None, f"{name} is in no schema"
    return known[1]
