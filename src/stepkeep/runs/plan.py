"""A plan and what became of it: its rules and fingerprint, the progress of a run, and how both are stored.

A stored agent state is plain data with the names of the specification (`currentStepIndex`, `completedAt`, …), so
that any surface can read and write it: `to_state` and `from_state` translate. What steps gave is read from any stored
state by `outputs_of`. Nothing here runs or saves anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from itertools import compress, count
from math import inf
from operator import is_not
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from stepkeep.codec import exact, models
from stepkeep.codec.integrity import digest
from stepkeep.engine import NewBody
from stepkeep.errors import InvalidInput
from stepkeep.history.documents import copied
from stepkeep.model import Header, Status
from stepkeep.runs.json_pieces import NotPlain, plain_json
from stepkeep.text import did_you_mean, indented


class StepStatus(StrEnum):
    """Where one step of a plan stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


def refuse(what: str, problems: Mapping[str, bool]) -> None:
    """Raise `InvalidInput` with those of the problems that are there, if any is."""
    if found := [text for text, is_found in problems.items() if is_found]:
        raise InvalidInput(f"{what}: {'; '.join(found)}", code="invalid_option")


def is_number(value: object) -> bool:
    """Whether a value is a finite number, and no bool."""
    return type(value) in (int, float) and -inf < value < inf  # type: ignore[operator]


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How often a step is tried, and how long to wait in between.

    The first wait lasts `delay_seconds`, each further one `factor` times as long, at most `max_delay_seconds`.
    `jitter` is the share of a wait that is left to chance, so that many do not come back at once.
    """

    attempts: int = 1
    delay_seconds: float = 1.0
    factor: float = 2.0
    max_delay_seconds: float = 60.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        delays = (self.delay_seconds, self.max_delay_seconds)
        refuse(
            "this retry policy makes no sense",
            {
                "attempts counts the tries: 1 or more": type(self.attempts) is not int or self.attempts < 1,
                "delays are seconds, 0 or more": not all(is_number(delay) and delay >= 0 for delay in delays),
                "factor is 1 or more": not (is_number(self.factor) and self.factor >= 1),
                "jitter is a share between 0 and 1": not (is_number(self.jitter) and 0 <= self.jitter <= 1),
            },
        )

    def delay_after(self, attempt: int, chance: Callable[[], float] = random.random) -> float | None:
        """Seconds to wait after that attempt failed (the first is 1); None when it was the last one.

        `chance` gives a number from 0 to below 1.
        """
        if attempt >= self.attempts:
            return None
        try:
            delay = min(self.delay_seconds * float(self.factor) ** (attempt - 1), self.max_delay_seconds)
        except OverflowError:
            delay = self.max_delay_seconds
        return delay * (1 - self.jitter * chance())


class PlanStep(msgspec.Struct, frozen=True, rename="camel"):
    """One step: `action` and `parameters` say what to do, `dependencies` which steps must be completed before.

    `status` is a result: a fresh run starts every step, whatever it says. `timeout` (seconds for one try) and `retry`
    (a policy, or the number of tries) come before those of the run. `on_interrupted` says what becomes of a step in
    whose middle the process ended: it is done again, skipped, or a person is asked. `ask` is a question that a person
    has to approve before the step is done, within `ask_timeout` seconds.
    """

    id: str
    description: str = ""
    action: str = ""
    parameters: dict[Any, Any] = {}
    status: StepStatus = StepStatus.PENDING
    dependencies: tuple[str, ...] = ()
    timeout: int | float | None = None
    retry: RetryPolicy | None = None
    on_interrupted: Literal["retry", "skip", "ask"] = "retry"
    ask: str | None = None
    ask_timeout: int | float | None = None


def with_status(step: PlanStep, status: StepStatus) -> PlanStep:
    return msgspec.structs.replace(step, status=status)


class StepResult(msgspec.Struct, frozen=True, rename="camel"):
    """What a completed step gave. `blobs` are the digests of the blobs that `output` names, `attempts` counts those of
    all runs known."""

    step_id: str
    output: Any = None
    completed_at: datetime | None = None
    duration_ms: int | float = 0
    token_usage: int | None = None
    blobs: tuple[str, ...] = ()
    attempts: int = 1


class LastError(msgspec.Struct, frozen=True, rename="camel"):
    """The failure that stopped the work last."""

    step_index: int
    message: str = ""
    timestamp: datetime | None = None


class Question(msgspec.Struct, frozen=True, rename="camel"):
    """What a step waits for a person to decide. Until then `is_approved` is None.

    Nobody can answer it after `expires_at`: then it counts as refused.
    """

    step_id: str
    text: str
    asked_at: datetime | None = None
    expires_at: datetime | None = None
    is_approved: bool | None = None
    answer: Any = None
    answered_at: datetime | None = None


class AgentState(msgspec.Struct, frozen=True, rename="camel"):
    """The state of an agent that works on a plan. `context` is its working memory.

    `extra` are further keys of the state, which are stored beside the others as they are.
    """

    query: str = ""
    plan: tuple[PlanStep, ...] = ()
    current_step_index: int = 0
    results: tuple[StepResult, ...] = ()
    context: dict[Any, Any] = {}
    last_error: LastError | None = None
    questions: tuple[Question, ...] = ()
    extra: dict[str, Any] = {}


# --- as stored


def to_state(agent: AgentState) -> dict[str, Any]:
    """The plain data that is stored. Outputs, parameters and context are kept as they are.

    Of a state made by hand the values may be of the wrong kind: `from_state` tells.
    """
    state: dict[str, Any] = {
        "query": agent.query,
        "plan": [_step_state(step) for step in agent.plan],
        "currentStepIndex": agent.current_step_index,
        "results": [_result_state(result) for result in agent.results],
        "context": agent.context,
    }
    if agent.last_error is not None:
        state["lastError"] = _error_state(agent.last_error)
    if agent.questions:
        state["questions"] = [question_state(question) for question in agent.questions]
    return state | agent.extra


def _step_state(step: PlanStep) -> dict[str, Any]:
    state: dict[str, Any] = {
        "id": step.id,
        "description": step.description,
        "action": step.action,
        "parameters": step.parameters,
        "status": str(step.status),
        "dependencies": list(step.dependencies),
    }
    if step.timeout is not None:
        state["timeout"] = step.timeout
    if step.retry is not None:
        state["retry"] = msgspec.to_builtins(step.retry)
    if step.on_interrupted != "retry":
        state["onInterrupted"] = step.on_interrupted
    if step.ask is not None:
        state["ask"] = step.ask
    if step.ask_timeout is not None:
        state["askTimeout"] = step.ask_timeout
    return state


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
    if result.attempts > 1:
        state["attempts"] = result.attempts
    return state


def _error_state(error: LastError) -> dict[str, Any]:
    return {"stepIndex": error.step_index, "message": error.message, "timestamp": iso(error.timestamp)}


ASKED_FOR: Final = "questions"
"""The key under which the questions of steps are stored."""


def question_state(question: Question) -> dict[str, Any]:
    """A question as it is stored."""
    return {
        "stepId": question.step_id,
        "text": question.text,
        "askedAt": iso(question.asked_at),
        "expiresAt": iso(question.expires_at),
        "isApproved": question.is_approved,
        "answer": question.answer,
        "answeredAt": iso(question.answered_at),
    }


def questions_in(state: object) -> tuple[Question, ...]:
    """The questions that a stored state, or the record of a script, has; none where it is something else."""
    if not isinstance(state, Mapping) or not isinstance(state.get(ASKED_FOR), list):
        return ()
    try:
        return from_state({ASKED_FOR: state[ASKED_FOR]}).questions
    except InvalidInput:
        return ()


def iso(moment: datetime | str | None, timespec: str = "auto") -> str | None:
    """A moment as text in UTC; one without zone counts as UTC, and a text stays as it is."""
    if not isinstance(moment, datetime):
        return moment
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def from_state(state: object) -> AgentState:
    """The typed form of a stored state. Missing fields get their defaults; unknown ones are in `extra`.

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
    extra = {
        name: value for name, value in state.items() if _STORED_NAMES.get(name, name) not in _STATE_NAMES
    }
    if extra and len(extra) == len(state):
        raise InvalidInput(
            f"an agent state has at least one of {', '.join(_STATE_NAMES)}, and this one none of them",
            code="state_type_mismatch",
            path="$",
        )
    fields = _named({name: value for name, value in state.items() if name not in extra})
    for name in ("plan", "results", "questions"):
        if isinstance(fields.get(name), list | tuple):
            fields[name] = [_named(item) if isinstance(item, Mapping) else item for item in fields[name]]
    if isinstance(error := fields.get("lastError"), Mapping):
        fields["lastError"] = _named(error)
    return msgspec.structs.replace(models.convert(fields, AgentState), extra=extra)


def checked_state(agent: AgentState) -> dict[str, Any]:
    """The plain data of a state that was made by hand, if its values are of the right kinds.

    Raises:
        InvalidInput: (`state_type_mismatch`) one is not.
    """
    state = to_state(agent)
    from_state(state)
    return state


def _named(fields: Mapping[Any, Any]) -> dict[str, Any]:
    """The fields that have a value, under their stored names."""
    return {_STORED_NAMES.get(name, name): value for name, value in fields.items() if value is not None}


_STORED_NAMES = {
    name: stored
    for kind in (AgentState, PlanStep, StepResult, LastError, RetryPolicy, Question)
    for name, stored in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
}
_STATE_NAMES: Final = AgentState.__struct_encode_fields__[:-1]  # all but `extra`


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
        try:
            steps.append(_checked_step(step))
        except InvalidInput as exc:
            problems.append(f"step {number} cannot be read: {exc.message}")
    if problems:
        raise _invalid_plan(problems)
    check_plan(steps)
    return tuple(steps)


def _checked_step(step: object) -> PlanStep:
    """A step, of which every value is of the right kind: what one process runs, the next must be able to resume."""
    if isinstance(step, PlanStep):
        step = {name: getattr(step, name) for name in PlanStep.__struct_fields__}
    if not isinstance(step, Mapping):
        raise InvalidInput(f"it is a PlanStep or a dict, not {type(step).__name__}", code="invalid_plan")
    fields = _named(step)
    for name in fields.keys() - set(PlanStep.__struct_encode_fields__):
        hint = did_you_mean(str(name), PlanStep.__struct_encode_fields__)
        raise InvalidInput(f"no step has a key {name!r}{hint}", code="invalid_plan")
    if (retry := fields.get("retry")) is not None:
        fields["retry"] = _retry_fields(retry)
    found = models.convert(fields, PlanStep)
    for name in ("timeout", "ask_timeout"):
        seconds = getattr(found, name)
        if seconds is not None and not (is_number(seconds) and seconds > 0):
            raise InvalidInput(f"{name} is a number of seconds above 0", code="invalid_plan")
    return found


def _retry_fields(retry: object) -> object:
    if isinstance(retry, RetryPolicy):
        return msgspec.to_builtins(retry)
    return (
        {"attempts": retry} if type(retry) is int else _named(retry) if isinstance(retry, Mapping) else retry
    )


def retry_policy(retry: object) -> RetryPolicy:
    """A policy, given as one, as its fields, or as the number of tries."""
    try:
        return models.convert(_retry_fields(retry), RetryPolicy)
    except InvalidInput as exc:
        raise InvalidInput(
            f"retry is a RetryPolicy or the number of tries: {exc.message}", code="invalid_option"
        ) from exc


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


PASSED: Final = (StepStatus.COMPLETED, StepStatus.SKIPPED)
"""The statuses of steps that stand in nobody's way. What a failure stands in the way of is skipped itself."""


class StepProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A step with its status, and its result once it is completed. `attempts` counts those of all runs known.

    `is_interrupted`: an earlier run ended in the middle of it.
    """

    step: PlanStep
    result: StepResult | None = None
    attempts: int = 0
    error: str | None = None
    is_interrupted: bool = False

    @property
    def status(self) -> StepStatus:
        return self.step.status


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Every step in the plan's order, the working memory (variables), and the last failure.

    What sums up the steps goes along with them, so that a step of a long plan costs no more than one of a short plan:
    `ended` has the indexes of the completed steps in the order they ended, `current_step_index` is the first step
    that still has to be done (the number of steps when there is none), `token_usage` is that of all results (None when
    no step told), and `blobs` are all that the results name. `progress_of` counts them. `extra` is what else the state
    of an agent had.
    """

    steps: tuple[StepProgress, ...]
    context: dict[Any, Any] = {}
    query: str = ""
    last_error: LastError | None = None
    questions: tuple[Question, ...] = ()
    extra: dict[str, Any] = {}
    ended: tuple[int, ...] = ()
    current_step_index: int = 0
    token_usage: int | None = None
    blobs: frozenset[str] = frozenset()

    @property
    def plan(self) -> tuple[PlanStep, ...]:
        return tuple(entry.step for entry in self.steps)

    def count(self, status: StepStatus) -> int:
        return sum(entry.status is status for entry in self.steps)

    @property
    def results(self) -> tuple[StepResult, ...]:
        """The results so far, in the order in which the steps ended."""
        found = (self.steps[index].result for index in self.ended)
        return tuple(result for result in found if result is not None)

    def with_step(self, index: int, status: StepStatus, **changes: Any) -> Progress:
        """This progress with another status of one step, which was not passed before.

        A completed one takes back the error it had.
        """
        entry = self.steps[index]
        changed = msgspec.structs.replace(entry, step=with_status(entry.step, status), **changes)
        steps = (*self.steps[:index], changed, *self.steps[index + 1 :])
        if status not in PASSED:
            return msgspec.structs.replace(self, steps=steps)
        at = self.current_step_index
        while at < len(steps) and steps[at].status in PASSED:
            at += 1
        counted = msgspec.structs.replace(self, steps=steps, current_step_index=at)
        return counted if changed.result is None else counted._with_result(index, changed.result)

    def _with_result(self, index: int, result: StepResult) -> Progress:
        error, tokens = self.last_error, result.token_usage
        return msgspec.structs.replace(
            self,
            last_error=None if error is not None and error.step_index == index else error,
            ended=(*self.ended, index),
            token_usage=self.token_usage if tokens is None else tokens + (self.token_usage or 0),
            blobs=self.blobs.union(result.blobs) if result.blobs else self.blobs,
        )

    def question(self, step: str, text: str) -> Question | None:
        """A question of a step, answered or not."""
        return next((each for each in self.questions if (each.step_id, each.text) == (step, text)), None)

    def without_question(self, step: str, text: str) -> Progress:
        others = tuple(each for each in self.questions if (each.step_id, each.text) != (step, text))
        return self if len(others) == len(self.questions) else msgspec.structs.replace(self, questions=others)

    def with_question(self, question: Question) -> Progress:
        """This progress with a question, in the place of an earlier one with these words."""
        others = self.without_question(question.step_id, question.text).questions
        return msgspec.structs.replace(self, questions=(*others, question))

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


def progress_of(
    steps: Iterable[StepProgress],
    *,
    results: Iterable[StepResult] = (),
    context: dict[Any, Any] | None = None,
    query: str = "",
    last_error: LastError | None = None,
    questions: tuple[Question, ...] = (),
    extra: dict[str, Any] | None = None,
) -> Progress:
    """The progress that steps and results, in the order they came, make together. Results of no step are left out."""
    entries = tuple(steps)
    places = {entry.step.id: index for index, entry in enumerate(entries)}
    ended = dict.fromkeys(places[result.step_id] for result in results if result.step_id in places)
    found = [(index, entries[index].result) for index in ended]
    tokens = [
        result.token_usage for _, result in found if result is not None and result.token_usage is not None
    ]
    undone = (index for index, entry in enumerate(entries) if entry.status not in PASSED)
    return Progress(
        steps=entries,
        context={} if context is None else context,
        query=query,
        last_error=last_error,
        questions=questions,
        extra={} if extra is None else extra,
        ended=tuple(index for index, result in found if result is not None),
        current_step_index=next(undone, len(entries)),
        token_usage=sum(tokens) if tokens else None,
        blobs=frozenset(blob for _, result in found if result is not None for blob in result.blobs),
    )


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
    """Progress as the agent state of `runs.plan`, for one run.

    What did not change since the last dump is not encoded again: a run saves all that was done after each of its
    steps, and little of it is new.
    """

    def __init__(self, max_bytes: int = exact.MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._is_plain = True
        self._last = Progress(steps=())
        self._steps: list[bytes] = []
        self._results: list[bytes] = []
        self._context = b"{}"

    def dump(self, progress: Progress) -> NewBody | dict[str, Any]:
        if self._is_plain:
            try:
                content = self._content(progress)
            except NotPlain:
                self._is_plain = False
            except InvalidInput:
                self._last = Progress(steps=())  # the error of the whole state names the place
            else:
                if len(content) <= self._max_bytes:
                    return NewBody(content, exact.JSON)
        return to_state(agent_state(progress))

    def _content(self, progress: Progress) -> bytes:
        """The bytes that `exact.encode` gives for the state, put together from pieces that are proven alone."""
        last, self._last = self._last, progress
        known: Sequence[StepProgress | None] = last.steps
        if len(known) != len(progress.steps):
            known, self._steps = [None] * len(progress.steps), [b""] * len(progress.steps)
        for index in compress(count(), map(is_not, progress.steps, known)):
            self._steps[index] = plain_json(_step_state(progress.steps[index].step), levels=2)
        if not last.ended or progress.ended[: len(last.ended)] != last.ended:
            self._results = []
        for index in progress.ended[len(self._results) :]:
            result = progress.steps[index].result
            self._results.append(b"null" if result is None else plain_json(_result_state(result), levels=2))
        if progress.context is not last.context:
            self._context = plain_json(progress.context, levels=1)
        error = progress.last_error
        questions = [question_state(question) for question in progress.questions]
        return b"".join(
            (
                b'{"query":',
                plain_json(progress.query, levels=1),
                b',"plan":[',
                b",".join(self._steps),
                b'],"currentStepIndex":%d,"results":[' % progress.current_step_index,
                b",".join(self._results),
                b'],"context":',
                self._context,
                b"" if error is None else b',"lastError":' + plain_json(_error_state(error), levels=1),
                b',"questions":' + plain_json(questions, levels=1) if questions else b"",
                b"," + plain_json(progress.extra, levels=0)[1:] if progress.extra else b"}",
            )
        )

    def load(self, state: Any) -> Progress:
        if isinstance(state, Mapping) and not isinstance(state.get("plan"), list | tuple):
            raise InvalidInput("it has no plan", code="state_type_mismatch", path="$.plan")
        agent = from_state(state)
        results = {result.step_id: result for result in agent.results}
        return progress_of(
            (StepProgress(step=step, result=results.get(step.id)) for step in agent.plan),
            results=agent.results,
            context=agent.context,
            query=agent.query,
            last_error=agent.last_error,
            questions=agent.questions,
            extra=agent.extra,
        )


def agent_state(progress: Progress) -> AgentState:
    """Progress as an agent's state."""
    return copied(AgentState, progress)


class ExecutionResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: `completed`, `failed` or `paused`.

    `steps_run` were completed in this run, `steps_recovered` in an earlier one and not done again, `steps_skipped`
    not done because of a failure or by choice. `duration_ms` is that of this run alone. `checkpoint` is the newest
    one saved or resumed from. `error` is the message of the first failure, `exception` what its handler raised. A run
    that is paused because steps wait for a person has their questions in `waiting`.
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
    waiting: tuple[Question, ...] = ()

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
    return indented(content)
