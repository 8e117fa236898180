"""Which points get a row of their own, which are folded into one, and which are left out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from stepkeep.history.timeline.graph import Point
from stepkeep.history.timeline.model import is_plain
from stepkeep.model import Header

FOLD_ABOVE: Final = 30
"""So many rows are shown as they are."""

MIN_RUN: Final = 3
"""Fewer plain ones in a row are not worth a fold."""


@dataclass(slots=True, eq=False)
class Group:
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

    groups: list[Group] = field(default_factory=list)
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
        groups.append(Group(older, is_rest=True))
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


def _groups(shown: Sequence[Point], folding: _Folding) -> list[Group]:
    groups: list[Group] = []
    seen: set[Point] = set()
    for point in shown:
        if point in seen:
            continue
        run = folding.run_from(point)
        seen.update(run)
        is_match = point in folding.wanted
        is_fold = folding.allows(point) and _count(run) >= (MIN_RUN if is_match else 1)
        groups += [Group(run, is_match, is_fold)] if is_fold else [Group([each], is_match) for each in run]
    groups.sort(key=lambda group: group.points[0].seq, reverse=True)
    return groups
