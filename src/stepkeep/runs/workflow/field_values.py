"""Kinds of values in a workflow file: what a node becomes, or why it cannot."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from stepkeep.errors import InvalidInput
from stepkeep.model import check_name
from stepkeep.policy.cleanup import rule_from
from stepkeep.policy.profiles import PROFILES, retention_for
from stepkeep.runs.workflow.definition import Capture, EnvSetting
from stepkeep.runs.workflow.expressions import (
    STEP_FIELDS,
    BadExpression,
    parse_condition,
    parse_template,
)
from stepkeep.runs.workflow.quoting import shell_command
from stepkeep.text import shortened
from stepkeep.yaml_lines import Items, Node, Scalar, Section, scalar_value, shown

MAX_SECONDS: Final = 366 * 86_400

_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_ENVIRONMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FUNCTION: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_SPAN: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(ms|s|m|h|d)?", re.ASCII)
_UNITS: Final = {"ms": 0.001, "s": 1, None: 1, "m": 60, "h": 3600, "d": 86_400}
_FLAGS: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


class InvalidValue(Exception):
    """A value that cannot be used: what it must be, and the line where that is not the line of its key."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def _must_be(what: str, node: Node) -> InvalidValue:
    return InvalidValue(f"must be {what}, not {shown(node)}", node.line)


def as_scalar(node: Node, what: str = "a single value") -> Scalar:
    if not isinstance(node, Scalar) or node.is_null:
        raise _must_be(what, node)
    return node


def as_section(node: Node, what: str = "a section") -> Section:
    if not isinstance(node, Section):
        raise _must_be(what, node)
    return node


def as_text(node: Node) -> str:
    return as_scalar(node, "text").text


def as_name(node: Node) -> str:
    try:
        return check_name("it", as_text(node))
    except InvalidInput as exc:
        raise InvalidValue(exc.message.removeprefix("it "), node.line) from None


def as_flag(node: Node) -> bool:
    if isinstance(node, Scalar) and not node.is_quoted and node.text.lower() in _FLAGS:
        return _FLAGS[node.text.lower()]
    raise _must_be("true or false", node)


def as_count(node: Node, most: int) -> int:
    value = scalar_value(as_scalar(node))
    if type(value) is not int or not 1 <= value <= most:
        raise _must_be(f"a whole number from 1 to {most}", node)
    return value


def as_factor(node: Node) -> float:
    value = scalar_value(as_scalar(node))
    if type(value) not in (int, float) or not 1 <= float(value or 0) <= 100:
        raise _must_be("a number from 1 to 100", node)
    return float(value or 0)


def as_seconds(node: Node) -> float:
    """A duration; a bare number counts seconds."""
    match = _SPAN.fullmatch(as_scalar(node).text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else -1.0
    if not 0 <= seconds <= MAX_SECONDS:
        raise _must_be("a duration such as 500ms, 30s, 5m or 2h", node)
    return seconds


def as_timeout(node: Node) -> float:
    seconds = as_seconds(node)
    if not seconds:
        raise InvalidValue("must be longer than 0", node.line)
    return seconds


def as_words(node: Node) -> tuple[str, ...]:
    """A command: a list of words, or one text that is split as a shell does, without expanding anything."""
    try:
        words = map(as_text, node.nodes) if isinstance(node, Items) else shlex.split(as_text(node))
        found = tuple(words)
    except ValueError as exc:
        raise InvalidValue(f"cannot be split into words: {exc}", node.line) from None
    if not found or not found[0]:
        raise InvalidValue("names no program", node.line)
    return found


# --- data ------------------------------------------------------------------------------------------------------


def as_data(node: Node) -> Any:
    """The value of a variable. Nothing is replaced in it, so a reference there is a mistake."""
    value = _data(node)
    if "${" in str(value):
        raise InvalidValue(
            "holds '${', and nothing is replaced in vars: write it where the variable is used", node.line
        )
    return value


def as_arguments(node: Node) -> Any:
    """What `with` gives a function: a mapping of names to values, in whose texts references are replaced."""
    arguments = _data(as_section(node))
    for text in texts_in(arguments):
        parse_template(text)
    return arguments


def _data(node: Node) -> Any:
    if isinstance(node, Items):
        return [_data(item) for item in node.nodes]
    if isinstance(node, Section):
        return {name: _data(value) for name, value in unique(node).items()}
    return scalar_value(node)


def texts_in(value: Any) -> list[str]:
    """Every text in a value of lists and mappings."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts_in(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts_in(item)]
    return [value] if isinstance(value, str) else []


def unique(section: Section) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for key, value in section.entries:
        if key.text in found:
            raise InvalidValue(f"has {shortened(key.text)!r} twice", key.line)
        found[key.text] = value
    return found


# --- names and references --------------------------------------------------------------------------------------


def _matching(node: Node, pattern: re.Pattern[str], what: str) -> str:
    text = as_text(node)
    if not pattern.fullmatch(text):
        raise _must_be(what, node)
    return text


def as_id(node: Node) -> str:
    return _matching(node, _ID, "1 to 64 letters, digits, _ or -")


def as_ids(node: Node) -> tuple[str, ...]:
    nodes = node.nodes if isinstance(node, Items) else (node,)
    return tuple(dict.fromkeys(as_id(item) for item in nodes))


def as_function(node: Node) -> str:
    return _matching(node, _FUNCTION, "module:function")


def as_variable(node: Node) -> str:
    name = as_text(node)
    if not _VARIABLE.fullmatch(name):
        raise InvalidValue(
            f"{shown(node)} cannot be the name of a variable: use up to 64 letters, digits, _ and -",
            node.line,
        )
    return name


def as_environment_name(node: Node) -> str:
    name = as_text(node)
    if not _ENVIRONMENT.fullmatch(name):
        raise InvalidValue(f"{shown(node)} cannot be the name of an environment variable", node.line)
    if name.startswith("STEPKEEP_"):
        raise InvalidValue(f"{name} is set by Stepkeep itself", node.line)
    return name


def as_settings(node: Node) -> tuple[EnvSetting, ...]:
    """`env`: a list of names to pass on, or a section of names and values; an empty value passes it on."""
    if isinstance(node, Items):
        return tuple(EnvSetting(name) for name in dict.fromkeys(map(as_environment_name, node.nodes)))
    section = as_section(node, "a list of names, or a section")
    unique(section)
    return tuple(
        EnvSetting(as_environment_name(key), _environment_value(value)) for key, value in section.entries
    )


def _environment_value(node: Node) -> str | None:
    try:
        return None if isinstance(node, Scalar) and node.is_null else as_template(node)
    except BadExpression as exc:
        raise InvalidValue(f"cannot be used: {exc}", node.line) from None


def as_captures(node: Node) -> tuple[Capture, ...]:
    """`capture: NAME` takes stdout; `capture: {NAME: output.field}` takes that."""
    if isinstance(node, Scalar):
        return (Capture(as_variable(node), ("stdout",)),)
    section = as_section(node, "a name, or a section of names")
    unique(section)
    return tuple(Capture(as_variable(key), _captured_path(value)) for key, value in section.entries)


def _captured_path(node: Node) -> tuple[str, ...]:
    path = tuple(as_text(node).split("."))
    if path[0] not in STEP_FIELDS or not all(path):
        raise InvalidValue(f"{shown(node)} must begin with one of {', '.join(STEP_FIELDS)}", node.line)
    return path


def as_template(node: Node) -> str:
    text = as_text(node)
    parse_template(text)
    return text


def as_command(node: Node) -> str:
    text = as_template(node)
    if not text.strip():
        raise InvalidValue("is empty", node.line)
    return text


def as_shell_command(node: Node) -> str:
    text = as_command(node)
    shell_command(parse_template(text))
    return text


def as_condition(node: Node) -> str:
    text = as_scalar(node).text
    parse_condition(text)
    return text


# --- rules of the session --------------------------------------------------------------------------------------


def as_profile(node: Node) -> dict[str, Any]:
    name = as_text(node)
    if name not in PROFILES:
        raise _must_be(f"one of {', '.join(PROFILES)}", node)
    return {"profile": name}


def as_retention_rule(node: Node, key: str) -> dict[str, Any]:
    """One rule for the history, checked as everywhere else; `all` and `off` switch it off."""
    value: Any
    if isinstance(node, Items):
        value = [as_text(item) for item in node.nodes]
    else:
        value = scalar_value(as_scalar(node))
        value = None if value in ("all", "off") else value
    return _rule(node, {key: value}, partial(retention_for, "archive"), f"{key} ")


def as_cleanup_rule(node: Node, key: str) -> dict[str, Any]:
    value = as_flag(node) if key == "enabled" else scalar_value(as_scalar(node))
    return _rule(node, {key: value}, partial(rule_from, "cleanup"), f"cleanup.{key} ")


def _rule(
    node: Node, rule: dict[str, Any], check: Callable[[dict[str, Any]], object], prefix: str
) -> dict[str, Any]:
    try:
        check(rule)
    except InvalidInput as exc:
        raise InvalidValue(exc.message.removeprefix(prefix), node.line) from None
    return rule
