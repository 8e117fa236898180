"""`stepkeep resume`: going on after a kill, a failure, an interruption; and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepkeep
from stepkeep.runs.workflow.parse import parse_workflow
from stepkeep.runs.workflow.serializer import WorkflowSerializer, origin_of
from stepkeep.secrets import Redactor
from tests.workflow.flows import Flows, until
from tests.workflow.test_run import golden

SLOW = """\
name: slow
vars: {word: w}
steps:
  - {id: a, shell: 'echo a >>log; echo from-a', capture: got}
  - {id: b, shell: 'echo b >>log; test -e go || sleep 600; echo b-end >>log'}
  - {id: c, shell: 'echo c ${vars.got} ${vars.word} >>log'}
"""

FAILS_ONCE = """\
name: once
steps:
  - {id: a, shell: echo a >>log}
  - {id: b, shell: 'echo b >>log; test -e go || { echo no go >&2; exit 2; }'}
  - {id: c, shell: echo c >>log}
"""


@contextmanager
def running(flows: Flows, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run that is under way, ended at the latest with the test."""
    process = flows.start("run", "flow.yaml", *args)
    try:
        yield process
    finally:
        if process.poll() is None:
            flows.stop(process)


@pytest.fixture
def killed(flows: Flows) -> Flows:
    """A run that was killed in its second step."""
    flows.write(SLOW)
    with running(flows, "--session", "s") as process:
        flows.wait_for("b")
        code, out, _ = flows.stop(process)
    assert code == -signal.SIGKILL
    assert out.splitlines()[0] == "Session s: slow, 3 steps"
    (flows.folder / "go").touch()
    return flows


@pytest.fixture
def failed(flows: Flows) -> Flows:
    """A run whose second step failed, and will not fail again."""
    flows.write(FAILS_ONCE)
    assert flows.here("run", "flow.yaml", "--session", "s").code == 1
    (flows.folder / "go").touch()
    return flows


def test_every_attempt_has_the_key_of_its_step(flows: Flows) -> None:
    """Tried again, and resumed, it is the same; another step and another run have others."""
    flows.write("""\
        name: keys
        steps:
          - {id: a, shell: 'echo $STEPKEEP_IDEMPOTENCY_KEY >>log; test -e go', retry: {attempts: 2, delay: 1ms}}
          - {id: b, shell: 'echo $STEPKEEP_IDEMPOTENCY_KEY >>log'}
        """)
    flows.here("run", "flow.yaml", "--session", "s")
    (flows.folder / "go").touch()
    assert flows.here("resume", "s").code == 0
    assert flows.here("run", "flow.yaml", "--session", "other").code == 0
    first, again, resumed, *others = flows.log
    assert first == again == resumed
    assert len({first, *others}) == 4


@pytest.mark.full
def test_after_a_kill(killed: Flows) -> None:
    """Completed steps are not run again, the interrupted one is, and its old process is gone."""
    done = killed("resume", "s")
    assert done.code == 0
    golden("run_resumed.txt", done.out)
    assert killed.log == ["a", "b", "b", "b-end", "c from-a w"]
    assert killed.here("list", "--json").json[0]["status"] == "completed"


@pytest.mark.full
def test_after_a_kill_with_a_damaged_checkpoint(killed: Flows) -> None:
    """The newest checkpoint that is intact is gone on from, and what it does not know is done again."""
    with stepkeep.open(killed.url) as store:
        newest = store.get("s").header("latest")
    killed.damage(newest.id)
    done = killed("resume", "s")
    assert done.code == 0
    assert "corrupted" in done.err
    assert killed.log == ["a", "b", "a", "b", "b-end", "c from-a w"]


def test_after_a_failure(failed: Flows) -> None:
    """The failed step is tried again and the rest follows."""
    done = failed.here("resume", "s", "--json")
    assert done.code == 0
    assert failed.log == ["a", "b", "b", "c"]
    run = done.json
    assert (run["steps_recovered"], run["steps_run"], run["resume"]) == (1, 2, None)
    assert [step["status"] for step in run["steps"]] == ["completed"] * 3
    with stepkeep.open(failed.url) as store:
        metrics = store.metrics()
    assert (metrics.checkpoint_resume_count, metrics.steps_recovered) == (1, 1)


def test_a_step_that_fails_again(failed: Flows) -> None:
    """Resuming may fail as well, and says again how to go on."""
    (failed.folder / "go").unlink()
    done = failed.here("resume", "s")
    assert done.code == 1
    assert "Go on with: stepkeep resume s" in done.out


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_is_saved(flows: Flows, number: signal.Signals) -> None:
    """SIGINT and SIGTERM save `paused`, end the step's process, and tell how to go on."""
    flows.write(SLOW.replace("echo b >>log;", "echo b >>log; echo $$ >pid;"))
    with running(flows, "--session", "s") as process:
        flows.wait_for("b")
        until(
            lambda: (
                (flows.folder / "pid").read_text().strip() != "" if (flows.folder / "pid").exists() else False
            )
        )
        code, out, _ = flows.stop(process, number)
    assert code == 128 + number
    assert "paused: 1 step in" in out
    assert "Go on with: stepkeep resume s" in out
    pid = int((flows.folder / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert flows.here("list", "--json").json[0]["status"] == "paused"
    (flows.folder / "go").touch()
    assert flows.here("resume", "s").code == 0
    assert flows.log == ["a", "b", "b", "b-end", "c from-a w"]


@pytest.mark.full
def test_two_runners(flows: Flows) -> None:
    """While one process runs a session, another says who does, and runs nothing."""
    flows.write(SLOW)
    with running(flows, "--session", "s") as process:
        flows.wait_for("b")
        second = flows.here("resume", "s", "--json")
        assert (second.code, second.error["code"]) == (5, "lease_held")
        assert f"pid {process.pid}" in second.error["message"]
        listed = flows.here("resume")
        assert f"is being run (pid {process.pid} on" in listed.out
        flows.stop(process)
    assert flows.log == ["a", "b"]


def test_what_is_stored_says_everything(failed: Flows) -> None:
    """A state that is loaded and stored again is the same state."""
    for state in (failed.state("s", "step-0"), failed.state("s")):
        origin = origin_of(state)
        serializer = WorkflowSerializer(
            parse_workflow(origin.text, source=origin.file),
            folder=origin.folder,
            redactor=Redactor([]),
        )
        serializer.failures.update({step["id"]: step["output"] for step in state["failed_steps"]})
        assert serializer.dump(serializer.load(state)) == state


@pytest.mark.parametrize("change", ["version", "completed_steps", "workflow", "text"])
def test_a_state_that_is_not_whole(failed: Flows, change: str) -> None:
    """A state of another release, or with parts missing, is refused with a reason."""
    state = failed.state("s")
    match change:
        case "version":
            state["version"] = 99
        case "text":
            state["workflow"]["text"] = "steps: ["
        case _:
            del state[change]
    with stepkeep.open(failed.url) as store:
        store.get("s").save(state, status="failed", metadata={"runner": "workflow"})
    (failed.folder / "flow.yaml").unlink()
    done = failed.here("resume", "s", "--force", "--from-store", "--json")
    assert (done.code, done.error["code"]) in ((2, "not_resumable"), (2, "invalid_workflow"))
    assert failed.log == ["a", "b"]


# --- drift -----------------------------------------------------------------------------------------------------


def test_a_changed_file_is_refused(failed: Flows) -> None:
    """Everything that changed is listed; nothing runs."""
    failed.write(FAILS_ONCE.replace("echo c", "echo changed") + "  - {id: d, shell: echo d >>log}\n")
    done = failed.here("resume", "s", "--json")
    assert (done.code, done.error["code"]) == (5, "plan_changed")
    assert "step 'd' was added; step 'c' has other parameters" in done.error["message"]
    assert "--force" in done.error["message"]
    assert failed.log == ["a", "b"]
    assert failed.here("resume", "s", "--force").code == 0
    assert failed.log == ["a", "b", "b", "changed", "d"]


def test_patience_may_change(failed: Flows) -> None:
    """Time-outs, retries and names are no part of the plan."""
    failed.write(FAILS_ONCE.replace("{id: c,", "{id: c, name: See, timeout: 1h, retry: 2,"))
    assert failed.here("resume", "s").code == 0


def test_a_file_that_is_gone(failed: Flows) -> None:
    """The text that was stored is run only when that is asked for."""
    (failed.folder / "flow.yaml").unlink()
    refused = failed.here("resume", "s", "--force", "--json")
    assert (refused.code, refused.error["code"]) == (2, "not_resumable")
    assert "--from-store" in refused.error["message"]
    assert failed.log == ["a", "b"]
    done = failed.here("resume", "s", "--from-store")
    assert done.code == 0
    assert "is gone: going on with the text that was stored" in done.err
    assert failed.log == ["a", "b", "b", "c"]


def test_a_folder_that_only_the_store_names(failed: Flows) -> None:
    """The file is there, but a store of someone else wants its steps run where they prepared something."""
    elsewhere = failed.folder / "elsewhere"
    elsewhere.mkdir()
    with stepkeep.open(failed.url) as store:
        state = store.get("s").load().state
        state["workflow"]["folder"] = str(elsewhere)
        store.get("s").save(state, status="failed", metadata={"runner": "workflow"})
    refused = failed.here("resume", "s", "--force", "--json")
    assert (refused.code, refused.error["code"]) == (2, "not_resumable")
    assert not list(elsewhere.iterdir())


def test_all_problems_at_once(flows: Flows) -> None:
    """A file that is wrong now, a folder that is gone and a secret that is missing are told together."""
    flows.write("name: n\nvars: {token: {}, x: 1}\nsteps: [{id: a, shell: exit 1}]\n")
    assert flows.here("run", "flow.yaml", "--session", "s", "--var", "token=t0ken").code == 1
    flows.write("name: n\nvars: {token: {}, x: 1}\nsteps: [{id: a, shel: exit 0}, {id: b, shell: 'true'}]\n")
    done = flows.here("resume", "s", "--var", "x=2", "--json")
    assert (done.code, done.error["code"]) == (2, "not_resumable")
    for text in (
        "unknown key 'shel'",
        "variable 'x' has its value from the checkpoint",
        "variable 'token' has no value: give it with --var token=…",
    ):
        assert text in done.error["message"]


def test_secrets_are_given_again(flows: Flows) -> None:
    """What is not stored must be given again, by flag or in the environment."""
    flows.write(
        """\
        name: n
        vars: {token: {value: in-the-file, env: TOKEN}}
        steps:
          - {id: a, shell: 'test -e go'}
          - {id: b, shell: 'echo ${vars.token} | tr a-z A-Z >>log'}
        """
    )
    assert flows.here("run", "flow.yaml", "--session", "s").code == 1
    (flows.folder / "go").touch()
    (flows.folder / "flow.yaml").unlink()
    done = flows.here("resume", "s", "--from-store")
    assert done.code == 2
    assert "variable 'token' is secret and was not stored" in done.err
    assert flows.here("resume", "s", "--from-store", "--var", "token=by-hand").code == 0
    assert flows.log == ["BY-HAND"]


# --- where from ------------------------------------------------------------------------------------------------


def test_from_an_older_checkpoint(failed: Flows) -> None:
    """--from goes back, also in a session that is completed; what came after it is done again."""
    assert failed.here("resume", "s").code == 0
    assert failed.here("resume", "s", "--from", "step-1").code == 0
    assert failed.log == ["a", "b", "b", "c", "b", "c"]
    assert failed.here("resume", "s", "--from", "step-77").code == 3


def test_nothing_to_resume(flows: Flows) -> None:
    """No store, no session, nothing unfinished, and nothing saved: each is not found, with a clear text."""
    assert flows.here("resume").code == 3
    flows.write("name: n\nsteps: [{shell: 'true'}]\n")
    flows.here("run", "flow.yaml", "--session", "done")
    done = flows.here("resume", "done")
    assert (done.code, "is completed, nothing is left to do" in done.err) == (3, True)
    done = flows.here("resume")
    assert (done.code, done.out, done.err) == (3, "", "error: there is no unfinished work to resume\n")
    assert flows.here("resume", "other").code == 3
    with stepkeep.open(flows.url) as store:
        store.session("empty", workflow="n")
        store.session("by hand").save({"n": 1})
    assert "has no checkpoint to resume from" in flows.here("resume", "empty").err
    told = flows.here("resume", "by hand")
    assert (told.code, "`stepkeep show SESSION --raw` prints it" in told.err) == (2, True)


def test_a_session_that_is_no_workflow(flows: Flows) -> None:
    """Other states are not taken for a workflow's."""
    flows.fill("s")
    done = flows.here("resume", "s", "--json")
    assert (done.code, done.error["code"]) == (2, "not_resumable")


# --- asking ----------------------------------------------------------------------------------------------------


def test_the_list(failed: Flows) -> None:
    """Without a session, what can be resumed is listed; nothing is run for someone who is not there."""
    done = failed.here("resume")
    assert done.code == 0
    header, row = done.out.splitlines()
    assert header.split() == ["NO", "SESSION", "WORKFLOW", "STEP", "STATUS", "AGE", "WHY"]
    assert row.split()[:5] == ["1", "s", "once", "1", "failed"]
    assert row.endswith("ended with exit code 2: no go")
    assert "stepkeep resume SESSION" in done.err
    assert failed.log == ["a", "b"]
    (entry,) = failed.here("resume", "--json").json
    assert (entry["session"], entry["can_resume"], entry["why"]) == (
        "s",
        True,
        "ended with exit code 2: no go",
    )


@pytest.mark.full
@pytest.mark.parametrize(("answer", "is_resumed"), [(b"y\n", True), (b"\n", False), (b"n\n", False)])
def test_one_is_resumed_only_after_a_yes(failed: Flows, answer: bytes, is_resumed: bool) -> None:
    """On a terminal the only one is offered, and no answer is a no."""
    code, shown = failed.terminal("resume", answer=answer)
    assert code == 0
    assert "Resume s? [y/N]" in shown
    assert (failed.log == ["a", "b", "b", "c"]) is is_resumed


@pytest.mark.full
def test_one_of_several_is_chosen(failed: Flows) -> None:
    """On a terminal a number chooses; 0 is none."""
    (failed.folder / "go").unlink()
    failed.here("run", "flow.yaml", "--session", "t")
    (failed.folder / "go").touch()
    code, shown = failed.terminal("resume", answer=b"0\n")
    assert (code, "Which one?" in shown) == (0, True)
    code, shown = failed.terminal("resume", answer=b"2\n")
    assert code == 0
    assert "completed: 2 steps" in shown
    statuses = {each["key"]: each["status"] for each in failed.here("list", "--json").json}
    assert statuses == {"s": "completed", "t": "failed"}


@pytest.mark.full
def test_the_live_view(flows: Flows) -> None:
    """On a terminal the steps are shown in place, with marks; the folder of the file is where they run."""
    flows.write(FAILS_ONCE)
    code, shown = flows.terminal("run", "flow.yaml", "--session", "s")
    assert code == 1
    for text in (
        "✓",
        "✗",
        "–",
        "ended with exit code 2: no go",
        "last saved checkpoint ",
        "Go on with: stepkeep resume s",
    ):
        assert text in shown
    assert Path(flows.folder / "log").exists()
