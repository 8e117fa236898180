"""Resuming work that was interrupted: whether it may be, why not, and the budget of attempts.

Work is resumed when there is a checkpoint, it is known what stopped it, the step may be repeated, what it needs is
there, attempts are left, and the cool-down of the interruption has passed. They are looked at in this order, and the
first that does not hold is the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from stepkeep.codec.readable import ResumeHints, timestamp
from stepkeep.engine import Engine, Loaded
from stepkeep.errors import SCHEMA_INVALID, Corrupt, InvalidInput
from stepkeep.model import DETAILS, Status
from stepkeep.recording.triggers import merged_triggers, to_us

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
    return Reason.COOL_DOWN if now_us < _cool_down_ends_us(given) else Reason.ALLOWED


def _cool_down_ends_us(given: Circumstances) -> int:
    """When the cool-down is over; 0 when there is none."""
    if given.interruption is None or given.since_us is None:
        return 0
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
            return [f"resume at {timestamp(_cool_down_ends_us(given))} or later"]


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


RESUME_KEY: Final = "lifecycle"
"""The key of the details under which `ResumeInfo` stands."""

ATTEMPTED: Final = "resume_attempted"
REFUSED: Final = "resume_refused"
SUCCEEDED: Final = "resume_succeeded"

NOTHING_TO_RESUME: Final = frozenset({Status.COMPLETED, Status.CANCELLED})

HasArtifact: TypeAlias = Callable[[str], bool]


class ResumeInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a snapshot tells the one who resumes, beside its contract. Times are in microseconds since 1970."""

    step_id: str | None = None
    is_idempotent: bool = True
    artifacts: tuple[str, ...] = ()
    is_interrupted: bool = False
    interruption: Interruption | None = None
    interrupted_us: int | None = None
    message: str = ""


def circumstances(
    info: ResumeInfo, status: Status, *, attempts: int, has_artifact: HasArtifact, since_us: int | None = None
) -> Circumstances:
    """What the answer depends on. Work in progress that nobody stopped can only have crashed.

    `since_us` is when the work was last seen, or last tried: its cool-down counts from the latest of them.
    """
    interruption = info.interruption
    if interruption is None and not info.is_interrupted and status is not Status.FAILED:
        interruption = Interruption.PROCESS_CRASH
    known = [moment for moment in (since_us, info.interrupted_us) if moment is not None]
    return Circumstances(
        interruption=interruption,
        since_us=max(known, default=None),
        is_idempotent=info.is_idempotent,
        missing_artifacts=tuple(name for name in info.artifacts if not has_artifact(name)),
        attempts=attempts,
    )


def may_resume(engine: Engine, uid: str, *, has_artifact: HasArtifact) -> ResumeHints:
    """Whether the work of a session may be resumed at this moment, from its newest intact snapshot."""
    return _answer(engine, uid, has_artifact)[0]


def try_resume(engine: Engine, uid: str, *, has_artifact: HasArtifact) -> ResumeHints:
    """The same, and the attempt is recorded. A refused one does not use up the budget."""
    hints, step = _answer(engine, uid, has_artifact)
    event = ATTEMPTED if hints.eligible else REFUSED
    data = {"step": step, "reason_code": hints.reason_code}
    engine.backend.record_event(uid, event, data, time_us=engine.clock())
    return hints


def _answer(engine: Engine, uid: str, has_artifact: HasArtifact) -> tuple[ResumeHints, str | None]:
    session, now_us = engine.backend.session(uid), engine.clock()
    loaded = engine.latest(session)
    if loaded is None or session.status in NOTHING_TO_RESUME:
        return resume_hints(Circumstances(has_checkpoint=False), now_us=now_us), None
    info = resume_info_at(engine, loaded)
    tried = attempts_at(engine, uid, info.step_id)
    seen = [] if session.status is Status.PAUSED else [loaded.header.time_us]
    given = circumstances(
        info,
        session.status,
        attempts=len(tried),
        has_artifact=has_artifact,
        since_us=max([*seen, *tried], default=None),
    )
    return resume_hints(given, now_us=now_us), info.step_id


def resume_info_at(engine: Engine, loaded: Loaded) -> ResumeInfo:
    """What is known at a snapshot, with the errors that were merged into it because nothing had changed.

    Where no recorder made the snapshot, there is nothing special to know.
    """
    details: Any = loaded.value(DETAILS) if DETAILS in loaded.contents else None
    try:
        found = details.get(RESUME_KEY, {}) if isinstance(details, dict) else {}
        info = msgspec.convert(found, ResumeInfo)
    except msgspec.ValidationError as exc:
        raise Corrupt(
            f"{loaded.header.id} has details that make no sense: {exc}",
            code=SCHEMA_INVALID,
            checkpoint=loaded.header.id,
        ) from exc
    for merged in merged_triggers(engine, loaded.header):
        if merged.trigger.kind == "error":
            info = msgspec.structs.replace(
                info,
                is_interrupted=True,
                interruption=None if merged.interruption is None else Interruption(merged.interruption),
                interrupted_us=merged.time_us,
                message=merged.message,
            )
    return info


def attempts_at(engine: Engine, uid: str, step: str | None) -> list[int]:
    """When work on that step was resumed since it was last completed, oldest first."""
    tried: list[int] = []
    for event in engine.backend.events(uid):
        if event.data.get("step") != step:
            continue
        if event.type == ATTEMPTED:
            tried.append(event.time_us)
        elif event.type == SUCCEEDED:
            tried.clear()
    return tried


def note_success(engine: Engine, uid: str, step: str) -> None:
    """A step is completed: what was tried before does not count any more."""
    if attempts_at(engine, uid, step):
        engine.backend.record_event(uid, SUCCEEDED, {"step": step}, time_us=engine.clock())
