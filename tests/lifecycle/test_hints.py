"""Whether interrupted work may be resumed: each reason code, the cool-downs, and the order of the questions."""

from __future__ import annotations

import msgspec
import pytest

from stepkeep.errors import InvalidInput
from stepkeep.recording.resumption import (
    COOL_DOWN_SECONDS,
    Circumstances,
    Interruption,
    Reason,
    classified,
    resume_hints,
)
from stepkeep.recording.triggers import to_us

NOW = 1_700_000_000_000_000
GOOD = Circumstances(interruption=Interruption.TOOL_FAILURE, since_us=NOW - to_us(3600))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, Reason.ALLOWED),
        ({"since_us": None}, Reason.ALLOWED),
        ({"has_checkpoint": False}, Reason.MISSING_CHECKPOINT),
        ({"interruption": None}, Reason.UNKNOWN_INTERRUPTION),
        ({"is_idempotent": False}, Reason.NOT_IDEMPOTENT),
        ({"missing_artifacts": ("plan.md",)}, Reason.MISSING_ARTIFACTS),
        ({"attempts": 2}, Reason.ALLOWED),
        ({"attempts": 3}, Reason.ATTEMPT_LIMIT),
        ({"since_us": NOW - to_us(29.9)}, Reason.COOL_DOWN),
        ({"since_us": NOW - to_us(30)}, Reason.ALLOWED),
    ],
)
def test_every_reason(change: dict[str, object], reason: Reason) -> None:
    """One thing that is amiss gives its own code, and something to do about it."""
    hints = resume_hints(msgspec.structs.replace(GOOD, **change), now_us=NOW)
    assert (hints.eligible, hints.reason_code) == (reason is Reason.ALLOWED, reason)
    assert hints.next_actions


def test_the_first_reason_counts() -> None:
    """A cool-down is no news to someone whose checkpoint is missing."""
    all_wrong = Circumstances(
        has_checkpoint=False, is_idempotent=False, missing_artifacts=("x",), attempts=9, since_us=NOW
    )
    assert resume_hints(all_wrong, now_us=NOW).reason_code == Reason.MISSING_CHECKPOINT


@pytest.mark.parametrize(
    ("interruption", "seconds"),
    [("tool_failure", 30), ("timeout", 120), ("context_reset", 10), ("process_crash", 60)],
)
def test_each_interruption_has_its_cool_down(interruption: str, seconds: int) -> None:
    """To the microsecond."""
    kind = Interruption(interruption)
    assert COOL_DOWN_SECONDS[kind] == seconds
    at = msgspec.structs.replace(GOOD, interruption=kind, since_us=NOW - to_us(seconds) + 1)
    assert resume_hints(at, now_us=NOW).reason_code == Reason.COOL_DOWN
    assert resume_hints(at, now_us=NOW + 1).eligible


def test_the_actions_name_what_is_missing_and_when_to_come_back() -> None:
    """They are computed, not constant."""
    missing = msgspec.structs.replace(GOOD, missing_artifacts=("plan.md", "data.csv"))
    assert resume_hints(missing, now_us=NOW).next_actions == ["bring back plan.md", "bring back data.csv"]
    cooling = msgspec.structs.replace(GOOD, since_us=NOW)
    assert "2023-11-14T22:13:50" in resume_hints(cooling, now_us=NOW).next_actions[0]


def test_an_unknown_class_is_refused() -> None:
    """The error lists those that exist."""
    assert classified(None) is None
    assert classified("timeout") is Interruption.TIMEOUT
    with pytest.raises(InvalidInput, match="process_crash"):
        classified("bad luck")
