"""Where a run begins: afresh, or where a checkpoint says an earlier one stopped."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from stepkeep.engine import Engine, Loaded, reader
from stepkeep.errors import Conflict, InvalidInput, NotFound, StepkeepError
from stepkeep.history import refs
from stepkeep.model import Header, SessionInfo
from stepkeep.runs.plan import (
    PlanStep,
    Progress,
    Serializer,
    StepProgress,
    StepStatus,
    differences,
    fingerprint,
)
from stepkeep.storage.port import HeaderQuery

log = logging.getLogger("stepkeep")

MAX_LOOKED_AT: Final = 20
"""How many checkpoints are read to find one that can be resumed, when the newest cannot."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The progress a run begins with. `header` is the checkpoint it comes from.

    `needs_mark`: the newest checkpoint tells something else, so that a run killed before its first save would be
    resumed in the wrong place.
    """

    progress: Progress
    header: Header | None = None
    needs_mark: bool = True

    @property
    def recovered(self) -> int:
        """How many steps an earlier run completed."""
        return sum(entry.status is StepStatus.COMPLETED for entry in self.progress.steps)

    @property
    def duration_ms(self) -> int:
        """How long the work took up to here."""
        told = 0 if self.header is None else self.header.metadata.get("durationMs", 0)
        return int(told) if isinstance(told, int | float) else 0


def start_afresh(plan: Sequence[PlanStep], *, context: Mapping[str, Any], query: str) -> Start:
    """Every step pending, whatever its status says."""
    steps = tuple(StepProgress(step=_with_status(step, StepStatus.PENDING)) for step in plan)
    return Start(progress=Progress(steps=steps, context=dict(context), query=query))


def start_again(
    engine: Engine,
    session: SessionInfo,
    plan: Sequence[PlanStep],
    *,
    serializer: Serializer,
    ref: str | None = None,
    force: bool = False,
) -> Start:
    """Go on from the newest valid checkpoint of the current branch, or from the one `ref` names.

    Raises:
        NotFound: (`nothing_to_resume`) the session has no checkpoint; or none that `ref` names.
        Conflict: (`plan_changed`) the checkpoint was saved with another plan, and `force` is not given.
        InvalidInput: (`not_resumable`) the checkpoint holds another kind of state. It is never taken for a plan
            of which nothing is done, `force` or not; the message names an older one that can be resumed.
    """
    loaded = _load(engine, session, ref)
    stored = _stored_progress(engine, session, loaded, serializer)
    changed = differences(stored.plan, plan)
    if changed and not force:
        raise _plan_changed(session, loaded.header, changed)
    progress = Progress(
        steps=_merged(stored, plan),
        context=stored.context,
        query=stored.query,
        last_error=None if changed else stored.last_error,
    )
    log.info("Resuming from checkpoint at step %d", progress.current_step_index)
    needs_mark = bool(changed) or ref is not None or loaded.fallback is not None
    return Start(progress=progress, header=loaded.header, needs_mark=needs_mark)


def _load(engine: Engine, session: SessionInfo, ref: str | None) -> Loaded:
    if ref is not None and ref != "latest":
        return engine.load(refs.resolve(engine, session, refs.parse(ref, now_us=engine.clock())))
    loaded = engine.latest(session)
    if loaded is None:
        raise NotFound(
            f"session {session.key!r} has no checkpoint to resume from: run it without resume",
            code="nothing_to_resume",
            session=session.key,
        )
    return loaded


def _stored_progress(
    engine: Engine, session: SessionInfo, loaded: Loaded, serializer: Serializer
) -> Progress:
    try:
        return _read(session, loaded, serializer)
    except InvalidInput as exc:
        older = _older_plan_state(engine, session, loaded.header, serializer)
        advice = (
            "run without resume to start over"
            if older is None
            else f"resume from {older.id}, the newest one before it that does (from_ref)"
        )
        raise InvalidInput(
            f"checkpoint {loaded.header.id} holds no state of a plan that could be resumed: {exc.message}."
            f" Someone else saved it: {advice}",
            code="not_resumable",
            session=session.key,
            checkpoint=loaded.header.id,
            path=exc.path,
        ) from exc


def _read(session: SessionInfo, loaded: Loaded, serializer: Serializer) -> Progress:
    stored = serializer.load(loaded.value())
    if (
        session.fingerprint and not stored.steps
    ):  # it had a plan, so a state without steps is not what became of it
        raise InvalidInput("its plan is empty", code="state_type_mismatch", path="$.plan")
    return stored


def _older_plan_state(
    engine: Engine, session: SessionInfo, foreign: Header, serializer: Serializer
) -> Header | None:
    """The newest checkpoint before a foreign one that a run could go on from, if it is not far."""
    before = HeaderQuery(max_seq=foreign.seq - 1)
    for row in islice(
        reader.line_of(engine.backend, session, foreign.branch, matching=before), MAX_LOOKED_AT
    ):
        try:
            header = reader.verified(row)
            _read(session, engine.load(header), serializer)
        except StepkeepError:
            continue
        return header
    return None


def _plan_changed(session: SessionInfo, header: Header, changed: Sequence[str]) -> Conflict:
    return Conflict(
        f"the plan of session {session.key!r} is not the one of checkpoint {header.id}: {'; '.join(changed)}."
        " Resume with force to go on with the new plan, or run without resume to start over",
        code="plan_changed",
        retryable=False,
        session=session.key,
        checkpoint=header.id,
    )


def _merged(stored: Progress, plan: Sequence[PlanStep]) -> tuple[StepProgress, ...]:
    """The plan with what is known of its steps: completed ones stay so, all others are to be done."""
    known = {entry.step.id: entry for entry in stored.steps}
    kept = {
        step.id
        for step in plan
        if step.id in known and known[step.id].status in (StepStatus.COMPLETED, StepStatus.SKIPPED)
    }
    # A step skipped by choice stays skipped; one skipped for a failure waits for something undone.
    grows = True
    while grows:
        waiting = {
            step.id
            for step in plan
            if step.id in kept
            and known[step.id].status is StepStatus.SKIPPED
            and any(name not in kept for name in step.dependencies)
        }
        kept -= waiting
        grows = bool(waiting)
    return tuple(_carried(step, known.get(step.id), step.id in kept) for step in plan)


def _carried(step: PlanStep, known: StepProgress | None, is_kept: bool) -> StepProgress:
    if known is None:
        return StepProgress(step=_with_status(step, StepStatus.PENDING))
    status = known.status if is_kept else StepStatus.PENDING
    return StepProgress(
        step=_with_status(step, status),
        result=known.result if status is StepStatus.COMPLETED else None,
        attempts=known.attempts,
        error=known.error if status is StepStatus.SKIPPED else None,
    )


def _with_status(step: PlanStep, status: StepStatus) -> PlanStep:
    return msgspec.structs.replace(step, status=status)


def remember_plan(engine: Engine, session: SessionInfo, plan: Sequence[PlanStep], *, fence: int) -> None:
    """Store the plan's fingerprint with the session."""
    mark = fingerprint(plan)
    if session.fingerprint != mark:
        engine.backend.update_session(session.uid, {"fingerprint": mark}, fence=fence)
