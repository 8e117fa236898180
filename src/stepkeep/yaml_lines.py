"""YAML with line numbers, for files that people write: settings and workflows.

Scalars stay text until their reader gives them a type, so that `no`, `1e3` or a date are never turned into something
else behind the writer's back. Anchors, aliases and tags are refused: no tag can build an object, and no small file can
become a large one.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from stepkeep.text import shortened

MAX_FILE_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 32
MAX_NODES: Final = 20_000

_WHOLE: Final = r"[-+]?(0|[1-9][0-9]{0,17})"
_DECIMAL: Final = r"[-+]?[0-9]{1,40}(\.[0-9]{1,40}([eE][-+]?[0-9]{1,3})?|[eE][-+]?[0-9]{1,3})"
_WORDS: Final = {"true": True, "True": True, "false": False, "False": False}
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})


class Scalar(msgspec.Struct, frozen=True):
    text: str
    is_quoted: bool
    line: int

    @property
    def is_null(self) -> bool:
        return not self.is_quoted and self.text in _NULLS


class Items(msgspec.Struct, frozen=True):
    nodes: tuple[Node, ...]
    line: int


class Section(msgspec.Struct, frozen=True):
    """A mapping in the order of the file. Keys may repeat: its reader refuses that, with the line."""

    entries: tuple[tuple[Scalar, Node], ...]
    line: int


Node = Scalar | Items | Section


class Unreadable(Exception):
    """The file as a whole cannot be used."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file, or `Unreadable`: it is missing, no regular file, too large, or not UTF-8."""
    try:
        # Opening a pipe would wait for a writer, and a device may never end.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise Unreadable("is not a regular file")
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as exc:
        raise Unreadable(f"cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    if len(content) > MAX_FILE_BYTES:
        raise Unreadable(f"is larger than {MAX_FILE_BYTES:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise Unreadable("is not UTF-8 text", content.count(b"\n", 0, exc.start) + 1) from exc


def parse(text: str, *, max_depth: int = MAX_DEPTH) -> Node | None:
    """The YAML document in a text, None when it is empty.

    Raises:
        Unreadable: not YAML, several documents, too deep, too many values, or it uses anchors, aliases or tags.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(yaml.parse(text, Loader=loader), max_depth).document()
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise Unreadable("contains a character that YAML does not allow", line) from exc
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        what = exc.problem or exc.context or "cannot be parsed"
        # At the end of the text the C parser counts one line more than there is.
        last = text.count("\n") + (not text.endswith("\n"))
        raise Unreadable(
            f"is not valid YAML: {what}", None if mark is None else min(mark.line + 1, last)
        ) from exc


class _Builder:
    """Builds nodes from parser events. Limits apply before anything is built, so recursion is bounded."""

    def __init__(self, events: Iterator[Any], max_depth: int) -> None:
        self._events = events
        self._max_depth = max_depth
        self._count = 0

    def document(self) -> Node | None:
        next(self._events)  # start of the stream
        if _kind(next(self._events)) == "StreamEnd":
            return None
        node = self._node(next(self._events), depth=0)
        next(self._events)  # end of the document
        if _kind(after := next(self._events)) != "StreamEnd":
            raise Unreadable("has more than one YAML document", _line(after))
        return None if isinstance(node, Scalar) and node.is_null else node

    def _node(self, event: Any, depth: int) -> Node:
        line, kind = _line(event), _kind(event)
        self._count += 1
        if self._count > MAX_NODES:
            raise Unreadable(f"has more than {MAX_NODES:,} values", line)
        if depth > self._max_depth:
            raise Unreadable(f"is nested deeper than {self._max_depth} levels", line)
        if kind == "Alias" or event.anchor is not None:
            raise Unreadable("uses a YAML anchor or alias; write the value out", line)
        if event.tag is not None:
            raise Unreadable("uses a YAML tag; write the plain value", line)
        if kind == "Scalar":
            return Scalar(event.value, bool(event.style), line)  # a plain one has style None, or in C ""
        if kind == "SequenceStart":
            return Items(tuple(self._until("SequenceEnd", depth)), line)
        return Section(tuple(self._entries(depth)), line)

    def _until(self, end: str, depth: int) -> Iterator[Node]:
        while _kind(event := next(self._events)) != end:
            yield self._node(event, depth + 1)

    def _entries(self, depth: int) -> Iterator[tuple[Scalar, Node]]:
        nodes = self._until("MappingEnd", depth)
        for key in nodes:
            if not isinstance(key, Scalar):
                raise Unreadable("has a key that is not text", key.line)
            yield key, next(nodes)


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1


# --- values ----------------------------------------------------------------------------------------------------


def scalar_value(node: Scalar) -> str | int | float | bool | None:
    """What a scalar means by the rules of JSON: quoted it is text, plain it may be null, a boolean or a number."""
    if node.is_quoted:
        return node.text
    if node.is_null:
        return None
    if node.text in _WORDS:
        return _WORDS[node.text]
    if re.fullmatch(_WHOLE, node.text):
        return int(node.text)
    return float(node.text) if re.fullmatch(_DECIMAL, node.text) else node.text


def shown(node: Node) -> str:
    """A short form of what was written, for messages."""
    if isinstance(node, Scalar):
        return "nothing" if node.is_null else repr(shortened(node.text))
    return "a list" if isinstance(node, Items) else "a section"
