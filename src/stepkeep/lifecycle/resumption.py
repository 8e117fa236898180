"""Resuming work that was interrupted: what is stored about it, and the budget of attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from stepkeep.codec.readable import ResumeHints
from stepkeep.engine import Engine, Loaded
from stepkeep.errors import SCHEMA_INVALID, Corrupt
from stepkeep.lifecycle.hints import Circumstances, Interruption, resume_hints
from stepkeep.lifecycle.merged import merged_triggers
from stepkeep.model import Status

FACTS: Final = "lifecycle"
"""The key of the details under which the facts stand."""

ATTEMPTED: Final = "resume_attempted"
REFUSED: Final = "resume_refused"
SUCCEEDED: Final = "resume_succeeded"

NOTHING_TO_RESUME: Final = frozenset({Status.COMPLETED, Status.CANCELLED})

HasArtifact: TypeAlias = Callable[[str], bool]


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a snapshot tells the one who resumes, beside its contract. Times are in microseconds since 1970."""

    step_id: str | None = None
    is_idempotent: bool = True
    artifacts: tuple[str, ...] = ()
    is_interrupted: bool = False
    interruption: Interruption | None = None
    interrupted_us: int | None = None
    message: str = ""


def circumstances(
    facts: Facts, status: Status, *, attempts: int, has_artifact: HasArtifact, since_us: int | None = None
) -> Circumstances:
    """What the answer depends on. Work in progress that nobody stopped can only have crashed.

    `since_us` is when the work was last seen, or last tried: its cool-down counts from the latest of them.
    """
    is_unclassified = facts.is_interrupted or status is Status.FAILED
    interruption = facts.interruption
    if interruption is None and not is_unclassified:
        interruption = Interruption.PROCESS_CRASH
    known = [moment for moment in (since_us, facts.interrupted_us) if moment is not None]
    return Circumstances(
        interruption=interruption,
        since_us=max(known, default=None),
        is_idempotent=facts.is_idempotent,
        missing_artifacts=tuple(name for name in facts.artifacts if not has_artifact(name)),
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
    facts = facts_at(engine, loaded)
    tried = attempts_at(engine, uid, facts.step_id)
    seen = [] if session.status is Status.PAUSED else [loaded.header.time_us]
    given = circumstances(
        facts,
        session.status,
        attempts=len(tried),
        has_artifact=has_artifact,
        since_us=max([*seen, *tried], default=None),
    )
    return resume_hints(given, now_us=now_us), facts.step_id


def facts_at(engine: Engine, loaded: Loaded) -> Facts:
    """What is known at a snapshot, with what was merged into it."""
    return _with_merged(engine, loaded, facts_of(loaded))


def facts_of(loaded: Loaded) -> Facts:
    """What a snapshot tells; nothing special when no recorder made it."""
    details: Any = loaded.value("details") if "details" in loaded.contents else None
    if not isinstance(details, dict) or FACTS not in details:
        return Facts()
    try:
        return msgspec.convert(details[FACTS], Facts)
    except msgspec.ValidationError as exc:
        raise Corrupt(
            f"{loaded.header.id} has details that make no sense: {exc}",
            code=SCHEMA_INVALID,
            checkpoint=loaded.header.id,
        ) from exc


def _with_merged(engine: Engine, loaded: Loaded, facts: Facts) -> Facts:
    """The facts after the errors that were merged into the snapshot because nothing had changed."""
    for merged in merged_triggers(engine, loaded.header):
        if merged.trigger.kind == "error":
            facts = msgspec.structs.replace(
                facts,
                is_interrupted=True,
                interruption=None if merged.interruption is None else Interruption(merged.interruption),
                interrupted_us=merged.time_us,
                message=merged.message,
            )
    return facts


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
