"""Hypothesis strategies for states, and for histories in which each state is an edit of the one before."""

from __future__ import annotations

import string
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

KEYS: Final = ("messages", "plan", "notes", "$dict", "", "é 🪢")
"""Few, so that edits meet each other; some look like the marks of an encoding."""


class StateEdit(NamedTuple):
    """One change of a state at its top level."""

    key: str
    value: Any
    is_removal: bool = False

    def apply(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A new state; the old one stays as it is."""
        if self.is_removal:
            return {key: value for key, value in state.items() if key != self.key}
        return {**state, self.key: self.value}


def leaves() -> SearchStrategy[Any]:
    """Values without parts, of every kind a state may hold that tells equal from nearly equal."""
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(2**200), 2**200),
        st.floats(),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.binary(max_size=20),
        st.datetimes(),
        st.decimals(allow_nan=False),
        st.uuids(),
    )


def states(max_leaves: int = 8) -> SearchStrategy[Any]:
    """Anything that can be saved."""
    names = st.text(string.ascii_lowercase + "$", max_size=5)
    keys = names | st.integers()
    return st.recursive(
        leaves() | st.frozensets(names, max_size=3),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(names, inner, max_size=4),
            st.dictionaries(keys, inner, max_size=3),
        ),
        max_leaves=max_leaves,
    )


def edits() -> SearchStrategy[StateEdit]:
    return st.builds(
        StateEdit, st.sampled_from(KEYS), states(max_leaves=4), st.sampled_from([False, False, False, True])
    )


def histories(*, min_size: int = 1, max_size: int = 10) -> SearchStrategy[list[dict[str, Any]]]:
    """The states of a run: each but the first is the one before it with one edit."""
    first = st.dictionaries(st.sampled_from(KEYS), states(max_leaves=4), max_size=4)
    later = st.lists(edits(), min_size=min_size - 1, max_size=max_size - 1)
    return st.builds(
        lambda state, some: list(accumulate(some, lambda before, edit: edit.apply(before), initial=state)),
        first,
        later,
    )


def same(one: object, other: object) -> bool:
    """Whether two states are equal in value, type and order, all the way down. A NaN equals a NaN."""
    return _written(one) == _written(other)


def _written(value: object) -> str:
    """`repr` tells types, signs, order and zones apart; only sets have no order of their own."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_written(key)}: {_written(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(_written, value))})"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({', '.join(sorted(map(_written, value)))})"
    return repr(value)
