"""Timelines as JSON can hold them, of one session or of many, and as a picture in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import msgspec

from stepkeep.errors import InvalidInput, NotFound, StepkeepError
from stepkeep.history.documents import CheckpointInfo, checkpoint_info
from stepkeep.history.timeline.rows import (
    CheckpointNode,
    DamagedNode,
    FoldNode,
    GapNode,
    NodeLink,
    RestNode,
    Row,
    Timeline,
)
from stepkeep.model import Branch, BranchState, SessionError, SessionInfo, Status, from_us
from stepkeep.storage.disk import write_file


class EntryRow(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint"):
    """A checkpoint, the branches that stand and began here, and whether it matches the filter."""

    lane: int
    links: tuple[NodeLink, ...]
    checkpoint: CheckpointInfo
    heads: tuple[str, ...]
    forks: tuple[str, ...]
    is_current: bool
    is_match: bool


class FoldRow(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="fold"):
    """So many checkpoints of one branch that follow each other: plain automatic ones, or not matching ones."""

    lane: int
    links: tuple[NodeLink, ...]
    count: int
    branch: str
    first_seq: int
    last_seq: int
    first_step: int | None
    last_step: int | None
    first_time: datetime
    last_time: datetime
    size_bytes: int
    stored_bytes: int
    pruned: int
    damaged: int
    is_match: bool


class GapRow(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="pruned"):
    """So many checkpoints that were removed on purpose, somewhere in this range."""

    lane: int
    links: tuple[NodeLink, ...]
    count: int
    first_seq: int
    last_seq: int


class DamagedRow(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="damaged"):
    """A checkpoint whose header does not verify."""

    lane: int
    links: tuple[NodeLink, ...]
    id: str
    seq: int
    branch: str


class RestRow(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="older"):
    """So many older checkpoints that are not shown; always the last row."""

    lane: int
    links: tuple[NodeLink, ...]
    count: int


RowDocument: TypeAlias = EntryRow | FoldRow | GapRow | DamagedRow | RestRow


class BranchMark(msgspec.Struct, frozen=True, kw_only=True):
    """A branch: where it stands and where it began."""

    name: str
    state: BranchState
    is_current: bool
    head: str | None
    head_seq: int
    fork: str | None
    fork_branch: str | None
    fork_seq: int


class TimelineDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The graph of one session, rows newest first. `total` counts its intact checkpoints, `left_out` those that no
    row stands for; `damaged` are ids."""

    session: str
    status: Status
    branch: str
    total: int
    left_out: int
    pruned: int
    damaged: tuple[str, ...]
    size_bytes: int
    stored_bytes: int
    branches: tuple[BranchMark, ...]
    rows: tuple[RowDocument, ...]


class TimelinesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The timelines that were asked for, of the most recently used session first, and what could not be read."""

    timelines: tuple[TimelineDocument, ...]
    errors: tuple[SessionError, ...]


class Pictured(msgspec.Struct, frozen=True, kw_only=True):
    """What was drawn, and where it was written. `output` None means that it was not written to a file."""

    sessions: tuple[str, ...]
    rows: int
    output: str | None
    size_bytes: int
    errors: tuple[SessionError, ...]


class Timelines(msgspec.Struct, frozen=True, kw_only=True):
    """The timelines that were asked for, of the most recently used session first, and what could not be read."""

    timelines: tuple[Timeline, ...]
    errors: tuple[SessionError, ...] = ()

    def document(self) -> TimelinesDocument:
        """The same as JSON can hold it."""
        return TimelinesDocument(timelines=tuple(map(document_of, self.timelines)), errors=self.errors)

    def picture(self) -> bytes:
        """All of them as one SVG picture."""
        from stepkeep.history.timeline.svg import picture  # only who draws pays for it

        return picture(self.timelines).encode()

    def write_picture(self, output: Path, *, force: bool = False) -> Pictured:
        """Write the picture to a file: whole or not at all, durable, readable only by its owner, and over an existing
        file only with `force`."""
        content = self.picture()
        write_file(output, content, force=force)
        return Pictured(
            sessions=tuple(timeline.session.key for timeline in self.timelines),
            rows=sum(len(timeline.rows) for timeline in self.timelines),
            output=str(output),
            size_bytes=len(content),
            errors=self.errors,
        )


def timelines_of(sessions: Iterable[SessionInfo], read: Callable[[SessionInfo], Timeline]) -> Timelines:
    """The timelines of many sessions. One that lacks what the filter names is left out, one that fails is an error."""
    found: list[Timeline] = []
    errors: list[SessionError] = []
    for info in sessions:
        try:
            found.append(read(info))
        except InvalidInput:
            raise
        except NotFound:
            continue  # it has no such branch or tag, or was deleted meanwhile
        except StepkeepError as exc:
            errors.append(SessionError(session=info.key, code=exc.code, message=exc.message))
    return Timelines(timelines=tuple(found), errors=tuple(errors))


def document_of(timeline: Timeline) -> TimelineDocument:
    session = timeline.session
    return TimelineDocument(
        session=session.key,
        status=session.status,
        branch=session.branch,
        total=timeline.total,
        left_out=timeline.left_out,
        pruned=timeline.pruned,
        damaged=timeline.damaged,
        size_bytes=timeline.size_bytes,
        stored_bytes=timeline.stored_bytes,
        branches=tuple(_branch(branch, session.branch) for branch in timeline.branches),
        rows=tuple(_row(row, session.key) for row in timeline.rows),
    )


def _branch(branch: Branch, current: str) -> BranchMark:
    return BranchMark(
        name=branch.name,
        state=branch.state,
        is_current=branch.name == current,
        head=branch.head,
        head_seq=branch.head_seq,
        fork=branch.fork,
        fork_branch=branch.fork_branch,
        fork_seq=branch.fork_seq,
    )


def _row(row: Row, key: str) -> RowDocument:
    match row:
        case CheckpointNode():
            return EntryRow(
                lane=row.lane,
                links=row.links,
                checkpoint=checkpoint_info(key, row.header, row.stored_bytes),
                heads=row.heads,
                forks=row.forks,
                is_current=row.is_current,
                is_match=row.is_match,
            )
        case FoldNode():
            return _fold(row)
        case GapNode():
            return GapRow(
                lane=row.lane,
                links=row.links,
                count=row.count,
                first_seq=row.first_seq,
                last_seq=row.last_seq,
            )
        case DamagedNode():
            return DamagedRow(lane=row.lane, links=row.links, id=row.id, seq=row.seq, branch=row.branch)
        case RestNode():
            return RestRow(lane=row.lane, links=row.links, count=row.count)


def _fold(fold: FoldNode) -> FoldRow:
    return FoldRow(
        lane=fold.lane,
        links=fold.links,
        count=fold.count,
        branch=fold.branch,
        first_seq=fold.first_seq,
        last_seq=fold.last_seq,
        first_step=fold.first_step,
        last_step=fold.last_step,
        first_time=from_us(fold.first_us),
        last_time=from_us(fold.last_us),
        size_bytes=fold.size_bytes,
        stored_bytes=fold.stored_bytes,
        pruned=fold.pruned,
        damaged=fold.damaged,
        is_match=fold.is_match,
    )
