"""States whose references multiply, or lead back to themselves, are refused before anyone unfolds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from stepkeep.codec import exact
from stepkeep.errors import InvalidInput


@dataclass
class Pair:
    left: Any
    right: Any


def doubled(levels: int, core: Any, both: Callable[[Any], Any]) -> Any:
    for _ in range(levels):
        core = both(core)
    return core


DOUBLINGS: dict[str, Callable[[int], Any]] = {
    "list": lambda levels: doubled(levels, [], lambda core: [core, core]),
    "dict": lambda levels: doubled(levels, {}, lambda core: {"a": core, "b": core}),
    "tuple": lambda levels: doubled(levels, (), lambda core: (core, core)),
    "of dates": lambda levels: doubled(levels, datetime(2020, 1, 1), lambda core: [core, core]),
    "key": lambda levels: {doubled(levels, (), lambda core: (core, core)): 1},
    "set": lambda levels: doubled(levels, frozenset(), lambda core: frozenset([(core, 1), (core, 2)])),
    "dataclass": lambda levels: doubled(levels, None, lambda core: Pair(core, core)),
}


@pytest.mark.parametrize("levels", [25, 30, 60])
@pytest.mark.parametrize("kind", [kind for kind in DOUBLINGS if kind != "key"])
def test_what_doubles_on_each_level_is_refused_with_its_path(kind: str, levels: int) -> None:
    """Twenty-five levels of pairs would be sixty million values, though they fit the limit of bytes."""
    with pytest.raises(InvalidInput, match="over and over") as caught:
        exact.encode({"small": [1, 2], "tree": DOUBLINGS[kind](levels)})
    assert (caught.value.code, caught.value.path) == ("state_too_large", "tree")


def test_keys_are_counted_too() -> None:
    """A tuple that is a key unfolds like any other; more levels could not even be hashed."""
    with pytest.raises(InvalidInput) as caught:
        exact.encode({"m": DOUBLINGS["key"](16)}, max_bytes=100_000)
    assert caught.value.code == "state_too_large"


def test_few_shared_references_are_saved_as_before() -> None:
    """The same record fifty thousand times, and sixteen levels of pairs, are what they are."""
    record = {f"field {number}": number for number in range(10)}
    for state in ([record] * 50_000, [(record,)] * 5_000, DOUBLINGS["list"](16), DOUBLINGS["tuple"](13)):
        assert exact.decode(*exact.encode(state)) == state


def test_many_values_that_are_really_there_are_told_apart() -> None:
    """No reference is to blame when there is simply too much."""
    with pytest.raises(InvalidInput, match="more values than fit") as caught:
        exact.encode({"rows": [[n] for n in range(1000)]}, max_bytes=2000)
    assert (caught.value.code, caught.value.path) == ("state_too_large", "rows")


def test_cycles_that_multiply_or_carry_much_are_found_at_once() -> None:
    """The path leads to the place where the state contains itself."""
    twice: list[Any] = []
    twice += [twice, twice]
    heavy: list[Any] = [[1] * 1_000_000]
    heavy.append(heavy)
    beside = {"a": DOUBLINGS["tuple"](40), "b": twice}
    for state, path in ((twice, "$[0]"), (heavy, "$[1]"), (beside, "b[0]")):
        with pytest.raises(InvalidInput, match="contains itself") as caught:
            exact.encode(state)
        assert (caught.value.code, caught.value.path) == ("state_not_exact", path)
