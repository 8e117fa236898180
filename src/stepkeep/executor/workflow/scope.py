"""The values a step sees: variables, its environment, and what the steps before it gave."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stepkeep.executor.steps import StepContext
from stepkeep.executor.workflow.checking import PASSED_ON
from stepkeep.executor.workflow.document import Kind, Setting, Step, Workflow
from stepkeep.executor.workflow.expressions import BadExpression, Ref, fill, refs_in, resolve
from stepkeep.executor.workflow.outputs import STREAMS, stream_text
from stepkeep.executor.workflow.processes import MAX_CAPTURE
from stepkeep.executor.workflow.redaction import Redactor, looks_secret, texts_of_secret

LoadBlob = Callable[[str], bytes]


class Given(msgspec.Struct, frozen=True, kw_only=True):
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
    """Hides the secret variables, and what of the environment has, or is passed on under, a name that looks secret."""
    values = [*secrets.values(), *(each.value for each in workflow.variables if each.is_secret)]
    texts = [text for value in values for text in texts_of_secret(value)]
    return Redactor([*texts, *(environ[name] for name in _secrets_passed_on(workflow, environ))])


def _secrets_passed_on(workflow: Workflow, environ: Mapping[str, str]) -> set[str]:
    """The variables of our own environment that steps get and nobody may see."""
    names: set[str] = set()
    for setting in (*workflow.env, *(setting for step in workflow.steps for setting in step.env)):
        used = [ref.path[1] for ref in refs_in(setting.template or ()) if ref.path[0] == "env"]
        used += [setting.name] if setting.template is None else []
        names |= {name for name in used if looks_secret(setting.name) or looks_secret(name)}
    return (names & environ.keys()) - set(PASSED_ON)


class StepValues:
    """What a completed step gave, by field."""

    def __init__(self, kind: Kind, output: Mapping[str, Any], load_blob: LoadBlob) -> None:
        self._kind = kind
        self._output = output
        self._load_blob = load_blob

    def at(self, path: tuple[str, ...]) -> Any:
        """The value at a path such as `output.items.0`, or `BadExpression`."""
        return resolve(Ref(("steps", "it", *path)), self)

    def value(self, ref: Ref) -> Any:
        field = ref.path[2]
        if field == "status":
            return "completed"
        if field == "exit_code":
            return self._output["exit_code"]
        if field in STREAMS:
            return self._stream(field)
        if self._kind is Kind.PYTHON:
            return self._output.get("value")
        return _from_json(self._stream("stdout"))

    def _stream(self, name: str) -> str:
        if self._output.get(f"{name}_is_cut"):
            size = self._output[f"{name}_bytes"]
            raise BadExpression(
                f"its {name} has {size:,} bytes, and the first {MAX_CAPTURE:,} are kept: write a file instead"
            )
        return stream_text(self._output, name, self._load_blob)


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise BadExpression(f"what it printed is no JSON: {str(exc)[:200]}") from None


class StepScope:
    """Everything one step may refer to."""

    def __init__(
        self, workflow: Workflow, step: Step, given: Given, context: StepContext, load_blob: LoadBlob
    ) -> None:
        self._workflow = workflow
        self._given = given
        self._context = context
        self._load_blob = load_blob
        self._defaults = {variable.name: variable.value for variable in workflow.variables}
        self._settings = {setting.name: setting for setting in (*workflow.env, *step.env)}

    def value(self, ref: Ref) -> Any:
        space, name = ref.path[0], ref.path[1]
        if space == "env":
            return self.environment(name)
        if space == "vars":
            return self._variable(name)
        return self._of_step(ref)

    def environment(self, name: str) -> str | None:
        """A variable of the step's environment; None when it is not set."""
        setting = self._settings.get(name, Setting(name))
        if setting.template is None:
            return self._given.environ.get(name)
        return fill(setting.template, _Outside(self, self._given.environ))

    def _variable(self, name: str) -> Any:
        if name not in self._workflow.secret_names:
            # A variable that came into the file since the run began has its default there; one that a skipped
            # step would have set has no value.
            return self._context.context.get(name, self._defaults.get(name))
        if name not in self._given.secrets:
            raise BadExpression(f"the secret variable {name!r} has no value: give it with --var {name}=…")
        return self._given.secrets[name]

    def _of_step(self, ref: Ref) -> Any:
        id, field = ref.path[1], ref.path[2]
        if id not in self._context.outputs:
            return "skipped" if field == "status" else None
        kind = self._workflow.step(id).kind
        try:
            return StepValues(kind, self._context.outputs[id], self._load_blob).value(ref)
        except BadExpression as exc:
            raise BadExpression(f"${{{ref}}}: {exc}") from None


class _Outside:
    """The same values, but the environment is the one from outside: so no setting can contain itself."""

    def __init__(self, scope: StepScope, environ: Mapping[str, str]) -> None:
        self._scope = scope
        self._environ = environ

    def value(self, ref: Ref) -> Any:
        return self._environ.get(ref.path[1]) if ref.path[0] == "env" else self._scope.value(ref)
