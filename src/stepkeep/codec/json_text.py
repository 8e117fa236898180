"""Editing the text of somebody else's JSON file: one member or item comes, changes or goes, all other characters stay.

Comments and trailing commas, which some programs allow, count as blanks and stay too. Pure.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_COMMENT: Final = r"//[^\r\n]*|/\*(?:[^*]|\*(?!/))*\*/"  # it never reaches into the next one
_BLANKED: Final = re.compile(rf"{_STRING}|{_COMMENT}|,(?=(?:\s|{_COMMENT})*[}}\]])", re.DOTALL)
_REMARK: Final = re.compile(rf"[ \t]*(?:{_COMMENT})", re.DOTALL)
"""A comment on the line of the value before it."""

_COMMA: Final = re.compile(r"[ \t]*,")
"""The comma behind the last of several, which stays behind what comes then."""

_SPACE: Final = re.compile(r"\s*")
_SCALAR: Final = re.compile(rf"{_STRING}|[^\s,\]}}]+", re.DOTALL)


class Node(NamedTuple):
    """A value and where it stands. Objects and lists have children; other values have none."""

    start: int
    end: int
    children: tuple[Child, ...] | None = None

    def child(self, key: str) -> Child | None:
        """The last member with that key, which is the one that counts."""
        return next((each for each in reversed(self.children or ()) if each.key == key), None)


class Child(NamedTuple):
    """A member of an object, or an item of a list with its number as key. It begins with its key."""

    key: str | int
    start: int
    value: Node


def plain(text: str) -> str:
    """Strict JSON of the same length: comments, trailing commas and a byte order mark are blanks."""
    text = " " + text[1:] if text.startswith("\ufeff") else text
    return _BLANKED.sub(lambda match: match[0] if match[0][0] == '"' else _blanks(match[0]), text)


def _blanks(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)


def read(text: str) -> Any:
    """What the text says. Raises `ValueError` or `RecursionError` where it is not JSON."""
    return json.loads(plain(text))


def parse(text: str) -> Node:
    """Where everything stands. Raises as `read`."""
    strict = plain(text)
    json.loads(strict)
    return _node(strict, _after_space(strict, 0))


def _node(text: str, at: int) -> Node:
    if text[at] not in "{[":
        return Node(at, _end(text, at))
    is_object = text[at] == "{"
    children: list[Child] = []
    start, at = at, _after_space(text, at + 1)
    while text[at] not in "}]":
        begin, key = at, len(children)
        if is_object:
            end = _end(text, at)
            key = json.loads(text[at:end])
            at = _after_space(text, _after_space(text, end) + 1)
        child = Child(key, begin, _node(text, at))
        children.append(child)
        at = _after_space(text, child.value.end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return Node(start, at + 1, tuple(children))


def _end(text: str, at: int) -> int:
    match = _SCALAR.match(text, at)
    assert match is not None
    return match.end()


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


# --- changing --------------------------------------------------------------------------------------------------


def replaced(text: str, node: Node, value: object) -> str:
    """The text with another value in the place of one."""
    return text[: node.start] + json.dumps(value, ensure_ascii=False) + text[node.end :]


def added(text: str, container: Node, value: object, *, key: str | None = None) -> str:
    """The text with a value at the end of a list or, by a key, of an object, written as the file is written."""
    children = container.children or ()
    newline = "\r\n" if "\r\n" in text else "\n"
    if not children:
        outer = _indent_of(text, container.start)
        inner = newline + outer + _unit(text)
        item = _written(text, value, key, inner)
        return f"{text[: container.start + 1]}{inner}{item}{newline}{outer}{text[container.end - 1 :]}"
    last = children[-1]
    before = text[children[-2].value.end if len(children) > 1 else container.start + 1 : last.start]
    comma = _COMMA.match(text, last.value.end)
    value_end = last.value.end if comma is None else comma.end()
    remark = _REMARK.match(text, value_end)
    has_lines = "\n" in before or (remark is not None and "//" in remark[0])
    lead = newline + _indent_of(text, last.start) if has_lines else " " * (not before.endswith(","))
    item = _written(text, value, key, lead if has_lines else None)
    end = value_end if remark is None else remark.end()
    if comma is not None:
        return f"{text[:end]}{lead}{item},{text[end:]}"
    return f"{text[:value_end]},{text[value_end:end]}{lead}{item}{text[end:]}"


def _written(text: str, value: object, key: str | None, lead: str | None) -> str:
    """A value, with its key, on lines that begin with `lead`, or on one line."""
    indent = None if lead is None else _unit(text)
    name = "" if key is None else f"{json.dumps(key, ensure_ascii=False)}: "
    return (name + json.dumps(value, indent=indent, ensure_ascii=False)).replace("\n", lead or "")


def _unit(text: str) -> str:
    """How one level is indented."""
    match = re.search(r"\n([ \t]+)\S", text)
    return match[1] if match else "  "


def _indent_of(text: str, at: int) -> str:
    """The blanks that the line of a place begins with."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def removed(text: str, container: Node, number: int) -> str:
    """The text without a member or item. Comments around it stay."""
    children = container.children or ()
    child = children[number]
    if number + 1 < len(children):
        start, end = child.start, children[number + 1].start
    elif number:
        start, end = children[number - 1].value.end, child.value.end
    else:
        start, end = container.start + 1, container.end - 1
    strict = plain(text)
    comma = _COMMA.match(text, end)
    if comma is not None and number and number + 1 == len(children):
        end = comma.end()
        return text[:start] + _closed(text[start : child.start].rstrip(), text, end, container) + text[end:]
    around = [*range(start, child.start), *range(child.value.end, end)]
    has_comment = any(strict[at] == " " and text[at] not in " ,\ufeff\t" for at in around)
    kept = "".join(text[at] for at in around if strict[at] != ",") if has_comment else ""
    if has_comment and number + 1 == len(children):
        kept = _closed(kept.rstrip(), text, end, container)
    return text[:start] + kept + text[end:]


def _closed(kept: str, text: str, end: int, container: Node) -> str:
    """Comments before the end of a list or object, which must not become one of them."""
    is_open = "//" in kept.rpartition("\n")[2]
    if is_open and not text[end:].lstrip(" \t").startswith(("\r", "\n")):
        return f"{kept}\n{_indent_of(text, container.start)}"
    return kept
