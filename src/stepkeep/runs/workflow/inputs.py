"""The values of a run: those it starts with, and those a step sees (variables, its environment, earlier outputs)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.processes.child import MAX_CAPTURE
from stepkeep.runs.run_options import StepContext
from stepkeep.runs.workflow.definition import EnvSetting, StepKind, Variable, Workflow, WorkflowStep
from stepkeep.runs.workflow.expressions import BadExpression, Ref, as_text, fill, refs_in, resolve
from stepkeep.runs.workflow.parse import PASSED_ON
from stepkeep.secrets import HIDDEN, Redactor, has_secret, is_secret_name, shaped_secrets, texts_of_secret
from stepkeep.text import did_you_mean, shortened
from stepkeep.yaml_lines import Scalar, scalar_value

LoadBlob = Callable[[str], bytes]

_MAY_BE_KEY: Final = re.compile(r"(?=.*\d)\S{8,}")
"""A mere word beside a secret name, such as `basic` beside `AUTH_MODE`, opens nothing, and may stand anywhere else."""


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is given from outside, beside the file.

    Steps run in `folder`; `run` names the run to them. `secrets` are the values of secret variables, which are
    never stored. `environ` is our own environment.
    """

    folder: Path
    run: str
    agent_command: tuple[str, ...]
    secrets: Mapping[str, Any] = {}
    environ: Mapping[str, str] = {}


def redactor_of(workflow: Workflow, secrets: Mapping[str, Any], environ: Mapping[str, str]) -> Redactor:
    """Hides the secret variables, what of the environment has, or is passed on under, a name that looks secret, and
    what stands in the file beside such a name or has the shape of a secret."""
    values = [*secrets.values(), *(each.value for each in workflow.variables if each.is_secret)]
    texts = [text for value in values for text in texts_of_secret(value)]
    texts += _secrets_written_out(workflow)
    return Redactor([*texts, *(environ[name] for name in _secrets_passed_on(workflow, environ))])


def _secrets_written_out(workflow: Workflow) -> Iterator[str]:
    """What in the file is a secret by its shape, or by the name of the environment variable that it is for."""
    public = "\n".join(
        text for each in workflow.variables if each.is_public for text in texts_of_secret(each.value)
    )
    yield from (text for text in shaped_secrets(workflow.text) if text not in public)
    for setting in _settings(workflow):
        match setting.template:
            case (str(text),) if is_secret_name(setting.name) and _MAY_BE_KEY.fullmatch(text):
                yield text


def _settings(workflow: Workflow) -> Iterator[EnvSetting]:
    """All that steps get as environment variables."""
    yield from workflow.env
    for step in workflow.steps:
        yield from step.env


def _secrets_passed_on(workflow: Workflow, environ: Mapping[str, str]) -> set[str]:
    """The variables of our own environment that steps get and nobody may see."""
    names: set[str] = set()
    for setting in _settings(workflow):
        used = [ref.path[1] for ref in refs_in(setting.template) if ref.path[0] == "env"]
        used += [setting.name] if setting.value is None else []
        names |= {name for name in used if is_secret_name(setting.name) or is_secret_name(name)}
    return (names & environ.keys()) - set(PASSED_ON)


def value_of_step(kind: StepKind, output: Mapping[str, Any], field: str, load_blob: LoadBlob) -> Any:
    """What a completed step gave as `stdout`, `output` or another field, or `BadExpression`."""
    if field == "status":
        return "completed"
    if field == "exit_code":
        return output["exit_code"]
    if field == "output" and kind in (StepKind.PYTHON, StepKind.ASK):
        return output.get("value")
    name = "stdout" if field == "output" else field
    if output.get(f"{name}_is_cut"):
        size = output[f"{name}_bytes"]
        raise BadExpression(
            f"its {name} has {size:,} bytes, and the first {MAX_CAPTURE:,} are kept: write a file instead"
        )
    digest = output.get(f"{name}_blob")
    text = str(output.get(name, "")) if digest is None else load_blob(digest).decode("utf-8", "replace")
    text = text.rstrip("\n")  # as `$(…)` gives it in a shell
    if field != "output":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise BadExpression(f"what it printed is not JSON: {str(exc)[:200]}") from None


class StepScope(msgspec.Struct, frozen=True):
    """Everything one step may refer to."""

    workflow: Workflow
    step: WorkflowStep
    inputs: Inputs
    context: StepContext
    load_blob: LoadBlob

    def __call__(self, ref: Ref) -> Any:
        space, name = ref.path[0], ref.path[1]
        if space == "env":
            return self.environment(name)
        value = self._variable(name) if space == "vars" else self._of_step(ref)
        is_secret = space == "vars" and name in self.workflow.secret_names
        if not is_secret and HIDDEN in as_text(resolve(ref, lambda _: value)):
            raise BadExpression(
                f"${{{ref}}} has {HIDDEN} in the place of a secret, which is not kept with what steps give:"
                " pass the secret on as a variable, or in a file"
            )
        return value

    def environment(self, name: str) -> str | None:
        """A variable of the step's environment; None when it is not set."""
        settings = {setting.name: setting for setting in (*self.workflow.env, *self.step.env)}
        if name not in settings or settings[name].value is None:
            return self.inputs.environ.get(name)
        # References to the environment mean the one from outside: so no setting can contain itself.
        environ = self.inputs.environ
        return fill(
            settings[name].template,
            lambda ref: environ.get(ref.path[1]) if ref.path[0] == "env" else self(ref),
        )

    def _variable(self, name: str) -> Any:
        if name not in self.workflow.secret_names:
            # A variable that came into the file since the run began has its default there; one that a skipped
            # step would have set has no value.
            defaults = {variable.name: variable.value for variable in self.workflow.variables}
            return self.context.context.get(name, defaults.get(name))
        if name not in self.inputs.secrets:
            raise BadExpression(f"the secret variable {name!r} has no value: give it with --var {name}=…")
        return self.inputs.secrets[name]

    def _of_step(self, ref: Ref) -> Any:
        id, field = ref.path[1], ref.path[2]
        if id not in self.context.outputs:
            return "skipped" if field == "status" else None
        try:
            kind = self.workflow.step(id).kind
            return value_of_step(kind, self.context.outputs[id], field, self.load_blob)
        except BadExpression as exc:
            raise BadExpression(f"${{{ref}}}: {exc}") from None


class StartValues(msgspec.Struct, frozen=True, kw_only=True):
    """The variables as they are stored, secret ones hidden, and the secrets, which are not."""

    variables: dict[str, Any] = {}
    secrets: dict[str, Any] = {}


def start_values(workflow: Workflow, given: Mapping[str, str], environ: Mapping[str, str]) -> StartValues:
    """The values of a fresh run.

    Raises:
        InvalidInput: (`invalid_variable`) an unknown name, a value of the wrong kind, with a secret in it, or
            none at all; all are named.
    """
    values, problems = _values(workflow.variables, given, environ)
    known = [variable.name for variable in workflow.variables]
    choice = f"choose one of {', '.join(known)}" if known else "the file has no vars"
    problems = [
        f"there is no variable {shortened(name)!r}{did_you_mean(name, known, choice)}"
        for name in given
        if name not in known
    ] + problems
    secret = workflow.secret_names
    found = StartValues(
        variables={name: HIDDEN if name in secret else value for name, value in values.items()},
        secrets={name: value for name, value in values.items() if name in secret},
    )
    problems += with_secrets(workflow, found.variables, found.secrets, environ)
    problems += _unexpected_secrets(workflow, found.variables)
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


def _unexpected_secrets(workflow: Workflow, variables: Mapping[str, Any]) -> list[str]:
    """Which variables were given something that looks like a secret, though neither name nor file said so."""
    may_hold = workflow.secret_names | {each.name for each in workflow.variables if each.is_public}
    return [
        f"variable {name!r} holds what looks like a secret: say secret: true in the file, so that it is not"
        " stored, or secret: false to store it as it is"
        for name, value in variables.items()
        if name not in may_hold and has_secret(value)
    ]


def secret_values(
    workflow: Workflow, given: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """The secrets of a run that is resumed, which its checkpoints do not have; and what is wrong with them."""
    secret = [variable for variable in workflow.variables if variable.is_secret]
    problems = [
        f"variable {shortened(name)!r} has its value from the checkpoint; only secret ones are given again"
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
            values[variable.name] = variable.value if text is None else _as_declared(variable, text)
        except ValueError as exc:
            problems.append(f"variable {variable.name!r} {exc}")
    return values, problems


def _as_declared(variable: Variable, text: str) -> Any:
    """A given text as the kind of value that the file has there: text unless that is a number, a boolean or data."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("is not valid UTF-8 text") from None
    default = variable.value
    if default is None or isinstance(default, str):
        return text
    value: Any
    if isinstance(default, dict | list):
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            value = None
        if type(value) is not type(default):
            raise ValueError(f"must be a {'list' if isinstance(default, list) else 'mapping'} in JSON")
        return value
    value = scalar_value(Scalar(text, False, 0))
    kinds, what = _KINDS[type(default)]
    if type(value) not in kinds:
        found = "and is not" if variable.is_secret else f"not {shortened(text)!r}"
        raise ValueError(f"must be {what}, {found}")
    return value


_KINDS: Final[Mapping[type, tuple[tuple[type, ...], str]]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
}
