"""Workflow files that are wrong: everything is told at once, with its line, before anything runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepkeep.runs.workflow.definition import InvalidWorkflow, StepKind
from stepkeep.runs.workflow.parse import parse_workflow
from tests.workflow.flows import Flows

GOLDEN = Path(__file__).parents[1] / "data" / "golden"

MANY = """\
name: wrong
varz: {a: 1}
vars:
  a: 1
  a: 2
  b: "${vars.a}"
  "c d": 1
  s: {secrt: true}
env: [PATH, "A-B"]
test: maybe
cleanup: {retention_days: -1, days: 3}
checkpoint: {keep_last: 0, profile: nightly, keep_within: soon}
steps:
  - id: one
    shell: echo ${vars.missing} ${HOME}
  - id: one
    shel: echo
  - id: two
    needs: [three, on]
    shell: echo ${vars.aa} ${steps.one.stdin}
    timeout: soon
    retry: {attempts: 0, delay: 1 fortnight}
  - python: os.getcwd
    stdin: text
  - agent: ""
    when: "${vars.a} = 1"
  - just text
  - id: "a b"
    shell: echo $((${vars.a} + 1))
    with: {x: 1}
    capture: {x: body}
"""


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidWorkflow) as caught:
        parse_workflow(text, source="flow.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_all_problems_are_told_at_once(flows: Flows) -> None:
    """Every mistake of a file is named with its line, on stderr, and nothing is made or run."""
    flows.write(MANY)
    done = flows.here("run", "flow.yaml")
    assert (done.code, done.out) == (2, "")
    assert not flows.file.exists()
    told = done.err.replace(f"{flows.folder}/", "")
    assert told == (GOLDEN / "run_problems.txt").read_text(encoding="utf-8")


def test_problems_as_json(flows: Flows) -> None:
    """With --json they are one error with a stable code."""
    flows.write(MANY)
    error = flows.here("run", "flow.yaml", "--json").error
    assert error["code"] == "invalid_workflow"
    assert "flow.yaml:2: unknown key 'varz'" in error["message"]


def test_what_refers_to_each_other_must_fit() -> None:
    """Ids, needs and references are checked against each other."""
    found = problems(
        """\
name: wrong
vars: {mode: x}
steps:
  - id: a
    shell: echo
    needs: []
  - id: b
    shell: echo ${steps.d.stdout} ${vars.later}
  - id: c
    shell: echo
  - id: d
    shell: echo ${vars.mod} ${env.TOKEN} ${steps.e.stdout}
    needs: []
"""
    )
    assert found == [
        "flow.yaml:7: step 'b': shell: step 'd' is not sure to be done before: add it to needs",
        "flow.yaml:7: step 'b': shell: there is no variable 'later'",
        "flow.yaml:11: step 'd': shell: there is no variable 'mod': did you mean 'mode'?",
        "flow.yaml:11: step 'd': shell: env.TOKEN is not allowed: name TOKEN in env first",
        "flow.yaml:11: step 'd': shell: there is no step 'e'",
    ]


def test_an_id_is_used_once() -> None:
    """Two steps with one id are told with both lines."""
    found = problems("name: x\nsteps:\n- {id: a, shell: a}\n- {id: a, shell: b}\n")
    assert found == ["flow.yaml:4: the id 'a' is already that of the step in line 3"]


def test_a_variable_that_comes_too_late() -> None:
    """A captured variable is there only for steps that need the one that captures it."""
    steps = "- {id: a, shell: a, capture: v}\n- {id: b, shell: 'b ${vars.v}', needs: []}\n"
    assert problems(f"name: x\nsteps:\n{steps}") == [
        "flow.yaml:4: step 'b': shell: vars.v is set by a step that is not sure to be done before: add it to needs"
    ]


def test_steps_that_wait_for_each_other() -> None:
    """A circle is named, step by step."""
    found = problems("name: x\nsteps:\n- {id: a, shell: a, needs: b}\n- {id: b, shell: b, needs: [a]}\n")
    assert len(found) == 1
    assert found[0].startswith("flow.yaml:3: steps wait for each other: a -> b -> a")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a workflow has the keys name and steps, and it is empty"),
        ("- a\n", "flow.yaml:1: a workflow has the keys name and steps, not a list"),
        ("name: x\nsteps: []\n", "flow.yaml:2: steps has none: a workflow needs at least one step"),
        ("name: x\n", "flow.yaml:1: the key 'steps' is missing"),
        ("name: [\n", "flow.yaml:1: the file is not valid YAML"),
        ("a: &x [1]\nb: *x\n", "flow.yaml:1: the file uses a YAML anchor or alias"),
        ("name: !!python/object:os.system x\n", "flow.yaml:1: the file uses a YAML tag"),
        ("name: x\n---\nname: y\n", "flow.yaml:2: the file has more than one YAML document"),
        ("name: " + "[" * 5000, "flow.yaml:1: the file is nested deeper than 32 levels"),
        ("name: \x07\n", "flow.yaml:1: the file contains a character that YAML does not allow"),
        ("name: x\nsteps: [" + "a," * 30_000 + "]\n", "flow.yaml:2: the file has more than 20,000 values"),
        ("? [a]\n: b\n", "flow.yaml:1: the file has a key that is not text"),
        ("name: x\nsteps:\n- {id: '', shell: a}\n", "flow.yaml:3: step 'step-1': id must be 1 to 64 letters"),
    ],
)
def test_files_that_are_no_workflow(text: str, message: str) -> None:
    """Whatever stands in the file, the answer is a problem with its line."""
    found = problems(text)
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "latin-1", "huge"])
def test_files_that_cannot_be_read(flows: Flows, kind: str) -> None:
    """A file that is none, not UTF-8 or too large is refused, and none of them is waited for."""
    path = flows.folder / "flow.yaml"
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "latin-1":
            path.write_bytes(b"name: x\nsteps: \xe9\n")
        case "huge":
            path.write_bytes(b"#" * (1 << 21))
    done = flows.here("run", "flow.yaml")
    assert done.code == 2
    assert "error: flow.yaml has a problem; nothing was run" in done.err


def test_a_hostile_file_costs_little() -> None:
    """Thousands of mistakes are not all told."""
    found = problems("name: x\nsteps:\n" + "- {shel: x}\n" * 1000)
    assert len(found) == 51
    assert any("there are more problems" in text for text in found)


def test_what_a_good_file_says() -> None:
    """Defaults, kinds of values and needs are as documented."""
    workflow = parse_workflow(
        """\
name: good
vars: {answer: no, count: 3, rate: 0.5, on: true, none: ~, text: "3", list: [1, a]}
test: yes
cleanup: {enabled: false}
checkpoint: {keep_last: 5, profile: debug, keep_within: 2h, max_bytes: off}
steps:
  - shell: a
  - {id: b, agent: do it, retry: 4}
  - {id: c, python: "m.n:f", with: {x: 1}, needs: [], timeout: 1.5m, retry: {delay: 500ms}}
""",
        source="flow.yaml",
    )
    values = {variable.name: variable.value for variable in workflow.variables}
    assert values == {
        "answer": "no",
        "count": 3,
        "rate": 0.5,
        "on": True,
        "none": None,
        "text": "3",
        "list": [1, "a"],
    }
    assert (workflow.is_test, workflow.cleanup, workflow.profile) == (True, {"enabled": False}, "debug")
    assert workflow.retention == {"keep_last": 5, "keep_within": "2h", "max_bytes": None}
    first, second, third = workflow.steps
    assert (first.id, first.needs, first.kind) == ("step-1", (), StepKind.SHELL)
    assert (second.needs, second.retry.attempts) == (("step-1",), 4)
    assert (third.needs, third.timeout_seconds) == ((), 90.0)
    assert (third.retry.attempts, third.retry.delay_seconds) == (3, 0.5)
