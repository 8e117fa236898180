"""Strict equality of two states: in value, type, sign and zone, all the way down. NaN equals NaN."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from itertools import chain
from typing import Any, Final, TypeVar
from uuid import UUID

from stepkeep.codec.exact import TooDeep, on_fresh_stack
from stepkeep.errors import Unsupported

T = TypeVar("T")


def is_same(old: object, new: object) -> bool:
    return with_room(lambda: Sameness().of(old, new))


def with_room(work: Callable[[], T]) -> T:
    """Run `work`; where the caller's stack leaves it too little room, run it again on a fresh one."""
    try:
        return work()
    except RecursionError:
        pass
    try:
        return on_fresh_stack(work)
    except (TooDeep, RecursionError):
        raise Unsupported("the states are nested deeper than this interpreter can follow") from None


# Types for which == says all, once the types are the same.
_PLAIN: Final = frozenset({type(None), bool, int, str, bytes, bytearray, date, timedelta, UUID})
# Types for which it does not: signs of zero, trailing zeros, zones, NaN.
_SUBTLE: Final = frozenset({float, Decimal, datetime, time})
SEQUENCES: Final = frozenset({list, tuple})
SETS: Final = frozenset({set, frozenset})
CONTAINERS: Final = SEQUENCES | SETS | {dict}
_TOKENED: Final = _SUBTLE | SETS
_BLOCK: Final = 512


class Sameness:
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
            return token_of(old) == token_of(new)
        if kind not in CONTAINERS:
            return is_equal(old, new)
        if len(old) != len(new):
            return False
        pair = (id(old), id(new))
        if pair not in self._walked:
            if is_equal(old, new):
                return are_same_kinds([old], [new])
            # NaN is not equal to itself: it may be all that differs.
            self._walked[pair] = self._of_parts(kind, old, new)
        return self._walked[pair]

    def _of_parts(self, kind: type, old: Any, new: Any) -> bool:
        if kind is dict:
            olds, news = names_of(old), names_of(new)
            return olds.keys() == news.keys() and all(
                self.of(old[key], new[news[name]]) for name, key in olds.items()
            )
        return all(map(self.of, old, new)) if kind in SEQUENCES else token_of(old) == token_of(new)

    def beginning(self, old: Sequence[Any], new: Sequence[Any]) -> int:
        """How many items at the beginning are the same; where == can tell, whole blocks of them at a time."""
        most = min(len(old), len(new))
        for at in range(0, most, _BLOCK):
            olds, news = old[at : min(at + _BLOCK, most)], new[at : min(at + _BLOCK, most)]
            if is_equal(olds, news) and are_same_kinds([olds], [news]):
                continue
            for index, (before, after) in enumerate(zip(olds, news, strict=True), at):
                if not self.of(before, after):
                    return index
        return most


def is_equal(old: Any, new: Any) -> bool:
    """What == says. Signalling decimals and foreign objects raise, which counts as different."""
    try:
        return bool(old == new)
    except Exception:
        return False


def are_same_kinds(olds: list[Any], news: list[Any]) -> bool:
    """Whether values that are equal by == are also the same in what == overlooks, all the way down.

    Goes level by level with whole lists at a time, which is several times faster than value by value.
    """
    while olds:
        kinds = list(map(type, olds))
        if kinds != list(map(type, news)):
            return False
        present = set(kinds)
        pairs = list(zip(olds, news, strict=True)) if present - _PLAIN else []
        if present & _TOKENED and not all(
            old is new or token_of(old) == token_of(new) for old, new in pairs if type(old) in _TOKENED
        ):
            return False
        if not present & CONTAINERS:
            return True
        dicts = [pair for pair in pairs if type(pair[0]) is dict]
        if not _have_same_keys(dicts):
            return False
        old_values = chain.from_iterable(old.values() for old, _ in dicts)
        new_values = (new[key] for old, new in dicts for key in old)
        olds = [*_items_of(olds), *old_values]
        news = [*_items_of(news), *new_values]
        # Most values are texts, and a text equals nothing but the same text.
        olds = [value for value in olds if type(value) is not str]
        news = [value for value in news if type(value) is not str]
    return True


def _items_of(values: list[Any]) -> Iterator[Any]:
    return chain.from_iterable(value for value in values if type(value) in SEQUENCES)


def _have_same_keys(dicts: list[tuple[Any, Any]]) -> bool:
    """Whether no key of the new dicts is of another kind."""
    is_text = set(map(type, chain.from_iterable(chain.from_iterable(dicts)))) <= {str}
    return is_text or all(names_of(old).keys() == names_of(new).keys() for old, new in dicts)


def names_of(values: dict[Any, Any]) -> dict[Hashable, Any]:
    """The keys of a dict by what tells them apart strictly."""
    if set(map(type, values)) <= {str}:
        return {key: key for key in values}
    names: dict[Hashable, Any] = {}
    seen: Counter[Hashable] = Counter()
    for key in values:
        name = token_of(key)
        names[(name, seen[name]) if seen[name] else name] = key  # several NaN are several keys
        seen[name] += 1
    return names


def values_by_name(values: dict[Any, Any]) -> dict[Hashable, tuple[Any, Any]]:
    """Key and value by what tells the keys apart strictly."""
    return {name: (key, values[key]) for name, key in names_of(values).items()}


def token_of(value: Any) -> Hashable:
    """Something hashable that is equal for two values exactly when they are the same."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is float:
        return (kind, repr(value))
    if kind is list or kind is tuple:
        return (kind, *map(token_of, value))
    if kind is dict:
        return (kind, _bag((token_of(key), token_of(item)) for key, item in value.items()))
    if kind in SETS:
        return (kind, _bag(map(token_of, value)))
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
