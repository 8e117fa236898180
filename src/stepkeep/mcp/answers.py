"""What the tools answer: small models, from which clients get their output schemas.

Names are written as the inputs of the tools are. A field that says nothing is null.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from pydantic import BaseModel, Field

from stepkeep.api import (
    AgentEntry,
    AgentPage,
    CheckpointComparison,
    CheckpointInfo,
    CheckpointNode,
    DamagedNode,
    FallbackInfo,
    FoldNode,
    GapNode,
    Node,
    RestNode,
    RestoredInfo,
    SessionSummary,
    Timeline,
)


class CheckpointSummary(BaseModel):
    """A checkpoint without its state."""

    checkpointId: str
    seq: int = Field(description="Number in the session; the highest is the newest")
    branch: str
    stepNumber: int
    createdAt: datetime
    description: str
    triggerType: str
    status: str
    tags: list[str]
    durationMs: float
    tokenUsage: int | None
    sizeBytes: int


class SavedAnswer(BaseModel):
    """The checkpoint that was saved; it survives a crash from here on."""

    sessionId: str
    checkpointId: str
    seq: int
    branch: str
    stepNumber: int
    createdAt: datetime
    sizeBytes: int


class ListAnswer(BaseModel):
    """Checkpoints of a session, newest first."""

    sessionId: str
    status: str
    branch: str = Field(description="The branch that is current")
    total: int = Field(description="How many checkpoints the session has")
    checkpoints: list[CheckpointSummary]
    nextCursor: str | None = Field(description="Pass it as cursor for the next page; null at the end")


class PartAnswer(BaseModel):
    """One value of a state that was too large to return whole."""

    path: str
    kind: str
    sizeBytes: int


class DamagedAnswer(BaseModel):
    """A newer checkpoint that does not verify, and why."""

    checkpointId: str
    code: str


class LoadAnswer(BaseModel):
    """A checkpoint and its state, verified, exactly as it was saved."""

    sessionId: str
    checkpointId: str
    seq: int
    branch: str
    stepNumber: int
    createdAt: datetime
    description: str
    triggerType: str
    status: str
    sizeBytes: int
    path: str | None = Field(description="Where in the state the value is; null for the whole state")
    encoding: str = Field(
        description="json: the state is plain JSON. json+tags: an object with one key that begins with $ stands "
        "for a value JSON lacks, such as bytes or a tuple; pass encoding json+tags when you save it again"
    )
    isWhole: bool = Field(description="False when the state is too large: see parts and next")
    state: Any = Field(description="What was saved; null when isWhole is false")
    parts: list[PartAnswer] = Field(
        description="What the state consists of, when it is too large to return whole"
    )
    fellBackFrom: list[DamagedAnswer] = Field(
        description="Newer checkpoints that are damaged; normally empty"
    )
    next: str | None


class Change(BaseModel):
    """One difference. Values longer than the limit are left out; their size says so."""

    kind: str
    path: str
    old: Any = None
    new: Any = None
    oldBytes: int | None = None
    newBytes: int | None = None
    oldEncoding: str | None = None
    newEncoding: str | None = None
    isCut: bool = False


class DiffAnswer(BaseModel):
    """What changed between two checkpoints."""

    sessionId: str
    olderId: str
    newerId: str
    elapsedSeconds: float
    summary: str
    total: int
    added: int
    removed: int
    changed: int
    moved: int
    changes: list[Change] = Field(description="The first of them; total counts all")


class BranchAnswer(BaseModel):
    name: str
    state: str
    isCurrent: bool
    headId: str | None
    forkedFromId: str | None


class TimelineRow(BaseModel):
    """One row of the graph, newest first: a checkpoint, or how many others it stands for."""

    kind: str = Field(description="checkpoint, fold, pruned, damaged or older")
    branch: str | None = None
    checkpointId: str | None = None
    seq: int | None = None
    firstSeq: int | None = None
    count: int = 1
    stepNumber: int | None = None
    createdAt: datetime | None = None
    description: str = ""
    status: str | None = None
    headOf: list[str] = Field(default=[], description="Branches whose newest checkpoint this is")
    forkOf: list[str] = Field(default=[], description="Branches that begin here")
    isCurrent: bool = False


class TimelineAnswer(BaseModel):
    """All branches of a session as one graph."""

    sessionId: str
    status: str
    branch: str
    total: int
    pruned: int
    damagedIds: list[str]
    branches: list[BranchAnswer]
    rows: list[TimelineRow]


class RestoreAnswer(BaseModel):
    """Where the session goes on. Nothing was deleted."""

    sessionId: str
    checkpointId: str
    seq: int
    branch: str
    isNewBranch: bool
    previousBranch: str
    previousHeadId: str | None
    summary: str | None = Field(description="What is different from the state before")
    undo: str = Field(description="Pass it as checkpointId to go back")


class CompleteAnswer(BaseModel):
    """The session as it is now."""

    sessionId: str
    status: str
    checkpoints: int
    finishedAt: datetime | None


# --- building --------------------------------------------------------------------------------------------------


def saved_answer(entry: AgentEntry) -> SavedAnswer:
    return SavedAnswer(
        sessionId=entry.session,
        checkpointId=entry.id,
        seq=entry.seq,
        branch=entry.branch,
        stepNumber=entry.step,
        createdAt=entry.time,
        sizeBytes=entry.size_bytes,
    )


def list_answer(page: AgentPage) -> ListAnswer:
    return ListAnswer(
        sessionId=page.session,
        status=page.status,
        branch=page.branch,
        total=page.total,
        checkpoints=[_summary(entry) for entry in page.checkpoints],
        nextCursor=None if page.next_before is None else str(page.next_before),
    )


def _summary(entry: AgentEntry) -> CheckpointSummary:
    return CheckpointSummary(
        checkpointId=entry.id,
        seq=entry.seq,
        branch=entry.branch,
        stepNumber=entry.step,
        createdAt=entry.time,
        description=entry.description,
        triggerType=entry.trigger,
        status=entry.status,
        tags=list(entry.tags),
        durationMs=entry.duration_ms,
        tokenUsage=entry.token_usage,
        sizeBytes=entry.size_bytes,
    )


def load_answer(
    view: CheckpointInfo,
    encoding: str,
    *,
    path: str | None,
    state: Any,
    parts: list[PartAnswer] | None = None,
    next_step: str | None = None,
    fallback: FallbackInfo | None,
) -> LoadAnswer:
    return LoadAnswer(
        sessionId=view.session,
        checkpointId=view.id,
        seq=view.seq,
        branch=view.branch,
        stepNumber=view.step or 0,
        createdAt=view.time,
        description=view.message,
        triggerType=view.trigger.kind,
        status=view.status,
        sizeBytes=view.size_bytes,
        path=path,
        encoding=encoding,
        isWhole=parts is None,
        state=state,
        parts=parts or [],
        fellBackFrom=[
            DamagedAnswer(checkpointId=each.checkpoint, code=each.code)
            for each in (() if fallback is None else fallback.failures)
        ],
        next=next_step,
    )


def diff_answer(diff: CheckpointComparison, *, max_value_bytes: int) -> DiffAnswer:
    return DiffAnswer(
        sessionId=diff.newer.session,
        olderId=diff.older.id,
        newerId=diff.newer.id,
        elapsedSeconds=diff.elapsed.total_seconds(),
        summary=diff.summary,
        total=diff.total,
        added=diff.added,
        removed=diff.removed,
        changed=diff.changed,
        moved=diff.moved,
        changes=[_change(change, max_value_bytes) for change in diff.document()["changes"]],
    )


def _change(change: dict[str, Any], most: int) -> Change:
    named = {"kind": change["kind"], "path": change["path"]}
    if change["kind"] == "moved":
        return Change(**named, old=change["old_index"], new=change["new_index"])
    old, new = (bytes(change[name]) if name in change else None for name in ("old", "new"))
    return Change(
        **named,
        old=_value(old, most),
        new=_value(new, most),
        oldBytes=None if old is None else len(old),
        newBytes=None if new is None else len(new),
        oldEncoding=change.get("old_encoding"),
        newEncoding=change.get("new_encoding"),
        isCut=any(each is not None and len(each) > most for each in (old, new)),
    )


def _value(data: bytes | None, most: int) -> Any:
    return None if data is None or len(data) > most else msgspec.json.decode(data)


def restore_answer(restored: RestoredInfo) -> RestoreAnswer:
    return RestoreAnswer(
        sessionId=restored.session,
        checkpointId=restored.checkpoint.id,
        seq=restored.checkpoint.seq,
        branch=restored.branch,
        isNewBranch=restored.is_new_branch,
        previousBranch=restored.previous_branch,
        previousHeadId=restored.previous_head,
        summary=None if restored.changes is None else restored.changes.summary,
        undo=restored.undo,
    )


def complete_answer(session: SessionSummary) -> CompleteAnswer:
    return CompleteAnswer(
        sessionId=session.key,
        status=session.status,
        checkpoints=session.checkpoints,
        finishedAt=session.finished,
    )


def timeline_answer(view: Timeline) -> TimelineAnswer:
    return TimelineAnswer(
        sessionId=view.session,
        status=view.status,
        branch=view.branch,
        total=view.total,
        pruned=view.pruned,
        damagedIds=list(view.damaged),
        branches=[
            BranchAnswer(
                name=branch.name,
                state=branch.state,
                isCurrent=branch.is_current,
                headId=branch.head,
                forkedFromId=branch.fork,
            )
            for branch in view.branches
        ],
        rows=[_row(row) for row in view.rows],
    )


def _row(row: Node) -> TimelineRow:
    match row:
        case CheckpointNode():
            return _entry(row)
        case FoldNode():
            return TimelineRow(
                kind="fold",
                branch=row.branch,
                count=row.count,
                firstSeq=row.first_seq,
                seq=row.last_seq,
                stepNumber=row.last_step,
                createdAt=row.last_time,
            )
        case GapNode():
            return TimelineRow(kind="pruned", count=row.count, firstSeq=row.first_seq, seq=row.last_seq)
        case DamagedNode():
            return TimelineRow(kind="damaged", checkpointId=row.id, seq=row.seq, branch=row.branch)
        case RestNode():
            return TimelineRow(kind="older", count=row.count)


def _entry(row: CheckpointNode) -> TimelineRow:
    checkpoint = row.checkpoint
    return TimelineRow(
        kind="checkpoint",
        branch=checkpoint.branch,
        checkpointId=checkpoint.id,
        seq=checkpoint.seq,
        stepNumber=checkpoint.step,
        createdAt=checkpoint.time,
        description=checkpoint.message,
        status=checkpoint.status,
        headOf=list(row.heads),
        forkOf=list(row.forks),
        isCurrent=row.is_current,
    )
