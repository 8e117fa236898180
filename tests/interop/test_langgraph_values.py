"""Values come back equal or are refused, classes are made only where that is allowed, and people can read them."""

from __future__ import annotations

import inspect
import os
import secrets
import subprocess
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
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel, PrivateAttr, field_validator

from stepkeep.adapters.langgraph import StepkeepSaver
from stepkeep.errors import InvalidInput, Unsupported
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


class Capped(BaseModel):
    """A model whose validator changes what it is made of."""

    n: int = 0
    _seen: int = PrivateAttr(default=0)

    @field_validator("n")
    @classmethod
    def _cap(cls, n: int) -> int:
        return min(n, 10)


@dataclass
class Positive:
    n: int = 0

    def __post_init__(self) -> None:
        self.n = abs(self.n)


class Opaque:
    """A class without an equality of its own, and like an array neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")

    def model_dump(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return "Opaque()"


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
    with StepkeepSaver(here) as saver:
        at = put(saver, {"value": value})
        saver.put_writes(at, [("value", value)], "task")
    with StepkeepSaver(here) as saver:
        found = saver.get_tuple(config())
        assert found is not None
        assert repr(found.checkpoint["channel_values"]) == repr({"value": value})
        assert repr(found.pending_writes) == repr([("task", "value", value)])


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_objects_of_langgraph_come_back_equal(here: str, value: Any) -> None:
    """Messages, sends and interrupts need no permission."""
    with StepkeepSaver(here) as saver:
        at = put(saver, {"value": value, "other": (1,)})
        saver.put_writes(at, [("value", value)], "task")
    with StepkeepSaver(here) as saver:
        found = saver.get_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"value": value, "other": (1,)}
        assert found.pending_writes == [("task", "value", value)]


@pytest.mark.parametrize("value", [Colour.RED, Point(1, 2), Span([1]), Plan(steps=["a"])], ids=repr)
def test_own_classes_come_back_when_they_are_allowed(here: str, value: Any) -> None:
    """Named by `allow`, or by LangGraph itself with `with_allowlist`; else they are refused before they are stored."""
    with StepkeepSaver(here, allow=[]) as strict:
        with pytest.raises(InvalidInput, match="allow its class") as refused:
            put(strict, {"plan": {"value": value}})
        assert refused.value.path == "plan.value"
        kind = (type(value).__module__, type(value).__name__)
        for saver in (StepkeepSaver(strict.store, allow=[type(value)]), strict.with_allowlist([kind])):
            put(saver, {"value": value})
            assert values_of(saver) == {"value": value}
            assert type(values_of(saver)["value"]) is type(value)


LANGGRAPHS_SETTING = """
import sys
from stepkeep.adapters.langgraph import StepkeepSaver
from stepkeep.errors import InvalidInput
from tests.interop.test_langgraph_values import Plan
from tests.interop.threads import put, values_of
plan = Plan(steps=["a"])
with StepkeepSaver(sys.argv[1]) as saver:
    try:
        put(saver, {"plan": plan})
        print(values_of(saver) == {"plan": plan})
    except InvalidInput as exc:
        print(exc.code)
"""


@pytest.mark.parametrize(("strict", "told"), [("false", "True"), ("true", "state_not_exact")])
def test_classes_are_allowed_as_langgraph_is_set(here: str, strict: str, told: str) -> None:
    """Without `allow` a saver does what LangGraph's own do with `LANGGRAPH_STRICT_MSGPACK`."""
    done = subprocess.run(
        [sys.executable, "-c", LANGGRAPHS_SETTING, here],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"LANGGRAPH_STRICT_MSGPACK": strict},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == told, done.stderr


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_class_inside_a_function_comes_back_as_what_it_holds(here: str, is_encrypted: bool) -> None:
    """Nothing finds such a class again. A graph makes its state of what LangGraph's own savers give back, too."""

    class Inside(BaseModel):
        x: int

    serde = EncryptedSerializer(Rot()) if is_encrypted else None
    with StepkeepSaver(here, serde=serde) as saver:
        put(saver, {"__start__": Inside(x=1), "list": [Inside(x=2), (3,)]})
    with StepkeepSaver(here, serde=serde) as saver:
        assert values_of(saver) == {"__start__": {"x": 1}, "list": [{"x": 2}, (3,)]}


def test_an_object_that_would_come_back_different_is_refused(here: str) -> None:
    """A tuple inside an object, where the serializer loses it, names its place."""
    with StepkeepSaver(here, allow=[Span]) as saver:
        put(saver, {"span": Span([1, 2])})
        with pytest.raises(InvalidInput) as refused:
            put(saver, {"spans": [Span([1]), Span((1, 2))]})
        assert refused.value.path == "spans[1]"
        with pytest.raises(InvalidInput):
            put(saver, {"message": AIMessage("x", additional_kwargs={"pair": (1, 2)})})
        with pytest.raises(InvalidInput):
            put(saver, {"message": AIMessage("x", additional_kwargs={"big": 2**70})})


def _with_refused_call() -> AIMessage:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}, "type": "function"}
    message = AIMessage("", additional_kwargs={"tool_calls": [call]})
    message.tool_calls = []  # made anew it would have one
    return message


def _changed(value: Any, name: str, field: Any) -> Any:
    setattr(value, name, field)
    return value


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize(
    ("good", "bad", "path"),
    [
        (AIMessage("hello"), _with_refused_call(), "values[1].tool_calls"),
        (HumanMessage("hi"), _changed(HumanMessage("hi"), "id", 5), "values[1].id"),
        (Capped(n=1), _changed(Capped(n=1), "n", 50), "values[1].n"),
        (Capped(n=1), _changed(Capped(n=1), "_seen", 7), "values[1]._seen"),
        (Positive(1), _changed(Positive(1), "n", -5), "values[1]"),
    ],
    ids=repr,
)
def test_every_object_is_proven(here: str, good: Any, bad: Any, path: str) -> None:
    """One that comes back equal says nothing of the next of its class; no class is to be allowed for it."""
    with StepkeepSaver(here, allow=[Capped, Positive]) as saver:
        put(saver, {"values": [good]})
        with pytest.raises(InvalidInput) as refused:
            put(saver, {"values": [good, bad]})
        assert refused.value.path == path
        assert "allow" not in str(refused.value)


NAN = float("nan")


@pytest.mark.parametrize(
    "value",
    [
        Send("node", {"pair": (1, 2), "big": 2**70, "ratio": NAN, "message": AIMessage("x", id="1")}),
        Send("node", None, timeout=5),
        Interrupt(value=("yes", "no"), id="i"),
        Interrupt(value=None, id="i", response_schema={"type": "string"}),
        Command(update={"pairs": [(1, 2)]}),
        Command(resume="x"),
        Command(goto=("a", Send("b", {1, 2}))),
        Command(goto=[], graph="__parent__"),
        Overwrite((1, NAN)),
        _DeltaSnapshot([(1, 2)]),
        Send("node", [Send("other", {"$serde": "fields", "value": {}})]),
        AIMessage("x", id="1", response_metadata={"scores": [{"p": NAN}, float("inf")]}),
    ],
    ids=repr,
)
def test_what_objects_of_langgraph_carry_comes_back_with_its_types(here: str, value: Any) -> None:
    """Tuples, sets, NaN and large integers inside a send or an interrupt are those they were."""
    with StepkeepSaver(here) as saver:
        at = put(saver, {"value": value, "list": [value]})
        saver.put_writes(at, [("value", value)], "task")
    with StepkeepSaver(here) as saver:
        found = saver.get_tuple(config())
        assert found is not None
        assert repr(found.checkpoint["channel_values"]) == repr({"value": value, "list": [value]})
        assert repr(found.pending_writes) == repr([("task", "value", value)])
        goto = getattr(found.checkpoint["channel_values"]["value"], "goto", None)
        assert type(goto) is type(getattr(value, "goto", None))


@pytest.mark.parametrize("kind", [Send, Interrupt, Command, Overwrite, _DeltaSnapshot])
def test_nothing_of_an_object_of_langgraph_is_left_out(kind: Any) -> None:
    """All that the class holds in this release of LangGraph is what it is made with."""
    holds = getattr(kind, "_fields", None) or kind.__slots__
    made_with = {name for name in inspect.signature(kind).parameters if name != "deprecated_kwargs"}
    assert set(holds) == made_with


def test_a_refused_value_names_its_place_inside_an_object(here: str) -> None:
    """With the advice to allow a class only where that helps."""
    message = AIMessage("x", response_metadata={"list": [1, (1, 2)]})
    with StepkeepSaver(here, allow=[]) as saver:
        with pytest.raises(InvalidInput) as refused:
            put(saver, {"messages": [message]})
        assert refused.value.path == "messages[0].response_metadata.list[1]"
        assert "allow" not in str(refused.value)
        with pytest.raises(InvalidInput, match="allow its class") as refused:
            put(saver, {"tasks": (Send("n", {"span": Span([1])}),)})
        assert refused.value.path == "tasks[0].arg.span"


@pytest.mark.parametrize("value", [5, [1, 2], {"x": 1}, AIMessage("x", id="1")], ids=repr)
def test_a_channel_may_be_named_like_the_mark_of_an_object(here: str, value: Any) -> None:
    with StepkeepSaver(here) as saver:
        at = put(saver, {"$serde": value, "pair": (1, 2)})
        saver.put_writes(at, [("$serde", value)], "task")
        found = saver.get_tuple(at)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"$serde": value, "pair": (1, 2)}
        assert found.pending_writes == [("task", "$serde", value)]


def test_writes_to_one_channel_come_back_in_their_order(here: str) -> None:
    """Whatever the other channels are called."""
    given = [("a", 1), ("a (2)", 2), ("a", 3), ("a (3)", 4), ("a", 5)]
    with StepkeepSaver(here) as saver:
        at = put(saver, {})
        saver.put_writes(at, given, "task")
        found = saver.get_tuple(at)
        assert found is not None
        assert found.pending_writes == [("task", *each) for each in given]


def test_an_enum_that_is_text_comes_back_equal(here: str) -> None:
    with StepkeepSaver(here) as saver:
        put(saver, {"word": Word.YES})
        assert values_of(saver) == {"word": "yes"}


def test_an_error_is_kept_as_its_text(here: str) -> None:
    """That is all LangGraph keeps of one."""
    with StepkeepSaver(here) as saver:
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

    with StepkeepSaver(here, allow=[booby_trap.Trap]) as saver:
        put(saver, {"trap": booby_trap.Trap(1)})
    del sys.modules["booby_trap"]
    with StepkeepSaver(here, allow=[]) as saver:
        assert values_of(saver) == {"trap": {"x": 1}}
    assert "booby_trap" not in sys.modules


def test_values_read_as_text(here: str) -> None:
    """The state of the session is the channel values; a message shows its fields."""
    with StepkeepSaver(here) as saver:
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
    with StepkeepSaver(here, serde=serde) as saver:
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


class Salted(Rot):
    """A cipher that never gives the same bytes twice."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        salt = secrets.token_bytes(8)
        return "rot", salt + super().encrypt(plaintext)[1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return super().decrypt(ciphername, ciphertext[8:])


@pytest.mark.parametrize(
    "value",
    [
        ("a secret", 2),
        {"a": ("a secret", {1})},
        2**70,
        NAN,
        (Interrupt(value=("a secret",), id="i"),),
        Opaque(),
        (Send("node", Opaque()),),
    ],
    ids=repr,
)
def test_what_a_serializer_alone_would_lose_comes_back_too(here: str, value: Any) -> None:
    """Tuples, sets, NaN and large integers, sealed like everything else."""
    with StepkeepSaver(here, serde=EncryptedSerializer(Salted())) as saver:
        at = put(saver, {"value": value})
        saver.put_writes(at, [("value", value)], "task")
        found = saver.get_tuple(at)
        assert found is not None
        assert repr(found.checkpoint["channel_values"]) == repr({"value": value})
        assert repr(found.pending_writes) == repr([("task", "value", value)])
        assert b"secret" not in saver.store.get("t").latest().content()  # type: ignore[union-attr]
        with pytest.raises(InvalidInput) as refused:
            put(saver, {"value": {"deep": [object()]}}, at)
        assert refused.value.path == "value.deep[0]"


def test_another_serializer_than_that_of_the_thread_is_told(here: str) -> None:
    """Reading what was encrypted without the cipher, or with another key, is an error with a code."""
    with StepkeepSaver(here, serde=EncryptedSerializer(Rot())) as saver:
        put(saver, {"note": "x"})
    other = EncryptedSerializer(Rot())
    other.cipher.decrypt = lambda name, text: _fail()  # type: ignore[method-assign]
    for serde in (None, other):
        with StepkeepSaver(here, serde=serde) as saver:
            with pytest.raises(Unsupported, match="serde=") as refused:
                saver.get_tuple(config())
            assert refused.value.code == "serializer_mismatch"


def _fail() -> bytes:
    raise ValueError("MAC check failed")


def test_unusual_metadata_come_back(here: str) -> None:
    """Large ones, objects, tuples and keys that this adapter uses itself are stored in a body instead."""
    unusual: list[dict[str, Any]] = [
        {"note": "x" * 100_000},
        {"pair": (1, 2)},
        {"message": HumanMessage("hi", id="1")},
        {"$langgraph": {"parent": "forged"}},
    ]
    with StepkeepSaver(here) as saver:
        for metadata in unusual:
            at = put(saver, {}, **metadata)
            found = saver.get_tuple(at)
            assert found is not None
            assert found.parent_config is None
            assert {key: found.metadata[key] for key in metadata} == metadata  # type: ignore[literal-required]
        assert [each.metadata for each in saver.list(config(), filter={"pair": (1, 2)})] != []


class Late(JsonPlusSerializer):
    """Between writing and comparing, a graph gives the message its id."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        written = super().dumps_typed(obj)
        if isinstance(obj, HumanMessage) and obj.id is None:
            obj.id = "given"
        return written


def test_a_message_that_gets_its_id_meanwhile_is_stored(here: str) -> None:
    """Graphs store in the background while reducers give ids: that is no difference to refuse."""
    with StepkeepSaver(here, serde=Late()) as saver:
        at = put(saver, {"last": HumanMessage("hello")})
        assert values_of(saver, at) == {"last": HumanMessage("hello", id="given")}
