"""How far the work on a plan has come, whatever form it is stored in, and how a run of it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.model import Header, Status
from stepkeep.runs.plan import (
    AgentState,
    LastError,
    PlanStep,
    StepResult,
    StepStatus,
    from_state,
    to_state,
)


class StepProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A step with its status, and its result once it is completed. `attempts` counts those of all runs known."""

    step: PlanStep
    result: StepResult | None = None
    attempts: int = 0
    error: str | None = None

    @property
    def status(self) -> StepStatus:
        return self.step.status


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Every step in the plan's order, the working memory (variables), and the last failure."""

    steps: tuple[StepProgress, ...]
    context: dict[Any, Any] = {}
    query: str = ""
    last_error: LastError | None = None

    @property
    def plan(self) -> tuple[PlanStep, ...]:
        return tuple(entry.step for entry in self.steps)

    @property
    def results(self) -> tuple[StepResult, ...]:
        """The results so far, in the order in which the steps ended."""
        found = [entry.result for entry in self.steps if entry.result is not None]
        return tuple(
            sorted(found, key=lambda result: result.completed_at.timestamp() if result.completed_at else 0)
        )

    @property
    def current_step_index(self) -> int:
        """The first step that still has to be done; the number of steps when there is none."""
        done = (StepStatus.COMPLETED, StepStatus.SKIPPED)
        for index, entry in enumerate(self.steps):
            if entry.status not in done:
                return index
        return len(self.steps)

    @property
    def token_usage(self) -> int | None:
        """The tokens of all results together; None when no step told."""
        told = [entry.result.token_usage for entry in self.steps if entry.result is not None]
        numbers = [number for number in told if number is not None]
        return sum(numbers) if numbers else None

    @property
    def blobs(self) -> frozenset[str]:
        """All blobs that the results name."""
        results = (entry.result for entry in self.steps if entry.result is not None)
        return frozenset(digest for result in results for digest in result.blobs)


class Serializer(Protocol):
    """How progress is stored: the state of the checkpoints a runner saves.

    `load(dump(progress))` gives an equal progress: plan with statuses, results with outputs and blobs, context.
    Attempts and errors of single steps may be left out.
    """

    def dump(self, progress: Progress) -> Any:
        """The state to save."""

    def load(self, state: Any) -> Progress:
        """The progress a saved state tells of.

        Raises:
            InvalidInput: the value is not a state of this form.
        """


class AgentSerializer:
    """Progress as the agent state of `runs.plan`."""

    def dump(self, progress: Progress) -> dict[str, Any]:
        return to_state(agent_state(progress))

    def load(self, state: Any) -> Progress:
        if isinstance(state, Mapping) and not isinstance(state.get("plan"), list | tuple):
            raise InvalidInput("it has no plan", code="state_type_mismatch", path="$.plan")
        agent = from_state(state)
        results = {result.step_id: result for result in agent.results}
        return Progress(
            steps=tuple(StepProgress(step=step, result=results.get(step.id)) for step in agent.plan),
            context=agent.context,
            query=agent.query,
            last_error=agent.last_error,
        )


def agent_state(progress: Progress) -> AgentState:
    """Progress as an agent's state."""
    return AgentState(
        query=progress.query,
        plan=progress.plan,
        current_step_index=progress.current_step_index,
        results=progress.results,
        context=progress.context,
        last_error=progress.last_error,
    )


class ExecutionResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: `completed`, `failed` or `paused`.

    `steps_run` were completed in this run, `steps_recovered` in an earlier one and not done again, `steps_skipped`
    not done because of a failure or by choice. `duration_ms` is that of this run alone. `checkpoint` is the newest
    one saved or resumed from. `error` is the message of the first failure, `exception` what its handler raised.
    """

    status: Status
    progress: Progress
    steps_run: int = 0
    steps_skipped: int = 0
    steps_recovered: int = 0
    duration_ms: int = 0
    checkpoint: Header | None = None
    error: str | None = None
    exception: Exception | None = None

    @property
    def success(self) -> bool:
        return self.status is Status.COMPLETED

    @property
    def state(self) -> AgentState:
        """The state at the end."""
        return agent_state(self.progress)

    @property
    def results(self) -> tuple[StepResult, ...]:
        """The results of all completed steps, those of earlier runs included."""
        return self.progress.results

    def output(self, step: str) -> Any:
        """The output of a completed step; `KeyError` when it has none."""
        for result in self.results:
            if result.step_id == step:
                return result.output
        raise KeyError(step)


class Interrupted(KeyboardInterrupt):
    """A signal came during the run. What was done is saved, as `paused` unless the end was reached all the same.

    `result` says how far it came, `signal` is the signal's number.
    """

    def __init__(self, result: ExecutionResult, signal: int) -> None:
        super().__init__(f"interrupted by signal {signal}; the run is {result.status}")
        self.result = result
        self.signal = signal
