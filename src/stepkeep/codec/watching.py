"""Proof that values did not change since they were looked at last, without encoding or comparing their texts.

Texts, numbers, booleans and None never change. Containers may, at any moment and in place, so each one is kept together
with the very objects it held. It is unchanged if it still holds these objects, one by one and in the same order.
Keeping them also keeps their identities from being used again, so the proof has no gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any, Final

from stepkeep.codec.refusal import ATOMS

MAX_WATCHED: Final = 1_000_000
"""More values than this are not watched: shared references may multiply without end."""


_attributes: Final = attrgetter("__dict__", "__pydantic_extra__")
_values = dict.values


def no_objects(kind: type) -> bool:  # noqa: ARG001
    """Only dicts and lists are watched."""
    return False


class Watch:
    """Some values, and everything in them, as they were when they were added.

    Besides dicts with text keys and lists it takes objects of the classes that `is_open` accepts: models of pydantic
    whose whole content is in their fields.
    """

    def __init__(self, is_open: Callable[[type], bool] = no_objects) -> None:
        self._is_open = is_open
        self._dicts: list[dict[str, Any]] = []
        self._sizes: list[int] = []
        self._keys = ""
        self._values: list[Any] = []
        self._lists: list[list[Any]] = []
        self._lengths: list[int] = []
        self._items: list[Any] = []
        self._objects: list[Any] = []
        self._kinds: list[type] = []
        self._parts: list[Any] = []

    def add(self, values: Iterable[Any]) -> bool:
        """Watch more values. False if one of them cannot be watched: then this watch proves nothing any more."""
        level = _changeable(values)
        while level:
            present = set(map(type, level))
            below: list[Any] = []
            if dict in present:
                dicts = [value for value in level if type(value) is dict]
                if not _have_plain_keys(dicts):
                    return False
                below += self._add_dicts(dicts)
            if list in present:
                below += self._add_lists([value for value in level if type(value) is list])
            if others := present - {dict, list}:
                if not all(map(self._is_open, others)):
                    return False
                below += self._add_objects([value for value in level if type(value) in others])
            if len(self._values) + len(self._items) > MAX_WATCHED:
                return False
            level = _changeable(below)
        return True

    def _add_dicts(self, dicts: list[dict[Any, Any]]) -> list[Any]:
        held = list(chain.from_iterable(map(_values, dicts)))
        self._dicts += dicts
        self._sizes += map(len, dicts)
        self._keys += _keys(dicts)
        self._values += held
        return held

    def _add_lists(self, lists: list[list[Any]]) -> list[Any]:
        held = list(chain.from_iterable(lists))
        self._lists += lists
        self._lengths += map(len, lists)
        self._items += held
        return held

    def _add_objects(self, objects: list[Any]) -> list[Any]:
        held = list(chain.from_iterable(map(_attributes, objects)))
        self._objects += objects
        self._kinds += map(type, objects)
        self._parts += held
        return held

    def holds(self) -> bool:
        """Whether nothing in the values changed since they were added."""
        try:
            return (
                list(map(len, self._dicts)) == self._sizes
                and _keys(self._dicts) == self._keys
                and _are(chain.from_iterable(map(_values, self._dicts)), self._values)
                and list(map(len, self._lists)) == self._lengths
                and _are(chain.from_iterable(self._lists), self._items)
                and _are(map(type, self._objects), self._kinds)
                and _are(chain.from_iterable(map(_attributes, self._objects)), self._parts)
            )
        except (AttributeError, RuntimeError, TypeError):  # it is changing, or a key is no text any more
            return False


def _keys(dicts: Iterable[dict[str, Any]]) -> str:
    """All keys as one text, each ended by NUL: joining is quicker than comparing them one by one.

    For as many keys of which none has a NUL, equal texts mean equal keys.
    """
    return "\0".join((*chain.from_iterable(dicts), ""))


def _have_plain_keys(dicts: list[dict[Any, Any]]) -> bool:
    keys = list(chain.from_iterable(dicts))
    return set(map(type, keys)) <= {str} and not any("\0" in key for key in keys)


def _changeable(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if type(value) not in ATOMS]


def _are(now: Iterable[Any], then: Sequence[Any]) -> bool:
    return all(map(is_, now, then))
