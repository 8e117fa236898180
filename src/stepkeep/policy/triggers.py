"""Whether a trigger becomes a snapshot of its own: coalescing, throttling, the heartbeat; pure.

Two triggers that come shortly after each other and find nothing changed tell one thing: the second is noted on the
snapshot that the first one made. A warning that the context is about to be compacted is never held back, since what
is not saved then is lost.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from stepkeep.model import Status

STEP_BOUNDARY: Final = "step_boundary"
RECOVERABLE_ERROR: Final = "recoverable_error"
FORCED_STOP: Final = "forced_stop"
HEARTBEAT: Final = "heartbeat"
COMPACTION_WARNING: Final = "context_compaction_warning"

NEVER_HELD_BACK: Final = frozenset({COMPACTION_WARNING})

COALESCE_SECONDS: Final = 3.0
HEARTBEAT_SECONDS: Final = 120.0
SIGNIFICANT_SECONDS: Final = 300.0
"""After so long without a checkpoint, time itself is worth one (profile `debug`)."""


class Decision(StrEnum):
    """What a trigger becomes: a snapshot, or a note on the last one."""

    SAVE = "save"
    COALESCE = "coalesce"


class Material(msgspec.Struct, frozen=True):
    """What has to differ for a trigger to be worth a snapshot of its own."""

    state: str
    status: Status
    step: tuple[object, ...] = ()
    tags: tuple[str, ...] = ()


class Last(msgspec.Struct, frozen=True):
    """The newest snapshot: when it was made, and of what."""

    time_us: int
    material: Material


def decide(
    event: str | None,
    *,
    now_us: int,
    last: Last | None,
    material: Material,
    window_seconds: float = COALESCE_SECONDS,
) -> Decision:
    """Whether a trigger is saved or merged into the last snapshot.

    It is merged within the window of that snapshot if state, status and step are the same and it brings no tags,
    by which it is to be found. A clock that went back decides for saving.
    """
    if last is None or event in NEVER_HELD_BACK or _differs(material, last.material):
        return Decision.SAVE
    is_within = 0 <= now_us - last.time_us <= to_us(window_seconds)
    return Decision.COALESCE if is_within else Decision.SAVE


def _differs(material: Material, last: Material) -> bool:
    is_same = (material.state, material.status, material.step) == (last.state, last.status, last.step)
    return not is_same or not set(material.tags) <= set(last.tags)


def is_throttled(event: str | None, *, now_us: int, last_us: int | None, min_seconds: float) -> bool:
    """Whether an automatic trigger comes too soon after the last checkpoint to be saved at all."""
    if last_us is None or event in NEVER_HELD_BACK:
        return False
    return 0 <= now_us - last_us < to_us(min_seconds)


def heartbeat_due(
    *, now_us: int, last_us: int, status: Status, every_seconds: float = HEARTBEAT_SECONDS
) -> bool:
    """Whether work that is in progress has gone on for so long since its last snapshot."""
    return status is Status.IN_PROGRESS and now_us - last_us >= to_us(every_seconds)


def seconds_to_heartbeat(*, now_us: int, last_us: int, every_seconds: float = HEARTBEAT_SECONDS) -> float:
    """How long to wait before the next look: until a heartbeat may be due, or a whole period when it was already.

    Then it was not taken, because the work rests or saving fails, and the next look need not come sooner.
    """
    left = (last_us - now_us) / 1_000_000 + every_seconds
    return left if 0 < left <= every_seconds else every_seconds


def to_us(seconds: float) -> int:
    return round(seconds * 1_000_000)
