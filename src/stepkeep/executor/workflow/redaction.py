"""Secrets: which names look like one, and texts without them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final

import msgspec

HIDDEN: Final = "(hidden)"
MIN_SECRET: Final = 4
"""Shorter values are not looked for in texts: `1` or `yes` would be blanked out everywhere."""

_SHORT: Final = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
"""What JSON writes after a backslash for a character."""

_BACKSLASHES: Final = r"(?:\\|(?<=\\)u005[cC])*+"
"""Any number of them, also written by their number."""

_SECRET_NAME: Final = re.compile(
    r"secret|passw|passphrase|token|credential|api_?key|access_?key|private_?key|(^|_)auth(_|$)|(^|_)pwd(_|$)",
    re.IGNORECASE,
)
_COUNT_OF_TOKENS: Final = re.compile(
    r"(max|min|num|total|prompt|completion|input|output|context)_tokens|tokeniz", re.IGNORECASE
)
"""Of a language model, and no secret."""


def looks_secret(name: str) -> bool:
    """Whether a variable of that name holds something that must not be stored or shown."""
    return _SECRET_NAME.search(_COUNT_OF_TOKENS.sub("", name.replace("-", "_"))) is not None


def texts_of_secret(value: Any) -> Iterator[str]:
    """The texts that give a secret away: its own, and of a list or mapping those of everything in it.

    The keys of a mapping are names, which the file refers to. `true` and `false` are no secrets.
    """
    if isinstance(value, dict | list):
        yield msgspec.json.encode(value).decode()
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_of_secret(item)
    elif isinstance(value, str):
        yield value
    elif value is not None and not isinstance(value, bool):
        yield msgspec.json.encode(value).decode()
        yield str(value)


class Redactor:
    """Replaces known secrets by `(hidden)`, the longest first, and each line of one that has several.

    A secret is found as it is, and as JSON may write it, however much of it is escaped.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        parts = {part for secret in secrets for part in (secret, *secret.splitlines())}
        found = {part for part in parts if len(part.strip()) >= MIN_SECRET}
        forms = {form for part in found for form in (part, *_in_json(part))}
        self._plain = sorted(found, key=len, reverse=True)
        self._secrets = tuple(sorted(forms, key=len, reverse=True))
        self._encoded = tuple(_encoded(form) for form in self._secrets)

    def text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        if "\\" in text:
            for pattern in self._escaped:
                text = re.sub(pattern, HIDDEN, text)
        return text

    def data(self, data: bytes, *, starts_inside: bool = False, ends_inside: bool = False) -> bytes:
        """Bytes without secrets. Where they were cut out of more, half a secret at that end goes too."""
        for secret in self._encoded:
            data = data.replace(secret, HIDDEN.encode())
        if b"\\" in data:
            for pattern in self._escaped:
                data = re.sub(_encoded(pattern), HIDDEN.encode(), data)
        if ends_inside and (size := max((_overlap(data, secret) for secret in self._encoded), default=0)):
            data = data[:-size] + HIDDEN.encode()
        if starts_inside and (
            size := max((_end_inside(secret, data) for secret in self._encoded), default=0)
        ):
            data = HIDDEN.encode() + data[size:]
        return data

    def value(self, value: Any) -> Any:
        """A value with its texts redacted. Of any other kind, one that shows a secret is hidden whole."""
        if value is None or isinstance(value, bool) or not self._secrets:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes | bytearray):
            return type(value)(self.data(bytes(value)))
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return type(value)(self.value(item) for item in value)
        return HIDDEN if self._is_shown_by(value) else value

    def _is_shown_by(self, value: object) -> bool:
        try:
            texts = (str(value), msgspec.json.encode(value, enc_hook=str).decode())
        except ValueError:  # a number with more digits than Python writes out
            return True
        return any(self.text(text) != text for text in texts)

    @cached_property
    def _escaped(self) -> tuple[str, ...]:
        # Few characters beside backslashes would be found everywhere.
        return tuple(
            _however_escaped(secret)
            for secret in self._plain
            if len(secret.replace("\\", "").strip()) >= MIN_SECRET
        )


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _in_json(text: str) -> Iterator[str]:
    """A text as it stands between the quotes of a JSON text."""
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]


def _however_escaped(secret: str) -> str:
    """A pattern for a secret in JSON, or in JSON within JSON, with any of its characters escaped.

    Every character may have backslashes before it, those of the secret among them. A run of them is taken whole and
    never given back, so that no text makes the search slow.
    """
    characters = (_character(char) for char in secret if char != "\\")
    return r"(?<!\\)" + "".join(f"{_BACKSLASHES}(?:{character})" for character in characters)


def _character(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    codes = [f"u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)]
    ways = [re.escape(char), f"(?i:{_BACKSLASHES.join(codes)})"]
    return "|".join([*ways, _SHORT[char]] if char in _SHORT else ways)


def _overlap(data: bytes, secret: bytes) -> int:
    """How many bytes at the end of the data are the beginning of the secret."""
    sizes = range(min(len(data), len(secret) - 1), 0, -1)
    return next((size for size in sizes if data.endswith(secret[:size])), 0)


def _end_inside(secret: bytes, data: bytes) -> int:
    """How many bytes at the beginning of the data are the end of the secret."""
    sizes = range(min(len(data), len(secret) - 1), 0, -1)
    return next((size for size in sizes if data.startswith(secret[-size:])), 0)
