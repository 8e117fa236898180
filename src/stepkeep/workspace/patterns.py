"""One line of an ignore file, with the meaning git gives it.

Names are compared byte by byte, as git does: a path is its bytes read as Latin-1, so that one character is one byte.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Final, NamedTuple

_SPECIAL: Final = frozenset("*?[\\")
_NEVER: Final = re.compile(r"(?!)")

_CLASSES: Final = {
    "alnum": lambda char: char.isascii() and char.isalnum(),
    "alpha": lambda char: char.isascii() and char.isalpha(),
    "blank": lambda char: char in " \t",
    "cntrl": lambda char: ord(char) < 32 or ord(char) == 127,
    "digit": lambda char: char in "0123456789",
    "graph": lambda char: 32 < ord(char) < 127,
    "lower": lambda char: "a" <= char <= "z",
    "print": lambda char: 32 <= ord(char) < 127,
    "punct": lambda char: 32 < ord(char) < 127 and not char.isalnum(),
    "space": lambda char: char in " \t\n\v\f\r",
    "upper": lambda char: "A" <= char <= "Z",
    "xdigit": lambda char: char in "0123456789abcdefABCDEF",
}
_BYTES: Final = [chr(number) for number in range(256)]


class Pattern(NamedTuple):
    """What a line ignores or, if `is_negated`, takes back: names anywhere below, or paths from its directory."""

    regex: re.Pattern[str]
    is_negated: bool
    only_directories: bool
    is_path: bool
    text: str
    """The pattern without its marks."""

    def matches(self, path: str, name: str, is_directory: bool) -> bool:
        """`path` is relative to the directory of the ignore file; both are bytes read as Latin-1."""
        if self.only_directories and not is_directory:
            return False
        return self.regex.fullmatch(path if self.is_path else name) is not None


def as_latin(path: str) -> str:
    """A path as patterns compare it: one character for each byte."""
    return path if path.isascii() else os.fsencode(path).decode("latin-1")


@lru_cache(maxsize=256)
def parse(content: bytes) -> tuple[Pattern, ...]:
    """The patterns in an ignore file, in their order."""
    text = content.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    lines = (line.removesuffix("\r") if line != "\r" else line for line in text.split("\n"))
    found = (_pattern(line) for line in lines)
    return tuple(pattern for pattern in found if pattern is not None)


def _pattern(line: str) -> Pattern | None:
    text = _without_trailing_spaces(line.partition("\0")[0])
    if not text or text.startswith("#"):
        return None
    is_negated = text.startswith("!")
    text = text[1:] if is_negated else text
    only_directories = text.endswith("/")
    text = text[:-1] if only_directories else text
    is_path = "/" in text
    text = text.removeprefix("/") if is_path else text
    return Pattern(_regex(text, is_path=is_path), is_negated, only_directories, is_path, text)


def _without_trailing_spaces(line: str) -> str:
    end, at = None, 0
    while at < len(line):
        if line[at] == " ":
            end = at if end is None else end
        else:
            end = None
            if line[at] == "\\":
                at += 1
                if at == len(line):
                    return line
        at += 1
    return line if end is None else line[:end]


def _regex(text: str, *, is_path: bool) -> re.Pattern[str]:
    literal = next((at for at, char in enumerate(text) if char in _SPECIAL), len(text))
    # git compares what comes before the first special character as it is, and lets a pattern begin after it.
    try:
        rest = _translated(text[literal:], is_path=is_path)
    except _Malformed:
        return _NEVER
    return re.compile(re.escape(text[:literal]) + rest, re.DOTALL)


class _Malformed(Exception):
    """A pattern that matches nothing."""


def _translated(text: str, *, is_path: bool) -> str:
    anything = "[^/]" if is_path else "."
    at, pieces = 0, []
    while at < len(text):
        char = text[at]
        if char == "*":
            end = at
            while end < len(text) and text[end] == "*":
                end += 1
            piece, at = _stars(text, at, end) if is_path else (".*", end)
            pieces.append(piece)
        elif char == "?":
            pieces.append(anything)
            at += 1
        elif char == "[":
            chars, at = _bracket(text, at)
            pieces.append(_class(chars - {"/"} if is_path else chars))
        elif char == "\\":
            if at + 1 == len(text):
                raise _Malformed
            pieces.append(re.escape(text[at + 1]))
            at += 2
        else:
            pieces.append(re.escape(char))
            at += 1
    return "".join(pieces)


def _stars(text: str, start: int, end: int) -> tuple[str, int]:
    """What a run of stars in a path stands for: `**` between slashes crosses directories."""
    is_at_start = start == 0 or text[start - 1] == "/"
    if end - start >= 2 and is_at_start:
        if end == len(text):
            return ".*", end
        if text[end] == "/":
            return "(?:.*/)?", end + 1
        if text.startswith("\\/", end):
            return ".*", end
    return "[^/]*", end


def _class(chars: set[str]) -> str:
    return "[" + "".join(map(re.escape, sorted(chars))) + "]" if chars else "(?!)"


def _bracket(text: str, start: int) -> tuple[set[str], int]:
    """The characters that `[...]` at `start` stands for, and where it ends."""
    at = start + 1
    is_negated = at < len(text) and text[at] in "!^"
    at += is_negated
    found: set[str] = set()
    previous, is_first = "", True
    while is_first or at >= len(text) or text[at] != "]":
        if at >= len(text):
            raise _Malformed
        is_first = False
        char = text[at]
        if char == "-" and previous and at + 1 < len(text) and text[at + 1] != "]":
            last, at = _escaped(text, at + 1)
            found.update(each for each in _BYTES if previous <= each <= last)
            previous = ""
        elif char == "[" and text.startswith(":", at + 1):
            previous, at = _named_class(text, at, found)
        else:
            previous, at = _escaped(text, at)
            found.add(previous)
    return (set(_BYTES) - found if is_negated else found), at + 1


def _escaped(text: str, at: int) -> tuple[str, int]:
    at += text[at] == "\\"
    if at >= len(text):
        raise _Malformed
    return text[at], at + 1


def _named_class(text: str, at: int, found: set[str]) -> tuple[str, int]:
    end = text.find("]", at + 2)
    if end < 0:
        raise _Malformed
    name = text[at + 2 : end - 1]
    if end - 1 < at + 2 or text[end - 1] != ":":
        found.add("[")
        return "[", at + 1
    if name not in _CLASSES:
        raise _Malformed
    found.update(filter(_CLASSES[name], _BYTES))
    return "", end + 1
