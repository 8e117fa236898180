"""The difference of two texts as a person and `git apply` read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final

CONTEXT: Final = 3
MAX_TEXT_BYTES: Final = 2_000_000
MAX_LINES: Final = 20_000
"""Beyond these a text is treated like a binary file: comparing it line by line would take too long."""


def is_text(content: bytes) -> bool:
    """Whether content can be shown as lines: UTF-8 without NUL, and not too long."""
    if len(content) > MAX_TEXT_BYTES or b"\0" in content or content.count(b"\n") > MAX_LINES:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def lines_of(content: bytes) -> list[str]:
    """The lines with their ends; only a line feed ends one."""
    pieces = content.decode().split("\n")
    lines = [piece + "\n" for piece in pieces[:-1]]
    return [*lines, pieces[-1]] if pieces[-1] else lines


def hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """The hunks of a unified diff, each with its own line end."""
    for group in _matcher(old, new).get_grouped_opcodes(CONTEXT):
        (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = group[0], group[-1]
        yield f"@@ -{_range(old_start, old_end)} +{_range(new_start, new_end)} @@\n"
        for tag, from_old, to_old, from_new, to_new in group:
            if tag == "equal":
                yield from _marked(" ", old[from_old:to_old])
                continue
            yield from _marked("-", old[from_old:to_old])
            yield from _marked("+", new[from_new:to_new])


def _range(start: int, end: int) -> str:
    length = end - start
    first = start + 1 if length else start
    return str(first) if length == 1 else f"{first},{length}"


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


def counts(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """How many lines were added, and how many removed."""
    added = removed = 0
    for tag, from_old, to_old, from_new, to_new in _matcher(old, new).get_opcodes():
        if tag != "equal":
            removed += to_old - from_old
            added += to_new - from_new
    return added, removed


def _matcher(old: Sequence[str], new: Sequence[str]) -> SequenceMatcher[str]:
    # Lines that occur all the time make long texts slow to compare: there they are left out of the search.
    return SequenceMatcher(None, old, new, autojunk=len(old) + len(new) > 2000)
