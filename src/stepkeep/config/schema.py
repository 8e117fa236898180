"""The schema: every key, what its values may be, its default and its meaning; and what of a file does not fit it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec

from stepkeep.config.settings import DEFAULTS, Setting, is_store
from stepkeep.errors import InvalidInput
from stepkeep.model import MAX_SEQ, check_name
from stepkeep.policy.profiles import MAX_DAYS, PROFILES, check_count, check_duration, check_size
from stepkeep.policy.retention import span_text
from stepkeep.secrets import url_without_password
from stepkeep.text import nearest, shortened, size
from stepkeep.yaml_lines import Items, Node, Scalar, Section, shown

ANY: Final = "*"
MAX_PROBLEMS: Final = 50
THE_PROFILES: Final = "the profile's"

# --- kinds of values -------------------------------------------------------------------------------------------

_BOOLEANS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_WHOLE: Final = r"[-+]?[0-9]{1,30}"
_SECONDS: Final = r"\d{1,9}(?:\.\d{1,6})?"


class Kind(msgspec.Struct, frozen=True):
    """`label` says what to write. `parse` gives the value, or raises `ValueError` with what it must be.

    `none_word` is how None is written, where it can be.
    """

    label: str
    parse: Callable[[Node], Any]
    none_word: str = ""


def node_of(value: object) -> Node:
    """A value given by a program as if it stood in a file."""
    if isinstance(value, bool):
        return Scalar("true" if value else "false", False, 0)
    if isinstance(value, timedelta):
        return Scalar(f"{int(value.total_seconds())}s", False, 0)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return Items(tuple(node_of(item) for item in value), 0)
    return Scalar(str(value), False, 0)


def _checked(check: Callable[..., Any], value: object, **limits: int) -> Any:
    """The value by the same check that the policies make, so that nothing accepted here is refused later."""
    try:
        return check("it", value, **limits)
    except InvalidInput as exc:
        raise ValueError(exc.message.removeprefix("it ")) from None


def or_word(word: str, kind: Kind) -> Kind:
    """The same kind, where a word stands for None: no limit."""

    def parse(node: Node) -> Any:
        if isinstance(node, Scalar) and node.text == word:
            return None
        return kind.parse(node)

    return Kind(f"{kind.label}, or `{word}`", parse, word)


def whole(least: int, most: int, label: str) -> Kind:
    """Whole numbers within bounds."""

    def parse(node: Node) -> int:
        if not isinstance(node, Scalar) or node.is_quoted or not re.fullmatch(_WHOLE, node.text):
            raise ValueError(f"must be a whole number, not {shown(node)}")
        number: int = _checked(check_count, int(node.text), least=least, most=most)
        return number

    return Kind(label, parse)


def _written(label: str, check: Callable[..., Any]) -> Kind:
    """Amounts with a unit."""

    def parse(node: Node) -> Any:
        if not isinstance(node, Scalar) or node.is_null:
            raise ValueError(f"must be a {label}, not {shown(node)}")
        return _checked(check, shortened(node.text))  # what was cut off fits no unit

    return Kind(label, parse)


def _boolean(node: Node) -> bool:
    if isinstance(node, Scalar) and not node.is_quoted and node.text.lower() in _BOOLEANS:
        return _BOOLEANS[node.text.lower()]
    raise ValueError(f"must be true or false, not {shown(node)}")


def _seconds(key: str, text: str) -> int:
    span = check_duration(key, f"{text}s" if re.fullmatch(_WHOLE, text) else text)
    return int(span.total_seconds())


def _text(node: Node) -> str:
    if not isinstance(node, Scalar) or node.is_null:
        raise ValueError(f"must be text, not {shown(node)}")
    text: str = _checked(check_name, node.text)
    return text


def _texts(node: Node) -> tuple[str, ...]:
    if not isinstance(node, Items):
        raise ValueError(f"must be a list of texts, not {shown(node)}")
    return tuple(dict.fromkeys(_text(item) for item in node.nodes))


def _profile(node: Node) -> str:
    name = _text(node)
    if name not in PROFILES:
        raise ValueError(f"must be one of {', '.join(PROFILES)}, not {shown(node)}")
    return name


def _zone(node: Node) -> str:
    from stepkeep.history.times import zone_named  # few name a zone

    name = _text(node)
    try:
        zone_named(name)
    except InvalidInput:
        raise ValueError(f"must be UTC, local or a zone such as Europe/Berlin, not {shown(node)}") from None
    return name


def _compression(node: Node) -> str:
    from stepkeep.codec.compression import chosen_compression  # few choose one

    name = _text(node)
    try:
        chosen_compression(name)
    except InvalidInput as exc:
        raise ValueError(f"cannot be used: {exc.message}") from None
    return name


def _store(node: Node) -> str:
    url = _text(node)
    if not is_store(url):
        # The text is not repeated: it may hold a password.
        raise ValueError("must be the URL of a store, such as sqlite:PATH, or a path")
    return url


BOOLEAN: Final = Kind("`true` or `false`", _boolean)
COUNT: Final = whole(1, MAX_SEQ, "whole number from 1")
DAYS: Final = whole(0, MAX_DAYS, "whole days from 0")
HOURS: Final = whole(0, MAX_DAYS * 24, "whole hours from 0")
SIZE: Final = _written("size (`500MB`, `2GiB`)", check_size)
DURATION: Final = _written("duration (`30s`, `10m`, `2h`, `7d`, `2w`)", check_duration)
SECONDS: Final = _written("number of seconds, or duration (`10m`)", _seconds)
TEXT: Final = Kind("text", _text)
TEXTS: Final = Kind("list of texts", _texts)
PROFILE: Final = Kind("name of a profile", _profile)
STORE: Final = Kind("URL of a store", _store)
COMPRESSION: Final = Kind("`zstd`, `zstd-1` to `zstd-19`, `none`, or a name", _compression)
ZONE: Final = Kind("`UTC`, `local` or the name of a time zone", _zone)


# --- keys ------------------------------------------------------------------------------------------------------


class Key(msgspec.Struct, frozen=True):
    """One key. `name` is dotted, in snake_case; `*` stands for a name of the writer's choice.

    A default of None is described by `unset`.
    """

    name: str
    kind: Kind
    meaning: str
    unset: str = "none"

    @property
    def default(self) -> Any:
        return DEFAULTS.get(self.name)


_HOURS_OR_OFF: Final = or_word("off", HOURS)
_COUNT_OR_ALL: Final = or_word("all", COUNT)
_DURATION_OR_OFF: Final = or_word("off", DURATION)
_SIZE_OR_OFF: Final = or_word("off", SIZE)


def _timer(label: str, *, takes_zero: bool = False) -> Kind:
    """Seconds as a recorder takes them: also parts of one, and 0 where that makes sense."""

    def parse(node: Node) -> Any:
        if not isinstance(node, Scalar) or not re.fullmatch(_SECONDS, node.text, re.ASCII):
            return SECONDS.parse(node)
        seconds = float(node.text)
        if not (seconds or takes_zero):
            raise ValueError(f"must be longer than 0, not {shown(node)}")
        return int(seconds) if seconds.is_integer() else seconds

    return Kind(label, parse)


def _workspace(node: Node) -> Any:
    return node.text if isinstance(node, Scalar) and node.text == "always" else _boolean(node)


_WORKSPACE: Final = Kind("`true`, `false` or `always`", _workspace)
_TIMER: Final = _timer(SECONDS.label)
_TIMER_OR_ZERO: Final = _timer("number of seconds from 0, or duration (`10m`)", takes_zero=True)

SCHEMA: Final = (
    Key("store", STORE, "The store to use.", "`stepkeep.db` in the user's data folder"),
    Key("profile", PROFILE, "The profile of new sessions."),
    Key("project", TEXT, "The project of new sessions."),
    Key(
        "checkpoint.history.enabled",
        BOOLEAN,
        "Keep older checkpoints. `false`: of the checkpoints saved from then on only the newest stays.",
    ),
    Key(
        "checkpoint.history.max_count",
        _COUNT_OR_ALL,
        "How many checkpoints a session keeps, the newest included.",
        THE_PROFILES,
    ),
    Key(
        "checkpoint.compression",
        COMPRESSION,
        "How states and files are compressed from then on; a name is one that an installed package offers.",
    ),
    Key(
        "checkpoint.compress_after_hours",
        _HOURS_OR_OFF,
        "When history in a store of files with layout `run` is gzipped.",
    ),
    Key("checkpoint.cleanup.enabled", BOOLEAN, "Remove finished sessions when they are old enough."),
    Key(
        "checkpoint.cleanup.completed_retention_days",
        DAYS,
        "How long completed and cancelled sessions stay.",
        "the profile's: 7 (`workflow`, `run`, `debug`) or 30",
    ),
    Key(
        "checkpoint.cleanup.failed_retention_days",
        DAYS,
        "How long failed sessions stay.",
        "the profile's: 30",
    ),
    Key("checkpoint.cleanup.test_retention_days", DAYS, "How long finished test sessions stay."),
    Key(
        "checkpoint.cleanup.stale_days",
        DAYS,
        "Days without activity after which an unfinished session counts as failed.",
        THE_PROFILES,
    ),
    Key(
        "checkpoint.cleanup.workflows.*.retention_days",
        DAYS,
        "How long finished sessions of that workflow stay, whatever their status.",
        "by status",
    ),
    Key(
        "checkpoint.cleanup.workflows.*.enabled",
        BOOLEAN,
        "`false`: sessions of that workflow are never cleaned.",
        "`true`",
    ),
    Key(
        "agent.command",
        TEXT,
        "What runs the `agent` steps of workflows. The prompt takes the place of `{prompt}`, or comes on stdin.",
    ),
    Key("agent.checkpoints.enabled", BOOLEAN, "Whether `Store.execute` saves checkpoints at all."),
    Key(
        "agent.checkpoints.auto_checkpoint",
        BOOLEAN,
        "Whether `Store.execute` saves after every step, unless told.",
    ),
    Key(
        "agent.checkpoints.max_checkpoints_per_session",
        _COUNT_OR_ALL,
        "How many checkpoints a session with profile `agent` keeps.",
    ),
    Key("agent.checkpoints.prune_after_days", DAYS, "How long finished sessions with profile `agent` stay."),
    Key(
        "agent.checkpoints.compress_state",
        BOOLEAN,
        "Compress states of sessions with profile `agent` where they are stored whole.",
    ),
    Key("retention.keep_last", _COUNT_OR_ALL, "Keep that many of the newest.", THE_PROFILES),
    Key("retention.keep_within", _DURATION_OR_OFF, "Keep everything younger.", THE_PROFILES),
    Key("retention.keep_hourly", _DURATION_OR_OFF, "Keep one per hour, for that long.", THE_PROFILES),
    Key("retention.keep_daily", _DURATION_OR_OFF, "Keep one per day, for that long.", THE_PROFILES),
    Key("retention.keep_weekly", _DURATION_OR_OFF, "Keep one per week, for that long.", THE_PROFILES),
    Key("retention.keep_manual", BOOLEAN, "Keep what was saved by hand.", THE_PROFILES),
    Key("retention.keep_tags", TEXTS, "Keep checkpoints with one of these tags.", THE_PROFILES),
    Key(
        "retention.keep_terminal",
        BOOLEAN,
        "Keep the newest checkpoint of each finished status.",
        THE_PROFILES,
    ),
    Key("retention.max_count", _COUNT_OR_ALL, "Remove the oldest beyond that many.", THE_PROFILES),
    Key("retention.max_age", _DURATION_OR_OFF, "Remove what is older.", THE_PROFILES),
    Key(
        "retention.max_bytes",
        _SIZE_OR_OFF,
        "Remove the oldest of a session until the rest takes no more.",
        THE_PROFILES,
    ),
    Key(
        "limits.budget_bytes",
        _SIZE_OR_OFF,
        "Byte budget of the whole store: when it is full the keeper thins history, the oldest first. Saves go on.",
    ),
    Key(
        "limits.max_bytes",
        _SIZE_OR_OFF,
        "Limit of the whole store, with its log: the keeper prunes before it is reached, a save beyond it is refused.",
        "off",
    ),
    Key(
        "limits.min_free_bytes",
        _SIZE_OR_OFF,
        "Free space to leave on the disk: the keeper prunes before less is left.",
        "off",
    ),
    Key(
        "workflow.warn_stored_bytes",
        SIZE,
        "A workflow whose state is stored in more gets a warning that names its largest values.",
    ),
    Key("workflow.max_stored_bytes", SIZE, "A workflow's state that takes more, stored, is refused."),
    Key("workflow.max_raw_bytes", SIZE, "A workflow's state that takes more, uncompressed, is refused."),
    Key(
        "worker.max_attempts",
        COUNT,
        "How many runs of a session may fail at the same step before workers give it up.",
    ),
    Key("worker.retry_seconds", SECONDS, "How long a failed session rests before a worker tries it again."),
    Key("keeper.enabled", BOOLEAN, "Prune and clean in the background of an open store."),
    Key("keeper.interval_seconds", SECONDS, "Pause between two rounds of the keeper."),
    Key("metrics.enabled", BOOLEAN, "Keep counts of saves, failures and resumes beside the store."),
    Key(
        "recorder.heartbeat_seconds",
        _TIMER,
        "After so long without a snapshot, a recorder takes one while work is in progress.",
    ),
    Key(
        "recorder.coalesce_seconds",
        _TIMER_OR_ZERO,
        "Within that time a trigger that finds nothing changed is noted on the last snapshot.",
    ),
    Key(
        "recorder.significant_seconds",
        _TIMER,
        "So long after the last checkpoint, time alone is worth an automatic one of the connected parts.",
    ),
    Key("workspace.max_file_bytes", SIZE, "Project files that are larger are not captured, and reported."),
    Key(
        "workspace.max_total_bytes",
        SIZE,
        "All captured files of a tree together; beyond it the largest are left out, and reported.",
    ),
    Key("workspace.ignore", TEXTS, "More rules for what is not captured, written as in `.gitignore`."),
    Key(
        "hooks.workspace",
        _WORKSPACE,
        "Hooks of agents capture the files of a repository before and after a turn, before a compaction, and before a"
        " command that destroys. `always`: also of a folder outside of git.",
    ),
    Key(
        "hooks.transcript",
        BOOLEAN,
        "Hooks of agents keep the transcript beside the state, whole and as it is, secrets included.",
    ),
    Key("time.zone", ZONE, "The zone in which times that name none are read."),
)

Tree = dict[str, "Tree | Key"]


def _tree_of(keys: Iterable[Key]) -> Tree:
    root: Tree = {}
    for key in keys:
        *sections, last = key.name.split(".")
        here = root
        for name in sections:
            inner = here.setdefault(name, {})
            assert isinstance(inner, dict), f"{key.name} lies under a key"
            here = inner
        here[last] = key
    return root


_TREE: Final = _tree_of(SCHEMA)


def camel(name: str) -> str:
    """`max_count` as `maxCount`."""
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def _canonical(text: str, tree: Tree) -> str | None:
    """The schema's name of a key that is written in either spelling."""
    return next((name for name in tree if name != ANY and text in (name, camel(name))), None)


def lookup(name: str) -> tuple[str, Key] | None:
    """The key with a dotted name in either spelling, and its name in snake_case; None if there is none."""
    parts, done, here = name.split("."), [], _TREE
    while parts:
        if ANY in here:
            # What the writer named may itself contain dots; one part of ours follows.
            part, parts = ".".join(parts[:-1]), parts[-1:]
            inner = here[ANY] if part else None
        else:
            part = _canonical(parts.pop(0), here) or ""
            inner = here.get(part)
        done.append(part)
        if isinstance(inner, Key):
            return None if parts else (".".join(done), inner)
        if inner is None:
            return None
        here = inner
    return None


# --- reading a file's content ----------------------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True):
    """Something wrong in the configuration. `source` is the file, the variable or `flag`; `line` counts from 1."""

    source: str
    line: int | None
    key: str
    message: str
    text: str

    @classmethod
    def at(cls, source: str, line: int | None, key: str, message: str) -> Problem:
        return cls(source, line, key, message, f"{source}{'' if line is None else f':{line}'}: {message}")


class Found(NamedTuple):
    """A value that a file gives, under the name of its key; `*` is filled in."""

    name: str
    value: Any
    line: int


def values_of(root: Node | None, source: str) -> tuple[list[Found], list[Problem]]:
    """What a file sets, and everything that is wrong with it, in the order of its lines."""
    reading = _FileReader(source)
    if isinstance(root, Section):
        reading.section(root, _TREE, "")
    elif root is not None:
        reading.problem(root.line, "", f"must be sections and keys, not {shown(root)}")
    return reading.found, reading.problems


class _FileReader:
    """Collects what one file gives. Stops at `MAX_PROBLEMS`, so that a hostile file costs little."""

    def __init__(self, source: str) -> None:
        self.found: list[Found] = []
        self.problems: list[Problem] = []
        self._source = source

    def problem(self, line: int, key: str, message: str) -> None:
        if len(self.problems) == MAX_PROBLEMS:
            key, message = "", "there are more problems from here on"
        if len(self.problems) <= MAX_PROBLEMS:
            self.problems.append(Problem.at(self._source, line, key, message))

    def section(self, section: Section, tree: Tree, prefix: str) -> None:
        seen: dict[str, Scalar] = {}
        for written, node in section.entries:
            if len(self.problems) > MAX_PROBLEMS:
                return
            name = self._name(written, tree, prefix)
            if name is None:
                continue
            if (first := seen.get(name)) is not None:
                how = f"again as {shown(written)}" if written.text != first.text else "again"
                told = f"{prefix}{_short(first.text)} of line {first.line} is given {how}"
                self.problem(written.line, prefix + written.text, told)
                continue
            seen[name] = written
            self._entry(written, node, tree[ANY if ANY in tree else name], prefix + name)

    def _name(self, written: Scalar, tree: Tree, prefix: str) -> str | None:
        if ANY not in tree:
            if (name := _canonical(written.text, tree)) is None:
                self.problem(written.line, prefix + written.text, _unknown(written, tree, prefix))
            return name
        try:
            return str(TEXT.parse(written))
        except ValueError as exc:
            self.problem(written.line, prefix + written.text, f"a name in {prefix[:-1]} {exc}")
            return None

    def _entry(self, written: Scalar, node: Node, target: Tree | Key, name: str) -> None:
        if isinstance(target, Key):
            try:
                self.found.append(Found(name, target.kind.parse(node), written.line))
            except ValueError as exc:
                self.problem(written.line, name, f"{_short(name)} {exc}")
        elif isinstance(node, Section):
            self.section(node, target, f"{name}.")
        elif not isinstance(node, Scalar) or not node.is_null:
            inside = "" if ANY in target else f" with {', '.join(_spellings(target, written.text))}"
            self.problem(written.line, name, f"{_short(name)} must be a section{inside}, not {shown(node)}")


def _short(text: str) -> str:
    """A name for a message, on one line."""
    return repr(shortened(text, 80))[1:-1]


def text_of(setting: Setting) -> str:
    """A value for people; a password in a URL is hidden."""
    value = setting.value
    if value is None:
        known = lookup(setting.name)
        assert known is not None, f"{setting.name} is not in the schema"
        return known[1].kind.none_word if setting.is_given else known[1].unset.replace("`", "")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(value)}]"
    if isinstance(value, timedelta):
        return span_text(value)
    if setting.name == "store":
        return url_without_password(value)
    if setting.name.endswith("_bytes") and check_size("it", size(value)) == value:
        return size(value)  # where that is exact
    return str(value)


# --- suggestions -----------------------------------------------------------------------------------------------


def _spellings(names: Iterable[str], like: str) -> list[str]:
    """The names in the spelling the writer uses."""
    return [camel(name) if like != like.lower() else name for name in names]


def _unknown(written: Scalar, tree: Tree, prefix: str) -> str:
    where = f" in {prefix[:-1]}" if prefix else ""
    start = f"unknown key {shown(written)}{where}"
    if lookup(prefix + written.text) is not None:
        return f"{start}: write its parts as nested sections"
    if (near := nearest_key(written.text, tree, prefix)) is not None:
        return f"{start}: did you mean {near}?"
    return f"{start}: it takes {', '.join(_spellings(tree, written.text))}"


def nearest_key(text: str, tree: Tree | None = None, prefix: str = "") -> str | None:
    """The key most like a text: one of the same section, else one of any section, named in full."""
    siblings = _spellings(_TREE if tree is None else tree, text)
    names = _spellings((key.name for key in SCHEMA), text)
    return (
        _closest(text, {name: name for name in siblings})
        or _closest(prefix + text, {name: name for name in names})
        or _closest(text, {name.rpartition(".")[2]: name for name in reversed(names)})
    )


def _closest(text: str, candidates: dict[str, str]) -> str | None:
    """The candidate whose word is most like the text, however either is spelled; of equal words the last one."""
    by_plain = {_plain(word): name for word, name in candidates.items()}
    near = nearest(_plain(text[:80]), by_plain, cutoff=0.75)
    return None if near is None else by_plain[near]


def _plain(text: str) -> str:
    return re.sub(r"[-_ ]", "", text).lower()
