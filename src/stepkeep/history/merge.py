"""Merging two states that began as one. Pure: three states in, one state and the clashes out.

Compared with the state both began from:

- what only one side changed is taken from that side, and what both changed alike stands;
- dicts are merged key by key, sets member by member;
- a list that both sides only appended to gets the additions of ours, then those of theirs;
- everything else that both sides changed is a clash, and so is a removal against a change.

Equality is strict, as in `compare`: `True`, `1` and `1.0` differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

import msgspec

from stepkeep.errors import Conflict
from stepkeep.history.paths import Path, format_path
from stepkeep.history.rendering import value_text
from stepkeep.history.sameness import SETS, Sameness, names_of, with_room

Side: TypeAlias = Literal["ours", "theirs"]

MAX_TOLD: Final = 20
"""How many clashes the message of a `MergeConflict` describes; its `clashes` are all of them."""


class Absent(Enum):
    """Stands for a value that a state does not have."""

    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = Absent.ABSENT


class Clash(msgspec.Struct, frozen=True):
    """A place that both sides changed differently. A value is `ABSENT` where that state has none."""

    path: Path
    base: Any
    ours: Any
    theirs: Any


class MergedState(msgspec.Struct, frozen=True):
    """A merged state, and the clashes that were decided for one side. Parts are shared with the states given."""

    state: Any
    clashes: tuple[Clash, ...] = ()


class MergeConflict(Conflict):
    """Two branches changed the same places differently. `clashes` are all of them; nothing was written."""

    code = "merge_conflict"
    retryable = False

    def __init__(
        self, message: str, clashes: Iterable[Clash], *, session: str | None = None, branch: str | None = None
    ) -> None:
        super().__init__(message, session=session, branch=branch)
        self.clashes = tuple(clashes)


def merge_states(base: object, ours: object, theirs: object, *, prefer: Side | None = None) -> MergedState:
    """The state that has the changes of both sides since `base`.

    Without a base (`ABSENT`) only what is equal, and keys that one side alone has, can be merged. A clash is
    decided for the side that is preferred.

    Raises:
        MergeConflict: there are clashes, and no side is preferred.
    """
    walk = _Walk(prefer or "ours")
    state = with_room(lambda: walk.merge((), base, ours, theirs))
    if walk.clashes and prefer is None:
        raise MergeConflict(describe(walk.clashes), walk.clashes)
    return MergedState(state, tuple(walk.clashes))


def describe(clashes: Sequence[Clash]) -> str:
    """The clashes in words, one per line."""
    count = "one place" if len(clashes) == 1 else f"{len(clashes):,} places"
    more = [f"and {len(clashes) - MAX_TOLD:,} more"] if len(clashes) > MAX_TOLD else []
    return "\n  ".join([f"both sides changed {count}:", *map(_line, clashes[:MAX_TOLD]), *more])


def _line(clash: Clash) -> str:
    base, ours, theirs = map(_text, (clash.base, clash.ours, clash.theirs))
    return f"{format_path(clash.path)}: was {base}, ours {ours}, theirs {theirs}"


def _text(value: object) -> str:
    return "absent" if value is ABSENT else value_text(value)


class _Walk:
    """Walks three states side by side and collects the clashes."""

    def __init__(self, preferred: Side) -> None:
        self.clashes: list[Clash] = []
        self._preferred = preferred
        self._same = Sameness()

    def merge(self, path: Path, base: Any, ours: Any, theirs: Any) -> Any:
        if self._same.of(ours, theirs) or self._same.of(base, theirs):
            return ours
        if self._same.of(base, ours):
            return theirs
        kind = type(ours)
        if kind is type(theirs):
            if kind is dict and type(base) in (dict, Absent):
                return self._dicts(path, base, ours, theirs)
            if kind is list and type(base) is list and self._are_appended(base, ours, theirs):
                return [*ours, *theirs[len(base) :]]
            if kind in SETS and type(base) is kind:
                return self._sets(path, base, ours, theirs)
        return self._clash(path, base, ours, theirs)

    def _clash(self, path: Path, base: Any, ours: Any, theirs: Any) -> Any:
        self.clashes.append(Clash(path, base, ours, theirs))
        return ours if self._preferred == "ours" else theirs

    def _dicts(self, path: Path, base: Any, ours: dict[Any, Any], theirs: dict[Any, Any]) -> Any:
        bases = {} if base is ABSENT else _values_by_name(base)
        our_names, their_names = _values_by_name(ours), _values_by_name(theirs)
        merged = {}
        for name in our_names | their_names:
            absent = (None, ABSENT)
            key = our_names.get(name, their_names.get(name, absent))[0]
            sides = (names.get(name, absent)[1] for names in (bases, our_names, their_names))
            value = self.merge((*path, key), *sides)
            if value is not ABSENT:
                merged[name] = (key, value)
        result = dict(merged.values())
        # Keys that differ strictly may still be one key of a dict, such as 1 and True.
        return result if len(result) == len(merged) else self._clash(path, base, ours, theirs)

    def _sets(self, path: Path, base: Any, ours: Any, theirs: Any) -> Any:
        """A member stays if both have it or one side added it."""
        bases, our_names, their_names = (names_of(dict.fromkeys(each)) for each in (base, ours, theirs))
        both = their_names | our_names
        wanted = (our_names.keys() & their_names.keys()) | (both.keys() - bases.keys())
        merged = type(ours)(both[name] for name in wanted)
        return merged if len(merged) == len(wanted) else self._clash(path, base, ours, theirs)

    def _are_appended(self, base: list[Any], ours: list[Any], theirs: list[Any]) -> bool:
        return all(self._same.beginning(base, each) == len(base) for each in (ours, theirs))


def _values_by_name(values: dict[Any, Any]) -> dict[Any, tuple[Any, Any]]:
    """Key and value by what tells the keys apart strictly."""
    return {name: (key, values[key]) for name, key in names_of(values).items()}
