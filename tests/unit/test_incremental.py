"""States that grow: what is not encoded again is what did not change, whatever was done to the values meanwhile."""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Callable
from hashlib import sha256
from types import FrameType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepkeep.codec import delta, exact, incremental
from stepkeep.codec.incremental import Derived, Following, Growing, Grown
from stepkeep.codec.integrity import RunningDigest
from stepkeep.engine import state_encoder
from stepkeep.engine.state_encoder import Frozen, IncrementalEncoder, Verbatim
from stepkeep.errors import InvalidInput

LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, -0.0, 1.0, 2.5]) | st.text()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def grown(source: Growing, state: dict[str, Any]) -> Grown:
    made = source.content(state)
    assert made is not None
    return made


@given(st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=40)), max_size=8))
def test_a_running_digest_is_the_digest(changes: list[tuple[int, bytes]]) -> None:
    """Of contents that share more, less or nothing with the one before, and end in any way."""
    running, content = RunningDigest(), bytes(3000)
    for kept, added in changes:
        shared = min(kept, len(content))
        content = content[:shared] + added
        assert running.of(content, shared) == sha256(content).hexdigest()


def test_a_list_that_stayed_and_grows_is_not_hashed_anew() -> None:
    """One that stays shares its closing bracket, one that grows does not: what lies before both is hashed once."""
    running, first = RunningDigest(), b"[" + bytes(200_000)
    running.of(first + b"]", 0)
    running.of(first + b"],1", len(first) + 1)
    held = running._bytes
    running.of(first + b",2]", len(first))
    assert running._bytes >= held > len(first) - 2000


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


def _look_alike(chosen: Any) -> None:
    """Something of another type that MessagePack writes in the same way."""
    places = list(chosen.items() if type(chosen) is dict else enumerate(chosen))
    for place, item in places:
        if type(item) is list:
            chosen[place] = tuple(item)
            return


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
    least=st.sampled_from([1, 40, incremental.MIN_ORDERED_BYTES]),
    whole=st.sampled_from([0, 20, 1000]),
)
def test_content_depends_on_the_values_alone(
    state: dict[str, Any], seed: int, least: int, whole: int
) -> None:
    """After any changes in place the bytes are those of a writer that remembers nothing, and decode to the state.

    The edits lead from the content before to this one.
    """
    choose = random.Random(seed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(incremental, "MIN_ORDERED_BYTES", least)
        patched.setattr(incremental, "_WHOLE_BYTES", whole)
        patched.setattr(incremental, "_SIMILAR_BYTES", 30)
        source = Growing()
        for _ in range(8):
            made = grown(source, state)
            assert made.content == grown(Growing(), state).content
            assert repr(exact.decode(exact.JSON, made.content, made.first_at)) == repr(state)
            assert made.digest == sha256(made.content).hexdigest()
            derived = made.derived
            assert made.content[: derived.shared] == derived.before[: derived.shared]
            if derived.edits is not None:
                packed = delta.pack_edits(derived.edits, derived.before)
                assert delta.apply_edits(derived.before, [(packed, len(made.content))]) == made.content
            for _ in range(choose.randint(0, 2)):
                choose.choice(CHANGES)(choose.choice(containers(state)))
            if choose.random() < 0.3:
                state = copy.deepcopy(state)  # as a program that reads its state anew each time


@given(
    state=st.dictionaries(st.text(max_size=3), VALUES, max_size=5),
    seed=st.integers(0, 2**32),
    whole=st.sampled_from([0, 20, 1000]),
)
def test_a_state_that_nobody_changes_has_the_same_content(
    state: dict[str, Any], seed: int, whole: int
) -> None:
    """States that share the objects of the one before, or equal ones, or none: the bytes depend on the values alone."""
    choose = random.Random(seed)
    given_before: list[tuple[dict[str, Any], str]] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(incremental, "MIN_ORDERED_BYTES", 40)
        patched.setattr(incremental, "_WHOLE_BYTES", whole)
        source = Growing(is_frozen=True)
        for _ in range(8):
            assert grown(source, state).content == grown(Growing(), state).content
            given_before.append((state, repr(state)))
            state = {
                name: value[:] if type(value) is list and choose.random() < 0.5 else value
                for name, value in state.items()
            }
            for value in [each for each in state.values() if type(each) is list]:
                if choose.random() < 0.7 and not any(
                    value is old for s, _ in given_before for old in s.values()
                ):
                    value.append({"n": choose.randint(0, 9), "b": [choose.choice([1, True, 1.0])]})
            if choose.random() < 0.5:
                state = copy.deepcopy(state)
                choose.choice(CHANGES)(choose.choice(containers(state)))
    assert all(repr(each) == then for each, then in given_before)  # nor does the encoder change them


def test_the_same_objects_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a list that nobody changes, what was there is neither packed nor encoded, however much it is."""
    seen: list[Any] = []

    def noting(value: Any, depth: int) -> tuple[bytes, Any] | None:
        seen.append(value)
        return exact.plain(value, depth)

    messages: list[Any] = [{"text": f"text {number}"} for number in range(50)]
    source = Growing(noting, is_frozen=True)
    grown(source, {"messages": messages})
    seen.clear()
    monkeypatch.setattr(incremental, "_pack", None)
    made = grown(source, {"messages": [*messages, {"text": "new"}]})
    assert seen == [[{"text": "new"}]]
    assert exact.decode(exact.JSON, made.content)["messages"] == [*messages, {"text": "new"}]


@given(state=st.dictionaries(st.text(max_size=3), VALUES, min_size=1, max_size=5))
def test_a_first_state_has_the_content_of_any_other(state: dict[str, Any]) -> None:
    """What begins with the JSON of a whole state goes on like what begins with its values."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(incremental, "MIN_ORDERED_BYTES", 10)
        patched.setattr(incremental, "_WHOLE_BYTES", 0)
        found = exact.plain(state)
        assert found is not None
        source = Growing()
        assert source.begin(*found).content == grown(Growing(), state).content
        assert grown(source, state).derived.edits == []


def test_only_new_elements_are_encoded() -> None:
    """A list that grew has its new elements encoded, also one further down, and nothing that is not new."""
    seen: list[Any] = []

    def noting(value: Any, depth: int) -> tuple[bytes, Any] | None:
        seen.append(copy.deepcopy(value))
        return exact.plain(value, depth)

    text = "x" * 2000
    state: dict[str, Any] = {
        "messages": [{"n": 1}, {"n": 2}],
        "plan": {"a": [1], "b": text, "steps": [{"s": 1}]},
        "step": 1,
    }
    source = Growing(noting)
    grown(source, state)
    seen.clear()
    state = copy.deepcopy(state)
    state["messages"].append({"n": 3})
    state["plan"]["steps"].append({"s": 2})
    state["step"] = 2
    grown(source, state)
    assert seen == [[{"n": 3}], [{"s": 2}]]


def test_a_large_value_comes_first_and_what_was_hashed_is_shared() -> None:
    """The largest value is written first, so that a list that grows shares all it had with the content before."""
    state: dict[str, Any] = {"step": 0, "messages": [], "plan": "short"}
    source = Growing()
    for step in range(40):
        state["messages"].append({"text": f"{step} " * 500})
        state["step"] = step
        made = grown(source, state)
        assert exact.decode(exact.JSON, made.content, made.first_at) == state
    assert made.first_at == 1
    assert made.content.startswith(b'{"messages":[')
    assert made.derived.shared > 0.9 * len(made.content)


def test_what_is_not_plain_json_is_left_to_others() -> None:
    """A value that needs tags, or a key that is no text, gives no content."""
    assert Growing().content({"when": (1, 2)}) is None
    assert Growing().content({1: "x"}) is None  # type: ignore[dict-item]
    assert Growing().content({"x": float("inf")}) is None
    assert Growing().content({"x": 2**64}) is None
    assert Growing().content({}) == Grown(b"{}", sha256(b"{}").hexdigest(), 0, Derived(b"", 0, _ALL))


_ALL = [delta.Edit(0, 0, b"{}")]


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
    packed = delta.pack_edits(edits, start + old)
    assert delta.apply_edits(start + old, [(packed, len(start + new))]) == start + new
    assert packed == delta.pack_edits(delta.find_edits(start + old, start + new) or [], start + old)


# --- the proof


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["a"].append(1),
        lambda value: value["a"].__setitem__(0, True),
        lambda value: value["a"].__setitem__(0, 1.0),
        lambda value: value["a"].reverse(),
        lambda value: value["a"].__setitem__(1, (2,)),
        lambda value: value["b"].__setitem__("x", -0.0),
        lambda value: value["b"].__setitem__("x", value["b"].pop("x")),
        lambda value: value["b"].update(z=value["b"].pop("y")),
        lambda value: value["b"].update({"x\0y": value["b"].pop("x")}),
        lambda value: value["b"].__setitem__("y", ()),
        lambda value: value["b"].__setitem__("y", {}),
        lambda value: value["b"].__setitem__("id", UUID(int=7)),
        lambda value: value["b"].__setitem__(7, value["b"].pop("y")),
        lambda value: value.clear(),
    ],
)
@pytest.mark.parametrize("whole", [0, 1000])
def test_a_change_in_place_is_noticed(change: Callable[[Any], object], whole: int) -> None:
    """Also one that `==` does not see (another type, another order, minus zero) or that is written in the same way."""
    value = {"a": [1, [2]], "b": {"x": 0.0, "y": [], "id": str(UUID(int=7))}}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(incremental, "_WHOLE_BYTES", whole)
        source = Growing()
        before = grown(source, {"value": value, "list": [value]}).content
        change(value)
        after = source.content({"value": value, "list": [value]})
    found = exact.plain({"value": value, "list": [value]})
    assert (None if after is None else after.content) == (None if found is None else found[0])
    assert after is None or after.content != before


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_value_that_changes_while_it_is_encoded_is_never_remembered_wrongly(moment: str) -> None:
    """Another thread changes a value in the middle of a save and takes it back: the next save stores what is there."""
    value = {"n": 1}
    state = {"value": [value], "text": "x" * 100}

    def interrupted(given: Any, depth: int) -> tuple[bytes, Any] | None:
        value["n"] = 2 if moment == "before" else 1
        found = exact.plain(given, depth)
        value["n"] = 1 if moment == "before" else 2
        return found

    source = Growing(interrupted)
    grown(source, state)
    value["n"] = 1
    source._plain = exact.plain
    made = grown(source, state)
    assert exact.decode(exact.JSON, made.content, made.first_at) == {"value": [{"n": 1}], "text": "x" * 100}


def test_references_that_multiply_are_never_followed() -> None:
    """A remembered value that became one of countless references is compared only as far as it was before."""
    state: dict[str, Any] = {"value": [[1], [2]], "text": "x" * 100}
    source = Growing()
    grown(source, state)
    bomb: list[Any] = []
    for _ in range(60):
        bomb = [bomb, bomb]
    state["value"][1] = bomb
    assert source.content(state) is None


def test_a_state_that_contains_itself_is_left_to_others() -> None:
    """Looking at it ends."""
    value: list[Any] = [1]
    source = Growing()
    grown(source, {"value": value})
    value.append(value)
    assert source.content({"value": value}) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states that were saved last stay, the oldest go; what one saver took, another does not find."""
    monkeypatch.setattr(state_encoder, "MAX_REMEMBERED", 3)
    encoder = IncrementalEncoder(exact.MAX_BYTES)
    state = {"text": "x" * state_encoder.MIN_REMEMBERED_BYTES}
    for key in "abcd":
        encoder.encode(key, state)
    assert encoder._take("a") is None
    assert encoder._take("b") is not None
    assert encoder._take("b") is None
    encoder.forget("c")
    assert encoder._take("c") is None
    assert encoder._held_bytes == len(exact.to_json(state))


@given(contents=st.lists(st.dictionaries(st.text(max_size=3), VALUES, max_size=5), min_size=2, max_size=6))
def test_json_of_others_is_kept_byte_for_byte(contents: list[dict[str, Any]]) -> None:
    """With its own blanks, its digest, and edits that lead from one to the next."""
    source = Following()
    before = b""
    for written in (json.dumps(each, ensure_ascii=True, indent=1).encode() for each in contents):
        made = source.content(written)
        assert (made.content, made.first_at, made.derived.before) == (written, 0, before)
        assert made.digest == sha256(written).hexdigest()
        assert written[: made.derived.shared] == before[: made.derived.shared]
        edits = delta.pack_edits(made.derived.edits or [], before)
        assert delta.apply_edits(before, [(edits, len(written))]) == written
        before = written


def test_what_was_promised_is_not_taken_for_more() -> None:
    """A saver that promises nothing may change what it gave: its state is never compared by its objects."""
    encoder = IncrementalEncoder(exact.MAX_BYTES)
    state: dict[str, Any] = {"messages": [{"text": "x" * state_encoder.MIN_REMEMBERED_BYTES}]}
    encoder.encode("s", Frozen(state))
    encoder.encode("s", state)
    state["messages"][0]["text"] = "y"
    assert encoder.encode("s", state).value() == state
    encoder.encode("s", Verbatim(exact.to_json(state)))
    assert encoder.encode("s", Frozen(copy.deepcopy(state))).value() == state


def test_json_of_others_has_the_limit_of_all_states() -> None:
    encoder = IncrementalEncoder(max_bytes=100)
    for encode in (lambda state: encoder.encode("s", state), encoder.whole):
        assert encode(Verbatim(b'{"a": 1}')).content == b'{"a": 1}'
        with pytest.raises(InvalidInput) as told:
            encode(Verbatim(b'{"a": "%s"}' % (b"x" * 100)))
        assert told.value.code == exact.TOO_LARGE


# --- another thread, step by step --------------------------------------------------------------------------------

Step = Callable[[Any], object]

RACES: dict[str, tuple[Step, Step]] = {
    "a number": (lambda s: s["log"][1].update(n=2), lambda s: s["log"][1].update(n=1)),
    "another type": (lambda s: s["log"][1].update(n=True), lambda s: s["log"][1].update(n=1)),
    "a new element": (lambda s: s["log"].append({"n": 9}), lambda s: s["log"].pop()),
    "the newest element": (lambda s: s["log"][-1].update(n=7), lambda s: s["log"][-1].update(n=3)),
    "a value of a dict": (lambda s: s["facts"].update(b=[5]), lambda s: s["facts"].update(b=[2])),
    "deep in a dict": (lambda s: s["facts"]["a"]["x"].append(1), lambda s: s["facts"]["a"]["x"].pop()),
    "an atom": (lambda s: s.update(done=True), lambda s: s.update(done=False)),
    "another list": (lambda s: s.update(log=[s["log"]]), lambda s: s.update(log=s["log"][0])),
}


def racing_state() -> dict[str, Any]:
    log = [{"n": 1, "text": "x" * 30_000}, {"n": 1, "text": "y" * 30_000}]
    facts = {"a": {"x": [1], "text": "z" * 20_000}, "b": [2], "c": "w" * 20_000}
    return {"log": log, "facts": facts, "done": False}


def encoded_with_a_race(
    encoder: IncrementalEncoder, state: dict[str, Any], race: tuple[Step, Step], at: int, back: int
) -> tuple[Any, int]:
    """What is encoded while something changes at one line of our code and is taken back at a later one; how many lines
    there are."""
    seen = 0

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal seen
        if "stepkeep" not in frame.f_code.co_filename:
            return None
        if event == "line":
            seen += 1
            if seen == at:
                race[0](state)
            elif seen == back:
                race[1](state)
        return trace

    sys.settrace(trace)
    try:
        body = encoder.encode("s", state)
    finally:
        sys.settrace(None)
    if at <= seen < back:
        race[1](state)
    return body.value(), seen


@pytest.mark.full
@pytest.mark.parametrize("name", RACES)
@pytest.mark.parametrize("saves_before", [0, 3])
def test_no_interleaving_of_threads_is_remembered(name: str, saves_before: int) -> None:
    """At every line of a save another thread changes a value, and takes it back at one of the next, or after the save.

    What is saved was in memory at some moment, and what is saved next, when nobody writes, is what is there.
    """
    at, lines, change = 1, 2, RACES[name][0]
    while at <= lines:
        for distance in (1, 5, 10**9):
            encoder, state = IncrementalEncoder(exact.MAX_BYTES), racing_state()
            for _ in range(saves_before):
                encoder.encode("s", state)
            state["log"].append({"n": 3, "text": "new"})
            before = copy.deepcopy(state)
            changed = copy.deepcopy(state)
            change(changed)
            value, lines = encoded_with_a_race(encoder, state, RACES[name], at, at + distance)
            assert value in (before, changed), (at, distance)
            assert repr(state) == repr(before)
            again, alone = encoder.encode("s", state), IncrementalEncoder(exact.MAX_BYTES).encode("s", state)
            assert again.content == alone.content, (at, distance)
            assert repr(again.value()) == repr(before)
        at += 1
    assert lines > 20
