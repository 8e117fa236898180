"""What the readable documents say about a checkpoint, layout by layout: the fields of the specifications. Pure.

A field is filled from the header, from the session, or from what the saver put into metadata and details. What
nobody gave is left out, never invented.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from stepkeep import typed
from stepkeep.codec.delta import StoredForm
from stepkeep.errors import InvalidInput
from stepkeep.model import (
    PHASES,
    STATE,
    Header,
    SessionInfo,
    Status,
    Trigger,
    TriggerKind,
    from_us,
    within_calendar,
)

STEP_WORDS: Final = {
    "pending": "pending",
    "running": "in_progress",
    "completed": "done",
    "failed": "failed",
    "skipped": "skipped",
}
"""Our word for the status of a step, and the snapshot's."""

_OURS: Final = {theirs: ours for ours, theirs in STEP_WORDS.items()}


def step_status(word: str) -> str:
    """Our word for the status of a step, given in either language.

    Raises:
        InvalidInput: the text does not have that form.
    """
    status = word if word in STEP_WORDS else _OURS.get(word)
    if status is None:
        raise InvalidInput(
            f"no status of a step {word!r}: choose one of {', '.join(STEP_WORDS)}", code="invalid_status"
        )
    return status


FORMAT_VERSION: Final = 1

DEFAULT_PHASE: Final = "checkpoint"

T = TypeVar("T")


class Layout(StrEnum):
    """Which specification names and shapes the documents."""

    WORKFLOW = "workflow"
    RUN = "run"
    PHASE = "phase"


LAYOUTS: Final = tuple(str(layout) for layout in Layout)
"""The names of all layouts."""


# --- the part that is the same in every layout -----------------------------------------------------------------


Form: TypeAlias = Literal["json", "base64", "gzip"]


class StoredRecord(StoredForm, frozen=True, kw_only=True, omit_defaults=True):
    """How one body is stored in the document. Without `content` it is the document's own state.

    `form` says how the bytes are written: as the JSON value they are, as base64, or as base64 of gzip.
    """

    form: Form
    content: Raw | UnsetType = UNSET


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What the store needs to take the checkpoint up again: the session, the sealed header, the body records."""

    version: int
    session: SessionInfo
    header: Raw
    bodies: tuple[StoredRecord, ...]


class Integrity(msgspec.Struct, frozen=True, kw_only=True):
    """The last line: the SHA-256 of all bytes before it."""

    format_version: int
    algorithm: Literal["sha256"]
    checksum: str


# --- workflow --------------------------------------------------------------------------------------------------


class WorkflowDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope: `data` is the state, or its gzip in base64 when `compressed`."""

    version: int
    checkpoint_id: str
    session_id: str
    created_at: str
    step: int | None
    status: Status
    compressed: bool
    original_size: int
    stored_size: int
    data: Raw
    stepkeep: Record
    integrity: Integrity


# --- run -------------------------------------------------------------------------------------------------------

Source: TypeAlias = Literal["step_boundary", "error_boundary", "timer", "manual"]

SOURCES: Final[dict[TriggerKind, Source]] = {
    TriggerKind.AUTO: "step_boundary",
    TriggerKind.ERROR: "error_boundary",
    TriggerKind.TIMER: "timer",
    TriggerKind.MANUAL: "manual",
}


MERGED: Final = "trigger"
"""The kind of the annotations that note on a snapshot which triggers were merged into it."""


class _MergedTrigger(msgspec.Struct):
    trigger: Trigger


def source_word(trigger: Trigger) -> str:
    """How `source_details` names a trigger."""
    return trigger.event or SOURCES[trigger.kind]


def merged_source(data: bytes) -> str | None:
    """How `source_details` names the trigger in an annotation of the kind `MERGED`; None where that makes no sense."""
    try:
        return source_word(msgspec.json.decode(data, type=_MergedTrigger).trigger)
    except msgspec.MsgspecError:
        return None


class TodoCompliance(msgspec.Struct, frozen=True, omit_defaults=True):
    result: str
    violations: list[str]
    checked_at: str


class ResumeHints(msgspec.Struct, frozen=True, omit_defaults=True):
    eligible: bool
    reason_code: str
    next_actions: list[str]


class StepState(msgspec.Struct, frozen=True, omit_defaults=True):
    plan_path: str | UnsetType | None = UNSET
    step_id: str | UnsetType | None = UNSET
    step_ordinal: int | UnsetType | None = UNSET
    step_status: str | UnsetType | None = UNSET
    todo_compliance: TodoCompliance | UnsetType = UNSET
    resume_hints: ResumeHints | UnsetType = UNSET


class ContextDigest(msgspec.Struct, frozen=True, omit_defaults=True):
    window_pressure: Literal["low", "medium", "high"]
    protected_artifacts: list[str]
    dropped_items: int
    policy_profile: str


class CommandOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: Literal["shell", "slash_command", "tool_use"]
    name: str
    result: Literal["PASS", "FAIL", "WARN"]
    duration_ms: int | float
    summary: str
    reason_code: str | None = None


class RunDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot. `step_state`, `context_digest` and `command_outcomes` come from the details that were saved.

    `command_outcomes_dropped` counts the outcomes that were too many.
    """

    snapshot_id: str
    created_at: str
    run_id: str
    source: Source
    source_details: list[str]
    status: Status
    command_outcomes: list[CommandOutcome]
    state: Raw
    stepkeep: Record
    integrity: Integrity
    step_state: StepState | UnsetType = UNSET
    context_digest: ContextDigest | UnsetType = UNSET
    command_outcomes_dropped: int | UnsetType = UNSET


# --- phase -----------------------------------------------------------------------------------------------------


class CriterionFields(msgspec.Struct, frozen=True):
    """What every criterion has; other keys of one are kept as they are."""

    id: str
    subject: str
    status: str


class PhaseDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A phase checkpoint. `completed` is what the session was when this was written."""

    id: str
    sessionId: str
    phase: str
    createdAt: str
    completed: bool
    taskSummary: str
    iscCriteria: list[CriterionFields]
    metadata: dict[str, Any]
    state: Raw
    stepkeep: Record
    integrity: Integrity
    phaseNumber: int | UnsetType = UNSET


AnyDocument: TypeAlias = WorkflowDocument | RunDocument | PhaseDocument

DOCUMENTS: Final[dict[Layout, type[AnyDocument]]] = {
    Layout.WORKFLOW: WorkflowDocument,
    Layout.RUN: RunDocument,
    Layout.PHASE: PhaseDocument,
}
STATE_MEMBER: Final = {Layout.WORKFLOW: "data", Layout.RUN: "state", Layout.PHASE: "state"}
"""Under which name each layout shows the state."""


# --- from a checkpoint to its fields ---------------------------------------------------------------------------


def fields_of(
    layout: Layout, header: Header, session: SessionInfo, *, details: object, merged: Sequence[str]
) -> dict[str, Any]:
    """The readable fields of a checkpoint, in the order in which they are written; the state is not among them.

    `details` is the decoded details body, `merged` names the triggers that were merged into the checkpoint later.
    How the state itself is written is filled in by whoever writes it.
    """
    if layout is Layout.WORKFLOW:
        return _workflow_fields(header, session)
    if layout is Layout.RUN:
        return _run_fields(header, session, details, merged)
    return _phase_fields(header, session)


def _workflow_fields(header: Header, session: SessionInfo) -> dict[str, Any]:
    content = header.contents.get(STATE)
    return {
        "version": FORMAT_VERSION,
        "checkpoint_id": header.id,
        "session_id": session.key,
        "created_at": timestamp(header.time_us),
        "step": header.step,
        "status": header.status,
        "compressed": False,
        "original_size": content.size if content is not None else 0,
        "stored_size": 0,
    }


def _run_fields(
    header: Header, session: SessionInfo, details: object, merged: Sequence[str]
) -> dict[str, Any]:
    given = details if isinstance(details, Mapping) else {}
    step_state = _valid(given.get("step_state"), StepState)
    if step_state is None and header.step is not None:
        step_state = StepState(step_ordinal=header.step)
    elif step_state is not None and isinstance(step_state.step_status, str):
        word = STEP_WORDS.get(step_state.step_status, step_state.step_status)
        step_state = msgspec.structs.replace(step_state, step_status=word)
    context = _valid(given.get("context_digest"), ContextDigest)
    dropped = _valid(given.get("command_outcomes_dropped"), int)
    return {
        "snapshot_id": header.id,
        "created_at": timestamp(header.time_us),
        "run_id": session.key,
        "source": SOURCES[header.trigger.kind],
        "source_details": [*([header.trigger.event] if header.trigger.event else []), *merged],
        "status": header.status,
        **({} if step_state is None else {"step_state": step_state}),
        **({} if context is None else {"context_digest": context}),
        "command_outcomes": _valid(given.get("command_outcomes"), list[CommandOutcome]) or [],
        **({} if dropped is None else {"command_outcomes_dropped": dropped}),
    }


def _phase_fields(header: Header, session: SessionInfo) -> dict[str, Any]:
    given = dict(header.metadata)
    phase = phase_of(header)
    given.pop("phase", None)
    number = _valid(given.pop("phase_number", given.pop("phaseNumber", None)), int)
    if number is None and phase.lower() in PHASES:
        number = PHASES.index(phase.lower()) + 1
    summary = _valid(given.pop("task_summary", given.pop("taskSummary", None)), str)
    criteria = given.pop("criteria", given.pop("iscCriteria", None))
    return {
        "id": header.id,
        "sessionId": session.key,
        "phase": phase,
        **({} if number is None else {"phaseNumber": number}),
        "createdAt": timestamp(header.time_us),
        "completed": session.status.is_finished,
        "taskSummary": header.message if summary is None else summary,
        "iscCriteria": criteria if _valid(criteria, list[CriterionFields]) else [],
        "metadata": given,
    }


def phase_of(header: Header) -> str:
    """The phase a checkpoint was saved in: the metadata's word, else its step, else a plain checkpoint."""
    phase = header.metadata.get("phase")
    if isinstance(phase, str) and phase:
        return phase
    return DEFAULT_PHASE if header.step is None else f"step-{header.step}"


def timestamp(time_us: int) -> str:
    """RFC 3339 in UTC. A time that no calendar names is written as the nearest one that it does."""
    moment = from_us(within_calendar(time_us))
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _valid(value: object, type_: type[T]) -> T | None:
    """The value if it has the shape that the specification gives it."""
    if value is None:
        return None
    try:
        return typed.convert(value, type_)
    except (msgspec.ValidationError, TypeError):
        return None
