"""The details of a recorder's snapshot: the step, the context, what commands did, and what resuming depends on.

Every field is filled from what the recorder was told or finds, or left out: `plan_path` and `context_digest` until they
are given, `todo_compliance` until it was checked, the fields of the step and `resume_hints` until a step was started,
`resume_hints` also once the run is completed or cancelled. Inputs are checked by the call that brings them, so that no
later snapshot is refused because of them.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final, Literal, TypeVar

import msgspec

from stepkeep import typed
from stepkeep.codec.readable import CommandOutcome, ContextDigest, ResumeHints, StepState, TodoCompliance
from stepkeep.errors import InvalidInput
from stepkeep.model import Status
from stepkeep.policy.profiles import MAX_DAYS
from stepkeep.recording.resumption import RESUME_KEY, ResumeInfo
from stepkeep.text import shortened

T = TypeVar("T")

MAX_SECONDS: Final = MAX_DAYS * 86_400
"""The longest time of the configuration; a thread can wait for it."""


def check_seconds(name: str, seconds: object, *, may_be_zero: bool) -> None:
    """Refuse what a thread cannot wait for."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    # NaN compares with nothing, and is refused by this too.
    if not is_number or not 0 <= seconds <= MAX_SECONDS or not (seconds or may_be_zero):  # type: ignore[operator]
        least = "from 0" if may_be_zero else "above 0"
        raise InvalidInput(
            f"{name} is a number {least}, at most {MAX_SECONDS}, not {seconds!r}", code="invalid_option"
        )


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


def checked_outcome(outcome: CommandOutcome) -> CommandOutcome:
    """An outcome with valid fields and texts of bounded length, or `InvalidInput` naming the field.

    What is not valid Unicode becomes `?`: output that was decoded with `surrogateescape` must not stop a snapshot.
    """
    valid = _converted("a command's outcome", outcome, CommandOutcome, code="invalid_outcome")
    if not 0 <= valid.duration_ms < math.inf:
        raise InvalidInput("a command's outcome: duration_ms is a number from 0", code="invalid_outcome")
    return msgspec.structs.replace(
        valid,
        name=_cut(valid.name, MAX_NAME),
        summary=_cut(valid.summary, MAX_SUMMARY),
        reason_code=None if valid.reason_code is None else _cut(valid.reason_code, MAX_NAME),
    )


def _converted(what: str, given: object, kind: type[T], *, code: str) -> T:
    """The same with its fields checked: a struct takes any when it is made."""
    try:
        return typed.convert(msgspec.to_builtins(given), kind)
    except (msgspec.ValidationError, TypeError) as exc:
        raise InvalidInput(f"{what}: {exc}", code=code) from exc


def _cut(text: str, limit: int) -> str:
    return shortened(text, limit).encode("utf-8", "replace").decode()


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


def checked_context(digest: object, profile: str) -> ContextDigest:
    """A digest with valid fields, of that profile where it names none, or `InvalidInput` naming the field."""
    if not isinstance(digest, ContextDigest):
        raise InvalidInput(
            f"a context digest is a ContextDigest, not {type(digest).__name__}", code="invalid_context"
        )
    valid = _converted("a context digest", digest, ContextDigest, code="invalid_context")
    if valid.dropped_items < 0:
        raise InvalidInput("a context digest: dropped_items is 0 or more", code="invalid_context")
    return msgspec.structs.replace(valid, policy_profile=valid.policy_profile or profile)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the plan as the recorder was told of it."""

    id: str
    ordinal: int | None = None
    status: str = "running"
    is_idempotent: bool = True
    artifacts: tuple[str, ...] = ()


class RunDetails:
    """The parts of the next snapshot, beside its state. Not safe for threads by itself."""

    def __init__(self, *, plan_path: str | None) -> None:
        self.plan_path = plan_path
        self.status = Status.IN_PROGRESS  # as the recorder left the run; others may have changed it since
        self.step: Step | None = None
        self.context: ContextDigest | None = None
        self.todo: TodoCompliance | None = None
        self.resuming = ResumeInfo()
        self._outcomes: deque[CommandOutcome] = deque(maxlen=MAX_OUTCOMES)
        self._outcome_count = 0

    def add_outcome(self, outcome: CommandOutcome) -> None:
        """Keep what a command did for the next snapshot; of many the newest."""
        self._outcomes.append(checked_outcome(outcome))
        self._outcome_count += 1

    def clear_outcomes(self) -> None:
        """A snapshot holds them now."""
        self._outcomes.clear()
        self._outcome_count = 0

    def at_step(self, step: Step) -> None:
        """The work goes on with this step, whatever interrupted it before."""
        self.step, self.status = step, Status.IN_PROGRESS
        self.resuming = ResumeInfo(
            step_id=step.id, is_idempotent=step.is_idempotent, artifacts=step.artifacts
        )

    @property
    def step_key(self) -> tuple[object, ...]:
        """What has to differ for the step to count as another one: also what decides whether it may be resumed."""
        if self.step is None:
            return ()
        return (*msgspec.structs.astuple(self.step), self.resuming.is_interrupted, self.resuming.interruption)

    def details(self, hints: ResumeHints | None) -> dict[str, Any]:
        """The details of a snapshot taken now."""
        step_state: dict[str, Any] = {
            "plan_path": self.plan_path,
            "todo_compliance": self.todo,
            "resume_hints": hints,
        }
        if self.step is not None:
            step_state |= {
                "step_id": self.step.id,
                "step_ordinal": self.step.ordinal,
                "step_status": self.step.status,
            }
        found = {
            "step_state": StepState(**given) if (given := _given(step_state)) else None,
            "context_digest": self.context,
            "command_outcomes": list(self._outcomes),
            "command_outcomes_dropped": self._outcome_count - len(self._outcomes) or None,
            RESUME_KEY: self.resuming,
        }
        plain: dict[str, Any] = msgspec.to_builtins(_given(found))
        return plain


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
