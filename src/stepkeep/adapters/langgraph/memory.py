"""What threads of LangGraph held when they were put last, so that only what is new is encoded.

A checkpoint has all channel values, also those that did not change, and a list of messages in full. Holding on to the
values of the last put makes the next one cheap. That is only memory: without it the same bytes come out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from langchain_core.messages import BaseMessage

from stepkeep.codec.growing import LARGE_BYTES, Growing

MAX_LINES: Final = 64
MAX_BYTES: Final = 64 * 1024 * 1024
"""How much content is remembered together; the values that belong to it take a few times as much."""

Line: TypeAlias = tuple[str, str]
"""A thread's session and the branch of a namespace."""

_MESSAGES: Final = "langchain_core.messages."
_MANY: Final = 16


class Memory:
    """The lines put to last, the newest at the end.

    Safe for threads and forks without a lock: who takes a line has it alone, and who comes meanwhile begins anew.
    """

    def __init__(self) -> None:
        self._lines: dict[Line, Growing] = {}
        self._tagged: set[Line] = set()

    def take(self, line: Line) -> Growing | None:
        return self._lines.pop(line, None)

    def note_tagged(self, line: Line) -> None:
        """A line was put to whose values are no plain JSON: probably the next ones are none either."""
        if len(self._tagged) >= MAX_LINES:
            self._tagged.clear()
        self._tagged.add(line)

    def may_grow(self, line: Line, values: Mapping[str, Any]) -> bool:
        """Whether it looks worth while to remember a line's values: a guess before anything is encoded."""
        return line not in self._tagged and any(map(_looks_large, values.values()))

    def forget(self, session: str) -> None:
        """Let go of everything that a deleted thread held."""
        for line in [line for line in list(self._lines) if line[0] == session]:
            self._lines.pop(line, None)

    def keep(self, line: Line, grown: Growing) -> None:
        """Remember a line, and forget the oldest ones that are too many."""
        if grown.size_bytes < LARGE_BYTES:
            return
        self._lines[line] = grown
        self._tagged.discard(line)
        held = list(self._lines.items())
        too_many = len(held) - MAX_LINES
        too_large = sum(each.size_bytes for _, each in held) - MAX_BYTES
        for oldest, each in held:
            if too_many <= 0 and too_large <= 0:
                return
            self._lines.pop(oldest, None)
            too_many -= 1
            too_large -= each.size_bytes


def _looks_large(value: object) -> bool:
    if type(value) is str:
        return len(value) >= LARGE_BYTES
    return type(value) in (list, dict) and len(value) >= _MANY  # type: ignore[arg-type]


def is_message(kind: type) -> bool:
    """Whether a class is one of LangChain's own messages: its fields are all there is to it."""
    return issubclass(kind, BaseMessage) and kind.__module__.startswith(_MESSAGES)
