"""What is true of a run at this moment, and the details of a snapshot that say so.

Every part of the contract is filled from what the recorder was told or finds, or left out: `plan_path` and
`context_digest` until they are given, `todo_compliance` until it was checked, the fields of the step and
`resume_hints` until one was started, `resume_hints` also once the run is completed or cancelled.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stepkeep.codec.readable import ContextDigest, ResumeHints, StepState, TodoCompliance
from stepkeep.lifecycle.outcomes import Outcomes
from stepkeep.lifecycle.resumption import FACTS, Facts
from stepkeep.model import Status


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the plan as the recorder was told of it."""

    id: str
    ordinal: int | None = None
    status: str = "running"
    is_idempotent: bool = True
    artifacts: tuple[str, ...] = ()


class Picture:
    """The parts of the next snapshot, beside its state. Not safe for threads by itself."""

    def __init__(self, *, plan_path: str | None, max_outcomes: int) -> None:
        self.plan_path = plan_path
        self.status = Status.IN_PROGRESS  # as the recorder left the run; others may have changed it since
        self.step: Step | None = None
        self.context: ContextDigest | None = None
        self.todo: TodoCompliance | None = None
        self.outcomes = Outcomes(max_outcomes)
        self.facts = Facts()

    def at_step(self, step: Step) -> None:
        """The work goes on with this step, whatever interrupted it before."""
        self.step, self.status = step, Status.IN_PROGRESS
        self.facts = Facts(step_id=step.id, is_idempotent=step.is_idempotent, artifacts=step.artifacts)

    @property
    def step_key(self) -> tuple[object, ...]:
        """What has to differ for the step to count as another one: also what decides whether it may be resumed."""
        step, facts = self.step, self.facts
        if step is None:
            return ()
        needs = (step.is_idempotent, step.artifacts)
        return (step.id, step.ordinal, step.status, *needs, facts.is_interrupted, facts.interruption)

    def details(self, hints: ResumeHints | None) -> dict[str, Any]:
        """The details of a snapshot taken now."""
        parts = {
            "step_state": self._step_state(hints),
            "context_digest": self.context,
            "command_outcomes": self.outcomes.entries,
            "command_outcomes_dropped": self.outcomes.dropped or None,
            FACTS: self.facts,
        }
        plain: dict[str, Any] = msgspec.to_builtins(_given(parts))
        return plain

    def _step_state(self, hints: ResumeHints | None) -> StepState | None:
        step = self.step
        given = _given(
            {
                "plan_path": self.plan_path,
                "step_id": None if step is None else step.id,
                "step_ordinal": None if step is None else step.ordinal,
                "step_status": None if step is None else step.status,
                "todo_compliance": self.todo,
                "resume_hints": hints,
            }
        )
        return StepState(**given) if given else None


def _given(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if part is not None}
