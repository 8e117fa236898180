"""A phase checkpoint as its caller sees it, and the rules for its fields; pure.

The fields lie in the metadata of an ordinary checkpoint, under names of our own. Every backend keeps them, and the
`phase` layout writes them as the specification names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from stepkeep.codec.readable import PHASES, Criterion, phase_of
from stepkeep.errors import SCHEMA_INVALID, Corrupt, InvalidInput
from stepkeep.model import Header, Session, check_name, check_text

PROFILE: Final = "phase"
"""The profile by which sessions with phases are known."""

CLOSED: Final = "phases_closed"
"""The event of the checkpoint that closes a session. It is no phase, and lists leave it out."""

CRITERION_STATUSES: Final = ("pending", "in_progress", "completed")
MAX_NUMBER: Final = len(PHASES)
SUMMARY_WORDS: Final = 8

_OURS: Final = ("phase", "phase_number", "task_summary", "criteria")
_RESERVED: Final = frozenset((*_OURS, "phaseNumber", "taskSummary", "iscCriteria"))


class PhaseCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a phase. `completed` tells whether its session is finished now.

    `state` is what was saved beside the fields; in lists it is left out and None.
    """

    id: str
    session_id: str
    phase: str
    phase_number: int
    created_at: datetime
    completed: bool
    task_summary: str
    criteria: tuple[Criterion, ...] = ()
    metadata: dict[str, Any] = {}
    state: Any = None

    @property
    def offer(self) -> str:
        """The question a person is asked when a session starts."""
        return offer_text(self.phase_number, self.task_summary)


def offer_text(number: int, summary: str) -> str:
    return f"Checkpoint: Resume from Phase {number}? ({summary})"


def metadata_of(
    phase: str,
    *,
    number: int | None,
    summary: str,
    criteria: Iterable[Criterion | Mapping[str, Any]],
    metadata: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The checked fields as the metadata of a checkpoint.

    Raises:
        InvalidInput: (`invalid_phase`) a field is missing, of the wrong kind, or a name that is taken.
    """
    given = {} if metadata is None else metadata
    if not isinstance(given, Mapping):
        raise _invalid(f"metadata is a dict, not {type(given).__name__}")
    if taken := sorted(_RESERVED & given.keys()):
        raise _invalid(f"metadata cannot hold {', '.join(taken)}: these are fields of their own")
    name = check_name("a phase", phase)
    ours = (
        name,
        _checked_number(name, number),
        summary_of(check_text("a task summary", summary)),
        msgspec.to_builtins(_checked_criteria(criteria)),
    )
    return {**dict(zip(_OURS, ours, strict=True)), **given}


def summary_of(text: str) -> str:
    """The first eight words of a task."""
    return " ".join(text.split()[:SUMMARY_WORDS])


def _checked_number(phase: str, number: object) -> int:
    if number is None:
        if phase.lower() not in PHASES:
            raise _invalid(f"phase {phase!r} is none of {', '.join(PHASES)}: give its number")
        return PHASES.index(phase.lower()) + 1
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_NUMBER:
        raise _invalid(f"a phase number is a whole number from 1 to {MAX_NUMBER}, not {number!r}")
    return number


def _checked_criteria(criteria: object) -> list[Criterion]:
    if isinstance(criteria, str | Mapping) or not isinstance(criteria, Iterable):
        raise _invalid(f"criteria is a list of id, subject and status, not {type(criteria).__name__}")
    try:
        found = msgspec.convert([msgspec.to_builtins(each) for each in criteria], list[Criterion])
    except (msgspec.ValidationError, TypeError) as exc:
        raise _invalid(f"criteria: {exc}") from exc
    for each in found:
        if each.status not in CRITERION_STATUSES:
            raise _invalid(
                f"criterion {each.id!r} has the status {each.status!r}: use {', '.join(CRITERION_STATUSES)}"
            )
    return found


def _invalid(message: str) -> InvalidInput:
    return InvalidInput(message, code="invalid_phase")


def record_of(header: Header, session: Session, state: Any = None) -> PhaseCheckpoint:
    """The phase checkpoint that a header tells of.

    Raises:
        Corrupt: (`checkpoint_schema_invalid`) it has no valid fields of a phase.
    """
    rest = {key: value for key, value in header.metadata.items() if key not in _RESERVED}
    fields = {
        "id": header.id,
        "session_id": session.key,
        "phase": phase_of(header),
        "phase_number": header.metadata.get("phase_number"),
        "created_at": header.created_at,
        "completed": session.status.is_finished,
        "task_summary": header.metadata.get("task_summary", header.message),
        "criteria": header.metadata.get("criteria", []),
        "metadata": rest,
        "state": state,
    }
    try:
        found = msgspec.convert(fields, PhaseCheckpoint)
    except msgspec.ValidationError as exc:
        raise _not_a_phase(header, str(exc)) from exc
    if not 1 <= found.phase_number <= MAX_NUMBER:
        raise _not_a_phase(header, f"its phase number is {found.phase_number}")
    return found


def _not_a_phase(header: Header, why: str) -> Corrupt:
    return Corrupt(
        f"{header.id} is no checkpoint of a phase: {why}", code=SCHEMA_INVALID, checkpoint=header.id
    )
