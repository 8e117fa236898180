"""Channel values as data that Stepkeep stores exactly and people can read, and back.

Plain data, and what Stepkeep's own tags hold (tuples, sets, bytes, times, integers of any size), is stored as it is.
Any other object goes through LangGraph's serializer, and what that wrote is laid open (see `serde`), so that a
message reads as its fields instead of base64. Reading packs the same bytes again and hands them to the serializer,
which alone decides which classes may be made. It is proven of every object before anything is stored that the bytes
come out the same, and that it comes back equal. LangGraph's own small classes are stored by their fields (see
`serde`).

With another serializer every value goes through that one, as it is, or where that would not bring it back, as
Stepkeep's own bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from stepkeep.adapters.langgraph.serde import (
    MARK,
    OWN_CLASSES,
    difference,
    fields_of,
    is_node,
    node_of,
    object_of,
    open_msgpack,
    pack_msgpack,
)
from stepkeep.api.extension import (
    ATOMS,
    MAX_DEPTH,
    Engine,
    Growing,
    NewBody,
    ValidationError,
    decode,
    encode,
    name_of,
    plain,
    step_of,
)
from stepkeep.errors import Unsupported
from stepkeep.model import Content

# --- messages as they are compared ---------------------------------------------------------------------------------

_MESSAGES: Final = "langchain_core.messages."
_content_of_message: Final = attrgetter("__dict__", "__pydantic_extra__")


def _message_class(kind: type) -> str | None:
    """The name of a class that is one of LangChain's own messages: its fields are all there is to it."""
    is_message = issubclass(kind, BaseMessage) and kind.__module__.startswith(_MESSAGES)
    return f"{kind.__module__}:{kind.__qualname__}" if is_message else None


def comparable(value: Any) -> Any:
    """A channel value with the messages of a list as plain data, each with its class; others as they are."""
    if type(value) is not list:
        return value
    names = {kind: name for kind in set(map(type, value)) if (name := _message_class(kind)) is not None}
    if not names:
        return value
    return [(name, _content_of_message(item)) if (name := names.get(type(item))) else item for item in value]


# --- channel values ------------------------------------------------------------------------------------------------

MAX_TAGGED: Final = 1000
"""How many branches whose values are not plain JSON are remembered."""

_ATTEMPTS: Final = 3
_MARK_IN_JSON: Final = b'"$serde"'
_LONG_BYTES: Final = 4 * 1024
_EXACT_BYTES: Final = "exact"
"""The key of a node whose bytes, once the serializer read them, are a body of this encoding with one value."""

_LEAVES: Final = ATOMS | {bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal}
_SEQUENCES: Final = frozenset({list, tuple, set, frozenset})
_CONTAINERS: Final = _SEQUENCES | {dict}
_EXACT: Final = _LEAVES | _CONTAINERS
_MAX_LEVEL: Final = 1_000_000
"""More values side by side than this may be shared references that multiply: the walk with a path decides."""


class Values:
    """Packs values for one serializer. Safe for threads: it only remembers the last values."""

    def __init__(self, engine: Engine, serde: SerializerProtocol) -> None:
        self.engine = engine
        self.serde = serde
        # Whoever brings another serializer, one that encrypts for example, wants every value to go through it.
        self._keeps_plain = type(serde) is JsonPlusSerializer
        # What encrypts writes other bytes each time: whether they are the same is seen before that.
        self._plain_serde = serde.serde if isinstance(serde, EncryptedSerializer) else serde
        self._tagged: set[str] = set()
        self._unmarked: bytes | None = (
            None  # a content without objects: a state that is read again is the same bytes
        )

    # --- whole bodies

    def body(self, values: dict[str, Any]) -> NewBody:
        """The body that holds these values.

        Raises:
            InvalidInput: a value cannot be stored, or would not come back equal; `.path` names the place.
        """
        body = self.engine.encode_plain(values) if self._keeps_plain else None
        if body is None and self._keeps_plain and has_no_objects(values):
            body = self.engine.encode(values)
        if body is not None and not _has_mark(body.content):
            return body
        try:
            return self.engine.encode(self.pack(values))
        except ValidationError as refusal:
            raise refusal.as_error() from refusal.__cause__

    def channels(self, key: str, values: dict[str, Any]) -> NewBody:
        """The body that holds channel values; what is remembered under the key is not encoded again.

        Raises:
            InvalidInput: as `body`.
        """
        if not self._keeps_plain or key in self._tagged:
            return self.body(values)
        body = self.engine.encoder.grow(key, values, self._growing)
        if body is not None:
            return body
        if len(self._tagged) >= MAX_TAGGED:
            self._tagged.clear()
        self._tagged.add(key)  # its next values are probably not plain either
        return self.body(values)  # or it says what is wrong

    def _growing(self) -> Growing:
        return Growing(self._plain, comparable, max_bytes=self.engine.max_state_bytes)

    def _plain(self, value: Any, depth: int) -> tuple[bytes, Any] | None:
        """The plain JSON of one channel value and what that reads back as; None if it has none."""
        found = plain(value, depth, self.engine.max_state_bytes)
        if found is not None and not _has_mark(found[0]):
            return found
        if found is None and has_no_objects(value):
            return None
        found = plain(self.pack({"": value})[""], depth, self.engine.max_state_bytes)
        if found is None:
            return None
        data, tree = found
        return data, comparable(self.unpack(tree)) if type(value) is list else None

    def decode(self, content: Content, data: bytes) -> Any:
        """The values in a body, by their names. A name may be the mark itself."""
        return self.revived(decode(content.encoding, data, content.first_at), data)

    def revived(self, tree: dict[str, Any], content: bytes) -> dict[str, Any]:
        """Decoded values with the objects among them made again."""
        if content is self._unmarked:
            return tree
        if _has_mark(content):
            return {name: self.unpack(value) for name, value in tree.items()}
        if len(content) >= _LONG_BYTES:
            self._unmarked = content
        return tree

    # --- packing

    def pack(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values with every object laid open; raises `ValidationError` for what cannot be stored."""
        if self._keeps_plain:
            return _Walk(self._open).channels(values)
        return {name: self._seal(name, value) for name, value in values.items()}

    def _open(self, value: object) -> Any:
        """One object as readable data."""
        if isinstance(value, BaseException):
            return repr(value)  # all that LangGraph keeps of an error
        if "<locals>" in type(value).__qualname__:
            # Nothing finds a class inside a function again: LangGraph goes on with what the object holds.
            held = self.serde.loads_typed(_dumps(self.serde, value))
            if type(held) is not type(value):
                return self.pack({"": held})[""]
        kind, data = self._written(value)
        opened = open_msgpack(data) if kind == "msgpack" else None
        return opened if opened is not None else {MARK: kind, "class": name_of(value), "bytes": data}

    def _seal(self, name: str, value: object) -> Any:
        """Any value as the serializer writes it, or where that would not bring it back, as it writes exact bytes."""
        try:
            kind, data = self._written(value)
            return {MARK: kind, "bytes": data}
        except ValidationError:
            encoding, content = encode(_Walk(self._open).channels({name: value}))
        kind, data = self._written(content)
        return {MARK: kind, _EXACT_BYTES: encoding, "bytes": data}

    def _written(self, value: object) -> tuple[str, bytes]:
        """What the serializer writes for a value that it brings back equal.

        A graph may change a message while it is stored, by giving it its id: then it is written again.
        """
        written = _dumps(self.serde, value)
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                self._prove(value, *written)
                break
            except ValidationError:
                again = _dumps(self.serde, value)
                if not attempts_left or again == written:
                    raise
                written = again
        kind, data = written
        return kind, bytes(data)

    def _prove(self, value: object, kind: str, data: bytes) -> None:
        """Refuse an object that does not come back equal."""
        try:
            loaded = self.serde.loads_typed((kind, data))
        except Exception as exc:  # serializers call foreign code, which raises anything
            raise ValidationError(f"is a {name_of(value)}, which cannot be read back: {exc}") from exc
        if not self._is_same(loaded, value):
            found = difference(value, loaded)
            if found is not None:
                raise found

    def _is_same(self, loaded: object, value: object) -> bool:
        try:
            if type(value) is not type(loaded) or type(value).__eq__ is not object.__eq__:
                return bool(loaded == value)
        except Exception:  # an array has no single answer, and foreign code may raise anything
            if type(loaded) is not type(value):
                return False
        return _dumps(self._plain_serde, loaded) == _dumps(self._plain_serde, value)

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
        if not isinstance(kind, str):
            return self._loads("msgpack", pack_msgpack(node))
        if is_node(node):
            return object_of(node, self.unpack(node["value"]))
        loaded = self._loads(kind, node["bytes"])
        if _EXACT_BYTES not in node:
            return loaded
        (value,) = decode(node[_EXACT_BYTES], loaded).values()
        return self.unpack(value) if _has_mark(loaded) else value

    def _loads(self, kind: str, data: bytes) -> Any:
        try:
            return self.serde.loads_typed((kind, data))
        except Exception as exc:  # serializers call foreign code, which raises anything
            raise Unsupported(
                f"this saver's serializer cannot read a value that was stored as {kind!r} ({exc}): "
                "open the thread with the serializer it was written with, StepkeepSaver(…, serde=…)",
                code="serializer_mismatch",
            ) from exc


def _dumps(serde: SerializerProtocol, value: object) -> tuple[str, bytes]:
    try:
        return serde.dumps_typed(value)
    except Exception as exc:  # serializers call foreign code, which raises anything
        raise ValidationError(f"is a {name_of(value)}, which cannot be stored: {exc}") from exc


def _has_mark(content: bytes) -> bool:
    return b"$" in content and _MARK_IN_JSON in content  # one byte is found many times faster than a word


_UNFINISHED: Final = object()


class _Walk:
    """One pass over values, replacing what `foreign` must take care of. Unchanged parts are not copied."""

    def __init__(self, foreign: Callable[[object], Any]) -> None:
        self._foreign = foreign
        self._seen: dict[int, Any] = {}

    def channels(self, values: dict[str, Any]) -> dict[str, Any]:
        packed: dict[str, Any] = {}
        name: object = None
        try:
            for name, value in values.items():
                packed[name] = self._value(value, 1)
        except ValidationError as refusal:
            refusal.steps.append(step_of(name))
            raise
        return packed

    def _value(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _LEAVES:
            return value
        if kind not in _CONTAINERS and kind not in OWN_CLASSES:
            return self._foreign(value)
        if depth > MAX_DEPTH:
            return value  # the encoding refuses it, and names the place
        place = id(value)
        if place not in self._seen:
            self._seen[place] = _UNFINISHED
            self._seen[place] = self._container(value, kind, depth)
        if self._seen[place] is _UNFINISHED:
            raise ValidationError("contains itself: break the cycle, for example by saving an id")
        return self._seen[place]

    def _container(self, value: Any, kind: type, depth: int) -> Any:
        if kind is dict:
            return self._dict(value, depth)
        if kind is list or kind is tuple:
            return self._items(value, kind, depth)
        if kind in OWN_CLASSES:
            return node_of(kind, self._dict(fields_of(value), depth))
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
        except ValidationError as refusal:
            refusal.steps.append(step_of(key))
            raise
        return {**value, **changed} if changed else value

    def _items(self, value: Any, kind: type, depth: int) -> Any:
        packed: list[Any] = []
        try:
            for item in value:
                packed.append(item if type(item) in _LEAVES else self._value(item, depth + 1))
        except ValidationError as refusal:
            refusal.steps.append(f"[{len(packed)}]")
            raise
        is_changed = any(new is not old for new, old in zip(packed, value, strict=True))
        return kind(packed) if is_changed else value


def _is_exact(value: object) -> bool:
    """Whether a key or an element of a set is of a type that Stepkeep stores exactly."""
    if type(value) in (tuple, frozenset):
        return all(_is_exact(item) for item in value)  # type: ignore[attr-defined]
    return type(value) in _LEAVES


def has_no_objects(root: Any) -> bool:
    """Whether values consist of types that Stepkeep stores exactly; level by level, most of them are texts.

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
