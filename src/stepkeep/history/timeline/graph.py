"""From headers and branches to a graph. Pure, and never in a circle: every edge leads to a smaller seq.

What was pruned still shows: a checkpoint whose parent is gone is connected with the newest one before it on its
line, over a point that stands for what is missing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from stepkeep.model import Branch, Header
from stepkeep.storage.port import HeaderRow


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
    lines = _Lines(points, branches)
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


class _Lines:
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


def _join(point: Point, by_id: dict[str, Point], lines: _Lines) -> None:
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


def _hangs(point: Point, lines: _Lines) -> bool:
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
