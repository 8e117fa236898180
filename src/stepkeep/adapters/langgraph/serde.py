"""LangGraph's objects as data that people can read, the same objects again, and the proof that they are equal.

A msgpack extension, which is how LangGraph's serializer writes an object, becomes a dict with the key `$serde`:

    {"$serde": 5, "class": "langchain_core.messages.ai:AIMessage", "value": {"content": "…", …}, "method": "…"}

That serializer makes a list of a tuple inside an object. A `Send`, `Interrupt` or `Command` becomes a node instead:

    {"$serde": "fields", "class": "langgraph.types:Send", "value": {"node": "work", "arg": …}}

Nothing that the bytes name is imported here, and only the classes named here are made from such a node.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final

import ormsgpack
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel

from stepkeep.api.extension import ValidationError, name_of, step_of
from stepkeep.errors import SCHEMA_INVALID, Corrupt

# --- msgpack laid open ---------------------------------------------------------------------------------------------

MARK: Final = "$serde"
_HAS_FIELDS: Final = frozenset({dict, list})


def open_msgpack(data: bytes) -> Any:
    """An object in msgpack bytes as a `$serde` node; None for what is not an object, or would give other bytes."""
    opened = _opened(data)
    return opened if type(opened) is dict and MARK in opened else None


def data_in(kind: str, data: bytes | None) -> Any:
    """What a serializer of LangGraph wrote, as data; what cannot be laid open stays as it is, in a node."""
    if kind == "null":
        return None
    content = bytes(data or b"")
    if kind in ("bytes", "bytearray"):
        return content if kind == "bytes" else bytearray(content)
    opened = _opened(content) if kind == "msgpack" else None
    return {MARK: kind, "bytes": content} if opened is None else opened


def _opened(data: bytes) -> Any:
    try:
        opened = ormsgpack.unpackb(data, ext_hook=_open_extension, option=ormsgpack.OPT_NON_STR_KEYS)
        return opened if pack_msgpack(opened) == data else None
    except (ValueError, Corrupt):  # not msgpack, or it holds the mark itself, as data
        return None


def _open_extension(code: int, data: bytes) -> dict[str, Any]:
    try:
        inner = ormsgpack.unpackb(data, ext_hook=_open_extension, option=ormsgpack.OPT_NON_STR_KEYS)
    except ValueError:
        return {MARK: code, "bytes": bytes(data)}
    if type(inner) is list and len(inner) in (3, 4) and all(type(part) is str for part in inner[:2]):
        node = {MARK: code, "class": f"{inner[0]}:{inner[1]}", "value": inner[2]}
        return {**node, "method": inner[3]} if len(inner) == 4 else node
    return {MARK: code, "value": inner}


def pack_msgpack(tree: Any) -> bytes:
    """The msgpack bytes that `open_msgpack` laid open."""
    try:
        return ormsgpack.packb(_closed(tree), option=ormsgpack.OPT_NON_STR_KEYS)
    except (ormsgpack.MsgpackEncodeError, AttributeError, KeyError, TypeError, ValueError) as exc:
        raise Corrupt(f"a stored object is not as it was written: {exc}", code=SCHEMA_INVALID) from exc


def _closed(tree: Any) -> Any:
    if type(tree) is list:
        return [_closed(item) if type(item) in _HAS_FIELDS else item for item in tree]
    if type(tree) is not dict:
        return tree
    if MARK in tree:
        return _extension(tree)
    return {key: _closed(item) if type(item) in _HAS_FIELDS else item for key, item in tree.items()}


def _extension(node: dict[str, Any]) -> ormsgpack.Ext:
    code = node[MARK]
    if "bytes" in node:
        return ormsgpack.Ext(code, node["bytes"])
    if "class" not in node:
        return ormsgpack.Ext(code, pack_msgpack(node["value"]))
    parts = [*node["class"].split(":", 1), node["value"]]
    if "method" in node:
        parts.append(node["method"])
    return ormsgpack.Ext(code, pack_msgpack(parts))


# --- LangGraph's own small classes as their fields -----------------------------------------------------------------

_FIELDS: Final = "fields"

_KINDS: Final = (Send, Interrupt, Command, Overwrite, _DeltaSnapshot)
_CLASSES: Final[dict[str, type]] = {f"{kind.__module__}:{kind.__qualname__}": kind for kind in _KINDS}
OWN_CLASSES: Final[dict[type, dict[str, Any]]] = {
    kind: {
        name: each.default
        for name, each in inspect.signature(kind).parameters.items()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    }
    for kind in _KINDS
}
"""What each class is made with, which is all it holds, so that a field of a later release is stored too.

A subclass may hold more, and is not among them.
"""


def fields_of(value: object) -> dict[str, Any]:
    """What an object of such a class was made with, without what is empty by default: an older release may lack it."""
    found = {name: getattr(value, name) for name in OWN_CLASSES[type(value)]}
    empty = {name: default for name, default in OWN_CLASSES[type(value)].items() if default in (None, ())}
    return {name: field for name, field in found.items() if name not in empty or field is not empty[name]}


def node_of(kind: type, fields: dict[str, Any]) -> dict[str, Any]:
    return {MARK: _FIELDS, "class": f"{kind.__module__}:{kind.__qualname__}", "value": fields}


def is_node(node: dict[str, Any]) -> bool:
    """Whether a node is one of these; a serializer's own ones have bytes."""
    return node[MARK] == _FIELDS and "value" in node


def object_of(node: dict[str, Any], fields: dict[str, Any]) -> Any:
    """The object of a node, given its fields.

    Raises:
        Corrupt: the node names another class, or fields that it lacks.
    """
    try:
        return _CLASSES[node["class"]](**fields)
    except (KeyError, TypeError, ValueError) as exc:
        raise Corrupt(f"a stored object is not as it was written: {exc}", code=SCHEMA_INVALID) from exc


# --- whether an object comes back equal ----------------------------------------------------------------------------


def difference(put: Any, loaded: Any) -> ValidationError | None:
    """Why a value cannot be stored: the innermost place that would come back different, None if there is none.

    NaN is the same as NaN.
    """
    if _is_equal(put, loaded):
        return None
    if type(put) is float and type(loaded) is float and put != put and loaded != loaded:
        return None
    pairs = _pairs(put, loaded) if type(put) is type(loaded) else None
    if pairs is None:
        return _refusal(put, loaded)
    for key, part, loaded_part in pairs:
        found = difference(part, loaded_part)
        if found is not None:
            found.steps.append(step_of(key))
            return found
    return None


def _refusal(put: object, loaded: object) -> ValidationError:
    """Allowing a class helps only where something else came back in its place."""
    kind = type(put)
    advice = "keep plain data there"
    if type(loaded) is not kind and kind.__module__ != "builtins":
        advice = f"allow its class with StepkeepSaver(…, allow=[{kind.__name__}]), or {advice}"
    return ValidationError(
        f"is a {name_of(put)} and would come back as a different {name_of(loaded)}: {advice}"
    )


def _is_equal(put: Any, loaded: Any) -> bool:
    try:
        return bool(put == loaded)
    except Exception:  # an array has no single answer, and foreign code may raise anything
        return False


def _pairs(put: Any, loaded: Any) -> Iterable[tuple[Any, Any, Any]] | None:
    """What two values of one type are made of, with the keys; None if they cannot be compared part by part."""
    kind = type(put)
    if kind is list or kind is tuple:
        return zip(range(len(put)), put, loaded, strict=True) if len(put) == len(loaded) else None
    if kind is dict and put.keys() == loaded.keys():
        return [(key, part, loaded[key]) for key, part in put.items()]
    if issubclass(kind, BaseModel) and kind.__eq__ is BaseModel.__eq__:
        return _pairs(_fields(put), _fields(loaded))
    return None


def _fields(model: BaseModel) -> dict[str, Any]:
    """All that a model compares."""
    return {**model.__dict__, **(model.__pydantic_extra__ or {}), **(model.__pydantic_private__ or {})}
