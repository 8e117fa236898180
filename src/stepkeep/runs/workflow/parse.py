"""Reading a workflow file: everything that is wrong with it at once, each with its line, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from stepkeep.errors import InvalidInput
from stepkeep.runs.plan import PlanStep, RetryPolicy, plan_problems
from stepkeep.runs.workflow import field_values as fields
from stepkeep.runs.workflow.definition import (
    EnvSetting,
    InvalidWorkflow,
    StepKind,
    Variable,
    Workflow,
    WorkflowProblem,
    WorkflowStep,
)
from stepkeep.runs.workflow.expressions import (
    BadExpression,
    Ref,
    parse_condition,
    parse_template,
    refs_in,
    refs_of,
)
from stepkeep.runs.workflow.field_values import InvalidValue, texts_in
from stepkeep.secrets import has_secret, is_secret_name
from stepkeep.text import did_you_mean, shortened
from stepkeep.yaml_lines import (
    Items,
    Node,
    Scalar,
    Section,
    Unreadable,
    parse,
    read_text,
    shown,
)

T = TypeVar("T")
P = ParamSpec("P")

MAX_PROBLEMS: Final = 50
MAX_STEPS: Final = 1000
MAX_ATTEMPTS: Final = 1000
DEFAULT_ATTEMPTS: Final = 3

_FIELDS: Final = {
    "vars": "variables",
    "agent": "agent_command",
    "test": "is_test",
    "with": "arguments",
    "timeout": "timeout_seconds",
}
"""The fields that keys of a workflow and its steps are for, where they have another name."""

_ONLY_FOR: Final = {
    "with": (StepKind.PYTHON,),
    "stdin": (StepKind.SHELL, StepKind.AGENT),
    "allow_failure": (StepKind.SHELL, StepKind.AGENT, StepKind.ASK),
    "env": (StepKind.SHELL, StepKind.PYTHON, StepKind.AGENT),
    "retry": (StepKind.SHELL, StepKind.PYTHON, StepKind.AGENT),
}
"""Keys of a step that not every kind has."""

_RETRY: Final = {"attempts": "attempts", "delay": "delay_seconds", "factor": "factor"}
_QUOTE: Final = ("'", '"')
_CLEANUP: Final = ("enabled", "retention_days")
_RETENTION: Final = (
    "keep_last",
    "max_count",
    "keep_within",
    "keep_hourly",
    "keep_daily",
    "keep_weekly",
    "keep_manual",
    "keep_tags",
    "keep_terminal",
    "max_age",
    "max_bytes",
)

Entries = Mapping[str, tuple[int, Node]]
Readers = Mapping[str, Callable[[Node], Any]]


def read_workflow(path: Path) -> Workflow:
    """The workflow in a file.

    Raises:
        InvalidWorkflow: it cannot be read or run; `problems` has all that is wrong.
    """
    try:
        text = read_text(path)
    except Unreadable as exc:
        raise InvalidWorkflow((WorkflowProblem(str(path), exc.line, f"the file {exc.message}"),)) from exc
    return parse_workflow(text, source=str(path))


def parse_workflow(text: str, *, source: str) -> Workflow:
    """The workflow in a text; `source` names it in messages. Raises as `read_workflow`."""
    try:
        root = parse(text)
    except Unreadable as exc:
        raise InvalidWorkflow((WorkflowProblem(source, exc.line, f"the file {exc.message}"),)) from exc
    reader = _WorkflowReader(source)
    workflow = reader.workflow(root, text)
    if workflow is not None:
        _check(workflow, reader)
    if reader.problems or workflow is None:
        raise InvalidWorkflow(tuple(sorted(reader.problems, key=lambda problem: problem.line or 0)))
    return workflow


class _WorkflowReader:
    """Collects what is wrong with one file. Stops at `MAX_PROBLEMS`, so that a hostile file costs little."""

    def __init__(self, source: str) -> None:
        self.problems: list[WorkflowProblem] = []
        self.unread: frozenset[str] = frozenset()
        self._source = source

    def problem(self, line: int | None, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(WorkflowProblem(self._source, line, message))
        elif len(self.problems) == MAX_PROBLEMS:
            self.problems.append(WorkflowProblem(self._source, line, "there are more problems"))

    def note(self, line: int | None, what: str, problem: str | None) -> None:
        if problem is not None:
            self.problem(line, f"{what}: {problem}")

    def _read(
        self,
        what: str,
        line: int,
        read: Callable[Concatenate[Node, P], T],
        node: Node,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | None:
        """What `read` makes of a node, None if it cannot; then the problem is noted under the name `what`."""
        try:
            return read(node, *args, **kwargs)
        except InvalidValue as exc:
            self.problem(exc.line or line, f"{what}{': ' if str(exc).startswith(_QUOTE) else ' '}{exc}")
        except BadExpression as exc:
            self.problem(line, f"{what}: {exc}")
        except InvalidInput as exc:
            self.problem(line, f"{what}: {exc.message}")
        return None

    def _entries(self, section: Section, known: Iterable[str], where: str = "") -> Entries:
        """The entries of a section by name; repeated ones, and where names are known others, are noted and left out."""
        names = tuple(known)
        found: dict[str, tuple[int, Node]] = {}
        for key, node in section.entries:
            name = shortened(key.text)
            if names and key.text not in names:
                hint = did_you_mean(key.text.lower(), names, f"it takes {', '.join(names)}")
                self.problem(key.line, f"unknown key {name!r}{where}{hint}")
            elif key.text in found:
                self.problem(key.line, f"{name!r} of line {found[key.text][0]} is given again{where}")
            else:
                found[key.text] = (key.line, node)
        return found

    def _values(self, entries: Entries, readers: Readers, prefix: str = "") -> dict[str, Any]:
        return {
            key: self._read(f"{prefix}{key}", line, readers[key], node)
            for key, (line, node) in entries.items()
        }

    def _section(self, node: Node, readers: Readers, where: str) -> dict[str, Any]:
        """What the readers make of the entries of a section that is at `where`."""
        entries = self._entries(fields.as_section(node), readers, f" in {where}")
        return self._values(entries, readers, f"{where}.")

    # --- the file

    def workflow(self, root: Node | None, text: str) -> Workflow | None:
        if not isinstance(root, Section):
            found = "and it is empty" if root is None else f"not {shown(root)}"
            self.problem(
                None if root is None else root.line, f"a workflow has the keys name and steps, {found}"
            )
            return None
        readers: Readers = {
            "name": fields.as_name,
            "vars": self._variables,
            "env": fields.as_settings,
            "agent": self._agent,
            "cleanup": self._cleanup,
            "test": fields.as_flag,
            "checkpoint": self._checkpoint,
            "steps": self._steps,
        }
        entries = self._entries(root, readers)
        for required in ("name", "steps"):
            if required not in entries:
                self.problem(root.line, f"the key {required!r} is missing")
        values = self._values(entries, readers)
        retention = values.pop("checkpoint", None) or {}
        return Workflow(
            **{"name": "", "steps": (), **_fields(values)},
            source=self._source,
            text=text,
            profile=retention.pop("profile", None),
            retention=retention or None,
        )

    def _variables(self, node: Node) -> tuple[Variable, ...]:
        section = fields.as_section(node)
        self._entries(section, (), " in vars")
        read = (self._named_variable(key, value) for key, value in section.entries)
        return tuple(variable for variable in read if variable is not None)

    def _named_variable(self, key: Scalar, node: Node) -> Variable | None:
        name = self._read("vars", key.line, fields.as_variable, key)
        return None if name is None else self._read(f"vars.{name}", key.line, self._variable, node, name)

    def _variable(self, node: Node, name: str) -> Variable:
        if not isinstance(node, Section):
            value = fields.as_data(node)
            return Variable(name=name, value=value, is_secret=is_secret_name(name) or has_secret(value))
        readers: Readers = {
            "value": fields.as_data,
            "secret": fields.as_flag,
            "env": fields.as_environment_name,
        }
        given = self._section(node, readers, f"vars.{name}")
        env, value = given.get("env"), given.get("value")
        looks_secret = is_secret_name(name) or is_secret_name(env or "") or has_secret(value)
        return Variable(
            name=name,
            value=value,
            has_value="value" in given,
            is_secret=given.get("secret", looks_secret),
            is_public=given.get("secret") is False,
            env=env,
        )

    def _agent(self, node: Node) -> tuple[str, ...] | None:
        return self._section(node, {"command": fields.as_words}, "agent").get("command")

    def _cleanup(self, node: Node) -> dict[str, Any]:
        return self._rules(
            node, {key: partial(fields.as_cleanup_rule, key=key) for key in _CLEANUP}, "cleanup"
        )

    def _checkpoint(self, node: Node) -> dict[str, Any]:
        readers: Readers = {key: partial(fields.as_retention_rule, key=key) for key in _RETENTION}
        return self._rules(node, {"profile": fields.as_profile, **readers}, "checkpoint")

    def _rules(self, node: Node, readers: Readers, where: str) -> dict[str, Any]:
        rules = self._section(node, readers, where).values()
        return {key: value for rule in rules for key, value in (rule or {}).items()}

    # --- steps

    def _steps(self, node: Node) -> tuple[WorkflowStep, ...]:
        if not isinstance(node, Items):
            raise InvalidValue(f"must be a list, not {shown(node)}")
        if not node.nodes:
            raise InvalidValue("has none: a workflow needs at least one step")
        if len(node.nodes) > MAX_STEPS:
            raise InvalidValue(f"has {len(node.nodes):,}; at most {MAX_STEPS:,} are possible")
        ids = [_id_of(item, number) for number, item in enumerate(node.nodes, start=1)]
        steps = [self._step(item, ids, at) for at, item in enumerate(node.nodes)]
        self.unread = frozenset(id for id, step in zip(ids, steps, strict=True) if step is None)
        return tuple(step for step in steps if step is not None)

    def _step(self, node: Node, ids: list[str], at: int) -> WorkflowStep | None:
        where = f"step {shortened(ids[at])!r}"
        if not isinstance(node, Section):
            self.problem(
                node.line, f"{where} must be a section with shell, python, agent or ask, not {shown(node)}"
            )
            return None
        readers: Readers = {
            "id": fields.as_id,
            "name": fields.as_text,
            "shell": fields.as_shell_command,
            "python": fields.as_function,
            "agent": fields.as_command,
            "ask": fields.as_command,
            "with": fields.as_arguments,
            "needs": fields.as_ids,
            "retry": partial(self._retry, where=where),
            "timeout": fields.as_timeout,
            "env": fields.as_settings,
            "capture": fields.as_captures,
            "when": fields.as_condition,
            "stdin": fields.as_template,
            "allow_failure": fields.as_flag,
        }
        entries = self._entries(node, readers, f" in {where}")
        values = self._values(entries, readers, f"{where}: ")
        given = [kind for kind in StepKind if kind in entries]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            self.problem(
                node.line, f"{where} must have exactly one of shell, python, agent and ask, not {found}"
            )
            return None
        kind = given[0]
        for key, kinds in _ONLY_FOR.items():
            if key in entries and kind not in kinds:
                self.problem(entries[key][0], f"{where}: {key} is for a {' or '.join(kinds)} step")
        command = values.pop(kind) or ""
        before = tuple(ids[at - 1 : at]) if at else ()
        chosen = {"name": ids[at], "needs": before, **_fields(values), "id": ids[at]}
        return WorkflowStep(**chosen, line=node.line, kind=kind, command=command)

    def _retry(self, node: Node, where: str) -> RetryPolicy:
        """A number of attempts, or a section."""
        if isinstance(node, Scalar):
            return RetryPolicy(attempts=fields.as_count(node, MAX_ATTEMPTS))
        readers: Readers = {
            "attempts": partial(fields.as_count, most=MAX_ATTEMPTS),
            "delay": fields.as_seconds,
            "factor": fields.as_factor,
        }
        section = fields.as_section(node, "a number or a section")
        entries = self._entries(section, readers, f" in retry of {where}")
        given = self._values(entries, readers, f"{where}: retry.")
        chosen = {_RETRY[key]: value for key, value in given.items() if value is not None}
        return RetryPolicy(**{"attempts": DEFAULT_ATTEMPTS, **chosen})


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that were read, by the field they are for; what could not be read, or is empty, has its default."""
    return {_FIELDS.get(key, key): value for key, value in values.items() if value not in (None, "")}


def _id_of(node: Node, number: int) -> str:
    """The id a step gives itself, or its place, so that every step can be named in messages."""
    if isinstance(node, Section):
        for key, value in node.entries:
            if key.text == "id" and isinstance(value, Scalar) and not value.is_null and value.text:
                return value.text
    return f"step-{number}"


PASSED_ON: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "LOGNAME",
    "SHELL",
)
"""What every step gets of our own environment."""


def _check(workflow: Workflow, reader: _WorkflowReader) -> None:
    """Note everything that does not fit together. What steps that could not be read would have given is not missed."""
    steps, unread = workflow.steps, reader.unread
    _check_order(steps, reader)
    declared = {variable.name for variable in workflow.variables}
    for setting in workflow.env:
        for ref in refs_in(setting.template):
            if ref.path[0] == "steps":
                problem: str | None = f"${{{ref}}} is not known to all steps: set it in the env of a step"
            else:
                problem = _unknown(ref, declared, {}, workflow.env, ())
            reader.note(None, f"env.{setting.name}", problem)
    needs = {step.id: step.needs for step in steps}
    for step in steps:
        before = _ancestors(step, needs)
        captured = {capture.name for other in steps if other.id in before for capture in other.capture}
        known = {other.id: other.id in before for other in steps} | dict.fromkeys(unread, True)
        for what, ref in references(step):
            if not unread or ref.path[0] != "vars":
                problem = _unknown(ref, declared | captured, known, (*workflow.env, *step.env), steps)
                reader.note(step.line, f"step {step.id!r}: {what}", problem)
        for capture in step.capture:
            problem = _not_to_be_set(capture.name, workflow, declared)
            reader.note(step.line, f"step {step.id!r}: capture", problem)


def _check_order(steps: tuple[WorkflowStep, ...], reader: _WorkflowReader) -> None:
    lines: dict[str, int] = {}
    for step in steps:
        if step.id in lines:
            reader.problem(
                step.line, f"the id {step.id!r} is already that of the step in line {lines[step.id]}"
            )
        lines.setdefault(step.id, step.line)
    for step in steps:
        for need in step.needs:
            if need not in lines and need not in reader.unread:
                hint = did_you_mean(need, lines)
                reader.problem(step.line, f"step {step.id!r} needs {need!r}, and there is no such step{hint}")
    if steps and len(lines) == len(steps):
        known = [(step.id, tuple(need for need in step.needs if need in lines)) for step in steps]
        for problem in plan_problems([PlanStep(id, dependencies=needs) for id, needs in known]):
            reader.problem(lines[problem.rpartition(" -> ")[2]], problem)


def _not_to_be_set(name: str, workflow: Workflow, declared: set[str]) -> str | None:
    """Why a step cannot set a variable: what it sets is stored."""
    if name in workflow.secret_names:
        return f"{name} is a secret, which no step can set"
    if is_secret_name(name) and name not in declared:
        return (
            f"{name} looks like a secret, and what a step sets is stored: choose another name,"
            f" or declare it in vars with secret: false"
        )
    return None


def references(step: WorkflowStep) -> Iterator[tuple[str, Ref]]:
    """Every reference in a step, with the key it stands under."""
    texts = [("with", text) for text in texts_in(step.arguments)]
    if step.kind is not StepKind.PYTHON:
        texts += [(step.kind.value, step.command), ("stdin", step.stdin or "")]
    for key, text in texts:
        yield from ((key, ref) for ref in refs_in(parse_template(text)))
    for setting in step.env:
        yield from ((f"env.{setting.name}", ref) for ref in refs_in(setting.template))
    if step.when is not None:
        yield from (("when", ref) for ref in refs_of(parse_condition(step.when)))


def _ancestors(step: WorkflowStep, needs: Mapping[str, tuple[str, ...]]) -> set[str]:
    """The steps that are done before a step starts."""
    before: set[str] = set()
    rest = list(step.needs)
    while rest:
        name = rest.pop()
        if name not in before and name in needs:
            before.add(name)
            rest += needs[name]
    return before


def _unknown(
    ref: Ref,
    variables: set[str],
    steps: Mapping[str, bool],
    env: Iterable[EnvSetting],
    all_steps: Iterable[WorkflowStep],
) -> str | None:
    """Why a reference will have no value; None when it will."""
    space, name = ref.path[0], ref.path[1]
    if space == "vars":
        if name in variables:
            return None
        if any(capture.name == name for step in all_steps for capture in step.capture):
            return f"vars.{name} is set by a step that is not sure to be done before: add it to needs"
        return f"there is no variable {name!r}{did_you_mean(name, variables)}"
    if space == "env":
        allowed = {*PASSED_ON, *(setting.name for setting in env)}
        return None if name in allowed else f"env.{name} is not allowed: name {name} in env first"
    if name not in steps:
        return f"there is no step {name!r}{did_you_mean(name, steps)}"
    return None if steps[name] else f"step {name!r} is not sure to be done before: add it to needs"
