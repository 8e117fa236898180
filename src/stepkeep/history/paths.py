"""Paths inside a state, such as `context.messages[3].when`.

| step | what it names |
|---|---|
| `.name` | the key of a dict that reads like a name |
| `["any text"]`, `['any text']` | any other text key |
| `[3]`, `[-1]` | an item of a list or tuple, from the end when negative; or a number as key |
| `[{"$date":"2025-01-20"}]` | any other key, in the exact encoding |
| `[id="m3"]` | the item of a list whose `id` is that |
| `{"urgent"}` | a member of a set |

`trace` follows the value at a path along a branch. The state itself is `$`. A path that begins with a bracket is
written after it: `$[3].role`.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, Final, Literal, NamedTuple, NoReturn

import msgspec
from msgspec import UNSET, Raw, UnsetType

from stepkeep.codec import exact
from stepkeep.engine import Engine, reader
from stepkeep.errors import Corrupt, InvalidInput, NotFound, StepkeepError, Unsupported
from stepkeep.history.documents import CheckpointInfo, describe, encoded
from stepkeep.history.equality import Sameness, with_room
from stepkeep.model import STATE, Header, SessionInfo, check_text
from stepkeep.storage.port import HeaderQuery
from stepkeep.text import shortened

ROOT: Final = "$"

_MAX_NAMES: Final = 5
_NAME: Final = re.compile(r"""[^.\[\]{}"']+""")
_FIELD: Final = re.compile(r"\s*([^\W\d]\w*)\s*=")
_QUOTED: Final = re.compile(r"'([^']*)'")
_JSON: Final = json.JSONDecoder()


class ItemById(msgspec.Struct, frozen=True):
    """An item of a list named by its own id. `index` is where it was found, None in a path that was read."""

    field: str
    id: Any
    index: int | None = None


class SetMember(msgspec.Struct, frozen=True):
    """A member of a set."""

    value: Any


PathStep = Hashable
"""A key of a dict, the index of a list, an `ItemById` or a `SetMember`."""

Path = tuple[PathStep, ...]


def format_path(path: Path) -> str:
    """The text of a path; `parse_path` reads it back, unless a key is of a type that no state holds."""
    text = "".join(map(_format_step, path))
    if text.startswith("."):
        return text[1:]
    return ROOT + text


def parse_path(text: str) -> Path:
    """The path that a text stands for. Pure.

    Raises:
        InvalidInput: the text is not a path (`invalid_path`).
    """
    check_text("a path", text)
    if text == ROOT:
        return ()
    if text.startswith((ROOT + "[", ROOT + "{", ROOT + ".")):
        text = text[1:]
    elif not text.startswith(("[", "{", ".")):
        text = "." + text
    steps: list[PathStep] = []
    at = 0
    while at < len(text):
        step, at = _read_step(text, at)
        steps.append(step)
    return tuple(steps)


def find(state: object, path: Path) -> Any:
    """The value at a path.

    Raises:
        NotFound: the state has no such value (`path_not_found`); the message says what is there instead.
    """
    value: Any = state
    for depth, step in enumerate(path):
        value = _find_step(value, step, path[:depth])
    return value


# --- writing


def _format_step(step: PathStep) -> str:
    if type(step) is str and step.isidentifier():
        return f".{step}"
    if type(step) is ItemById:
        return f"[{step.field}={_json(step.id)}]"
    if type(step) is SetMember:
        return f"{{{_json(step.value)}}}"
    return f"[{_json(step)}]"


def _json(key: object) -> str:
    try:
        return exact.encode(key)[1].decode()
    except StepkeepError:
        return f"<{type(key).__name__}>"


# --- reading


def _read_step(text: str, at: int) -> tuple[PathStep, int]:
    opening = text[at]
    if opening == ".":
        if name := _NAME.match(text, at + 1):
            return name[0], name.end()
        raise _invalid(text, "a name is missing after a dot")
    if opening == "[":
        if field := _FIELD.match(text, at + 1):
            value, end = _read_key(text, field.end(), "]")
            return ItemById(field[1], value), end
        return _read_key(text, at + 1, "]")
    if opening == "{":
        value, end = _read_key(text, at + 1, "}")
        return SetMember(value), end
    raise _invalid(text, f"{text[at:]!r} does not follow a dot or a bracket")


def _read_key(text: str, at: int, closing: str) -> tuple[Any, int]:
    if quoted := _QUOTED.match(text, at):
        value, end = quoted[1], quoted.end()
    else:
        value, end = _read_json(text, at)
    if not text.startswith(closing, end):
        raise _invalid(text, f"a {closing} is missing")
    return value, end + 1


def _read_json(text: str, at: int) -> tuple[Any, int]:
    try:
        _, end = _JSON.raw_decode(text, at)
        value = exact.decode(exact.TAGGED, text[at:end].encode())
        hash(value)
    except (StepkeepError, TypeError, ValueError, RecursionError) as exc:
        raise _invalid(text, 'brackets hold a number, a "quoted text" or id="a text"') from exc
    return value, end


def _invalid(text: str, problem: str) -> InvalidInput:
    return InvalidInput(
        f"{text.removeprefix('.')!r} is not a path: {problem}. Write it like context.messages[3].when",
        code="invalid_path",
        path=text,
    )


# --- finding


def _find_step(value: Any, step: PathStep, before: Path) -> Any:
    if type(step) is ItemById:
        return _find_item(value, step, before)
    if type(step) is SetMember:
        if isinstance(value, set | frozenset) and step.value in value:
            return step.value
        _missing(value, step, before)
    if isinstance(value, dict) and step in value:
        return value[step]
    if isinstance(value, list | tuple) and type(step) is int and -len(value) <= step < len(value):
        return value[step]
    return _missing(value, step, before)


def _find_item(value: Any, step: ItemById, before: Path) -> Any:
    for item in value if isinstance(value, list | tuple) else ():
        if (
            isinstance(item, dict)
            and type(found := item.get(step.field)) is type(step.id)
            and found == step.id
        ):
            return item
    return _missing(value, step, before)


def _missing(value: Any, step: PathStep, before: Path) -> NoReturn:
    path = format_path((*before, step))
    raise NotFound(
        f"the state has no {path}: {format_path(before)} {_describe(value, step)}",
        code="path_not_found",
        path=path,
    )


def _describe(value: Any, step: PathStep) -> str:
    """What is there instead, in one phrase."""
    if isinstance(value, dict):
        names = [key for key in value if isinstance(key, str)]
        near = difflib.get_close_matches(step, names[:1000], _MAX_NAMES) if isinstance(step, str) else []
        named = near or names[:_MAX_NAMES]
        if not named:
            return f"is a dict with {len(value):,} keys"
        more = ", …" if len(named) < len(value) else ""
        return f"has the keys {', '.join(shortened(name, 80) for name in named)}{more}"
    if isinstance(value, list | tuple):
        return f"is a {type(value).__name__} with {len(value):,} items, named like [0] or [-1]"
    if isinstance(value, set | frozenset):
        return f"is a set with {len(value):,} members"
    return f"is a value of type {type(value).__name__}, with nothing inside"


log = logging.getLogger("stepkeep")

# --- the history of one value ------------------------------------------------------------------------------------

_ABSENT: Final = object()


class ValueChange(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint at which a value changed. `old` is None where it was added, `new` where it was removed."""

    checkpoint: CheckpointInfo
    kind: Literal["added", "changed", "removed"]
    old: Any = None
    new: Any = None

    def text(self) -> str:
        """The value, or how it changed, in one line."""
        from stepkeep.history.rendering import change_text, value_text  # it imports this module

        if self.kind == "changed":
            return change_text(self.old, self.new)
        return value_text(self.new if self.kind == "added" else self.old)


class ValueChangeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The same as JSON can hold it. Only the values that its kind has are there."""

    checkpoint: CheckpointInfo
    kind: str
    old_encoding: str | UnsetType = UNSET
    old: Raw | UnsetType = UNSET
    new_encoding: str | UnsetType = UNSET
    new: Raw | UnsetType = UNSET


class ValueLogDocument(msgspec.Struct, frozen=True, kw_only=True):
    """How the value at a path changed on the way to a checkpoint, oldest first."""

    session: str
    path: str
    changes: tuple[ValueChangeInfo, ...]


class ValueLog(msgspec.Struct, frozen=True, kw_only=True):
    """How the value at a path changed on the way to a checkpoint, oldest first. Iterating yields the changes."""

    session: str
    path: str
    changes: tuple[ValueChange, ...]

    def __iter__(self) -> Iterator[ValueChange]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def document(self) -> ValueLogDocument:
        """The same as JSON can hold it: values are written exactly, with their encoding."""
        return ValueLogDocument(
            session=self.session, path=self.path, changes=tuple(map(_change_info, self.changes))
        )


def _change_info(change: ValueChange) -> ValueChangeInfo:
    values: dict[str, Any] = {}
    if change.kind != "added":
        values["old_encoding"], values["old"] = encoded(change.old)
    if change.kind != "removed":
        values["new_encoding"], values["new"] = encoded(change.new)
    return ValueChangeInfo(checkpoint=change.checkpoint, kind=change.kind, **values)


class _Found(NamedTuple):
    """A checkpoint at which a value changed."""

    header: Header
    kind: Literal["added", "changed", "removed"]
    old: Any = None
    new: Any = None


def trace(
    engine: Engine, session: SessionInfo, path: Path, *, until: Header | None = None, limit: int | None = None
) -> ValueLog:
    """Where the value at a path changed on the way to a checkpoint, oldest first; `limit` keeps the last ones.

    The way is the line of the current branch, or of the checkpoint `until`. Checkpoints that do not verify are
    left out and logged; a change there shows at the next one.

    Raises:
        InvalidInput: `limit` is negative.
    """
    if limit is not None and limit < 0:
        raise InvalidInput(f"limit is {limit}; it counts changes: 0 or more", code="invalid_option")
    found = deque(_changes(engine, session, path, until), maxlen=limit)
    infos = describe(engine, session.key, [change.header for change in found])
    return ValueLog(
        session=session.key,
        path=format_path(path),
        changes=tuple(
            ValueChange(checkpoint=info, kind=change.kind, old=change.old, new=change.new)
            for info, change in zip(infos, found, strict=True)
        ),
    )


def _changes(engine: Engine, session: SessionInfo, path: Path, until: Header | None) -> Iterator[_Found]:
    before: Any = _ABSENT
    digest = ""
    for header in _headers(engine, session, until):
        if header.contents[STATE].digest == digest:
            continue  # the same state, so the same value
        try:
            value = _value(engine, header, path)
        except NotFound:
            continue  # removed meanwhile
        except (Corrupt, Unsupported) as exc:
            if engine.is_stored(header):
                log.warning("checkpoint %s is left out: %s (%s)", header.id, exc, exc.code)
            continue
        digest = header.contents[STATE].digest
        if not _is_same(before, value):
            yield _change(header, before, value)
            before = value


def _headers(engine: Engine, session: SessionInfo, until: Header | None) -> Iterator[Header]:
    """The line, oldest first."""
    branch = session.branch if until is None else until.branch
    matching = HeaderQuery() if until is None else HeaderQuery(max_seq=until.seq)
    for row in reversed(list(reader.line_of(engine.backend, session, branch, matching=matching))):
        try:
            header = reader.verified(row)
        except (Corrupt, Unsupported) as exc:
            log.warning("checkpoint %s is left out: %s (%s)", row.id, exc, exc.code)
            continue
        if STATE in header.contents:
            yield header


def _value(engine: Engine, header: Header, path: Path) -> Any:
    content = reader.load_body(engine.backend, header, STATE)
    state = exact.decode(header.contents[STATE].encoding, content)
    try:
        return find(state, path)
    except NotFound:
        return _ABSENT


def _is_same(old: Any, new: Any) -> bool:
    if old is _ABSENT or new is _ABSENT:
        return old is new
    return with_room(lambda: Sameness().of(old, new))


def _change(header: Header, old: Any, new: Any) -> _Found:
    if old is _ABSENT:
        return _Found(header=header, kind="added", new=new)
    if new is _ABSENT:
        return _Found(header=header, kind="removed", old=old)
    return _Found(header=header, kind="changed", old=old, new=new)
