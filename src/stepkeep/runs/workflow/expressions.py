"""`${…}` in texts, and the conditions of `when`. Nothing is ever evaluated as code.

A reference is a path: `vars.NAME`, `env.NAME`, or `steps.ID.FIELD`, which may go on into the value. A condition
compares references and literals with `==`, `!=`, `in`, `not in`, joined by `and`, `or`, `not` and parentheses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from stepkeep.text import shortened

STEP_FIELDS: Final = ("stdout", "stderr", "output", "exit_code", "status")
MAX_CONDITION: Final = 2000

_REFERENCE: Final = re.compile(r"\$\$\{|\$\{([^{}]*)(\}?)")
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


class BadExpression(ValueError):
    """What is wrong with a text or condition, or why it has no value."""


class Ref(msgspec.Struct, frozen=True):
    """A path such as `steps.fetch.output.items.0`; `path[0]` is `vars`, `env` or `steps`."""

    path: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.path)


Template = tuple[str | Ref, ...]
"""A text in pieces: what stands there, and what is replaced."""


Scope: TypeAlias = Callable[[Ref], Any]
"""Gives the value of `vars.NAME`, `env.NAME` or `steps.ID.FIELD`; the rest of the path is followed by `resolve`."""


# --- texts -----------------------------------------------------------------------------------------------------


def parse_template(text: str) -> Template:
    """The pieces of a text. `$${` stands for a plain `${`.

    Raises:
        BadExpression: a `${` that is not closed, or what it holds is not a reference.
    """
    pieces: list[str | Ref] = []
    plain, at = "", 0
    for match in _REFERENCE.finditer(text):
        plain += text[at : match.start()]
        at = match.end()
        if match[0] == "$${":
            plain += "${"
        elif not match[2]:
            raise BadExpression("'${' without '}'; write $${ for a plain ${")
        else:
            pieces += [plain, parse_ref(match[1])]
            plain = ""
    return tuple(piece for piece in [*pieces, plain + text[at:]] if piece != "")


def parse_ref(text: str) -> Ref:
    path = tuple(text.strip().split("."))
    start, least = path[0], {"vars": 2, "env": 2, "steps": 3}
    if start not in least:
        raise BadExpression(
            f"'${{{_short(text)}}}' is none of vars.NAME, env.NAME and steps.ID.FIELD; "
            "for a variable of the shell write $${…}"
        )
    if len(path) < least[start] or (start == "env" and len(path) > 2) or not all(map(_PART.fullmatch, path)):
        form = {"vars": "vars.NAME", "env": "env.NAME", "steps": "steps.ID.FIELD"}[start]
        raise BadExpression(f"'${{{_short(text)}}}' must be written as ${{{form}}}")
    if start == "steps" and path[2] not in STEP_FIELDS:
        raise BadExpression(f"a step has no {path[2]!r}: choose one of {', '.join(STEP_FIELDS)}")
    return Ref(path)


def refs_in(template: Template) -> Iterator[Ref]:
    return (piece for piece in template if isinstance(piece, Ref))


def fill(template: Template, scope: Scope) -> str:
    """The text with every reference replaced by its value as text."""
    return "".join(piece if isinstance(piece, str) else as_text(resolve(piece, scope)) for piece in template)


def fill_value(template: Template, scope: Scope) -> Any:
    """The value of a template that is one reference, as it is; any other template is text."""
    if len(template) == 1 and isinstance(template[0], Ref):
        return resolve(template[0], scope)
    return fill(template, scope)


def resolve(ref: Ref, scope: Scope) -> Any:
    """The value a reference names, or `BadExpression`."""
    known = 3 if ref.path[0] == "steps" else 2
    value, done = scope(ref), list(ref.path[:known])
    for part in ref.path[known:]:
        value = _inside(value, part, ".".join(done))
        done.append(part)
    return value


def _inside(value: Any, part: str, place: str) -> Any:
    if isinstance(value, Mapping):
        if part in value:
            return value[part]
        names = ", ".join(_short(str(name)) for name in list(value)[:10]) or "nothing"
        raise BadExpression(f"{place} has no field {part!r}; it has {names}")
    if isinstance(value, list | tuple):
        if part.isdigit() and int(part) < len(value):
            return value[int(part)]
        raise BadExpression(f"{place} is a list of {len(value)}; it has no item {part}")
    raise BadExpression(f"{place} is neither a mapping nor a list, so it has no {part!r}")


def as_text(value: Any) -> str:
    """A value as it stands in a text: null is empty, text is itself, everything else is JSON.

    What JSON has no word for, such as a date, is its text.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    document = msgspec.json.encode(value, enc_hook=str)
    is_data = isinstance(value, bool | int | float | dict | list | tuple | set | frozenset)
    return document.decode() if is_data else str(msgspec.json.decode(document))


def _short(text: str) -> str:
    return shortened(text, 40)


# --- conditions ------------------------------------------------------------------------------------------------


class Condition(NamedTuple):
    """What Python's parser makes of a condition in which a name stands for each reference and literal."""

    tree: ast.expr
    operands: Mapping[str, Any]


_OPERATORS: Final = frozenset({"and", "or", "not", "in"})
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_OPERATIONS: Final = (ast.And, ast.Or, ast.Not, ast.Eq, ast.NotEq, ast.In, ast.NotIn)
_NODES: Final = (ast.Name, ast.Load, ast.List, ast.BoolOp, ast.UnaryOp, ast.Compare, *_OPERATIONS)
_OPERAND: Final = re.compile(
    r"""(?P<ref>\$\{[^{}]*\})
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<number>-?\d[\w.]*)
      | (?P<word>[^\W\d]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)
_NUMBER: Final = re.compile(r"-?\d{1,18}(\.\d{1,18})?", re.ASCII)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_NESTING: Final = re.compile(r"[(\[]|\bnot\b")
_MAX_NESTING: Final = 40


def parse_condition(text: str) -> Condition:
    """The condition in a text, or `BadExpression`. Names of its own leave Python nothing to look up or to call."""
    if len(text) > MAX_CONDITION:
        raise BadExpression(f"a condition has at most {MAX_CONDITION:,} characters")
    operands: dict[str, Any] = {}

    def named(match: re.Match[str]) -> str:
        if match[0] in _OPERATORS:
            return match[0]
        name = f"_{len(operands)}"
        operands[name] = _operand(str(match.lastgroup), match[0])
        return f" {name} "

    plain = " ".join(_OPERAND.sub(named, text).split())
    if len(_NESTING.findall(plain)) > _MAX_NESTING:
        raise BadExpression("it is nested too deeply")
    try:
        tree = ast.parse(plain, mode="eval").body
        if "#" not in plain and all(map(_is_known, ast.walk(tree))):
            return Condition(tree, operands)
    except (SyntaxError, ValueError):
        pass
    raise BadExpression(
        f"{_short(text)!r} is not a condition: compare values with ==, !=, in and not in, and join that with and, or"
        " and not"
    )


def _is_known(node: ast.AST) -> bool:
    return isinstance(node, _NODES) and (not isinstance(node, ast.Compare) or len(node.ops) == 1)


def _operand(kind: str, text: str) -> Any:
    if kind == "ref":
        return parse_ref(text[2:-1])
    if kind == "text":
        return _ESCAPED.sub(r"\1", text[1:-1])
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    raise BadExpression(f"{_short(text)!r} is not a value: write '{_short(text)}' or ${{vars.…}}")


def refs_of(condition: Condition) -> Iterator[Ref]:
    """Every reference in a condition."""
    return (operand for operand in condition.operands.values() if isinstance(operand, Ref))


def holds(condition: Condition, scope: Scope) -> bool:
    """Whether a condition is true. Empty texts and lists, 0, false and null are not."""
    return bool(_value(condition.tree, condition.operands, scope))


def _value(node: ast.AST, operands: Mapping[str, Any], scope: Scope) -> Any:
    match node:
        case ast.Name(name):
            operand = operands[name]
            return resolve(operand, scope) if isinstance(operand, Ref) else operand
        case ast.List(items):
            return [_value(item, operands, scope) for item in items]
        case ast.UnaryOp(_, inner):
            return not _value(inner, operands, scope)
        case ast.BoolOp(operator, parts):
            value: Any = None
            for part in parts:
                value = _value(part, operands, scope)
                if bool(value) is isinstance(operator, ast.Or):
                    break
            return value
        case ast.Compare(left, [operator], [right]):
            before, after = _value(left, operands, scope), _value(right, operands, scope)
            if isinstance(operator, ast.Eq | ast.NotEq):
                return _same(before, after) is isinstance(operator, ast.Eq)
            return _contains(after, before) is isinstance(operator, ast.In)
    raise AssertionError(node)


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, str) and isinstance(part, str):
        return part in whole
    if isinstance(whole, Mapping | list | tuple | set | frozenset):
        return any(_same(item, part) for item in whole)
    raise BadExpression("the right side of 'in' must be a list, a mapping, or text that may contain text")


def _same(left: Any, right: Any) -> bool:
    """Equal and of one kind: `true` is not 1, and the text '1' is not the number."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)
