"""The timeline of a session as an answer: one short row for each of the graph."""

from __future__ import annotations

from stepkeep.mcp.answers import Branch, TimelineAnswer, TimelineRow
from stepkeep.operations.timelines import (
    DamagedRow,
    EntryRow,
    FoldRow,
    GapRow,
    RestRow,
    RowView,
    TimelineView,
)


def timeline_answer(view: TimelineView) -> TimelineAnswer:
    return TimelineAnswer(
        sessionId=view.session,
        status=view.status,
        branch=view.branch,
        total=view.total,
        pruned=view.pruned,
        damagedIds=list(view.damaged),
        branches=[
            Branch(
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


def _row(row: RowView) -> TimelineRow:
    match row:
        case EntryRow():
            return _entry(row)
        case FoldRow():
            return TimelineRow(
                kind="fold",
                branch=row.branch,
                count=row.count,
                firstSeq=row.first_seq,
                seq=row.last_seq,
                stepNumber=row.last_step,
                createdAt=row.last_time,
            )
        case GapRow():
            return TimelineRow(kind="pruned", count=row.count, firstSeq=row.first_seq, seq=row.last_seq)
        case DamagedRow():
            return TimelineRow(kind="damaged", checkpointId=row.id, seq=row.seq, branch=row.branch)
        case RestRow():
            return TimelineRow(kind="older", count=row.count)


def _entry(row: EntryRow) -> TimelineRow:
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
