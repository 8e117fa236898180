"""Putting a workflow into a queue: all that a worker on another machine needs is stored with its session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput
from stepkeep.executor.lease import Held
from stepkeep.executor.queue import Ticket, with_ticket
from stepkeep.executor.resume import remember_plan, start_afresh
from stepkeep.executor.saver import Saver
from stepkeep.executor.workflow.document import Workflow
from stepkeep.executor.workflow.guards import Guard
from stepkeep.executor.workflow.launching import RUNNER, Launch, check_redacted
from stepkeep.executor.workflow.scope import redactor_of
from stepkeep.executor.workflow.shape import WorkflowShape
from stepkeep.executor.workflow.variables import secret_values
from stepkeep.model import Header, Session, Status, Trigger, TriggerKind

QUEUED: Final = "Queued"


def enqueue(engine: Engine, session: Session, what: Launch, *, queue: str) -> Header:
    """Save a first checkpoint, before any step, then let the workers of a queue have the session.

    Raises:
        Conflict: (`lease_held`) someone runs the session.
    """
    workflow, given = what.workflow, what.given
    redactor = redactor_of(workflow, given.secrets, given.environ)
    check_redacted(workflow, redactor)
    shape = WorkflowShape(
        workflow,
        folder=str(given.folder),
        redactor=redactor,
        failures={},
        check=Guard(what.limits).check,
    )
    plan = shape.plan()
    with Held(engine, session.uid, label=f"queueing workflow {workflow.name}") as held:
        current = engine.backend.session(session.uid)
        saver = Saver(
            engine, current, shape=shape, fence=held.token, wait=held.lost.wait, metadata=dict(RUNNER)
        )
        remember_plan(engine, current, plan, fence=held.token)
        header = saver.save(
            start_afresh(plan, context=what.variables, query="").progress,
            message=QUEUED,
            duration_ms=0,
            status=Status.IN_PROGRESS,
            trigger=Trigger(TriggerKind.AUTO, "queued"),
        )
        # Last, so that no worker finds a session without its first checkpoint.
        metadata = with_ticket(current, Ticket(queue=queue, parallel=what.parallel))
        engine.backend.update_session(session.uid, {"metadata": metadata}, fence=held.token)
        engine.backend.record_event(session.uid, "queued", {"queue": queue}, time_us=engine.clock())
    return header


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
