"""What a state holds at one place: the values right below a path, and how much there is of each.

Works on the encoded document level by level, so that one look into a state of any size decodes one level of it and
nothing else: memory stays that of the document, and a page of values is what is returned.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from stepkeep.codec import exact
from stepkeep.errors import SCHEMA_INVALID, Corrupt, InvalidInput, NotFound, Unsupported
from stepkeep.history.changes import value_text
from stepkeep.history.paths import ItemById, Path, PathStep, SetMember, format_path, parse_path
from stepkeep.text import shortened

MAX_TEXT: Final = 20_000
"""How much of a text is told where it was asked for."""

ENTRY_TEXT: Final = 300
"""How much of a value is told in the list of those around it."""

PEEK_BYTES: Final = 160
"""How much is told of the document of a value that holds others."""

MAX_NAME: Final = 1000
MAX_PATH: Final = 4000
"""Longer names are cut, and what has a longer path is told without one: nobody can ask for it by an address."""

MAX_COUNTED_BYTES: Final = 4_000_000
"""Of values up to this size it is told how much they hold."""

_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_ARRAY: Final = msgspec.json.Decoder(list[Raw])
_PAIRS: Final = msgspec.json.Decoder(list[tuple[Raw, Raw]])
_START: Final = re.compile(rb"\s*(.)", re.DOTALL)
_CONTAINERS: Final = {"$tuple": "tuple", "$set": "set", "$frozenset": "frozenset"}


class OutlineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One value: where it is, what it is, how many bytes it takes, and how many values it holds.

    `path` is empty where it would be too long.

    `count` is None for what holds none, and for what is too large to count. `text` is the beginning of the value; of
    one that holds others, that of its document. `is_whole` says that nothing is left out of it.
    """

    path: str
    name: str
    kind: str
    size_bytes: int
    count: int | None
    text: str
    is_whole: bool


class Outline(OutlineEntry, frozen=True, kw_only=True):
    """One value of a checkpoint, and a page of the values right below it. `start` is the number of the first."""

    checkpoint: str
    encoding: str
    start: int
    entries: tuple[OutlineEntry, ...]


class Level(NamedTuple):
    """A value with what is right below it; None for one that holds no others."""

    kind: str
    below: Sequence[tuple[PathStep, Raw]] | None


def outline(
    checkpoint: str, encoding: str, content: bytes, path: str, *, start: int = 0, limit: int = 100
) -> Outline:
    """The value at a path of a document, with `limit` of the values below it from number `start` on.

    Raises:
        InvalidInput: the path cannot be read (`invalid_path`), or `start` or `limit` is negative.
        NotFound: there is nothing at that path (`path_not_found`).
        Unsupported: the document is not of an encoding that can be looked into.
    """
    if start < 0 or limit < 0:
        raise InvalidInput("start and limit count values: 0 or more", code="invalid_option")
    is_tagged = _is_tagged(encoding)
    steps = parse_path(path)
    raw = raw_at(Raw(content), steps, is_tagged=is_tagged)
    level = level_of(raw, is_tagged=is_tagged)
    below = level.below or ()
    shown = islice(below, start, start + limit)
    found = _entry(steps, raw, level, is_tagged=is_tagged, most=MAX_TEXT)
    return Outline(
        **msgspec.structs.asdict(found),
        checkpoint=checkpoint,
        encoding=encoding,
        start=start,
        entries=tuple(_listed((*steps, step), each, is_tagged) for step, each in shown),
    )


def _is_tagged(encoding: str) -> bool:
    if encoding not in (exact.JSON, exact.TAGGED):
        raise Unsupported(f"a body with encoding {encoding!r} cannot be looked into: download it")
    return encoding == exact.TAGGED


def raw_at(raw: Raw, path: Path, *, is_tagged: bool) -> Raw:
    """The document of the value at a path."""
    for depth, step in enumerate(path):
        found = _step_into(level_of(raw, is_tagged=is_tagged), step)
        if found is None:
            where = format_path(path[: depth + 1])
            raise NotFound(f"the state has nothing at {where}", code="path_not_found", path=where)
        raw = found
    return raw


def _step_into(level: Level, step: PathStep) -> Raw | None:
    below = level.below or ()
    if level.kind in ("list", "tuple"):
        if isinstance(step, ItemById):
            return next((raw for _, raw in below if _has_id(raw, step)), None)
        is_index = type(step) is int and -len(below) <= step < len(below)
        return below[step][1] if is_index else None  # type: ignore[call-overload]
    return next((raw for name, raw in below if type(name) is type(step) and name == step), None)


def _has_id(raw: Raw, step: ItemById) -> bool:
    if first_byte(raw) != b"{":
        return False
    found = _OBJECT.decode(raw).get(step.field)
    return found is not None and bytes(found) == exact.encode(step.id)[1]


def first_byte(raw: Raw) -> bytes:
    """The first byte of a document, which tells what it is."""
    found = _START.match(memoryview(raw))
    return b"" if found is None else bytes(found[1])


def level_of(raw: Raw, *, is_tagged: bool) -> Level:
    """What a document is, and what is right below it."""
    try:
        opening = first_byte(raw)
        if opening == b"[":
            return Level("list", list(enumerate(_ARRAY.decode(raw))))
        if opening != b"{":
            return Level(type(msgspec.json.decode(raw)).__name__, None)
        fields = _OBJECT.decode(raw)
        tag = next(iter(fields)) if is_tagged and len(fields) == 1 else ""
        return (
            _tagged_level(tag, fields[tag], raw) if tag.startswith("$") else Level("dict", [*fields.items()])
        )
    except msgspec.MsgspecError as exc:
        raise Corrupt(f"the state is not valid JSON: {exc}", code=SCHEMA_INVALID) from exc


def _tagged_level(tag: str, body: Raw, raw: Raw) -> Level:
    if tag == "$dict":
        return Level("dict", [(_decoded(key, is_tagged=True), value) for key, value in _PAIRS.decode(body)])
    if tag not in _CONTAINERS:
        return Level(type(_decoded(raw, is_tagged=True)).__name__, None)
    items = _ARRAY.decode(body)
    if tag == "$tuple":
        return Level("tuple", list(enumerate(items)))
    return Level(_CONTAINERS[tag], [(SetMember(_decoded(item, is_tagged=True)), item) for item in items])


def _decoded(raw: Raw, *, is_tagged: bool) -> Any:
    return exact.decode(exact.TAGGED if is_tagged else exact.JSON, bytes(raw))


def _listed(path: Path, raw: Raw, is_tagged: bool) -> OutlineEntry:
    size = len(memoryview(raw))
    if size > MAX_COUNTED_BYTES and (opening := first_byte(raw)) in (b"{", b"["):
        level = Level("dict" if opening == b"{" else "list", ())
        return _entry(path, raw, level, is_tagged=is_tagged, most=ENTRY_TEXT, is_counted=False)
    return _entry(path, raw, level_of(raw, is_tagged=is_tagged), is_tagged=is_tagged, most=ENTRY_TEXT)


def _entry(
    path: Path, raw: Raw, level: Level, *, is_tagged: bool, most: int, is_counted: bool = True
) -> OutlineEntry:
    if level.below is None:
        text, is_whole = _text(_decoded(raw, is_tagged=is_tagged), most)
    else:
        text = bytes(memoryview(raw)[:PEEK_BYTES]).decode("utf-8", "ignore")
        is_whole = len(memoryview(raw)) <= PEEK_BYTES
    where = format_path(path)
    return OutlineEntry(
        path=where if len(where) <= MAX_PATH else "",
        name=shortened(_name(path[-1]), MAX_NAME) if path else "$",
        kind=level.kind,
        size_bytes=len(memoryview(raw)),
        count=None if level.below is None or not is_counted else len(level.below),
        text=text,
        is_whole=is_whole,
    )


def _name(step: PathStep) -> str:
    """A step as a person reads it: a text key is itself, everything else as in a path."""
    return step if isinstance(step, str) else format_path((step,)).removeprefix("$")


def _text(value: Any, most: int) -> tuple[str, bool]:
    """A value that holds no others: a text as it is, anything else as it reads in a difference."""
    if isinstance(value, str):
        return value[:most], len(value) <= most
    text = value_text(value, most)
    return text, len(text) < most
