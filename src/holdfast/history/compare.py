"""What differs between two states: typed changes by path, counted, summed up and written as text.

Strict: `True`, `1` and `1.0` differ, so do `0.0` and `-0.0`, a list and a tuple, and one moment in two zones.
NaN equals NaN. The order of the keys of a dict is no difference.

Lists whose items are dicts with ids of their own are compared by id. In other lists equal items are matched,
and what lies between two matches is compared in turn. Correct always, smallest not always: the work grows with
the size of the states, never with its square.
"""

from __future__ import annotations

import difflib
import json
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from itertools import chain, pairwise
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from holdfast.errors import InvalidInput, Unsupported
from holdfast.history.paths import Item, Member, Path, Step, format_path

T = TypeVar("T")

ID_FIELDS: Final = ("id", "uid", "key", "step_id", "stepId", "name")
WIDTH: Final = 60
"""How long the text of a value may be before it is shortened."""


class Added(msgspec.Struct, frozen=True):
    """A value that is only in the new state."""

    path: Path
    value: Any


class Removed(msgspec.Struct, frozen=True):
    """A value that is only in the old state; an index in the last step is that of the old list."""

    path: Path
    value: Any


class Changed(msgspec.Struct, frozen=True):
    """Another value, or a value of another type, in the same place; indexes are those of the new lists."""

    path: Path
    old: Any
    new: Any


class Moved(msgspec.Struct, frozen=True):
    """An item with an id that changed places with others of its list."""

    path: Path
    old_index: int
    new_index: int


Change = Added | Removed | Changed | Moved


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that lead from one state to another.

    The numbers count all of them; `changes` may be only the first ones. Values are those of the states, not
    copies. `is_workflow` says that the states are those of a workflow, with variables and steps.
    """

    changes: tuple[Change, ...]
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


def compare(old: object, new: object, *, limit: int | None = None) -> Comparison:
    """What changed from one state to another. Pure; keeps at most `limit` changes and counts all.

    Raises:
        InvalidInput: `limit` is negative.
        Unsupported: a state is nested deeper than this interpreter can follow, which none that was saved is.
    """
    if limit is not None and limit < 0:
        raise InvalidInput(f"limit is {limit}; it counts changes: 0 or more", code="invalid_option")
    return _with_room(lambda: _compare(old, new, limit))


def is_same(old: object, new: object) -> bool:
    """Whether two values are equal in value, type, sign and zone, all the way down; NaN equals NaN."""
    return _with_room(lambda: _Sameness().of(old, new))


def _compare(old: object, new: object, limit: int | None) -> Comparison:
    walk = _Walk(limit)
    walk.pair((), old, new)
    counts = walk.counts
    return Comparison(
        changes=tuple(walk.changes),
        added=counts[Added],
        removed=counts[Removed],
        changed=counts[Changed],
        moved=counts[Moved],
        summary=_summary(walk.places),
        is_workflow=_is_workflow(old, new),
    )


def _with_room(work: Callable[[], T]) -> T:
    """Run `work`; where the caller's stack leaves it too little room, run it again on a fresh one."""
    try:
        return work()
    except RecursionError:
        pass
    try:
        with ThreadPoolExecutor(1) as fresh:
            return fresh.submit(work).result()
    except RecursionError:
        raise Unsupported("the states are nested deeper than this interpreter can follow") from None


# --- strict equality

# Types for which == says all, once the types are the same.
_PLAIN: Final = frozenset({type(None), bool, int, str, bytes, bytearray, date, timedelta, UUID})
# Types for which it does not: signs of zero, trailing zeros, zones, NaN.
_SUBTLE: Final = frozenset({float, Decimal, datetime, time})
_SEQUENCES: Final = frozenset({list, tuple})
_SETS: Final = frozenset({set, frozenset})
_CONTAINERS: Final = _SEQUENCES | _SETS | {dict}
_BLOCK: Final = 512


class _Sameness:
    """Strict equality of values that stay alive meanwhile. Remembers pairs that it had to walk through."""

    def __init__(self) -> None:
        self._walked: dict[tuple[int, int], bool] = {}

    def of(self, old: Any, new: Any) -> bool:
        kind = type(old)
        if kind is not type(new):
            return False
        if old is new:
            return True
        if kind in _PLAIN:
            return bool(old == new)
        if kind in _SUBTLE:
            return _token(old) == _token(new)
        if kind not in _CONTAINERS:
            return _is_equal(old, new)
        if len(old) != len(new):
            return False
        pair = (id(old), id(new))
        if pair not in self._walked:
            if _is_equal(old, new):
                return _are_same_kinds([old], [new])
            # NaN is not equal to itself: it may be all that differs.
            self._walked[pair] = self._of_parts(kind, old, new)
        return self._walked[pair]

    def _of_parts(self, kind: type, old: Any, new: Any) -> bool:
        if kind is dict:
            olds, news = _names(old), _names(new)
            return olds.keys() == news.keys() and all(
                self.of(old[key], new[news[name]]) for name, key in olds.items()
            )
        return all(map(self.of, old, new)) if kind in _SEQUENCES else _token(old) == _token(new)

    def beginning(self, old: Sequence[Any], new: Sequence[Any]) -> int:
        """How many items at the beginning are the same; where == can tell, whole blocks of them at a time."""
        most = min(len(old), len(new))
        for at in range(0, most, _BLOCK):
            olds, news = old[at : min(at + _BLOCK, most)], new[at : min(at + _BLOCK, most)]
            if _is_equal(olds, news) and _are_same_kinds([olds], [news]):
                continue
            for place, (before, after) in enumerate(zip(olds, news, strict=True), at):
                if not self.of(before, after):
                    return place
        return most


def _is_equal(old: Any, new: Any) -> bool:
    """What == says. Signalling decimals and foreign objects raise, which counts as different."""
    try:
        return bool(old == new)
    except Exception:
        return False


def _are_same_kinds(olds: list[Any], news: list[Any]) -> bool:
    """Whether values that are equal by == are also the same in what == overlooks, all the way down.

    Goes level by level with whole lists at a time, which is several times faster than value by value.
    """
    while olds:
        kinds = list(map(type, olds))
        if kinds != list(map(type, news)):
            return False
        present = set(kinds)
        if present & _SUBTLE and not _are_same_subtle(olds, news):
            return False
        if present & _SETS and not _are_same_sets(olds, news):
            return False
        if not present & _CONTAINERS:
            return True
        old_values = _values_of(dict_pairs := _both(olds, news, {dict}))
        if old_values is None:
            return False
        new_values = [new[key] for old, new in dict_pairs for key in old]
        olds = [*_items_of(olds), *old_values]
        news = [*_items_of(news), *new_values]
        # Most values are texts, and a text equals nothing but the same text.
        olds = [value for value in olds if type(value) is not str]
        news = [value for value in news if type(value) is not str]
    return True


def _both(olds: list[Any], news: list[Any], kinds: set[type] | frozenset[type]) -> list[tuple[Any, Any]]:
    return [(old, new) for old, new in zip(olds, news, strict=True) if type(old) in kinds]


def _are_same_subtle(olds: list[Any], news: list[Any]) -> bool:
    return all(_token(old) == _token(new) for old, new in _both(olds, news, _SUBTLE) if old is not new)


def _are_same_sets(olds: list[Any], news: list[Any]) -> bool:
    return all(_token(old) == _token(new) for old, new in _both(olds, news, _SETS) if old is not new)


def _items_of(values: list[Any]) -> Iterator[Any]:
    return chain.from_iterable(value for value in values if type(value) in _SEQUENCES)


def _values_of(pairs: list[tuple[Any, Any]]) -> list[Any] | None:
    """The values of the old dicts, in order; None when a key of the new ones is of another kind."""
    kinds = set(map(type, chain.from_iterable(chain.from_iterable(pairs))))
    if not kinds <= {str}:
        for old, new in pairs:
            if _names(old).keys() != _names(new).keys():
                return None
    return list(chain.from_iterable(old.values() for old, _ in pairs))


def _names(values: dict[Any, Any]) -> dict[Hashable, Any]:
    """The keys of a dict by what tells them apart strictly."""
    if set(map(type, values)) <= {str}:
        return {key: key for key in values}
    names: dict[Hashable, Any] = {}
    seen: Counter[Hashable] = Counter()
    for key in values:
        name = _token(key)
        names[(name, seen[name]) if seen[name] else name] = key  # several NaN are several keys
        seen[name] += 1
    return names


def _token(value: Any) -> Hashable:
    """Something hashable that is equal for two values exactly when they are the same."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is float:
        return (kind, repr(value))
    if kind is list or kind is tuple:
        return (kind, *map(_token, value))
    if kind is dict:
        return (kind, _bag((_token(key), _token(item)) for key, item in value.items()))
    if kind in _SETS:
        return (kind, _bag(map(_token, value)))
    if kind is datetime or kind is time:
        return (kind, value.replace(tzinfo=None).isoformat(), value.fold, _zone(value.tzinfo))
    if kind is Decimal:
        return (kind, value.as_tuple())
    if kind is bytearray:
        return (kind, bytes(value))
    return (kind, value) if kind in _PLAIN else (kind, id(value))


def _bag(tokens: Iterable[Hashable]) -> frozenset[tuple[Hashable, int]]:
    return frozenset(Counter(tokens).items())


def _zone(zone: tzinfo | None) -> Hashable:
    if type(zone) is timezone:
        return (zone.utcoffset(None), zone.tzname(None))
    return zone and (type(zone), str(zone))


# --- walking both states

# Looking whether two containers are equal saves a walk through them, but costs one at each level where they are
# not. Far down it is done at few levels, so that depth does not multiply the work.
_CHECKED_DEPTH: Final = 8


class _Walk:
    """Walks two states side by side and collects what differs."""

    def __init__(self, limit: int | None) -> None:
        self.changes: list[Change] = []
        self.counts: Counter[type[Change]] = Counter()
        self.places: dict[tuple[str, str], Counter[type[Change]]] = {}
        self._limit = math.inf if limit is None else limit
        self._cells = _ALIGN_CELLS
        self._same = _Sameness()

    def pair(self, path: Path, old: Any, new: Any) -> None:
        kind = type(old)
        if kind is not type(new) or kind not in _CONTAINERS:
            if not self._same.of(old, new):
                self._note(Changed(path, old, new))
        elif not self._is_skipped(len(path), old, new):
            if kind is dict:
                self._dicts(path, old, new)
            elif kind in _SEQUENCES:
                self._lists(path, old, new)
            else:
                self._sets(path, old, new)

    def _is_skipped(self, depth: int, old: Any, new: Any) -> bool:
        if old is new:
            return True
        is_checked = depth < _CHECKED_DEPTH or depth & (depth - 1) == 0
        return is_checked and _is_equal(old, new) and _are_same_kinds([old], [new])

    def _note(self, change: Change, *, is_item: bool = False) -> None:
        kind = type(change)
        self.counts[kind] += 1
        self.places.setdefault(_place(change.path, is_item), Counter())[kind] += 1
        if len(self.changes) < self._limit:
            self.changes.append(change)

    def _dicts(self, path: Path, old: dict[Any, Any], new: dict[Any, Any]) -> None:
        olds, news = _names(old), _names(new)
        for name, key in olds.items():
            if name not in news:
                self._note(Removed((*path, key), old[key]))
        for name, key in news.items():
            if name not in olds:
                self._note(Added((*path, key), new[key]))
                continue
            before, after = old[olds[name]], new[key]
            if before is not after:
                self.pair((*path, key), before, after)

    def _sets(self, path: Path, old: Iterable[Any], new: Iterable[Any]) -> None:
        olds, news = _names(dict.fromkeys(old)), _names(dict.fromkeys(new))
        for name, value in olds.items():
            if name not in news:
                self._note(Removed((*path, Member(value)), value), is_item=True)
        for name, value in news.items():
            if name not in olds:
                self._note(Added((*path, Member(value)), value), is_item=True)

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
        self,
        path: Path,
        field: str,
        old: Sequence[Any],
        new: Sequence[Any],
        old_range: range,
        new_range: range,
    ) -> None:
        olds = {_token(old[at][field]): at for at in old_range}
        news = {_token(new[at][field]): at for at in new_range}
        for name, at in olds.items():
            if name not in news:
                self._note(Removed((*path, Item(field, old[at][field], at)), old[at]), is_item=True)
        common = [olds[name] for name in news if name in olds]
        in_order = {common[at] for at in _longest_rise(common)}
        for name, at in news.items():
            step = Item(field, new[at][field], at)
            if name not in olds:
                self._note(Added((*path, step), new[at]), is_item=True)
                continue
            if olds[name] not in in_order:
                self._note(Moved((*path, step), olds[name], at), is_item=True)
            self.pair((*path, step), old[olds[name]], new[at])

    def _run(self, path: Path, old: Sequence[Any], new: Sequence[Any], olds: range, news: range) -> None:
        """Items between two matches: in turn, and what one side has more was removed or added."""
        for old_at, new_at in zip(olds, news, strict=False):
            self.pair((*path, new_at), old[old_at], new[new_at])
        for at in olds[len(news) :]:
            self._note(Removed((*path, at), old[at]), is_item=True)
        for at in news[len(olds) :]:
            self._note(Added((*path, at), new[at]), is_item=True)

    def _matches(
        self, old: Sequence[Any], new: Sequence[Any], olds: range, news: range
    ) -> list[tuple[int, int]]:
        """Pairs of places with the same item, rising on both sides."""
        if not olds or not news or len(olds) == len(news) == 1:
            return []
        if len(olds) == len(news):
            same = [(at, at) for at in olds if self._same.of(old[at], new[at])]
            if len(same) * 2 >= len(olds):
                return same
        numbers: dict[Hashable, int] = {}
        old_numbers = [numbers.setdefault(_token(old[at]), len(numbers)) for at in olds]
        new_numbers = [numbers.setdefault(_token(new[at]), len(numbers)) for at in news]
        pairs = self._aligned(old_numbers, new_numbers)
        return [(olds[old_at], news[new_at]) for old_at, new_at in pairs]

    def _aligned(self, old: list[int], new: list[int]) -> list[tuple[int, int]]:
        ends = (len(old), len(new))
        pairs: list[tuple[int, int]] = []
        for before, after in pairwise([(-1, -1), *_anchors(old, new), ends]):
            pairs += self._between(old, new, before, after)
            if after != ends:
                pairs.append(after)
        return pairs

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
    """Pairs of places of items that occur once on each side: as many as rise on both sides."""
    old_counts, new_counts = Counter(old), Counter(new)
    places = {number: at for at, number in enumerate(old) if old_counts[number] == 1}
    pairs = [
        (places[number], at) for at, number in enumerate(new) if number in places and new_counts[number] == 1
    ]
    return [pairs[at] for at in _longest_rise([old_at for old_at, _ in pairs])]


def _longest_rise(values: list[int]) -> list[int]:
    """The places of the longest rising subsequence of distinct values."""
    ends: list[int] = []  # the smallest value that ends a rise of each length, and below its place
    places: list[int] = []
    before: list[int | None] = []
    for at, value in enumerate(values):
        length = bisect_left(ends, value)
        before.append(places[length - 1] if length else None)
        ends[length : length + 1] = [value]
        places[length : length + 1] = [at]
    rise: list[int] = []
    place = places[-1] if places else None
    while place is not None:
        rise.append(place)
        place = before[place]
    return rise[::-1]


# --- the summary in words

_VERBS: Final[dict[type[Change], str]] = {
    Added: "added",
    Removed: "removed",
    Changed: "changed",
    Moved: "moved",
}
_SIGNS: Final[dict[type[Change], str]] = {Added: "+", Removed: "-", Changed: "~", Moved: ">"}
_MAX_PLACES: Final = 6
_WHOLE: Final = "whole"
_TOP: Final = "top"
_WITHIN: Final = "within"
_ITEMS: Final = "items"


def _place(path: Path, is_item: bool) -> tuple[str, str]:
    """Under which heading a change is counted in the summary."""
    if not path:
        return _WHOLE, ""
    if is_item:
        return _ITEMS, next((step for step in reversed(path[:-1]) if type(step) is str), "items")
    if len(path) == 1:
        return _TOP, ""
    return _WITHIN, _short_path(path[:1])


def _summary(places: dict[tuple[str, str], Counter[type[Change]]]) -> str:
    if not places:
        return "no changes"
    parts = [_phrase(*place, counts) for place, counts in places.items()]
    more = len(parts) - _MAX_PLACES
    return "; ".join(parts[:_MAX_PLACES]) + (f"; and more in {more:,} other places" if more > 0 else "")


def _phrase(kind: str, name: str, counts: Counter[type[Change]]) -> str:
    if kind == _WHOLE:
        return "everything changed"
    counted = [(counts[change], verb) for change, verb in _VERBS.items() if counts[change]]
    if kind == _ITEMS:
        return ", ".join(f"{count:,} {_noun(name, count)} {verb}" for count, verb in counted)
    text = ", ".join(f"{count:,} {verb}" for count, verb in counted)
    return f"{text} at the top" if kind == _TOP else f"{text} in {name}"


def _noun(name: str, count: int) -> str:
    name = _cut(name)
    if count != 1 or not name.endswith("s") or name.endswith(("ss", "us", "is")):
        return name
    return name[:-3] + "y" if name.endswith("ies") else name[:-1]


# --- text


def lines(comparison: Comparison, *, width: int = WIDTH) -> list[str]:
    """The changes as text, one line each: `+` added, `-` removed, `~` changed, `>` moved.

    Those of a workflow stand under headings for its variables and steps. The text is plain, and the caller's
    to clean: values may hold what a terminal would act upon.
    """
    if comparison.is_equal:
        return ["No differences."]
    texts = (
        _workflow_lines(comparison, width) if comparison.is_workflow else _lines(comparison.changes, width)
    )
    more = comparison.total - len(comparison.changes)
    return [*texts, *([f"… {more:,} more {'change' if more == 1 else 'changes'}"] if more else [])]


def value_text(value: object, width: int = WIDTH) -> str:
    """A value in about `width` characters: whole, or its beginning and how much there is of it."""
    inline = _inline(value, max(width, 0))
    if inline is not None:
        return inline
    if isinstance(value, str):
        return f'{_quoted(value[:width])[:-1]}…" ({len(value):,} characters)'
    if isinstance(value, bytes | bytearray):
        return f"{value[: width // 4]!r}… ({len(value):,} bytes)"
    if isinstance(value, dict | list | tuple | set | frozenset):
        return _outline(value)
    return _cut(_atom(value), max(width, 1))


def change_text(old: object, new: object, width: int = WIDTH) -> str:
    """`old → new`, shortened so that the difference is in what is shown."""
    if isinstance(old, str) and isinstance(new, str) and max(len(old), len(new)) > width:
        return _texts_around_difference(old, new, width)
    old_text, new_text = value_text(old, width), value_text(new, width)
    if old_text == new_text:
        if type(old) is type(new):
            return f"{old_text} → {new_text} (differs in what is not shown)"
        return f"{old_text} ({type(old).__name__}) → {new_text} ({type(new).__name__})"
    return f"{old_text} → {new_text}"


def _lines(changes: Iterable[Change], width: int, *, indent: str = "") -> list[str]:
    return [indent + _line(change, _short_path(change.path), width) for change in changes]


def _line(change: Change, name: str, width: int) -> str:
    head = f"{_SIGNS[type(change)]} {name}: "
    match change:
        case Changed(_, old, new):
            return head + change_text(old, new, width)
        case Moved(_, old_index, new_index):
            return f"{head}moved from [{old_index}] to [{new_index}]"
        case _:
            return head + value_text(change.value, width)


def _short_path(path: Path) -> str:
    return _cut(format_path(path), 200)


def _cut(text: str, most: int = 80) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _texts_around_difference(old: str, new: str, width: int) -> str:
    start = max(0, _common_length(old, new) - width // 3)
    return f"{_excerpt(old, start, width)} → {_excerpt(new, start, width)}"


def _common_length(old: str, new: str) -> int:
    """How many characters two texts share at the beginning, by halving: a loop in C, not in Python."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _excerpt(text: str, start: int, width: int) -> str:
    end = start + width
    lead, tail = "…" if start else "", "…" if end < len(text) else ""
    note = f" ({len(text):,} characters)" if lead or tail else ""
    return f'"{lead}{_quoted(text[start:end])[1:-1]}{tail}"{note}'


def _inline(value: object, room: int) -> str | None:
    """The whole value if its text fits. Looks at no more of it than that takes."""
    if isinstance(value, str):
        text = _quoted(value) if len(value) <= room else None
    elif isinstance(value, bytes | bytearray):
        text = repr(value) if len(value) <= room else None
    elif isinstance(value, dict | list | tuple | set | frozenset):
        text = _inline_container(value, room) if len(value) * 2 <= room else None
    else:
        text = _atom(value)
    return text if text is not None and len(text) <= room else None


def _inline_container(value: Any, room: int) -> str | None:
    opening, closing = _BRACKETS[next(kind for kind in _BRACKETS if isinstance(value, kind))]
    room -= len(opening) + len(closing)
    parts: list[str] = []
    for part in _parts(value, room):
        room -= 0 if part is None else len(part) + 2
        if part is None or room < -2:
            return None
        parts.append(part)
    if isinstance(value, set | frozenset):
        parts.sort()
    return f"{opening}{', '.join(parts)}{closing}"


def _parts(value: Any, room: int) -> Iterator[str | None]:
    if not isinstance(value, dict):
        yield from (_inline(item, room) for item in value)
        return
    for key, item in value.items():
        name, text = _inline(key, room), _inline(item, room)
        yield None if name is None or text is None else f"{name}: {text}"


def _outline(value: Any) -> str:
    noun = "key" if isinstance(value, dict) else "member" if isinstance(value, set | frozenset) else "item"
    opening, closing = _BRACKETS[next(kind for kind in _BRACKETS if isinstance(value, kind))]
    return f"{opening}…{len(value):,} {noun}{'' if len(value) == 1 else 's'}{closing}"


_BRACKETS: Final[dict[type, tuple[str, str]]] = {
    dict: ("{", "}"),
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("set{", "}"),
    frozenset: ("frozenset{", "}"),
}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _atom(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"an integer of {value.bit_length():,} bits"  # its digits may be more than Python writes
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return str(value) if isinstance(value, float | int | Decimal | UUID | timedelta) else repr(value)


# --- workflows

_VARIABLES: Final = "variables"
_STEPS: Final = ("completed_steps", "steps")


def _is_workflow(old: object, new: object) -> bool:
    """Whether both states have variables, and steps with commands."""
    states = [state for state in (old, new) if isinstance(state, dict)]
    if len(states) < 2 or not all(isinstance(state.get(_VARIABLES), dict) for state in states):
        return False
    steps = [state[name] for state in states for name in _STEPS if name in state]
    if not all(isinstance(each, list) for each in steps):
        return False
    items = list(chain.from_iterable(steps))
    return bool(items) and all(isinstance(item, dict) and "command" in item for item in items)


def _workflow_lines(comparison: Comparison, width: int) -> list[str]:
    sections: dict[str, list[str]] = {
        "Variables changed:": [],
        "Steps added:": [],
        "Steps removed:": [],
        "Steps changed:": [],
        "Also changed:": [],
    }
    for change in comparison.changes:
        heading, text = _workflow_line(change, width)
        sections[heading].append(f"  {text}")
    return [text for heading, texts in sections.items() if texts for text in (heading, *texts)]


def _workflow_line(change: Change, width: int) -> tuple[str, str]:
    """The heading that a change belongs to, and its line."""
    path = change.path
    if len(path) > 1 and path[0] == _VARIABLES:
        name = path[1] if type(path[1]) is str and len(path) == 2 else format_path(path[1:])
        return "Variables changed:", _line(change, _cut(name, 200), width)
    at = _index(path[1]) if len(path) > 1 and path[0] in _STEPS else None
    if at is not None:
        if len(path) == 2 and isinstance(change, Added | Removed):
            text = f"{_SIGNS[type(change)]} {_step_text(change.value, at, width)}"
            return ("Steps added:" if isinstance(change, Added) else "Steps removed:"), text
        inside = format_path(path[2:]) if len(path) > 2 else ""
        return "Steps changed:", _line(change, f"Step {at + 1}{inside and f', {inside}'}", width)
    return "Also changed:", _line(change, _short_path(path), width)


def _index(step: Step) -> int | None:
    """The place of a list that a step names; None for a key."""
    if isinstance(step, Item):
        return step.index
    return step if type(step) is int else None


def _step_text(step: Any, at: int, width: int) -> str:
    """`Step 6: shell: "make test"`; the number is the step's own, else its place."""
    number = next((step[name] for name in ("step", "number") if type(step.get(name)) is int), at + 1)
    kind = next((step[name] for name in ("kind", "type") if isinstance(step.get(name), str)), None)
    command = value_text(step["command"], width)
    return f"Step {number}: {command}" if kind is None else f"Step {number}: {_cut(kind)}: {command}"
