"""Lanes: where the lines of a timeline run, and how they move from one row to the next. Pure.

A lane stands for one row that is still to come; lines that lead to the same row join as soon as they can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, overload

from stepkeep.history.documents import copied
from stepkeep.history.timeline import (
    CheckpointNode,
    DrawnRow,
    LaneMove,
    Node,
    NodeLink,
    Timeline,
    TimelinePage,
    first_row,
    node_text,
)


class LaneChange(NamedTuple):
    """A line that changes its lane below a row."""

    source: int
    target: int
    is_broken: bool = False


class LanePosition(NamedTuple):
    """The lane of a row, whether it goes on below (None: it does not, else whether it is broken), and what moves."""

    lane: int
    below: bool | None = None
    moves: tuple[LaneChange, ...] = ()


class Strip(NamedTuple):
    """A row as it is drawn: the column of its mark, the lines through it (column -> broken), and those below it.

    `lines` are vertical and continue; `moves` run from one column to another before the next row.
    """

    column: int
    lines: dict[int, bool]
    below: dict[int, bool]
    moves: tuple[LaneChange, ...]


def strips_of(timeline: Timeline, *, most: int) -> tuple[int, list[Strip]]:
    """How many columns the graph takes, at most so many and at least one, and its rows as they are drawn in them."""
    return _drawn_in(lay([row.links for row in timeline.rows], first=first_row(timeline.rows)), most)


def _drawn_in(positions: Sequence[LanePosition], most: int) -> tuple[int, list[Strip]]:
    used = (max([each.lane, *(move.target for move in each.moves)]) for each in positions)
    columns = min(max(used, default=0) + 1, most)
    return columns, list(_strips(positions, columns))


class TimelinePages(Sequence[TimelinePage]):
    """The rows of a timeline as they are drawn, so many a page; at least one page. `timeline` itself has no rows:
    `rows` gives those of a page when it is looked at."""

    def __init__(
        self,
        timeline: Timeline,
        rows: Callable[[slice], Iterable[Node]],
        positions: Sequence[LanePosition],
        *,
        size: int,
        most: int,
    ) -> None:
        self._timeline = timeline
        self._rows = rows
        self._size = size
        self._lanes, self._strips = _drawn_in(positions, most)

    def __len__(self) -> int:
        return max(1, -(-len(self._strips) // self._size))

    @overload
    def __getitem__(self, at: int) -> TimelinePage: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[TimelinePage]: ...

    def __getitem__(self, at: int | slice) -> TimelinePage | Sequence[TimelinePage]:
        if isinstance(at, slice):
            return [self[each] for each in range(len(self))[at]]
        start = range(len(self))[at] * self._size
        return copied(
            TimelinePage,
            self._timeline,
            lanes=self._lanes,
            rows=len(self._strips),
            start=start,
            drawn=tuple(self._drawn(start)),
        )

    def _drawn(self, start: int) -> Iterator[DrawnRow]:
        came = self._strips[start - 1].below if start else {}
        has_branches = len(self._timeline.branches) > 1
        shown = slice(start, start + self._size)
        for row, strip in zip(self._rows(shown), self._strips[shown], strict=True):
            yield _drawn(row, strip, came, names_branch=has_branches)
            came = strip.below


def _drawn(row: Node, strip: Strip, came: dict[int, bool], *, names_branch: bool) -> DrawnRow:
    return DrawnRow(
        node=row,
        mark=row.mark,
        lane=strip.column,
        above=tuple(came.items()),
        below=tuple(strip.below.items()),
        moves=tuple(LaneMove(*move) for move in strip.moves),
        text=None if isinstance(row, CheckpointNode) else node_text(row, names_branch=names_branch),
    )


def lay(links: Sequence[Sequence[NodeLink]], *, first: int | None) -> list[LanePosition]:
    """A position for each row. Lane 0 is kept for the line that begins with the row `first`."""
    lanes = _Lanes()
    waiting: dict[int, _OpenLine] = {} if first is None else {first: _OpenLine(lanes.take())}
    return [_position(at, own, waiting, lanes) for at, own in enumerate(links)]


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


def _position(
    at: int, links: Sequence[NodeLink], waiting: dict[int, _OpenLine], lanes: _Lanes
) -> LanePosition:
    """The position of the next row, where `waiting` are the lines that lead to later ones."""
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


def _strips(positions: Iterable[LanePosition], columns: int) -> Iterator[Strip]:
    """The rows as they are drawn in so many columns; lanes that do not fit share the last one."""
    active: dict[int, bool] = {}
    crowd = _Crowd(columns - 1)
    for each in positions:
        column = min(each.lane, columns - 1)
        lines = {**crowd.lines(active), column: active.get(each.lane, False)}
        crowd.put(active, each.lane, each.below)
        for move in each.moves:
            if move.source != each.lane:
                crowd.put(active, move.source, None)
        for move in each.moves:
            if move.target not in active:
                crowd.put(active, move.target, move.is_broken)
        yield Strip(column, lines, crowd.lines(active), tuple(_squeezed(each.moves, columns - 1)))


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
