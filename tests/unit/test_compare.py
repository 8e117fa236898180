"""The compare engine: what differs, strictly, completely, in bounded work, and how it reads."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepkeep.codec import exact
from stepkeep.errors import InvalidInput
from stepkeep.history.changes import SIGNS, StateChange, change_text, value_text
from stepkeep.history.equality import is_same
from stepkeep.history.paths import ItemById, Path, SetMember, find, format_path, parse_path
from stepkeep.history.state_diff import Comparison, compare
from tests.unit.test_exact import states

NAN = math.nan


# --- an oracle: one text for each value, and the changes applied


def canon(value: Any) -> str:
    """A text that two values share exactly when they are the same; the order of keys plays no part."""
    kind = type(value)
    if kind is dict:
        return f"dict{sorted(canon(key) + ':' + canon(item) for key, item in value.items())}"
    if kind in (set, frozenset):
        return f"{kind.__name__}{sorted(map(canon, value))}"
    if kind in (list, tuple):
        return f"{kind.__name__}{list(map(canon, value))}"
    return f"{kind.__name__} {exact.encode(value)[1].decode()}"


def apply(old: Any, changes: Iterable[StateChange], depth: int = 0) -> Any:
    """The state that the changes make of the old one."""
    changes = list(changes)
    for change in changes:
        if len(change.path) == depth:
            assert change.kind == "changed"
            assert canon(change.old) == canon(old)
            return change.new
    if not changes:
        return old
    here = [each for each in changes if len(each.path) == depth + 1 and each.kind != "changed"]
    below: dict[str, list[StateChange]] = {}
    for each in changes:
        if each not in here:
            below.setdefault(name_of(each.path[depth]), []).append(each)
    if isinstance(old, dict):
        pairs = {canon(key): (key, value) for key, value in old.items()}
        for each in here:
            if each.kind == "removed":
                del pairs[canon(each.path[-1])]
        for each in here:
            if each.kind == "added":
                pairs[canon(each.path[-1])] = (each.path[-1], each.new)
        return {key: apply(value, below.get(name, ()), depth + 1) for name, (key, value) in pairs.items()}
    if isinstance(old, list | tuple):
        items = placed(old, here)
        return type(old)(apply(item, below.get(canon(at), ()), depth + 1) for at, item in enumerate(items))
    members = {canon(value): value for value in old}
    for each in here:
        if each.kind == "removed":
            del members[canon(each.old)]
    for each in here:
        if each.kind == "added":
            members[canon(each.new)] = each.new
    return type(old)(members.values())


def placed(old: Any, here: Sequence[StateChange]) -> list[Any]:
    """The items of a list after removals, additions and moves, before changes inside them."""
    gone = {at(each.path[-1]) for each in here if each.kind == "removed"}
    gone |= {each.old for each in here if each.kind == "moved"}
    fixed = {at(each.path[-1]): each.new for each in here if each.kind == "added"}
    fixed |= {each.new: old[each.old] for each in here if each.kind == "moved"}
    rest = iter([item for place, item in enumerate(old) if place not in gone])
    return [
        fixed[place] if place in fixed else next(rest) for place in range(len(old) - len(gone) + len(fixed))
    ]


def at(step: Any) -> Any:
    return step.index if isinstance(step, ItemById) else step


def name_of(step: Any) -> str:
    return canon(at(step))


# --- small states, so that two of them have much in common

leaves = st.sampled_from(
    [
        *(None, True, False, 0, 1, 1.0, 0.0, -0.0, NAN, "a", "b", b"a", Decimal("1"), Decimal("1.0")),
        datetime(2025, 1, 20, 14, tzinfo=UTC),
        datetime(2025, 1, 20, 15, tzinfo=timezone(timedelta(hours=1))),
    ]
)
small_keys = st.sampled_from(["a", "b", "id", "name", 0, 1, True, 1.0, None, (1, 0.0), (True, -0.0), NAN])
ids = st.sampled_from(["m1", "m2", "m3", 1, 2])
small_states = st.recursive(
    leaves | st.sets(st.sampled_from([0, 1.0, True, "a", NAN, (1,), (True,)]), max_size=3),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(small_keys, inner, max_size=4),
        st.dictionaries(ids, inner, max_size=5).map(
            lambda values: [{"id": each, "text": text} for each, text in values.items()]
        ),
    ),
    max_leaves=20,
)


@given(small_states, small_states)
def test_the_changes_lead_from_old_to_new(old: Any, new: Any) -> None:
    """Nothing is missed and nothing invented: applied to the old state, the changes give the new one."""
    comparison = compare(old, new)
    assert canon(apply(old, comparison.changes)) == canon(new)
    assert comparison.is_equal == (canon(old) == canon(new)) == is_same(old, new)
    assert comparison.total == len(comparison.changes)


texts = st.lists(st.sampled_from("abcdefgh"), max_size=30)


@given(texts, texts)
def test_lists_are_aligned_completely(old: list[str], new: list[str]) -> None:
    """Also where items repeat, moved apart and together."""
    comparison = compare(old, new)
    assert apply(old, comparison.changes) == new
    assert comparison.added - comparison.removed == len(new) - len(old)


@given(st.lists(st.integers(0, 30), unique=True), st.lists(st.integers(0, 30), unique=True))
def test_lists_by_id_are_aligned_completely(old: list[int], new: list[int]) -> None:
    """Added, removed and moved items are told apart, each item by its id."""
    comparison = compare([{"id": each} for each in old], [{"id": each} for each in new])
    assert apply([{"id": each} for each in old], comparison.changes) == [{"id": each} for each in new]
    assert (comparison.added, comparison.removed) == (len({*new} - {*old}), len({*old} - {*new}))
    assert comparison.changed == 0


@given(states, states)
def test_any_two_states_can_be_compared(old: Any, new: Any) -> None:
    """Whatever can be saved can be compared and shown, and equal means the same."""
    comparison = compare(old, new)
    assert comparison.is_equal == (canon(old) == canon(new))
    assert all(isinstance(text, str) for text in comparison.lines())
    assert comparison.summary


@given(states)
def test_a_state_equals_its_copy(state: Any) -> None:
    """A state that was saved and loaded twice has no differences, whatever it holds."""
    stored = exact.encode(state)
    comparison = compare(exact.decode(*stored), exact.decode(*stored))
    assert comparison.is_equal
    assert comparison.changes == ()
    assert comparison.summary == "no changes"
    assert comparison.lines() == ["No differences."]


flat_states = st.recursive(
    leaves | st.sets(st.sampled_from("abc")),
    lambda inner: st.dictionaries(small_keys, inner, max_size=5),
    max_leaves=20,
)


@given(flat_states, flat_states)
def test_counts_are_symmetric(old: Any, new: Any) -> None:
    """What is added one way is removed the other way."""
    there, back = compare(old, new), compare(new, old)
    assert (there.added, there.removed, there.changed) == (back.removed, back.added, back.changed)


@given(small_states, small_states, st.integers(0, 3))
def test_a_limit_keeps_the_first_and_counts_all(old: Any, new: Any, limit: int) -> None:
    """The numbers and the summary do not depend on how many changes are kept."""
    full, cut = compare(old, new), compare(old, new, limit=limit)
    assert len(cut.changes) == min(limit, full.total)
    assert (cut.added, cut.removed, cut.changed, cut.moved, cut.summary) == (
        (full.added, full.removed, full.changed, full.moved, full.summary)
    )


def test_a_negative_limit_is_refused() -> None:
    """A limit counts changes."""
    with pytest.raises(InvalidInput):
        compare({}, {}, limit=-1)


# --- examples


def paths(comparison: Comparison) -> list[str]:
    return [f"{SIGNS[each.kind]} {format_path(each.path)}" for each in comparison.changes]


STRICT: list[tuple[Any, Any]] = [
    (True, 1),
    (1, 1.0),
    (0.0, -0.0),
    (Decimal("1.0"), Decimal("1.00")),
    ([1], (1,)),
    ({1}, frozenset({1})),
    (b"a", bytearray(b"a")),
    (b"a", "a"),
    (datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))),
    (datetime(2025, 10, 26, 2, fold=0), datetime(2025, 10, 26, 2, fold=1)),
    (NAN, None),
]


@pytest.mark.parametrize(("old", "new"), STRICT, ids=lambda value: repr(value)[:30])
@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: [x], lambda x: {"a": {"b": [0, x]}}, lambda x: (x, [x])]
)
def test_what_equality_overlooks_is_a_change(old: Any, new: Any, wrap: Callable[[Any], Any]) -> None:
    """Values that == takes for equal, or nearly, differ at any depth."""
    assert not compare(wrap(old), wrap(new)).is_equal
    assert not is_same(wrap(old), wrap(new))


def test_keys_are_told_apart_strictly() -> None:
    """The key 1 is not the key True, and a member 1 not a member 1.0."""
    assert paths(compare({1: "x"}, {True: "x"})) == ["- $[1]", "+ $[true]"]
    assert compare({"s": {1}}, {"s": {1.0}}).changes == (
        StateChange("removed", ("s", SetMember(1)), old=1),
        StateChange("added", ("s", SetMember(1.0)), new=1.0),
    )


def test_nan_and_signalling_decimals_equal_themselves() -> None:
    """Values that are not equal to themselves are no difference, as values, keys and members."""
    first = {"f": [float("nan")], "d": Decimal("sNaN"), "k": {float("nan"): 1}, "s": {float("nan")}}
    second = {"f": [float("nan")], "d": Decimal("sNaN"), "k": {float("nan"): 1}, "s": {float("nan")}}
    assert compare(first, second).is_equal


def test_the_order_of_keys_is_no_change() -> None:
    """A dict is what it maps, in whichever order."""
    assert compare({"a": 1, "b": [1.0]}, {"b": [1.0], "a": 1}).is_equal


def test_items_are_matched_by_id() -> None:
    """An item keeps its name wherever it stands; what moved past others is said once."""
    old = {"steps": [{"id": "a", "n": 1}, {"id": "b", "n": 2}, {"id": "c", "n": 3}]}
    new = {"steps": [{"id": "c", "n": 3}, {"id": "a", "n": 9}, {"id": "d", "n": 4}]}
    comparison = compare(old, new)
    assert comparison.lines() == [
        '- steps[id="b"]: {"id": "b", "n": 2}',
        '> steps[id="c"]: moved from [2] to [0]',
        '~ steps[id="a"].n: 1 → 9',
        '+ steps[id="d"]: {"id": "d", "n": 4}',
    ]
    assert find(new, parse_path('steps[id="a"].n')) == 9


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([{"id": "a"}, {"id": "a"}], [{"id": "a"}, {"id": "b"}]),
        ([{"id": [1]}], [{"id": [2]}]),
        ([{"id": None}], [{"id": "b"}]),
        ([{"x": 1}], [{"x": 2}]),
        ([{"id": 1}, 5], [{"id": 2}, 5]),
    ],
)
def test_without_good_ids_the_place_decides(old: list[Any], new: list[Any]) -> None:
    """Ids that repeat, are missing or are no names are compared like any other value."""
    (change,) = compare(old, new).changes
    assert change.kind == "changed"
    assert isinstance(change.path[0], int)


def test_an_insertion_does_not_shift_the_rest() -> None:
    """One item more in the middle is one change, and a change behind it keeps its place."""
    old = [{"text": f"message {at}"} for at in range(100)]
    new = deepcopy(old)
    new.insert(20, {"text": "new"})
    del new[50]
    new[70]["text"] = "edited"
    assert paths(compare({"m": old}, {"m": new})) == ["+ m[20]", "- m[49]", "~ m[70].text"]


def test_only_the_differing_leaf_is_reported() -> None:
    """A change far down is one change with its whole path, and its value is the state's own."""
    value = {"deep": [1]}
    old, new = {"a": {"b": [{"c": 1, "d": value}]}}, {"a": {"b": [{"c": 2, "d": {"deep": [1]}}]}}
    assert compare(old, new).changes == (StateChange("changed", ("a", "b", 0, "c"), 1, 2),)
    (added,) = compare({}, {"v": value}).changes
    assert added.kind == "added"
    assert added.new is value


# --- depth and work


def nested(levels: int, core: Any, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(levels):
        core = wrap(core)
    return core


WRAPS: list[Callable[[Any], Any]] = [
    lambda inner: [inner],
    lambda inner: {"a": inner},
    lambda inner: (0, inner, 1),
    lambda inner: {(1,): [inner]},
    lambda inner: [inner, [NAN]],
]


@pytest.mark.parametrize("wrap", WRAPS)
def test_the_deepest_state_is_compared_from_a_full_stack(wrap: Callable[[Any], Any]) -> None:
    """200 levels are followed however deep the caller stands."""
    levels = 100 if wrap is WRAPS[3] else 199
    old, new = nested(levels, 1, wrap), nested(levels, 2, wrap)

    def call(frames: int) -> Comparison:
        return call(frames - 1) if frames else compare(old, new)

    room = sys.getrecursionlimit() - len_of_stack() - 60
    for frames in (0, room // 2, room):
        comparison = call(frames)
        assert comparison.changed == 1
        assert len(comparison.changes[0].path) >= levels
        assert len(comparison.lines()[0]) < 300


def len_of_stack() -> int:
    depth = 0
    frame: Any = sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def calls_of(work: Callable[[], object]) -> int:
    """How many Python and C functions are called: work without a clock."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def _random(size: int, values: int) -> list[int]:
    source = random.Random(size * values)
    return [source.randrange(values) for _ in range(size)]


def _shuffled(size: int) -> list[int]:
    values = list(range(size))
    random.Random(size).shuffle(values)
    return values


HARD: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "two values": lambda n: (_random(n, 2), _random(n - 7, 2)),
    "many repeats": lambda n: (_random(n, n // 20), _random(n - 7, n // 20)),
    "reversed": lambda n: (list(range(n)), list(range(n))[::-1]),
    "shuffled": lambda n: (list(range(n)), _shuffled(n)),
    "all different": lambda n: (list(range(n)), list(range(n, 2 * n))),
    "shuffled ids": lambda n: ([{"id": x} for x in range(n)], [{"id": x} for x in _shuffled(n)]),
    "nan": lambda n: ([[float("nan")] for _ in range(n)], [[float("nan")] for _ in range(n)]),
    "gaps": lambda n: (
        [x if x % 65 == 0 else "ab"[x % 2] for x in range(n)],
        [x if x % 65 == 0 else "ab"[x * x // 3 % 2] for x in range(n - 1)],
    ),
    "deep": lambda n: tuple(nested(100, end, lambda inner: [list(range(n // 100)), inner]) for end in (1, 2)),
}


@pytest.mark.parametrize("name", HARD)
def test_work_grows_with_size_not_with_its_square(name: str) -> None:
    """Four times as long a list takes about four times the work, however its items are arranged."""
    small, large = HARD[name](1000), HARD[name](4000)
    few, many = calls_of(lambda: compare(*small)), calls_of(lambda: compare(*large))
    assert many <= 7 * few


# --- text

WORKFLOW_OLD = {
    "variables": {"iteration": 5, "old": True},
    "completed_steps": [{"kind": "shell", "command": f"make {at}"} for at in range(1, 6)],
}
WORKFLOW_NEW = {
    "variables": {"analysis_result": "success", "iteration": 7, "old": True},
    "completed_steps": [
        *WORKFLOW_OLD["completed_steps"],
        {"kind": "shell", "command": "make test"},
        {"kind": "claude", "command": "/review"},
    ],
}


def test_a_workflow_is_shown_as_variables_and_steps() -> None:
    """The text is that of the specification, to the letter."""
    expected = """\
Variables changed:
  + analysis_result: "success"
  ~ iteration: 5 → 7
Steps added:
  + Step 6: shell: "make test"
  + Step 7: claude: "/review\""""
    comparison = compare(WORKFLOW_OLD, WORKFLOW_NEW)
    assert "\n".join(comparison.lines()) == expected
    assert comparison.summary == "1 added, 1 changed in variables; 2 completed_steps added"


def test_nothing_of_a_workflow_is_hidden() -> None:
    """Nested variables, steps that changed or went, and all else have their lines too."""
    old = {
        "variables": {"config": {"depth": 1}, "gone": "x", "two words": 1},
        "steps": [{"name": "a", "type": "shell", "command": "ls"}, {"name": "b", "command": "pwd"}],
        "status": "running",
    }
    new = {
        "variables": {"config": {"depth": 2}, "two words": 2},
        "steps": [
            {"name": "a", "type": "shell", "command": "ls -l"},
            {"name": "c", "command": "id", "step": 9},
        ],
        "status": "done",
    }
    assert compare(old, new).lines() == [
        "Variables changed:",
        '  - gone: "x"',
        "  ~ config.depth: 1 → 2",
        "  ~ two words: 1 → 2",
        "Steps added:",
        '  + Step 9: "id"',
        "Steps removed:",
        '  - Step 2: "pwd"',
        "Steps changed:",
        '  ~ Step 1, command: "ls" → "ls -l"',
        "Also changed:",
        '  ~ status: "running" → "done"',
    ]


@pytest.mark.parametrize(
    "state",
    [
        {"variables": {"a": 1}},
        {"variables": {"a": 1}, "steps": []},
        {"variables": {"a": 1}, "steps": [{"id": 1}]},
        {"variables": [1], "steps": [{"command": "x"}]},
        {"variables": {"a": 1}, "steps": 5},
        {"variables": {"a": 1}, "steps": {"x": 1}, "completed_steps": [{"command": "x"}]},
        {"steps": [{"command": "x"}]},
        [1],
    ],
)
def test_other_states_are_shown_with_paths(state: Any) -> None:
    """Only what has variables and steps with commands reads as a workflow."""
    assert not compare(state, deepcopy(state)).is_workflow


step_values = st.fixed_dictionaries(
    {"command": leaves}, optional={"id": ids, "kind": leaves, "type": leaves, "step": leaves}
)
workflows = st.fixed_dictionaries(
    {"variables": st.dictionaries(small_keys, small_states, max_size=3)},
    optional={
        "steps": st.lists(step_values, max_size=4),
        "completed_steps": st.lists(step_values),
        "x": leaves,
    },
)


@given(workflows, workflows)
def test_every_change_of_a_workflow_has_its_line(old: Any, new: Any) -> None:
    """Whatever variables and steps hold, each change is one line under a heading."""
    comparison = compare(old, new)
    texts = comparison.lines()
    if comparison.is_workflow and not comparison.is_equal:
        assert len([text for text in texts if text.startswith("  ")]) == comparison.total
    assert canon(apply(old, comparison.changes)) == canon(new)


def test_several_nan_are_several_keys() -> None:
    """Keys that are NaN are paired one by one."""
    old = {float("nan"): 1, float("nan"): 2, "x": 0}
    assert compare(old, {float("nan"): 1, "x": 0}).lines() == ['- $[{"$float":"nan"}]: 2']
    assert compare({"x": 0, 1: 1}, {"x": 0}).lines() == ["- $[1]: 1"]


def test_the_general_view() -> None:
    """One line for each change: sign, path, value."""
    old = {"a": 1, "m": ["x"], "tags": {"p"}, "gone": None, "when": datetime(2025, 1, 20, 14, 30, tzinfo=UTC)}
    new = {"a": 1.0, "m": ["x", "y" * 200], "tags": {"p", "q"}, "k k": list(range(300)), "when": None}
    comparison = compare(old, new)
    assert comparison.lines() == [
        "- gone: null",
        "~ a: 1 → 1.0",
        f'+ m[1]: "{"y" * 60}…" (200 characters)',
        '+ tags{"q"}: "q"',
        '+ $["k k"]: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, …282 more]',
        "~ when: 2025-01-20T14:30:00+00:00 → null",
    ]
    assert compare(old, new, limit=1).lines() == ["- gone: null", "… 5 more changes"]
    assert compare(old, new, limit=5).lines()[-1] == "… 1 more change"


SUMMARIES: list[tuple[Any, Any, str]] = [
    ({"step": 1}, {"step": 2}, "1 changed at the top"),
    (
        {"context": {"x": 1}, "messages": []},
        {"context": {"x": 2, "a": 1, "b": 1}, "messages": [1, 2, 3]},
        "2 added, 1 changed in context; 3 messages added",
    ),
    ({"c": {"messages": [1]}}, {"c": {"messages": []}}, "1 message removed"),
    ({"c": {"entries": []}}, {"c": {"entries": [1]}}, "1 entry added"),
    ([1], [1, 2], "1 item added"),
    ({"tags": {"a"}}, {"tags": {"b"}}, "1 tag added, 1 tag removed"),
    ([{"id": 1}, {"id": 2}], [{"id": 2}, {"id": 1}], "1 item moved"),
    (1, 2, "everything changed"),
    (
        {f"k{at}": {"x": 0} for at in range(9)},
        {f"k{at}": {"x": 1} for at in range(9)},
        "; ".join(f"1 changed in k{at}" for at in range(6)) + "; and more in 3 other places",
    ),
]


@pytest.mark.parametrize(("old", "new", "summary"), SUMMARIES, ids=[each[2][:40] for each in SUMMARIES])
def test_the_summary_says_what_and_where(old: Any, new: Any, summary: str) -> None:
    """One sentence that a person understands."""
    assert compare(old, new).summary == summary


VALUES: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "true"),
    (-0.0, "-0.0"),
    (NAN, "nan"),
    (Decimal("1.50"), "1.50"),
    ('say "hi"\n', '"say \\"hi\\"\\n"'),
    ("é" * 2345, f'"{"é" * 20}…" (2,345 characters)'),
    (b"abc", "b'abc'"),
    (bytes(1000), "b'\\x00\\x00\\x00\\x00\\x00'… (1,000 bytes)"),
    ({"a": 1, 2: [None]}, '{"a": 1, 2: [null]}'),
    ({str(at): at for at in range(12)}, "{…12 keys}"),
    ({"a": "x" * 100}, "{…1 key}"),
    (list(range(300)), "[…300 items]"),
    (tuple(range(300)), "(…300 items)"),
    (set(range(1200)), "set{…1,200 members}"),
    (({"b", "a"}, ()), '(set{"a", "b"}, ())'),
    (10**5000, "an integer of 16,61…"),
]


@pytest.mark.parametrize(("value", "text"), VALUES, ids=[text[:30] for _, text in VALUES])
def test_values_are_shortened(value: Any, text: str) -> None:
    """Small values are shown whole, large ones by their beginning and size."""
    assert value_text(value, 20) == text


@given(states, st.integers(0, 80))
def test_the_text_of_a_value_is_bounded(value: Any, width: int) -> None:
    """No value takes more than its width, the escapes in its beginning, and a note of its size."""
    text = value_text(value, width)
    assert "\n" not in text
    assert len(text) <= 6 * width + 60


def test_a_long_text_is_shown_where_it_differs() -> None:
    """The part that changed is in what is shown, on both sides."""
    text = change_text("a" * 3000 + "old" + "b" * 3000, "a" * 3000 + "new" + "b" * 3000, 30)
    assert text == (
        f'"…{"a" * 10}old{"b" * 17}…" (6,003 characters) → "…{"a" * 10}new{"b" * 17}…" (6,003 characters)'
    )
    assert change_text("short", "s" * 40, 30) == f'"short" → "{"s" * 30}…" (40 characters)'


def test_values_that_read_alike_are_told_apart() -> None:
    """Where the texts are the same, the types are named; what is too large to show says so."""
    assert change_text(1, Decimal("1")) == "1 (int) → 1 (Decimal)"
    old = datetime(2025, 10, 26, 2, fold=0)
    assert change_text(old, old.replace(fold=1)).endswith("(differs in what is not shown)")


def test_paths_of_changes_can_be_looked_up() -> None:
    """The text of a path leads to the new value."""
    old: dict[str, Any] = {"context": {"messages": [{"id": 1, "t": "x"}], "two words": {1: "a"}}}
    new: dict[str, Any] = json.loads(json.dumps(old))
    new["context"] = {"messages": [{"id": 1, "t": "y"}], "two words": {1: "b"}}
    found: list[tuple[Path, Any]] = [
        (each.path, find(new, parse_path(format_path(each.path))))
        for each in compare(old, new).changes
        if each.kind == "changed"
    ]
    assert [value for _, value in found] == ["y", "b"]
