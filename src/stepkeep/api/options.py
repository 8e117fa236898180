"""The options that saving and describing a session take, and what their values become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, tzinfo
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict

from stepkeep.config import Settings
from stepkeep.errors import InvalidInput
from stepkeep.model import SessionInfo, Status, Trigger, TriggerKind, check_name
from stepkeep.policy.cleanup import CLEANUP, MADE_UNDER, rule_from
from stepkeep.policy.profiles import MAX_DAYS, check_count, retention_for, retention_with
from stepkeep.policy.retention import Retention

if TYPE_CHECKING:
    from stepkeep.engine import Engine
    from stepkeep.history import refs

Ref: TypeAlias = str | int | datetime
"""What names a checkpoint: text as in `stepkeep.history.refs`, a seq, or a moment."""

KEEPS_ALL: Final = "archive"
"""The profile that rules are checked against."""


class RetentionRules(TypedDict, total=False):
    """Which checkpoints of a session stay; see the reference of the section `retention` in the configuration.

    Durations are a `timedelta` or text such as `12h`, sizes a number of bytes or text such as `20MB`. None switches
    a rule off.
    """

    keep_last: int | None
    keep_within: timedelta | str | None
    keep_hourly: timedelta | str | None
    keep_daily: timedelta | str | None
    keep_weekly: timedelta | str | None
    keep_manual: bool
    keep_tags: Iterable[str]
    keep_terminal: bool
    max_count: int | None
    max_age: timedelta | str | None
    max_bytes: int | str | None


class CleanupRules(TypedDict, total=False):
    """When the whole session may go: never if `enabled` is False, else so many days after its end."""

    enabled: bool
    retention_days: int


class TimelineOptions(TypedDict, total=False):
    """What `Session.timeline` and `Store.timelines` take."""

    since: str | datetime | None
    branch: str | None
    tag: str | None
    limit: int | None
    fold: bool


class SaveOptions(TypedDict, total=False):
    """What `Session.save` takes beside the state.

    `step` and `message` say where the work stands; `tags`, `metadata` (plain JSON, up to 64 KiB) and `details`
    (any state) describe it. `status` also becomes the session's. `trigger` says why it is saved. `branch` is
    the current one unless given, and `parents` the branch's head. `requires` are ids that must stay as long as
    this checkpoint. `external_id` is the caller's own name for it, unique on the branch. A repeat with the same
    `idempotency_key` and content returns the first checkpoint. `expect_head` names the checkpoint that must
    still be the branch's newest (None: there must be none), else `Conflict`. `fence` is a lease's token.
    `usage`, a dict with `tokens` and `cost`, is added to the sums of the session, which `Store.stats` adds up.
    `workspace` captures the project files: a directory, or True for the session's or the current one; False leaves
    out what the session would capture.
    """

    step: int | None
    message: str
    tags: Iterable[str]
    status: Status | str
    trigger: Trigger | TriggerKind | str
    metadata: Mapping[str, Any] | None
    details: object
    branch: str | None
    parents: Iterable[str] | None
    requires: Iterable[str]
    external_id: str | None
    idempotency_key: str | None
    expect_head: str | None
    fence: int | None
    usage: Mapping[str, int | float] | None
    workspace: bool | str | PathLike[str] | None


class RestoreOptions(TypedDict, total=False):
    """What `Session.restore` takes beside the ref.

    `branch` names the new branch. `expect_head` is the id that `latest` must still have. A connected part that the
    checkpoint lacks is an error, or with `missing="keep"` stays as it is; what the checkpoint has and nobody connected
    is ignored, or with `extra="error"` an error. The result names both. With `force` a part that cannot say what it
    holds now is restored all the same, and project files are overwritten that no capture has. With `compare` it also
    counts the changes that lead from the state before to the restored one. With `files` the project files of the
    checkpoint are restored too, in `workspace` as with `Files.restore`, and one undo takes all of it back; with
    `parts=False` connected parts are left alone.
    """

    branch: str | None
    expect_head: str | None
    missing: Literal["error", "keep"]
    extra: Literal["ignore", "error"]
    force: bool
    compare: bool
    files: bool
    parts: bool
    workspace: bool | str | PathLike[str] | None


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
