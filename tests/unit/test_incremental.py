"""States that grow: what is not encoded again is what did not change, whatever was done to the values meanwhile."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepkeep.codec import delta, exact, incremental
from stepkeep.codec.incremental import Growing, Grown, Watch

LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, -0.0, 1.0, 2.5]) | st.text()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def plain(value: Any) -> bytes | None:
    encoding, content = exact.encode(value)
    return content if encoding == exact.JSON else None


def grown(source: Growing, state: dict[str, Any]) -> Grown:
    made = source.content(state)
    assert made is not None
    return made


# --- ways to change a state in place, some of which `==` does not notice


def containers(value: Any) -> list[Any]:
    inner = value.values() if type(value) is dict else value if type(value) is list else ()
    found = [value] if type(value) in (dict, list) else []
    return found + [each for item in inner for each in containers(item)]


def _other_type(chosen: Any) -> None:
    twins = {bool: int, int: float, float: int}
    places = list(chosen.items() if type(chosen) is dict else enumerate(chosen))
    for place, item in places:
        if type(item) in twins:
            chosen[place] = -item if item == 0 and type(item) is float else twins[type(item)](item)
            return


def _reorder(chosen: Any) -> None:
    if type(chosen) is list:
        chosen.reverse()
    elif chosen:
        name = next(iter(chosen))
        chosen[name] = chosen.pop(name)


def _rename(chosen: Any) -> None:
    if type(chosen) is dict and chosen:
        items = [(f"{name}'" if at == 0 else name, item) for at, (name, item) in enumerate(chosen.items())]
        chosen.clear()
        chosen.update(items)


def _shorten(chosen: Any) -> None:
    if chosen:
        chosen.popitem() if type(chosen) is dict else chosen.pop()


def _lengthen(chosen: Any) -> None:
    if type(chosen) is dict:
        chosen[f"new {len(chosen)}"] = [1]
    else:
        chosen.append({"text": "more", "n": len(chosen)})


def _copied(chosen: Any) -> None:
    if type(chosen) is list:
        chosen[:] = copy.deepcopy(chosen)


CHANGES: tuple[Callable[[Any], None], ...] = (
    _other_type,
    _reorder,
    _rename,
    _shorten,
    _lengthen,
    _copied,
    lambda _: None,
)


@given(
    state=st.dictionaries(st.text(max_size=3), VALUES, max_size=5),
    seed=st.integers(0, 2**32),
    large=st.sampled_from([1, 40, incremental.LARGE_BYTES]),
)
def test_content_depends_on_the_values_alone(state: dict[str, Any], seed: int, large: int) -> None:
    """After any changes in place the bytes are those of a writer that remembers nothing, and decode to the state."""
    choose = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(incremental, "LARGE_BYTES", large)
        source = Growing(plain)
        for _ in range(8):
            made = grown(source, state)
            assert made.content == grown(Growing(plain), state).content
            in_order = {name: state[name] for name in made.order}
            assert repr(exact.decode(exact.JSON, made.content)) == repr(in_order)
            assert made.digest == sha256(made.content).hexdigest()
            assert made.content[: made.shared] == made.before[: made.shared]
            for _ in range(choose.randint(0, 2)):
                choose.choice(CHANGES)(choose.choice(containers(state)))
            if choose.random() < 0.3:
                state = dict(state)  # as LangGraph hands over a dict of its own each time


def test_only_new_elements_are_encoded() -> None:
    """A list that grew has its new elements encoded, and nothing else of the state that is not new."""
    seen: list[Any] = []

    def noting(value: Any) -> bytes | None:
        seen.append(copy.deepcopy(value))
        return plain(value)

    state: dict[str, Any] = {"messages": [{"n": 1}, {"n": 2}], "plan": {"a": [1]}, "step": 1}
    source = Growing(noting)
    grown(source, state)
    seen.clear()
    state["messages"] = [*state["messages"], {"n": 3}]
    state["step"] = 2
    grown(source, state)
    assert seen == [[{"n": 3}], 2]


def test_a_large_value_comes_first_and_what_was_hashed_is_shared() -> None:
    """The largest value is written first, so that a list that grows shares all it had with the content before."""
    state: dict[str, Any] = {"step": 0, "messages": [], "plan": "short"}
    source = Growing(plain)
    for step in range(40):
        state["messages"].append({"text": f"{step} " * 500})
        state["step"] = step
        made = grown(source, state)
        assert exact.decode(exact.JSON, made.content) == state
    assert made.order == ["messages", "step", "plan"]
    assert made.shared > 0.9 * len(made.content)


def test_what_is_not_plain_json_is_left_to_others() -> None:
    """A value that needs tags, or a key that is no text, gives no content."""
    assert Growing(plain).content({"when": (1, 2)}) is None
    assert Growing(plain).content({1: "x"}) is None  # type: ignore[dict-item]
    assert Growing(plain).content({}) == Grown(b"{}", sha256(b"{}").hexdigest(), [], b"", 0, 0)


@given(
    old=st.binary(max_size=200),
    new=st.binary(max_size=200),
    start=st.binary(max_size=100),
    told=st.floats(0, 1),
)
def test_a_patch_that_is_told_what_is_shared_gives_the_same_content(
    old: bytes, new: bytes, start: bytes, told: float
) -> None:
    """Whatever part of the shared start is known, the edits lead to the new content, and to no more than it takes."""
    shared = int(told * len(start))
    edits = delta.find_edits(start + old, start + new, shared)
    assert edits is not None
    packed = delta.pack_edits(edits)
    assert delta.apply_edits(start + old, [(packed, len(start + new))]) == start + new
    assert packed == delta.pack_edits(delta.find_edits(start + old, start + new) or [])


# --- the proof


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["a"].append(1),
        lambda value: value["a"].__setitem__(0, True),
        lambda value: value["a"].__setitem__(0, 1.0),
        lambda value: value["a"].reverse(),
        lambda value: value["b"].__setitem__("x", -0.0),
        lambda value: value["b"].__setitem__("x", value["b"].pop("x")),
        lambda value: value["b"].update(z=value["b"].pop("y")),
        lambda value: value["b"].update({"x\0y": value["b"].pop("x")}),
        lambda value: value.__setitem__("c", "".join(["te", "xt"])),
        lambda value: value["b"].__setitem__(7, value["b"].pop("y")),
        lambda value: value.clear(),
    ],
)
def test_a_change_in_place_is_noticed(change: Callable[[Any], object]) -> None:
    """Also one that `==` does not see: another type, another order, minus zero."""
    value = {"a": [1, 2], "b": {"x": 0.0, "y": []}, "c": "".join(["t", "ext"])}
    watch = Watch()
    assert watch.add([value])
    assert watch.holds()
    change(value)
    assert not watch.holds()


@pytest.mark.parametrize("value", [(1,), {1: 2}, {"a\0": 1}, {"a": [{3}]}, b"x", object(), [[1j]]])
def test_what_cannot_be_watched_says_so(value: Any) -> None:
    """Only dicts with text keys, lists, texts, numbers, booleans and None are watched."""
    assert not Watch().add([value])


def test_a_state_that_contains_itself_is_not_watched_for_ever() -> None:
    """Looking at it ends."""
    value: list[Any] = []
    value += [value, value]
    assert not Watch().add(value)
