"""The options that saving and describing a session take, and what their values become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from stepkeep.config import Settings
from stepkeep.errors import InvalidInput
from stepkeep.model import SessionInfo, Status, Trigger, TriggerKind, check_name
from stepkeep.policy.profiles import CLEANUP, MADE_UNDER, MAX_DAYS, check_count, retention_for, retention_with
from stepkeep.policy.retention import Retention
from stepkeep.storage.port import Backend, Compresses

if TYPE_CHECKING:
    from stepkeep.api.option_types import CleanupRules, RetentionRules, SaveOptions
    from stepkeep.engine import Engine
    from stepkeep.history import refs

Ref: TypeAlias = str | int | datetime
"""What names a checkpoint: text as in `stepkeep.history.refs`, a seq, or a moment."""

KEEPS_ALL: Final = "archive"
"""The profile that rules are checked against."""


KEEP_EVERYTHING: Final[RetentionRules] = {
    "keep_last": None,
    "max_count": None,
    "max_age": None,
    "max_bytes": None,
}
"""No rule selects, and no cap removes."""


def policy_of(
    stored: Mapping[str, Any] | None, retention: RetentionRules | None, cleanup: CleanupRules | None
) -> dict[str, Any] | None:
    """The policy of a session after the given parts replaced the stored ones; None when nothing is left."""
    policy = dict(stored or {})
    if retention is not None:
        retention_for(KEEPS_ALL, retention)
        own = {key: policy[key] for key in (CLEANUP, MADE_UNDER) if key in policy}
        policy = own | {key: _plain(value) for key, value in retention.items()}
    if cleanup is not None:
        from stepkeep.policy.cleanup import rule_from

        rule_from(CLEANUP, cleanup)
        policy = {key: value for key, value in policy.items() if key != CLEANUP}
        policy |= {CLEANUP: dict(cleanup)} if cleanup else {}
    return policy or None


def parse_policy(texts: Mapping[str, str]) -> tuple[RetentionRules, CleanupRules]:
    """The rules of a session as a person writes them: `keep_last` `20`, `max_age` `off`, `keep_tags` `a,b`.

    Raises:
        InvalidInput: an unknown rule, or a value that makes no sense.
    """
    from stepkeep.api.option_types import CleanupRules, RetentionRules
    from stepkeep.config.schema import lookup, node_of
    from stepkeep.policy.profiles import check_key

    retention, cleanup = dict[str, Any](), dict[str, Any]()
    names = (*RetentionRules.__annotations__, *CleanupRules.__annotations__)
    for name, text in texts.items():
        is_cleanup = check_key("rule", name, names) in CleanupRules.__annotations__
        _, key = lookup(
            f"checkpoint.cleanup.workflows.any.{name}" if is_cleanup else f"retention.{name}"
        ) or ("", None)
        assert key is not None, f"{name} is not in the schema"
        given = text.split(",") if name == "keep_tags" else text
        try:
            (cleanup if is_cleanup else retention)[name] = key.kind.parse(node_of(given))
        except ValueError as exc:
            raise InvalidInput(f"{name} {exc}", code="invalid_setting") from None
    rules, about_all = RetentionRules(), CleanupRules()
    rules.update(retention)  # type: ignore[typeddict-item]
    about_all.update(cleanup)  # type: ignore[typeddict-item]
    return rules, about_all


def retention_rules(settings: Settings, given: Mapping[str, Any]) -> Callable[[SessionInfo], Retention]:
    """The rules of each session; keep counts that are given replace its own, and what it always keeps stays."""
    if not given:
        return settings.retention_of
    retention_for(KEEPS_ALL, given)  # a rule that makes no sense is told also where there is no session
    return lambda info: retention_with(settings.retention_of(info), given)


def rule_sources(settings: Settings, given: Mapping[str, Any]) -> Callable[[SessionInfo], dict[str, str]]:
    """Where the rules of each session come from that are not those of its profile."""
    here = dict.fromkeys(given, "given here")
    return lambda info: settings.rule_sources(info) | here


def compress_hours(settings: Settings, given: int | None, backend: Backend) -> int | None:
    """After how many hours history is compressed; None: never."""
    if given is None:
        hours: int | None = settings.for_store["checkpoint.compress_after_hours"]
        return hours
    if not (isinstance(backend, Compresses) and backend.can_compress):
        raise InvalidInput(
            "compress_after_hours is about the history in a store of files with layout run, which this store is not: "
            "leave it out",
            code="invalid_option",
        )
    return check_count("compress_after_hours", given, least=0, most=MAX_DAYS * 24)


def _plain(value: object) -> object:
    """A checked value of a rule as JSON has it."""
    if isinstance(value, timedelta):
        return f"{-(-value // timedelta(seconds=1))}s"
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def zone_of(settings: Settings) -> tzinfo:
    """The zone of a time that names none."""
    from stepkeep.history import times

    return times.zone_named(settings["time.zone"])


def ref_of(ref: Ref, *, now_us: int, zone: tzinfo) -> refs.CheckpointRef:
    from stepkeep.history import refs  # saving, and loading the latest, do not need it

    if isinstance(ref, datetime):
        return refs.CheckpointRef("time", time_of(ref, now_us=now_us, zone=zone))
    if isinstance(ref, int):
        return refs.CheckpointRef("seq", ref)
    return refs.parse(ref, now_us=now_us, zone=zone)


def time_of(time: str | datetime, *, now_us: int, zone: tzinfo) -> int:
    from stepkeep.history import times

    if isinstance(time, datetime):
        return times.of_datetime(time, zone)
    if not isinstance(time, str):
        raise InvalidInput(f"a time is text or a datetime, not {time!r}", code="invalid_time")
    return times.read(time, now_us=now_us, zone=zone)


def query_of(
    *,
    time: str | datetime | None,
    seq: int | None,
    id: str | None,
    tag: str | None,
    now_us: int,
    zone: tzinfo,
) -> refs.CheckpointRef:
    """The ref for the first of time, seq and id that is given."""
    from stepkeep.history import refs

    if time is not None:
        return refs.CheckpointRef("time", time_of(time, now_us=now_us, zone=zone), tag or "")
    if seq is not None:
        if not isinstance(seq, int):
            raise InvalidInput(f"a seq is a whole number, not {seq!r}", code="invalid_query")
        return refs.CheckpointRef("seq", seq)
    if id is None:
        raise InvalidInput("a query needs a time, a seq or an id", code="invalid_query")
    ref = refs.parse(id, now_us=now_us, zone=zone)
    if ref.kind != "id":
        raise InvalidInput(f"{id!r} is neither an id nor the beginning of one", code="invalid_query")
    return ref


def status_of(status: Status | str) -> Status:
    try:
        return Status(status)
    except ValueError:
        raise InvalidInput(
            f"no status {status!r}: choose one of {', '.join(Status)}", code="invalid_status"
        ) from None


def trigger_of(trigger: Trigger | TriggerKind | str) -> Trigger:
    if isinstance(trigger, Trigger):
        return trigger
    try:
        return Trigger(TriggerKind(trigger))
    except ValueError:
        raise InvalidInput(
            f"no trigger {trigger!r}: choose one of {', '.join(TriggerKind)}", code="invalid_trigger"
        ) from None


def names_of(what: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInput(f"{what} takes a list of texts, not {names!r}", code="invalid_name")
    return tuple(check_name(f"each of {what}", name) for name in names)


def count_usage(engine: Engine, uid: str, options: SaveOptions) -> None:
    """Add the `usage` of a save that is done, if it has one, to the sums of the session."""
    if (given := options.get("usage")) is not None:
        from stepkeep.maintenance.spending import add_usage, usage_of  # few saves tell

        add_usage(engine, uid, usage_of(given))


def check_limit(limit: int | None, what: str) -> None:
    """Refuse a limit that counts nothing."""
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidInput(f"limit is {limit!r}; it counts {what}: 0 or more", code="invalid_option")
