"""Values come back equal or are refused, classes are made only where that is allowed, and people can read them."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Interrupt, Send
from pydantic import BaseModel

from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.errors import InvalidInput
from tests.interop.threads import config, put, values_of


class Colour(Enum):
    RED = "red"


class Word(StrEnum):
    YES = "yes"


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Span:
    ends: Any


class Plan(BaseModel):
    steps: list[str]
    spent: Decimal = Decimal("1.50")


@pytest.fixture
def here(tmp_path: Any) -> str:
    return f"sqlite:{tmp_path}/values.db"


PLAIN = [
    (1, 2, (3, [4, (5,)])),
    2**64,
    -(2**200),
    {"nested": [{"tuple": (1, "a", None)}]},
    {1, 2, 3},
    frozenset({("a", 1)}),
    b"\x00\xff",
    datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    timedelta(days=-1, microseconds=5),
    UUID(int=7),
    Decimal("0.10"),
    {1: "one", (2, 3): "pair"},
    {"$serde": 5, "looks": "like a node"},
    {"$tuple": [1]},
    float("inf"),
    "\x00 text \U0001f600",
    [],
    None,
]
OBJECTS = [
    AIMessage("hello", id="1", tool_calls=[{"name": "f", "args": {"q": 1}, "id": "c", "type": "tool_call"}]),
    [HumanMessage("hi", id="2"), ToolMessage("ok", tool_call_id="c", id="3")],
    Send("node", {"arg": [1, 2]}),
    Interrupt(value={"question": "?"}, id="i"),
    deque([1, 2]),
    Path("a/b"),
    _DeltaSnapshot([1, 2]),
    {"deep": [{"message": AIMessage("x", additional_kwargs={"$serde": 3})}]},
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_equal_with_their_types(here: str, value: Any) -> None:
    """Also those that msgpack and JSON lack, and from another process's point of view."""
    with HoldfastSaver(here) as saver:
        at = put(saver, {"value": value})
        saver.put_writes(at, [("value", value)], "task")
    with HoldfastSaver(here) as saver:
        found = saver.get_tuple(config())
        assert found is not None
        assert repr(found.checkpoint["channel_values"]) == repr({"value": value})
        assert repr(found.pending_writes) == repr([("task", "value", value)])


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_objects_of_langgraph_come_back_equal(here: str, value: Any) -> None:
    """Messages, sends and interrupts need no permission."""
    with HoldfastSaver(here) as saver:
        at = put(saver, {"value": value, "other": (1,)})
        saver.put_writes(at, [("value", value)], "task")
    with HoldfastSaver(here) as saver:
        found = saver.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"value": value, "other": (1,)}
        assert found.pending_writes == [("task", "value", value)]


@pytest.mark.parametrize("value", [Colour.RED, Point(1, 2), Span([1]), Plan(steps=["a"])], ids=repr)
def test_own_classes_come_back_when_they_are_allowed(here: str, value: Any) -> None:
    """Named by `allow`, or by LangGraph itself with `with_allowlist`; else they are refused before they are stored."""
    with HoldfastSaver(here) as strict:
        with pytest.raises(InvalidInput, match="allow its class") as refused:
            put(strict, {"plan": {"value": value}})
        assert refused.value.path == "plan.value"
        kind = (type(value).__module__, type(value).__name__)
        for saver in (HoldfastSaver(strict.store, allow=[type(value)]), strict.with_allowlist([kind])):
            put(saver, {"value": value})
            assert values_of(saver) == {"value": value}
            assert type(values_of(saver)["value"]) is type(value)


def test_an_object_that_would_come_back_different_is_refused(here: str) -> None:
    """A tuple inside an object, where the serializer loses it, names its place."""
    with HoldfastSaver(here, allow=[Span]) as saver:
        put(saver, {"span": Span([1, 2])})
        with pytest.raises(InvalidInput) as refused:
            put(saver, {"spans": [Span([1]), Span((1, 2))]})
        assert refused.value.path == "spans[1]"
        with pytest.raises(InvalidInput):
            put(saver, {"message": AIMessage("x", additional_kwargs={"pair": (1, 2)})})
        with pytest.raises(InvalidInput):
            put(saver, {"message": AIMessage("x", additional_kwargs={"big": 2**70})})


def test_an_enum_that_is_text_comes_back_equal(here: str) -> None:
    with HoldfastSaver(here) as saver:
        put(saver, {"word": Word.YES})
        assert values_of(saver) == {"word": "yes"}


def test_an_error_is_kept_as_its_text(here: str) -> None:
    """That is all LangGraph keeps of one."""
    with HoldfastSaver(here) as saver:
        at = put(saver, {})
        saver.put_writes(at, [("__error__", ValueError("no"))], "task")
        found = saver.get_tuple(at)
        assert found is not None
        assert found.pending_writes == [("task", "__error__", "ValueError('no')")]


def test_stored_bytes_import_nothing_that_is_not_allowed(here: str, tmp_path: Any, monkeypatch: Any) -> None:
    """A module that only stored bytes name is not imported by a saver that was not told to."""
    (tmp_path / "booby_trap.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Trap:\n    x: int\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import booby_trap  # type: ignore[import-not-found]

    with HoldfastSaver(here, allow=[booby_trap.Trap]) as saver:
        put(saver, {"trap": booby_trap.Trap(1)})
    del sys.modules["booby_trap"]
    with HoldfastSaver(here) as saver:
        assert values_of(saver) == {"trap": {"x": 1}}
    assert "booby_trap" not in sys.modules


def test_values_read_as_text(here: str) -> None:
    """The state of the session is the channel values; a message shows its fields."""
    with HoldfastSaver(here) as saver:
        put(saver, {"messages": [AIMessage("hello", id="1")], "plan": {"step": 2}})
        state = saver.store.get("t").latest().state  # type: ignore[union-attr]
    assert state["plan"] == {"step": 2}
    assert state["messages"][0]["class"] == "langchain_core.messages.ai:AIMessage"
    assert state["messages"][0]["value"]["content"] == "hello"


class Rot:
    """A cipher for tests."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "rot", bytes(byte ^ 0x55 for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "rot"
        return bytes(byte ^ 0x55 for byte in ciphertext)


def test_a_serializer_that_encrypts_gets_every_value(here: str) -> None:
    """Nothing of the values is readable in the store then."""
    serde = EncryptedSerializer(Rot(), JsonPlusSerializer())
    secret = "a very secret text"
    with HoldfastSaver(here, serde=serde) as saver:
        at = put(saver, {"note": secret, "n": 1})
        saver.put_writes(at, [("note", secret)], "task")
        assert values_of(saver) == {"note": secret, "n": 1}
        found = saver.get_tuple(at)
        assert found is not None
        assert found.pending_writes == [("task", "note", secret)]
        uid = saver.store.get("t").uid
        backend = saver.store.engine.backend
        stored = saver.store.get("t").latest().content()  # type: ignore[union-attr]
        notes = backend.annotations(uid)
    assert secret.encode() not in stored
    assert all(secret.encode() not in note.data for note in notes)


def test_unusual_metadata_come_back(here: str) -> None:
    """Large ones, objects, tuples and keys that this adapter uses itself are stored in a body instead."""
    unusual: list[dict[str, Any]] = [
        {"note": "x" * 100_000},
        {"pair": (1, 2)},
        {"message": HumanMessage("hi", id="1")},
        {"$langgraph": {"parent": "forged"}},
    ]
    with HoldfastSaver(here) as saver:
        for metadata in unusual:
            at = put(saver, {}, **metadata)
            found = saver.get_tuple(at)
            assert found is not None
            assert found.parent_config is None
            assert {key: found.metadata[key] for key in metadata} == metadata  # type: ignore[literal-required]
        assert [each.metadata for each in saver.list(config(), filter={"pair": (1, 2)})] != []
