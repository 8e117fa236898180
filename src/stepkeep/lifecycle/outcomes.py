"""What commands and tools did since the last snapshot: a bounded list."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import msgspec

from stepkeep.codec.readable import CommandOutcome
from stepkeep.errors import InvalidInput

MAX_OUTCOMES: Final = 50
MAX_NAME: Final = 200
MAX_SUMMARY: Final = 1000


def checked(outcome: CommandOutcome) -> CommandOutcome:
    """An outcome with valid fields and texts of bounded length, or `InvalidInput` naming the field.

    What is no Unicode becomes `?`: output that was decoded with `surrogateescape` must not stop a snapshot.
    """
    try:
        valid = msgspec.convert(msgspec.to_builtins(outcome), CommandOutcome)
    except (msgspec.ValidationError, TypeError) as exc:
        raise InvalidInput(f"a command's outcome: {exc}", code="invalid_outcome") from exc
    if not 0 <= valid.duration_ms < math.inf:
        raise InvalidInput("a command's outcome: duration_ms is a number from 0", code="invalid_outcome")
    return msgspec.structs.replace(
        valid,
        name=_cut(valid.name, MAX_NAME),
        summary=_cut(valid.summary, MAX_SUMMARY),
        reason_code=None if valid.reason_code is None else _cut(valid.reason_code, MAX_NAME),
    )


def _cut(text: str, limit: int) -> str:
    kept = text if len(text) <= limit else text[: limit - 1] + "…"
    return kept.encode("utf-8", "replace").decode()


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
