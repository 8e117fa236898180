"""Running a workflow in a session, afresh or from a checkpoint, or putting it into a queue for a worker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from stepkeep.config.store_names import store_option
from stepkeep.engine import Engine
from stepkeep.errors import Conflict, InvalidInput, NotFound, StepkeepError
from stepkeep.model import Header, SessionInfo, Status
from stepkeep.processes.child import SupervisorPipe
from stepkeep.runs import kinds
from stepkeep.runs.lease import Held, RunSaver
from stepkeep.runs.plan import ExecutionResult, PlanStep, differences
from stepkeep.runs.queue import QueueEntry, with_entry
from stepkeep.runs.run_options import RunOptions
from stepkeep.runs.runner import Runner, newest_of, remember_plan, start_afresh
from stepkeep.runs.scheduler import PlanCheckpoints
from stepkeep.runs.signals import Cancellation
from stepkeep.runs.workflow.definition import InvalidWorkflow, Workflow, WorkflowProblem, WorkflowStep
from stepkeep.runs.workflow.handlers import Handlers
from stepkeep.runs.workflow.inputs import Inputs, redactor_of, secret_values, with_secrets
from stepkeep.runs.workflow.parse import parse_workflow, read_workflow
from stepkeep.runs.workflow.serializer import (
    StateLimits,
    WorkflowOrigin,
    WorkflowSerializer,
    origin_of,
    plan_of,
)
from stepkeep.secrets import HIDDEN, Redactor

RUNNER: Final = {kinds.RUNNER: kinds.WORKFLOW}
"""In the metadata of every checkpoint that a workflow saves."""

TIMEOUT_GRACE_SECONDS: Final = 30.0
"""How much later than the step itself the runner notices a time-out: the step kills its process first."""


class Launch:
    """A workflow ready to run in a session. A secret that is also a word of the file is refused here."""

    def __init__(
        self, engine: Engine, session: SessionInfo, workflow: Workflow, inputs: Inputs, limits: StateLimits
    ) -> None:
        self._engine = engine
        self.session = session
        self.workflow = workflow
        self._inputs = inputs
        self._redactor = redactor_of(workflow, inputs.secrets, inputs.environ)
        check_redacted(workflow, self._redactor)
        self._serializer = WorkflowSerializer(
            workflow, folder=str(inputs.folder), redactor=self._redactor, limits=limits
        )

    def run(self, options: RunOptions, cancel: Cancellation) -> ExecutionResult:
        """Run it to its end, its failure, or an interruption. Raises as `Runner.run`."""
        with SupervisorPipe() as supervisor:
            handlers = Handlers(
                workflow=self.workflow,
                inputs=self._inputs,
                supervisor=supervisor,
                redactor=self._redactor,
                load_blob=self._engine.load_blob,
                failures=self._serializer.failures,
            )
            runner = Runner(
                self._engine,
                self.session,
                [_with_rules(step, self.workflow.step(step.id)) for step in self._serializer.plan],
                handlers,
                serializer=self._serializer,
                options=msgspec.structs.replace(
                    options,
                    label=f"workflow {self.workflow.name}",
                    metadata=RUNNER,
                ),
            )
            with cancel.stopping(runner.cancel):
                return runner.run()

    def enqueue(self, queue: str, *, variables: Mapping[str, Any], parallel: int) -> Header:
        """Save a first checkpoint, before any step, then let the workers of a queue have the session.

        Raises:
            Conflict: (`lease_held`) someone runs the session.
        """
        backend, plan = self._engine.backend, self._serializer.plan
        with Held(self._engine, self.session.uid, label=f"queueing workflow {self.workflow.name}") as held:
            current = backend.session(self.session.uid)
            saver = RunSaver(held, branch=current.branch, metadata=RUNNER)
            remember_plan(self._engine, current, plan, fence=held.token)
            checkpoints = PlanCheckpoints(saver, serializer=self._serializer, options=RunOptions())
            checkpoints.queued(start_afresh(plan, context=variables, query="").progress)
            # Last, so that no worker finds a session without its first checkpoint.
            metadata = with_entry(current, QueueEntry(queue=queue, parallel=parallel))
            backend.update_session(current.uid, {"metadata": metadata}, fence=held.token)
            backend.record_event(current.uid, "queued", {"queue": queue}, time_us=self._engine.clock())
        assert checkpoints.newest is not None  # it was saved above
        return checkpoints.newest


def _with_rules(step: PlanStep, given: WorkflowStep) -> PlanStep:
    seconds = given.timeout_seconds
    timeout = None if seconds is None else seconds + TIMEOUT_GRACE_SECONDS
    return msgspec.structs.replace(step, timeout=timeout, retry=given.retry)


def check_redacted(workflow: Workflow, redactor: Redactor) -> None:
    """Refuse a secret that is also a word of the file: without it, the stored file would not be the file."""
    try:
        stored = parse_workflow(redactor.text(workflow.text), source=workflow.source).plan()
    except InvalidWorkflow:
        stored = ()
    if differences(stored, plan_of(workflow, redactor)):
        message = (
            "the value of a secret variable is also a word of this file, which could not be stored without it"
        )
        raise InvalidWorkflow((WorkflowProblem(workflow.source, None, message),))


# --- resuming --------------------------------------------------------------------------------------------------


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint allows to go on with. `done` are the ids of the steps that need no more; `note` says what is
    unusual about it."""

    workflow: Workflow
    done: frozenset[str]
    folder: Path
    secrets: dict[str, Any]
    note: str = ""


def prepare_resume(
    engine: Engine,
    session: SessionInfo,
    *,
    given: Mapping[str, str],
    environ: Mapping[str, str],
    checkpoint: str | None = None,
    force: bool = False,
    from_store: bool = False,
) -> Resumption:
    """Look whether a session can be resumed from a checkpoint, the latest unless given, at everything before refusing.

    The file is read again. Its stored text is used only if it is gone and `from_store` says that this is meant: whoever
    made the store wrote that text, and named the folder it runs in. A changed plan is refused unless `force`; nothing
    forces what cannot work.

    Raises:
        NotFound: (`nothing_to_resume`) it has no checkpoint, or is completed and no checkpoint was given.
        Conflict: (`plan_changed`) the file is not what it was.
        InvalidInput: (`not_resumable`) it holds no workflow, or something that is needed is missing.
    """
    state = _state(engine, session, checkpoint, force=force)
    origin = origin_of(state)
    workflow, found, note = _workflow_now(origin)
    problems = list(found)
    folder = Path(origin.folder)
    command = kinds.resume_command(session.key, store_option(engine.backend.url))
    if not from_store and (note or folder != Path(origin.file).parent):
        problems.append(
            f"{origin.file} is gone, or not in the folder where its steps ran: read what is stored (`stepkeep"
            f" show`), and run that in {origin.folder} with `{command} --from-store`"
        )
    if not folder.is_dir():
        problems.append(f"the folder {origin.folder!r}, where its steps run, is not there")
    secrets, wrong = secret_values(workflow, given, environ)
    problems += wrong
    stored, changed, done = None, list[str](), frozenset[str]()
    try:
        stored = WorkflowSerializer.load(state)
    except StepkeepError as exc:
        problems.append(f"the stored plan cannot be read: {exc.message}")
    else:
        problems += with_secrets(workflow, stored.context, secrets, environ)
        done = frozenset(entry.step.id for entry in stored.steps if entry.result is not None)
    if stored is not None and not found:
        changed = differences(stored.plan, plan_of(workflow, redactor_of(workflow, secrets, environ)))
    if problems:
        raise InvalidInput(
            f"session {session.key!r} cannot be resumed: {'; '.join([*problems, *changed])}",
            code="not_resumable",
            session=session.key,
        )
    if changed and not force:
        raise Conflict(
            f"session {session.key!r} cannot be resumed as it is, {origin.file} changed: {'; '.join(changed)}."
            f" `{command} --force` goes on: finished steps stay finished, and the rest"
            " follows the file as it is now",
            code="plan_changed",
            retryable=False,
            session=session.key,
        )
    return Resumption(workflow=workflow, done=done, folder=folder, secrets=secrets, note=note)


def _state(engine: Engine, session: SessionInfo, checkpoint: str | None, *, force: bool) -> Any:
    if checkpoint is not None:
        return engine.load(engine.header(checkpoint)).value()
    loaded = newest_of(engine, session)
    if session.status is Status.COMPLETED and not force:
        raise NotFound(
            f"session {session.key!r} is completed, nothing is left to do: --from REF goes back to a checkpoint",
            code="nothing_to_resume",
            session=session.key,
        )
    return loaded.value()


def _workflow_now(origin: WorkflowOrigin) -> tuple[Workflow, list[str], str]:
    """The workflow of the file as it is now, else of the stored text; and what is wrong with the file."""
    path, problems, note = Path(origin.file), list[str](), ""
    if path.exists():
        try:
            return read_workflow(path), problems, note
        except InvalidWorkflow as exc:
            problems = [str(problem) for problem in exc.problems]
    else:
        note = f"{origin.file} is gone: going on with the text that was stored"
    workflow = parse_workflow(origin.text, source=origin.file)
    lost = [f"step {step.id!r}" for step in workflow.steps if HIDDEN in str(step)]
    lost += [f"env.{setting.name}" for setting in workflow.env if HIDDEN in str(setting)]
    problems += [
        f"{where} had a secret in the file, which was not stored: put the file back" for where in lost
    ]
    return workflow, problems, note


def check_secrets(workflow: Workflow, secrets: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Refuse secrets that a worker would not have: they are not stored, so only an environment can bring them.

    Raises:
        InvalidInput: (`invalid_variable`) names them all.
    """
    found, _ = secret_values(workflow, {}, environ)
    lost = [name for name in secrets if name not in found or found[name] != secrets[name]]
    if lost:
        names = ", ".join(repr(name) for name in lost)
        raise InvalidInput(
            f"{workflow.source}: secret variables are not stored, so a worker would not have {names}:"
            " name an environment variable with `env:` in the file, and set it here and where the workers run",
            code="invalid_variable",
        )
