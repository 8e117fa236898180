"""What differs between two states: changes by path, counted and summed up; and where one value changed along a branch.

Strict: `True`, `1` and `1.0` differ, so do `0.0` and `-0.0`, a list and a tuple, and one moment in two zones.
NaN equals NaN. The order of the keys of a dict does not count as a difference.

Lists whose items are dicts with ids of their own are compared by id. In other lists equal items are matched,
and what lies between two matches is compared in turn. The result is always correct and not always the smallest: the
work grows with the size of the states, never with its square.
"""

from __future__ import annotations

import difflib
import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from stepkeep.codec import exact
from stepkeep.engine import Engine, Loaded, reader
from stepkeep.errors import Corrupt, InvalidInput, NotFound, Unsupported
from stepkeep.history.changes import (
    SIGNS,
    STEPS,
    VARIABLES,
    WIDTH,
    ChangeView,
    StateChange,
    beginning_text,
    change_text,
    change_view,
    short_path,
    workflow_lines,
)
from stepkeep.history.documents import ABSENT, CheckpointInfo, copied, describe, describe_one, exact_fields
from stepkeep.history.equality import (
    CONTAINERS,
    SEQUENCES,
    Sameness,
    are_same_kinds,
    is_equal,
    is_same,
    names_of,
    token_of,
    values_by_name,
    with_room,
)
from stepkeep.history.paths import ItemById, Path, PathStep, SetMember, find, format_path, parse_path
from stepkeep.logs import Log
from stepkeep.model import STATE, Header, SessionInfo
from stepkeep.storage.port import HeaderQuery
from stepkeep.text import count, shortened

log = Log("stepkeep")

MAX_INSIDE: Final = 10
"""How many changes inside of one value are told of one checkpoint."""

ID_FIELDS: Final = ("id", "uid", "key", "step_id", "stepId", "name")


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that lead from one state to another.

    The numbers count all of them; `changes` may be only the first ones. Values are those of the states, not
    copies. `is_workflow` says that the states are those of a workflow, with variables and steps.
    """

    changes: tuple[StateChange, ...]
    added: int
    removed: int
    changed: int
    moved: int
    summary: str
    is_workflow: bool

    @property
    def total(self) -> int:
        return self.added + self.removed + self.changed + self.moved

    @property
    def is_equal(self) -> bool:
        return self.total == 0

    def lines(self, *, width: int = WIDTH) -> list[str]:
        """The changes as text, one per line, each value in about `width` characters.

        Those of a workflow stand under headings for its variables and steps. The text is plain, and the caller's to
        clean: values may hold what a terminal would act upon.
        """
        if self.is_equal:
            return ["No differences."]
        if self.is_workflow:
            texts = workflow_lines(self.changes, width)
        else:
            texts = [change.line(width=width) for change in self.changes]
        more = self.total - len(self.changes)
        return [*texts, f"… {count(more, 'more change')}"] if more else texts


def compare(old: object, new: object, *, limit: int | None = None) -> Comparison:
    """What changed from one state to another. Pure; keeps at most `limit` changes and counts all.

    Raises:
        InvalidInput: `limit` is negative.
        Unsupported: a state is nested deeper than this interpreter can follow, which none that was saved is.
    """
    _check_limit(limit)
    return with_room(lambda: _compare(old, new, limit))


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 0:
        raise InvalidInput(f"limit is {limit}; it counts changes: 0 or more", code="invalid_option")


def _compare(old: object, new: object, limit: int | None) -> Comparison:
    walk = _DiffWalk(limit)
    walk.pair((), old, new)
    return Comparison(
        changes=tuple(walk.changes),
        **{kind: sum(counts[kind] for counts in walk.headings.values()) for kind in SIGNS},
        summary=_summary(walk.headings),
        is_workflow=is_workflow_pair(old, new),
    )


# --- walking both states

# Looking whether two containers are equal saves a walk through them, but costs one at each level where they are
# not. Far down it is done at few levels, so that depth does not multiply the work.
_CHECKED_DEPTH: Final = 8


class _DiffWalk:
    """Walks two states side by side and collects what differs."""

    def __init__(self, limit: int | None) -> None:
        self.changes: list[StateChange] = []
        self.headings: dict[tuple[str, str], Counter[str]] = {}
        self._limit = math.inf if limit is None else limit
        self._cells = _ALIGN_CELLS
        self._same = Sameness()

    def pair(self, path: Path, old: Any, new: Any) -> None:
        kind = type(old)
        if kind is not type(new) or kind not in CONTAINERS:
            if not self._same.of(old, new):
                self._note("changed", path, old, new)
        elif not self._is_skipped(len(path), old, new):
            if kind in SEQUENCES:
                self._lists(path, old, new)
            elif kind is dict:
                self._by_name(path, values_by_name(old), values_by_name(new), is_item=False)
            else:
                self._by_name(path, _members(old), _members(new), is_item=True)

    def _is_skipped(self, depth: int, old: Any, new: Any) -> bool:
        if old is new:
            return True
        is_checked = depth < _CHECKED_DEPTH or depth & (depth - 1) == 0
        return is_checked and is_equal(old, new) and are_same_kinds([old], [new])

    def _note(
        self,
        kind: Literal["added", "removed", "changed", "moved"],
        path: Path,
        old: Any = None,
        new: Any = None,
        *,
        is_item: bool = False,
    ) -> None:
        self.headings.setdefault(_heading(path, is_item), Counter())[kind] += 1
        if len(self.changes) < self._limit:
            self.changes.append(StateChange(kind, path, old, new))

    def _by_name(
        self,
        path: Path,
        olds: Mapping[Hashable, tuple[PathStep, Any]],
        news: Mapping[Hashable, tuple[PathStep, Any]],
        *,
        is_item: bool,
        moved: Mapping[Hashable, tuple[int, int]] = MappingProxyType({}),
    ) -> None:
        """Values with names, and the step to each: what only one side has was removed or added."""
        for name, (step, value) in olds.items():
            if name not in news:
                self._note("removed", (*path, step), value, is_item=is_item)
        for name, (step, value) in news.items():
            if name not in olds:
                self._note("added", (*path, step), new=value, is_item=is_item)
                continue
            if name in moved:
                self._note("moved", (*path, step), *moved[name], is_item=True)
            if olds[name][1] is not value:
                self.pair((*path, step), olds[name][1], value)

    # Lists and tuples. Only what lies between the same beginning and the same end is looked at.

    def _lists(self, path: Path, old: Sequence[Any], new: Sequence[Any]) -> None:
        start = self._same.beginning(old, new)
        end = self._same.beginning(old[start:][::-1], new[start:][::-1])
        old_range, new_range = range(start, len(old) - end), range(start, len(new) - end)
        field = _id_field(old, new)
        if field is not None:
            self._by_id(path, field, old, new, old_range, new_range)
            return
        old_at, new_at = start, start
        for old_next, new_next in [
            *self._matches(old, new, old_range, new_range),
            (len(old) - end, len(new) - end),
        ]:
            self._run(path, old, new, range(old_at, old_next), range(new_at, new_next))
            old_at, new_at = old_next + 1, new_next + 1

    def _by_id(
        self, path: Path, field: str, old: Sequence[Any], new: Sequence[Any], olds: range, news: range
    ) -> None:
        old_at = {token_of(old[at][field]): at for at in olds}
        new_at = {token_of(new[at][field]): at for at in news}
        common = [name for name in new_at if name in old_at]
        in_order = set(_longest_rise([old_at[name] for name in common]))
        self._by_name(
            path,
            {name: (ItemById(field, old[at][field], at), old[at]) for name, at in old_at.items()},
            {name: (ItemById(field, new[at][field], at), new[at]) for name, at in new_at.items()},
            is_item=True,
            moved={
                name: (old_at[name], new_at[name]) for at, name in enumerate(common) if at not in in_order
            },
        )

    def _run(self, path: Path, old: Sequence[Any], new: Sequence[Any], olds: range, news: range) -> None:
        """Items between two matches: in turn, and what one side has more was removed or added."""
        for old_at, new_at in zip(olds, news, strict=False):
            self.pair((*path, new_at), old[old_at], new[new_at])
        for at in olds[len(news) :]:
            self._note("removed", (*path, at), old[at], is_item=True)
        for at in news[len(olds) :]:
            self._note("added", (*path, at), new=new[at], is_item=True)

    def _matches(
        self, old: Sequence[Any], new: Sequence[Any], olds: range, news: range
    ) -> list[tuple[int, int]]:
        """Pairs of positions with the same item, rising on both sides."""
        if not olds or not news or len(olds) == len(news) == 1:
            return []
        if len(olds) == len(news):
            same = [(at, at) for at in olds if self._same.of(old[at], new[at])]
            if len(same) * 2 >= len(olds):
                return same
        numbers: dict[Hashable, int] = {}
        old_numbers = [numbers.setdefault(token_of(old[at]), len(numbers)) for at in olds]
        new_numbers = [numbers.setdefault(token_of(new[at]), len(numbers)) for at in news]
        pairs = self._aligned(old_numbers, new_numbers)
        return [(olds[old_at], news[new_at]) for old_at, new_at in pairs]

    def _aligned(self, old: list[int], new: list[int]) -> Iterator[tuple[int, int]]:
        ends = (len(old), len(new))
        for before, after in pairwise([(-1, -1), *_anchors(old, new), ends]):
            yield from self._between(old, new, before, after)
            if after != ends:
                yield after

    def _between(
        self, old: list[int], new: list[int], before: tuple[int, int], after: tuple[int, int]
    ) -> Iterator[tuple[int, int]]:
        """Matches between two anchors: next to them, and in the rest as far as the budget for it goes."""
        (old_at, new_at), (old_end, new_end) = (before[0] + 1, before[1] + 1), after
        while old_at < old_end and new_at < new_end and old[old_at] == new[new_at]:
            yield old_at, new_at
            old_at, new_at = old_at + 1, new_at + 1
        tail: list[tuple[int, int]] = []
        while old_at < old_end and new_at < new_end and old[old_end - 1] == new[new_end - 1]:
            old_end, new_end = old_end - 1, new_end - 1
            tail.append((old_end, new_end))
        cells = (old_end - old_at) * (new_end - new_at)
        if 1 < cells <= min(_GAP_CELLS, self._cells):
            self._cells -= cells
            matcher = difflib.SequenceMatcher(None, old[old_at:old_end], new[new_at:new_end], autojunk=False)
            for block in matcher.get_matching_blocks():
                for step in range(block.size):
                    yield old_at + block.a + step, new_at + block.b + step
        yield from reversed(tail)


def _members(values: Iterable[Any]) -> dict[Hashable, tuple[SetMember, Any]]:
    return {name: (SetMember(value), value) for name, value in names_of(dict.fromkeys(values)).items()}


def _id_field(old: Sequence[Any], new: Sequence[Any]) -> str | None:
    """The field that names every item of both lists, each only once."""
    items = [*old, *new]
    if set(map(type, items)) != {dict}:
        return None
    for field in ID_FIELDS:
        if all(field in item for item in items) and _are_unique(old, field) and _are_unique(new, field):
            return field
    return None


def _are_unique(items: Sequence[Any], field: str) -> bool:
    ids = [item[field] for item in items]
    return set(map(type, ids)) <= _ID_TYPES and len(set(ids)) == len(ids)


_ID_TYPES: Final = frozenset({str, int, UUID})

# How much is spent on matching items that occur several times: in one gap, and in all of a comparison.
_GAP_CELLS: Final = 4096
_ALIGN_CELLS: Final = 100_000


def _anchors(old: list[int], new: list[int]) -> list[tuple[int, int]]:
    """Pairs of positions of items that occur once on each side: as many as rise on both sides."""
    old_counts, new_counts = Counter(old), Counter(new)
    positions = {number: at for at, number in enumerate(old) if old_counts[number] == 1}
    pairs = [
        (positions[number], at)
        for at, number in enumerate(new)
        if number in positions and new_counts[number] == 1
    ]
    return [pairs[at] for at in _longest_rise([old_at for old_at, _ in pairs])]


def _longest_rise(values: list[int]) -> list[int]:
    """The positions of the longest rising subsequence of distinct values."""
    ends: list[int] = []  # the smallest value that ends a rise of each length, and below its position
    positions: list[int] = []
    before: list[int | None] = []
    for at, value in enumerate(values):
        length = bisect_left(ends, value)
        before.append(positions[length - 1] if length else None)
        ends[length : length + 1] = [value]
        positions[length : length + 1] = [at]
    rise: list[int] = []
    position = positions[-1] if positions else None
    while position is not None:
        rise.append(position)
        position = before[position]
    return rise[::-1]


# --- states of a workflow


def is_workflow_pair(old: object, new: object) -> bool:
    """Whether both states have variables, and steps with commands."""
    states = [state for state in (old, new) if isinstance(state, dict)]
    if len(states) < 2 or not all(isinstance(state.get(VARIABLES), dict) for state in states):
        return False
    steps = [state[name] for state in states for name in STEPS if name in state]
    if not all(isinstance(each, list) for each in steps):
        return False
    items = list(chain.from_iterable(steps))
    return bool(items) and all(isinstance(item, dict) and "command" in item for item in items)


# --- the summary in words

_MAX_HEADINGS: Final = 6


def _heading(path: Path, is_item: bool) -> tuple[str, str]:
    """Under which heading a change is counted in the summary: its kind, and a name."""
    if not path:
        return "whole", ""
    if is_item:
        return "items", next((step for step in reversed(path[:-1]) if type(step) is str), "items")
    return ("top", "") if len(path) == 1 else ("within", short_path(path[:1]))


def _summary(headings: dict[tuple[str, str], Counter[str]]) -> str:
    if not headings:
        return "no changes"
    parts = [_phrase(*heading, counts) for heading, counts in headings.items()]
    more = len(parts) - _MAX_HEADINGS
    return "; ".join(parts[:_MAX_HEADINGS]) + (f"; and more in {more:,} other places" if more > 0 else "")


def _phrase(kind: str, name: str, counts: Counter[str]) -> str:
    if kind == "whole":
        return "everything changed"
    counted = [(counts[verb], verb) for verb in SIGNS if counts[verb]]
    if kind == "items":
        return ", ".join(f"{count:,} {_noun(name, count)} {verb}" for count, verb in counted)
    text = ", ".join(f"{count:,} {verb}" for count, verb in counted)
    return f"{text} at the top" if kind == "top" else f"{text} in {name}"


def _noun(name: str, count: int) -> str:
    name = shortened(name, 80)
    if count != 1 or not name.endswith("s") or name.endswith(("ss", "us", "is")):
        return name
    return name[:-3] + "y" if name.endswith("ies") else name[:-1]


# --- of two checkpoints ------------------------------------------------------------------------------------------


class ChangeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many changes lead from one state to another, and a summary."""

    total: int
    added: int
    removed: int
    changed: int
    moved: int
    summary: str


class ComparisonView(ChangeCounts, frozen=True, kw_only=True):
    """What changed between two checkpoints as a page shows it: bounded, with words marked in texts."""

    older: CheckpointInfo
    newer: CheckpointInfo
    changes: tuple[ChangeView, ...]


class CheckpointComparison(Comparison, frozen=True, kw_only=True):
    """The changes that lead from the state of one checkpoint to that of another, counted and summed up."""

    older: CheckpointInfo
    newer: CheckpointInfo

    @property
    def elapsed(self) -> timedelta:
        """The time between them; negative when `newer` was saved first."""
        return self.newer.time - self.older.time

    def view(self, *, width: int = 1000) -> ComparisonView:
        """The same for a page: values in about `width` characters, and what differs in texts word by word."""
        return copied(ComparisonView, self, changes=tuple(change_view(each, width) for each in self.changes))

    def document(self) -> dict[str, Any]:
        """The same as JSON can hold it: values of the states are written exactly, with their encoding."""
        counts = ("total", "added", "removed", "changed", "moved", "summary", "is_workflow")
        return {
            "from": self.older,
            "to": self.newer,
            "elapsed_seconds": self.elapsed / timedelta(seconds=1),
            **{name: getattr(self, name) for name in counts},
            "changes": [
                {"kind": each.kind, "path": format_path(each.path), **_fields(each)} for each in self.changes
            ],
        }


def compare_checkpoints(
    engine: Engine, older: Loaded, newer: Loaded, *, limit: int | None = None
) -> CheckpointComparison:
    """What changed from the state of one checkpoint to that of another, of whichever sessions."""
    found = compare(older.value(), newer.value(), limit=limit)
    return copied(
        CheckpointComparison,
        found,
        older=describe_one(engine, older.header),
        newer=describe_one(engine, newer.header),
    )


def _fields(change: StateChange | ValueChange) -> dict[str, Any]:
    """The values of a change as JSON can hold them; only those that its kind has."""
    if change.kind == "moved":
        return {"old_index": change.old, "new_index": change.new}
    return exact_fields(
        old=ABSENT if change.kind == "added" else change.old,
        new=ABSENT if change.kind == "removed" else change.new,
    )


# --- of one value along a branch ---------------------------------------------------------------------------------


class ValueChange(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint at which a value changed. `old` is None where it was added, `new` where it was removed."""

    checkpoint: CheckpointInfo
    kind: Literal["added", "changed", "removed"]
    old: Any = None
    new: Any = None

    def text(self, *, width: int = WIDTH) -> str:
        """The value, or how it changed, in one line, in about `width` characters."""
        if self.kind == "changed":
            return change_text(self.old, self.new, width)
        return beginning_text(self.new if self.kind == "added" else self.old, width)

    def lines(self, path: str, *, width: int = WIDTH, limit: int | None = MAX_INSIDE) -> list[str]:
        """The same with its sign; where something changed inside of the value at `path`, each change with its path."""
        found = None
        if self.kind == "changed" and type(self.old) is type(self.new) and type(self.old) in CONTAINERS:
            found = compare(self.old, self.new, limit=limit)
        if found is None or found.is_equal:
            return [f"{SIGNS[self.kind]} {self.text(width=width)}"]
        inside = parse_path(path)
        texts = [
            StateChange(each.kind, (*inside, *each.path), each.old, each.new).line(width=width)
            for each in found.changes
        ]
        more = found.total - len(found.changes)
        return [*texts, f"~ {count(more, 'more change')}"] if more else texts


class ValueChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint at which a value changed, as a page shows it."""

    checkpoint: CheckpointInfo
    change: ChangeView


class ValueLogView(msgspec.Struct, frozen=True, kw_only=True):
    """How a value changed as a page shows it: bounded, with words marked in texts."""

    session: str
    path: str
    changes: tuple[ValueChangeView, ...]


class ValueLog(msgspec.Struct, frozen=True, kw_only=True):
    """How the value at a path changed on the way to a checkpoint, oldest first. Iterating yields the changes."""

    session: str
    path: str
    changes: tuple[ValueChange, ...]

    def __iter__(self) -> Iterator[ValueChange]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def view(self, *, width: int = 1000) -> ValueLogView:
        """The same for a page: values in about `width` characters, and what differs in texts word by word."""
        path = parse_path(self.path)
        changes = tuple(
            ValueChangeView(
                checkpoint=each.checkpoint,
                change=change_view(StateChange(each.kind, path, each.old, each.new), width),
            )
            for each in self
        )
        return ValueLogView(session=self.session, path=self.path, changes=changes)

    def document(self) -> dict[str, Any]:
        """The same as JSON can hold it: values are written exactly, with their encoding."""
        changes = [{"checkpoint": each.checkpoint, "kind": each.kind, **_fields(each)} for each in self]
        return {"session": self.session, "path": self.path, "changes": changes}


def trace(
    engine: Engine, session: SessionInfo, path: Path, *, until: Header | None = None, limit: int | None = None
) -> ValueLog:
    """Where the value at a path changed on the way to a checkpoint, oldest first; `limit` keeps the last ones.

    The way is the line of the current branch, or of the checkpoint `until`. Checkpoints that do not verify are
    left out and logged; a change there shows at the next one.

    Raises:
        InvalidInput: `limit` is negative.
    """
    _check_limit(limit)
    found = deque(_values(engine, session, path, until), maxlen=limit)
    infos = describe(engine, session.key, [header for header, _, _ in found])
    changes = [_value_change(info, old, new) for info, (_, old, new) in zip(infos, found, strict=True)]
    return ValueLog(session=session.key, path=format_path(path), changes=tuple(changes))


def _value_change(info: CheckpointInfo, old: Any, new: Any) -> ValueChange:
    if old is ABSENT:
        return ValueChange(checkpoint=info, kind="added", new=new)
    if new is ABSENT:
        return ValueChange(checkpoint=info, kind="removed", old=old)
    return ValueChange(checkpoint=info, kind="changed", old=old, new=new)


def _values(
    engine: Engine, session: SessionInfo, path: Path, until: Header | None
) -> Iterator[tuple[Header, Any, Any]]:
    """The checkpoints at which the value at a path changed, with the value before and after."""
    before: Any = ABSENT
    digest = ""
    for header in _headers(engine, session, until):
        if header.contents[STATE].digest == digest:
            continue  # the same state, so the same value
        try:
            value = _value(engine, header, path)
        except NotFound:
            continue  # removed meanwhile
        except (Corrupt, Unsupported) as exc:
            if engine.is_stored(header):
                log.warning("checkpoint %s is left out: %s (%s)", header.id, exc, exc.code)
            continue
        digest = header.contents[STATE].digest
        if not is_same(before, value):
            yield header, before, value
            before = value


def _headers(engine: Engine, session: SessionInfo, until: Header | None) -> Iterator[Header]:
    """The line, oldest first."""
    branch = session.branch if until is None else until.branch
    matching = HeaderQuery() if until is None else HeaderQuery(max_seq=until.seq)
    for row in reversed(list(reader.line_of(engine.backend, session, branch, matching=matching))):
        try:
            header = reader.verified(row)
        except (Corrupt, Unsupported) as exc:
            log.warning("checkpoint %s is left out: %s (%s)", row.id, exc, exc.code)
            continue
        if STATE in header.contents:
            yield header


def _value(engine: Engine, header: Header, path: Path) -> Any:
    content = reader.load_body(engine.backend, header, STATE)
    described = header.contents[STATE]
    state = exact.decode(described.encoding, content, described.first_at)
    try:
        return find(state, path)
    except NotFound:
        return ABSENT
