"""Work through a plan, saving after every step; go on where an earlier run stopped.

```python
runner = Runner(engine, session, plan, handler, serializer=AgentSerializer(), options=RunOptions(resume=True))
result = runner.run()
```

A `handler` gets a `StepContext` and returns any value that can be saved, or an `Outcome`. It may be a plain
function (called on a thread of its own) or a coroutine function (awaited on one private event loop, or on `loop`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any, Unpack

from stepkeep.config import Settings
from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.model import SessionInfo, Status, check_name
from stepkeep.runs.attempts import Attempts
from stepkeep.runs.lease import Held
from stepkeep.runs.plan import (
    AgentSerializer,
    ExecutionResult,
    Interrupted,
    PlanStep,
    Progress,
    Serializer,
    StepStatus,
    check_plan,
    steps_of,
)
from stepkeep.runs.resuming import Start, remember_plan, start_afresh, start_again
from stepkeep.runs.run_options import (
    ExecuteOptions,
    Handler,
    Hooks,
    OnFailure,
    RunOptions,
    StepRules,
)
from stepkeep.runs.run_saver import PlanCheckpoints, RunSaver, persistently
from stepkeep.runs.scheduler import Inbox, Scheduler
from stepkeep.runs.signals import Cancellation, SignalHandler, Stop, StopReason

__all__ = ["ExecutionResult", "Interrupted", "OnFailure", "RunOptions", "Runner", "StepRules"]


class Runner:
    """Runs one plan once. Only `cancel` may be called from other threads."""

    def __init__(
        self,
        engine: Engine,
        session: SessionInfo,
        plan: Sequence[PlanStep],
        handler: Handler,
        *,
        serializer: Serializer | None = None,
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
        self._serializer = AgentSerializer() if serializer is None else serializer
        self._options = RunOptions() if options is None else options
        self._hooks = Hooks() if hooks is None else hooks
        self._context = {} if context is None else context
        self._query = query
        self._loop = loop
        self._inbox: Inbox = SimpleQueue()

    def cancel(self) -> None:
        """Stop as soon as possible: nothing is started any more, a `paused` checkpoint is saved. Any thread."""
        self._inbox.put(Stop(StopReason.CANCELLED))

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
            if options.handle_signals:
                stack.enter_context(SignalHandler(self._inbox.put))
            held = stack.enter_context(
                Held(
                    self._engine,
                    self._session.uid,
                    label=options.label,
                    seconds=options.lease_seconds,
                    lease=options.lease,
                    on_lost=lambda: self._inbox.put(Stop(StopReason.LEASE_LOST)),
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
            if isinstance(event, Stop) and event.reason is StopReason.SIGNAL:
                return event.signal
        return 0

    def _run(self, held: Held, attempts: Attempts) -> tuple[ExecutionResult, Stop | None]:
        session = self._engine.backend.session(self._session.uid)  # as it is now that nobody else runs it
        start = self._start(session)
        saver = self._saver(session, start, held)
        checkpoints = PlanCheckpoints(
            saver if self._options.saves else None,
            serializer=self._serializer,
            hooks=self._hooks,
            is_auto=self._options.auto_checkpoint,
            newest=start.header,
            duration_ms=start.duration_ms,
        )
        scheduler = Scheduler(
            self._engine,
            start.progress,
            attempts=attempts,
            inbox=self._inbox,
            checkpoints=checkpoints,
            add_blobs=saver.add_blobs if self._options.saves else lambda _: None,
            options=self._options,
            hooks=self._hooks,
        )
        if _is_over(start):
            return _result(Status.COMPLETED, scheduler, checkpoints, start), None
        self._begin(session, start, checkpoints, saver, held)
        try:
            stop = scheduler.go()
            if stop is not None and stop.reason is StopReason.LEASE_LOST:
                held.check()
            status = self._end(scheduler, stop, checkpoints, saver)
        finally:
            scheduler.abandon()  # whatever went wrong: tell the steps that still run
        return _result(status, scheduler, checkpoints, start), stop

    def _start(self, session: SessionInfo) -> Start:
        if not self._options.resume:
            return start_afresh(self._plan, context=self._context, query=self._query)
        return start_again(
            self._engine,
            session,
            self._plan,
            serializer=self._serializer,
            ref=self._options.from_ref,
            force=self._options.force,
        )

    def _saver(self, session: SessionInfo, start: Start, held: Held) -> RunSaver:
        origin = start.header if start.needs_mark else None
        return RunSaver(
            self._engine,
            session.uid,
            fence=held.token,
            wait=held.lost.wait,
            branch=session.branch,
            parent=None if origin is None else origin.id,
            tags=self._options.tags,
            metadata=self._options.metadata,
        )

    def _begin(
        self,
        session: SessionInfo,
        start: Start,
        checkpoints: PlanCheckpoints,
        saver: RunSaver,
        held: Held,
    ) -> None:
        persistently(
            lambda: remember_plan(self._engine, session, self._plan, fence=held.token), held.lost.wait
        )
        if start.needs_mark:
            checkpoints.begun(start.progress)
        elif session.status is not Status.IN_PROGRESS:
            saver.mark(Status.IN_PROGRESS)

    def _end(
        self, scheduler: Scheduler, stop: Stop | None, checkpoints: PlanCheckpoints, saver: RunSaver
    ) -> Status:
        """Save the last checkpoint, and mark the session."""
        if stop is not None:
            status = Status.PAUSED
            scheduler.pause()
        elif scheduler.failures:
            status = Status.FAILED
            if checkpoints.newest is None or checkpoints.newest.status is not Status.FAILED:
                checkpoints.failed(scheduler.progress, scheduler.failures[0][0], is_end=True)
        else:
            status = Status.COMPLETED
            checkpoints.completed(scheduler.progress)
        saver.mark(status, _error_of(scheduler))
        return status


def _is_over(start: Start) -> bool:
    """Whether an earlier run already saved the end of this plan."""
    is_saved = start.header is not None and start.header.status is Status.COMPLETED
    return (
        is_saved and not start.needs_mark and start.progress.current_step_index == len(start.progress.steps)
    )


def _error_of(scheduler: Scheduler) -> str | None:
    return scheduler.progress.steps[scheduler.failures[0][0]].error if scheduler.failures else None


def _result(
    status: Status, scheduler: Scheduler, checkpoints: PlanCheckpoints, start: Start
) -> ExecutionResult:
    progress: Progress = scheduler.progress
    return ExecutionResult(
        status=status,
        progress=progress,
        steps_run=scheduler.count(StepStatus.COMPLETED) - start.recovered,
        steps_skipped=scheduler.count(StepStatus.SKIPPED),
        steps_recovered=start.recovered,
        duration_ms=checkpoints.duration_ms,
        checkpoint=checkpoints.newest,
        error=_error_of(scheduler),
        exception=scheduler.failures[0][1] if scheduler.failures else None,
    )


def execute(
    engine: Engine,
    settings: Settings,
    open_session: Callable[..., SessionInfo],
    key: str,
    plan: Iterable[PlanStep | Mapping[str, Any]],
    handler: Handler | None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    **options: Unpack[ExecuteOptions],
) -> ExecutionResult:
    """Run a plan as the settings say; everything is checked before `open_session` makes a session."""
    if handler is None:
        raise InvalidInput(
            "executeStep must be implemented: pass the function that does a step as handler",
            code="handler_missing",
        )
    steps = steps_of(plan)
    run_options = _run_options(settings, options)
    known = engine.backend.session_by_key(check_name("a session key", key))
    if known is None and run_options.resume:
        raise NotFound(
            f"there is no session {key!r} to resume: run it without resume",
            code="nothing_to_resume",
            session=key,
        )
    profile = options.get("profile") or ("agent" if known is None else None)
    runner = Runner(
        engine,
        open_session(key, profile=profile, project=options.get("project")),
        steps,
        handler,
        options=run_options,
        hooks=options.get("hooks"),
        context=options.get("context"),
        query=options.get("query", ""),
        loop=loop,
    )
    with (options.get("cancel") or Cancellation()).stopping(runner.cancel):
        return _counted(engine, runner, is_resumed=run_options.resume)


def _run_options(settings: Settings, options: ExecuteOptions) -> RunOptions:
    if unknown := options.keys() - ExecuteOptions.__annotations__.keys():
        raise TypeError(f"execute() got unexpected options: {', '.join(sorted(unknown))}")
    named = {name: value for name, value in options.items() if name in RunOptions.__struct_fields__}
    given: dict[str, Any] = {
        "auto_checkpoint": settings["agent.checkpoints.auto_checkpoint"],
        **{name: value for name, value in named.items() if value is not None},
    }
    return RunOptions(saves=settings["agent.checkpoints.enabled"], **given)


def _counted(engine: Engine, runner: Runner, *, is_resumed: bool) -> ExecutionResult:
    """Run a plan, and tell those who count if it is a resumed one, also when it is interrupted."""
    try:
        result = runner.run()
    except Interrupted as exc:
        if is_resumed:
            engine.resumed(exc.result.steps_recovered)
        raise
    if is_resumed:
        engine.resumed(result.steps_recovered)
    return result
