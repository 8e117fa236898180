"""Values in shell commands, without a way to become part of the command.

A value never enters the text. It goes into the environment of the shell, and the text refers to it: `"${STEPKEEP_V1}"`
outside of quotes, `${STEPKEEP_V1}` inside of double quotes and here-documents, and out of single quotes and in
again. What a shell expands it does not parse again, so no value can start a command, whatever is in it; and none is
seen in a list of processes. Were the quotes of a text ever misread here, a value would come out with quotes too
many or be split into words, and still not be run.
"""

from __future__ import annotations

import re
from typing import Final

from stepkeep.runs.workflow.expressions import BadExpression, Ref, Template

PREFIX: Final = "STEPKEEP_V"

_HERE: Final = re.compile(r"<<(-?)[ \t]*(\\?)(['\"]?)([A-Za-z_]\w*)\3(?=[\s;&|()<>]|\Z)")
_CASE: Final = re.compile(r"case[\s\\]")


_BARE: Final = '"{}"'
_SINGLE: Final = "'\"{}\"'"
_DOUBLE: Final = "{}"


def shell_command(template: Template) -> tuple[str, tuple[Ref, ...]]:
    """The command with names in place of references, and the references, whose values are to be `PREFIX` 1, 2, …

    Raises:
        BadExpression: a reference in arithmetic, which a shell evaluates, where a shell expands nothing, or where its
            quotes cannot be told for sure.
    """
    refs: list[Ref] = []
    scanner, text = _Scanner(), ""
    for piece in template:
        if isinstance(piece, str):
            text += piece
            scanner.read(piece)
            continue
        if piece not in refs:
            refs.append(piece)
        text += scanner.quotes().format(f"${{{PREFIX}{refs.index(piece) + 1}}}")
        scanner.skip_value()
    return text, tuple(refs)


class _Scanner:
    """Reads a shell command from left to right and knows what surrounds the place it is at."""

    def __init__(self) -> None:
        self._inside: list[
            str
        ] = []  # of `'`, `"`, `$((`, `$(`, `(`, `#`, a backtick and `<<`, a here-document
        self._ends: list[tuple[str, bool, bool]] = []  # announced here-documents: end, is literal, has tabs
        self._line = ""
        self._last = ""
        self._number = 1
        self._doubt: str | None = None  # why nothing is certain any more from some place on

    def quotes(self) -> str:
        """How a value is quoted at this place."""
        problem = self._problem()
        if problem is not None:
            where = f"line {self._number} of the command: " if self._number > 1 else ""
            raise BadExpression(where + problem)
        return {"'": _SINGLE, '"': _DOUBLE, "<<": _DOUBLE}.get(self._around, _BARE)

    def _problem(self) -> str | None:
        """Why no value can stand at this place."""
        if self._doubt is not None:
            return (
                f'{self._doubt}: put the value into a variable before, as in name=…, and write "$name" here'
            )
        if "`" in self._inside:
            return "a value inside of `…` could be split into words: write $(…) instead"
        if "$((" in self._inside:
            return "a value inside of $((…)) would be evaluated, and could run commands: use $(expr … + 1) or awk"
        if self._around == "<<" and self._ends[0][1]:
            return "nothing is replaced in a here-document with a quoted end: take the quotes off"
        return None

    @property
    def _around(self) -> str:
        return self._inside[-1] if self._inside else ""

    def skip_value(self) -> None:
        self._last = "x"
        self._line += "\0"

    def read(self, text: str) -> None:
        at = 0
        while at < len(text):
            size = self._here(text, at) if self._around == "<<" else self._code(text, at)
            self._number += text.count("\n", at, at + size)
            at += size

    def _here(self, text: str, at: int) -> int:
        """Read in a here-document, where only a backslash, `$(`, `$((` and a backtick mean something, if anything."""
        end, is_literal, has_tabs = self._ends[0]
        if text[at] == "\n":
            if (self._line.lstrip("\t") if has_tabs else self._line) == end:
                self._ends.pop(0)
                self._inside.pop()
                self._begin_here()
            self._line = ""
            return 1
        self._line += text[at]
        if is_literal:
            return 1
        if text[at] == "\\":
            # The line goes on, so that its end is not the one that is looked for.
            self._line += text[at + 1 : at + 2]
            return 2
        return self._opens(text, at) or 1

    def _begin_here(self) -> None:
        if self._ends:
            self._inside.append("<<")
            self._line = ""

    def _code(self, text: str, at: int) -> int:
        """Read what begins at a place; how many characters that is."""
        char, around = text[at], self._around
        before, self._last = self._last, char
        if around == "#":
            if char == "\n":
                self._inside.pop()
                return 0
            return 1
        if around == "'":
            if char == "'":
                self._inside.pop()
            return 1
        if char == "\\":
            self._last = "x"
            return 2
        if around == "`":
            # The next one ends it, whatever quotes are between.
            if char == "`":
                self._inside.pop()
            return 1
        return self._opens_or_closes(text, at, around, before)

    def _opens(self, text: str, at: int) -> int:
        """Whether a substitution begins at a place: how many characters that takes."""
        for opening in ("$((", "$(", "`"):
            if text.startswith(opening, at):
                self._inside.append(opening)
                return len(opening)
        return 0

    def _opens_or_closes(self, text: str, at: int, around: str, before: str) -> int:
        char = text[at]
        if opened := self._opens(text, at):
            return opened
        if around == "$((" and text.startswith("))", at):
            self._inside.pop()
            return 2
        if char == '"':
            if around == '"':
                self._inside.pop()
            else:
                self._inside.append('"')
        elif around != '"':
            return self._outside_of_quotes(text, at, around, before)
        return 1

    def _outside_of_quotes(self, text: str, at: int, around: str, before: str) -> int:
        char = text[at]
        if not self._doubt:
            self._doubt = self._unclear(text, at, before)
        if char == "(":
            self._inside.append("(")
        elif char == ")" and around in ("(", "$("):
            if around == "$(" and self._ends and "<<" not in self._inside:
                self._doubt = "shells differ in where this here-document begins"
            self._inside.pop()
        elif char == "'":
            self._inside.append("'")
        elif char == "#" and (not before or before in " \t\n;&|()"):
            self._inside.append("#")
        elif char == "\n" and "<<" not in self._inside:
            self._begin_here()
        elif around != "$((" and (here := _HERE.match(text, at)) and before != "<":
            self._ends.append((here[4], bool(here[2] or here[3]), bool(here[1])))
            return here.end() - at
        return 1

    def _unclear(self, text: str, at: int, before: str) -> str | None:
        """What begins at a place that makes quotes unclear from there on."""
        if "$(" in self._inside and _CASE.match(text, at) and (not before or before in " \t\n;&|($"):
            return "the patterns of a case inside of $(…) end it for some readers"
        if before == "$" and text[at] == "'":
            return "$'…' is not read by every shell"
        is_here = text.startswith("<<", at) and before != "<" and not text.startswith("<<<", at)
        if is_here and "$((" not in self._inside:
            if _HERE.match(text, at) is None:
                return "the end of a here-document is not a plain word"
            if "<<" in self._inside:
                return "a here-document inside of another one cannot be told apart from it"
        return None
