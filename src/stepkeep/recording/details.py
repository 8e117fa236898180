"""The details of a recorder's snapshot: the step, the context, what commands did, and what resuming depends on.

Every field is filled from what the recorder was told or finds, or left out: `plan_path` and `context_digest` until they
are given, `todo_compliance` until it was checked, the fields of the step and `resume_hints` until a step was started,
`resume_hints` also once the run is completed or cancelled. Inputs are checked by the call that brings them, so that no
later snapshot is refused because of them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from stepkeep.codec.readable import CommandOutcome, ContextDigest, ResumeHints, StepState, TodoCompliance
from stepkeep.errors import InvalidInput
from stepkeep.model import Status
from stepkeep.policy.profiles import MAX_DAYS
from stepkeep.recording.resumption import RESUME_KEY, ResumeInfo
from stepkeep.recording.triggers import listed
from stepkeep.text import shortened

MAX_SECONDS: Final = MAX_DAYS * 86_400
"""The longest time of the configuration; a thread can wait for it."""


def check_options(*, state: object, heartbeat_seconds: object, coalesce_seconds: object) -> None:
    """Refuse a state that cannot be called, and times that are none."""
    if state is not None and not callable(state):
        raise InvalidInput(
            f"state is a function that returns what to save, not {type(state).__name__}: "
            "give a lambda, or set the state with update",
            code="invalid_option",
        )
    if not _is_time(heartbeat_seconds) or heartbeat_seconds == 0:
        raise InvalidInput(
            f"heartbeat_seconds is a number above 0, at most {MAX_SECONDS}, not {heartbeat_seconds!r}",
            code="invalid_option",
        )
    if not _is_time(coalesce_seconds):
        raise InvalidInput(
            f"coalesce_seconds is a number from 0, at most {MAX_SECONDS}, not {coalesce_seconds!r}",
            code="invalid_option",
        )


def _is_time(seconds: object) -> bool:
    """NaN compares with nothing, so it is none."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return False
    return 0 <= seconds <= MAX_SECONDS


def check_step(ordinal: object, is_idempotent: object) -> None:
    """Refuse what the one who resumes could not read."""
    if ordinal is not None and (type(ordinal) is not int or not 0 <= ordinal < 2**63):
        raise InvalidInput(
            f"the ordinal of a step is a whole number from 0, below 2**63, not {ordinal!r}",
            code="invalid_step",
        )
    if not isinstance(is_idempotent, bool):
        raise InvalidInput(f"is_idempotent is True or False, not {is_idempotent!r}", code="invalid_step")


MAX_OUTCOMES: Final = 50
MAX_NAME: Final = 200
MAX_SUMMARY: Final = 1000


def checked(outcome: CommandOutcome) -> CommandOutcome:
    """An outcome with valid fields and texts of bounded length, or `InvalidInput` naming the field.

    What is no Unicode becomes `?`: output that was decoded with `surrogateescape` must not stop a snapshot.
    """
    try:
        valid = msgspec.convert(msgspec.to_builtins(outcome), CommandOutcome)
    except (msgspec.ValidationError, TypeError) as exc:
        raise InvalidInput(f"a command's outcome: {exc}", code="invalid_outcome") from exc
    if not 0 <= valid.duration_ms < math.inf:
        raise InvalidInput("a command's outcome: duration_ms is a number from 0", code="invalid_outcome")
    return msgspec.structs.replace(
        valid,
        name=_cut(valid.name, MAX_NAME),
        summary=_cut(valid.summary, MAX_SUMMARY),
        reason_code=None if valid.reason_code is None else _cut(valid.reason_code, MAX_NAME),
    )


def _cut(text: str, limit: int) -> str:
    return shortened(text, limit).encode("utf-8", "replace").decode()


class Outcomes:
    """The newest outcomes, and how many older ones were dropped. Not safe for threads by itself."""

    def __init__(self, limit: int = MAX_OUTCOMES) -> None:
        self._kept: deque[CommandOutcome] = deque(maxlen=limit)
        self._count = 0

    def add(self, outcome: CommandOutcome) -> None:
        self._kept.append(checked(outcome))
        self._count += 1

    @property
    def entries(self) -> list[CommandOutcome]:
        return list(self._kept)

    @property
    def dropped(self) -> int:
        return self._count - len(self._kept)

    def clear(self) -> None:
        """A snapshot holds them now."""
        self._kept.clear()
        self._count = 0


Pressure = Literal["low", "medium", "high"]

MEDIUM_FROM: Final = 0.6
HIGH_FROM: Final = 0.85


def pressure_of(used: float, limit: float) -> Pressure:
    """How full a context window is, in one word."""
    if not (limit > 0 and used >= 0):
        raise InvalidInput(
            f"a context window of {limit} cannot hold {used}: give tokens used and tokens in all",
            code="invalid_context",
        )
    share = used / limit
    return "low" if share < MEDIUM_FROM else "medium" if share < HIGH_FROM else "high"


def context_digest(
    *,
    window_pressure: Pressure,
    policy_profile: str,
    protected_artifacts: Iterable[str] = (),
    dropped_items: int = 0,
) -> ContextDigest:
    """A checked digest, or `InvalidInput` naming the field."""
    given = {
        "window_pressure": window_pressure,
        "protected_artifacts": listed(
            "a context digest: protected_artifacts", protected_artifacts, code="invalid_context"
        ),
        "dropped_items": dropped_items,
        "policy_profile": policy_profile,
    }
    try:
        digest = msgspec.convert(given, ContextDigest)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"a context digest: {exc}", code="invalid_context") from exc
    if digest.dropped_items < 0:
        raise InvalidInput("a context digest: dropped_items is 0 or more", code="invalid_context")
    return digest


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the plan as the recorder was told of it."""

    id: str
    ordinal: int | None = None
    status: str = "running"
    is_idempotent: bool = True
    artifacts: tuple[str, ...] = ()


class RunDetails:
    """The parts of the next snapshot, beside its state. Not safe for threads by itself."""

    def __init__(self, *, plan_path: str | None, max_outcomes: int) -> None:
        self.plan_path = plan_path
        self.status = Status.IN_PROGRESS  # as the recorder left the run; others may have changed it since
        self.step: Step | None = None
        self.context: ContextDigest | None = None
        self.todo: TodoCompliance | None = None
        self.outcomes = Outcomes(max_outcomes)
        self.resuming = ResumeInfo()

    def at_step(self, step: Step) -> None:
        """The work goes on with this step, whatever interrupted it before."""
        self.step, self.status = step, Status.IN_PROGRESS
        self.resuming = ResumeInfo(
            step_id=step.id, is_idempotent=step.is_idempotent, artifacts=step.artifacts
        )

    @property
    def step_key(self) -> tuple[object, ...]:
        """What has to differ for the step to count as another one: also what decides whether it may be resumed."""
        step, resuming = self.step, self.resuming
        if step is None:
            return ()
        needs = (step.is_idempotent, step.artifacts)
        return (step.id, step.ordinal, step.status, *needs, resuming.is_interrupted, resuming.interruption)

    def details(self, hints: ResumeHints | None) -> dict[str, Any]:
        """The details of a snapshot taken now."""
        parts = {
            "step_state": self._step_state(hints),
            "context_digest": self.context,
            "command_outcomes": self.outcomes.entries,
            "command_outcomes_dropped": self.outcomes.dropped or None,
            RESUME_KEY: self.resuming,
        }
        plain: dict[str, Any] = msgspec.to_builtins(_given(parts))
        return plain

    def _step_state(self, hints: ResumeHints | None) -> StepState | None:
        step = self.step
        given = _given(
            {
                "plan_path": self.plan_path,
                "step_id": None if step is None else step.id,
                "step_ordinal": None if step is None else step.ordinal,
                "step_status": None if step is None else step.status,
                "todo_compliance": self.todo,
                "resume_hints": hints,
            }
        )
        return StepState(**given) if given else None


def _given(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if part is not None}
