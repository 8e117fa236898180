"""The names of dated backups, and which of them go. Pure: the caller passes the time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from stepkeep.errors import InvalidInput
from stepkeep.model import MAIN_BRANCH, Header, from_us
from stepkeep.policy.profiles import retention_for
from stepkeep.policy.retention import Retention, decide

RULES: Final = ("keep_last", "keep_within", "keep_hourly", "keep_daily", "keep_weekly")
"""The rules of pruning that backups have too. They unite; no rule, and every backup stays."""

_DATED: Final = re.compile(r"stepkeep-(\d{8}T\d{12})(?:\.db(?:\.age)?)?")
_FORM: Final = "%Y%m%dT%H%M%S%f"


def rotation_of(rules: Mapping[str, object]) -> Retention | None:
    """The checked rules; None where none is given.

    Raises:
        InvalidInput: a rule that backups do not have, or a value that makes no sense.
    """
    given = {name: value for name, value in rules.items() if value is not None}
    if not given:
        return None
    if unknown := given.keys() - set(RULES):
        raise InvalidInput(
            f"backups have no rule {min(unknown)}: use {', '.join(RULES)}", code="invalid_setting"
        )
    return retention_for("archive", given)


def dated_name(now_us: int, there: Iterable[str] = ()) -> str:
    """A name, without an ending, that sorts behind all that are there: a clock may have been set back."""
    newest_us = max((us for name in there if (us := _time_us(name)) is not None), default=-1)
    return f"stepkeep-{from_us(max(now_us, newest_us + 1)):{_FORM}}"


def surplus(names: Iterable[str], rules: Retention, now_us: int) -> list[str]:
    """The backups that no rule keeps, oldest first; the newest always stays, and what has no such name is not ours."""
    dated = sorted((us, name) for name in names if (us := _time_us(name)) is not None)
    moments = [
        Header(v=1, id=name, session="", seq=at, branch=MAIN_BRANCH, time_us=us, contents={})
        for at, (us, name) in enumerate(dated, start=1)
    ]
    return [each.checkpoint for each in decide(moments, {}, rules, now_us) if not each.stays]


def _time_us(name: str) -> int | None:
    """When the backup of that name was made; None for a name that is none of ours."""
    match = _DATED.fullmatch(name)
    try:
        moment = None if match is None else datetime.strptime(match[1], _FORM).replace(tzinfo=UTC)
    except ValueError:
        return None
    return None if moment is None else round(moment.timestamp() * 1_000_000)
