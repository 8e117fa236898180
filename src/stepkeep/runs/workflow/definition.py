"""A workflow file after it was read and checked: frozen values, and the plan they make."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.runs.plan import PlanStep, RetryPolicy
from stepkeep.runs.workflow.expressions import Template, parse_template

NOT_TRUE: Final = "its condition is not true"
"""Why a step was skipped whose `when` does not hold."""


class WorkflowProblem(msgspec.Struct, frozen=True):
    """Something wrong in a workflow file. `line` counts from 1; None speaks of the file as a whole."""

    source: str
    line: int | None
    message: str

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{place}: {self.message}"


class InvalidWorkflow(InvalidInput):
    """A workflow file cannot be run. `problems` are all of them, in the order of the lines."""

    code = "invalid_workflow"

    def __init__(self, problems: tuple[WorkflowProblem, ...]) -> None:
        number = "" if len(problems) == 1 else f"{len(problems)} problems: "
        super().__init__(f"this workflow cannot be run: {number}{'; '.join(map(str, problems))}")
        self.problems = problems


class StepKind(StrEnum):
    SHELL = "shell"
    PYTHON = "python"
    AGENT = "agent"
    ASK = "ask"


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """A variable and its value. `env` names the environment variable that replaces it where it is set.

    One without a value must be given when the workflow is run. With `is_public` the file says that it is not secret,
    whatever it looks like.
    """

    name: str
    value: Any = None
    has_value: bool = True
    is_secret: bool = False
    is_public: bool = False
    env: str | None = None


class EnvSetting(msgspec.Struct, frozen=True):
    """A variable for the environment of steps. Without a value it is passed on from our own environment."""

    name: str
    value: str | None = None

    @property
    def template(self) -> Template:
        return parse_template(self.value or "")


class Capture(msgspec.Struct, frozen=True):
    """A variable that a step sets: from what of its result."""

    name: str
    path: tuple[str, ...]


class WorkflowStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step, as the file says it: templates and conditions are texts that were checked."""

    id: str
    line: int
    name: str
    kind: StepKind
    command: str
    arguments: Any = None
    needs: tuple[str, ...] = ()
    retry: RetryPolicy = RetryPolicy()
    timeout_seconds: float | None = None
    env: tuple[EnvSetting, ...] = ()
    capture: tuple[Capture, ...] = ()
    when: str | None = None
    stdin: str | None = None
    allow_failure: bool = False


class Workflow(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file. `source` is the file's path and `text` what stands in it."""

    name: str
    source: str
    text: str
    steps: tuple[WorkflowStep, ...]
    variables: tuple[Variable, ...] = ()
    env: tuple[EnvSetting, ...] = ()
    agent_command: tuple[str, ...] | None = None
    cleanup: dict[str, Any] | None = None
    is_test: bool = False
    profile: str | None = None
    retention: dict[str, Any] | None = None

    @property
    def secret_names(self) -> frozenset[str]:
        return frozenset(variable.name for variable in self.variables if variable.is_secret)

    def step(self, id: str) -> WorkflowStep:
        return next(step for step in self.steps if step.id == id)

    def plan(self) -> tuple[PlanStep, ...]:
        """The steps for the runner. Timeouts and retries are not part of them, so they may change."""
        return tuple(_plan_step(self, step) for step in self.steps)


def _plan_step(workflow: Workflow, step: WorkflowStep) -> PlanStep:
    parts = {
        "with": step.arguments,
        "when": step.when,
        "stdin": step.stdin,
        "capture": {capture.name: ".".join(capture.path) for capture in step.capture},
        "env": {setting.name: setting.value for setting in (*workflow.env, *step.env)},
        "allow_failure": step.allow_failure,
    }
    return PlanStep(
        id=step.id,
        description=step.name,
        action=step.kind.value,
        parameters={"command": step.command, **{name: part for name, part in parts.items() if part}},
        dependencies=step.needs,
    )
