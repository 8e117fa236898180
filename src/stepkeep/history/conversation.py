"""The conversation in a state: a list of messages, as agents and frameworks keep it, read as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Raw

from stepkeep.codec import exact
from stepkeep.history.changes import value_text
from stepkeep.history.outline import Level, first_byte, level_of
from stepkeep.history.paths import Path, format_path

MAX_DEPTH: Final = 4
"""How deep a list of messages is looked for."""

MAX_TEXT: Final = 20_000
MAX_MESSAGE_BYTES: Final = 4_000_000
"""A message larger than this is told only by its size."""

_ROLES: Final = ("role", "type", "sender", "author")
_TEXTS: Final = ("content", "text", "parts", "message")
_WRAPPERS: Final = ("value", "data", "kwargs")
"""Where frameworks that name the class of a message have its fields."""

_SPEAKERS: Final = {"human": "user", "ai": "assistant", "model": "assistant"}


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that a message calls."""

    name: str
    arguments: str


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """One message: who says what. `is_cut` says that there is more text than is told."""

    path: str
    role: str
    name: str | None
    text: str
    is_cut: bool
    tools: tuple[ToolUse, ...]
    size_bytes: int


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the messages of a state, oldest first. `path` is where they are, None when the state has none."""

    checkpoint: str
    path: str | None
    total: int
    start: int
    messages: tuple[MessageView, ...]


def conversation(
    checkpoint: str, encoding: str, content: bytes, *, start: int | None = None, limit: int = 50
) -> Conversation:
    """The messages of a document: `limit` of them from number `start` on, without it the last ones."""
    is_tagged = encoding == exact.TAGGED
    found = next(_lists(Raw(content), is_tagged), None) if encoding in (exact.JSON, exact.TAGGED) else None
    if found is None:
        return Conversation(checkpoint=checkpoint, path=None, total=0, start=0, messages=())
    path, level = found
    below = level.below or ()
    first = max(0, len(below) - limit) if start is None else max(0, start)
    return Conversation(
        checkpoint=checkpoint,
        path=format_path(path),
        total=len(below),
        start=first,
        messages=tuple(
            _message((*path, step), raw, is_tagged) for step, raw in islice(below, first, first + limit)
        ),
    )


def _lists(raw: Raw, is_tagged: bool) -> Iterator[tuple[Path, Level]]:
    """The lists of messages in a document, those nearest to its root first."""
    level: list[tuple[Path, Raw]] = [((), raw)]
    for _ in range(MAX_DEPTH):
        deeper: list[tuple[Path, Raw]] = []
        for path, each in level:
            opened = level_of(each, is_tagged=is_tagged)
            if opened.kind in ("list", "tuple"):
                if _are_messages(opened, is_tagged):
                    yield path, opened
            elif opened.kind == "dict":
                below = opened.below or ()
                deeper += [
                    ((*path, name), value) for name, value in below if first_byte(value) in (b"{", b"[")
                ]
        level = deeper


def _are_messages(level: Level, is_tagged: bool) -> bool:
    """Whether the first item of a list is a message: it says who speaks, and something."""
    if not level.below:
        return False
    first = _fields(level.below[0][1], is_tagged)
    wrapped = (_fields(first[name], is_tagged) for name in _WRAPPERS if name in first)
    return _is_message(first) or any(map(_is_message, wrapped))


def _fields(raw: Raw, is_tagged: bool) -> dict[Any, Raw]:
    opened = level_of(raw, is_tagged=is_tagged)
    return dict(opened.below or ()) if opened.kind == "dict" else {}


def _is_message(fields: Mapping[Any, object]) -> bool:
    return any(role in fields for role in _ROLES) and any(text in fields for text in (*_TEXTS, "tool_calls"))


def _unwrapped(fields: dict[Any, Any]) -> dict[Any, Any]:
    """The fields of a message, which may be inside what names its class."""
    inner = (fields[name] for name in _WRAPPERS if isinstance(fields.get(name), dict))
    return fields if _is_message(fields) else next(filter(_is_message, inner), fields)


def _message(path: Path, raw: Raw, is_tagged: bool) -> MessageView:
    size = len(memoryview(raw))
    value: Any = {}
    if size <= MAX_MESSAGE_BYTES:
        value = exact.decode(exact.TAGGED if is_tagged else exact.JSON, bytes(raw))
    fields = _unwrapped(value) if isinstance(value, dict) else {"content": value}
    role, text = _said(fields)
    name = fields.get("name")
    return MessageView(
        path=format_path(path),
        role=role,
        name=name if isinstance(name, str) else None,
        text=text[:MAX_TEXT],
        is_cut=len(text) > MAX_TEXT or size > MAX_MESSAGE_BYTES,
        tools=tuple(_tools(fields)),
        size_bytes=size,
    )


def message_line(fields: dict[Any, Any], width: int) -> str | None:
    """A message in one line: who says what, in about `width` characters, and the tools it calls; None for what is no
    message."""
    fields = _unwrapped(fields)
    role, text = _said(fields)
    calls = _tools({"content": [fields]} if role == "tool_use" else fields)  # it may be a part of a message
    names = [f"{call.name}(…)" for call in calls]
    if not role or not (text or names):
        return None
    return f"{role}: {' '.join([*([value_text(text, width)] if text else []), *names])}"


def _said(fields: dict[Any, Any]) -> tuple[str, str]:
    role = next((fields[name] for name in _ROLES if isinstance(fields.get(name), str)), "")
    return _SPEAKERS.get(role, role), _text(next((fields[name] for name in _TEXTS if fields.get(name)), ""))


def _text(content: Any) -> str:
    """The text of a message, whose content may be a text or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        inner = next((content[name] for name in _TEXTS if content.get(name)), None)
        return "" if inner is None else _text(inner)
    if isinstance(content, list | tuple):
        return "\n".join(filter(None, map(_text, content)))
    return value_text(content, MAX_TEXT)


def _tools(fields: dict[Any, Any]) -> Iterator[ToolUse]:
    """The calls of a message, as they are written by the best known interfaces."""
    parts = fields.get("content")
    calls = [*_dicts(fields.get("tool_calls")), *(p for p in _dicts(parts) if p.get("type") == "tool_use")]
    for call in calls:
        inner = call.get("function")
        source = inner if isinstance(inner, dict) else call
        arguments = next((source[name] for name in ("arguments", "args", "input") if name in source), None)
        text = arguments if isinstance(arguments, str) else value_text(arguments, 2000)
        yield ToolUse(name=str(source.get("name", "")), arguments=text[:2000])


def _dicts(values: Any) -> list[dict[Any, Any]]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list | tuple) else []
