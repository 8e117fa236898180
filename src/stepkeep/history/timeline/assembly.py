"""Reading the timeline of a session: headers, branches and sizes, never a state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput, NotFound, StepkeepError
from stepkeep.history.timeline.layout import Point, RowGroup, View, choose, connect, lay, width
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
from stepkeep.model import Branch, Header, SessionInfo
from stepkeep.storage.port import HeaderQuery, HeaderRow

MAX_NAMED = 10
"""How many names an error lists."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoints are wanted. Conditions unite with *and*."""

    since_us: int | None = None
    branch: str | None = None
    tag: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.since_us is None and self.branch is None and self.tag is None

    def matches(self, header: Header) -> bool:
        return (
            (self.since_us is None or header.time_us >= self.since_us)
            and (self.branch is None or header.branch == self.branch)
            and (self.tag is None or self.tag in header.tags)
        )


def read_timeline(
    engine: Engine,
    session: SessionInfo,
    *,
    wanted: Filter | None = None,
    fold: bool = False,
    limit: int | None = None,
) -> Timeline:
    """The timeline of a session as it is stored now. Damaged headers are logged and have rows of their own.

    Raises:
        NotFound: the session has no such branch, or no checkpoint with that tag; the message says what it has.
        InvalidInput: a limit below 1.
    """
    if limit is not None and limit < 1:
        raise InvalidInput("limit counts rows: 1 or more", code="invalid_option")
    wanted = wanted or Filter()
    branches = engine.backend.branches(session.uid)
    broken: list[tuple[HeaderRow, StepkeepError]] = []
    headers = list(engine.headers(HeaderQuery(session=session.uid), broken=broken))
    _check(wanted, session, branches, headers)
    stored: dict[str, int] = {}
    for body in engine.backend.bodies(session.uid) if headers else ():
        stored[body.checkpoint] = stored.get(body.checkpoint, 0) + body.stored_size
    return build(
        session,
        branches,
        headers,
        damaged=[row for row, _ in broken],
        stored=stored,
        wanted=wanted,
        fold=fold,
        limit=limit,
    )


def build(
    session: SessionInfo,
    branches: Sequence[Branch],
    headers: Sequence[Header],
    *,
    damaged: Sequence[HeaderRow] = (),
    stored: dict[str, int] | None = None,
    wanted: Filter | None = None,
    fold: bool = False,
    limit: int | None = None,
) -> Timeline:
    """The timeline of these headers. Pure."""
    wanted, stored = wanted or Filter(), stored or {}
    points = connect(headers, damaged=damaged, branches=branches, gaps=session.gaps)
    view = choose(
        points,
        matches=None if wanted.is_empty else wanted.matches,
        min_seq=_min_seq(wanted, headers),
        heads=[branch.head for branch in branches if branch.head is not None],
        fold=fold,
        limit=limit,
    )
    rows, lanes = _rows(view, session, branches, stored)
    return Timeline(
        session=session,
        branches=tuple(branches),
        rows=rows,
        lanes=lanes,
        total=len(headers),
        left_out=view.left_out,
        pruned=sum(last - first + 1 for first, last in session.gaps),
        damaged=tuple(row.id for row in damaged),
        size_bytes=sum(header.size_bytes for header in headers),
        stored_bytes=sum(stored.values()),
    )


def _check(
    wanted: Filter, session: SessionInfo, branches: Sequence[Branch], headers: Sequence[Header]
) -> None:
    if wanted.branch is not None and all(branch.name != wanted.branch for branch in branches):
        raise NotFound(
            f"session {session.key!r} has no branch {wanted.branch!r}: "
            f"there {_listed('is', 'are', [branch.name for branch in branches])}",
            code="branch_not_found",
            session=session.key,
            branch=wanted.branch,
        )
    if wanted.tag is not None and all(wanted.tag not in header.tags for header in headers):
        tags = sorted({tag for header in headers for tag in header.tags})
        known = f"its tags are {_listed('', '', tags)}" if tags else "none of its checkpoints has a tag"
        raise NotFound(
            f"session {session.key!r} has no checkpoint with tag {wanted.tag!r}: {known}",
            code="checkpoint_not_found",
            session=session.key,
        )


def _listed(one: str, many: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    verb = one if len(names) == 1 else many
    return f"{verb} {', '.join(names[:MAX_NAMED])}{more}".strip()


def _min_seq(wanted: Filter, headers: Iterable[Header]) -> int:
    """The place where a time cuts a history off. By seq: a clock that jumped must not tear it apart."""
    if wanted.since_us is None:
        return 0
    newer = (header.seq for header in headers if header.time_us >= wanted.since_us)
    return min(newer, default=max((header.seq for header in headers), default=0) + 1)


def _rows(
    view: View, session: SessionInfo, branches: Sequence[Branch], stored: dict[str, int]
) -> tuple[tuple[Row, ...], int]:
    """The rows in their lanes, and how many lanes there are."""
    index = {point: at for at, group in enumerate(view.groups) for point in group.points}
    links = [_links(group, index) for group in view.groups]
    current = next((branch.head for branch in branches if branch.name == session.branch), None)
    names = _Names(branches, current)
    rows = [_row(group, names, stored) for group in view.groups]
    first = next(
        (at for at, row in enumerate(rows) if isinstance(row, CheckpointNode) and row.is_current), None
    )
    places = lay(links, first=first)
    placed = (
        msgspec.structs.replace(row, lane=place.lane, links=own)
        for row, place, own in zip(rows, places, links, strict=True)
    )
    return tuple(placed), width(places)


def _links(group: RowGroup, index: dict[Point, int]) -> tuple[NodeLink, ...]:
    if group.is_rest:
        return ()
    found: dict[int, bool] = {}
    for edge in group.points[-1].edges:
        if (row := index.get(edge.older)) is not None:
            found[row] = found.get(row, True) and edge.is_broken
    return tuple(NodeLink(row, is_broken) for row, is_broken in found.items())


class _Names:
    """The names of branches by the checkpoint they stand at, and by the one they began at."""

    def __init__(self, branches: Sequence[Branch], current: str | None) -> None:
        self.current = current
        self.heads: dict[str, list[str]] = {}
        self.forks: dict[str, list[str]] = {}
        for branch in branches:
            if branch.head is not None:
                self.heads.setdefault(branch.head, []).append(branch.name)
            if branch.fork is not None:
                self.forks.setdefault(branch.fork, []).append(branch.name)


def _row(group: RowGroup, names: _Names, stored: dict[str, int]) -> Row:
    newest = group.points[0]
    if group.is_rest:
        return RestNode(count=len(group.headers))
    if group.is_fold:
        return _fold(group, stored)
    if newest.header is not None:
        id = newest.header.id
        return CheckpointNode(
            header=newest.header,
            stored_bytes=stored.get(id, 0),
            heads=tuple(names.heads.get(id, ())),
            forks=tuple(names.forks.get(id, ())),
            is_current=id == names.current,
            is_match=group.is_match,
        )
    if newest.damaged is not None:
        return DamagedNode(id=newest.damaged, seq=newest.seq, branch=newest.branch)
    return GapNode(count=newest.pruned, first_seq=newest.first_seq, last_seq=newest.seq)


def _fold(group: RowGroup, stored: dict[str, int]) -> FoldNode:
    headers = group.headers
    steps = [header.step for header in headers if header.step is not None]
    times = [header.time_us for header in headers]
    return FoldNode(
        count=len(headers),
        branch=group.points[0].branch,
        first_seq=headers[-1].seq,
        last_seq=headers[0].seq,
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        first_us=min(times),
        last_us=max(times),
        size_bytes=sum(header.size_bytes for header in headers),
        stored_bytes=sum(stored.get(header.id, 0) for header in headers),
        pruned=sum(point.pruned for point in group.points),
        damaged=sum(point.damaged is not None for point in group.points),
        is_match=group.is_match,
    )
