"""Whether a trigger becomes a snapshot: coalescing and the heartbeat, decided from numbers alone."""

from __future__ import annotations

import pytest

from stepkeep.model import Status
from stepkeep.recording.triggers import (
    COMPACTION_WARNING,
    STEP_BOUNDARY,
    Material,
    heartbeat_due,
    is_repeated,
    seconds_to_heartbeat,
    to_us,
)

START = 1_000_000_000
SAME = Material("digest", Status.IN_PROGRESS, ("build", 1, "running"))


def after(seconds: float, material: Material = SAME, event: str | None = STEP_BOUNDARY) -> bool:
    """Whether a trigger that comes so long after a snapshot of `SAME` is merged into it."""
    return is_repeated(event, material, SAME, now_us=START + to_us(seconds), last_us=START)


@pytest.mark.parametrize("seconds", [0.0, 0.001, 2.9, 3.0])
def test_a_trigger_within_three_seconds_is_merged(seconds: float) -> None:
    """The window begins with the snapshot and includes its end."""
    assert after(seconds)


@pytest.mark.parametrize("seconds", [3.000001, 3.1, 120.0])
def test_a_later_one_is_saved(seconds: float) -> None:
    """Even if nothing changed."""
    assert not after(seconds)


@pytest.mark.parametrize(
    "changed",
    [
        Material("other", SAME.status, SAME.step),
        Material(SAME.state, Status.FAILED, SAME.step),
        Material(SAME.state, SAME.status, ("build", 1, "completed")),
        Material(SAME.state, SAME.status, ("test", 2, "running")),
        Material(SAME.state, SAME.status, SAME.step, tags=("mine",)),
    ],
)
def test_a_material_change_is_saved_at_once(changed: Material) -> None:
    """State, status and step are material, and so are tags, by which a snapshot is found."""
    assert not after(0.1, changed)


def test_a_compaction_warning_is_never_held_back() -> None:
    """What is not saved before a compaction is lost."""
    assert not after(0.0, event=COMPACTION_WARNING)


def test_a_clock_that_went_back_does_not_merge() -> None:
    """Otherwise nothing would be saved until it caught up."""
    assert not after(-0.1)


@pytest.mark.parametrize(
    ("seconds", "status", "due"),
    [
        (119.999, Status.IN_PROGRESS, False),
        (120.0, Status.IN_PROGRESS, True),
        (500.0, Status.PAUSED, False),
        (500.0, Status.COMPLETED, False),
        (500.0, Status.FAILED, False),
    ],
)
def test_the_heartbeat_is_due_while_work_is_in_progress(seconds: float, status: Status, due: bool) -> None:
    """At 120 seconds after the last snapshot, and never when the work rests or has ended."""
    assert heartbeat_due(now_us=START + to_us(seconds), last_us=START, status=status) is due


def test_the_wait_for_a_heartbeat() -> None:
    """Until it is due; a whole period when it was due and not taken, or when the clock went back."""
    assert seconds_to_heartbeat(now_us=START + to_us(50), last_us=START) == 70
    assert seconds_to_heartbeat(now_us=START + to_us(120), last_us=START) == 120
    assert seconds_to_heartbeat(now_us=START + to_us(500), last_us=START) == 120
    assert seconds_to_heartbeat(now_us=START - to_us(500), last_us=START) == 120
