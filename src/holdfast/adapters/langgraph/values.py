"""Channel values as data that Holdfast stores exactly and people can read, and back.

Plain data, and what Holdfast's own tags hold (tuples, sets, bytes, times, integers of any size), is stored as it is.
Any other object goes through LangGraph's serializer, and what that wrote is laid open (see `extensions`), so that a
message reads as its fields instead of base64. Reading packs the same bytes again and hands them to the serializer,
which alone decides which classes may be made. It is proven before anything is stored that the bytes come out the same,
and that the value comes back equal.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any, Final, Protocol
from uuid import UUID

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.adapters.langgraph.extensions import MARK, open_msgpack, pack_msgpack
from holdfast.adapters.langgraph.memory import Line, Memory, is_message
from holdfast.codec import exact
from holdfast.codec.exact import MAX_DEPTH
from holdfast.codec.growing import LARGE_BYTES, Growing
from holdfast.codec.refusal import ATOMS, Refusal, name_of, step_of
from holdfast.engine import Engine, NewBody
from holdfast.engine.writer import Shares
from holdfast.errors import HoldfastError

_MARK_IN_JSON: Final = b'"$serde"'
_LEAVES: Final = ATOMS | {bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal}
_SEQUENCES: Final = frozenset({list, tuple, set, frozenset})
_CONTAINERS: Final = _SEQUENCES | {dict}
_EXACT: Final = _LEAVES | _CONTAINERS
_HAS_FIELDS: Final = frozenset({dict, list})
_MAX_LEVEL: Final = 1_000_000
"""More values side by side than this may be shared references that multiply: the walk with a path decides."""


class Packs(Protocol):
    """What turns values into a body."""

    def body(self, engine: Engine, values: dict[str, Any]) -> NewBody: ...

    def channels(self, engine: Engine, line: Line, values: dict[str, Any]) -> tuple[NewBody, list[str]]:
        """The body with the channel values, and the order in which it has them."""


class Values:
    """Packs values for one serializer. Safe for threads: it remembers classes proven before, and the last values."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self.serde = serde
        # Whoever brings another serializer, one that encrypts for example, wants every value to go through it.
        self._keeps_plain = type(serde) is JsonPlusSerializer
        self._proven: set[type] = set()
        self._memory = Memory()

    # --- whole bodies

    def body(self, engine: Engine, values: dict[str, Any]) -> NewBody:
        """The body that holds these values.

        Raises:
            InvalidInput: a value cannot be stored, or would not come back equal; `.path` names the place.
        """
        if self._keeps_plain and has_no_objects(values):
            body = engine.encode(values)
            if not _has_mark(body.content):
                return body
        try:
            return engine.encode(self.pack(values))
        except Refusal as refusal:
            raise refusal.as_error() from refusal.__cause__

    def channels(self, engine: Engine, line: Line, values: dict[str, Any]) -> tuple[NewBody, list[str]]:
        """The body that holds channel values; a large one has the largest value first.

        Raises:
            InvalidInput: as `body`.
        """
        known = self._memory.take(line)
        if known is None and not (self._keeps_plain and self._memory.may_grow(line, values)):
            body = self.body(engine, values)
            if not self._keeps_plain or body.encoding != exact.JSON or len(body.content) < LARGE_BYTES:
                return body, list(values)
        if known is None:
            known = Growing(lambda value: self._piece(engine, value), is_message)
        try:
            grown = known.content(values)
        except (HoldfastError, Refusal, UnicodeEncodeError):
            grown = None
        if grown is None or len(grown.content) > engine.max_state_bytes:
            body = self.body(engine, values)  # or it says what is wrong
            self._memory.note_tagged(line)
            return body, list(values)
        self._memory.keep(line, known)
        shares = Shares(grown.before, grown.shared)
        return NewBody(grown.content, exact.JSON, digest=grown.digest, shares=shares), grown.order

    def forget(self, session: str) -> None:
        """Let go of the values of a thread that is deleted."""
        self._memory.forget(session)

    def _piece(self, engine: Engine, value: Any) -> bytes | None:
        """The plain JSON of one channel value, None if it has none."""
        limits = {"max_depth": MAX_DEPTH - 1, "max_bytes": engine.max_state_bytes}
        if has_no_objects(value):
            encoding, content = exact.encode(value, **limits)
            if not _has_mark(content):
                return content if encoding == exact.JSON else None
        encoding, content = exact.encode(self.pack({"": value})[""], **limits)
        return content if encoding == exact.JSON else None

    def decode(self, encoding: str, content: bytes) -> Any:
        """The values in a body."""
        tree = exact.decode(encoding, content)
        return self.unpack(tree) if _has_mark(content) else tree

    # --- packing

    def pack(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values with every object laid open; raises `Refusal` for what cannot be stored."""
        walk = _Walk(self._open if self._keeps_plain else self._seal, whole=not self._keeps_plain)
        return walk.channels(values)

    def _open(self, value: object) -> Any:
        """One object as readable data."""
        if isinstance(value, BaseException):
            return repr(value)  # all that LangGraph keeps of an error
        kind, data = self._dumps(value)
        self._prove(value, kind, data)
        opened = open_msgpack(data) if kind == "msgpack" else None
        return opened if opened is not None else {MARK: kind, "class": name_of(value), "bytes": bytes(data)}

    def _seal(self, value: object) -> Any:
        """Any value as the serializer writes it."""
        kind, data = self._dumps(value)
        self._prove(value, kind, data)
        return {MARK: kind, "bytes": bytes(data)}

    def _dumps(self, value: object) -> tuple[str, bytes]:
        try:
            return self.serde.dumps_typed(value)
        except Exception as exc:  # serializers call foreign code, which raises anything
            raise Refusal(f"is a {name_of(value)}, which cannot be stored: {exc}") from exc

    def _prove(self, value: object, kind: str, data: bytes) -> None:
        """Refuse an object that does not come back equal.

        A class that was proven once needs no second proof for objects that hold nothing but plain data.
        """
        cls = type(value)
        if cls in self._proven and _holds_plain_data(value):
            return
        loaded = self.serde.loads_typed((kind, data))
        if not self._is_same(loaded, value, data):
            raise Refusal(
                f"is a {name_of(value)} and would come back as a different {name_of(loaded)}: "
                f"allow its class with HoldfastSaver(…, allow=[{cls.__name__}]), or keep plain data there"
            )
        if type(loaded) is cls:
            self._proven.add(cls)

    def _is_same(self, loaded: object, value: object, data: bytes) -> bool:
        try:
            if type(value) is not type(loaded) or type(value).__eq__ is not object.__eq__:
                return bool(loaded == value)
        except Exception:  # an array has no single answer, and foreign code may raise anything
            if type(loaded) is not type(value):
                return False
        return self._dumps(loaded)[1] == data

    # --- unpacking

    def unpack(self, tree: Any) -> Any:
        """The values that `pack` was given. Lists and dicts of `tree` are reused."""
        kind = type(tree)
        if kind is dict:
            if MARK in tree:
                return self._revive(tree)
            for key, value in tree.items():
                if type(value) in _CONTAINERS:
                    tree[key] = self.unpack(value)
        elif kind is list:
            for at, value in enumerate(tree):
                if type(value) in _CONTAINERS:
                    tree[at] = self.unpack(value)
        elif kind is tuple:
            return tuple(map(self.unpack, tree))
        return tree

    def _revive(self, node: dict[str, Any]) -> Any:
        kind = node[MARK]
        if isinstance(kind, str):
            return self.serde.loads_typed((kind, node["bytes"]))
        return self.serde.loads_typed(("msgpack", pack_msgpack(node)))


def _has_mark(content: bytes) -> bool:
    return b"$" in content and _MARK_IN_JSON in content  # one byte is found many times faster than a word


_UNFINISHED: Final = object()


class _Walk:
    """One pass over values, replacing what `foreign` must take care of. Unchanged parts are not copied."""

    def __init__(self, foreign: Callable[[object], Any], *, whole: bool) -> None:
        self._foreign = foreign
        self._whole = whole
        self._seen: dict[int, Any] = {}

    def channels(self, values: dict[str, Any]) -> dict[str, Any]:
        packed: dict[str, Any] = {}
        name: object = None
        try:
            for name, value in values.items():
                packed[name] = self._foreign(value) if self._whole else self._value(value, 1)
        except Refusal as refusal:
            refusal.steps.append(step_of(name))
            raise
        return packed

    def _value(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _LEAVES:
            return value
        if kind not in _CONTAINERS:
            return self._foreign(value)
        if depth > MAX_DEPTH:
            return value  # the encoding refuses it, and names the place
        place = id(value)
        if place not in self._seen:
            self._seen[place] = _UNFINISHED
            self._seen[place] = self._container(value, kind, depth)
        if self._seen[place] is _UNFINISHED:
            raise Refusal("contains itself: break the cycle, for example by saving an id")
        return self._seen[place]

    def _container(self, value: Any, kind: type, depth: int) -> Any:
        if kind is dict:
            return self._dict(value, depth)
        if kind is list or kind is tuple:
            return self._items(value, kind, depth)
        return value if all(_is_exact(item) for item in value) else self._foreign(value)

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        if MARK in value or not all(type(key) is str or _is_exact(key) for key in value):
            return self._foreign(value)
        changed: dict[Any, Any] = {}
        key: Any = None
        try:
            for key, item in value.items():
                if type(item) not in _LEAVES and (packed := self._value(item, depth + 1)) is not item:
                    changed[key] = packed
        except Refusal as refusal:
            refusal.steps.append(step_of(key))
            raise
        return {**value, **changed} if changed else value

    def _items(self, value: Any, kind: type, depth: int) -> Any:
        packed: list[Any] = []
        try:
            for item in value:
                packed.append(item if type(item) in _LEAVES else self._value(item, depth + 1))
        except Refusal as refusal:
            refusal.steps.append(f"[{len(packed)}]")
            raise
        is_changed = any(new is not old for new, old in zip(packed, value, strict=True))
        return kind(packed) if is_changed else value


def _is_exact(value: object) -> bool:
    """Whether a key or an element of a set is of a type that Holdfast stores exactly."""
    if type(value) in (tuple, frozenset):
        return all(_is_exact(item) for item in value)  # type: ignore[attr-defined]
    return type(value) in _LEAVES


def has_no_objects(root: Any) -> bool:
    """Whether values consist of types that Holdfast stores exactly; level by level, most of them are texts.

    What is nested too deep, or refers to itself, is left to the walk with a path.
    """
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH):
        present = set(map(type, level))
        if not present <= _EXACT:
            return False
        below: list[Any] = []
        if not present.isdisjoint(_SEQUENCES):
            below.extend(chain.from_iterable(value for value in level if type(value) in _SEQUENCES))
        if dict in present:
            dicts = [value for value in level if type(value) is dict]
            if [key for value in dicts for key in value if type(key) is not str]:
                return False
            below.extend(chain.from_iterable(map(dict.values, dicts)))
        if len(below) > _MAX_LEVEL:
            return False
        level = [value for value in below if type(value) is not str]
        if not level:
            return True
    return False


def _holds_plain_data(value: object) -> bool:
    """Whether all fields of an object are plain data, which the serializer is known to bring back."""
    fields = getattr(value, "__dict__", None)
    if fields is None:
        return False
    level: list[Any] = [fields, getattr(value, "__pydantic_extra__", None) or {}]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            if type(container) is dict:
                if any(type(key) is not str for key in container):
                    return False
                below.extend(container.values())
            else:
                below.extend(container)
        if not {type(item) for item in below} <= ATOMS | _HAS_FIELDS:
            return False
        if not all(_comes_back(item) for item in below):
            return False
        level = [item for item in below if type(item) in _HAS_FIELDS]
        if not level:
            return True
    return False


def _comes_back(value: Any) -> bool:
    """False for NaN, which equals nothing, and text with lone surrogates, which msgpack replaces."""
    if type(value) is str and not value.isascii():
        return value.encode("utf-8", "replace") == value.encode("utf-8", "surrogatepass")
    return type(value) is not float or value == value
