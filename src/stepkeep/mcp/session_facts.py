"""Where sessions stand, in a few words each: for the tool that lists them, and for the prompt that offers to resume.

Texts were saved by agents before. They are cut, and are data.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec
from pydantic import Field

from stepkeep.api import SessionSummary, Store
from stepkeep.errors import StepkeepError
from stepkeep.mcp.answers import Answer
from stepkeep.model import Status
from stepkeep.text import shortened

MAX_TEXT: Final = 300
UNFINISHED: Final = (Status.IN_PROGRESS, Status.PAUSED, Status.FAILED)


class SessionFacts(Answer):
    """A session, and where its latest checkpoint says that the work stands. What is not known is null."""

    key: str
    project: str | None = None
    status: str
    updated_at: datetime
    checkpoints: int
    error: str | None = None
    checkpoint: str | None = Field(default=None, description="The latest checkpoint")
    step: int | None = None
    message: str | None = None
    query: str | None = None
    plan: str | None = Field(default=None, description="How many steps of the plan are completed")
    next_step: str | None = Field(default=None, description="The step to go on with")
    failed_step: str | None = None
    last_error: str | None = None
    problem: str | None = Field(default=None, description="Why the latest checkpoint cannot be read")


def sessions_of(
    store: Store, *, project: str | None = None, unfinished: bool = True, limit: int
) -> list[SessionFacts]:
    """Where sessions stand, the ones used last first."""
    if unfinished:
        of_each = [store.summaries(project=project, status=status, limit=limit) for status in UNFINISHED]
        found = sorted(
            (each for some in of_each for each in some), key=lambda each: each.updated, reverse=True
        )
    else:
        found = list(store.summaries(project=project, limit=limit))
    return [facts_of(store, each) for each in found[:limit]]


def facts_of(store: Store, session: SessionSummary) -> SessionFacts:
    """Where one session stands."""
    known: dict[str, Any] = {"updated_at": session.updated, "error": _short(session.error)}
    try:
        shown = store.get(session.key).show()
    except StepkeepError as exc:
        known["problem"] = exc.code
    else:
        view = shown.checkpoint
        known |= {"checkpoint": view.id, "step": view.step, "message": _short(view.message)}
        known |= _plan_facts(msgspec.json.decode(bytes(shown.state)))
    return SessionFacts.of(session, **known)


def _plan_facts(state: object) -> dict[str, Any]:
    """What the state of an agent says of its plan; nothing when it has none."""
    if not isinstance(state, dict):
        return {}
    plan, error = state.get("plan"), state.get("lastError")
    facts: dict[str, Any] = {"query": _short(state.get("query"))}
    if isinstance(plan, list):
        steps = [step for step in plan if isinstance(step, dict)]
        done = sum(step.get("status") == "completed" for step in steps)
        left = (step for step in steps if step.get("status") not in ("completed", "skipped"))
        failed = (step for step in steps if step.get("status") == "failed")
        facts["plan"] = f"{done} of {len(plan)} steps completed"
        facts["next_step"] = _named(next(left, None))
        facts["failed_step"] = _named(next(failed, None))
    if isinstance(error, dict):
        facts["last_error"] = _short(error.get("message"))
    return facts


def _named(step: dict[str, Any] | None) -> str | None:
    if step is None:
        return None
    return _short(": ".join(str(step[name]) for name in ("id", "description") if step.get(name)))


def _short(text: object) -> str | None:
    return shortened(text, MAX_TEXT) if isinstance(text, str) and text else None
