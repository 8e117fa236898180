"""How a plan is to be run."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Literal, TypeAlias

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.executor.lease import LEASE_SECONDS
from stepkeep.executor.retrying import RetryPolicy
from stepkeep.storage.port import Lease

OnFailure: TypeAlias = Literal["stop", "continue"]


class StepRules(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for one step instead of the run's own rules; None means those."""

    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a plan is run.

    `resume` goes on from the newest valid checkpoint of the current branch, or from the one `from_ref` names;
    `force` does so although the plan changed. At most `parallel` steps run at a time. After a failure with
    `on_failure="stop"` no step is started any more. `rules` are those of single steps, by id. With `saves` false
    there are no checkpoints at all; with `auto_checkpoint` false none after steps, but those of start, failure,
    interruption and end. `handles_signals` lets SIGINT and SIGTERM save a `paused` checkpoint, on the main thread
    only; `grace_seconds` is how long running steps may still finish then. `label` tells others who holds the
    lease. `lease` is one that was taken for this run already; the run gives it back. `tags` and `metadata` go onto
    every checkpoint.
    """

    resume: bool = False
    force: bool = False
    from_ref: str | None = None
    parallel: int = 1
    retry: RetryPolicy = RetryPolicy()
    timeout_seconds: float | None = None
    rules: Mapping[str, StepRules] = {}
    on_failure: OnFailure = "stop"
    saves: bool = True
    auto_checkpoint: bool = True
    handles_signals: bool = True
    grace_seconds: float = 2.0
    lease_seconds: float = LEASE_SECONDS
    label: str = ""
    lease: Lease | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        problems = []
        if type(self.parallel) is not int or self.parallel < 1:
            problems.append("parallel counts the steps that run at a time: 1 or more")
        if self.on_failure not in ("stop", "continue"):
            problems.append("on_failure is stop or continue")
        timeouts = [self.timeout_seconds, *(rule.timeout_seconds for rule in self.rules.values())]
        if not all(seconds is None or (isfinite(seconds) and seconds > 0) for seconds in timeouts):
            problems.append("a time-out is a number of seconds above 0")
        if not self.lease_seconds > 0 or not self.grace_seconds >= 0:
            problems.append("lease and grace are numbers of seconds")
        if self.from_ref is not None and not self.resume:
            problems.append("from_ref names a checkpoint to resume from: it goes with resume")
        if problems:
            raise InvalidInput(f"this plan cannot be run so: {'; '.join(problems)}", code="invalid_option")

    def retry_of(self, step: str) -> RetryPolicy:
        rule = self.rules.get(step)
        return self.retry if rule is None or rule.retry is None else rule.retry

    def timeout_of(self, step: str) -> float | None:
        rule = self.rules.get(step)
        return self.timeout_seconds if rule is None or rule.timeout_seconds is None else rule.timeout_seconds
