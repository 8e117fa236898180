"""Configuration files: which ones count, and their YAML with line numbers.

Scalars stay text; the schema gives them their type. So `no`, `1e3` or a date are never turned into something
else behind the writer's back, and no YAML tag can build an object.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

PROJECT_FILE: Final = "stepkeep.yaml"
USER_FILE: Final = "config.yaml"
MAX_FILE_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 16
MAX_NODES: Final = 20_000

Scope = Literal["project", "user"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong in a configuration. `source` is the file, the variable or `flag`; `line` counts from 1."""

    source: str
    line: int | None
    key: str
    message: str

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that was looked for. `is_used` is False when it is missing, or `note` says why it does not count."""

    path: Path
    scope: Scope
    exists: bool
    is_used: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Scalar:
    text: str
    is_quoted: bool
    line: int


@dataclass(frozen=True, slots=True)
class Items:
    nodes: tuple[Node, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping, in the order of the file. Keys may repeat: that is for the reader of it to refuse."""

    entries: tuple[tuple[Scalar, Node], ...]
    line: int


Node = Scalar | Items | Section


class Unreadable(Exception):
    """The file as a whole cannot be used."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


# --- finding ---------------------------------------------------------------------------------------------------

_IS_LINUX: Final = bool(sys.platform == "linux")


def user_file() -> Path:
    """Where this user's own configuration is looked for."""
    if _IS_LINUX:
        # The same place without platformdirs, which takes longer to import than a store to open.
        folder = os.environ.get("XDG_CONFIG_HOME", "").strip() or "~/.config"
        return Path(folder, "stepkeep", USER_FILE).expanduser()
    from platformdirs import user_config_path

    return user_config_path("stepkeep") / USER_FILE


def candidates(cwd: Path | None, user_path: Path | None) -> tuple[Candidate, ...]:
    """The files that were looked for, those that win first: each folder upward to the first hit, then the user's."""
    found = [] if cwd is None else list(_upward(cwd.absolute()))
    if user_path is not None:
        exists = os.path.lexists(user_path)
        found.append(Candidate(user_path, "user", exists, exists))
    return tuple(found)


def _upward(folder: Path) -> Iterator[Candidate]:
    for parent in (folder, *folder.parents):
        path = parent / PROJECT_FILE
        if not os.path.lexists(path):
            yield Candidate(path, "project", exists=False, is_used=False)
        elif _is_planted(path):
            note = "ignored: it belongs to another user, in a folder that everyone can write to"
            yield Candidate(path, "project", exists=True, is_used=False, note=note)
        else:
            yield Candidate(path, "project", exists=True, is_used=True)
            return


def _is_planted(path: Path) -> bool:
    """Whether someone else may have put the file there, as in `/tmp`: it could send states to a store of theirs."""
    try:
        folder, file = path.parent.stat(), path.lstat()
    except OSError:
        return False  # reading it will say what is wrong
    return bool(folder.st_mode & stat.S_IWOTH) and file.st_uid not in (0, os.geteuid())


# --- reading ---------------------------------------------------------------------------------------------------


def read(path: Path) -> Node | None:
    """The content of a file, None when there is nothing but comments.

    Raises:
        Unreadable: it is no file, too large, not UTF-8, not YAML, too deep, or uses aliases or tags.
    """
    return parse(_text(path))


def _text(path: Path) -> str:
    try:
        # Opening a pipe would wait for a writer, and a device may never end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable("is not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise Unreadable(f"cannot be read: {exc.strerror or exc}") from exc
    if len(content) > MAX_FILE_BYTES:
        raise Unreadable(f"is larger than {MAX_FILE_BYTES:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise Unreadable("is not UTF-8 text", content.count(b"\n", 0, exc.start) + 1) from exc


def parse(text: str) -> Node | None:
    """The YAML document in a text, None when it is empty; raises `Unreadable` as `read` does."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(yaml.parse(text, Loader=loader)).document()
    except yaml.reader.ReaderError as exc:
        place = text.count("\n", 0, exc.position) + 1
        raise Unreadable("contains a character that YAML does not allow", place) from exc
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        what = exc.problem or exc.context or "cannot be parsed"
        # At the end of the text the C parser counts one line more than there is.
        line = None if mark is None else min(mark.line, text.count("\n")) + 1
        raise Unreadable(f"is not valid YAML: {what}", line) from exc


class _Builder:
    """Builds nodes from parser events. Limits apply before anything is built, so recursion is bounded."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._nodes = 0

    def document(self) -> Node | None:
        self._next()  # start of the stream
        if self._kind(self._next()) == "StreamEnd":
            return None
        node = self._node(self._next(), depth=0)
        self._next()  # end of the document
        if self._kind(after := self._next()) != "StreamEnd":
            raise Unreadable("has more than one YAML document", _line(after))
        return None if isinstance(node, Scalar) and is_null(node) else node

    def _node(self, event: Any, depth: int) -> Node:
        line, kind = _line(event), self._kind(event)
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise Unreadable(f"has more than {MAX_NODES:,} values", line)
        if depth > MAX_DEPTH:
            raise Unreadable(f"is nested deeper than {MAX_DEPTH} levels", line)
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
        while self._kind(event := self._next()) != end:
            yield self._node(event, depth + 1)

    def _entries(self, depth: int) -> Iterator[tuple[Scalar, Node]]:
        nodes = self._until("MappingEnd", depth)
        for key in nodes:
            if not isinstance(key, Scalar):
                raise Unreadable("has a key that is not text", key.line)
            yield key, next(nodes)

    def _next(self) -> Any:
        return next(self._events)

    @staticmethod
    def _kind(event: Any) -> str:
        return type(event).__name__.removesuffix("Event")


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1


def is_null(node: Scalar) -> bool:
    """Whether nothing was written where a value belongs."""
    return not node.is_quoted and node.text in ("", "~", "null", "Null", "NULL")
