"""How a run ended."""

from __future__ import annotations

from typing import Any

import msgspec

from stepkeep.executor.plan import AgentState, StepResult
from stepkeep.executor.progress import Progress, agent_state
from stepkeep.model import Header, Status


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
