"""Work through a plan, saving after every step; go on where an earlier run stopped.

```python
runner = Runner(engine, session, plan, handler, shape=AgentShape(), options=RunOptions(resume=True))
result = runner.run()
```

A `handler` gets a `StepContext` and returns any value that can be saved, or an `Outcome`. It may be a plain
function (called on a thread of its own) or a coroutine function (awaited on one private event loop, or on `loop`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

from stepkeep.engine import Engine
from stepkeep.executor.attempts import Attempts
from stepkeep.executor.checkpoints import Checkpoints
from stepkeep.executor.interrupts import Reason, Signals, Stop
from stepkeep.executor.lease import Held
from stepkeep.executor.options import OnFailure, RunOptions, StepRules
from stepkeep.executor.plan import PlanStep, StepStatus, check_plan
from stepkeep.executor.progress import AgentShape, Progress, Shape
from stepkeep.executor.result import ExecutionResult, Interrupted
from stepkeep.executor.resume import Start, remember_plan, start_afresh, start_again
from stepkeep.executor.retrying import persistently
from stepkeep.executor.saver import Saver
from stepkeep.executor.steps import Handler, Hooks
from stepkeep.executor.work import Inbox, Work
from stepkeep.model import Session, Status
from stepkeep.storage.port import Blob

__all__ = ["ExecutionResult", "Interrupted", "OnFailure", "RunOptions", "Runner", "StepRules"]


class Runner:
    """Runs one plan once. Only `cancel` may be called from other threads."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        plan: Sequence[PlanStep],
        handler: Handler,
        *,
        shape: Shape | None = None,
        options: RunOptions | None = None,
        hooks: Hooks | None = None,
        context: Mapping[str, Any] | None = None,
        query: str = "",
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`context` and `query` are those of a fresh run; a resumed one has them from its checkpoint."""
        self._engine = engine
        self._session = session
        self._plan = tuple(plan)
        self._handler = handler
        self._shape = AgentShape() if shape is None else shape
        self._options = RunOptions() if options is None else options
        self._hooks = Hooks() if hooks is None else hooks
        self._context = {} if context is None else context
        self._query = query
        self._loop = loop
        self._inbox: Inbox = SimpleQueue()

    def cancel(self) -> None:
        """Stop as soon as possible: nothing is started any more, a `paused` checkpoint is saved. Any thread."""
        self._inbox.put(Stop(Reason.CANCELLED))

    def run(self) -> ExecutionResult:
        """Take the lease, do what is to be done, save, and give the lease back.

        A step that fails is part of the result. Everything else is raised:

        Raises:
            InvalidInput: (`invalid_plan`) the plan cannot be run.
            NotFound: (`nothing_to_resume`) there is no checkpoint to resume from.
            Conflict: someone else runs the session (`lease_held`) or took it over (`lease_lost`), or the plan is
                not the one of the checkpoint (`plan_changed`).
            BackendUnavailable: a save failed; the run stopped, and no step is marked because of it.
            Interrupted: a signal came; the `paused` checkpoint is saved.
        """
        check_plan(self._plan)
        options = self._options
        with ExitStack() as stack:
            stack.enter_context(Signals(self._inbox.put, is_enabled=options.handles_signals))
            held = stack.enter_context(
                Held(
                    self._engine,
                    self._session.uid,
                    label=options.label,
                    seconds=options.lease_seconds,
                    lease=options.lease,
                    on_lost=lambda: self._inbox.put(Stop(Reason.LEASE_LOST)),
                )
            )
            attempts = stack.enter_context(Attempts(self._handler, self._inbox.put, loop=self._loop))
            result, stop = self._run(held, attempts)
        signal = stop.signal if stop is not None else self._late_signal()
        if signal:
            raise Interrupted(result, signal)
        return result

    def _late_signal(self) -> int:
        """A signal that came while the end was being saved."""
        while not self._inbox.empty():
            event = self._inbox.get()
            if isinstance(event, Stop) and event.reason is Reason.SIGNAL:
                return event.signal
        return 0

    def _run(self, held: Held, attempts: Attempts) -> tuple[ExecutionResult, Stop | None]:
        session = self._engine.backend.session(self._session.uid)  # as it is now that nobody else runs it
        start = self._start(session)
        saver = self._saver(session, start, held) if self._options.saves else None
        checkpoints = Checkpoints(
            saver,
            hooks=self._hooks,
            is_auto=self._options.auto_checkpoint,
            newest=start.header,
            duration_ms=start.duration_ms,
        )
        work = Work(
            self._engine,
            start.progress,
            attempts=attempts,
            inbox=self._inbox,
            checkpoints=checkpoints,
            add_blobs=_drop if saver is None else saver.add_blobs,
            options=self._options,
            hooks=self._hooks,
        )
        if _is_over(start):
            return _result(Status.COMPLETED, work, checkpoints, start), None
        self._begin(session, start, checkpoints, held)
        try:
            stop = work.go()
            if stop is not None and stop.reason is Reason.LEASE_LOST:
                held.check()
            status = self._end(work, stop, checkpoints, held)
        finally:
            work.abandon()  # whatever went wrong: tell the steps that still run
        return _result(status, work, checkpoints, start), stop

    def _start(self, session: Session) -> Start:
        if not self._options.resume:
            return start_afresh(self._plan, context=self._context, query=self._query)
        return start_again(
            self._engine,
            session,
            self._plan,
            shape=self._shape,
            ref=self._options.from_ref,
            force=self._options.force,
        )

    def _saver(self, session: Session, start: Start, held: Held) -> Saver:
        origin = start.header if start.needs_mark else None
        return Saver(
            self._engine,
            session,
            shape=self._shape,
            fence=held.token,
            wait=held.lost.wait,
            parent=None if origin is None else origin.id,
            tags=self._options.tags,
            metadata=self._options.metadata,
        )

    def _begin(self, session: Session, start: Start, checkpoints: Checkpoints, held: Held) -> None:
        persistently(
            lambda: remember_plan(self._engine, session, self._plan, fence=held.token), held.lost.wait
        )
        if start.needs_mark:
            checkpoints.begun(start.progress)
        elif session.status is not Status.IN_PROGRESS:
            self._mark(Status.IN_PROGRESS, None, held)

    def _end(self, work: Work, stop: Stop | None, checkpoints: Checkpoints, held: Held) -> Status:
        """Save the last checkpoint, and mark the session."""
        if stop is not None:
            status = Status.PAUSED
            work.pause()
        elif work.failures:
            status = Status.FAILED
            if checkpoints.newest is None or checkpoints.newest.status is not Status.FAILED:
                checkpoints.failed(work.progress, work.failures[0][0], is_end=True)
        else:
            status = Status.COMPLETED
            checkpoints.completed(work.progress)
        self._mark(status, _error_of(work), held)
        return status

    def _mark(self, status: Status, error: str | None, held: Held) -> None:
        uid = self._session.uid
        persistently(lambda: self._engine.finish(uid, status, error=error, fence=held.token), held.lost.wait)


def _is_over(start: Start) -> bool:
    """Whether an earlier run already saved the end of this plan."""
    is_saved = start.header is not None and start.header.status is Status.COMPLETED
    return (
        is_saved and not start.needs_mark and start.progress.current_step_index == len(start.progress.steps)
    )


def _drop(blobs: Iterable[Blob]) -> None:
    """Nothing is saved, so nothing is stored."""


def _error_of(work: Work) -> str | None:
    return work.progress.steps[work.failures[0][0]].error if work.failures else None


def _result(status: Status, work: Work, checkpoints: Checkpoints, start: Start) -> ExecutionResult:
    progress: Progress = work.progress
    return ExecutionResult(
        status=status,
        progress=progress,
        steps_run=work.count(StepStatus.COMPLETED) - start.recovered,
        steps_skipped=work.count(StepStatus.SKIPPED),
        steps_recovered=start.recovered,
        duration_ms=checkpoints.duration_ms,
        checkpoint=checkpoints.newest,
        error=_error_of(work),
        exception=work.failures[0][1] if work.failures else None,
    )
