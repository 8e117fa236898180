"""The timeline of a session, or of all: as rows, and as a picture."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import msgspec

from stepkeep.api import Session, Store
from stepkeep.errors import InvalidInput, NotFound, StepkeepError
from stepkeep.history.timeline import Damaged, Entry, Fold, Gap, Link, Rest, Row, Timeline
from stepkeep.history.timeline.svg import picture
from stepkeep.model import Branch, BranchState, Status, from_us
from stepkeep.operations.exporting import write_file
from stepkeep.operations.views import CheckpointView, SessionError, checkpoint_view


class TimelineFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown. `is_full` folds nothing that matches."""

    since: str | None = None
    branch: str | None = None
    tag: str | None = None
    limit: int | None = None
    is_full: bool = False


class EntryRow(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint"):
    """A checkpoint, the branches that stand and began here, and whether it matches the filter."""

    lane: int
    links: tuple[Link, ...]
    checkpoint: CheckpointView
    heads: tuple[str, ...]
    forks: tuple[str, ...]
    is_current: bool
    is_match: bool


class FoldRow(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="fold"):
    """So many checkpoints of one branch that follow each other: plain automatic ones, or not matching ones."""

    lane: int
    links: tuple[Link, ...]
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
    links: tuple[Link, ...]
    count: int
    first_seq: int
    last_seq: int


class DamagedRow(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="damaged"):
    """A checkpoint whose header does not verify."""

    lane: int
    links: tuple[Link, ...]
    id: str
    seq: int
    branch: str


class RestRow(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="older"):
    """So many older checkpoints that are not shown; always the last row."""

    lane: int
    links: tuple[Link, ...]
    count: int


RowView: TypeAlias = EntryRow | FoldRow | GapRow | DamagedRow | RestRow


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


class TimelineView(msgspec.Struct, frozen=True, kw_only=True):
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
    rows: tuple[RowView, ...]


class Timelines(msgspec.Struct, frozen=True, kw_only=True):
    """The timelines that were asked for, of the most recently used session first, and what could not be read."""

    timelines: tuple[TimelineView, ...]
    errors: tuple[SessionError, ...]


class Pictured(msgspec.Struct, frozen=True, kw_only=True):
    """What was drawn, and where it was written. `output` None means that it was not written to a file."""

    sessions: tuple[str, ...]
    rows: int
    output: str | None
    size_bytes: int
    errors: tuple[SessionError, ...]


def timelines(
    store: Store, key: str | None, flags: TimelineFlags | None = None
) -> tuple[Timelines, tuple[Timeline, ...]]:
    """The timeline of a session, or without a key of every session that has something to show.

    The second value has the same for drawing. Of all sessions, one that cannot be read is in `errors`.
    """
    found, errors = _read(store, key, flags or TimelineFlags())
    return Timelines(timelines=tuple(map(_view, found)), errors=errors), found


def timeline_picture(
    store: Store,
    key: str | None,
    flags: TimelineFlags | None = None,
    *,
    output: Path | None,
    force: bool = False,
) -> tuple[Pictured, bytes]:
    """The same as an SVG picture, and its bytes. With `output` it is written there: whole or not at all, durable,
    readable only by its owner, and over an existing file only with `force`."""
    found, errors = _read(store, key, flags or TimelineFlags())
    content = picture(found).encode()
    if output is not None:
        write_file(output, content, force=force)
    pictured = Pictured(
        sessions=tuple(timeline.session.key for timeline in found),
        rows=sum(len(timeline.rows) for timeline in found),
        output=None if output is None else str(output),
        size_bytes=len(content),
        errors=errors,
    )
    return pictured, content


def _read(
    store: Store, key: str | None, flags: TimelineFlags
) -> tuple[tuple[Timeline, ...], tuple[SessionError, ...]]:
    if key is not None:
        return (_timeline(store.get(key), flags),), ()
    found: list[Timeline] = []
    errors: list[SessionError] = []
    for info in list(store.sessions()):
        try:
            found.append(_timeline(Session(store.engine, info, store.settings), flags))
        except InvalidInput:
            raise
        except NotFound:
            continue  # it has no such branch or tag, or was deleted meanwhile
        except StepkeepError as exc:
            errors.append(SessionError(session=info.key, code=exc.code, message=exc.message))
    if not found and not errors and (flags.branch or flags.tag):
        raise _nowhere(flags)
    if flags.since is not None:
        found = [timeline for timeline in found if timeline.entries]
    return tuple(found), tuple(errors)


def _timeline(session: Session, flags: TimelineFlags) -> Timeline:
    return session.timeline(
        since=flags.since, branch=flags.branch, tag=flags.tag, limit=flags.limit, fold=not flags.is_full
    )


def _nowhere(flags: TimelineFlags) -> NotFound:
    wanted = [f"branch {flags.branch!r}"] if flags.branch else []
    wanted += [f"a checkpoint with tag {flags.tag!r}"] if flags.tag else []
    code = "branch_not_found" if flags.branch else "checkpoint_not_found"
    return NotFound(f"no session has {' and '.join(wanted)}", code=code, branch=flags.branch)


# --- as JSON ---------------------------------------------------------------------------------------------------


def _view(timeline: Timeline) -> TimelineView:
    session = timeline.session
    return TimelineView(
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


def _row(row: Row, key: str) -> RowView:
    match row:
        case Entry():
            return EntryRow(
                lane=row.lane,
                links=row.links,
                checkpoint=checkpoint_view(key, row.header, row.stored_bytes),
                heads=row.heads,
                forks=row.forks,
                is_current=row.is_current,
                is_match=row.is_match,
            )
        case Fold():
            return _fold(row)
        case Gap():
            return GapRow(
                lane=row.lane,
                links=row.links,
                count=row.count,
                first_seq=row.first_seq,
                last_seq=row.last_seq,
            )
        case Damaged():
            return DamagedRow(lane=row.lane, links=row.links, id=row.id, seq=row.seq, branch=row.branch)
        case Rest():
            return RestRow(lane=row.lane, links=row.links, count=row.count)


def _fold(fold: Fold) -> FoldRow:
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
