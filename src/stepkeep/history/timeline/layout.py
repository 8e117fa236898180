"""From headers and branches to a graph, from the graph to rows, and from rows to lanes. Pure.

The graph has no circle: every edge leads to a smaller seq. What was pruned still shows: a checkpoint whose parent is
gone is connected with the newest one before it on its line, over a point that stands for what is missing. A lane
stands for one row that is still to come; lines that lead to the same row join as soon as they can.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

import msgspec

from stepkeep.history.timeline.rows import NodeLink, is_plain
from stepkeep.model import Branch, Header
from stepkeep.storage.port import HeaderRow

# --- the graph ---------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Point:
    """A header, a damaged header, or a number of pruned ones. `seq` is the highest it stands for."""

    seq: int
    branch: str
    header: Header | None = None
    damaged: str | None = None
    pruned: int = 0
    first_seq: int = 0
    edges: list[Edge] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Edge:
    """A line to an older point, broken where others were between."""

    older: Point
    is_broken: bool = False


def connect(
    headers: Iterable[Header],
    *,
    damaged: Iterable[HeaderRow] = (),
    branches: Iterable[Branch] = (),
    gaps: Iterable[tuple[int, int]] = (),
) -> list[Point]:
    """The points of a session with their edges, newest first."""
    points = [Point(header.seq, header.branch, header=header) for header in headers]
    points += [Point(row.seq, row.branch, damaged=row.id) for row in damaged]
    points.sort(key=lambda point: point.seq, reverse=True)
    lines = _PointsByBranch(points, branches)
    by_id = {_id(point): point for point in points}
    loose: list[Point] = []
    for point in points:
        _join(point, by_id, lines)
        if any(edge.is_broken for edge in point.edges) or _hangs(point, lines):
            loose.append(point)
    points += _fill(loose, sorted(gaps))
    points.sort(key=lambda point: point.seq, reverse=True)
    return points


def _id(point: Point) -> str:
    return point.header.id if point.header is not None else point.damaged or ""


class _PointsByBranch:
    """The points of every branch, to find the one before a place on a line."""

    def __init__(self, points: Sequence[Point], branches: Iterable[Branch]) -> None:
        self._records = {branch.name: branch for branch in branches}
        self._points: dict[str, list[Point]] = {}
        for point in reversed(points):
            self._points.setdefault(point.branch, []).append(point)

    def before(self, branch: str, seq: int) -> Point | None:
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

    def fork_of(self, point: Point) -> Branch | None:
        """The record of a point's branch, if that was forked and begins with it."""
        record = self._records.get(point.branch)
        is_first = self._points[point.branch][0] is point
        return record if is_first and record is not None and record.fork_branch is not None else None


def _join(point: Point, by_id: dict[str, Point], lines: _PointsByBranch) -> None:
    """Give a point its edges: to the parents that are stored, and to the newest before it if the first is not."""
    parents = () if point.header is None else tuple(dict.fromkeys(point.header.parents))
    found = {parent: by_id[parent] for parent in parents if parent in by_id}
    point.edges = [Edge(older) for older in found.values() if older.seq < point.seq]
    fork = lines.fork_of(point)
    if point.header is not None and not parents and fork is None:
        return  # it says itself that nothing came before
    if parents and point.edges and point.edges[0].older is found.get(parents[0]):
        return
    older = lines.before(point.branch, point.seq)
    if older is not None and all(edge.older is not older for edge in point.edges):
        is_the_fork = not parents and fork is not None and older.seq == fork.fork_seq
        point.edges.insert(0, Edge(older, is_broken=not is_the_fork))


def _hangs(point: Point, lines: _PointsByBranch) -> bool:
    """Whether something came before a point of which nothing is left."""
    if point.edges:
        return False
    return point.header is None or bool(point.header.parents) or lines.fork_of(point) is not None


def _fill(loose: Iterable[Point], gaps: Sequence[tuple[int, int]]) -> Iterator[Point]:
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


def _floor(point: Point) -> int:
    """The seq that the broken edge of a point leads down to; 0 if it leads nowhere."""
    return next((edge.older.seq for edge in point.edges if edge.is_broken), 0)


def _insert(point: Point, taken: Sequence[tuple[int, int]]) -> Point:
    """Lead the broken edge of a point, which is its first, over a point for what was pruned."""
    gap = Point(
        taken[-1][1],
        point.branch,
        pruned=sum(last - first + 1 for first, last in taken),
        first_seq=taken[0][0],
        edges=point.edges[:1],
    )
    point.edges[:1] = [Edge(gap, is_broken=True)]
    return gap


# --- rows: which points are shown, folded or left out ------------------------------------------------------------

FOLD_ABOVE: Final = 30
"""So many rows are shown as they are."""

MIN_RUN: Final = 3
"""Fewer plain ones in a row are not worth a fold."""


@dataclass(slots=True, eq=False)
class RowGroup:
    """What one row shows: one point, or with `is_fold` those of one branch that follow each other, newest first.
    `is_rest` is the last row."""

    points: list[Point]
    is_match: bool = True
    is_fold: bool = False
    is_rest: bool = False

    @property
    def headers(self) -> list[Header]:
        return [point.header for point in self.points if point.header is not None]


@dataclass(slots=True)
class View:
    """The groups newest first, and how many checkpoints are in none of them."""

    groups: list[RowGroup] = field(default_factory=list)
    left_out: int = 0


Match = Callable[[Header], bool]


def choose(
    points: Sequence[Point],
    *,
    matches: Match | None = None,
    min_seq: int = 0,
    heads: Iterable[str] = (),
    fold: bool = False,
    limit: int | None = None,
) -> View:
    """Group the points of a session into rows.

    With `matches`, only what matches and what that descends from is shown, and the latter folded. What has a seq
    below `min_seq`, or is beyond the limit, is counted in one last row.
    """
    older = [point for point in points if point.seq < min_seq]
    newer = [point for point in points if point.seq >= min_seq]
    wanted = set(newer) if matches is None else _matching(newer, matches)
    shown = newer if matches is None else _with_ancestors(newer, wanted)
    groups = _groups(shown, _Folding(shown, wanted, heads, fold=fold))
    if limit is not None:
        older = [point for group in groups[limit:] for point in group.points] + older
        del groups[limit:]
    if any(point.header for point in older):
        groups.append(RowGroup(older, is_rest=True))
    return View(groups, _count(newer) - _count(shown))


def _count(points: Iterable[Point]) -> int:
    return sum(point.header is not None for point in points)


def _matching(points: Sequence[Point], matches: Match) -> set[Point]:
    """The points that match, each with what is pruned right below it."""
    wanted = {point for point in points if point.header is not None and matches(point.header)}
    return wanted | {edge.older for point in wanted for edge in point.edges if edge.older.pruned}


def _with_ancestors(points: Sequence[Point], wanted: set[Point]) -> list[Point]:
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
        self, shown: Sequence[Point], wanted: set[Point], heads: Iterable[str], *, fold: bool
    ) -> None:
        self.wanted = wanted
        self._shown = set(shown)
        self._heads = set(heads)
        self._folds_plain = fold and len(wanted) > FOLD_ABOVE
        self._children: dict[Point, int] = {}
        for point in shown:
            for edge in point.edges:
                self._children[edge.older] = self._children.get(edge.older, 0) + 1

    def allows(self, point: Point) -> bool:
        if self._children.get(point, 0) > 1 or len(point.edges) > 1:
            return False
        if point not in self.wanted:
            return True
        return self._folds_plain and (point.header is None or self._is_inside(point, point.header))

    def _is_inside(self, point: Point, header: Header) -> bool:
        is_newest = not self._children.get(point)
        is_oldest = not point.edges or not (point.edges[0].older.edges or point.edges[0].older.header)
        return not is_newest and not is_oldest and header.id not in self._heads and is_plain(header)

    def run_from(self, newest: Point) -> list[Point]:
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


def _groups(shown: Sequence[Point], folding: _Folding) -> list[RowGroup]:
    groups: list[RowGroup] = []
    seen: set[Point] = set()
    for point in shown:
        if point in seen:
            continue
        run = folding.run_from(point)
        seen.update(run)
        is_match = point in folding.wanted
        is_fold = folding.allows(point) and _count(run) >= (MIN_RUN if is_match else 1)
        groups += (
            [RowGroup(run, is_match, is_fold)] if is_fold else [RowGroup([each], is_match) for each in run]
        )
    groups.sort(key=lambda group: group.points[0].seq, reverse=True)
    return groups


# --- lanes: where lines run, and how they move from one row to the next ------------------------------------------


class LaneChange(msgspec.Struct, frozen=True):
    """A line that changes its lane below a row."""

    source: int
    target: int
    is_broken: bool = False


class LanePosition(msgspec.Struct, frozen=True):
    """The lane of a row, whether it goes on below (None: it does not, else whether it is broken), and what moves."""

    lane: int
    below: bool | None = None
    moves: tuple[LaneChange, ...] = ()


class Strip(msgspec.Struct, frozen=True):
    """A row as it is drawn: the column of its mark, the lines through it (column -> broken), and those below it.

    `lines` are vertical and continue; `moves` run from one column to another before the next row.
    """

    column: int
    lines: dict[int, bool]
    below: dict[int, bool]
    moves: tuple[LaneChange, ...]


def lay(links: Sequence[Sequence[NodeLink]], *, first: int | None = None) -> list[LanePosition]:
    """A place for each row. Lane 0 is kept for the line that begins with the row `first`."""
    lanes = _Lanes()
    waiting: dict[int, _OpenLine] = {} if first is None else {first: _OpenLine(lanes.take())}
    return [_place(at, own, waiting, lanes) for at, own in enumerate(links)]


class _OpenLine(NamedTuple):
    """A line under way, in its lane."""

    lane: int
    is_broken: bool = False


class _Lanes:
    """Free lanes, the leftmost first. Those given back are free from the next row on, or from the one after it."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._returned: list[int] = []
        self._resting: list[int] = []
        self._count = 0

    def take(self) -> int:
        if self._free:
            return heappop(self._free)
        self._count += 1
        return self._count - 1

    def give_back(self, lane: int, *, must_rest: bool = False) -> None:
        (self._resting if must_rest else self._returned).append(lane)

    def settle(self) -> None:
        for lane in self._returned:
            heappush(self._free, lane)
        self._returned, self._resting = self._resting, []


def _place(at: int, links: Sequence[NodeLink], waiting: dict[int, _OpenLine], lanes: _Lanes) -> LanePosition:
    """The place of the next row, where `waiting` are the lines that lead to later ones."""
    line = waiting.pop(at, None)
    lane = lanes.take() if line is None else line.lane
    below: bool | None = None
    moves: list[LaneChange] = []
    for link in links:
        other = waiting.get(link.row)
        if below is None and (other is None or other.lane > lane):
            waiting[link.row], below = _OpenLine(lane, link.is_broken), link.is_broken
            if other is not None:
                moves.append(LaneChange(other.lane, lane, other.is_broken))
                lanes.give_back(other.lane)
        else:
            if other is None:
                other = waiting[link.row] = _OpenLine(lanes.take(), link.is_broken)
            moves.append(LaneChange(lane, other.lane, link.is_broken))
    if below is None:
        # Marks right below each other would look connected.
        lanes.give_back(lane, must_rest=not moves)
    lanes.settle()
    return LanePosition(lane, below, tuple(moves))


def width(places: Iterable[LanePosition]) -> int:
    """How many lanes there are side by side, those included that only lead past."""
    used = (max([place.lane, *(move.target for move in place.moves)]) for place in places)
    return max(used, default=-1) + 1


def strips(places: Iterable[LanePosition], *, columns: int) -> Iterator[Strip]:
    """The rows as they are drawn in so many columns; lanes that do not fit share the last one."""
    active: dict[int, bool] = {}
    crowd = _Crowd(columns - 1)
    for place in places:
        column = min(place.lane, columns - 1)
        lines = {**crowd.lines(active), column: active.get(place.lane, False)}
        crowd.put(active, place.lane, place.below)
        for move in place.moves:
            if move.source != place.lane:
                crowd.put(active, move.source, None)
        for move in place.moves:
            if move.target not in active:
                crowd.put(active, move.target, move.is_broken)
        yield Strip(column, lines, crowd.lines(active), tuple(_squeezed(place.moves, columns - 1)))


class _Crowd:
    """Counts the lines that share the last column, so that a row costs no more than there are columns."""

    def __init__(self, last: int) -> None:
        self._last = last
        self._count = 0

    def put(self, active: dict[int, bool], lane: int, line: bool | None) -> None:
        if lane >= self._last:
            self._count += (line is not None) - (lane in active)
        if line is None:
            active.pop(lane, None)
        else:
            active[lane] = line

    def lines(self, active: dict[int, bool]) -> dict[int, bool]:
        found = {lane: active[lane] for lane in range(self._last) if lane in active}
        if self._count:
            found[self._last] = self._count > 1 or active.get(self._last, False)
        return found


def _squeezed(moves: Iterable[LaneChange], last: int) -> Iterator[LaneChange]:
    for move in moves:
        source, target = min(move.source, last), min(move.target, last)
        if source != target:
            yield LaneChange(source, target, move.is_broken)
