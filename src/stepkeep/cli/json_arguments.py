"""JSON given on the command line, read exactly or refused."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, NoReturn

from stepkeep.errors import InvalidInput
from stepkeep.text import shortened


def read_document(what: str, argument: str) -> Any:
    """The value in `@FILE`, `-` (stdin) or the argument itself.

    Raises:
        InvalidInput: it cannot be read, is not JSON, or would change by being read.
    """
    if argument != "-" and not argument.startswith("@"):
        return parse(what, argument)
    source = "stdin" if argument == "-" else argument[1:]
    try:
        data = sys.stdin.buffer.read() if argument == "-" else Path(source).read_bytes()
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise InvalidInput(f"{what}: cannot read {source!r}: {reason}", code="unreadable_file") from exc
    try:
        return parse(what, data.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        raise InvalidInput(
            f"{what}: {source} is not UTF-8 text: byte {exc.start} is 0x{data[exc.start]:02x}",
            code="invalid_json",
        ) from exc


def parse(what: str, text: str) -> Any:
    """The value of a JSON text. What JSON leaves open is refused: repeated keys, NaN, numbers beyond a float."""

    def refuse(reason: str) -> NoReturn:
        raise InvalidInput(f"{what}: {reason}", code="invalid_json")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            seen: set[str] = set()
            repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            refuse(f"the key {_short(repeated)} occurs twice in one object")
        return values

    def finite(literal: str) -> float:
        value = float(literal)
        if math.isinf(value):
            refuse(f"the number {_short(literal)} is too large for a float")
        return value

    def whole(literal: str) -> int:
        try:
            return int(literal)
        except ValueError:
            refuse(f"the number {_short(literal)} has {len(literal)} digits, more than can be read")

    def constant(name: str) -> NoReturn:
        refuse(f"{name} is not JSON; save it from Python, or as text")

    try:
        return json.loads(
            text, object_pairs_hook=unique, parse_float=finite, parse_int=whole, parse_constant=constant
        )
    except json.JSONDecodeError as exc:
        refuse(f"not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}")
    except RecursionError:
        raise InvalidInput(f"{what}: it is nested too deeply", code="state_too_deep") from None


def _short(text: str) -> str:
    return repr(shortened(text, 40))
