"""Times as a person writes them, such as `2 hours ago`, `yesterday 14:30` or `2025-01-20 14:30:00`.

| text | the moment |
|---|---|
| `now` | this one |
| `2 hours ago`, `an hour ago`, `90s ago`, `2h 30m ago` | so long before it; days have 24 hours, weeks 7 days |
| `14:30`, `today 14:30:15`, `yesterday 14:30` | a time of day |
| `today`, `yesterday`, `2025-01-20` | the beginning of that day |
| `2025-01-20 14:30[:00]` | a date and a time of day |
| the same with `Z`, `UTC` or `+02:00` | in that zone |

Without a zone of its own a time is read in the one that is passed in. A time of day that the clocks skipped, or
showed twice, is refused: nobody can tell which moment it means.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Final

from stepkeep.errors import InvalidInput
from stepkeep.model import from_us, to_us
from stepkeep.text import shortened

LOCAL: Final = "local"
MAX_CHARACTERS: Final = 200
"""A longer text cannot be a time."""

_FIRST_US: Final = to_us(datetime.min)
_LAST_US: Final = to_us(datetime.max)
_MOST_DIGITS: Final = 18

_UNITS_US: Final = {
    unit: seconds * 1_000_000
    for names, seconds in (
        ("s sec secs second seconds", 1),
        ("m min mins minute minutes", 60),
        ("h hr hrs hour hours", 3600),
        ("d day days", 86_400),
        ("w week weeks", 604_800),
    )
    for unit in names.split()
}
_UNEVEN: Final = frozenset({"mo", "month", "months", "y", "yr", "yrs", "year", "years"})

_AMOUNT: Final = r"(?:\d+(?:\.\d+)?\s*|an?\s+)[a-z]+"
_AGO: Final = re.compile(rf"({_AMOUNT}(?:[\s,]*{_AMOUNT})*)\s+ago")
_PARTS: Final = re.compile(r"(\d+(?:\.\d+)?|an?(?=\s))\s*([a-z]+)")
_DAY: Final = re.compile(r"(today|yesterday)(?:\s+(?:at\s+)?(\d.*))?")
_CLOCK: Final = re.compile(r"\d{1,2}:\d\d(?::\d\d(?:\.\d{1,6})?)?")
_DATED: Final = re.compile(r"(?:\d{4,}-\d\d-\d\d|\d{4}-?w\d\d(?:-?\d)?|\d{8})(?:[t ]\d.*)?")
_ZONED: Final = re.compile(r"(.*\d)\s*(z|utc|[+-]\d\d:?\d\d)")


def parse(text: str, *, now_us: int, zone: tzinfo = UTC) -> int | None:
    """The moment a text means, in microseconds since 1970; None when the text does not have the form of a time. Pure.

    Raises:
        InvalidInput: it has the form of a time but does not exist (`invalid_time`), or the clocks of that zone
            skipped it (`skipped_time`) or showed it twice (`ambiguous_time`).
    """
    if len(text) > MAX_CHARACTERS or not text.isascii():
        return None
    lowered = text.lower()
    if lowered == "now":
        return now_us
    try:
        moment_us = _parse(lowered, now_us, zone)
        return None if moment_us is None else _in_range(moment_us)
    except OverflowError:
        raise _too_far(text) from None
    except InvalidInput:
        raise
    except ValueError:
        raise _not_a_time(text, "there is no such day or time of day") from None


def read(text: str, *, now_us: int, zone: tzinfo = UTC) -> int:
    """As `parse`, but any other text is `InvalidInput` too."""
    moment_us = parse(text, now_us=now_us, zone=zone)
    if moment_us is None:
        raise _not_a_time(
            shortened(text, MAX_CHARACTERS),
            "write it like '2 hours ago', 'yesterday 14:30' or '2025-01-20 14:30:00'",
        )
    return moment_us


def of_datetime(moment: datetime, zone: tzinfo = UTC) -> int:
    """The same for a `datetime`: one without a zone of its own is read in `zone`."""
    try:
        return _in_range(_wall_us(moment, zone) if moment.tzinfo is None else to_us(moment))
    except InvalidInput:
        raise
    except (OverflowError, ValueError):
        raise _too_far(moment.isoformat()) from None


def _in_range(moment_us: int) -> int:
    if not _FIRST_US <= moment_us <= _LAST_US:
        raise OverflowError
    return moment_us


def written(moment_us: int, zone: tzinfo = UTC, *, fraction: bool = True) -> str:
    """`2025-01-20 14:30:00 UTC`, or with the offset and name of another zone; `parse` reads the time back.

    Without `fraction` it ends with whole seconds.
    """
    utc = from_us(moment_us)
    try:
        moment = utc.astimezone(zone)
    except (OverflowError, ValueError):  # at the ends of the calendar
        moment, zone = utc, UTC
    text = f"{moment.replace(tzinfo=None):%Y-%m-%d %H:%M:%S}".rjust(19, "0")
    if fraction and moment.microsecond:
        text += f".{moment.microsecond:06}"
    return f"{text} UTC" if zone is UTC else f"{text} {_offset(moment)}"


def zone_named(name: str) -> tzinfo:
    """The zone with that name: `UTC`, `local` or one of the IANA database such as `Europe/Berlin`.

    Raises:
        InvalidInput: there is no such zone here (`unknown_zone`).
    """
    if name.upper() == "UTC":
        return UTC
    if name == LOCAL:
        return _Local()
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, LookupError, OSError):
        raise InvalidInput(
            f"{shortened(name, 60)!r} is not a time zone here: use UTC, local or a name such as Europe/Berlin",
            code="unknown_zone",
        ) from None


def zone_name(zone: tzinfo) -> str:
    return "UTC" if zone is UTC else str(zone)


# --- reading


def _parse(text: str, now_us: int, zone: tzinfo) -> int | None:
    if match := _AGO.fullmatch(text):
        return now_us - _span_us(match[1])
    if _CLOCK.fullmatch(text):
        return _wall_us(_at_clock(_today(now_us, zone), text), zone)
    if match := _DAY.fullmatch(text):
        day = _today(now_us, zone) - timedelta(days=match[1] == "yesterday")
        return _wall_us(_at_clock(day, match[2] or "00:00"), zone)
    return _dated_us(text, zone) if _DATED.fullmatch(text) else None


def _span_us(text: str) -> int:
    total = Decimal(0)
    for amount, unit in _PARTS.findall(text):
        if unit in _UNEVEN:
            raise _not_a_time(text, "months and years have no fixed length, give weeks, days or a date")
        if unit not in _UNITS_US:
            raise _not_a_time(text, f"{unit!r} is not a unit, use seconds, minutes, hours, days or weeks")
        if len(amount) > _MOST_DIGITS:
            raise OverflowError
        total += (1 if amount[0] == "a" else Decimal(amount)) * _UNITS_US[unit]
    return int(total)


def _today(now_us: int, zone: tzinfo) -> date:
    return from_us(now_us).astimezone(zone).date()


def _at_clock(day: date, clock: str) -> datetime:
    if not _CLOCK.fullmatch(clock):
        raise _not_a_time(clock, "a time of day is written like 14:30 or 14:30:15")
    hour, _, rest = clock.partition(":")
    return datetime.fromisoformat(f"{day.isoformat()} {hour:0>2}:{rest}")


def _dated_us(text: str, zone: tzinfo) -> int:
    if re.match(r"\d{5,}-", text):
        raise OverflowError
    zoned = _ZONED.fullmatch(text) if ":" in text else None
    own = "" if zoned is None else "+00:00" if zoned[2] in ("z", "utc") else zoned[2]
    moment = datetime.fromisoformat(f"{text if zoned is None else zoned[1]}{own}".upper())
    return _wall_us(moment, zone) if moment.tzinfo is None else to_us(moment)


def _not_a_time(text: str, why: str) -> InvalidInput:
    return InvalidInput(f"{text!r} is not a time: {why}", code="invalid_time")


def _too_far(text: str) -> InvalidInput:
    return InvalidInput(f"{text!r} is out of range: years run from 1 to 9999", code="invalid_time")


# --- walls and clocks


def _wall_us(wall: datetime, zone: tzinfo) -> int:
    """The one moment at which the clocks of a zone show this."""
    first, second = (wall.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return to_us(first)
    if first.astimezone(UTC).astimezone(zone).replace(tzinfo=None, fold=0) == wall.replace(fold=0):
        raise InvalidInput(
            f"{wall} came twice in {zone}, when the clocks were set back: say which by the offset, "
            f"{_exact(first)} or {_exact(second)}",
            code="ambiguous_time",
        )
    jump_us = _jump_us(to_us(second), to_us(first), zone)
    before, after = (from_us(each).astimezone(zone) for each in (jump_us - 1_000_000, jump_us))
    raise InvalidInput(
        f"{wall} was skipped in {zone}: the clocks went from {_exact(before)} to {_exact(after)}",
        code="skipped_time",
    )


def _jump_us(before_us: int, after_us: int, zone: tzinfo) -> int:
    """The first second after the clocks of a zone were changed, by halving."""
    old = from_us(before_us).astimezone(zone).utcoffset()
    low, high = before_us // 1_000_000, -(-after_us // 1_000_000)
    while low + 1 < high:
        middle = (low + high) // 2
        if from_us(middle * 1_000_000).astimezone(zone).utcoffset() == old:
            low = middle
        else:
            high = middle
    return high * 1_000_000


def _exact(moment: datetime) -> str:
    return moment.isoformat(sep=" ")


def _offset(moment: datetime) -> str:
    """`+01:00 (Europe/Berlin)`"""
    return f"{moment.isoformat()[len(moment.replace(tzinfo=None).isoformat()) :]} ({moment.tzinfo})"


class _Local(tzinfo):
    """The zone of this machine, with its changes between summer and winter."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, _moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, moment: datetime) -> datetime:
        local = moment.replace(tzinfo=UTC).astimezone()
        wall = local.replace(tzinfo=self)
        return wall if wall.utcoffset() == local.utcoffset() else wall.replace(fold=1)

    def __str__(self) -> str:
        return "the local zone"
