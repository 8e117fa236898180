"""What commands and tools did since the last snapshot: a bounded list."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from holdfast.codec.readable import CommandOutcome
from holdfast.errors import InvalidInput

MAX_OUTCOMES: Final = 50
MAX_NAME: Final = 200
MAX_SUMMARY: Final = 1000


def checked(outcome: CommandOutcome) -> CommandOutcome:
    """An outcome with valid fields and texts of bounded length, or `InvalidInput` naming the field."""
    try:
        valid = msgspec.convert(msgspec.to_builtins(outcome), CommandOutcome)
    except (msgspec.ValidationError, TypeError) as exc:
        raise InvalidInput(f"a command's outcome: {exc}", code="invalid_outcome") from exc
    if not valid.duration_ms >= 0:
        raise InvalidInput("a command's outcome: duration_ms is 0 or more", code="invalid_outcome")
    return msgspec.structs.replace(
        valid, name=_cut(valid.name, MAX_NAME), summary=_cut(valid.summary, MAX_SUMMARY)
    )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


class Outcomes:
    """The newest outcomes, and how many older ones were dropped. Not safe for threads by itself."""

    def __init__(self, limit: int = MAX_OUTCOMES) -> None:
        self._kept: deque[CommandOutcome] = deque(maxlen=limit)
        self._count = 0

    def add(self, outcome: CommandOutcome) -> None:
        self._kept.append(checked(outcome))
        self._count += 1

    @property
    def entries(self) -> list[CommandOutcome]:
        return list(self._kept)

    @property
    def dropped(self) -> int:
        return self._count - len(self._kept)

    def clear(self) -> None:
        """A snapshot holds them now."""
        self._kept.clear()
        self._count = 0
