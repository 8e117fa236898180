"""Whether interrupted work may be resumed: each reason code, the cool-downs, and the order of the questions."""

from __future__ import annotations

import msgspec
import pytest

from stepkeep.codec.readable import ResumeHints
from stepkeep.errors import InvalidInput
from stepkeep.recording.resumption import (
    COOL_DOWN_SECONDS,
    Interruption,
    Reason,
    ResumeInfo,
    classified,
    resume_hints,
)
from stepkeep.recording.triggers import to_us

NOW = 1_700_000_000_000_000
GOOD = ResumeInfo(
    is_interrupted=True, interruption=Interruption.TOOL_FAILURE, interrupted_us=NOW - to_us(3600)
)


def hints_for(info: ResumeInfo | None, *, now_us: int = NOW, attempts: int = 0) -> ResumeHints:
    """The answer where no artifact is there."""
    return resume_hints(info, now_us=now_us, attempts=attempts, has_artifact=lambda _: False)


@pytest.mark.parametrize(
    ("change", "attempts", "reason"),
    [
        ({}, 0, Reason.ALLOWED),
        ({"interrupted_us": None}, 0, Reason.ALLOWED),
        ({"interruption": None}, 0, Reason.UNKNOWN_INTERRUPTION),
        ({"is_idempotent": False}, 0, Reason.NOT_IDEMPOTENT),
        ({"artifacts": ("plan.md",)}, 0, Reason.MISSING_ARTIFACTS),
        ({}, 2, Reason.ALLOWED),
        ({}, 3, Reason.ATTEMPT_LIMIT),
        ({"interrupted_us": NOW - to_us(29.9)}, 0, Reason.COOL_DOWN),
        ({"interrupted_us": NOW - to_us(30)}, 0, Reason.ALLOWED),
    ],
)
def test_every_reason(change: dict[str, object], attempts: int, reason: Reason) -> None:
    """One thing that is amiss gives its own code, and something to do about it."""
    hints = hints_for(msgspec.structs.replace(GOOD, **change), attempts=attempts)
    assert (hints.eligible, hints.reason_code) == (reason is Reason.ALLOWED, reason)
    assert hints.next_actions


def test_the_first_reason_counts() -> None:
    """A missing checkpoint is told before all else, and a cool-down is no news where the artifacts are missing."""
    hints = hints_for(None, attempts=9)
    assert (hints.eligible, hints.reason_code) == (False, Reason.MISSING_CHECKPOINT)
    assert hints.next_actions
    wrong = ResumeInfo(is_idempotent=False, artifacts=("x",), interrupted_us=NOW)
    assert hints_for(wrong, attempts=9).reason_code == Reason.NOT_IDEMPOTENT


@pytest.mark.parametrize(
    ("interruption", "seconds"),
    [("tool_failure", 30), ("timeout", 120), ("context_reset", 10), ("process_crash", 60)],
)
def test_each_interruption_has_its_cool_down(interruption: str, seconds: int) -> None:
    """To the microsecond."""
    kind = Interruption(interruption)
    assert COOL_DOWN_SECONDS[kind] == seconds
    at = msgspec.structs.replace(GOOD, interruption=kind, interrupted_us=NOW - to_us(seconds) + 1)
    assert hints_for(at).reason_code == Reason.COOL_DOWN
    assert hints_for(at, now_us=NOW + 1).eligible


def test_the_actions_name_what_is_missing_and_when_to_come_back() -> None:
    """They are computed, not constant."""
    missing = msgspec.structs.replace(GOOD, artifacts=("plan.md", "data.csv"))
    assert hints_for(missing).next_actions == ["bring back plan.md", "bring back data.csv"]
    cooling = msgspec.structs.replace(GOOD, interrupted_us=NOW)
    assert "2023-11-14T22:13:50" in hints_for(cooling).next_actions[0]


def test_an_unknown_class_is_refused() -> None:
    """The error lists those that exist."""
    assert classified(None) is None
    assert classified("timeout") is Interruption.TIMEOUT
    with pytest.raises(InvalidInput, match="process_crash"):
        classified("bad luck")
