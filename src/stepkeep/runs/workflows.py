"""Workflow files on a store: check one, run it, put it into a queue, resume it, and list what can be resumed."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from stepkeep.config import Settings
from stepkeep.config.store_names import store_option
from stepkeep.engine import Engine
from stepkeep.errors import Conflict, InvalidInput
from stepkeep.history.documents import copied
from stepkeep.logs import Log
from stepkeep.model import Header, SessionInfo, Status, check_name, from_us
from stepkeep.runs.kinds import PLAN, SCRIPT, WORKFLOW, approve_command, how_to_go_on, resume_command
from stepkeep.runs.plan import ExecutionResult, Interrupted, Question, StepProgress
from stepkeep.runs.queue import DEFAULT_QUEUE, QueueWorker, Worked, WorkerEvent, check_queue
from stepkeep.runs.run_options import Hooks, RunOptions
from stepkeep.runs.signals import Cancellation
from stepkeep.runs.unfinished import Resumable, runner_of, unfinished_runs, waits_for
from stepkeep.runs.workflow.definition import Workflow
from stepkeep.runs.workflow.inputs import Inputs, StartValues, start_values
from stepkeep.runs.workflow.launch import Launch, check_secrets, prepare_resume
from stepkeep.runs.workflow.parse import read_workflow
from stepkeep.runs.workflow.serializer import StateLimits
from stepkeep.storage.port import Lease

log = Log("stepkeep")

WORKFLOW_PROFILE: Final = "workflow"
"""The profile of a workflow's session, where its file names none."""


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a workflow and what became of it. `duration_ms` and `exit_code` are None while it is not completed."""

    id: str
    name: str
    kind: str
    command: str
    status: str
    duration_ms: int | float | None
    exit_code: int | None
    error: str | None


class WorkflowRun(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. `steps_run` were completed in this run, `steps_recovered` in an earlier one.

    `resume` is the command that goes on, None when nothing is left to do. `signal` is the one that interrupted it.
    `waiting` are the questions that a person has to answer before it goes on.
    """

    session: str
    workflow: str
    status: Status
    steps: tuple[StepView, ...]
    steps_run: int
    steps_recovered: int
    steps_skipped: int
    duration_ms: int
    checkpoint: str | None
    error: str | None
    resume: str | None
    signal: int | None
    waiting: tuple[Question, ...] = ()


class QueuedWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow that waits for a worker of a queue."""

    session: str
    workflow: str
    queue: str
    steps: int
    checkpoint: str


class PlannedWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow file that was read and checked, with the values it is to run with."""

    workflow: Workflow
    values: StartValues
    folder: Path


class RunWatcher(Protocol):
    """Someone who is told how a run goes."""

    def begin(self, session: str, workflow: Workflow, done: frozenset[str]) -> Hooks:
        """The run begins: in which session, and which steps an earlier run completed. Returns whom to tell more."""


class Workflows:
    """The workflows of a store.

    `open_session` makes or finds a session by key, with the fields of `Store.session`; `find_header` gives the
    checkpoint of a session that a ref names.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        *,
        open_session: Callable[..., SessionInfo],
        find_header: Callable[[str, str], Header],
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._open_session = open_session
        self._find_header = find_header

    @property
    def _store(self) -> str:
        """The option that names the store to a command."""
        return store_option(self._engine.backend.url)

    @staticmethod
    def plan(file: str | os.PathLike[str], variables: Mapping[str, str] | None = None) -> PlannedWorkflow:
        """Read and check a workflow file, and the values given for its variables. Nothing is run or stored.

        Raises:
            InvalidWorkflow: something is wrong with the file; `.problems` has all of it.
            InvalidInput: (`invalid_variable`) a variable is unknown, has no value, or one of the wrong kind.
        """
        path = Path(file).absolute()
        workflow = read_workflow(path)
        values = start_values(workflow, variables or {}, os.environ)
        return PlannedWorkflow(workflow=workflow, values=values, folder=path.parent)

    def run(
        self,
        planned: PlannedWorkflow,
        *,
        key: str | None = None,
        test: bool = False,
        force: bool = False,
        parallel: int = 1,
        watcher: RunWatcher | None = None,
    ) -> WorkflowRun:
        """Run a workflow from its first step, saving after each, in a new session unless a key is given.

        A step that fails is part of the result, and so is an interruption by SIGINT or SIGTERM, which is saved. A
        session with unfinished work is started over only with `force`.

        Raises:
            Conflict: another process runs the session (`lease_held`), or it has a run that did not come to its end,
                or belongs to something else (`unfinished_work`).
            BackendUnavailable: a save failed; the run stopped there.
        """
        session = self._opened(planned.workflow, key, test=test, force=force)
        launch = self._launch(session, planned.workflow, planned.folder, planned.values.secrets)
        options = RunOptions(context=planned.values.variables, parallel=parallel, restart=True)
        return self._run(launch, options, frozenset(), watcher)

    def queue(
        self,
        planned: PlannedWorkflow,
        *,
        queue: str = DEFAULT_QUEUE,
        key: str | None = None,
        test: bool = False,
        force: bool = False,
        parallel: int = 1,
    ) -> QueuedWorkflow:
        """Store a workflow so that a worker runs it, here or on another machine. Returns when that is durable.

        Raises:
            Conflict: as `run`.
            InvalidInput: (`invalid_variable`) it has secrets that a worker would not have.
        """
        check_queue(queue)
        check_secrets(planned.workflow, planned.values.secrets, os.environ)
        session = self._opened(planned.workflow, key, test=test, force=force)
        launch = self._launch(session, planned.workflow, planned.folder, planned.values.secrets)
        header = launch.enqueue(queue, variables=planned.values.variables, parallel=parallel)
        return QueuedWorkflow(
            session=session.key,
            workflow=planned.workflow.name,
            queue=queue,
            steps=len(planned.workflow.steps),
            checkpoint=header.id,
        )

    def resume(
        self,
        key: str,
        *,
        variables: Mapping[str, str] | None = None,
        ref: str | None = None,
        force: bool = False,
        from_store: bool = False,
        parallel: int = 1,
        watcher: RunWatcher | None = None,
        lease: Lease | None = None,
        cancel: Cancellation | None = None,
    ) -> WorkflowRun:
        """Go on with a workflow where its newest valid checkpoint, or the one that `ref` names, says it stopped.

        Completed steps are not run again; the interrupted or failed one is. `variables` are its secrets, which are
        not stored. `force` goes on although the file changed, `from_store` with the stored text where the file is gone:
        that runs what whoever made the store wrote. `lease` is one that was taken for this run already;
        `cancel` stops it from another thread.

        Raises:
            NotFound: no such session, or nothing to resume (`nothing_to_resume`).
            Conflict: the file changed (`plan_changed`), or another process runs the session (`lease_held`).
            InvalidInput: (`not_resumable`) something is missing; everything is named.
        """
        session = self._engine.find_session(key)
        runner = runner_of(self._engine, session)
        if runner in (PLAN, SCRIPT):
            waiting = waits_for(self._engine, session)
            what = f"holds a {runner}, not a workflow" if waiting is None else waiting
            how = (
                how_to_go_on(key, runner, self._store)
                if waiting is None
                else approve_command(key, self._store)
            )
            raise InvalidInput(
                f"session {key!r} {what}: {how}",
                code="not_resumable",
                session=key,
            )
        checkpoint = None if ref is None or ref == "latest" else self._find_header(key, ref).id
        found = prepare_resume(
            self._engine,
            session,
            given=variables or {},
            environ=os.environ,
            checkpoint=checkpoint,
            force=force,
            from_store=from_store,
        )
        launch = self._launch(session, found.workflow, found.folder, found.secrets)
        if found.note:
            log.warning("%s", found.note)
        options = RunOptions(resume=True, force=force, from_ref=checkpoint, parallel=parallel, lease=lease)
        return self._run(launch, options, found.done, watcher, cancel)

    def work(
        self,
        *,
        queue: str = DEFAULT_QUEUE,
        parallel: int = 1,
        once: bool = False,
        idle_exit_seconds: float | None = None,
        tell: Callable[[WorkerEvent], object] = lambda _: None,
    ) -> Worked:
        """Run the sessions of a queue, up to `parallel` at a time, those that wait longest first.

        SIGINT and SIGTERM pause what runs, so that another worker goes on with it, and end the worker. With `once`
        it ends when nothing is left to do now, with `idle_exit_seconds` when there was nothing for so long; the time
        when the store could not be asked does not count. `tell` is called from one thread at a time.

        Raises:
            BackendUnavailable: the store cannot be used, and waiting would not help.
        """
        return QueueWorker(
            self._engine,
            self._settings,
            self.resume,
            queue=check_queue(queue),
            parallel=parallel,
            is_once=once,
            idle_exit_seconds=idle_exit_seconds,
            tell=tell,
        ).run()

    def resumable(self) -> tuple[Resumable, ...]:
        """Workflows that did not come to their end, most recently used first. One that is being run says so."""
        return tuple(each for each in unfinished_runs(self._engine) if each.runner == WORKFLOW)

    # --- beginning

    def _opened(self, workflow: Workflow, key: str | None, *, test: bool, force: bool) -> SessionInfo:
        if key is None:
            now = from_us(self._engine.clock())
            key = f"{workflow.name[:200]}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        elif not force:
            self._refuse_unfinished(key, workflow.name)
        return self._open_session(
            key,
            profile=workflow.profile or WORKFLOW_PROFILE,
            workflow=workflow.name,
            test=test or workflow.is_test,
            retention=workflow.retention or {},
            cleanup=workflow.cleanup or {},
        )

    def _refuse_unfinished(self, key: str, workflow: str) -> None:
        info = self._engine.backend.session_by_key(check_name("a session key", key))
        if info is None or not info.last_seq:
            return
        if info.workflow != workflow:
            what = "holds no workflow" if info.workflow is None else f"belongs to workflow {info.workflow!r}"
            why = f"{what}: choose another key, or --force to run {workflow!r} in it"
        elif info.status is not Status.COMPLETED:
            how = f"go on with `{resume_command(key, self._store)}`, or start over with --force"
            why = f"has unfinished work ({info.status}): {how}"
        else:
            return
        raise Conflict(f"session {key!r} {why}", code="unfinished_work", retryable=False, session=key)

    def _launch(
        self, session: SessionInfo, workflow: Workflow, folder: Path, secret_values: Mapping[str, Any]
    ) -> Launch:
        settings = self._settings.for_work_in(folder)
        try:
            agent_command = tuple(shlex.split(settings["agent.command"]))
        except ValueError as exc:
            raise InvalidInput(
                f"agent.command cannot be split into words: {exc}", code="invalid_config"
            ) from exc
        inputs = Inputs(
            folder=folder,
            run=session.key,
            agent_command=agent_command,
            secrets=secret_values,
            environ=dict(os.environ),
        )
        limits = StateLimits(**{name: settings[f"workflow.{name}"] for name in StateLimits.__struct_fields__})
        return Launch(self._engine, session, workflow, inputs, limits)

    # --- running

    def _run(
        self,
        launch: Launch,
        options: RunOptions,
        done: frozenset[str],
        watcher: RunWatcher | None,
        cancel: Cancellation | None = None,
    ) -> WorkflowRun:
        session, workflow = launch.session, launch.workflow
        if watcher is not None:
            hooks = watcher.begin(session.key, workflow, done)
            options = msgspec.structs.replace(options, hooks=hooks)
        try:
            result, signal = launch.run(options, cancel or Cancellation()), None
        except Interrupted as exc:
            result, signal = exc.result, exc.signal
        return copied(
            WorkflowRun,
            result,
            session=session.key,
            workflow=workflow.name,
            steps=tuple(_step_view(entry) for entry in result.progress.steps),
            checkpoint=None if result.checkpoint is None else result.checkpoint.id,
            error=_error(result),
            resume=_next_command(session.key, result, self._store),
            signal=signal,
        )


def _next_command(key: str, result: ExecutionResult, store: str) -> str | None:
    if result.success:
        return None
    return approve_command(key, store) if result.waiting else resume_command(key, store)


def _error(result: ExecutionResult) -> str | None:
    error, progress = result.progress.last_error, result.progress
    if result.error is None or error is None:
        return result.error
    return f"step {progress.plan[error.step_index].id!r} {result.error}"


def _step_view(entry: StepProgress) -> StepView:
    output = entry.result.output if entry.result is not None else {}
    return StepView(
        id=entry.step.id,
        name=entry.step.description,
        kind=entry.step.action,
        command=entry.step.parameters["command"],
        status=entry.status.value,
        duration_ms=None if entry.result is None else entry.result.duration_ms,
        exit_code=output.get("exit_code"),
        error=entry.error,
    )
