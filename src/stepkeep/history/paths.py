"""Paths inside a state, such as `context.messages[3].when`.

| step | what it names |
|---|---|
| `.name` | the key of a dict that reads like a name |
| `["any text"]`, `['any text']` | any other text key |
| `[3]`, `[-1]` | an item of a list or tuple, from the end when negative; or a number as key |
| `[{"$date":"2025-01-20"}]` | any other key, in the exact encoding |
| `[id="m3"]` | the item of a list whose `id` is that |
| `{"urgent"}` | a member of a set |

The state itself is `$`. A path that begins with a bracket is
written after it: `$[3].role`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Hashable
from typing import Any, Final

import msgspec

from stepkeep.codec import exact
from stepkeep.errors import InvalidInput, NotFound, StepkeepError
from stepkeep.model import check_text
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
        items = value if isinstance(value, list | tuple) else ()
        for item in (each for each in items if isinstance(each, dict)):
            if type(found := item.get(step.field)) is type(step.id) and found == step.id:
                return item
    elif type(step) is SetMember:
        if isinstance(value, set | frozenset) and step.value in value:
            return step.value
    elif isinstance(value, list | tuple):
        if type(step) is int and -len(value) <= step < len(value):
            return value[step]
    elif isinstance(value, dict) and step in value:
        return value[step]
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
