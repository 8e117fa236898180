"""What the tools answer: values of the api under the names that the inputs of the tools use, or an error.

Clients get their output schemas from these models. A field has the name of the api's own; `_NAMES` and camel case say
how it is written. A field that says nothing is null. An error is told as a model can act on it: a stable code, what
happened, whether to repeat, and what to do next.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Self

import msgspec
from mcp.types import CallToolResult, TextContent
from msgspec import UNSET
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from stepkeep import errors
from stepkeep.api import CheckpointComparison, CheckpointNode, FoldNode, GapNode, Node, Timeline

_NAMES: Final = {
    "checkpoint": "checkpointId",
    "damaged": "damagedIds",
    "finished": "finishedAt",
    "fork": "forkedFromId",
    "forks": "forkOf",
    "head": "headId",
    "heads": "headOf",
    "id": "checkpointId",
    "key": "sessionId",
    "message": "description",
    "next_before": "nextCursor",
    "previous_head": "previousHeadId",
    "session": "sessionId",
    "step": "stepNumber",
    "time": "createdAt",
    "trigger": "triggerType",
}


class Answer(BaseModel):
    """A model that is made from values of the api."""

    model_config = ConfigDict(
        alias_generator=lambda name: _NAMES.get(name) or to_camel(name),
        populate_by_name=True,
        from_attributes=True,
        coerce_numbers_to_str=True,  # a cursor is the number of a checkpoint
    )

    @classmethod
    def of(cls, *values: object, **more: Any) -> Self:
        """The answer with the fields of these values, where the last one wins, and with `more`."""
        found = {
            name: field
            for value in values
            for name in cls.model_fields
            if (field := getattr(value, name, UNSET)) is not UNSET
        }
        return cls.model_validate(found | more)


class LocatedAnswer(Answer):
    """What tells of one checkpoint of a session."""

    session: str
    id: str
    seq: int
    branch: str


class SavedAnswer(LocatedAnswer):
    """The checkpoint that was saved; it survives a crash from here on."""

    step: int
    time: datetime
    size_bytes: int


class CheckpointSummary(Answer):
    """A checkpoint without its state."""

    id: str
    seq: int = Field(description="Number in the session; the highest is the newest")
    branch: str
    step: int
    time: datetime
    description: str
    trigger: str
    status: str
    tags: list[str]
    duration_ms: float
    token_usage: int | None
    size_bytes: int


class ListAnswer(Answer):
    """Checkpoints of a session, newest first."""

    session: str
    status: str
    branch: str = Field(description="The branch that is current")
    total: int = Field(description="How many checkpoints the session has")
    checkpoints: list[CheckpointSummary]
    next_before: str | None = Field(description="Pass it as cursor for the next page; null at the end")


class PartAnswer(Answer):
    """One value of a state that was too large to return whole."""

    path: str
    kind: str
    size_bytes: int


class DamagedAnswer(Answer):
    """A newer checkpoint that does not verify, and why."""

    checkpoint: str
    code: str


class LoadAnswer(LocatedAnswer):
    """A checkpoint and its state, verified, exactly as it was saved."""

    step: int
    time: datetime
    message: str
    trigger: str
    status: str
    size_bytes: int
    path: str | None = Field(description="Where in the state the value is; null for the whole state")
    encoding: str = Field(
        description="json: the state is plain JSON. json+tags: an object with one key that begins with $ stands "
        "for a value JSON lacks, such as bytes or a tuple; pass encoding json+tags when you save it again"
    )
    is_whole: bool = Field(description="False when the state is too large: see parts and next")
    state: Any = Field(description="What was saved; null when isWhole is false")
    parts: list[PartAnswer] = Field(
        description="What the state consists of, when it is too large to return whole"
    )
    fell_back_from: list[DamagedAnswer] = Field(
        description="Newer checkpoints that are damaged; normally empty"
    )
    next: str | None


class Change(Answer):
    """One difference. Values longer than the limit are left out; their size says so."""

    kind: str
    path: str
    old: Any = None
    new: Any = None
    old_bytes: int | None = None
    new_bytes: int | None = None
    old_encoding: str | None = None
    new_encoding: str | None = None
    is_cut: bool = False


class DiffAnswer(Answer):
    """What changed between two checkpoints."""

    session: str
    older_id: str
    newer_id: str
    elapsed_seconds: float
    summary: str
    total: int
    added: int
    removed: int
    changed: int
    moved: int
    changes: list[Change] = Field(description="The first of them; total counts all")


class BranchAnswer(Answer):
    name: str
    state: str
    is_current: bool
    head: str | None
    fork: str | None


class TimelineRow(Answer):
    """One row of the graph, newest first: a checkpoint, or how many others it stands for."""

    kind: str = Field(description="checkpoint, fold, pruned, damaged or older")
    branch: str | None = None
    id: str | None = None
    seq: int | None = None
    first_seq: int | None = None
    count: int = 1
    step: int | None = None
    time: datetime | None = None
    message: str = ""
    status: str | None = None
    heads: list[str] = Field(default=[], description="Branches whose newest checkpoint this is")
    forks: list[str] = Field(default=[], description="Branches that begin here")
    is_current: bool = False


class InvestigatedAnswer(Answer):
    """What a change of an investigation did. Times are RFC 3339."""

    session: str
    entry: dict[str, Any] = Field(description="The entry that was added or changed")
    contradictions: list[dict[str, Any]] = Field(description="Beliefs that contradict each other since then")
    saved: list[str] = Field(description="The checkpoints that hold it")


class InvestigationAnswer(Answer):
    """What an investigation knows, or knew. Times are RFC 3339."""

    session: str
    state: dict[str, Any]
    next_gaps: list[str] = Field(description="Ids of the open questions, the most critical first")
    latest: str | None = Field(description="The checkpoint that holds it")


class TimelineAnswer(Answer):
    """All branches of a session as one graph."""

    session: str
    status: str
    branch: str
    total: int
    pruned: int
    damaged: list[str]
    branches: list[BranchAnswer]
    rows: list[TimelineRow]


class RestoreAnswer(LocatedAnswer):
    """Where the session goes on. Nothing was deleted."""

    is_new_branch: bool
    previous_branch: str
    previous_head: str | None
    summary: str | None = Field(description="What is different from the state before")
    undo: str = Field(description="Pass it as checkpointId to go back")


class ApproveAnswer(Answer):
    """The answer that was saved."""

    session: str
    step: str = Field(alias="stepId")
    question: str
    is_approved: bool
    checkpoint: str
    next: str = Field(description="What goes on with it")


class CompleteAnswer(Answer):
    """The session as it is now."""

    key: str
    status: str
    checkpoints: int
    finished: datetime | None


# --- answers that are not just the fields of a value ------------------------------------------------------------


def diff_answer(diff: CheckpointComparison, *, max_value_bytes: int) -> DiffAnswer:
    return DiffAnswer.of(
        diff,
        session=diff.newer.session,
        older_id=diff.older.id,
        newer_id=diff.newer.id,
        elapsed_seconds=diff.elapsed.total_seconds(),
        changes=[_change(change, max_value_bytes) for change in diff.document()["changes"]],
    )


def _change(change: dict[str, Any], most: int) -> Change:
    if change["kind"] == "moved":
        return Change.model_validate({**change, "old": change["old_index"], "new": change["new_index"]})
    sides = {side: bytes(change[side]) for side in ("old", "new") if side in change}
    values = {side: None if len(data) > most else msgspec.json.decode(data) for side, data in sides.items()}
    sizes = {f"{side}_bytes": len(data) for side, data in sides.items()}
    is_cut = any(len(data) > most for data in sides.values())
    return Change.model_validate({**change, **values, **sizes, "is_cut": is_cut})


def timeline_answer(view: Timeline) -> TimelineAnswer:
    return TimelineAnswer.of(view, rows=[_row(row) for row in view.rows])


def _row(row: Node) -> TimelineRow:
    kind = type(row).__struct_config__.tag
    match row:
        case CheckpointNode():
            return TimelineRow.of(row.checkpoint, row, kind=kind)
        case FoldNode():
            return TimelineRow.of(row, kind=kind, seq=row.last_seq, step=row.last_step, time=row.last_time)
        case GapNode():
            return TimelineRow.of(row, kind=kind, seq=row.last_seq)
    return TimelineRow.of(row, kind=kind)


# --- errors ----------------------------------------------------------------------------------------------------

MAX_MESSAGE: Final = 2000

_NEXT_BY_CODE: Final = {
    "session_not_found": "Check the sessionId. checkpoint_save makes a session; session_list lists them.",
    "ambiguous_session": "Pass the whole sessionId of the one you mean.",
    "checkpoint_not_found": "Call checkpoint_list for the checkpoints there are, and pass one of their ids.",
    "path_not_found": "Call checkpoint_load without path, or with a path that the message names.",
    "invalid_path": "A path reads like context.messages[-1]; $ is the whole state.",
    "state_too_large": "Save less: leave out what can be fetched again.",
    "state_too_deep": "Flatten the state.",
    "checkpoints_disabled": "Tell the user: agent.checkpoints.enabled switches checkpoints off.",
    "confirmation_needed": "Ask the user. If they agree, call again with confirm set to true.",
    "confirmation_declined": "The user said no. Do not repeat it unless they ask for it.",
    "store_busy": "Another process holds the store. Wait a little, then call again.",
    "store_budget_exceeded": "Nothing was stored. Tell the user that the store has reached its limit.",
    "invalid_arguments": "Correct the arguments and call again.",
}
_NEXT_BY_KIND: Final = (
    (errors.NotFound, "Call checkpoint_list to see what there is."),
    (errors.Conflict, "Someone wrote first: call checkpoint_load, decide again, then repeat."),
    (errors.Corrupt, "Do not repeat it. Tell the user to run `stepkeep doctor` and `stepkeep verify`."),
    (errors.BackendUnavailable, "Nothing was stored. Tell the user that the store cannot be used."),
    (errors.Unsupported, "Do not repeat it. Tell the user what is missing."),
    (errors.InvalidInput, "Correct the input and call again."),
)


def refused(error: errors.StepkeepError) -> CallToolResult:
    """A tool's error, the same in text and as data."""
    fields = {
        "code": error.code,
        "message": error.message[:MAX_MESSAGE],
        "retryable": error.retryable,
        "next": _next(error),
        "sessionId": error.session,
        "checkpointId": error.checkpoint,
        "path": error.path,
    }
    answer: dict[str, Any] = {"error": {name: value for name, value in fields.items() if value is not None}}
    text = msgspec.json.encode(answer).decode()
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=answer, is_error=True
    )


def refusal_text(error: errors.StepkeepError) -> str:
    """The same in one line, where an answer has no fields."""
    return f"{error.code}: {error.message[:MAX_MESSAGE]} {_next(error)}"


def _next(error: errors.StepkeepError) -> str:
    if error.code in _NEXT_BY_CODE:
        return _NEXT_BY_CODE[error.code]
    if isinstance(error, errors.BackendUnavailable) and error.retryable:
        return "Nothing was stored. Wait a little, then call again."
    return next((text for kind, text in _NEXT_BY_KIND if isinstance(error, kind)), "Tell the user.")
