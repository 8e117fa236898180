"""Whether interrupted work may be resumed, and why not; pure.

Work is resumed when there is a checkpoint, it is known what stopped it, the step may be repeated, what the step
needs is there, the budget of attempts is not used up, and the cool-down of the interruption has passed. They are
looked at in this order, and the first that is not so is the reason.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from stepkeep.codec.readable import ResumeHints, timestamp
from stepkeep.errors import InvalidInput
from stepkeep.policy.triggers import to_us

MAX_ATTEMPTS: Final = 3


class Interruption(StrEnum):
    """What stopped the work."""

    TOOL_FAILURE = "tool_failure"
    TIMEOUT = "timeout"
    CONTEXT_RESET = "context_reset"
    PROCESS_CRASH = "process_crash"


COOL_DOWN_SECONDS: Final = {
    Interruption.TOOL_FAILURE: 30,
    Interruption.TIMEOUT: 120,
    Interruption.CONTEXT_RESET: 10,
    Interruption.PROCESS_CRASH: 60,
}


class Reason(StrEnum):
    """Why work may be resumed, or not."""

    ALLOWED = "resume_allowed"
    MISSING_CHECKPOINT = "resume_missing_checkpoint"
    UNKNOWN_INTERRUPTION = "resume_unknown_interruption"
    NOT_IDEMPOTENT = "resume_step_not_idempotent"
    MISSING_ARTIFACTS = "resume_missing_artifacts"
    ATTEMPT_LIMIT = "resume_attempt_limit_reached"
    COOL_DOWN = "resume_blocked_by_cooldown"


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """All that the answer depends on. `since_us` is when the work stopped, or was last tried; None: not yet."""

    has_checkpoint: bool = True
    interruption: Interruption | None = None
    since_us: int | None = None
    is_idempotent: bool = True
    missing_artifacts: tuple[str, ...] = ()
    attempts: int = 0
    max_attempts: int = MAX_ATTEMPTS


def resume_hints(given: Circumstances, *, now_us: int) -> ResumeHints:
    """Whether to resume now, the reason, and what to do next."""
    reason = _reason(given, now_us)
    return ResumeHints(
        eligible=reason is Reason.ALLOWED, reason_code=str(reason), next_actions=_actions(reason, given)
    )


def _reason(given: Circumstances, now_us: int) -> Reason:
    if not given.has_checkpoint:
        return Reason.MISSING_CHECKPOINT
    if given.interruption is None:
        return Reason.UNKNOWN_INTERRUPTION
    if not given.is_idempotent:
        return Reason.NOT_IDEMPOTENT
    if given.missing_artifacts:
        return Reason.MISSING_ARTIFACTS
    if given.attempts >= given.max_attempts:
        return Reason.ATTEMPT_LIMIT
    ends_us = cool_down_ends_us(given)
    return Reason.COOL_DOWN if ends_us is not None and now_us < ends_us else Reason.ALLOWED


def cool_down_ends_us(given: Circumstances) -> int | None:
    """When the cool-down is over; None when there is none."""
    if given.interruption is None or given.since_us is None:
        return None
    return given.since_us + to_us(COOL_DOWN_SECONDS[given.interruption])


def _actions(reason: Reason, given: Circumstances) -> list[str]:
    match reason:
        case Reason.ALLOWED:
            return ["resume from this snapshot"]
        case Reason.MISSING_CHECKPOINT:
            return ["start afresh: there is no unfinished work to resume"]
        case Reason.UNKNOWN_INTERRUPTION:
            kinds = ", ".join(Interruption)
            return [f"find out what stopped the work and classify it as one of {kinds}"]
        case Reason.NOT_IDEMPOTENT:
            return ["check by hand what the step has done", "resume behind it, or undo it first"]
        case Reason.MISSING_ARTIFACTS:
            return [f"bring back {name}" for name in given.missing_artifacts]
        case Reason.ATTEMPT_LIMIT:
            return [
                f"resumed {given.attempts} times without success: repair the cause, then start the step anew"
            ]
        case Reason.COOL_DOWN:
            return [f"resume at {timestamp(cool_down_ends_us(given) or 0)} or later"]


def classified(classification: Interruption | str | None) -> Interruption | None:
    """The class of an interruption; None stays None: nobody knows.

    Raises:
        InvalidInput: there is no such class.
    """
    if classification is None:
        return None
    try:
        return Interruption(classification)
    except ValueError:
        raise InvalidInput(
            f"no interruption {classification!r}: choose one of {', '.join(Interruption)}",
            code="invalid_interruption",
        ) from None
