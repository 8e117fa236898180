"""Profiles: named sets of defaults for the history of a session, and the keys that change them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.model import MAX_SEQ, check_name
from stepkeep.policy.retention import Retention
from stepkeep.text import nearest

MAX_DAYS: Final = 36_500
"""A longer span is a slip of the pen; to keep something for ever, switch the rule off."""

CLEANUP: Final = "cleanup"
"""The key of a session's policy that speaks of the session as a whole; the others are rules for its history."""

MADE_UNDER: Final = "made_under"
"""The key with the project's file that the session was made under, and the rules in it at that time."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults of a session: which checkpoints stay, and after how many days the whole session may go.

    `completed_days` and `failed_days` count from its end, `stale_days` from its last activity if it never ended;
    None means never.
    """

    name: str
    retention: Retention = Retention()
    completed_days: int | None = 7
    failed_days: int | None = 30
    stale_days: int | None = None

    @property
    def is_cleaned(self) -> bool:
        """Whether a session of this profile may ever be removed as a whole."""
        return self.completed_days is not None or self.failed_days is not None


SESSION_BYTES: Final = 1024**3
"""How much history of a session `standard` keeps before the oldest goes."""

_WEEK: Final = timedelta(days=7)
_QUARTER: Final = timedelta(days=90)
_THINNED: Final = Retention(keep_last=100, keep_hourly=_WEEK, keep_daily=_QUARTER)
_SIGNIFICANT: Final = (
    "hypothesis_confirmed",
    "hypothesis_rejected",
    "contradiction_detected",
    "branch_merged",
)

PROFILES: Final = {
    profile.name: profile
    for profile in (
        Profile(name="standard", retention=Retention(max_bytes=SESSION_BYTES), completed_days=30),
        Profile(name="workflow", retention=Retention(keep_last=10)),
        Profile(name="run", retention=Retention(keep_last=50, max_age=timedelta(days=14))),
        Profile(
            name="debug",
            retention=msgspec.structs.replace(
                _THINNED, keep_within=timedelta(hours=1), keep_manual=True, keep_tags=_SIGNIFICANT
            ),
        ),
        Profile(name="phase", completed_days=30, stale_days=30),
        Profile(name="agent", retention=Retention(keep_last=10), completed_days=30, stale_days=30),
        Profile(name="archive", completed_days=None, failed_days=None),
    )
}


def profile_named(name: str) -> Profile:
    try:
        return PROFILES[name]
    except KeyError:
        raise InvalidInput(
            f"no profile {name!r}: choose one of {', '.join(PROFILES)}", code="unknown_profile"
        ) from None


def retention_for(profile_name: str, overrides: Mapping[str, object] | None = None) -> Retention:
    """The profile's rules with some of them replaced, each by its key. None switches a rule off.

    `keep_last: None` means no limit of the count: the profile's other selecting rules, which are about what is
    older than the last ones, then fall away too unless they are given as well.

    Raises:
        InvalidInput: an unknown key, or a value that makes no sense; the message names the key.
    """
    base = profile_named(profile_name).retention
    if not overrides:
        return base
    given = {key: _value(key, value) for key, value in overrides.items()}
    if "keep_last" in given and given["keep_last"] is None:
        given = dict.fromkeys(_SELECTING) | given
    return msgspec.structs.replace(base, **given)


def retention_with(base: Retention, rules: Mapping[str, object]) -> Retention:
    """The rules for one prune. Keep counts that are given replace those of `base`, and that history is off; its caps,
    unless given, and what it always keeps stay.

    Raises:
        InvalidInput: an unknown key, or a value that makes no sense; the message names the key.
    """
    given = {key: _value(key, value) for key, value in rules.items()}
    if not given.keys().isdisjoint(_SELECTING):
        given = dict.fromkeys(_SELECTING) | given | {"is_off": False}
    if rules.get("keep_tags"):
        given["keep_tags"] = tuple(dict.fromkeys((*base.keep_tags, *given["keep_tags"])))
    return msgspec.structs.replace(base, **given)


# --- keys and values -------------------------------------------------------------------------------------------

_SELECTING: Final = ("keep_last", "keep_within", "keep_hourly", "keep_daily", "keep_weekly")


def check_key(what: str, key: object, known: Iterable[str]) -> str:
    """`key` if it is one of `known`; otherwise `InvalidInput` naming the one that was probably meant."""
    names = tuple(known)
    if key in names:
        return str(key)
    near = nearest(str(key), names, cutoff=0.5)
    hint = f"choose one of {', '.join(names)}" if near is None else f"did you mean {near!r}?"
    raise InvalidInput(f"unknown {what} {key!r}: {hint}", code="unknown_key")


def check_count(key: str, value: object, *, least: int, most: int) -> int:
    """`value` if it is a whole number within the limits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid(key, f"must be a whole number, not {value!r}")
    if not least <= value <= most:
        raise _invalid(key, f"must be from {least} to {most}, not {value}")
    return value


def check_flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _invalid(key, f"must be true or false, not {value!r}")
    return value


_DURATION: Final = r"(\d{1,12})\s*([smhdw])"
_DURATION_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def check_duration(key: str, value: object) -> timedelta:
    """A span above zero: a timedelta, or text such as `90m`, `12h`, `14d`, `2w`."""
    span = value
    if isinstance(value, str) and (match := re.fullmatch(_DURATION, value.strip(), re.ASCII)):
        try:
            span = timedelta(**{_DURATION_UNITS[match[2]]: int(match[1])})
        except OverflowError:
            span = timedelta.max
    if not isinstance(span, timedelta):
        raise _invalid(key, f"must be a duration such as 90m, 12h, 14d or 2w, not {value!r}")
    if not timedelta(0) < span <= timedelta(days=MAX_DAYS):
        raise _invalid(key, f"must be longer than 0 and at most {MAX_DAYS} days, not {value}")
    return span


_SIZE: Final = r"(\d{1,18}(?:\.\d{1,6})?)\s*(?:([KMGT])(i?))?B?"


def check_size(key: str, value: object) -> int:
    """A number of bytes above zero: a whole number, or text such as `500MB`, `1.5GB`, `1GiB`."""
    count = value
    if isinstance(value, str) and (match := re.fullmatch(_SIZE, value.strip(), re.ASCII | re.IGNORECASE)):
        power = " KMGT".index((match[2] or " ").upper())
        count = round(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if isinstance(count, bool) or not isinstance(count, int):
        raise _invalid(key, f"must be a number of bytes, or text such as 500MB or 1.5GB, not {value!r}")
    return check_count(key, count, least=1, most=MAX_SEQ)


def _tags(key: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise _invalid(key, f"must be a list of tags, not {value!r}")
    return tuple(dict.fromkeys(check_name(f"a tag in {key}", tag) for tag in value))


_CHECKS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "keep_last": partial(check_count, least=1, most=MAX_SEQ),
    "keep_within": check_duration,
    "keep_hourly": check_duration,
    "keep_daily": check_duration,
    "keep_weekly": check_duration,
    "keep_manual": check_flag,
    "keep_tags": _tags,
    "keep_terminal": check_flag,
    "max_count": partial(check_count, least=1, most=MAX_SEQ),
    "max_age": check_duration,
    "max_bytes": check_size,
}
_OFF: Final = {"keep_manual": False, "keep_tags": (), "keep_terminal": False}


def _value(key: object, value: object) -> Any:
    name = check_key("retention key", key, _CHECKS)
    return _OFF.get(name) if value is None else _CHECKS[name](name, value)


def _invalid(key: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{key} {problem}", code="invalid_setting")
