"""`${…}` in texts, and the conditions of `when`. Nothing is ever evaluated as code.

A reference is a path: `vars.NAME`, `env.NAME`, or `steps.ID.FIELD`, which may go on into the value. A condition
compares references and literals with `==`, `!=`, `in`, `not in`, joined by `and`, `or`, `not` and parentheses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

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


class Scope(Protocol):
    """Where values come from."""

    def value(self, ref: Ref) -> Any:
        """The value of `vars.NAME`, `env.NAME` or `steps.ID.FIELD`; the rest of the path is followed by `resolve`."""


# --- texts -----------------------------------------------------------------------------------------------------


def parse_template(text: str) -> Template:
    """The pieces of a text. `$${` stands for a plain `${`.

    Raises:
        BadExpression: a `${` that is not closed, or what it holds is not a reference.
    """
    pieces: list[str | Ref] = []
    at = 0
    for match in _REFERENCE.finditer(text):
        pieces.append(text[at : match.start()])
        at = match.end()
        if match[0] == "$${":
            pieces.append("${")
        elif not match[2]:
            raise BadExpression("'${' without '}'; write $${ for a plain ${")
        else:
            pieces.append(parse_ref(match[1]))
    return tuple(_joined([*pieces, text[at:]]))


def _joined(pieces: list[str | Ref]) -> Iterator[str | Ref]:
    """Texts side by side made one, empty ones left out."""
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        if text:
            yield text
        yield piece
        text = ""
    if text:
        yield text


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
    value, done = scope.value(ref), list(ref.path[:known])
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


class Literal(msgspec.Struct, frozen=True):
    value: Any


class Many(msgspec.Struct, frozen=True):
    items: tuple[Condition, ...]


class Not(msgspec.Struct, frozen=True):
    inner: Condition


class Both(msgspec.Struct, frozen=True):
    """Two sides and `and`, `or`, `==`, `!=` or `in` between them."""

    operator: str
    left: Condition
    right: Condition


Condition = Literal | Ref | Many | Not | Both

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<ref>\$\{[^{}]*\})
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<number>-?\d{1,18}(?:\.\d{1,18})?(?![\w.]))
      | (?P<operator>==|!=|\(|\)|\[|\]|,)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<other>\S.{0,9})
    )""",
    re.VERBOSE | re.DOTALL,
)
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_MAX_NESTING: Final = 40


def parse_condition(text: str) -> Condition:
    """The condition in a text, or `BadExpression` saying where it goes wrong."""
    if len(text) > MAX_CONDITION:
        raise BadExpression(f"a condition has at most {MAX_CONDITION:,} characters")
    return _Parser(text).whole()


class _Parser:
    """Recursive descent: or < and < not < comparison < operand."""

    def __init__(self, text: str) -> None:
        matches = list(_TOKEN.finditer(text.rstrip()))
        self._tokens = [(match.lastgroup or "", (match[match.lastgroup or 0])) for match in matches]
        self._at = 0
        self._nesting = 0

    def whole(self) -> Condition:
        condition = self._or()
        if self._at < len(self._tokens):
            raise BadExpression(f"{_short(self._tokens[self._at][1])!r} was not expected")
        return condition

    def _take(self, *texts: str) -> bool:
        kind, text = self._peek()
        if kind in ("operator", "word") and text in texts:
            self._at += 1
            return True
        return False

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "the end")

    def _or(self) -> Condition:
        left = self._and()
        while self._take("or"):
            left = Both("or", left, self._and())
        return left

    def _and(self) -> Condition:
        left = self._not()
        while self._take("and"):
            left = Both("and", left, self._not())
        return left

    def _not(self) -> Condition:
        if not self._take("not"):
            return self._comparison()
        self._enter()
        inner = Not(self._not())
        self._nesting -= 1
        return inner

    def _comparison(self) -> Condition:
        left = self._operand()
        for operator in ("==", "!=", "in"):
            if self._take(operator):
                return Both(operator, left, self._operand())
        if self._take("not"):
            if not self._take("in"):
                raise BadExpression("'not' between two values must be 'not in'")
            return Not(Both("in", left, self._operand()))
        return left

    def _operand(self) -> Condition:
        if self._take("("):
            self._enter()
            inner = self._or()
            self._expect(")")
            return inner
        if self._take("["):
            self._enter()
            items: list[Condition] = []
            while not self._take("]"):
                if items:
                    self._expect(",", leave=False)
                items.append(self._operand())
            self._nesting -= 1
            return Many(tuple(items))
        return self._atom()

    def _enter(self) -> None:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise BadExpression("it is nested too deeply")

    def _expect(self, text: str, *, leave: bool = True) -> None:
        if not self._take(text):
            raise BadExpression(f"{text!r} was expected before {_short(self._peek()[1])!r}")
        self._nesting -= leave

    def _atom(self) -> Condition:
        kind, text = self._peek()
        self._at += 1
        match kind:
            case "ref":
                return parse_ref(text[2:-1])
            case "text":
                return Literal(_ESCAPED.sub(r"\1", text[1:-1]))
            case "number":
                return Literal(json.loads(text) if not re.match(r"-?0\d", text) else float(text))
            case "word" if text in _CONSTANTS:
                return Literal(_CONSTANTS[text])
            case "word" if text not in ("and", "or", "not", "in"):
                raise BadExpression(f"{_short(text)!r} is not a value: write '{_short(text)}' or ${{vars.…}}")
        raise BadExpression(f"a value was expected before {_short(text)!r}")


def refs_of(condition: Condition) -> Iterator[Ref]:
    """Every reference in a condition."""
    match condition:
        case Ref():
            yield condition
        case Not(inner):
            yield from refs_of(inner)
        case Both(_, left, right):
            yield from refs_of(left)
            yield from refs_of(right)
        case Many(items):
            for item in items:
                yield from refs_of(item)


def holds(condition: Condition, scope: Scope) -> bool:
    """Whether a condition is true. Empty texts and lists, 0, false and null are not."""
    return bool(_value(condition, scope))


def _value(condition: Condition, scope: Scope) -> Any:
    match condition:
        case Ref():
            return resolve(condition, scope)
        case Literal(value):
            return value
        case Many(items):
            return [_value(item, scope) for item in items]
        case Not(inner):
            return not _value(inner, scope)
        case Both("and", left, right):
            return _value(left, scope) and _value(right, scope)
        case Both("or", left, right):
            return _value(left, scope) or _value(right, scope)
        case Both("in", left, right):
            return _contains(_value(right, scope), _value(left, scope))
        case Both(operator, left, right):
            return _same(_value(left, scope), _value(right, scope)) is (operator == "==")
    raise AssertionError(condition)


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
