"""Kinds of values: how the text of a file, a variable or a flag becomes a typed value, or why it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from stepkeep.errors import InvalidInput
from stepkeep.history.times import zone_named
from stepkeep.model import MAX_SEQ, check_name
from stepkeep.policy.profiles import MAX_DAYS, PROFILES, check_count, check_duration, check_size
from stepkeep.text import shortened
from stepkeep.yaml_lines import Items, Node, Scalar, shown

_BOOLEANS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_WHOLE: Final = re.compile(r"[-+]?[0-9]{1,30}")
_STORE: Final = re.compile(r"(sqlite|files|postgres|postgresql):.+|memory:", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Kind:
    """`label` says what to write. `parse` gives the value, or raises `ValueError` with what it must be.

    `none_word` is how None is written, where it can be.
    """

    label: str
    parse: Callable[[Node], Any]
    none_word: str = ""


def node_of(value: object) -> Node:
    """A value given by a program as if it stood in a file."""
    if isinstance(value, bool):
        return Scalar("true" if value else "false", False, 0)
    if isinstance(value, timedelta):
        return Scalar(f"{int(value.total_seconds())}s", False, 0)
    if isinstance(value, Iterable) and not isinstance(value, str):
        return Items(tuple(node_of(item) for item in value), 0)
    return Scalar(str(value), False, 0)


def _checked(check: Callable[..., Any], value: object, **limits: int) -> Any:
    """The value by the same check that the policies make, so that nothing accepted here is refused later."""
    try:
        return check("it", value, **limits)
    except InvalidInput as exc:
        raise ValueError(exc.message.removeprefix("it ")) from None


def or_word(word: str, kind: Kind) -> Kind:
    """The same kind, where a word stands for None: no limit."""

    def parse(node: Node) -> Any:
        if isinstance(node, Scalar) and node.text == word:
            return None
        return kind.parse(node)

    return Kind(f"{kind.label}, or `{word}`", parse, word)


def whole(least: int, most: int, label: str) -> Kind:
    """Whole numbers within bounds."""

    def parse(node: Node) -> int:
        if not isinstance(node, Scalar) or node.is_quoted or not _WHOLE.fullmatch(node.text):
            raise ValueError(f"must be a whole number, not {shown(node)}")
        number: int = _checked(check_count, int(node.text), least=least, most=most)
        return number

    return Kind(label, parse)


def _written(label: str, check: Callable[..., Any]) -> Kind:
    """Amounts with a unit."""

    def parse(node: Node) -> Any:
        if not isinstance(node, Scalar) or node.is_null:
            raise ValueError(f"must be a {label}, not {shown(node)}")
        return _checked(check, shortened(node.text))  # what was cut off fits no unit

    return Kind(label, parse)


def _boolean(node: Node) -> bool:
    if isinstance(node, Scalar) and not node.is_quoted and node.text.lower() in _BOOLEANS:
        return _BOOLEANS[node.text.lower()]
    raise ValueError(f"must be true or false, not {shown(node)}")


def _seconds(key: str, text: str) -> int:
    span = check_duration(key, f"{text}s" if _WHOLE.fullmatch(text) else text)
    return int(span.total_seconds())


def _text(node: Node) -> str:
    if not isinstance(node, Scalar) or node.is_null:
        raise ValueError(f"must be text, not {shown(node)}")
    text: str = _checked(check_name, node.text)
    return text


def _texts(node: Node) -> tuple[str, ...]:
    if not isinstance(node, Items):
        raise ValueError(f"must be a list of texts, not {shown(node)}")
    return tuple(dict.fromkeys(_text(item) for item in node.nodes))


def _profile(node: Node) -> str:
    name = _text(node)
    if name not in PROFILES:
        raise ValueError(f"must be one of {', '.join(PROFILES)}, not {shown(node)}")
    return name


def _zone(node: Node) -> str:
    name = _text(node)
    try:
        zone_named(name)
    except InvalidInput:
        raise ValueError(f"must be UTC, local or a zone such as Europe/Berlin, not {shown(node)}") from None
    return name


def _store(node: Node) -> str:
    url = _text(node)
    is_path = ":" not in url and ("/" in url or url.endswith((".db", ".sqlite")))
    if not is_path and not _STORE.fullmatch(url):
        # The text is not repeated: it may hold a password.
        raise ValueError("must be the URL of a store, such as sqlite:PATH, or a path")
    return url


BOOLEAN: Final = Kind("`true` or `false`", _boolean)
COUNT: Final = whole(1, MAX_SEQ, "whole number from 1")
DAYS: Final = whole(0, MAX_DAYS, "whole days from 0")
HOURS: Final = whole(0, MAX_DAYS * 24, "whole hours from 0")
SIZE: Final = _written("size (`500MB`, `2GiB`)", check_size)
DURATION: Final = _written("duration (`30s`, `10m`, `2h`, `7d`, `2w`)", check_duration)
SECONDS: Final = _written("number of seconds, or duration (`10m`)", _seconds)
TEXT: Final = Kind("text", _text)
TEXTS: Final = Kind("list of texts", _texts)
PROFILE: Final = Kind("name of a profile", _profile)
STORE: Final = Kind("URL of a store", _store)
ZONE: Final = Kind("`UTC`, `local` or the name of a time zone", _zone)
