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

from stepkeep import typed
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


def resume_hints(
    info: ResumeInfo | None,
    status: Status = Status.IN_PROGRESS,
    *,
    now_us: int,
    seen_us: int | None = None,
    attempts: int = 0,
    has_artifact: HasArtifact,
) -> ResumeHints:
    """Whether to resume work that stands there now, the reason, and what to do next. None: there is no such work.

    `seen_us` is when the work was last seen or last tried; None: not since it was interrupted.
    """
    if info is None:
        return _hints(Reason.MISSING_CHECKPOINT, "start afresh: there is no unfinished work to resume")
    interruption = info.interruption
    if interruption is None:
        if info.is_interrupted or status is Status.FAILED:
            kinds = ", ".join(Interruption)
            action = f"find out what stopped the work and classify it as one of {kinds}"
            return _hints(Reason.UNKNOWN_INTERRUPTION, action)
        interruption = (
            Interruption.PROCESS_CRASH
        )  # work in progress that nobody stopped can only have crashed
    if not info.is_idempotent:
        actions = ("check by hand what the step has done", "resume behind it, or undo it first")
        return _hints(Reason.NOT_IDEMPOTENT, *actions)
    if missing := [name for name in info.artifacts if not has_artifact(name)]:
        return _hints(Reason.MISSING_ARTIFACTS, *(f"bring back {name}" for name in missing))
    if attempts >= MAX_ATTEMPTS:
        action = f"resumed {attempts} times without success: repair the cause, then start the step anew"
        return _hints(Reason.ATTEMPT_LIMIT, action)
    ends_us = cool_down_ends_us(info, seen_us)
    if now_us < ends_us:
        return _hints(Reason.COOL_DOWN, f"resume at {timestamp(ends_us)} or later")
    return _hints(Reason.ALLOWED, "resume from this snapshot")


def cool_down_ends_us(info: ResumeInfo, seen_us: int | None) -> int:
    """Before that moment work is not resumed, so that what stopped it can pass; 0 when it was not seen since."""
    interruption = info.interruption or Interruption.PROCESS_CRASH
    since_us = max((each for each in (seen_us, info.interrupted_us) if each is not None), default=None)
    return 0 if since_us is None else since_us + to_us(COOL_DOWN_SECONDS[interruption])


def _hints(reason: Reason, *actions: str) -> ResumeHints:
    is_allowed = reason is Reason.ALLOWED
    return ResumeHints(eligible=is_allowed, reason_code=str(reason), next_actions=list(actions))


def may_resume(engine: Engine, uid: str, *, has_artifact: HasArtifact) -> ResumeHints:
    """Whether the work of a session may be resumed at this moment, from its newest intact snapshot."""
    return hints_now(engine, uid, has_artifact)[0]


def try_resume(engine: Engine, uid: str, *, has_artifact: HasArtifact) -> ResumeHints:
    """The same, and the attempt is recorded. A refused one does not use up the budget."""
    hints, step, _ = hints_now(engine, uid, has_artifact)
    event = ATTEMPTED if hints.eligible else REFUSED
    data = {"step": step, "reason_code": hints.reason_code}
    engine.backend.record_event(uid, event, data, time_us=engine.clock())
    return hints


def hints_now(
    engine: Engine, uid: str, has_artifact: HasArtifact
) -> tuple[ResumeHints, str | None, int | None]:
    """The hints at this moment, the step that the work is at, and for how many microseconds it has to cool down."""
    session, now_us = engine.backend.session(uid), engine.clock()
    loaded = engine.latest(session)
    if loaded is None or session.status in NOTHING_TO_RESUME:
        return resume_hints(None, now_us=now_us, has_artifact=has_artifact), None, None
    info = resume_info_at(engine, loaded)
    tried = attempts_at(engine, uid, info.step_id)
    seen = [] if session.status is Status.PAUSED else [loaded.header.time_us]
    seen_us = max([*seen, *tried], default=None)
    hints = resume_hints(
        info,
        session.status,
        now_us=now_us,
        seen_us=seen_us,
        attempts=len(tried),
        has_artifact=has_artifact,
    )
    is_cooling = hints.reason_code == Reason.COOL_DOWN
    return hints, info.step_id, cool_down_ends_us(info, seen_us) - now_us if is_cooling else None


def resume_info_at(engine: Engine, loaded: Loaded) -> ResumeInfo:
    """What is known at a snapshot, with the errors that were merged into it because nothing had changed.

    Where no recorder made the snapshot, there is nothing special to know.
    """
    details: Any = loaded.value(DETAILS) if DETAILS in loaded.contents else None
    try:
        found = details.get(RESUME_KEY, {}) if isinstance(details, dict) else {}
        info = typed.convert(found, ResumeInfo)
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
