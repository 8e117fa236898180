"""Work through a plan, saving after every step; go on where an earlier run stopped.

```python
runner = Runner(engine, session, plan, handler, options=RunOptions(resume=True))
result = runner.run()
```

A `handler` gets a `StepContext` and returns any value that can be saved, or an `Outcome`. It may be a plain
function (called on a thread of its own) or a coroutine function (awaited on one private event loop, or on `loop`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from itertools import islice
from operator import attrgetter
from queue import SimpleQueue
from typing import Any, Final, Unpack, cast

import msgspec

from stepkeep.config import Settings
from stepkeep.engine import Engine, Loaded, reader
from stepkeep.errors import Conflict, InvalidInput, NotFound, StepkeepError
from stepkeep.history import refs
from stepkeep.logs import Log
from stepkeep.maintenance.spending import TokenUsage, add_usage
from stepkeep.model import Header, SessionInfo, Status, check_name, new_uid
from stepkeep.runs.attempts import Attempts, WorkingMemory
from stepkeep.runs.kinds import PLAN, RUNNER
from stepkeep.runs.lease import Held, RunSaver
from stepkeep.runs.plan import (
    AgentSerializer,
    ExecutionResult,
    Interrupted,
    PlanStep,
    Progress,
    Question,
    Serializer,
    StepProgress,
    StepStatus,
    check_plan,
    differences,
    fingerprint,
    progress_of,
    retry_policy,
    steps_of,
    with_status,
)
from stepkeep.runs.questions import as_of
from stepkeep.runs.queue import leave_to_person
from stepkeep.runs.run_options import ExecuteOptions, Handler, RunOptions
from stepkeep.runs.scheduler import Inbox, PlanCheckpoints, Scheduler
from stepkeep.runs.signals import SignalHandler, Stop, cancellation
from stepkeep.storage.port import HeaderQuery

log = Log("stepkeep")

RUN: Final = "run"
"""In the metadata of every checkpoint of a plan: names the run, which is the same one when it is resumed."""

MAX_LOOKED_AT: Final = 20
"""How many checkpoints are read to find one that can be resumed, when the newest cannot."""


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
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._engine = engine
        self._session = session
        self._plan = tuple(plan)
        self._handler = handler
        self._serializer = AgentSerializer(engine.max_state_bytes) if serializer is None else serializer
        self._options = RunOptions() if options is None else options
        self._loop = loop
        self._inbox: Inbox = SimpleQueue()

    def cancel(self) -> None:
        """Stop as soon as possible: nothing is started any more, a `paused` checkpoint is saved. Any thread."""
        self._inbox.put(Stop())

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
                    on_lost=self.cancel,
                )
            )
            attempts = stack.enter_context(Attempts(self._handler, self._inbox.put, loop=self._loop))
            result, stop = self._run(held, attempts)
        if options.resume:
            self._engine.resumed(result.steps_recovered)
        signal = stop.signal if stop is not None else self._late_signal()
        if signal:
            raise Interrupted(result, signal)
        return result

    def _late_signal(self) -> int:
        """A signal that came while the end was being saved."""
        while not self._inbox.empty():
            event = self._inbox.get()
            if isinstance(event, Stop) and event.signal:
                return event.signal
        return 0

    def _run(self, held: Held, attempts: Attempts) -> tuple[ExecutionResult, Stop | None]:
        session = self._engine.backend.session(self._session.uid)  # as it is now that nobody else runs it
        start = self._start(session)
        known = None if start.header is None else start.header.metadata.get(RUN)
        run = known if isinstance(known, str) else new_uid()
        saver = RunSaver(
            held,
            branch=session.branch,
            parent=start.header.id if start.header is not None and start.needs_mark else None,
            metadata={RUNNER: PLAN, **self._options.metadata, RUN: run},
        )
        checkpoints = PlanCheckpoints(
            saver if self._options.saves else None,
            serializer=self._serializer,
            options=self._options,
            newest=start.header,
        )
        scheduler = Scheduler(
            self._engine,
            start.progress,
            attempts=attempts,
            inbox=self._inbox,
            checkpoints=checkpoints,
            options=self._options,
            run=run,
        )
        if start.is_over:
            return _result(Status.COMPLETED, scheduler, checkpoints, start), None
        held.persistently(lambda: remember_plan(self._engine, session, self._plan, fence=held.token))
        if start.needs_mark:
            checkpoints.begun(start.progress)
        elif session.status is not Status.IN_PROGRESS:
            saver.mark(Status.IN_PROGRESS)
        try:
            stop = scheduler.go()
            if stop is not None:
                held.check()
            status = _end(scheduler, stop, checkpoints)
            if status is Status.PAUSED and scheduler.waiting:
                held.persistently(lambda: self._leave_to_person(scheduler.waiting, fence=held.token))
            held.persistently(lambda: self._add_usage(start.progress, scheduler.progress))
            saver.mark(status, _error_of(scheduler))
        finally:
            scheduler.abandon()  # whatever went wrong: tell the steps that still run
        return _result(status, scheduler, checkpoints, start), stop

    def _leave_to_person(self, questions: Sequence[Question], *, fence: int) -> None:
        leave_to_person(self._engine, self._session.uid, questions, fence=fence)

    def _add_usage(self, before: Progress, after: Progress) -> None:
        """Add what the steps of this run took to the sums of the session."""
        tokens = (after.token_usage or 0) - (before.token_usage or 0)
        if tokens > 0:
            add_usage(self._engine, self._session.uid, TokenUsage(tokens=tokens))

    def _start(self, session: SessionInfo) -> Start:
        """Begin afresh, or go on from the newest valid checkpoint of the current branch or the one that is named.

        A checkpoint that holds another kind of state is never taken for a plan of which nothing is done, `force` or
        not.
        """
        options = self._options
        if not options.resume:
            if not options.restart:
                _refuse_unfinished(session)
            return start_afresh(self._plan, context=options.context, query=options.query)
        engine = self._engine
        loaded = _resumed_from(engine, session, options)
        stored = _stored_progress(engine, session, loaded, self._serializer)
        changed = differences(stored.plan, self._plan)
        if changed and not options.force:
            raise Conflict(
                f"the plan of session {session.key!r} is not the one of checkpoint {loaded.header.id}:"
                f" {'; '.join(changed)}. Resume with force to go on with the new plan, or start over with restart",
                code="plan_changed",
                retryable=False,
                session=session.key,
                checkpoint=loaded.header.id,
            )
        progress = progress_of(
            _merged(stored, self._plan),
            results=stored.results,
            context=stored.context,
            query=stored.query,
            last_error=None if changed else stored.last_error,
            questions=as_of(stored.questions, engine.clock()),
            extra=stored.extra,
        )
        log.info("Resuming from checkpoint at step %d", progress.current_step_index)
        needs_mark = bool(changed) or options.from_ref is not None or loaded.fallback is not None
        return Start(progress=progress, header=loaded.header, needs_mark=needs_mark)


def _end(scheduler: Scheduler, stop: Stop | None, checkpoints: PlanCheckpoints) -> Status:
    """Save the last checkpoint; how the run ended."""
    if stop is not None:
        scheduler.pause()
        return Status.PAUSED
    if not scheduler.failures and scheduler.waiting:
        checkpoints.waiting(scheduler.progress, scheduler.waiting)
        return Status.PAUSED
    if not scheduler.failures:
        checkpoints.completed(scheduler.progress)
        return Status.COMPLETED
    if checkpoints.newest is None or checkpoints.newest.status is not Status.FAILED:
        checkpoints.failed(scheduler.progress, scheduler.failures[0][0], is_end=True)
    return Status.FAILED


def _error_of(scheduler: Scheduler) -> str | None:
    return scheduler.progress.steps[scheduler.failures[0][0]].error if scheduler.failures else None


def _result(
    status: Status, scheduler: Scheduler, checkpoints: PlanCheckpoints, start: Start
) -> ExecutionResult:
    progress = scheduler.progress
    return ExecutionResult(
        status=status,
        progress=progress,
        steps_run=progress.count(StepStatus.COMPLETED) - start.recovered,
        steps_skipped=progress.count(StepStatus.SKIPPED),
        steps_recovered=start.recovered,
        duration_ms=checkpoints.duration_ms,
        checkpoint=checkpoints.newest,
        error=_error_of(scheduler),
        exception=scheduler.failures[0][1] if scheduler.failures else None,
        waiting=tuple(scheduler.waiting),
    )


def execute(
    engine: Engine,
    settings: Settings,
    open_session: Callable[..., SessionInfo],
    key: str,
    plan: Iterable[PlanStep | Mapping[str, Any]] | None,
    handler: Handler | Mapping[str, Handler] | str | None,
    *,
    loop: asyncio.AbstractEventLoop | None = None,
    **options: Unpack[ExecuteOptions],
) -> ExecutionResult:
    """Run a plan as the settings say; everything is checked before `open_session` makes a session."""
    steps = None if plan is None else steps_of(plan)
    known = engine.backend.session_by_key(check_name("a session key", key))
    run_options = _run_options(settings, options, known)
    cancel = cancellation(options.get("cancel"))
    if run_options.resume and known is None:
        raise NotFound(
            f"there is no session {key!r} to resume: run it without resume",
            code="nothing_to_resume",
            session=key,
        )
    if steps is None:
        steps = _stored_plan(engine, known, run_options)
    handle = _handler_for(steps, handler_named(handler) if isinstance(handler, str) else handler)
    WorkingMemory(engine, run_options.context)  # refuses what cannot be saved
    profile = options.get("profile") or ("agent" if known is None else None)
    runner = Runner(
        engine,
        open_session(key, profile=profile, project=options.get("project")),
        steps,
        handle,
        options=run_options,
        loop=loop,
    )
    with cancel.stopping(runner.cancel):
        return runner.run()


def _run_options(settings: Settings, options: ExecuteOptions, known: SessionInfo | None) -> RunOptions:
    if unknown := options.keys() - ExecuteOptions.__annotations__.keys():
        raise TypeError(f"execute() got unexpected options: {', '.join(sorted(unknown))}")
    given: dict[str, Any] = {"auto_checkpoint": settings["agent.checkpoints.auto_checkpoint"]}
    given |= {
        name: value
        for name, value in options.items()
        if value is not None and name in RunOptions.__struct_fields__
    }
    if "retry" in given:
        given["retry"] = retry_policy(given["retry"])
    if given.get("resume") == "auto":
        given["resume"] = known is not None and known.last_seq > 0
        if not given["resume"]:
            given.pop("from_ref", None)
    return RunOptions(saves=settings["agent.checkpoints.enabled"], **given)


def _refuse_unfinished(session: SessionInfo) -> None:
    """Refuse to run over work that did not come to its end."""
    if session.last_seq and session.status not in (Status.COMPLETED, Status.CANCELLED):
        raise Conflict(
            f"session {session.key!r} has unfinished work ({session.status}): go on with it by resume=True,"
            ' by resume="auto" if there may be some, or start over with restart=True',
            code="unfinished_work",
            retryable=False,
            session=session.key,
        )


def _stored_plan(engine: Engine, session: SessionInfo | None, options: RunOptions) -> tuple[PlanStep, ...]:
    """The plan of the checkpoint that is resumed."""
    if session is None or not options.resume:
        raise InvalidInput("without a plan there is only resume: that of the checkpoint", code="invalid_plan")
    serializer = AgentSerializer()
    return _stored_progress(engine, session, _resumed_from(engine, session, options), serializer).plan


def handler_named(name: str) -> Handler:
    """The function that `module:function` names."""
    module, separator, function = name.partition(":")
    if not separator:
        raise InvalidInput(f"a handler is MODULE:FUNCTION, not {name!r}", code="handler_missing")
    try:
        found = attrgetter(function)(import_module(module))
    except (ImportError, AttributeError, ValueError) as exc:
        raise InvalidInput(f"there is no handler {name!r}: {exc}", code="handler_missing") from exc
    return cast(Handler, found)


def _handler_for(steps: Sequence[PlanStep], handler: Handler | Mapping[str, Handler] | None) -> Handler:
    """What does the steps: one function, or one for each action; none may be missing."""
    if handler is None:
        raise InvalidInput(
            "executeStep must be implemented: pass the function that does a step as handler",
            code="handler_missing",
        )
    if not isinstance(handler, Mapping):
        if not callable(handler):
            raise InvalidInput(
                f"a handler is a function, or a dict of them by action, not {type(handler).__name__}",
                code="handler_missing",
            )
        return handler
    handlers = dict(handler)
    if missing := sorted({step.action for step in steps if not callable(handlers.get(step.action))}):
        raise InvalidInput(
            f"there is no handler for action {', '.join(map(repr, missing))}", code="handler_missing"
        )
    return lambda context: handlers[context.step.action](context)


# --- where a run begins ----------------------------------------------------------------------------------------


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
        return self.progress.count(StepStatus.COMPLETED)

    @property
    def is_over(self) -> bool:
        """Whether an earlier run already saved the end of this plan."""
        is_saved = self.header is not None and self.header.status is Status.COMPLETED
        return (
            is_saved and not self.needs_mark and self.progress.current_step_index == len(self.progress.steps)
        )


def start_afresh(plan: Sequence[PlanStep], *, context: Mapping[str, Any], query: str) -> Start:
    """Every step pending, whatever its status says."""
    steps = tuple(StepProgress(step=with_status(step, StepStatus.PENDING)) for step in plan)
    return Start(progress=progress_of(steps, context=dict(context), query=query))


def _resumed_from(engine: Engine, session: SessionInfo, options: RunOptions) -> Loaded:
    ref = options.from_ref
    if ref is None or ref == "latest":
        return newest_of(engine, session)
    return engine.load(refs.resolve(engine, session, refs.parse(ref, now_us=engine.clock())))


def newest_of(engine: Engine, session: SessionInfo) -> Loaded:
    """The newest valid checkpoint of the current branch; `NotFound` (`nothing_to_resume`) when there is none."""
    loaded = engine.latest(session)
    if loaded is None:
        raise NotFound(
            f"session {session.key!r} has no checkpoint to resume from: start it afresh",
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
            "start over with restart"
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


def _merged(stored: Progress, plan: Sequence[PlanStep]) -> tuple[StepProgress, ...]:
    """The plan with what is known of its steps: completed ones stay so, all others are to be done."""
    known = {entry.step.id: entry for entry in stored.steps}
    skipped = {name for name, entry in known.items() if entry.status is StepStatus.SKIPPED}
    kept = {name for name, entry in known.items() if entry.status is StepStatus.COMPLETED} | skipped
    # A step skipped by choice stays skipped; one skipped for a failure waits for something undone.
    needs = {step.id: step.dependencies for step in plan}
    while waiting := {name for name in kept & skipped & needs.keys() if not kept.issuperset(needs[name])}:
        kept -= waiting
    return tuple(_carried(step, known.get(step.id), step.id in kept) for step in plan)


def _carried(step: PlanStep, known: StepProgress | None, is_kept: bool) -> StepProgress:
    if known is None:
        return StepProgress(step=with_status(step, StepStatus.PENDING))
    status = known.status if is_kept else StepStatus.PENDING
    is_interrupted = known.status is StepStatus.RUNNING
    return StepProgress(
        is_interrupted=is_interrupted,
        step=with_status(step, status),
        result=known.result if status is StepStatus.COMPLETED else None,
        attempts=known.attempts,
        error=known.error if status is StepStatus.SKIPPED else None,
    )


def remember_plan(engine: Engine, session: SessionInfo, plan: Sequence[PlanStep], *, fence: int) -> None:
    """Store the plan's fingerprint with the session."""
    mark = fingerprint(plan)
    if session.fingerprint != mark:
        engine.backend.update_session(session.uid, {"fingerprint": mark}, fence=fence)
