"""Editing the text of a JSON file: one thing comes and goes, all other characters stay."""

from __future__ import annotations

import json

import pytest

from stepkeep.codec import json_text

TEXTS = [
    '{"a": 1}',
    '{"a":1,"b":2}',
    '{\n  "a": 1\n}\n',
    '{\r\n\t"a": 1, // why\r\n\t"b": [1, 2] // last\r\n}\r\n',
    '{"a": 1 // c\n}',
    '{"a": 1 /* c */}',
    '{\n  "a": 1,\n  /* between */\n  "b": 2,\n}\n',
    '{\n  "a": 1, // why\n  "b": 2, // last\n}\n',
    '{"a": 1, "b": 2 , }',
    '{"a": [1], // why\n "b": 2, }',
    '{"a": 1, /* why */ "b": 2, /* last */ }',
]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_added_last_goes_without_a_trace(text: str) -> None:
    """Whatever the formatting, with comments and trailing commas."""
    before = json_text.read(text)
    after = json_text.added(text, json_text.parse(text), {"x": ["y"]}, key="new")
    assert json_text.read(after) == {**before, "new": {"x": ["y"]}}
    root = json_text.parse(after)
    assert json_text.removed(after, root, len(root.children or ()) - 1) == text


@pytest.mark.parametrize("text", TEXTS)
def test_any_member_can_go_and_comments_stay(text: str) -> None:
    """What is left says the same but for that member."""
    before = json_text.read(text)
    for number, key in enumerate(before):
        after = json_text.removed(text, json_text.parse(text), number)
        assert json_text.read(after) == {name: before[name] for name in before if name != key}
        for comment in ("why", "last", "// c", "between"):
            assert (comment in after) == (comment in text)


def test_an_empty_object_is_opened_and_closed() -> None:
    """Indented as the file is."""
    text = '{\n    "a": {}\n}'
    container = json_text.parse(text).child("a")
    assert container is not None
    assert json_text.added(text, container.value, 1, key="b") == '{\n    "a": {\n        "b": 1\n    }\n}'
    assert json.loads(json_text.added("{}", json_text.parse("{}"), [1], key="b")) == {"b": [1]}
