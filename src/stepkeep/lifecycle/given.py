"""What a recorder is given, checked before anything happens; pure.

A value that only the next snapshot would refuse is refused by the call that brings it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from stepkeep.errors import InvalidInput
from stepkeep.policy.profiles import MAX_DAYS

MAX_SECONDS: Final = MAX_DAYS * 86_400
"""The longest time of the configuration; a thread can wait for it."""


def check_options(*, state: object, heartbeat_seconds: object, coalesce_seconds: object) -> None:
    """Refuse a state that cannot be called, and times that are none."""
    if state is not None and not callable(state):
        raise InvalidInput(
            f"state is a function that returns what to save, not {type(state).__name__}: "
            "give a lambda, or set the state with update",
            code="invalid_option",
        )
    if not _is_time(heartbeat_seconds) or heartbeat_seconds == 0:
        raise InvalidInput(
            f"heartbeat_seconds is a number above 0, at most {MAX_SECONDS}, not {heartbeat_seconds!r}",
            code="invalid_option",
        )
    if not _is_time(coalesce_seconds):
        raise InvalidInput(
            f"coalesce_seconds is a number from 0, at most {MAX_SECONDS}, not {coalesce_seconds!r}",
            code="invalid_option",
        )


def _is_time(seconds: object) -> bool:
    """NaN compares with nothing, so it is none."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return False
    return 0 <= seconds <= MAX_SECONDS


def check_step(ordinal: object, is_idempotent: object) -> None:
    """Refuse what the one who resumes could not read."""
    if ordinal is not None and (type(ordinal) is not int or not 0 <= ordinal < 2**63):
        raise InvalidInput(
            f"the ordinal of a step is a whole number from 0, below 2**63, not {ordinal!r}",
            code="invalid_step",
        )
    if not isinstance(is_idempotent, bool):
        raise InvalidInput(f"is_idempotent is True or False, not {is_idempotent!r}", code="invalid_step")


def listed(what: str, given: Iterable[Any], *, code: str = "invalid_name") -> list[Any]:
    """The members of a list. One text is none, although its letters could be taken for members."""
    found: object = given
    if isinstance(found, str | bytes) or not isinstance(found, Iterable):
        raise InvalidInput(f"{what} takes a list, not {found!r}", code=code)
    return list(found)
