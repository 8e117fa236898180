"""The values a run starts with: what was given, else the environment, else what the file says."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.executor.workflow.document import Variable, Workflow
from stepkeep.executor.workflow.nodes import Scalar, scalar_value, short
from stepkeep.executor.workflow.redaction import HIDDEN
from stepkeep.executor.workflow.scope import redactor_of


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """The variables as they are stored, secret ones hidden, and the secrets, which are not."""

    variables: dict[str, Any] = {}
    secrets: dict[str, Any] = {}


def start_values(workflow: Workflow, given: Mapping[str, str], environ: Mapping[str, str]) -> Values:
    """The values of a fresh run.

    Raises:
        InvalidInput: (`invalid_variable`) an unknown name, a value of the wrong kind, with a secret in it, or
            none at all; all are named.
    """
    values, problems = _values(workflow.variables, given, environ)
    problems = [*_unknown(given, [variable.name for variable in workflow.variables]), *problems]
    secret = workflow.secret_names
    found = Values(
        variables={name: HIDDEN if name in secret else value for name, value in values.items()},
        secrets={name: value for name, value in values.items() if name in secret},
    )
    problems += with_secrets(workflow, found.variables, found.secrets, environ)
    if problems:
        raise InvalidInput(f"{workflow.source}: {'; '.join(problems)}", code="invalid_variable")
    return found


def with_secrets(
    workflow: Workflow, variables: Mapping[str, Any], secrets: Mapping[str, Any], environ: Mapping[str, str]
) -> list[str]:
    """What is wrong with variables that hold a secret without being one: they could not be stored as they are."""
    redactor = redactor_of(workflow, secrets, environ)
    return [
        f"variable {name!r} holds the value of a secret, and could not be stored without it:"
        " take it out and put both together where they are used, or say secret: true in the file"
        for name, value in variables.items()
        if name not in workflow.secret_names and redactor.value(value) != value
    ]


def secret_values(
    workflow: Workflow, given: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """The secrets of a run that is resumed, which its checkpoints do not have; and what is wrong with them."""
    secret = [variable for variable in workflow.variables if variable.is_secret]
    problems = [
        f"variable {short(name)!r} has its value from the checkpoint; only secret ones are given again"
        for name in given
        if name not in workflow.secret_names
    ]
    values, more = _values(secret, given, environ)
    lost = [name for name, value in values.items() if value == HIDDEN]
    more += [f"variable {name!r} is secret and was not stored: give it with --var {name}=…" for name in lost]
    return values, [*problems, *more]


def _values(
    variables: Iterable[Variable], given: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    problems: list[str] = []
    for variable in variables:
        text = given.get(variable.name, environ.get(variable.env) if variable.env else None)
        if text is None and not variable.has_value:
            place = f" or in ${variable.env}" if variable.env else ""
            problems.append(
                f"variable {variable.name!r} has no value: give it with --var {variable.name}=…{place}"
            )
            continue
        try:
            values[variable.name] = variable.value if text is None else _as_declared(variable, _utf8(text))
        except ValueError as exc:
            problems.append(f"variable {variable.name!r} {exc}")
    return values, problems


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("is no UTF-8 text") from None
    return text


def _as_declared(variable: Variable, text: str) -> Any:
    """A given text as the kind of value that the file has there: text unless that is a number, a boolean or data."""
    default = variable.value
    if default is None or isinstance(default, str):
        return text
    if isinstance(default, dict | list):
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            value = None
        if type(value) is not type(default):
            raise ValueError(f"must be a {'list' if isinstance(default, list) else 'mapping'} in JSON")
        return value
    value = scalar_value(Scalar(text, False, 0))
    if isinstance(default, bool) or isinstance(value, bool):
        if type(value) is not type(default):
            raise ValueError(
                f"must be {'true or false' if isinstance(default, bool) else 'a number'}, {_not(variable, text)}"
            )
        return value
    if not isinstance(value, int | float) or (isinstance(default, int) and isinstance(value, float)):
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise ValueError(f"must be {kind}, {_not(variable, text)}")
    return value


def _not(variable: Variable, text: str) -> str:
    return "and is not" if variable.is_secret else f"not {short(text)!r}"


def _unknown(given: Iterable[str], known: list[str]) -> list[str]:
    return [
        f"there is no variable {short(name)!r}{_near(name, known)}" for name in given if name not in known
    ]


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f": did you mean {near[0]!r}?"
    return f": choose one of {', '.join(known)}" if known else ": the file has no vars"
