"""Msgpack laid open: what a serializer wrote, as data that people can read, and the same bytes again.

A msgpack extension, which is how LangGraph's serializer writes an object, becomes a dict with the key `$serde`:

    {"$serde": 5, "class": "langchain_core.messages.ai:AIMessage", "value": {"content": "…", …}, "method": "…"}

Nothing that the bytes name is imported here.
"""

from __future__ import annotations

from typing import Any, Final

import ormsgpack

from stepkeep.errors import SCHEMA_INVALID, Corrupt

MARK: Final = "$serde"
_HAS_FIELDS: Final = frozenset({dict, list})


def open_msgpack(data: bytes) -> Any:
    """An object in msgpack bytes as a `$serde` node; None if it is none, or the same bytes would not come out again."""
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
    except (ValueError, Corrupt):  # no msgpack, or it holds the mark itself, as data
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
