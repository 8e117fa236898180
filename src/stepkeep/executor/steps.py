"""What a handler of steps is given and gives back, and who is told about it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ParamSpec, TypeAlias

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.executor.plan import PlanStep, StepResult
from stepkeep.model import Header
from stepkeep.storage.port import Blob

log = logging.getLogger("stepkeep")


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


class StepContext:
    """One attempt at one step.

    `parameters`, also those of `step`, `outputs` and `context` are copies of its own: changes of `context` count
    once the step is completed, those of a failed attempt are forgotten. `outputs` has the outputs of the steps
    completed when this one began, by id; only those of its dependencies are sure to be there. `cancelled` is set
    when the result is no longer wanted: a time-out, an interruption, a lost lease. A coroutine is cancelled then as
    well.
    """

    def __init__(
        self,
        *,
        step: PlanStep,
        index: int,
        attempt: int,
        outputs: Mapping[str, Any],
        context: dict[str, Any],
        parameters: dict[str, Any],
        make_blob: Callable[[bytes], Blob],
    ) -> None:
        self.step = step
        self.index = index
        self.attempt = attempt
        self.parameters = parameters
        self.outputs = outputs
        self.context = context
        self.cancelled = threading.Event()
        self._make_blob = make_blob

    def blob(self, content: bytes) -> Blob:
        """Bytes to be stored once, beside the state: name `.digest` in the output, pass the blob in `Outcome`."""
        return self._make_blob(content)

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
