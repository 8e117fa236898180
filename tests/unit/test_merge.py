"""Merging two states that began as one."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given

from stepkeep.errors import Conflict
from stepkeep.history.documents import ABSENT
from stepkeep.history.equality import is_same
from stepkeep.history.merge import MAX_TOLD, MergeConflict, merge_states
from stepkeep.history.paths import format_path
from stepkeep.testing.strategies import states


def merged(base: object, ours: object, theirs: object, **options: Any) -> Any:
    return merge_states(base, ours, theirs, **options).state


def clashes(base: object, ours: object, theirs: object) -> dict[str, tuple[Any, Any, Any]]:
    """The clashes of a merge that is refused, by path."""
    with pytest.raises(MergeConflict) as caught:
        merge_states(base, ours, theirs)
    return {format_path(each.path): (each.base, each.ours, each.theirs) for each in caught.value.clashes}


# --- what merges


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "result"),
    [
        ({"n": 1}, {"n": 1}, {"n": 2}, {"n": 2}),
        ({"n": 1}, {"n": 2}, {"n": 1}, {"n": 2}),
        ({"n": 1}, {"n": 2}, {"n": 2}, {"n": 2}),
        ({}, {"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1, "b": 2}, {"b": 2}, {"a": 1, "b": 3}, {"b": 3}),
        ({"a": 1, "b": 2}, {"a": 1}, {"a": 1}, {"a": 1}),
        ({"d": {"x": 1, "y": 1}}, {"d": {"x": 2, "y": 1}}, {"d": {"x": 1, "y": 2}}, {"d": {"x": 2, "y": 2}}),
        ({}, {"d": {"x": 1}}, {"d": {"y": 2}}, {"d": {"x": 1, "y": 2}}),
        ({"l": [1]}, {"l": [1]}, {"l": []}, {"l": []}),
        ({"l": [1]}, {"l": [1, 2]}, {"l": [1, 3, 4]}, {"l": [1, 2, 3, 4]}),
        ([], ["ours"], ["theirs"], ["ours", "theirs"]),
        ({"s": {1, 2, 3}}, {"s": {2, 3, 4}}, {"s": {1, 2, 5}}, {"s": {2, 4, 5}}),
        ({"n": math.nan, "a": 1}, {"n": math.nan, "a": 2}, {"n": math.nan, "b": 1, "a": 1}, None),
        ((1, 2), (1, 2), (1, 2, 3), (1, 2, 3)),
        (None, None, 5, 5),
    ],
)
def test_changes_of_both_sides_are_kept(base: object, ours: object, theirs: object, result: object) -> None:
    """What one side changed is taken, dicts and sets by their parts, appended lists with the additions of both."""
    found = merged(base, ours, theirs)
    if result is None:
        result = {"n": math.nan, "a": 2, "b": 1}
    assert is_same(found, result)


def test_keys_of_ours_come_first() -> None:
    """The order of keys is that of ours, then what theirs has more."""
    assert list(merged({"a": 1}, {"z": 1, "a": 1}, {"a": 1, "b": 1})) == ["z", "a", "b"]


def test_exact_types_survive() -> None:
    """Values come through as they are, with types that JSON lacks, and keys that are equal only loosely."""
    when = datetime(2025, 1, 20, tzinfo=UTC)
    ours: dict[Any, Any] = {1: "int", "t": (1, [2]), "when": when, "f": frozenset({b"x"})}
    assert is_same(merged({}, ours, {"b": b"\0", -0.0: 0.0}), {**ours, "b": b"\0", -0.0: 0.0})


# --- what clashes


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "path"),
    [
        ({"n": 1}, {"n": 2}, {"n": 3}, "n"),
        ({"n": 1}, {"n": 1.0}, {"n": True}, "n"),
        ({"a": {"b": [{"c": 1}]}}, {"a": {"b": [{"c": 2}]}}, {"a": {"b": [{"c": 3}]}}, "a.b"),
        ({"l": [1]}, {"l": [2]}, {"l": [1, 3]}, "l"),
        ({"t": (1,)}, {"t": (1, 2)}, {"t": (1, 3)}, "t"),
        ({}, {"l": [1]}, {"l": [2]}, "l"),
        ({"d": 1}, {"d": {"x": 1}}, {"d": {"y": 1}}, "d"),
        (1, 2, 3, "$"),
    ],
)
def test_different_changes_of_one_place_clash(base: Any, ours: Any, theirs: Any, path: str) -> None:
    """What both sides changed differently is named by its path."""
    assert list(clashes(base, ours, theirs)) == [path]


def test_a_removal_clashes_with_a_change() -> None:
    """What one side removed and the other changed is nobody's to decide."""
    assert clashes({"a": 1}, {}, {"a": 2}) == {"a": (1, ABSENT, 2)}
    assert clashes({"a": 1}, {"a": 2}, {}) == {"a": (1, 2, ABSENT)}
    assert merged({"a": 1}, {}, {"a": 2}, prefer="ours") == {}
    assert merged({"a": 1}, {}, {"a": 2}, prefer="theirs") == {"a": 2}


def test_keys_that_are_one_key_of_a_dict_clash() -> None:
    """1 and True differ, yet no dict has both: their dict as a whole clashes."""
    assert list(clashes({"d": {}}, {"d": {1: "a"}}, {"d": {True: "b"}})) == ["d"]
    assert list(clashes({"s": set()}, {"s": {1}}, {"s": {True}})) == ["s"]


def test_all_clashes_are_told_at_once() -> None:
    """The error has all of them, its message the first ones, and it is a conflict that no retry solves."""
    keys = [f"k{number:02}" for number in range(MAX_TOLD + 5)]
    with pytest.raises(Conflict) as caught:
        merge_states(dict.fromkeys(keys, 0), dict.fromkeys(keys, 1), dict.fromkeys(keys, "x" * 500))
    assert isinstance(caught.value, MergeConflict)
    assert (caught.value.code, caught.value.retryable) == ("merge_conflict", False)
    assert len(caught.value.clashes) == len(keys)
    assert "both sides changed 25 places" in caught.value.message
    assert "k00: was 0, ours 1, theirs " in caught.value.message
    assert caught.value.message.endswith("and 5 more")
    assert len(caught.value.message) < 5000


def test_a_preferred_side_decides_clashes_only() -> None:
    """The rest is merged as ever, and what was decided is reported."""
    base, ours, theirs = {"n": 0, "l": []}, {"n": 1, "l": [1]}, {"n": 2, "l": [2], "m": 3}
    found = merge_states(base, ours, theirs, prefer="theirs")
    assert found.state == {"n": 2, "l": [1, 2], "m": 3}
    assert [(each.path, each.ours, each.theirs) for each in found.clashes] == [(("n",), 1, 2)]


def test_without_a_base_only_what_cannot_be_wrong_merges() -> None:
    """Equal values and keys of one side alone merge; everything else clashes."""
    assert merged(ABSENT, {"a": 1, "d": {"x": 1}}, {"a": 1, "d": {"y": 2}}) == {"a": 1, "d": {"x": 1, "y": 2}}
    assert clashes(ABSENT, {"a": 1, "l": [1]}, {"a": 2, "l": [1, 2]}) == {
        "a": (ABSENT, 1, 2),
        "l": (ABSENT, [1], [1, 2]),
    }


def test_deep_states_merge() -> None:
    """As deep as a state may be nested."""
    base: Any = {}
    ours: Any = {"ours": 1}
    theirs: Any = {"theirs": 1}
    for _ in range(190):
        base, ours, theirs = {"d": base}, {"d": ours}, {"d": theirs}
    found = merged(base, ours, theirs)
    for _ in range(190):
        found = found["d"]
    assert found == {"ours": 1, "theirs": 1}


# --- laws


@given(states(), states())
def test_a_side_that_changed_nothing_yields(base: object, other: object) -> None:
    """Merging with a side that changed nothing gives the other, from whichever side."""
    assert is_same(merged(base, base, other), other)
    assert is_same(merged(base, other, base), other)
    assert is_same(merged(base, other, other), other)


@given(states(), states(), states())
def test_every_merge_ends_and_both_sides_agree(base: object, ours: object, theirs: object) -> None:
    """Any three states merge or clash, changing none of them, and exchanging the sides clashes in the same places."""
    copies = [repr(each) for each in (base, ours, theirs)]
    found = merge_states(base, ours, theirs, prefer="ours")
    exchanged = merge_states(base, theirs, ours, prefer="theirs")
    assert {format_path(each.path) for each in found.clashes} == {
        format_path(each.path) for each in exchanged.clashes
    }
    assert [repr(each) for each in (base, ours, theirs)] == copies
