"""The settings in force: flags over environment over the project's file over the user's file over defaults."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.model import SessionInfo
from stepkeep.policy.profiles import CLEANUP, MADE_UNDER, profile_named, retention_for
from stepkeep.policy.retention import Retention

if TYPE_CHECKING:
    from stepkeep.config.schema import Problem
    from stepkeep.policy.cleanup import CleanupPolicies

PROJECT_FILE: Final = "stepkeep.yaml"
USER_FILE: Final = "config.yaml"
MAX_DEPTH: Final = 16

Layer = Literal["default", "user", "project", "environment", "flag"]
LAYERS: Final[tuple[Layer, ...]] = get_args(Layer)

VARIABLES: Final = {
    "STEPKEEP_STORE": "store",
    "STEPKEEP_PROFILE": "profile",
    "STEPKEEP_TIME_ZONE": "time.zone",
}
"""The environment variables that set a key. An empty one counts as not set."""

KEY_VARIABLES: Final = ("STEPKEEP_KEY_FILE", "STEPKEEP_KEY_COMMAND", "STEPKEEP_KEY")
"""Those that name the key of an encrypted store, the strongest first."""

DEFAULTS: Final[Mapping[str, Any]] = {
    "store": None,
    "profile": "standard",
    "project": None,
    "checkpoint.history.enabled": True,
    "checkpoint.history.max_count": None,
    "checkpoint.compression": "zstd",
    "checkpoint.compress_after_hours": 24,
    "checkpoint.cleanup.enabled": True,
    "checkpoint.cleanup.completed_retention_days": None,
    "checkpoint.cleanup.failed_retention_days": None,
    "checkpoint.cleanup.test_retention_days": 0,
    "checkpoint.cleanup.stale_days": None,
    "agent.command": "claude -p",
    "agent.checkpoints.enabled": True,
    "agent.checkpoints.auto_checkpoint": True,
    "agent.checkpoints.max_checkpoints_per_session": 10,
    "agent.checkpoints.prune_after_days": 30,
    "agent.checkpoints.compress_state": True,
    "retention.keep_last": None,
    "retention.keep_within": None,
    "retention.keep_hourly": None,
    "retention.keep_daily": None,
    "retention.keep_weekly": None,
    "retention.keep_manual": None,
    "retention.keep_tags": None,
    "retention.keep_terminal": None,
    "retention.max_count": None,
    "retention.max_age": None,
    "retention.max_bytes": None,
    "limits.budget_bytes": 10 * 1024**3,
    "limits.max_bytes": None,
    "limits.min_free_bytes": None,
    "workflow.warn_stored_bytes": 10_000_000,
    "workflow.max_stored_bytes": 100_000_000,
    "workflow.max_raw_bytes": 500_000_000,
    "worker.max_attempts": 3,
    "worker.retry_seconds": 30,
    "keeper.enabled": True,
    "keeper.interval_seconds": 300,
    "metrics.enabled": True,
    "recorder.heartbeat_seconds": 120,
    "recorder.coalesce_seconds": 3,
    "recorder.significant_seconds": 300,
    "workspace.max_file_bytes": 50_000_000,
    "workspace.max_total_bytes": 1_000_000_000,
    "workspace.ignore": None,
    "hooks.workspace": True,
    "hooks.transcript": False,
    "time.zone": "UTC",
}
"""Every key, and what holds when nobody sets it: None where the profile decides, or nothing is limited. Nearly always
that is all: what reads and explains other values is in `schema`, which is imported when there is one."""

_WORKFLOWS: Final = "checkpoint.cleanup.workflows"

_NO_RULES: Final = frozenset({"store"})
"""The keys that say nothing about sessions and that a command often has: the store it is told to use."""

_RULES: Final = ("retention.", "checkpoint.history.", "checkpoint.cleanup.", "agent.checkpoints.")
"""How keys begin that decide about what stays of a session: it carries those of the project it was made in."""

AnyPath: TypeAlias = "str | os.PathLike[str]"


class Origin(msgspec.Struct, frozen=True):
    """Where a value came from. `source` is the file or the variable."""

    layer: Layer
    source: str = ""
    line: int | None = None

    def __str__(self) -> str:
        if self.line is not None:
            return f"{self.source}:{self.line}"
        return self.source or self.layer


DEFAULT: Final = Origin("default")


class Setting(msgspec.Struct, frozen=True):
    """A value and where it came from. None means that a limit was switched off, or nothing was set.

    `is_trusted` is False for the store of a project's file that lies outside the project and was not trusted.
    """

    name: str
    value: Any
    origin: Origin
    is_trusted: bool = True

    @property
    def is_given(self) -> bool:
        return self.origin.layer != "default"


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was looked for. `is_used` is False when it is missing, or `note` says why it does not count."""

    path: str
    scope: Literal["project", "user"]
    exists: bool
    is_used: bool
    note: str = ""


class Settings(msgspec.Struct, frozen=True):
    """Every key with its value: `settings["profile"]`. Keys are in snake_case.

    `given` has those that somebody set; `files` are those looked for. `users` has what the user set: all but the
    project's file, which is not trusted and decides about the sessions of that project only.
    """

    given: Mapping[str, Setting]
    files: tuple[ConfigFile, ...] = ()
    users: Mapping[str, Setting] | None = None

    def __getitem__(self, name: str) -> Any:
        setting = self.given.get(name)
        return DEFAULTS[name] if setting is None else setting.value

    def __iter__(self) -> Iterator[Setting]:
        for name, value in DEFAULTS.items():
            yield self.given.get(name) or Setting(name, value, DEFAULT)
        yield from (setting for name, setting in self.given.items() if name not in DEFAULTS)

    def origin(self, name: str) -> Origin:
        setting = self.given.get(name)
        return DEFAULT if setting is None else setting.origin

    def section(self, name: str) -> dict[str, Any]:
        """What was set in a section, defaults left out, under the names inside it."""
        start = f"{name}."
        return {
            key.removeprefix(start): setting.value
            for key, setting in self.given.items()
            if key.startswith(start)
        }

    def store_url(self) -> str | None:
        """The URL of the store; None when nothing names one. Relative paths in a file begin at its folder.

        Raises:
            InvalidInput: code `untrusted_store`; a project's file names it, and the user has not trusted that file.
        """
        setting = self.given.get("store")
        if setting is None:
            return None
        if not setting.is_trusted:
            raise InvalidInput(
                f"{setting.origin} names a store outside its project, and may come from a stranger: read it, then "
                "run `stepkeep trust`, or name the store by --store or STEPKEEP_STORE",
                code="untrusted_store",
            )
        url: str = setting.value
        return url

    def with_store(self, url: str) -> Settings:
        """The same where the caller names the store: then it is not the project's own."""
        store = self.given.get("store")
        if store is None or store.origin.layer != "project":
            return self
        named = {"store": Setting("store", url, Origin("flag"))}
        return Settings(
            MappingProxyType({**self.given, **named}),
            self.files,
            MappingProxyType({**(self.users or {}), **named}),
        )

    # --- who decides about what

    @property
    def project_file(self) -> str | None:
        """The project's file that is in use."""
        for file in self.files:
            if file.is_used and file.scope == "project":
                return file.path
        return None

    @property
    def for_store(self) -> Settings:
        """What holds for the store as a whole: the user's settings, and the project's if the store is its own."""
        if self.users is None or self._has_own_store:
            return self
        return Settings(self.users, self.files)

    @property
    def _has_own_store(self) -> bool:
        """Whether the store is the project's: its file names it, or it lies in its folder."""
        file, store = self.project_file, self.given.get("store")
        if file is None or store is None:
            return False
        from stepkeep.config.trust import is_inside

        return store.origin.layer == "project" or is_inside(str(store.value), os.path.dirname(file))

    def for_work_in(self, folder: AnyPath) -> Settings:
        """What holds for work whose files are in a folder: the user's settings, and the project's within the project.

        Else a clone that somebody only stands in would choose the command that his own workflows run.
        """
        file = self.project_file
        if file is None or self.users is None:
            return self
        project = os.path.realpath(os.path.dirname(file))
        is_inside = os.path.commonpath((project, os.path.realpath(folder))) == project
        return self if is_inside else Settings(self.users, self.files)

    def for_session(self, session: SessionInfo) -> Settings:
        """What decides about a session: the store's settings, and those of the project that it was made in.

        They are read from that project's file where it is the one in use, else as the session carries them.

        Raises:
            InvalidInput: what the session carries makes no sense; nothing may be removed.
        """
        made_under, store = (session.policy or {}).get(MADE_UNDER), self.for_store
        if made_under is None or store is self:
            return store
        file, rules = _carried(made_under)
        if file == self.project_file:
            return self
        weaker = LAYERS.index("project")
        carried = {
            name: setting
            for name, setting in rules.items()
            if name not in store.given or LAYERS.index(store.given[name].origin.layer) < weaker
        }
        return Settings(MappingProxyType({**store.given, **carried}), self.files)

    @property
    def policy_of_new(self) -> dict[str, Any] | None:
        """What a new session carries: the project's file, and the rules that it sets."""
        if self.project_file is None:
            return None
        rules = {
            name: _plain(setting.value)
            for name, setting in self.given.items()
            if setting.origin.layer == "project" and name.startswith(_RULES)
        }
        return {MADE_UNDER: {"file": self.project_file, "rules": rules}}

    # --- rules for sessions

    def retention_of(self, session: SessionInfo) -> Retention:
        """Which checkpoints of a session stay: by its profile, changed by the configuration, then by its own policy.

        The configuration does not touch a profile that keeps everything, as `archive` does.

        Raises:
            InvalidInput: the session's profile or policy makes no sense; nothing may be removed.
        """
        profile = profile_named(session.profile)
        if self.given.keys() <= _NO_RULES and not session.policy:
            return profile.retention
        is_touched = profile.is_cleaned
        settings, own = self.for_session(session), _own_rules(session)
        rules = settings.retention_overrides(session.profile) if is_touched else {}
        retention = retention_for(session.profile, rules | own)
        is_off = is_touched and not own and not settings["checkpoint.history.enabled"]
        return msgspec.structs.replace(retention, is_off=True) if is_off else retention

    def rule_sources(self, session: SessionInfo) -> dict[str, str]:
        """Where the rules of a session come from that are not those of its profile, by their names in `Retention`."""
        settings, sources = self.for_session(session), dict[str, str]()
        if profile_named(session.profile).is_cleaned:
            found = settings._overrides(session.profile)
            found |= {"is_off": settings.given.get("checkpoint.history.enabled")}
            sources = {
                rule: f"{each.name}, {each.origin}" for rule, each in found.items() if each is not None
            }
        return sources | dict.fromkeys(_own_rules(session), "the session's own policy")

    def retention_overrides(self, profile: str) -> dict[str, Any]:
        """What replaces the rules of a profile."""
        if not self.given:
            return {}
        return {
            rule: setting.value for rule, setting in self._overrides(profile).items() if setting is not None
        }

    def _overrides(self, profile: str) -> dict[str, Setting | None]:
        """The same as settings.

        The number to keep has several names. The source that wins elsewhere wins here too; within one source the
        key for that profile comes before `retention.keep_last`, and that before `checkpoint.history.max_count`. Those
        two that speak of a most are also caps: no other rule keeps more.
        """
        start, most = "retention.", self._strongest(*_most_keys(profile))
        overrides: dict[str, Setting | None] = {
            name.removeprefix(start): setting
            for name, setting in self.given.items()
            if name.startswith(start)
        }
        count = self._strongest(*_most_keys(profile)[:-1], "retention.keep_last", _MAX_COUNT)
        if count is not None:
            overrides |= {"keep_last": count}
        # The key of a stronger source, which lets more stay, is not capped by that of a weaker one.
        if most is None or most.value is None or count is None or count.origin.layer != most.origin.layer:
            return overrides
        return {"max_count": most} | overrides

    def policies_of(self, session: SessionInfo) -> CleanupPolicies:
        """When a session is cleaned, by whoever decides about it.

        Raises:
            InvalidInput: as `for_session`.
        """
        return self.for_session(session).cleanup_policies(session.profile)

    def cleanup_policies(self, profile: str) -> CleanupPolicies:
        """When sessions of a profile are cleaned; what was not set stays open, for the profile to decide."""
        from stepkeep.policy.cleanup import CleanupPolicies, CleanupRule

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
        given = [self.given[name] for name in names if name is not None and name in self.given]
        return max(given, key=lambda setting: LAYERS.index(setting.origin.layer), default=None)

    def workflows(self) -> dict[str, dict[str, Any]]:
        """Cleanup of single workflows: name -> what is set of `retention_days` and `enabled`."""
        policies: dict[str, dict[str, Any]] = {}
        for name, value in self.section(_WORKFLOWS).items():
            workflow, _, key = name.rpartition(".")
            policies.setdefault(workflow, {})[key] = value
        return policies

    def compresses(self, session: SessionInfo) -> bool:
        """Whether states of a session are compressed where they are stored whole."""
        return session.profile != "agent" or bool(self["agent.checkpoints.compress_state"])


def _own_rules(session: SessionInfo) -> dict[str, Any]:
    """What a session says about its own history."""
    return {key: value for key, value in (session.policy or {}).items() if key not in (CLEANUP, MADE_UNDER)}


_MAX_COUNT: Final = "checkpoint.history.max_count"


def _most_keys(profile: str) -> tuple[str, ...]:
    """The keys that say how many checkpoints there are at most, the nearest first."""
    own = ("agent.checkpoints.max_checkpoints_per_session",) if profile == "agent" else ()
    return (*own, _MAX_COUNT)


# --- from the sources ------------------------------------------------------------------------------------------


def inspect(
    *,
    cwd: AnyPath | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object] | None = None,
    user_path: AnyPath | None = None,
) -> tuple[Settings, tuple[Problem, ...]]:
    """As `load`, but with the problems as a result; the settings hold what is right."""
    layers: dict[str, dict[str, Setting]] = {"user": {}, "project": {}, "here": {}}
    files = _candidates(cwd, user_path)
    problems: list[Problem] = []
    for file in reversed(files):
        if file.is_used:
            problems += _read_file(file, layers[file.scope], user_path)
    for variable, name in VARIABLES.items():
        if text := environ.get(variable):
            problems += _read_value(Origin("environment", f"${variable}"), name, text, layers["here"])
    for name, value in (flags or {}).items():
        if value is not None:
            problems += _read_value(Origin("flag"), name, value, layers["here"])
    users = {**layers["user"], **layers["here"]}
    given = {**layers["user"], **layers["project"], **layers["here"]}
    return Settings(MappingProxyType(given), files, MappingProxyType(users)), tuple(problems)


def _plain(value: Any) -> Any:
    """A value as JSON has it, which reads back as the same one."""
    if isinstance(value, timedelta):
        return f"{int(value.total_seconds())}s"
    return list(value) if isinstance(value, tuple) else value


def _carried(made_under: Any) -> tuple[str, dict[str, Setting]]:
    """The file that a session was made under, and the rules from it. They were stored, so they are checked again."""
    from stepkeep.config.schema import lookup, node_of

    try:
        file, found = str(made_under["file"]), {}
        for name, value in made_under["rules"].items():
            _, key = lookup(name) or (None, None)
            if key is None or not name.startswith(_RULES):
                raise ValueError(f"unknown key {name!r}")
            parsed = None if value is None and key.kind.none_word else key.kind.parse(node_of(value))
            found[name] = Setting(name, parsed, Origin("project", file))
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise InvalidInput(
            f"the rules that the session carries make no sense: {exc}", code="invalid_setting"
        ) from exc
    return file, found


def _read_file(file: ConfigFile, given: dict[str, Setting], user_path: AnyPath | None) -> list[Problem]:
    """Put what a file sets among what is given; returns what is wrong with it."""
    from stepkeep.config.schema import Problem, values_of
    from stepkeep.yaml_lines import Unreadable, parse, read_text

    try:
        text = read_text(file.path)
        found, problems = values_of(parse(text, max_depth=MAX_DEPTH), file.path)
    except Unreadable as exc:
        return [Problem.at(file.path, exc.line, "", exc.message)]
    for name, value, line in found:
        origin, is_trusted = Origin(file.scope, file.path, line), True
        if name == "store":
            from stepkeep.config.trust import is_inside, is_trusted_file

            folder = os.path.dirname(file.path)
            value = anchored(value, folder)
            is_trusted = (
                file.scope == "user"
                or is_inside(value, folder)
                or is_trusted_file(file.path, text, user_path=user_path)
            )
        given[name] = Setting(name, value, origin, is_trusted)
    return problems


def _read_value(origin: Origin, name: str, value: object, given: dict[str, Setting]) -> list[Problem]:
    """The same with a variable or a flag."""
    if name == "store" and isinstance(value, str) and value.isascii() and is_store(value):
        given[name] = Setting(name, value, origin)  # what most processes are told needs no schema
        return []
    from stepkeep.config.schema import Problem, lookup, nearest_key, node_of

    known = lookup(name)
    if known is None:
        near = nearest_key(name)
        hint = "" if near is None else f": did you mean {near}?"
        return [Problem.at(str(origin), None, name, f"unknown key {name!r}{hint}")]
    name, key = known
    try:
        given[name] = Setting(name, key.kind.parse(node_of(value)), origin)
    except ValueError as exc:
        return [Problem.at(str(origin), None, name, f"{name} {exc}")]
    return []


def is_store(url: str) -> bool:
    """Whether a text is the URL of a store, or a path to one."""
    scheme, colon, rest = url.partition(":")
    if not colon:
        return "/" in url or url.endswith((".db", ".sqlite"))
    return url == "memory:" or (scheme in ("sqlite", "files", "postgres", "postgresql") and bool(rest))


def anchored(url: str, folder: AnyPath) -> str:
    """The same URL, where a relative path of a file or folder begins at `folder`."""
    from pathlib import Path  # few files name a store by a relative path

    scheme, separator, path = url.partition(":")
    if not separator:
        scheme, path = "sqlite", url
    if scheme not in ("sqlite", "files") or path.startswith(("/", "~")):
        return url
    return f"{scheme}:{Path(folder, path)}"


# --- files -----------------------------------------------------------------------------------------------------

_IS_LINUX: Final = bool(sys.platform == "linux")


def user_file(environ: Mapping[str, str] = os.environ) -> str:
    """Where this user's own configuration is looked for."""
    if _IS_LINUX:
        return os.path.join(_folder(environ, "XDG_CONFIG_HOME", ".config"), USER_FILE)
    from platformdirs import user_config_dir

    return os.path.join(user_config_dir("stepkeep"), USER_FILE)


def data_folder(environ: Mapping[str, str] = os.environ) -> str:
    """The folder of this user's data, where the default store is."""
    if _IS_LINUX:
        return _folder(environ, "XDG_DATA_HOME", ".local/share")
    from platformdirs import user_data_dir

    return user_data_dir("stepkeep")


def _folder(environ: Mapping[str, str], variable: str, default: str) -> str:
    """As platformdirs names it, which takes longer to import than a store to open."""
    home = environ.get("HOME") or os.path.expanduser("~")
    return f"{environ.get(variable, '').strip() or f'{home}/{default}'}/stepkeep"


def _candidates(cwd: AnyPath | None, user_path: AnyPath | None) -> tuple[ConfigFile, ...]:
    """The files that are looked for, those that win first: each folder upward to the first hit, then the user's."""
    found = [] if cwd is None else _upward(os.path.abspath(cwd))
    if user_path is not None:
        exists = os.path.lexists(user_path)
        found.append(ConfigFile(path=os.fspath(user_path), scope="user", exists=exists, is_used=exists))
    return tuple(found)


def _upward(folder: str) -> list[ConfigFile]:
    found: list[ConfigFile] = []
    while not found or not (found[-1].is_used or folder == (folder := os.path.dirname(folder))):
        path = os.path.join(folder, PROJECT_FILE)
        exists = os.path.lexists(path)
        is_planted = exists and _is_planted(path)
        note = (
            "ignored: it belongs to another user, in a folder that everyone can write to"
            if is_planted
            else ""
        )
        is_used = exists and not is_planted
        found.append(ConfigFile(path=path, scope="project", exists=exists, is_used=is_used, note=note))
    return found


def _is_planted(path: str) -> bool:
    """Whether someone else may have put the file there, as in `/tmp`: it could send states to a store of theirs."""
    try:
        folder, file = os.stat(os.path.dirname(path)), os.lstat(path)
    except OSError:
        return False  # reading it will say what is wrong
    return bool(folder.st_mode & stat.S_IWOTH) and file.st_uid not in (0, os.geteuid())
