"""A plan and what became of it: the values an agent's state consists of, the rules of a plan, and its fingerprint.

A stored agent state is plain data with the names of the specification (`currentStepIndex`, `completedAt`, …), so
that any surface can read and write it: `to_state` and `from_state` translate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from stepkeep.codec import exact
from stepkeep.codec.integrity import digest
from stepkeep.errors import InvalidInput


class StepStatus(StrEnum):
    """Where one step of a plan stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


class PlanStep(msgspec.Struct, frozen=True, rename="camel"):
    """One step: `action` and `parameters` say what to do, `dependencies` which steps must be completed before.

    `status` is a result: a fresh run starts every step, whatever it says.
    """

    id: str
    description: str = ""
    action: str = ""
    parameters: dict[Any, Any] = {}
    status: StepStatus = StepStatus.PENDING
    dependencies: tuple[str, ...] = ()


class StepResult(msgspec.Struct, frozen=True, rename="camel"):
    """What a completed step gave. `blobs` are the digests of the blobs that `output` names."""

    step_id: str
    output: Any = None
    completed_at: datetime | None = None
    duration_ms: int | float = 0
    token_usage: int | None = None
    blobs: tuple[str, ...] = ()


class LastError(msgspec.Struct, frozen=True, rename="camel"):
    """The failure that stopped the work last."""

    step_index: int
    message: str = ""
    timestamp: datetime | None = None


class AgentState(msgspec.Struct, frozen=True, rename="camel"):
    """The state of an agent that works on a plan. `context` is its working memory."""

    query: str = ""
    plan: tuple[PlanStep, ...] = ()
    current_step_index: int = 0
    results: tuple[StepResult, ...] = ()
    context: dict[Any, Any] = {}
    last_error: LastError | None = None


# --- as stored


def to_state(agent: AgentState) -> dict[str, Any]:
    """The plain data a state is stored as. Outputs, parameters and context are kept as they are."""
    state: dict[str, Any] = {
        "query": agent.query,
        "plan": [step_to_state(step) for step in agent.plan],
        "currentStepIndex": agent.current_step_index,
        "results": [result_to_state(result) for result in agent.results],
        "context": agent.context,
    }
    if agent.last_error is not None:
        state["lastError"] = error_to_state(agent.last_error)
    return state


def step_to_state(step: PlanStep) -> dict[str, Any]:
    return {
        "id": step.id,
        "description": step.description,
        "action": step.action,
        "parameters": step.parameters,
        "status": step.status.value,
        "dependencies": list(step.dependencies),
    }


def result_to_state(result: StepResult) -> dict[str, Any]:
    state = {
        "stepId": result.step_id,
        "output": result.output,
        "completedAt": iso(result.completed_at),
        "durationMs": result.duration_ms,
    }
    if result.token_usage is not None:
        state["tokenUsage"] = result.token_usage
    if result.blobs:
        state["blobs"] = list(result.blobs)
    return state


def error_to_state(error: LastError) -> dict[str, Any]:
    return {"stepIndex": error.step_index, "message": error.message, "timestamp": iso(error.timestamp)}


def iso(moment: datetime | None) -> str | None:
    """A moment as text in UTC; one without zone counts as UTC."""
    if moment is None:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat().replace("+00:00", "Z")


def from_state(state: object) -> AgentState:
    """The typed form of a stored state. Missing fields get their defaults, unknown ones are left out.

    Names may also be spelled as Python does (`current_step_index`), and a null counts as missing.

    Raises:
        InvalidInput: the value is not the state of an agent (`state_type_mismatch`); `.path` names the place.
    """
    if isinstance(state, AgentState):
        return state
    if not isinstance(state, Mapping):
        raise InvalidInput(
            f"an agent state is a dict, not {type(state).__name__}", code="state_type_mismatch", path="$"
        )
    fields = _named(state)
    for name in ("plan", "results"):
        if isinstance(fields.get(name), list | tuple):
            fields[name] = [_named(item) if isinstance(item, Mapping) else item for item in fields[name]]
    if isinstance(error := fields.get("lastError"), Mapping):
        fields["lastError"] = _named(error)
    return exact.convert(fields, AgentState)


def _named(fields: Mapping[Any, Any]) -> dict[str, Any]:
    """The fields that have a value, under their stored names."""
    return {_STORED_NAMES.get(name, name): value for name, value in fields.items() if value is not None}


_STORED_NAMES = {
    field.name: field.encode_name
    for kind in (AgentState, PlanStep, StepResult, LastError)
    for field in msgspec.structs.fields(kind)
}


# --- the rules


def steps_of(plan: object) -> tuple[PlanStep, ...]:
    """The steps of a plan, which may be given as plain data, checked by `check_plan`."""
    if isinstance(plan, str | Mapping) or not isinstance(plan, Iterable):
        raise InvalidInput(f"a plan is a list of steps, not {type(plan).__name__}", code="invalid_plan")
    steps, problems = [], []
    for number, step in enumerate(plan):
        if isinstance(step, PlanStep):
            steps.append(step)
            continue
        try:
            steps.append(exact.convert(_named(step) if isinstance(step, Mapping) else step, PlanStep))
        except InvalidInput as exc:
            problems.append(f"step {number} cannot be read: {exc}")
    if problems:
        raise _invalid(problems)
    check_plan(steps)
    return tuple(steps)


def check_plan(steps: Sequence[PlanStep]) -> None:
    """Refuse a plan that cannot be run to its end, naming everything that is wrong with it.

    Raises:
        InvalidInput: (`invalid_plan`) it is empty, ids are missing or double, dependencies are unknown or circular.
    """
    if problems := plan_problems(steps):
        raise _invalid(problems)


def plan_problems(steps: Sequence[PlanStep]) -> list[str]:
    """Everything that is wrong with a plan, in words."""
    if not steps:
        return ["it has no steps"]
    problems, known = [], set[str]()
    for number, step in enumerate(steps):
        if not step.id:
            problems.append(f"step {number} has no id")
        elif step.id in known:
            problems.append(f"the id {step.id!r} is used more than once")
        known.add(step.id)
    problems += [
        f"step {step.id!r} depends on {dependency!r}, which is not in the plan"
        for step in steps
        for dependency in step.dependencies
        if dependency not in known
    ]
    return problems + [f"steps wait for each other: {' -> '.join(cycle)}" for cycle in _cycles(steps)]


def _cycles(steps: Sequence[PlanStep]) -> list[list[str]]:
    """Circles of dependencies; each step is named in at most one."""
    needs = {step.id: step.dependencies for step in steps}
    cycles: list[list[str]] = []
    done: set[str] = set()
    for start in needs:
        path: list[str] = []
        places: dict[str, int] = {}
        stack = [(start, iter(needs[start]))] if start not in done else []
        if stack:
            places[start] = 0
            path.append(start)
        while stack:
            name, rest = stack[-1]
            following = next((other for other in rest if other in needs and other not in done), None)
            if following is None:
                stack.pop()
                path.pop()
                places.pop(name)
                done.add(name)
            elif following in places:
                cycles.append([*path[places[following] :], following])
            else:
                places[following] = len(path)
                path.append(following)
                stack.append((following, iter(needs[following])))
    return cycles


def _invalid(problems: Sequence[str]) -> InvalidInput:
    return InvalidInput(f"this plan cannot be run: {'; '.join(problems)}", code="invalid_plan")


FIELDS: Final = ("action", "parameters", "dependencies")
"""What makes a step another one, beside its id. Descriptions and statuses may change."""


def fingerprint(steps: Sequence[PlanStep]) -> str:
    """A digest of ids, actions, parameters and dependencies, in the plan's order.

    Raises:
        InvalidInput: a parameter cannot be saved.
    """
    return digest(_content([[step.id, *_identity(step)] for step in steps]))


def differences(old: Sequence[PlanStep], new: Sequence[PlanStep]) -> list[str]:
    """What changed from one plan to another, a line for each; empty when they are the same work."""
    before, after = {step.id: step for step in old}, {step.id: step for step in new}
    lines = [f"step {name!r} was removed" for name in before if name not in after]
    lines += [f"step {name!r} was added" for name in after if name not in before]
    for name, step in after.items():
        if name in before and (changed := _changed_fields(before[name], step)):
            lines.append(f"step {name!r} has other {' and '.join(changed)}")
    common = [name for name in before if name in after]
    if common != [name for name in after if name in before]:
        lines.append("the steps are in another order")
    return lines


def _changed_fields(old: PlanStep, new: PlanStep) -> list[str]:
    return [
        name
        for name, was, now in zip(FIELDS, _identity(old), _identity(new), strict=True)
        if _content(was) != _content(now)
    ]


def _identity(step: PlanStep) -> list[Any]:
    return [step.action, _sorted(step.parameters), sorted(step.dependencies)]


def _sorted(value: Any) -> Any:
    """The value with the keys of every dict in one order: it plays no part in what a plan means."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value, key=lambda key: (str(key), repr(key)))}
    if type(value) in (list, tuple):
        return type(value)(_sorted(item) for item in value)
    return value


def _content(value: object) -> bytes:
    return exact.encode(value)[1]
