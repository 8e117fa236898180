"""The options that saving and describing a session take, and what their values become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from stepkeep.config import Settings
from stepkeep.errors import InvalidInput
from stepkeep.model import SessionInfo, Status, Trigger, TriggerKind, check_name
from stepkeep.policy.cleanup import CLEANUP, MADE_UNDER, rule_from
from stepkeep.policy.profiles import MAX_DAYS, check_count, retention_for, retention_with
from stepkeep.policy.retention import Retention

if TYPE_CHECKING:
    from stepkeep.api.option_types import CleanupRules, RetentionRules, SaveOptions
    from stepkeep.engine import Engine
    from stepkeep.history import refs

Ref: TypeAlias = str | int | datetime
"""What names a checkpoint: text as in `stepkeep.history.refs`, a seq, or a moment."""

KEEPS_ALL: Final = "archive"
"""The profile that rules are checked against."""


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
        rule_from(CLEANUP, cleanup)
        policy = {key: value for key, value in policy.items() if key != CLEANUP}
        policy |= {CLEANUP: dict(cleanup)} if cleanup else {}
    return policy or None


def retention_rules(settings: Settings, given: Mapping[str, Any]) -> Callable[[SessionInfo], Retention]:
    """The rules of each session; keep counts that are given replace its own, and what it always keeps stays."""
    if not given:
        return settings.retention_of
    retention_for(KEEPS_ALL, given)  # a rule that makes no sense is told also where there is no session
    return lambda info: retention_with(settings.retention_of(info), given)


def compress_hours(settings: Settings, given: int | None) -> int | None:
    """After how many hours history is compressed; None: never."""
    if given is None:
        hours: int | None = settings["checkpoint.compress_after_hours"]
        return hours
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
