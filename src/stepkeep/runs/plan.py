"""A plan and what became of it: its rules and fingerprint, the progress of a run, and how both are stored.

A stored agent state is plain data with the names of the specification (`currentStepIndex`, `completedAt`, …), so
that any surface can read and write it: `to_state` and `from_state` translate. What steps gave is read from any stored
state by `outputs_of`. Nothing here runs or saves anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from stepkeep.codec import exact
from stepkeep.codec.integrity import digest
from stepkeep.errors import InvalidInput
from stepkeep.model import Header, Status


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


def with_status(step: PlanStep, status: StepStatus) -> PlanStep:
    return msgspec.structs.replace(step, status=status)


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
    """The plain data that is stored. Outputs, parameters and context are kept as they are.

    Written out field by field: a plan is stored anew after each of its steps.
    """
    state: dict[str, Any] = {
        "query": agent.query,
        "plan": [_step_state(step) for step in agent.plan],
        "currentStepIndex": agent.current_step_index,
        "results": [_result_state(result) for result in agent.results],
        "context": agent.context,
    }
    if (error := agent.last_error) is not None:
        state["lastError"] = {
            "stepIndex": error.step_index,
            "message": error.message,
            "timestamp": iso(error.timestamp),
        }
    return state


def _step_state(step: PlanStep) -> dict[str, Any]:
    return {
        "id": step.id,
        "description": step.description,
        "action": step.action,
        "parameters": step.parameters,
        "status": step.status.value,
        "dependencies": list(step.dependencies),
    }


def _result_state(result: StepResult) -> dict[str, Any]:
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


def iso(moment: datetime | None, timespec: str = "auto") -> str | None:
    """A moment as text in UTC; one without zone counts as UTC."""
    if moment is None:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


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
    name: stored
    for kind in (AgentState, PlanStep, StepResult, LastError)
    for name, stored in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
}


def place_in(what: str, path: str | None) -> str:
    """A path inside of a value, such as `$.a[0]`, as one that begins with what the value is."""
    inner = path or "$"
    return what + (inner[1:] if inner.startswith("$") else f".{inner}")


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
        raise _invalid_plan(problems)
    check_plan(steps)
    return tuple(steps)


def check_plan(steps: Sequence[PlanStep]) -> None:
    """Refuse a plan that cannot be run to its end, naming everything that is wrong with it.

    Raises:
        InvalidInput: (`invalid_plan`) it is empty, ids are missing or double, dependencies are unknown or circular.
    """
    if problems := plan_problems(steps):
        raise _invalid_plan(problems)


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
    from graphlib import CycleError, TopologicalSorter  # only who runs a plan pays for it

    needs = {step.id: step.dependencies for step in steps}
    cycles: list[list[str]] = []
    while True:
        known = {name: [other for other in others if other in needs] for name, others in needs.items()}
        try:
            TopologicalSorter(known).prepare()
        except CycleError as exc:
            cycles.append(exc.args[1][::-1])  # it names what is needed first
            needs = {name: others for name, others in needs.items() if name not in cycles[-1]}
        else:
            return cycles


def _invalid_plan(problems: Sequence[str]) -> InvalidInput:
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
        if name in before:
            pairs = zip(FIELDS, _identity(before[name]), _identity(step), strict=True)
            if changed := [field for field, was, now in pairs if _content(was) != _content(now)]:
                lines.append(f"step {name!r} has other {' and '.join(changed)}")
    common = [name for name in before if name in after]
    if common != [name for name in after if name in before]:
        lines.append("the steps are in another order")
    return lines


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


# --- progress --------------------------------------------------------------------------------------------------


_PASSED: Final = (StepStatus.COMPLETED, StepStatus.SKIPPED)


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

    def count(self, status: StepStatus) -> int:
        return sum(entry.status is status for entry in self.steps)

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
        undone = (index for index, entry in enumerate(self.steps) if entry.status not in _PASSED)
        return next(undone, len(self.steps))

    @property
    def ready(self) -> list[int]:
        """Pending steps with nothing left to wait for, in the plan's order.

        A step skipped by choice stands in nobody's way. What a failure stands in the way of is skipped itself.
        """
        passed = {entry.step.id for entry in self.steps if entry.status in _PASSED}
        return [
            index
            for index, entry in enumerate(self.steps)
            if entry.status is StepStatus.PENDING and passed.issuperset(entry.step.dependencies)
        ]

    def with_step(self, index: int, status: StepStatus, **changes: Any) -> Progress:
        """This progress with another status of one step. A completed one takes back the error it had."""
        entry = self.steps[index]
        changed = msgspec.structs.replace(entry, step=with_status(entry.step, status), **changes)
        error = self.last_error
        if error is not None and error.step_index == index and status is StepStatus.COMPLETED:
            error = None
        steps = (*self.steps[:index], changed, *self.steps[index + 1 :])
        return msgspec.structs.replace(self, steps=steps, last_error=error)

    def with_failure(self, error: LastError) -> Progress:
        """This progress after a step failed for good; those that depend on it, directly or not, are skipped."""
        name = self.steps[error.step_index].step.id
        found = msgspec.structs.replace(self, last_error=error)
        found = found.with_step(error.step_index, StepStatus.FAILED, error=error.message)
        blocked = {name}
        while waiting := [
            index
            for index, entry in enumerate(found.steps)
            if entry.status is StepStatus.PENDING and blocked.intersection(entry.step.dependencies)
        ]:
            for index in waiting:
                found = found.with_step(index, StepStatus.SKIPPED, error=f"depends on {name!r}, which failed")
                blocked.add(found.steps[index].step.id)
        return found

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


# --- what steps gave -------------------------------------------------------------------------------------------

SCRIPT: Final = "script"
"""The key of a checkpoint's details under which a script keeps its record."""

Stream: TypeAlias = Literal["stdout", "stderr"]
LoadBlob: TypeAlias = Callable[[str], bytes]

StepOutputs: TypeAlias = dict[str, Callable[[], tuple[bytes, bool]]]
"""By step, how to get its output, and whether that was cut."""


def outputs_of(state: object, details: object, stream: Stream, load_blob: LoadBlob) -> StepOutputs:
    """What the steps had given when a state was saved.

    Of a workflow that is what a step printed; of a plan its blobs, or else its output; of a script its output.
    """
    if not isinstance(state, Mapping):
        return {}
    if isinstance(details, Mapping) and SCRIPT in details:
        return {name: partial(_returned, {"output": output}, load_blob) for name, output in state.items()}
    if "completed_steps" in state:
        ended = [*_dicts(state["completed_steps"]), *_dicts(state.get("failed_steps"))]
        return {
            str(entry.get("id")): partial(_printed, entry.get("output"), stream, load_blob) for entry in ended
        }
    return {
        str(result.get("stepId")): partial(_returned, result, load_blob)
        for result in _dicts(state.get("results"))
    }


def _dicts(values: object) -> Iterable[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []


def _printed(output: object, stream: Stream, load_blob: LoadBlob) -> tuple[bytes, bool]:
    """A stream of a workflow's step: its blob, or the text in the state. A failed step has no blob."""
    fields = output if isinstance(output, Mapping) else {}
    digest = fields.get(f"{stream}_blob")
    if digest is not None:
        return load_blob(digest), bool(fields.get(f"{stream}_is_cut"))
    return _written(fields.get(stream, "")), f"{stream}_bytes" in fields


def _returned(result: Mapping[str, Any], load_blob: LoadBlob) -> tuple[bytes, bool]:
    blobs = result.get("blobs") or []
    if blobs:
        return b"".join(load_blob(digest) for digest in blobs), False
    return _written(result.get("output")), False


def _written(value: object) -> bytes:
    """Text and bytes as they are, anything else as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    _, content = exact.encode(value)
    return msgspec.json.format(content, indent=2)
