"""Secrets: which names look like one, and texts without them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

HIDDEN: Final = "(hidden)"
MIN_SECRET: Final = 4
"""Shorter values are not looked for in texts: `1` or `yes` would be blanked out everywhere."""

_SECRET_NAME: Final = re.compile(
    r"secret|passw|passphrase|token|credential|api_?key|access_?key|private_?key|(^|_)auth(_|$)|(^|_)pwd(_|$)",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """Whether a variable of that name holds something that must not be stored or shown."""
    return _SECRET_NAME.search(name.replace("-", "_")) is not None


class Redactor:
    """Replaces known secrets by `(hidden)`, the longest first, and each line of one that has several."""

    def __init__(self, secrets: Iterable[str]) -> None:
        parts = {part for secret in secrets for part in (secret, *secret.splitlines())}
        found = sorted((part for part in parts if len(part.strip()) >= MIN_SECRET), key=len, reverse=True)
        self._secrets = tuple(found)
        self._encoded = tuple(part.encode("utf-8", "surrogateescape") for part in found)

    def text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def data(self, data: bytes, *, starts_inside: bool = False, ends_inside: bool = False) -> bytes:
        """Bytes without secrets. Where they were cut out of more, half a secret at that end goes too."""
        for secret in self._encoded:
            data = data.replace(secret, HIDDEN.encode())
        if ends_inside and (size := max((_overlap(data, secret) for secret in self._encoded), default=0)):
            data = data[:-size] + HIDDEN.encode()
        if starts_inside and (
            size := max((_end_inside(secret, data) for secret in self._encoded), default=0)
        ):
            data = HIDDEN.encode() + data[size:]
        return data

    def value(self, value: Any) -> Any:
        """A plain value with its texts redacted."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.value(item) for item in value)
        return value


def _overlap(data: bytes, secret: bytes) -> int:
    """How many bytes at the end of the data are the beginning of the secret."""
    sizes = range(min(len(data), len(secret) - 1), 0, -1)
    return next((size for size in sizes if data.endswith(secret[:size])), 0)


def _end_inside(secret: bytes, data: bytes) -> int:
    """How many bytes at the beginning of the data are the end of the secret."""
    sizes = range(min(len(data), len(secret) - 1), 0, -1)
    return next((size for size in sizes if data.startswith(secret[-size:])), 0)
