"""Whether the parts of a workflow fit each other: ids, order, and what every expression refers to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from stepkeep.executor.plan import PlanStep, plan_problems
from stepkeep.executor.workflow.document import Setting, Step, Workflow
from stepkeep.executor.workflow.expressions import Ref, parse_template, refs_in, refs_of
from stepkeep.executor.workflow.kinds import texts_in
from stepkeep.executor.workflow.redaction import looks_secret

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

Found = Iterator[tuple[int | None, str]]


def check(workflow: Workflow, *, unread: frozenset[str] = frozenset()) -> Found:
    """Everything that does not fit, as (line, message).

    `unread` are the ids of steps that are wrong in themselves. What they would have given is not missed.
    """
    steps = workflow.steps
    yield from _double_ids(steps)
    yield from _order(steps, unread)
    yield from _common_environment(workflow)
    before = ancestors(steps)
    names = {variable.name for variable in workflow.variables}
    for step in steps:
        captured = {
            capture.name for other in steps if other.id in before[step.id] for capture in other.capture
        }
        known = {other.id: other.id in before[step.id] for other in steps} | dict.fromkeys(unread, True)
        for what, ref in references(step):
            if unread and ref.path[0] == "vars":
                continue
            problem = _unknown(ref, names | captured, known, (*workflow.env, *step.env), steps)
            yield from _from(step.line, f"step {step.id!r}: {what}", problem)
        for capture in step.capture:
            yield from _from(
                step.line, f"step {step.id!r}: capture", _secret(capture.name, workflow, is_declared=names)
            )


def _secret(name: str, workflow: Workflow, *, is_declared: set[str]) -> str | None:
    """Why a step cannot set a variable: what it sets is stored."""
    if name in workflow.secret_names:
        return f"{name} is a secret, which no step can set"
    if looks_secret(name) and name not in is_declared:
        return (
            f"{name} looks like a secret, and what a step sets is stored: choose another name,"
            f" or declare it in vars with secret: false"
        )
    return None


def _common_environment(workflow: Workflow) -> Found:
    names = {variable.name for variable in workflow.variables}
    for setting in workflow.env:
        for ref in refs_in(setting.template or ()):
            what = f"env.{setting.name}"
            if ref.path[0] == "steps":
                yield None, f"{what}: ${{{ref}}} is not known to all steps: set it in the env of a step"
            else:
                yield from _from(None, what, _unknown(ref, names, {}, workflow.env, ()))


def _from(line: int | None, what: str, problem: str | None) -> Found:
    if problem is not None:
        yield line, f"{what}: {problem}"


def references(step: Step) -> Iterator[tuple[str, Ref]]:
    """Every reference in a step, with the key it stands under."""
    yield from ((step.kind.value, ref) for ref in refs_in(step.template))
    yield from (("stdin", ref) for ref in refs_in(step.stdin or ()))
    for text in texts_in(step.arguments):
        yield from (("with", ref) for ref in refs_in(parse_template(text)))
    for setting in step.env:
        yield from ((f"env.{setting.name}", ref) for ref in refs_in(setting.template or ()))
    if step.when is not None:
        yield from (("when", ref) for ref in refs_of(step.when))


def _double_ids(steps: Iterable[Step]) -> Found:
    lines: dict[str, int] = {}
    for step in steps:
        if step.id in lines:
            yield step.line, f"the id {step.id!r} is already that of the step in line {lines[step.id]}"
        lines.setdefault(step.id, step.line)


def _order(steps: tuple[Step, ...], unread: frozenset[str]) -> Found:
    lines = {step.id: step.line for step in steps}
    for step in steps:
        for need in step.needs:
            if need not in lines and need not in unread:
                yield (
                    step.line,
                    f"step {step.id!r} needs {need!r}, and there is no such step{_near(need, lines)}",
                )
    plan = [
        PlanStep(id=step.id, dependencies=tuple(need for need in step.needs if need in lines))
        for step in steps
    ]
    if plan and len(lines) == len(steps):
        yield from ((lines[problem.rpartition(" -> ")[2]], problem) for problem in plan_problems(plan))


def ancestors(steps: tuple[Step, ...]) -> Mapping[str, frozenset[str]]:
    """For each step the steps that are done before it starts."""
    needs = {step.id: step.needs for step in steps}
    found: dict[str, frozenset[str]] = {}
    for step in steps:
        before: set[str] = set()
        rest = list(step.needs)
        while rest:
            name = rest.pop()
            if name not in before and name in needs:
                before.add(name)
                rest += needs[name]
        found[step.id] = frozenset(before)
    return found


def _unknown(
    ref: Ref,
    variables: set[str],
    steps: Mapping[str, bool],
    env: Iterable[Setting],
    all_steps: Iterable[Step],
) -> str | None:
    """Why a reference will have no value; None when it will."""
    space, name = ref.path[0], ref.path[1]
    if space == "vars":
        if name in variables:
            return None
        if any(capture.name == name for step in all_steps for capture in step.capture):
            return f"vars.{name} is set by a step that is not sure to be done before: add it to needs"
        return f"there is no variable {name!r}{_near(name, variables)}"
    if space == "env":
        allowed = {*PASSED_ON, *(setting.name for setting in env)}
        return None if name in allowed else f"env.{name} is not allowed: name {name} in env first"
    if name not in steps:
        return f"there is no step {name!r}{_near(name, steps)}"
    return None if steps[name] else f"step {name!r} is not sure to be done before: add it to needs"


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f": did you mean {near[0]!r}?" if near else ""
