"""Objects with declared fields come back equal from their data, or are refused with the path to what would not."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langgraph.checkpoint.base import empty_checkpoint
from pydantic import BaseModel, Field, computed_field, field_serializer, field_validator

import stepkeep
from stepkeep import aio
from stepkeep.adapters.langgraph import StepkeepSaver

T = TypeVar("T")


class Step(BaseModel):
    name: str


class Shell(Step):
    command: str
    kind: Literal["shell"] = "shell"


class Ask(Step):
    question: str
    kind: Literal["ask"] = "ask"


class Plan(BaseModel):
    steps: list[Step] = []


class AnyPlan(BaseModel):
    steps: list[pydantic.SerializeAsAny[Step]]


class TaggedPlan(BaseModel):
    steps: list[Shell | Ask]


class Account(BaseModel):
    name: str
    key: str | None = Field(default=None, exclude=True)
    _calls: int = pydantic.PrivateAttr(default=0)


class Rounded(BaseModel):
    value: float

    @field_serializer("value")
    def whole(self, value: float) -> int:
        return round(value)


class Shouting(BaseModel):
    text: str

    @field_validator("text")
    @classmethod
    def louder(cls, text: str) -> str:
        return text + "!"


class Renamed(BaseModel):
    one: int = Field(alias="first")
    two: int = Field(validation_alias=pydantic.AliasChoices("second", "zwei"))
    three: int = Field(serialization_alias="third")


class Strict(BaseModel, extra="forbid"):
    width: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.width**2

    @functools.cached_property
    def slow(self) -> int:
        return self.width


class Open(BaseModel, extra="allow"):
    name: str


class Box(BaseModel, Generic[T]):
    inside: T


class Chat(BaseModel):
    messages: list[BaseMessage]


class TypedChat(BaseModel):
    messages: list[AnyMessage]


@dataclasses.dataclass
class Point:
    x: float
    marks: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Named(Point):
    name: str = ""


@dataclasses.dataclass
class Line:
    start: Point


@dataclasses.dataclass
class Doubled:
    value: int
    double: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.double = 2 * self.value


@dataclasses.dataclass
class Task:
    plan: Plan
    price: Decimal


@dataclasses.dataclass
class Note(str):
    author: str = ""


@pydantic.dataclasses.dataclass
class Checked:
    plan: Plan


@attrs.define
class Cell:
    row: int
    _hidden: int = 0


@attrs.define
class WideCell(Cell):
    width: int = 2


@attrs.define
class Table:
    cell: Cell


@attrs.define(slots=False)
class Loose:
    row: int


class Part(msgspec.Struct):
    number: int


class LongPart(Part):
    length: int


class Machine(msgspec.Struct):
    part: Part


class Notebook(msgspec.Struct, dict=True):
    title: str


def changed(value: T, **attributes: Any) -> T:
    """An object with attributes that were set after it was made."""
    for name, each in attributes.items():
        setattr(value, name, each)
    return value


def used(value: Strict) -> Strict:
    """A model that keeps what it computed."""
    assert value.slow
    return value


TOOL_CALL = {"name": "search", "args": {"q": "x"}, "id": "1", "type": "tool_call"}
ANSWER = AIMessage("…", tool_calls=[TOOL_CALL])

LOSING: dict[str, tuple[Callable[[], Any], str]] = {
    "a subclass in a field of its base": (lambda: Plan(steps=[Shell(name="a", command="ls")]), "steps[0]"),
    "serialized as any": (lambda: AnyPlan(steps=[Shell(name="a", command="ls")]), "steps[0]"),
    "an excluded field": (lambda: Account(name="a", key="k"), "key"),
    "a private attribute": (lambda: changed(Account(name="a"), _calls=3), "_calls"),
    "a field serializer": (lambda: Rounded(value=1.5), "value"),
    "a validator that changes": (lambda: Shouting(text="a"), "text"),
    "never validated": (lambda: Step.model_construct(name=7), "name"),
    "a model among extra fields": (
        lambda: Open.model_validate({"name": "a", "more": [Step(name="b")]}),
        "more[0]",
    ),
    "a model in an open field": (lambda: Box(inside=Step(name="a")), "inside"),
    "messages by their base": (lambda: Chat(messages=[ANSWER]), "messages[0]"),
    "a dataclass by its base": (lambda: Line(Named(1.0, name="a")), "start"),
    "an attribute beside the fields": (lambda: changed(Point(1.0), colour="red"), "colour"),
    "a tuple in the place of a list": (lambda: Point(1.0, (1, 2)), "marks"),  # type: ignore[arg-type]
    "a text in the place of a number": (lambda: Point("far"), "x"),  # type: ignore[arg-type]
    "a field that is computed anew": (lambda: changed(Doubled(1), double=5), "double"),
    "a model in a dataclass": (
        lambda: Task(Plan(steps=[Shell(name="a", command="ls")]), Decimal(1)),
        "plan.steps[0]",
    ),
    "in a dataclass of pydantic": (
        lambda: Checked(Plan(steps=[Shell(name="a", command="ls")])),
        "plan.steps[0]",
    ),
    "a text with fields": (lambda: Note("text"), "$"),
    "attrs by its base": (lambda: Table(WideCell(1)), "cell"),
    "an attribute beside those of attrs": (lambda: changed(Loose(1), more=2), "more"),
    "a struct by its base": (lambda: Machine(LongPart(1, 2)), "part"),
    "an attribute beside those of a struct": (lambda: changed(Notebook("a"), more=2), "more"),
}

KEPT: dict[str, Callable[[], Any]] = {
    "subclasses that can be told apart": lambda: TaggedPlan(
        steps=[Shell(name="a", command="ls"), Ask(name="b", question="?")]
    ),
    "an excluded field with its default": lambda: Account(name="a"),
    "a field serializer that loses nothing": lambda: Rounded(value=2.0),
    "aliases": lambda: Renamed(first=1, second=2, three=3),  # type: ignore[call-arg]
    "computed fields": lambda: used(Strict(width=3)),
    "extra fields": lambda: Open.model_validate({"name": "a", "more": [(1, {2})]}),
    "numbers that equal nothing": lambda: Box[list[Any]](inside=[float("nan"), Decimal("NaN")]),
    "a generic": lambda: Box[Step](inside=Step(name="a")),
    "a root model": lambda: pydantic.RootModel[list[Step]]([Step(name="a")]),
    "messages by their union": lambda: TypedChat(messages=[ANSWER]),
    "a whole number in a field of floats": lambda: Point(1),
    "a computed field of a dataclass": lambda: Doubled(4),
    "a model in a dataclass": lambda: Task(Plan(steps=[Step(name="a")]), Decimal("1.10")),
    "a dataclass of pydantic": lambda: Checked(Plan(steps=[Step(name="a")])),
    "attrs": lambda: Table(Cell(1, hidden=5)),
    "a struct": lambda: Machine(Part(1)),
    "a struct with a dict": lambda: Notebook("a"),
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/store.db"


@pytest.fixture
def store(url: str) -> Iterator[stepkeep.Store]:
    with stepkeep.open(url) as store:
        yield store


@pytest.mark.parametrize("case", LOSING)
def test_what_a_model_would_lose_is_refused_with_its_path(store: stepkeep.Store, case: str) -> None:
    """Alone and deep in a state of plain data, and nothing of it is stored."""
    make, path = LOSING[case]
    session = store.session("s")
    inner = "" if path == "$" else f".{path}"
    for state, place in ((make(), path), ({"work": [make()]}, f"work[0]{inner}")):
        with pytest.raises(stepkeep.InvalidInput) as refused:
            session.save(state)
        assert (refused.value.code, refused.value.path) == ("state_not_exact", place)
        assert refused.value.message.isprintable()
    assert not list(session.history())


@pytest.mark.parametrize("case", KEPT)
def test_what_comes_back_equal_is_saved(url: str, case: str) -> None:
    """Rebuilt by its type after the store was opened again, it equals what it was."""
    state = KEPT[case]()
    with stepkeep.open(url) as store:
        store.session("s").save(state)
    with stepkeep.open(url) as store:
        loaded = store.get("s").load().load(type(state))
    assert (type(loaded), repr(loaded).replace("x=1.0", "x=1")) == (type(state), repr(state))


def _script(store: stepkeep.Store, value: Any) -> None:
    with store.run("s") as run:
        run.step("a", lambda: value)


def _part(store: stepkeep.Store, value: Any) -> None:
    parts = store.session("s").parts
    parts.connect("part", Held(value))
    parts.checkpoint()


def _awaited(store: stepkeep.Store, value: Any) -> None:
    async def save() -> None:
        async with aio.open(store.url) as opened:
            await (await opened.session("s")).save(value)

    asyncio.run(save())


def _langgraph(store: stepkeep.Store, value: Any) -> None:
    saver = StepkeepSaver(store, allow=[Plan, Shell, Step])
    checkpoint: Any = {
        **empty_checkpoint(),
        "channel_values": {"plan": value},
        "channel_versions": {"plan": 1},
    }
    saver.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, checkpoint, {}, {"plan": 1})


class Held:
    """A part that holds one value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def snapshot(self) -> Any:
        return self.value

    def restore(self, state: Any) -> None:
        self.value = state


SAVERS: dict[str, Callable[[stepkeep.Store, Any], object]] = {
    "a session": lambda store, value: store.session("s").save(value),
    "a session in the background": lambda store, value: store.session("s").save(value, wait=False),
    "a session that is awaited": _awaited,
    "the agent store": lambda store, value: store.agents.save("s", None, {"context": value}),
    "a script": _script,
    "a part": _part,
    "a recorder": lambda store, value: store.session("s").recorder().update(value),
    "LangGraph": _langgraph,
}


@pytest.mark.parametrize("saver", SAVERS)
def test_every_saver_has_the_same_rule(store: stepkeep.Store, saver: str) -> None:
    """Whichever way a model takes into the store, it is refused where it would lose something."""
    make, _ = LOSING["a subclass in a field of its base"]
    with pytest.raises(stepkeep.InvalidInput) as refused:
        SAVERS[saver](store, make())
    assert refused.value.code == "state_not_exact"
    assert str(refused.value.path).endswith("steps[0]")
