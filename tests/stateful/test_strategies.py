"""The strategies give what can be saved, and their equality is strict."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from stepkeep.codec import exact
from stepkeep.testing import histories, same, states


@given(state=states())
def test_every_state_can_be_saved(state: Any) -> None:
    """The exact encoding refuses none, and gives back the same."""
    assert same(exact.decode(*exact.encode(state)), state)


@given(history=histories(min_size=2, max_size=6))
def test_a_history_goes_by_single_edits(history: list[dict[str, Any]]) -> None:
    """Two neighbours differ in one key at most."""
    assert 2 <= len(history) <= 6
    for before, after in pairwise(history):
        changed = {
            key
            for key in before.keys() | after.keys()
            if (key in before) != (key in after) or not same(before[key], after[key])
        }
        assert len(changed) <= 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1}, frozenset({1})),
        (Decimal("1.0"), Decimal("1.00")),
        (datetime(2025, 1, 1), datetime(2025, 1, 1, tzinfo=UTC)),
        ("a", b"a"),
        ([], {}),
    ],
)
def test_nearly_equal_is_not_the_same(one: object, other: object) -> None:
    """Type, sign, order, digits and zone count."""
    assert same(one, one)
    assert not same(one, other)


def test_a_nan_is_the_same_as_a_nan() -> None:
    """All NaN floats are one value."""
    assert same([float("nan")], [float("nan")])
