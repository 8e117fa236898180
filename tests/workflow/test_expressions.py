"""`${…}` and `when`: what they mean, and that nothing else is possible."""

from __future__ import annotations

from typing import Any

import pytest

from stepkeep.runs.workflow.expressions import (
    BadExpression,
    Ref,
    fill,
    fill_value,
    holds,
    parse_condition,
    parse_template,
)


class Values:
    """Variables alone."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __call__(self, ref: Ref) -> Any:
        return self._values[ref.path[1]]


VALUES = Values(x="a b", n=3, none=None, yes=True, items=[{"name": "é"}, 2], empty="", map={"k": {"v": 1.5}})


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("plain $HOME $", "plain $HOME $"),
        ("${vars.x}-${ vars.n }", "a b-3"),
        ("$${vars.x} $${", "${vars.x} ${"),
        ("${vars.none}${vars.yes}", "true"),
        ("${vars.items}", '[{"name":"é"},2]'),
        ("${vars.items.0.name} ${vars.map.k.v}", "é 1.5"),
    ],
)
def test_texts(text: str, filled: str) -> None:
    """References are replaced by their values, `$${` is a plain `${`, everything else stays."""
    assert fill(parse_template(text), VALUES) == filled


def test_a_lone_reference_keeps_its_type() -> None:
    """Where a value is wanted, one reference is that value and not its text."""
    assert fill_value(parse_template("${vars.items}"), VALUES) == [{"name": "é"}, 2]
    assert fill_value(parse_template("${vars.n} "), VALUES) == "3 "


@pytest.mark.parametrize(
    "text",
    [
        "${",
        "${vars.x",
        "${}",
        "${vars}",
        "${HOME}",
        "${vars.}",
        "${vars.x y}",
        "${steps.a.body}",
        "${env.A.b}",
    ],
)
def test_texts_that_are_refused(text: str) -> None:
    """What is no reference is an error, never taken as it is."""
    with pytest.raises(BadExpression):
        parse_template(text)


@pytest.mark.parametrize("path", ["items.2", "items.x", "map.z", "x.y", "n.0"])
def test_paths_that_lead_nowhere(path: str) -> None:
    """A path into a value that has no such part says so."""
    with pytest.raises(BadExpression):
        fill(parse_template(f"${{vars.{path}}}"), VALUES)


@pytest.mark.parametrize(
    ("text", "is_true"),
    [
        ("${vars.x} == 'a b'", True),
        ("${vars.x} != 'a b'", False),
        ('${vars.x} == "a b" and ${vars.n} == 3', True),
        ("${vars.n} == '3'", False),
        ("${vars.yes} == 1", False),
        ("${vars.yes}", True),
        ("not ${vars.empty}", True),
        ("${vars.n} in [1, 2, 3.0]", True),
        ("${vars.n} not in [1, 2]", True),
        ("'b' in ${vars.x}", True),
        ("'k' in ${vars.map}", True),
        ("${vars.none} == null or false", True),
        ("false and false or true", True),
        ("not (true or ${vars.none.never})", False),
        ("'it\\'s' == \"it's\"", True),
        ("-1.5 == -1.5", True),
        ("[] == []", True),
        ("(${vars.none} or 'x') == 'x'", True),
        ("'# 1' == '# 1'", True),
        ("true and\n  not false", True),
    ],
)
def test_conditions(text: str, is_true: bool) -> None:
    """Comparisons are strict about kinds; and, or and not bind as usual and stop early."""
    assert holds(parse_condition(text), VALUES) is is_true


@pytest.mark.parametrize(
    "text",
    [
        "",
        "==",
        "${vars.n} = 3",
        "${vars.n} == ",
        "${vars.n} < 3",
        "__import__('os')",
        "x",
        "'open",
        "(true",
        "[1 2]",
        "true true",
        "1 == 1 == 1",
        "not in [1]",
        "'a' not 'b'",
        "(" * 100 + "true" + ")" * 100,
        "not " * 100 + "true",
        "true or " * 500 + "true",
        "${vars.n}.real",
        "1 if true else 2",
        "true # why",
        "_0",
        "(true := 1)",
        "(1, 2)",
        "1_000",
        "0x1",
        "b'a'",
        "'a' 'b'",
        "1 is 1",
        "- ${vars.n}",
    ],
)
def test_conditions_that_are_refused(text: str) -> None:
    """There is no other syntax, and no depth that could be abused."""
    with pytest.raises(BadExpression):
        parse_condition(text)


def test_in_needs_something_that_contains() -> None:
    """`in` a number is an error, not false."""
    with pytest.raises(BadExpression):
        holds(parse_condition("1 in ${vars.n}"), VALUES)
