"""Steps of workflow files that ask a person: the answer, a refusal, the end of the time, and workers meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepkeep
from stepkeep import Conflict, Status
from stepkeep.runs.workflows import Workflows
from stepkeep.storage.memory import MemoryBackend
from tests.workers.crew import Crew, told
from tests.workflow.flows import Flows

DEPLOY = """\
name: deploy
vars: {version: "7"}
steps:
  - {id: build, shell: 'echo build >>log; seq 20000'}
  - {id: ok, ask: 'Deploy ${vars.version}?', timeout: 2d, capture: {where: output.where}}
  - {id: go, shell: 'echo go ${vars.where} ${steps.ok.exit_code} >>log'}
"""


def test_a_step_asks_and_gets_the_answer(flows: Flows) -> None:
    """The run pauses and says how to answer; resumed, nothing is done twice, and others use the answer."""
    flows.write(DEPLOY)
    asked = flows("run", "flow.yaml", "--session", "s")
    assert asked.code == 1
    assert "[2/3] ok: waits for a person: Deploy 7?" in asked.out
    assert "paused: 1 step" in asked.out
    assert "Go on with: stepkeep approve s" in asked.out
    again = flows.here("resume", "s", "--json")
    assert again.code == 1
    assert (again.json["status"], again.json["resume"]) == ("paused", "stepkeep approve s")
    assert [question["text"] for question in again.json["waiting"]] == ["Deploy 7?"]
    assert "ok: Deploy 7?" in flows.here("resume").out
    answered = flows.here("approve", "s", "--with", '{"where": "it\'s $HOME"}', "--json")
    assert answered.json["next"] == "stepkeep resume s"
    assert flows("resume", "s").code == 0
    assert flows.log == ["build", "go it's $HOME 0"]
    assert flows.step("s", "ok")["output"]["value"] == {"where": "it's $HOME"}
    long = flows.here("show", "s", "--output", "build").out
    assert len(long.splitlines()) == 20_000  # what was beside the state came along with the answer


def test_a_refusal_fails_the_step_and_may_be_taken_back(flows: Flows) -> None:
    """No later step is done; the reason is told."""
    flows.write(DEPLOY)
    flows.here("run", "flow.yaml", "--session", "s")
    assert flows.here("approve", "s", "--refuse", "--with", '"not today"').code == 0
    failed = flows.here("resume", "s")
    assert failed.code == 1
    assert "step 'ok' refused (not today): Deploy 7?" in failed.out
    assert flows.here("approve", "s", "--with", '{"where": "here"}').code == 0
    assert flows.here("resume", "s").code == 0
    assert flows.log == ["build", "go here 0"]


def test_a_refusal_may_be_an_answer(flows: Flows) -> None:
    """With `allow_failure` later steps see it as an exit code, and as what was said."""
    flows.write("""\
        name: choice
        steps:
          - {id: ok, ask: "Send it?", allow_failure: true}
          - {id: send, shell: echo sent >>log, when: "${steps.ok.exit_code} == 0"}
          - {id: tell, shell: 'echo "${steps.ok.stderr}" >>log', needs: [send, ok]}
        """)
    flows.here("run", "flow.yaml", "--session", "s")
    flows.here("approve", "s", "--refuse")
    done = flows.here("resume", "s")
    assert done.code == 0, done.out
    assert flows.log == ["refused: Send it?"]


def test_secrets_are_not_part_of_a_question(flows: Flows) -> None:
    """They are hidden in what is asked, and in an answer that repeats them."""
    flows.write("""\
        name: hush
        vars: {token: {secret: true}}
        steps:
          - {id: ok, ask: "Use ${vars.token}?", capture: said}
          - {id: go, shell: echo done >>log}
        """)
    secret = "swordfish-4711"
    asked = flows.here("run", "flow.yaml", "--session", "s", "--var", f"token={secret}", "--json")
    assert asked.json["waiting"][0]["text"] == "Use (hidden)?"
    flows.here("approve", "s")
    assert flows.here("resume", "s", "--var", f"token={secret}").code == 0
    assert secret not in str(flows.state("s"))


def test_an_answer_may_come_too_late(tmp_path: Path) -> None:
    """Then the step fails, as after a refusal."""
    flow = tmp_path / "flow.yaml"
    flow.write_text("name: n\nsteps:\n  - {id: ok, ask: 'Now?', timeout: 1m}\n")
    now = [1_800_000_000_000_000]
    store = stepkeep.Store(MemoryBackend(), clock=lambda: now[0])
    asked = store.workflows.run(Workflows.plan(flow), key="s")
    assert (asked.status, asked.waiting[0].text) == (Status.PAUSED, "Now?")
    now[0] += 61_000_000
    with pytest.raises(Conflict) as late:
        store.approve("s")
    assert late.value.code == "question_expired"
    ended = store.workflows.resume("s")
    assert (ended.status, ended.error) == (Status.FAILED, "step 'ok' nobody answered in time: Now?")


@pytest.mark.parametrize("key", ["with: {a: 1}", "stdin: text", "retry: 3", "env: {A: b}"])
def test_what_does_not_go_with_a_question_is_told(flows: Flows, key: str) -> None:
    """Before anything runs."""
    flows.write(f"name: n\nsteps:\n  - {{id: ok, ask: 'Now?', {key}}}\n")
    refused = flows.here("run", "flow.yaml")
    assert refused.code == 2
    assert f"step 'ok': {key.partition(':')[0]} is for a " in refused.err


def test_workers_leave_a_session_to_the_person(flows: Flows) -> None:
    """It is not taken again and again while it waits; once it is answered, the next worker goes on."""
    crew = Crew(flows.folder)
    crew.write(DEPLOY)
    key = crew.queue()
    first = crew.work()
    assert [each["status"] for each in told(first, "ended")] == ["paused"]
    assert told(first, "step")[-1]["error"] == "Deploy 7?"
    assert told(crew.work(), "started") == []
    answered = crew.here("approve", key, "--with", '{"where": "here"}')
    assert answered.err == "Next: a worker of queue 'default' goes on\n"
    assert [each["status"] for each in told(crew.work(), "ended")] == ["completed"]
    assert crew.log == ["build", "go here 0"]


def test_a_worker_ends_what_nobody_answered(tmp_path: Path) -> None:
    """When the time is over there is something to do again."""
    flow = tmp_path / "flow.yaml"
    flow.write_text("name: n\nsteps:\n  - {id: ok, ask: 'Now?', timeout: 1m}\n")
    now = [1_800_000_000_000_000]
    store = stepkeep.Store(MemoryBackend(), clock=lambda: now[0])
    store.workflows.queue(Workflows.plan(flow), key="s")
    assert [store.workflows.work(once=True).paused for _ in range(2)] == [1, 0]
    now[0] += 61_000_000
    assert store.workflows.work(once=True).failed == 1
