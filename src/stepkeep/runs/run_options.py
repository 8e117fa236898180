"""What a caller gives a run: the handler of its steps with what it gets and returns, who is told, and how to run."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Any, Literal, ParamSpec, TypeAlias, TypedDict, TypeVar

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.model import Header
from stepkeep.runs.lease import LEASE_SECONDS
from stepkeep.runs.plan import PlanStep, StepResult
from stepkeep.runs.signals import Cancellation
from stepkeep.storage.port import Blob, Lease

log = logging.getLogger("stepkeep")

T = TypeVar("T")


def _refuse(what: str, problems: Mapping[str, bool]) -> None:
    """Raise `InvalidInput` with those of the problems that are there, if any is."""
    if found := [text for text, is_found in problems.items() if is_found]:
        raise InvalidInput(f"{what}: {'; '.join(found)}", code="invalid_option")


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
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
        _refuse(
            "this retry policy makes no sense",
            {
                "attempts counts the tries: 1 or more": self.attempts < 1,
                "delays are seconds, 0 or more": not all(0 <= delay < inf for delay in delays),
                "factor is 1 or more": not 1 <= self.factor < inf,
                "jitter is a share between 0 and 1": not 0 <= self.jitter <= 1,
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
    then as well.
    """

    step: PlanStep
    index: int
    attempt: int
    parameters: dict[str, Any]
    outputs: Mapping[str, Any]
    context: dict[str, Any]
    blob: Callable[[bytes], Blob]
    cancelled: threading.Event = msgspec.field(default_factory=threading.Event)

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
    on_checkpoint: Callable[[Header], object] | None = None


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


class StepRules(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for one step instead of the run's own rules; None means those."""

    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None


class ExecuteOptions(TypedDict, total=False):
    """What `Store.execute` takes beside plan and handler.

    `query` and `context` are those of a fresh run; a resumed one has them from its checkpoint. `profile` (`agent`
    unless given) and `project` are those of a new session, and change an existing one only where they are given.
    `resume` goes on from the newest valid checkpoint of the current branch, or from the one `from_ref` names;
    `force` does so although the plan changed. Up to `parallel` steps run at a time. `retry` says how often a step
    is tried, `timeout` how many seconds one try may take. With `on_failure="continue"` the steps that do not
    depend on a failed one are still done. `auto_checkpoint` (default: the settings) saves after every step.
    `hooks` are told what happens. `cancel` stops the run from another thread. `handle_signals=False` leaves SIGINT
    and SIGTERM alone. `label` tells others who runs the session.
    """

    query: str
    context: Mapping[str, Any] | None
    project: str | None
    profile: str | None
    resume: bool
    force: bool
    from_ref: str | None
    parallel: int
    retry: RetryPolicy | None
    timeout: float | None
    on_failure: OnFailure
    auto_checkpoint: bool | None
    hooks: Hooks | None
    cancel: Cancellation | None
    handle_signals: bool
    label: str


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a plan is run: as `ExecuteOptions` says, and as only our own callers choose.

    `rules` are those of single steps, by id. With `saves` false there are no checkpoints at all; with
    `auto_checkpoint` false none after steps, but those of start, failure, interruption and end. After a signal running
    steps may still finish for `grace_seconds`. `lease` is one that was taken for this run already; the run gives it
    back. `metadata` goes onto every checkpoint.
    """

    query: str = ""
    context: Mapping[str, Any] = {}
    resume: bool = False
    force: bool = False
    from_ref: str | None = None
    parallel: int = 1
    retry: RetryPolicy = RetryPolicy()
    timeout: float | None = None
    rules: Mapping[str, StepRules] = {}
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
        timeouts = [self.timeout, *(rule.timeout_seconds for rule in self.rules.values())]
        _refuse(
            "this plan cannot be run so",
            {
                "parallel counts the steps that run at a time: 1 or more": (
                    type(self.parallel) is not int or self.parallel < 1
                ),
                "on_failure is stop or continue": self.on_failure not in ("stop", "continue"),
                "a time-out is a number of seconds above 0": not all(
                    seconds is None or 0 < seconds < inf for seconds in timeouts
                ),
                "lease and grace are numbers of seconds": not (
                    self.lease_seconds > 0 and self.grace_seconds >= 0
                ),
                "from_ref names a checkpoint to resume from: it goes with resume": (
                    self.from_ref is not None and not self.resume
                ),
            },
        )

    def rules_of(self, step: str) -> tuple[RetryPolicy, float | None]:
        """How a step is retried, and how many seconds one try may take."""
        own = self.rules.get(step, StepRules())
        return own.retry or self.retry, own.timeout_seconds or self.timeout
