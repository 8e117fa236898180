"""Running workflow files, and resuming what did not come to its end."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from stepkeep.api import CleanupRules, RetentionRules, Session, Store
from stepkeep.config import Settings
from stepkeep.errors import Conflict, InvalidInput, NotFound, StepkeepError
from stepkeep.executor.interrupts import Cancellation
from stepkeep.executor.owner import is_dead
from stepkeep.executor.progress import StepProgress
from stepkeep.executor.queue import DEFAULT, check_queue, ticket_of
from stepkeep.executor.result import ExecutionResult, Interrupted
from stepkeep.executor.steps import Hooks
from stepkeep.executor.workflow.document import Workflow
from stepkeep.executor.workflow.guards import Limits
from stepkeep.executor.workflow.launching import RUNNER, Launch, launch, prepare_resume
from stepkeep.executor.workflow.queueing import check_secrets, enqueue
from stepkeep.executor.workflow.reading import read_workflow
from stepkeep.executor.workflow.scope import Given
from stepkeep.executor.workflow.variables import Values, start_values
from stepkeep.model import Header, Status, from_us
from stepkeep.model import Session as SessionInfo
from stepkeep.storage.port import Lease

log = logging.getLogger("stepkeep")

MAX_LISTED = 100
"""How many sessions that can be resumed are named at most."""

PROFILE = "workflow"
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


class Resumable(msgspec.Struct, frozen=True, kw_only=True):
    """A session whose workflow did not come to its end: how many steps are done, and why it stopped there."""

    session: str
    workflow: str
    status: Status
    step: int
    updated: datetime
    why: str
    can_resume: bool


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow that waits for a worker of a queue."""

    session: str
    workflow: str
    queue: str
    steps: int
    checkpoint: str


class Watcher(Protocol):
    """Someone who is told how a run goes."""

    def begin(self, session: str, workflow: Workflow, done: frozenset[str]) -> Hooks:
        """The run begins: in which session, and which steps an earlier run completed. Returns whom to tell more."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow file that was read and checked, with the values it is to run with."""

    workflow: Workflow
    values: Values
    folder: Path


def plan_workflow(file: str | os.PathLike[str], variables: Mapping[str, str] | None = None) -> Planned:
    """Read and check a workflow file, and the values given for its variables. Nothing is run or stored.

    Raises:
        InvalidWorkflow: something is wrong with the file; `.problems` has all of it.
        InvalidInput: (`invalid_variable`) a variable is unknown, has no value, or one of the wrong kind.
    """
    path = Path(file).absolute()
    workflow = read_workflow(path)
    return Planned(
        workflow=workflow, values=start_values(workflow, variables or {}, os.environ), folder=path.parent
    )


def run_workflow(
    store: Store,
    planned: Planned,
    *,
    key: str | None = None,
    test: bool = False,
    force: bool = False,
    parallel: int = 1,
    watcher: Watcher | None = None,
) -> WorkflowRun:
    """Run a workflow from its first step, saving after each, in a new session unless a key is given.

    A step that fails is part of the result, and so is an interruption by SIGINT or SIGTERM, which is saved. A
    session with unfinished work is started over only with `force`.

    Raises:
        Conflict: another process runs the session (`lease_held`), or it has a run that did not come to its end, or
            belongs to something else (`unfinished_work`).
        BackendUnavailable: a save failed; the run stopped there.
    """
    session = _open_run(store, planned, key, test=test, force=force)
    return _run(store, session, _fresh(store, session, planned, parallel), frozenset(), watcher)


def queue_workflow(
    store: Store,
    planned: Planned,
    *,
    queue: str = DEFAULT,
    key: str | None = None,
    test: bool = False,
    force: bool = False,
    parallel: int = 1,
) -> Queued:
    """Store a workflow so that a worker runs it, here or on another machine. Returns when that is durable.

    Raises:
        Conflict: as `run_workflow`.
        InvalidInput: (`invalid_variable`) it has secrets that a worker would not have.
    """
    check_queue(queue)
    check_secrets(planned.workflow, planned.values.secrets, os.environ)
    session = _open_run(store, planned, key, test=test, force=force)
    header = enqueue(store.engine, session.info, _fresh(store, session, planned, parallel), queue=queue)
    return Queued(
        session=session.key,
        workflow=planned.workflow.name,
        queue=queue,
        steps=len(planned.workflow.steps),
        checkpoint=header.id,
    )


def _fresh(store: Store, session: Session, planned: Planned, parallel: int) -> Launch:
    return Launch(
        workflow=planned.workflow,
        given=_given(store.settings, session.key, planned.folder, planned.values.secrets),
        variables=planned.values.variables,
        limits=_limits(store.settings),
        parallel=parallel,
    )


def _open_run(store: Store, planned: Planned, key: str | None, *, test: bool, force: bool) -> Session:
    workflow = planned.workflow
    if key is None:
        key = _new_key(workflow.name, from_us(store.engine.clock()))
    elif not force:
        _refuse_unfinished(store, key, workflow.name)
    return store.session(
        key,
        profile=workflow.profile or PROFILE,
        workflow=workflow.name,
        test=test or workflow.is_test,
        retention=cast(RetentionRules, workflow.retention or {}),
        cleanup=cast(CleanupRules, workflow.cleanup or {}),
    )


def _new_key(workflow: str, now: datetime) -> str:
    """A key for a new session: the workflow, the time, and four characters by chance."""
    return f"{workflow[:200]}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _refuse_unfinished(store: Store, key: str, workflow: str) -> None:
    try:
        info = store.get(key).info
    except NotFound:
        return
    if info.workflow != workflow and info.last_seq:
        what = "holds no workflow" if info.workflow is None else f"belongs to workflow {info.workflow!r}"
        raise Conflict(
            f"session {key!r} {what}: choose another key, or --force to run {workflow!r} in it",
            code="unfinished_work",
            retryable=False,
            session=key,
        )
    if info.last_seq and info.status is not Status.COMPLETED:
        raise Conflict(
            f"session {key!r} has unfinished work ({info.status}): go on with `{resume_command(key)}`,"
            " or start over with --force",
            code="unfinished_work",
            retryable=False,
            session=key,
        )


def resume_workflow(
    store: Store,
    key: str,
    *,
    variables: Mapping[str, str] | None = None,
    ref: str | None = None,
    force: bool = False,
    parallel: int = 1,
    watcher: Watcher | None = None,
    lease: Lease | None = None,
    cancel: Cancellation | None = None,
) -> WorkflowRun:
    """Go on with a workflow where its newest valid checkpoint, or the one that `ref` names, says it stopped.

    Completed steps are not run again; the interrupted or failed one is. `variables` are its secrets, which are not
    stored. `force` goes on although the file changed. `lease` is one that was taken for this run already; `cancel`
    stops it from another thread.

    Raises:
        NotFound: no such session, or nothing to resume (`nothing_to_resume`).
        Conflict: the file changed (`plan_changed`), or another process runs the session (`lease_held`).
        InvalidInput: (`not_resumable`) something is missing; everything is named.
    """
    session = store.get(key)
    checkpoint = None if ref is None or ref == "latest" else session.header(ref).id
    found = prepare_resume(
        store.engine,
        session.info,
        given=variables or {},
        environ=os.environ,
        checkpoint=checkpoint,
        force=force,
    )
    what = Launch(
        workflow=found.workflow,
        given=_given(store.settings, key, found.folder, found.secrets),
        limits=_limits(store.settings),
        parallel=parallel,
        is_resumed=True,
        force=force,
        checkpoint=checkpoint,
        lease=lease,
        cancel=Cancellation() if cancel is None else cancel,
    )
    if found.note:
        log.warning("%s", found.note)
    return _run(store, session, what, found.done, watcher)


def _given(settings: Settings, key: str, folder: Path, values: Mapping[str, Any]) -> Given:
    return Given(
        folder=folder,
        run=key,
        agent_command=_agent_command(settings),
        secrets=values,
        environ=dict(os.environ),
    )


def _agent_command(settings: Settings) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(settings["agent.command"]))
    except ValueError as exc:
        raise InvalidInput(f"agent.command cannot be split into words: {exc}", code="invalid_config") from exc


def _limits(settings: Settings) -> Limits:
    return Limits(**{name: settings[f"workflow.{name}"] for name in Limits.__struct_fields__})


def _run(
    store: Store, session: Session, what: Launch, done: frozenset[str], watcher: Watcher | None
) -> WorkflowRun:
    hooks = None if watcher is None else watcher.begin(session.key, what.workflow, done)
    try:
        result, signal = launch(store.engine, session.info, what, hooks=hooks), None
    except Interrupted as exc:
        result, signal = exc.result, exc.signal
    if what.is_resumed:
        store.engine.resumed(result.steps_recovered)
    return WorkflowRun(
        session=session.key,
        workflow=what.workflow.name,
        status=result.status,
        steps=tuple(_step_view(entry) for entry in result.progress.steps),
        steps_run=result.steps_run,
        steps_recovered=result.steps_recovered,
        steps_skipped=result.steps_skipped,
        duration_ms=result.duration_ms,
        checkpoint=None if result.checkpoint is None else result.checkpoint.id,
        error=_error(result),
        resume=None if result.status is Status.COMPLETED else resume_command(session.key),
        signal=signal,
    )


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


def resume_command(key: str) -> str:
    """What to type to resume a session."""
    return f"stepkeep resume {shlex.quote(key)}"


# --- what can be resumed ---------------------------------------------------------------------------------------


def list_resumable(store: Store) -> tuple[Resumable, ...]:
    """Workflows that did not come to their end, most recently used first. One that is being run is named as such."""
    found: list[Resumable] = []
    for info in _unfinished(store):
        header = _newest(store, info)
        if header is None or header.metadata.get("runner") != RUNNER["runner"]:
            continue
        lease = store.engine.backend.lease(info.uid)
        is_running = lease is not None and _is_held(lease, store.engine.clock())
        found.append(
            Resumable(
                session=info.key,
                workflow=info.workflow or "",
                status=info.status,
                step=header.step or 0,
                updated=from_us(info.updated_us),
                why=_why(info, lease if is_running else None),
                can_resume=not is_running,
            )
        )
        if len(found) == MAX_LISTED:
            break
    return tuple(found)


def _unfinished(store: Store) -> Iterator[SessionInfo]:
    statuses = (Status.IN_PROGRESS, Status.PAUSED, Status.FAILED)
    return (info for info in store.sessions() if info.workflow is not None and info.status in statuses)


def _newest(store: Store, info: SessionInfo) -> Header | None:
    try:
        return store.get(info.key).header("latest")
    except StepkeepError:
        return None


def _is_held(lease: Lease, now_us: int) -> bool:
    return lease.expires_us > now_us and not is_dead(lease.owner)


def _why(info: SessionInfo, lease: Lease | None) -> str:
    if lease is not None:
        return f"is being run (pid {lease.owner.pid} on {lease.owner.host})"
    if info.status is Status.PAUSED:
        return "was interrupted"
    if info.status is Status.FAILED:
        return info.error or "failed"
    ticket = ticket_of(info)
    if ticket is not None and not ticket.attempts:
        return f"waits for a worker of queue {ticket.queue!r}"
    return "its process ended"
