"""Paths inside a state: text and back, and the value they name."""

from __future__ import annotations

from contextlib import suppress
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepkeep.errors import InvalidInput, NotFound
from stepkeep.history.paths import ItemById, Path, SetMember, find, format_path, parse_path

TEXTS: list[tuple[Path, str]] = [
    ((), "$"),
    (("context",), "context"),
    (("context", "messages", 3, "when"), "context.messages[3].when"),
    ((3, "role"), "$[3].role"),
    (("a", -1), "a[-1]"),
    (("a", "two words", "$"), 'a["two words"]["$"]'),
    (("a", ""), 'a[""]'),
    (("naïve", "日本"), "naïve.日本"),
    (("a", None, True, 1.5), "a[null][true][1.5]"),
    (("a", (1, "x")), 'a[{"$tuple":[1,"x"]}]'),
    (("a", date(2025, 1, 20)), 'a[{"$date":"2025-01-20"}]'),
    (("steps", ItemById("id", "m3"), "output"), 'steps[id="m3"].output'),
    (("steps", ItemById("id", 7)), "steps[id=7]"),
    (("tags", SetMember("urgent")), 'tags{"urgent"}'),
    ((SetMember(1),), "${1}"),
]


@pytest.mark.parametrize(("path", "text"), TEXTS, ids=[text for _, text in TEXTS])
def test_a_path_is_written_and_read_back(path: Path, text: str) -> None:
    """Every kind of step has one text, and reading it gives the step again."""
    assert format_path(path) == text
    assert parse_path(text) == path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("$.context", ("context",)),
        ("[3].role", (3, "role")),
        ("my-key.two words", ("my-key", "two words")),
        ("a['b.c']", ("a", "b.c")),
        ('steps[ id ="m3"]', ("steps", ItemById("id", "m3"))),
        ("a.$b", ("a", "$b")),
    ],
)
def test_easier_spellings_are_understood(text: str, path: Path) -> None:
    """What a person types in a shell need not be the canonical text."""
    assert parse_path(text) == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a.",
        "a..b",
        "a[",
        "a[]",
        "a[3",
        "a[3]b",
        "a[b]",
        "a[[1]]",
        "a]",
        'a["x]',
        "a{",
        "a['x]",
        "a\0",
        'a[{"$date":"never"}]',
        'a["\\ud800"]',
        "a[" * 2000,
        "a\ud800",
        "a[" + "[" * 30_000,
        "a[" + "1" * 5000 + "]",
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_what_is_no_path_is_refused(text: str) -> None:
    """A malformed path says so, with its own code; no other error comes out."""
    with pytest.raises(InvalidInput):
        parse_path(text)


keys = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "\0" not in text),
    st.integers(),
    st.booleans(),
    st.none(),
    st.dates(),
    st.tuples(st.integers(), st.text("ab")),
    st.frozensets(st.integers(), max_size=1),
)
steps = keys | st.builds(ItemById, st.sampled_from(["id", "step_id"]), keys) | st.builds(SetMember, keys)


@given(st.lists(steps, max_size=5).map(tuple))
def test_any_path_survives_its_text(path: Path) -> None:
    """Reading what was written gives the same path."""
    assert repr(parse_path(format_path(path))) == repr(path)


@given(st.text())
def test_any_text_is_a_path_or_refused(text: str) -> None:
    """No text makes reading fail in another way."""
    with suppress(InvalidInput):
        parse_path(text)


STATE: dict[Any, Any] = {
    "context": {"messages": [{"id": "m1", "role": "user"}, {"id": "m2", "role": "tool"}], "n": 5},
    "pair": (1, 2),
    "tags": {"a", "b"},
    7: "seven",
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$", STATE),
        ("context.n", 5),
        ("context.messages[-1].role", "tool"),
        ('context.messages[id="m1"].role', "user"),
        ("pair[1]", 2),
        ('tags{"a"}', "a"),
        ("[7]", "seven"),
    ],
)
def test_find_returns_the_value(text: str, value: object) -> None:
    """A path leads to the value it names."""
    assert find(STATE, parse_path(text)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("contxt", "the state has no contxt: $ has the keys context, …"),
        ("context.m", "the state has no context.m: context has the keys messages, n"),
        ("context.messages[2]", "context.messages is a list with 2 items, named like [0] or [-1]"),
        ("context.messages.role", "context.messages is a list with 2 items"),
        ('context.messages[id="m3"]', 'has no context.messages[id="m3"]'),
        ("context.n.x", "context.n is a value of type int, with nothing inside"),
        ('tags{"c"}', "tags is a set with 2 members"),
        ("context{1}", "context has the keys"),
    ],
)
def test_what_is_not_there_is_explained(text: str, message: str) -> None:
    """The error names the part that is missing, and what is there instead."""
    with pytest.raises(NotFound) as caught:
        find(STATE, parse_path(text))
    assert message in caught.value.message
    assert caught.value.code == "path_not_found"
