"""Reading the timeline of a session: from headers and branches to a graph, and from the graph to rows.

The graph has no circle: every edge leads to a smaller seq. What was pruned still shows: a checkpoint whose parent is
gone is connected with the newest one before it on its line, over a point that stands for what is missing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput, NotFound, StepkeepError
from stepkeep.history.branches import find as find_branch
from stepkeep.history.branches import listed
from stepkeep.history.documents import checkpoint_info, copied
from stepkeep.history.timeline import (
    BranchMark,
    CheckpointNode,
    DamagedNode,
    FoldNode,
    GapNode,
    Node,
    NodeLink,
    RestNode,
    Timeline,
    Timelines,
)
from stepkeep.history.timeline.lanes import TimelinePages, lay
from stepkeep.model import Branch, Header, SessionError, SessionInfo, Status, TriggerKind, from_us
from stepkeep.storage.port import HeaderQuery, HeaderRow

FOLD_ABOVE: Final = 30
"""So many rows are shown as they are."""

MIN_RUN: Final = 3
"""Fewer plain ones in a row are not worth a fold."""

_AUTOMATIC: Final = frozenset({TriggerKind.AUTO, TriggerKind.TIMER})


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoints are wanted. Conditions unite with *and*."""

    since_us: int | None = None
    branch: str | None = None
    tag: str | None = None

    def matches(self, header: Header) -> bool:
        return (
            (self.since_us is None or header.time_us >= self.since_us)
            and (self.branch is None or header.branch == self.branch)
            and (self.tag is None or self.tag in header.tags)
        )


ALL: Final = Filter()


def read_timeline(
    engine: Engine,
    session: SessionInfo,
    *,
    wanted: Filter = ALL,
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
    return build(session, **_read(engine, session, wanted), wanted=wanted, fold=fold, limit=limit)


def read_pages(
    engine: Engine, session: SessionInfo, *, wanted: Filter = ALL, fold: bool = False, size: int, lanes: int
) -> TimelinePages:
    """The timeline of a session as it is drawn in at most so many lanes, `size` rows a page. Only the pages that are
    looked at are made into values: a session may have any number of rows.

    Raises:
        NotFound: as `read_timeline`.
    """
    timeline, laid = _laid_out(session, **_read(engine, session, wanted), wanted=wanted, fold=fold)
    return TimelinePages(timeline, laid.rows, laid.positions, size=size, most=lanes)


def _read(engine: Engine, session: SessionInfo, wanted: Filter) -> dict[str, Any]:
    """What a timeline is built from."""
    if wanted.branch is not None:
        find_branch(engine, session.uid, wanted.branch)
    branches = engine.backend.branches(session.uid)
    broken: list[tuple[HeaderRow, StepkeepError]] = []
    headers = list(engine.headers(HeaderQuery(session=session.uid), broken=broken))
    if wanted.tag is not None and all(wanted.tag not in header.tags for header in headers):
        tags = sorted({tag for header in headers for tag in header.tags})
        known = f"its tags are {listed(tags)}" if tags else "none of its checkpoints has a tag"
        raise NotFound(
            f"session {session.key!r} has no checkpoint with tag {wanted.tag!r}: {known}",
            code="checkpoint_not_found",
            session=session.key,
        )
    stored: Counter[str] = Counter()
    for body in engine.backend.bodies(session.uid) if headers else ():
        stored[body.checkpoint] += body.stored_size
    damaged = [row for row, _ in broken]
    return {"branches": branches, "headers": headers, "damaged": damaged, "stored": stored}


def read_timelines(sessions: Iterable[SessionInfo], read: Callable[[SessionInfo], Timeline]) -> Timelines:
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


def build(
    session: SessionInfo,
    branches: Sequence[Branch],
    headers: Sequence[Header],
    *,
    damaged: Sequence[HeaderRow] = (),
    stored: Counter[str] | None = None,
    wanted: Filter = ALL,
    fold: bool = False,
    limit: int | None = None,
) -> Timeline:
    """The timeline of these headers. Pure.

    With a filter, only what matches and what that descends from is shown, and the latter folded. What came before
    `since_us`, or is beyond the limit, is counted in one last row.
    """
    timeline, laid = _laid_out(
        session,
        branches,
        headers,
        damaged=damaged,
        stored=stored,
        wanted=wanted,
        fold=fold,
        limit=limit,
    )
    return msgspec.structs.replace(timeline, rows=tuple(laid.rows()))


def _laid_out(
    session: SessionInfo,
    branches: Sequence[Branch],
    headers: Sequence[Header],
    *,
    damaged: Sequence[HeaderRow],
    stored: Counter[str] | None,
    wanted: Filter,
    fold: bool,
    limit: int | None = None,
) -> tuple[Timeline, _LaidRows]:
    """The timeline without its rows, and these."""
    stored = Counter() if stored is None else stored
    points = _connect(headers, damaged, branches, session.gaps)
    min_seq = _min_seq(wanted, headers)
    older = [point for point in points if point.seq < min_seq]
    newer = [point for point in points if point.seq >= min_seq]
    matching = set(newer) if wanted == ALL else _matching(newer, wanted)
    shown = newer if wanted == ALL else _with_ancestors(newer, matching)
    groups = _groups(shown, _Folding(shown, matching, branches, fold=fold))
    if limit is not None:
        older = [point for group in groups[limit:] for point in group.points] + older
        del groups[limit:]
    if any(point.header for point in older):
        groups.append(_RowGroup(older, is_rest=True))
    timeline = Timeline(
        session=session.key,
        status=session.status,
        branch=session.branch,
        total=len(headers),
        left_out=_count(newer) - _count(shown),
        pruned=sum(last - first + 1 for first, last in session.gaps),
        damaged=tuple(row.id for row in damaged),
        size_bytes=sum(header.size_bytes for header in headers),
        stored_bytes=stored.total(),
        branches=tuple(copied(BranchMark, each, is_current=each.name == session.branch) for each in branches),
        rows=(),
    )
    return timeline, _LaidRows(groups, _Names(session, branches), stored)


def _min_seq(wanted: Filter, headers: Iterable[Header]) -> int:
    """Where a time cuts a history off. By seq: a clock that jumped must not tear it apart."""
    if wanted.since_us is None:
        return 0
    newer = (header.seq for header in headers if header.time_us >= wanted.since_us)
    return min(newer, default=max((header.seq for header in headers), default=0) + 1)


# --- the graph ---------------------------------------------------------------------------------------------------


class _Point(msgspec.Struct, eq=False):
    """A header, a damaged header, or a number of pruned ones. `seq` is the highest it stands for."""

    seq: int
    branch: str
    header: Header | None = None
    damaged: str | None = None
    pruned: int = 0
    first_seq: int = 0
    edges: list[_Edge] = []


class _Edge(msgspec.Struct, eq=False):
    """A line to an older point, broken where others were between."""

    older: _Point
    is_broken: bool = False


def _connect(
    headers: Iterable[Header],
    damaged: Iterable[HeaderRow],
    branches: Iterable[Branch],
    gaps: Iterable[tuple[int, int]],
) -> list[_Point]:
    points = [_Point(header.seq, header.branch, header=header) for header in headers]
    points += [_Point(row.seq, row.branch, damaged=row.id) for row in damaged]
    points.sort(key=lambda point: point.seq, reverse=True)
    lines = _PointsByBranch(points, branches)
    by_id = {_id(point): point for point in points}
    loose: list[_Point] = []
    for point in points:
        _join(point, by_id, lines)
        if any(edge.is_broken for edge in point.edges) or _hangs(point, lines):
            loose.append(point)
    points += _fill(loose, sorted(gaps))
    points.sort(key=lambda point: point.seq, reverse=True)
    return points


def _id(point: _Point) -> str:
    return point.header.id if point.header is not None else point.damaged or ""


class _PointsByBranch:
    """The points of every branch, to find the one before a seq on a line."""

    def __init__(self, points: Sequence[_Point], branches: Iterable[Branch]) -> None:
        self._records = {branch.name: branch for branch in branches}
        self._points: dict[str, list[_Point]] = {}
        for point in reversed(points):
            self._points.setdefault(point.branch, []).append(point)

    def before(self, branch: str, seq: int) -> _Point | None:
        """The newest point below a seq on a branch, or on what it was forked from."""
        seen: set[str] = set()
        while branch not in seen:
            seen.add(branch)
            own = self._points.get(branch, [])
            if at := bisect_left(own, seq, key=lambda point: point.seq):
                return own[at - 1]
            record = self._records.get(branch)
            if record is None or record.fork_branch is None:
                return None
            branch, seq = record.fork_branch, min(record.fork_seq + 1, seq)
        return None

    def fork_of(self, point: _Point) -> Branch | None:
        """The record of a point's branch, if that was forked and begins with it."""
        record = self._records.get(point.branch)
        is_first = self._points[point.branch][0] is point
        return record if is_first and record is not None and record.fork_branch is not None else None


def _join(point: _Point, by_id: dict[str, _Point], lines: _PointsByBranch) -> None:
    """Give a point its edges: to the parents that are stored, and to the newest before it if the first is not."""
    parents = () if point.header is None else tuple(dict.fromkeys(point.header.parents))
    found = {parent: by_id[parent] for parent in parents if parent in by_id}
    point.edges = [_Edge(older) for older in found.values() if older.seq < point.seq]
    fork = lines.fork_of(point)
    if point.header is not None and not parents and fork is None:
        return  # it says itself that nothing came before
    if parents and point.edges and point.edges[0].older is found.get(parents[0]):
        return
    older = lines.before(point.branch, point.seq)
    if older is not None and all(edge.older is not older for edge in point.edges):
        is_the_fork = not parents and fork is not None and older.seq == fork.fork_seq
        point.edges.insert(0, _Edge(older, is_broken=not is_the_fork))


def _hangs(point: _Point, lines: _PointsByBranch) -> bool:
    """Whether something came before a point of which nothing is left."""
    if point.edges:
        return False
    return point.header is None or bool(point.header.parents) or lines.fork_of(point) is not None


def _fill(loose: Iterable[_Point], gaps: Sequence[tuple[int, int]]) -> Iterator[_Point]:
    """Put a point for what was pruned into each broken edge. A gap counts once: on the shortest edge over it."""
    ends = [last for _, last in gaps]
    following = list(range(len(gaps) + 1))  # the next gap that is still free; paths are halved on the way

    def free(at: int) -> int:
        while following[at] != at:
            following[at] = at = following[following[at]]
        return at

    for point in sorted(loose, key=lambda point: point.seq - _floor(point)):
        at = free(bisect_left(ends, _floor(point) + 1))
        taken: list[tuple[int, int]] = []
        while at < len(gaps) and gaps[at][1] < point.seq:
            if gaps[at][0] > _floor(point):
                taken.append(gaps[at])
                following[at] = at + 1
            at = free(at + 1)
        if taken:
            yield _insert(point, taken)


def _floor(point: _Point) -> int:
    """The seq that the broken edge of a point leads down to; 0 if it leads nowhere."""
    return next((edge.older.seq for edge in point.edges if edge.is_broken), 0)


def _insert(point: _Point, taken: Sequence[tuple[int, int]]) -> _Point:
    """Lead the broken edge of a point, which is its first, over a point for what was pruned."""
    gap = _Point(
        taken[-1][1],
        point.branch,
        pruned=sum(last - first + 1 for first, last in taken),
        first_seq=taken[0][0],
        edges=point.edges[:1],
    )
    point.edges[:1] = [_Edge(gap, is_broken=True)]
    return gap


# --- rows: which points are shown, folded or left out ------------------------------------------------------------


class _RowGroup(msgspec.Struct, eq=False):
    """What one row shows: one point, or with `is_fold` those of one branch that follow each other, newest first.
    `is_rest` is the last row."""

    points: list[_Point]
    is_match: bool = True
    is_fold: bool = False
    is_rest: bool = False


def _count(points: Iterable[_Point]) -> int:
    return sum(point.header is not None for point in points)


def _matching(points: Sequence[_Point], wanted: Filter) -> set[_Point]:
    """The points that match, each with what is pruned right below it."""
    found = {point for point in points if point.header is not None and wanted.matches(point.header)}
    return found | {edge.older for point in found for edge in point.edges if edge.older.pruned}


def _with_ancestors(points: Sequence[_Point], wanted: set[_Point]) -> list[_Point]:
    """Those points, and all they descend from; newest first, so one pass finds them."""
    reached = set(wanted)
    for point in points:
        if point in reached:
            reached.update(edge.older for edge in point.edges)
    return [point for point in points if point in reached]


class _Folding:
    """Which points may disappear into a fold: not where lines meet, and of those that are wanted only plain ones
    inside a line."""

    def __init__(
        self, shown: Sequence[_Point], wanted: set[_Point], branches: Iterable[Branch], *, fold: bool
    ) -> None:
        self.wanted = wanted
        self._shown = set(shown)
        self._heads = {branch.head for branch in branches}
        self._folds_plain = fold and len(wanted) > FOLD_ABOVE
        self._children = Counter(edge.older for point in shown for edge in point.edges)

    def allows(self, point: _Point) -> bool:
        if self._children[point] > 1 or len(point.edges) > 1:
            return False
        if point not in self.wanted:
            return True
        return self._folds_plain and (point.header is None or self._is_inside(point, point.header))

    def _is_inside(self, point: _Point, header: Header) -> bool:
        is_newest = not self._children[point]
        is_oldest = not point.edges or not (point.edges[0].older.edges or point.edges[0].older.header)
        return not is_newest and not is_oldest and header.id not in self._heads and _is_plain(header)

    def run_from(self, newest: _Point) -> list[_Point]:
        """The point and those that follow it without anything between that must be seen."""
        run = [newest]
        while self.allows(run[-1]) and run[-1].edges:
            older = run[-1].edges[0].older
            is_of_one_kind = older.branch == newest.branch and (older in self.wanted) == (
                newest in self.wanted
            )
            if not is_of_one_kind or older not in self._shown or not self.allows(older):
                break
            run.append(older)
        return run


def _is_plain(header: Header) -> bool:
    """Whether a checkpoint is one of many: saved automatically, under way, not tagged."""
    return header.trigger.kind in _AUTOMATIC and header.status is Status.IN_PROGRESS and not header.tags


def _groups(shown: Sequence[_Point], folding: _Folding) -> list[_RowGroup]:
    groups: list[_RowGroup] = []
    seen: set[_Point] = set()
    for point in shown:
        if point in seen:
            continue
        run = folding.run_from(point)
        seen.update(run)
        is_match = point in folding.wanted
        is_fold = folding.allows(point) and _count(run) >= (MIN_RUN if is_match else 1)
        groups += (
            [_RowGroup(run, is_match, is_fold)] if is_fold else [_RowGroup([each], is_match) for each in run]
        )
    groups.sort(key=lambda group: group.points[0].seq, reverse=True)
    return groups


# --- the rows as values ------------------------------------------------------------------------------------------


class _LaidRows:
    """The rows in their lanes, newest first. Values are made of those that are asked for."""

    def __init__(self, groups: Sequence[_RowGroup], names: _Names, stored: Counter[str]) -> None:
        self._groups, self._names, self._stored = groups, names, stored
        index = {point: at for at, group in enumerate(groups) for point in group.points}
        self._links = [_links(group, index) for group in groups]
        first = next((at for at, group in enumerate(groups) if names.is_current(group)), None)
        self.positions = lay(self._links, first=first)

    def rows(self, shown: slice = slice(None)) -> Iterator[Node]:
        chosen = zip(self._groups[shown], self._links[shown], self.positions[shown], strict=True)
        for group, links, position in chosen:
            yield _row(group, self._names, self._stored, lane=position.lane, links=links)


def _links(group: _RowGroup, index: dict[_Point, int]) -> tuple[NodeLink, ...]:
    if group.is_rest:
        return ()
    found: dict[int, bool] = {}
    for edge in group.points[-1].edges:
        if (row := index.get(edge.older)) is not None:
            found[row] = found.get(row, True) and edge.is_broken
    return tuple(NodeLink(row, is_broken) for row, is_broken in found.items())


class _Names:
    """The names of branches by the checkpoint they stand at, and by the one they began at."""

    def __init__(self, session: SessionInfo, branches: Sequence[Branch]) -> None:
        self.session = session.key
        self.current = next((branch.head for branch in branches if branch.name == session.branch), None)
        self.heads: dict[str | None, list[str]] = {}
        self.forks: dict[str | None, list[str]] = {}
        for branch in branches:
            self.heads.setdefault(branch.head, []).append(branch.name)
            self.forks.setdefault(branch.fork, []).append(branch.name)

    def is_current(self, group: _RowGroup) -> bool:
        """Whether a row is that of the current head: its line has lane 0."""
        header = None if group.is_fold or group.is_rest else group.points[0].header
        return header is not None and header.id == self.current


def _row(
    group: _RowGroup, names: _Names, stored: Counter[str], *, lane: int, links: tuple[NodeLink, ...]
) -> Node:
    newest = group.points[0]
    if group.is_rest:
        return RestNode(lane=lane, links=links, count=_count(group.points))
    if group.is_fold:
        return _fold(group, stored, lane=lane, links=links)
    if (header := newest.header) is not None:
        return CheckpointNode(
            lane=lane,
            links=links,
            checkpoint=checkpoint_info(names.session, header, stored[header.id]),
            heads=tuple(names.heads.get(header.id, ())),
            forks=tuple(names.forks.get(header.id, ())),
            is_current=names.is_current(group),
            is_match=group.is_match,
        )
    if newest.damaged is not None:
        return DamagedNode(lane=lane, links=links, id=newest.damaged, seq=newest.seq, branch=newest.branch)
    return GapNode(
        lane=lane, links=links, count=newest.pruned, first_seq=newest.first_seq, last_seq=newest.seq
    )


def _fold(group: _RowGroup, stored: Counter[str], *, lane: int, links: tuple[NodeLink, ...]) -> FoldNode:
    headers = [point.header for point in group.points if point.header is not None]
    steps = [header.step for header in headers if header.step is not None]
    times = [header.time_us for header in headers]
    return FoldNode(
        lane=lane,
        links=links,
        count=len(headers),
        branch=group.points[0].branch,
        first_seq=headers[-1].seq,
        last_seq=headers[0].seq,
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        first_time=from_us(min(times)),
        last_time=from_us(max(times)),
        size_bytes=sum(header.size_bytes for header in headers),
        stored_bytes=sum(stored[header.id] for header in headers),
        pruned=sum(point.pruned for point in group.points),
        damaged=sum(point.damaged is not None for point in group.points),
        is_match=group.is_match,
    )
