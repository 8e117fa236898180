"""What a caller gives a run: the handler of its steps with what it gets and returns, who is told, and how to run."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, ParamSpec, TypeAlias, TypedDict, TypeVar

import msgspec
from msgspec.structs import astuple

from stepkeep.errors import InvalidInput
from stepkeep.logs import Log
from stepkeep.model import Header
from stepkeep.runs.lease import LEASE_SECONDS
from stepkeep.runs.plan import PlanStep, Question, RetryPolicy, StepResult, is_number, refuse
from stepkeep.runs.questions import answer_to
from stepkeep.runs.signals import Cancellation
from stepkeep.storage.port import Blob, Lease

log = Log("stepkeep")

T = TypeVar("T")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler may return instead of a bare output.

    `blobs` are long outputs (from `StepContext.blob`); `output` names them by their digests, and they are stored
    with it. With `is_skipped` the step counts as skipped by choice: it has no result, and the steps that depend on
    it run all the same.
    """

    output: Any = None
    blobs: tuple[Blob, ...] = ()
    token_usage: int | None = None
    is_skipped: bool = False

    def check(self) -> None:
        """Refuse values of the wrong kind (`invalid_outcome`) before they are taken over."""
        blobs: object = self.blobs  # of a struct made by hand, anything
        if not isinstance(blobs, tuple) or not all(isinstance(blob, Blob) for blob in blobs):
            raise InvalidInput("blobs of an outcome are what StepContext.blob gave", code="invalid_outcome")
        if self.token_usage is not None and type(self.token_usage) is not int:
            raise InvalidInput("token_usage of an outcome is a whole number", code="invalid_outcome")


class StepContext(msgspec.Struct, kw_only=True, eq=False):
    """One attempt at one step.

    `parameters`, also those of `step`, `outputs` and `context` are copies of its own: changes of `context` count
    once the step is completed, those of a failed attempt are forgotten. `outputs` has the outputs of the steps
    completed when this one began, by id; only those of its dependencies are sure to be there. `blob` makes of bytes a
    blob to be stored once, beside the state: name its `.digest` in the output, and pass it in `Outcome`. `cancelled`
    is set when the result is no longer wanted: a time-out, an interruption, a lost lease. A coroutine is cancelled
    then as well. `idempotency_key` is the same in every attempt at this step, also after a crash, and another one in
    every other step and run: pass it to a service that must do something only once.
    """

    step: PlanStep
    index: int
    attempt: int
    parameters: dict[str, Any]
    outputs: Mapping[str, Any]
    context: dict[str, Any]
    blob: Callable[[bytes], Blob]
    idempotency_key: str = ""
    questions: tuple[Question, ...] = ()
    cancelled: threading.Event = msgspec.field(default_factory=threading.Event)

    def ask(self, text: str, *, timeout: float | None = None) -> Any:
        """What a person answered; until somebody does, the run pauses here, durably, and gives up this attempt.

        `stepkeep approve`, `Store.approve` or a tool of the server answers. When the run is resumed the step is called
        again, and this returns the answer. Ask before anything that must not be repeated. After `timeout` seconds
        nobody can answer any more.

        Raises:
            Conflict: the person said no (`refused`), or nobody answered in time (`question_expired`).
        """
        return answer_to(self.questions, text, timeout)

    def __repr__(self) -> str:
        return f"<StepContext {self.step.id!r} attempt {self.attempt}>"


Handler: TypeAlias = Callable[[StepContext], Any] | Callable[[StepContext], Awaitable[Any]]
"""Does one step: returns its output or an `Outcome`, or raises."""


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told what happens, on the runner's thread. What a hook raises is logged and changes nothing."""

    on_step_start: Callable[[PlanStep, int], object] | None = None
    """The step, and which attempt it is."""
    on_step_complete: Callable[[PlanStep, StepResult], object] | None = None
    on_step_error: Callable[[PlanStep, Exception, bool], object] | None = None
    """The step, what went wrong, and whether it is tried again."""
    on_step_skip: Callable[[PlanStep, str], object] | None = None
    """The step, and why."""
    on_question: Callable[[PlanStep, Question], object] | None = None
    """The step, and what it waits for a person to decide."""
    on_checkpoint: Callable[[Header], object] | None = None


def _are_hooks(value: object) -> bool:
    return isinstance(value, Hooks) and all(hook is None or callable(hook) for hook in astuple(value))


P = ParamSpec("P")


def tell(hook: Callable[P, object] | None, /, *args: P.args, **kwargs: P.kwargs) -> None:
    """Call a hook if there is one. It only watches: what it raises is logged."""
    if hook is None:
        return
    try:
        hook(*args, **kwargs)
    except Exception:
        log.exception("a hook of the run failed")


OnFailure: TypeAlias = Literal["stop", "continue"]


Resume: TypeAlias = bool | Literal["auto"]


class ExecuteOptions(TypedDict, total=False):
    """What `Store.execute` takes beside plan and handler.

    `query` and `context` are those of a fresh run; a resumed one has them from its checkpoint. `profile` (`agent`
    unless given) and `project` are those of a new session, and change an existing one only where they are given.
    `resume` goes on from the newest valid checkpoint of the current branch, or from the one `from_ref` names;
    `resume="auto"` does so if there is one, and starts otherwise; `restart` starts over although there is unfinished
    work. `force` resumes although the plan changed. Up to `parallel` steps run at a time. `retry` says how often a step
    is tried, `timeout` how many seconds one try may take; a step may have its own. With `on_failure="continue"` the
    steps that do not depend on a failed one are still done. `auto_checkpoint` (default: the settings) saves after every
    step. `hooks` are told what happens. `cancel` stops the run from another thread. `handle_signals=False` leaves
    SIGINT and SIGTERM alone. `label` tells others who runs the session.
    """

    query: str
    context: Mapping[str, Any] | None
    project: str | None
    profile: str | None
    resume: Resume
    restart: bool
    force: bool
    from_ref: str | None
    parallel: int
    retry: RetryPolicy | int | None
    timeout: float | None
    on_failure: OnFailure
    auto_checkpoint: bool | None
    hooks: Hooks | None
    cancel: Cancellation | None
    handle_signals: bool
    label: str


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a plan is run: as `ExecuteOptions` says, and as only our own callers choose.

    With `saves` false there are no checkpoints at all; with
    `auto_checkpoint` false none after steps, but those of start, failure, interruption and end. After a signal running
    steps may still finish for `grace_seconds`. `lease` is one that was taken for this run already; the run gives it
    back. `metadata` goes onto every checkpoint.
    """

    query: str = ""
    context: Mapping[str, Any] = {}
    resume: bool = False
    restart: bool = False
    force: bool = False
    from_ref: str | None = None
    parallel: int = 1
    retry: RetryPolicy = RetryPolicy()
    timeout: float | None = None
    on_failure: OnFailure = "stop"
    saves: bool = True
    auto_checkpoint: bool = True
    hooks: Hooks = Hooks()
    handle_signals: bool = True
    grace_seconds: float = 2.0
    lease_seconds: float = LEASE_SECONDS
    label: str = ""
    lease: Lease | None = None
    metadata: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        numbers = (self.lease_seconds, self.grace_seconds)
        refuse(
            "this plan cannot be run so",
            {
                "query is a text": not isinstance(self.query, str),
                "context is a dict": not isinstance(self.context, Mapping),
                "parallel counts the steps that run at a time: 1 or more": (
                    type(self.parallel) is not int or self.parallel < 1
                ),
                "retry is a RetryPolicy or the number of tries": not isinstance(self.retry, RetryPolicy),
                "on_failure is stop or continue": self.on_failure not in ("stop", "continue"),
                "a time-out is a number of seconds above 0": self.timeout is not None
                and not (is_number(self.timeout) and self.timeout > 0),
                "hooks are Hooks, with functions": not _are_hooks(self.hooks),
                "label is a text": not isinstance(self.label, str),
                "lease and grace are numbers of seconds": not (
                    all(map(is_number, numbers)) and self.lease_seconds > 0 and self.grace_seconds >= 0
                ),
                "from_ref names a checkpoint to resume from: it goes with resume": (
                    self.from_ref is not None and not self.resume
                ),
                "resume, restart, force, auto_checkpoint and handle_signals are true or false": not all(
                    isinstance(flag, bool)
                    for flag in (
                        self.resume,
                        self.restart,
                        self.force,
                        self.auto_checkpoint,
                        self.handle_signals,
                    )
                ),
                "restart starts over, and resume does not: choose one": bool(self.restart and self.resume),
            },
        )
