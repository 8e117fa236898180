"""Exactness: a state comes back equal and of the same types, or is refused with its path."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import decimal
import enum
import io
import math
import struct
import sys
import threading
import types
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepkeep.codec import exact, models, tags
from stepkeep.errors import SCHEMA_INVALID, Corrupt, InvalidInput, StepkeepError, Unsupported
from tests.sampling import examples

PARIS = ZoneInfo("Europe/Paris")


# --- a strict equality of its own


def same(a: Any, b: Any) -> bool:
    """Equal in type, value, sign, order and zone, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, Decimal):
        return bool(a.as_tuple() == b.as_tuple())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, set | frozenset):
        return same_elements(list(a), list(b))
    if isinstance(a, datetime | time):
        return same_clock(a, b)
    return bool(a == b)


def same_elements(a: list[Any], b: list[Any]) -> bool:
    """Every element of one side has its own equal on the other."""
    for item in a:
        index = next((i for i, other in enumerate(b) if same(item, other)), None)
        if index is None:
            return False
        b.pop(index)
    return not b


def same_clock(a: Any, b: Any) -> bool:
    fields = (
        a.replace(tzinfo=None).isoformat(),
        a.fold,
        type(a.tzinfo),
        str(a.tzinfo),
        a.utcoffset(),
        a.tzname(),
    )
    others = (
        b.replace(tzinfo=None).isoformat(),
        b.fold,
        type(b.tzinfo),
        str(b.tzinfo),
        b.utcoffset(),
        b.tzname(),
    )
    return fields == others


def round_trip(state: Any) -> Any:
    encoding, data = exact.encode(state)
    return exact.decode(encoding, data)


def nested(levels: int, wrap: Callable[[Any], Any], core: Any = None) -> Any:
    state = core
    for _ in range(levels):
        state = wrap(state)
    return state


# --- every supported type, nested


text = st.text(st.characters(exclude_categories=["Cs"]))
offsets = st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59)) | st.timedeltas(
    timedelta(seconds=-2), timedelta(seconds=2)
)
zones = st.one_of(
    st.none(),
    st.builds(timezone, offsets),
    st.builds(timezone, offsets, text),
    st.sampled_from([UTC, PARIS, ZoneInfo("America/New_York"), ZoneInfo("UTC")]),
)
inner_datetimes = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29))
hashable_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    text,
    st.binary(),
    st.builds(
        lambda value, tz, fold: value.replace(tzinfo=tz, fold=fold), inner_datetimes, zones, st.integers(0, 1)
    ),
    st.dates(),
    st.builds(
        lambda value, tz, fold: value.replace(tzinfo=tz, fold=fold), st.times(), zones, st.integers(0, 1)
    ),
    st.timedeltas(),
    st.uuids(),
    # A signalling NaN has no hash, so it is no key.
    st.decimals().filter(lambda value: not value.is_snan()),
)
hashables = st.recursive(
    hashable_scalars,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
scalars = st.one_of(hashable_scalars, st.decimals(), st.builds(bytearray, st.binary()))
states = st.recursive(
    scalars | st.sets(hashables, max_size=4) | st.frozensets(hashables, max_size=4),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(text, inner, max_size=4),
        st.dictionaries(st.sampled_from(["$int", "$dict", "$tuple", "$", "$x", ""]), inner, max_size=2),
        st.dictionaries(hashables, inner, max_size=4),
    ),
    max_leaves=25,
)


@given(states)
@settings(max_examples=examples(500), deadline=None)
def test_every_state_of_supported_types_comes_back_the_same(state: Any) -> None:
    """Values, types, signs, zones and the order of keys all survive."""
    assert same(round_trip(state), state)


@given(states)
@settings(deadline=None)
def test_equal_states_give_equal_bytes(state: Any) -> None:
    """Encoding is deterministic: what was loaded encodes to the bytes it was loaded from."""
    first = exact.encode(state)
    assert exact.encode(state) == first
    assert exact.encode(exact.decode(*first)) == first


@given(states)
@settings(deadline=None)
def test_bytes_are_json_text(state: Any) -> None:
    """Both encodings are UTF-8 JSON that any reader can parse."""
    _, data = exact.encode(state)
    msgspec.json.decode(data)
    data.decode("utf-8")


plain_states = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
)


@given(plain_states)
@settings(deadline=None)
def test_plain_data_is_plain_json(state: Any) -> None:
    """A state that JSON can hold is stored without tags."""
    encoding, data = exact.encode(state)
    assert encoding == exact.JSON
    assert same(exact.decode(encoding, data), state)


# --- traps, one by one

TRAPS: list[Any] = [
    2**63,
    2**64 - 1,
    2**64,
    2**70,
    -(2**63) - 1,
    10**30,
    [1, 1.0, True, 0, 0.0, -0.0, False],
    {"a": -0.0},
    1e16,
    1e22,
    5e-324,
    sys.float_info.max,
    math.nan,
    [math.inf, -math.inf],
    "\x00\x7f\ud7ff\ue000\uffff\U0001f600\U0010ffff",
    b"",
    b"\x00\xff",
    bytearray(b"ab"),
    (),
    (1, (2, [3])),
    set(),
    {1, "1", None, (1, 2)},
    frozenset({frozenset({1}), frozenset()}),
    {1: "int", "1": "text"},
    {True: 1, "True": 2},
    {None: 1},
    {1.5: 1, -0.0: 2},
    {(1, "a"): {b"k": 2}},
    {frozenset({1}): 1},
    {math.nan: 1},
    {"": {"": ""}},
    {"$int": "0x1"},
    {"$": 1},
    {"$ref": "#/x", "other": 1},
    [{"$dict": []}, (1,)],
    {"$tuple": [1], 2: 3},
    datetime(2020, 1, 1),
    datetime(1, 1, 1, microsecond=1),
    datetime(2020, 1, 1, tzinfo=UTC),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(seconds=-1, microseconds=7))),
    time(1, tzinfo=timezone(timedelta(microseconds=-1), "name")),
    time(1, fold=1, tzinfo=timezone(timedelta(seconds=59))),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=1), "")),
    datetime(2020, 10, 25, 2, 30, tzinfo=PARIS),
    datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=PARIS),
    datetime(2020, 10, 25, 2, 30, fold=1),
    date(2020, 2, 29),
    time(1, 2, 3, 4),
    time(1, fold=1, tzinfo=PARIS),
    time(1, tzinfo=UTC),
    timedelta(days=-1, microseconds=1),
    timedelta.max,
    timedelta.min,
    uuid.UUID(int=0),
    Decimal("1.50"),
    Decimal("-0"),
    Decimal("0E-10"),
    Decimal("NaN"),
    Decimal("-NaN123"),
    Decimal("sNaN"),
    Decimal("-Infinity"),
    Decimal("1E+999999"),
    Decimal("1." + "123456789" * 20),
]


@pytest.mark.parametrize(
    "state", TRAPS, ids=[f"{at}-{type(state).__name__}" for at, state in enumerate(TRAPS)]
)
def test_traps_come_back_the_same(state: Any) -> None:
    """What plain JSON silently changes comes back unchanged, at the root and inside."""
    assert same(round_trip(state), state)
    assert same(round_trip({"deep": [state]}), {"deep": [state]})


def test_the_encoder_tells_equal_numbers_apart() -> None:
    """The check of plain data rests on this: numbers that are `==` have different texts."""
    assert msgspec.json.encode([0, 0.0, -0.0, False]) == b"[0,0.0,-0.0,false]"
    assert msgspec.json.encode([1, 1.0, True, 1e16, 10**16]) == b"[1,1.0,true,1e16,10000000000000000]"


def test_integers_of_any_length_load_under_any_digits_limit() -> None:
    """Integers beyond 64 bits are hexadecimal, to which Python's limit on digits does not apply."""
    state = {"big": 7**20_000, "key": {-(7**9_000): 1}}
    encoding, data = exact.encode(state)
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert same(exact.decode(encoding, data), state)
        assert same(round_trip(10**639), 10**639)
    finally:
        sys.set_int_max_str_digits(limit)


def test_distinct_nans_stay_apart() -> None:
    """Two NaN keys or elements are two after loading."""
    one, two = float("nan"), float("nan")
    assert list(round_trip({one: 1, two: 2}).values()) == [1, 2]
    assert len(round_trip({one, two})) == 2


def test_sets_are_written_in_one_order() -> None:
    """The order of a set in memory does not reach the bytes."""
    names = [f"name-{i}" for i in range(200)]
    assert exact.encode(set(names)) == exact.encode({*names[100:], *names[:100]})
    assert exact.encode({3, 1, 2})[1] == b'{"$set":[1,2,3]}'


def test_insertion_order_is_kept() -> None:
    """Keys stay in the order in which they were inserted."""
    assert exact.encode({"b": 1, "a": 2})[1] == b'{"b":1,"a":2}'
    assert exact.encode({2: 1, "b": 2, 1: 3})[1] == b'{"$dict":[[2,1],["b",2],[1,3]]}'


def test_decimals_do_not_depend_on_the_context() -> None:
    """Precision, traps and capitals of the caller's context change nothing."""
    state = Decimal("1.23456789E+50")
    expected = exact.encode(state)
    with decimal.localcontext(decimal.Context(prec=2, capitals=0, traps=[decimal.Inexact])):
        assert exact.encode(state) == expected
        assert same(exact.decode(*expected), state)


def test_the_state_is_left_as_it_was() -> None:
    """Encoding changes nothing in the state."""
    inner = [1, (2,)]
    state = {"a": inner, "b": {1: inner}}
    exact.encode(state)
    assert state == {"a": [1, (2,)], "b": {1: [1, (2,)]}}
    assert state["a"] is inner


def test_shared_values_come_back_in_each_place() -> None:
    """A value in two places is no cycle."""
    shared = {"x": (1,)}
    assert same(round_trip([shared, shared, {"again": shared}]), [shared, shared, {"again": shared}])


# --- objects that are saved as plain data


class Count(enum.IntEnum):
    ONE = 1


class Role(enum.StrEnum):
    USER = "user"


class Mood(str, enum.Enum):  # noqa: UP042 - the older way is under test
    GOOD = "good"


class Day(date, enum.Enum):
    FIRST = 2020, 1, 1


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Name(str):
    def __str__(self) -> str:
        return "something else"


class Number(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Ratio(float):
    pass


class Blob(bytes):
    def __bytes__(self) -> bytes:
        return b"something else"


class Rows(list[Any]):
    pass


class Moment(datetime):
    pass


class Price(Decimal):
    pass


class Key(uuid.UUID):
    pass


class Point(collections.namedtuple("Point", "x y")):
    pass


@dataclasses.dataclass
class Message:
    role: Role
    when: datetime | None = None
    parts: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int = 1


@dataclasses.dataclass
class Link:
    inner: Link | tuple[()]


class Tool(msgspec.Struct, tag="tool", rename="camel"):
    tool_name: str
    seen: set[int] = msgspec.field(default_factory=set)
    extra: int | msgspec.UnsetType = msgspec.UNSET


class Pair(msgspec.Struct, array_like=True):
    a: int
    b: Decimal


class Model:
    """Looks like a pydantic model."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def model_dump(self) -> dict[str, Any]:
        return self.values

    @classmethod
    def model_validate(cls, value: dict[str, Any]) -> Model:
        if "a" not in value:
            raise LookupError("a is required")
        return cls._of(value)

    @classmethod
    def _of(cls, value: Any) -> Any:
        return cls(**{name: cls._of(each) for name, each in value.items()}) if type(value) is dict else value


def ordered() -> collections.OrderedDict[str, int]:
    values = collections.OrderedDict(a=1, b=2)
    values.move_to_end("a")
    return values


SUBCLASSES: list[tuple[Any, Any]] = [
    (Count.ONE, 1),
    (Role.USER, "user"),
    (Mood.GOOD, "good"),
    (Day.FIRST, date(2020, 1, 1)),
    (Bits.A | Bits.B, 3),
    (Name("n"), "n"),
    (Number(5), 5),
    (Number(2**80), 2**80),
    (Ratio("nan"), math.nan),
    (Ratio(0.5), 0.5),
    (Blob(b"b"), b"b"),
    (Rows([1, Name("n")]), [1, "n"]),
    (Moment(2020, 1, 1, tzinfo=PARIS, fold=1), datetime(2020, 1, 1, tzinfo=PARIS, fold=1)),
    (Price("1.0"), Decimal("1.0")),
    (Key(int=3), uuid.UUID(int=3)),
    (Point(1, 2), (1, 2)),
    (ordered(), {"b": 2, "a": 1}),
    (collections.defaultdict(list, a=[1]), {"a": [1]}),
    (collections.Counter("aab"), {"a": 2, "b": 1}),
    ({Role.USER: 1, Name("n"): 2}, {"user": 1, "n": 2}),
    ({Count.ONE: "one"}, {1: "one"}),
    ({Point(1, 2)}, {(1, 2)}),
    (Message(Role.USER, parts=[Count.ONE]), {"role": "user", "when": None, "parts": [1]}),
    (Message(Role.USER, datetime(2020, 1, 1)), {"role": "user", "when": datetime(2020, 1, 1), "parts": []}),
    (Tool("t", {1}), {"type": "tool", "toolName": "t", "seen": {1}}),
    (Pair(1, Decimal("2.0")), [1, Decimal("2.0")]),
    (Model(a=Model(b=(1,))), {"a": {"b": (1,)}}),
]


@pytest.mark.parametrize(("state", "plain"), SUBCLASSES, ids=lambda value: ascii(value)[:40])
def test_subclasses_and_objects_come_back_as_plain_data(state: Any, plain: Any) -> None:
    """Subclasses of built-ins become the plain value; dataclasses, structs and models become data."""
    assert same(round_trip(state), plain)
    assert same(round_trip([state]), [plain])


def test_subclasses_that_json_holds_need_no_tags() -> None:
    """A state that is JSON once it is plain is stored as JSON."""
    assert exact.encode({Role.USER: [Count.ONE, ordered()]}) == (exact.JSON, b'{"user":[1,{"b":2,"a":1}]}')


def test_a_lying_equality_does_not_hide_lost_data() -> None:
    """Objects that claim to equal anything are saved by what they hold."""

    class Agreeable:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    @dataclasses.dataclass(eq=False)
    class Event(Agreeable):
        when: datetime

    class Items(Agreeable, list[Any]):
        pass

    state = [Event(datetime(2020, 1, 1)), Items([(1,)])]
    assert same(round_trip(state), [{"when": datetime(2020, 1, 1)}, [(1,)]])
    with pytest.raises(InvalidInput):
        exact.encode([Agreeable()])


# --- typed loading


def test_convert_rebuilds_typed_objects() -> None:
    """Dataclasses, structs and models are rebuilt from the data they were saved as."""
    message = Message(Role.USER, datetime(2020, 1, 1, tzinfo=PARIS), [1])
    assert models.convert(round_trip(message), Message) == message
    assert models.convert(round_trip(Tool("t", {1})), Tool) == Tool("t", {1})
    assert models.convert(round_trip(Pair(1, Decimal("2.0"))), Pair) == Pair(1, Decimal("2.0"))
    assert models.convert(round_trip(Model(a=1)), Model).values == {"a": 1}


def test_convert_refuses_what_does_not_fit() -> None:
    """A mismatch is the caller's mistake and names the place."""
    with pytest.raises(InvalidInput) as caught:
        models.convert({"role": "user", "parts": 5}, Message)
    assert (caught.value.code, caught.value.path) == ("state_type_mismatch", "parts")
    with pytest.raises(InvalidInput, match="a is required") as caught:
        models.convert({}, Model)
    assert (caught.value.code, caught.value.path) == ("state_type_mismatch", "$")


# --- refusals


class Colour(enum.Enum):
    RED = 1


class Flags(enum.Flag):
    A = 1


class Summer(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=2)

    def dst(self, when: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, when: datetime | None) -> str:
        return "summer"


class Nanoseconds(datetime):
    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = datetime.__hash__


class Lazy(dict[str, int]):
    def items(self) -> Any:
        return [("made", 1), ("up", 2)]


class Reversed(list[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([int(x) for x in range(99_000, 99_000 + len(self))])


class Apart(str):
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = str.__hash__


class Broken:
    def model_dump(self) -> Any:
        raise KeyError("broken")


class Endless:
    def model_dump(self) -> Any:
        return Endless()


class Array:
    """Looks like a numpy array."""

    def tolist(self) -> list[int]:
        return [1]


REFUSED: list[tuple[str, Any, str]] = [
    ("object", object(), "$"),
    ("in a list", [1, object()], "$[1]"),
    ("in a tuple", (1, (2, object())), "$[1][1]"),
    ("deep", {"context": {"messages": [1, 2, 3, {"when": print}]}}, "context.messages[3].when"),
    ("spaces", {"context": {"a b": object()}}, 'context["a b"]'),
    ("root key", {"a b": object()}, '$["a b"]'),
    ("empty key", {"": object()}, '$[""]'),
    ("quote", {'"': object()}, '$["\\""]'),
    ("long key", {"k" * 200: object()}, '$["' + "k" * 79 + '\\u2026"]'),
    ("int key", {"a": {1: object()}}, "a[1]"),
    ("tuple key", {"a": {(1,): object()}}, "a[<tuple>]"),
    ("huge key", {10**5000: object()}, "$[<int>]"),
    ("key", {"a": {object(): 1}}, "a[<object>]"),
    ("element", {"a": {"b": {object()}}}, "a.b{}"),
    ("surrogate", {"a": ["x", "\ud800"]}, "a[1]"),
    ("surrogate key", {"a": {"\udfff": 1}}, 'a["\\udfff"]'),
    ("surrogate in other key", {"a": {("\udfff",): 1}}, "a[<tuple>][0]"),
    (
        "surrogate zone",
        [0, datetime(2020, 1, 1, tzinfo=timezone(timedelta(0), "\ud800"))],
        "$[1]",
    ),
    ("class", {"a": int}, "a"),
    ("model class", {"a": Model}, "a"),
    ("lambda", {"a": lambda: 0}, "a"),
    ("module", {"a": math}, "a"),
    ("complex", {"a": 1j}, "a"),
    ("generator", {"a": (x for x in "a")}, "a"),
    ("array", {"a": Array()}, "a"),
    ("memoryview", {"a": memoryview(b"x")}, "a"),
    ("deque", {"a": collections.deque()}, "a"),
    ("mapping", {"a": types.MappingProxyType({})}, "a"),
    ("raw", {"a": msgspec.Raw(b"1")}, "a"),
    ("unset", {"a": msgspec.UNSET}, "a"),
    ("enum", {"a": Colour.RED}, "a"),
    ("enum key", {"a": {Colour.RED: 1}}, "a[<Colour>]"),
    ("flag", {"a": Flags.A}, "a"),
    ("zone type", {"a": datetime(2020, 1, 1, tzinfo=Summer())}, "a"),
    ("more than a datetime", {"a": Nanoseconds(2020, 1, 1)}, "a"),
    ("dict with other items", {"a": Lazy(x=1)}, "a"),
    ("list with other items", {"a": Reversed([1, 2])}, "a"),
    ("equal keys", {"a": {Apart("k"): 1, "k": 2}}, "a"),
    ("equal elements", {"a": {Apart("k"), "k"}}, "a"),
    ("frozen dataclass in a set", {"a": {Frozen()}}, "a{}"),
    ("frozen dataclass as key", {"a": {(Frozen(), 1): 1}}, "a[<tuple>]"),
    ("in a dataclass", {"a": Message(Role.USER, parts=[object()])}, "a.parts[0]"),
    ("in a struct", {"a": Tool("\ud800")}, "a.toolName"),
    ("in a model", {"a": Model(b=object())}, "a.b"),
    ("broken model", {"a": Broken()}, "a"),
    ("endless model", {"a": Endless()}, "a"),
]


@pytest.mark.parametrize(("state", "path"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_would_not_come_back_is_refused_with_its_path(state: Any, path: str) -> None:
    """The error names the place inside the state, and the message repeats it."""
    with pytest.raises(InvalidInput) as caught:
        exact.encode(state)
    assert (caught.value.path, caught.value.code) == (path, "state_not_exact")
    assert path in caught.value.message
    assert caught.value.message.isprintable()


def test_zones_without_a_key_are_refused() -> None:
    """A zone is saved by its key; one that the key does not find again is refused."""
    with pytest.raises(InvalidInput, match="time zone"):
        exact.encode([datetime(2020, 1, 1, tzinfo=zone_of(None))])
    with pytest.raises(InvalidInput, match="time zone"):
        exact.encode([datetime(2020, 1, 1, tzinfo=zone_of("Asia/Tokyo"))])
    with pytest.raises(InvalidInput, match="time zone"):
        exact.encode([datetime(2020, 1, 1, tzinfo=zone_of("../Paris"))])
    assert same(
        round_trip([datetime(2020, 1, 1, tzinfo=ZoneInfo.no_cache("Europe/Paris"))]),
        [datetime(2020, 1, 1, tzinfo=PARIS)],
    )


def zone_of(key: str | None) -> ZoneInfo:
    """A zone of one fixed offset (an hour and a second) that claims `key`."""
    header = b"TZif" + b"\x00" * 16 + struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    return ZoneInfo.from_file(io.BytesIO(header + struct.pack(">lbb", 3601, 0, 0) + b"ODD\x00"), key=key)


def test_cycles_are_refused_where_they_close() -> None:
    """A container inside itself is named by the path at which it appears again."""
    values: list[Any] = [1]
    values.append({"self": values})
    with pytest.raises(InvalidInput, match="contains itself") as caught:
        exact.encode({"a": values})
    assert (caught.value.path, caught.value.code) == ("a[1].self", "state_not_exact")
    message = Message(Role.USER)
    message.parts.append(message)
    with pytest.raises(InvalidInput, match="contains itself") as caught:
        exact.encode(message)
    assert caught.value.path == "parts[0]"


def test_a_state_that_changes_meanwhile_is_refused() -> None:
    """A dict that grows while it is read is an error of this package."""
    state: dict[Any, Any] = {}

    class Growing:
        def model_dump(self) -> dict[str, int]:
            state[len(state)] = 1
            return {}

        @classmethod
        def model_validate(cls, value: dict[str, int]) -> Growing:
            return cls()

    state["a"] = Growing()
    state["b"] = 1
    with pytest.raises(InvalidInput, match="changed while"):
        exact.encode(state)


# --- limits

WRAPS: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: [inner],
    "dict": lambda inner: {"k": inner},
    "tuple": lambda inner: (inner,),
    "other keys": lambda inner: {1: inner},
    "frozenset": lambda inner: frozenset({inner}),
    "tuple key": lambda inner: {(1,): inner},
    "ordered": lambda inner: collections.OrderedDict(k=inner),
    "rows": lambda inner: Rows([inner]),
    "named tuple": lambda inner: Point(inner, 1),
    "dataclass": Link,
    "model": lambda inner: Model(a=inner),
    "tag-like": lambda inner: {"$k": inner},
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_the_depth_limit_is_exact_for_every_container(wrap: Callable[[Any], Any]) -> None:
    """A state of exactly the limit comes back; one level more is refused, whatever the container."""
    leaf: Any = () if wrap(()) != [()] else []
    deepest = nested(exact.MAX_DEPTH - 1, wrap, leaf)
    encoding, data = exact.encode(deepest)
    assert exact.encode(exact.decode(encoding, data)) == (encoding, data)
    with pytest.raises(InvalidInput) as caught:
        exact.encode(wrap(deepest))
    assert caught.value.code == "state_too_deep"
    assert caught.value.path is not None


def test_tags_do_not_count_as_levels() -> None:
    """The limit counts the containers of the state, however many levels of JSON they take."""
    leaf = datetime(2020, 1, 1, fold=1, tzinfo=timezone(timedelta(hours=1), "CET"))
    state = nested(exact.MAX_DEPTH, WRAPS["other keys"], leaf)
    encoding, data = exact.encode(state)
    assert exact.encode(exact.decode(encoding, data)) == (encoding, data)
    assert same(exact.decode(*exact.encode(leaf, max_depth=0)), leaf)


def test_too_deep_names_the_place() -> None:
    """The path leads to the container that is one too deep."""
    with pytest.raises(InvalidInput) as caught:
        exact.encode({"a": [[]]}, max_depth=2)
    assert (caught.value.path, caught.value.code) == ("a[0]", "state_too_deep")
    assert exact.encode({"a": []}, max_depth=2)[0] == exact.JSON
    assert exact.encode(1, max_depth=0)[0] == exact.JSON


@pytest.mark.parametrize("wrap", [WRAPS["list"], WRAPS["tuple"], WRAPS["ordered"]])
def test_no_depth_escapes_as_a_recursion_error(wrap: Callable[[Any], Any]) -> None:
    """A hundred thousand levels are refused like any other depth."""
    state = nested(100_000, wrap)
    try:
        with pytest.raises(InvalidInput) as caught:
            exact.encode(state)
        assert caught.value.code == "state_too_deep"
    finally:
        while state:  # taken apart by hand: freeing it at once would go as deep
            state = next(iter(state.values())) if isinstance(state, dict) else state[0]


def test_the_depth_limit_can_only_be_lowered() -> None:
    """No state is saved that another process might not load."""
    with pytest.raises(InvalidInput, match="max_depth"):
        exact.encode([], max_depth=exact.MAX_DEPTH + 1)
    with pytest.raises(InvalidInput, match="max_depth"):
        exact.encode([], max_depth=-1)


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_a_deep_call_stack_changes_nothing(wrap: Callable[[Any], Any]) -> None:
    """Saving and loading a state within the limit works however deep the caller is."""
    state = nested(exact.MAX_DEPTH - 1, wrap, ())
    expected = exact.encode(state)

    def check() -> bool:
        return exact.encode(state) == expected and exact.encode(exact.decode(*expected)) == expected

    def dive(levels: int) -> bool:
        return dive(levels - 1) if levels else check()

    results: list[bool] = []
    # A thread of its own starts from an empty stack, so that the depth is known.
    thread = threading.Thread(target=lambda: results.append(dive(sys.getrecursionlimit() - 60)))
    thread.start()
    thread.join()
    assert results == [True]


def test_a_full_call_stack_is_never_reported_as_damage() -> None:
    """With hardly a frame left, loading may fail, but it does not blame the stored bytes."""
    expected = exact.encode(nested(exact.MAX_DEPTH, WRAPS["list"]))
    failures: list[BaseException] = []

    def dive(levels: int) -> Any:
        return dive(levels - 1) if levels else exact.decode(*expected)

    def attempt_with(frames_left: int) -> None:
        try:
            dive(sys.getrecursionlimit() - frames_left)
        except BaseException as exc:
            failures.append(exc)

    for frames_left in range(1, 30):
        thread = threading.Thread(target=attempt_with, args=[frames_left])
        thread.start()
        thread.join()
    assert all(isinstance(failure, Unsupported | RecursionError) for failure in failures)


def test_a_low_recursion_limit_is_told_apart_from_damage() -> None:
    """A process that forbids deep calls gets an error that says so."""
    encoding, data = exact.encode(nested(exact.MAX_DEPTH - 1, WRAPS["other keys"]))
    failures: list[Exception] = []

    def attempt() -> None:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(100)
        try:
            exact.decode(encoding, data)
        except Exception as exc:
            failures.append(exc)
        finally:
            sys.setrecursionlimit(limit)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    if sys.version_info < (3, 12):  # later, calls in C are limited apart from calls in Python
        assert [type(failure) for failure in failures] == [Unsupported]
    assert all(isinstance(failure, StepkeepError) for failure in failures)


def test_size_is_bounded() -> None:
    """A state is refused when its bytes exceed the limit, not before."""
    state = {"a": "x" * 92}
    assert len(exact.encode(state, max_bytes=100)[1]) == 100
    for too_large in ({"a": "x" * 93}, {"a": ("x" * 93,)}, [1] * 51, (1,) * 51):
        with pytest.raises(InvalidInput) as caught:
            exact.encode(too_large, max_bytes=100)
        assert (caught.value.code, caught.value.path) == ("state_too_large", "$")
    assert exact.encode([1] * 49, max_bytes=99)[0] == exact.JSON


def test_shared_references_cannot_multiply() -> None:
    """A small graph that unfolds into more than the limit is refused before it is unfolded."""
    for core in (1, datetime(2020, 1, 1)):
        state = nested(100, lambda inner: [inner, inner], core)
        with pytest.raises(InvalidInput) as caught:
            exact.encode(state, max_bytes=100_000)
        assert caught.value.code == "state_too_large"


# --- reading what was not written here


def test_unknown_encodings_are_unsupported() -> None:
    """An id from a newer release is told apart from damage."""
    with pytest.raises(Unsupported):
        exact.decode("json+tags2", b"1")


def test_plain_json_holds_no_tags() -> None:
    """In the plain encoding an object that looks like a tag is an object."""
    assert exact.decode(exact.JSON, b'{"$tuple":[1]}') == {"$tuple": [1]}


MALFORMED = [
    b"",
    b"{",
    b"NaN",
    b"1e400",
    b'"\xff"',
    b'"\\ud800"',
    b"[" * 100_000,
    b'{"$new":1}',
    b'{"$int":"1_0"}',
    b'{"$int":5}',
    b'{"$int":"0x_1"}',
    b'{"$float":"1.5"}',
    b'{"$float":[]}',
    b'{"$bytes":"a"}',
    b'{"$bytes":"YQ==x"}',
    b'{"$bytearray":3}',
    b'{"$datetime":"yesterday"}',
    b'{"$datetime":["2020-01-01T00:00:00",0]}',
    b'{"$datetime":["2020-01-01T00:00:00",2,null]}',
    b'{"$datetime":["2020-01-01T00:00:00",0,[0]]}',
    b'{"$datetime":["2020-01-01T00:00:00",0,[1e300,null]]}',
    b'{"$datetime":["2020-01-01T00:00:00",0,[86400000000,null]]}',
    b'{"$datetime":["2020-01-01T00:00:00",0,"../../etc/passwd"]}',
    b'{"$datetime":["2020-01-01T00:00:00",0,5]}',
    b'{"$date":"2020-02-30"}',
    b'{"$time":"25:00"}',
    b'{"$timedelta":[1e300,0,0]}',
    b'{"$timedelta":"abc"}',
    b'{"$uuid":"0"}',
    b'{"$uuid":5}',
    b'{"$decimal":"one"}',
    b'{"$decimal":1}',
    b'{"$decimal":"1E+99999999999999999999"}',
    b'{"$tuple":"ab"}',
    b'{"$tuple":{"a":1}}',
    b'{"$set":[1,1]}',
    b'{"$set":[[]]}',
    b'{"$frozenset":"ab"}',
    b'{"$dict":[[1,2],[1,3]]}',
    b'{"$dict":[[[],2]]}',
    b'{"$dict":[[1]]}',
    b'{"$dict":["ab"]}',
    b'{"$dict":5}',
]


@pytest.mark.parametrize("data", MALFORMED, ids=lambda data: repr(data[:50]))
def test_malformed_bytes_are_corrupt(data: bytes) -> None:
    """Bytes that no save wrote are reported with the reason code."""
    with pytest.raises(Corrupt) as caught:
        exact.decode(exact.TAGGED, data)
    assert caught.value.code == SCHEMA_INVALID


def test_a_zone_this_machine_lacks_is_unsupported() -> None:
    """Missing time zone data is no damage."""
    with pytest.raises(Unsupported, match="Mars/Olympus"):
        exact.decode(exact.TAGGED, b'{"$datetime":["2020-01-01T00:00:00",0,"Mars/Olympus"]}')


def test_malformed_decimals_are_found_in_any_context() -> None:
    """A context that does not trap would turn any text into NaN."""
    with decimal.localcontext(decimal.Context(traps=[])), pytest.raises(Corrupt):
        exact.decode(exact.TAGGED, b'{"$decimal":"one"}')


def attempt(encoding: str, data: bytes) -> None:
    with contextlib.suppress(StepkeepError):
        exact.decode(encoding, data)


@given(st.sampled_from([exact.JSON, exact.TAGGED]), st.binary())
@example(exact.TAGGED, b"")
@settings(deadline=None)
def test_garbage_raises_only_our_errors(encoding: str, data: bytes) -> None:
    """Random bytes never raise a foreign error."""
    attempt(encoding, data)


@given(states, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_mutated_documents_raise_only_our_errors(state: Any, data: st.DataObject) -> None:
    """A document with some bytes changed, cut or put in never raises a foreign error."""
    document = bytearray(exact.encode(state)[1])
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(document)))
        stop = data.draw(st.integers(start, min(len(document), start + 4)))
        document[start:stop] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b'"', b"[", b"}", b"null", b"-1"])
        )
    attempt(exact.TAGGED, bytes(document))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
tag_names = st.sampled_from(sorted(tags.READERS))


@given(tag_names, json_values)
@settings(max_examples=examples(500), deadline=None)
def test_tags_with_any_body_raise_only_our_errors(tag: str, body: Any) -> None:
    """Every tag checks its body."""
    attempt(exact.TAGGED, msgspec.json.encode({tag: body}))
