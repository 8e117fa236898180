"""One list of all unfinished work, and taking up work with phases from the shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepkeep
from tests import interpreter
from tests.hooks.conftest import Answer


class Shell:
    """Commands of a user whose home, store and folder of phases are all here."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.folder = folder
        self.url = f"sqlite:{folder / 'store.db'}"
        self.phases = self.home / ".pai"

    def __call__(self, *words: str) -> Answer:
        environment = {"HOME": str(self.home), "STEPKEEP_STORE": self.url, "PATH": "/usr/bin:/bin"}
        return Answer(interpreter.python("-m", "stepkeep", *words, cwd=self.folder, env=environment))

    def phase(self, session: str, phase: str = "build", *, task: str = "Move the mail") -> str:
        with stepkeep.open_phases(self.phases) as phases:
            made = phases.create_checkpoint(phase, {"at": phase}, session_id=session, task_summary=task)
        return made.checkpoint_id or ""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def _nightly(store: stepkeep.Store) -> None:
    with store.run("nightly") as run:
        run.step("one", lambda: 1)
        run.step("two", lambda: 1 // 0)


def test_one_list_has_all_unfinished_work(shell: Shell) -> None:
    """Phases of the store and of the user's folder, plans, scripts and recorded loops; a plain session is none."""
    shell.phase("theirs")
    with stepkeep.open(shell.url) as store:
        store.phases.create_checkpoint("plan", session_id="own", task_summary="Look at the logs")
        with pytest.raises(ZeroDivisionError):
            _nightly(store)
        plan = [stepkeep.PlanStep(id="1", action="x"), stepkeep.PlanStep(id="2", action="y")]
        store.execute("plan", plan, lambda step: 1 // (2 - int(step.step.id)))
        with store.session("loop").recorder(state=lambda: {"a": 1}) as recorder:
            recorder.step_started("one", 1)
        store.session("plain").save({"a": 1})
    done = shell("resume", "--json")
    found = {each["session"]: each for each in json.loads(done.out)}
    assert {key: each["runner"] for key, each in found.items()} == {
        "theirs": "phase",
        "own": "phase",
        "nightly": "script",
        "plan": "plan",
        "loop": "recorder",
    }
    assert found["theirs"]["store"] == f"files:{shell.phases}?layout=phase"
    assert "script" in found["nightly"]["how"]
    text = shell("resume")
    assert text.code == 0
    for key in found:
        assert key in text.out


def test_a_recorded_loop_is_told_whether_it_may_go_on(shell: Shell) -> None:
    """Now, or after how long, or why not, and what to do: for its program, which no command can start."""
    with stepkeep.open(shell.url) as store:
        for key, classification in (("failed", "tool_failure"), ("unknown", None)):
            recorder = store.session(key).recorder(state=lambda: {"a": 1})
            recorder.step_started("one", 1)
            recorder.before_forced_stop("no answer", classification)
        resting = store.session("resting").recorder(state=lambda: {"a": 1})
        resting.step_started("one", 1)
        resting.pause("for lunch")
    cooling = json.loads(shell("resume", "failed", "--json").out)
    assert (cooling["runner"], cooling["hints"]["reason_code"]) == ("recorder", "resume_blocked_by_cooldown")
    assert 0 < cooling["wait_seconds"] <= 30
    told = shell("resume", "failed")
    assert told.code == 1
    assert told.out.splitlines()[0] == "failed is failed, step 1: no answer"
    assert "It may not be resumed now (resume_blocked_by_cooldown)." in told.out
    assert "more seconds" in told.out
    assert "What to do: resume at 2" in told.out
    assert "classify it as one of tool_failure" in shell("resume", "unknown").out
    done = shell("resume", "resting")
    assert (done.code, done.out.splitlines()) == (
        0,
        [
            "resting is paused, step 1: for lunch",
            "It may be resumed.",
            "What to do: start its program again, which asks Recorder.try_resume()",
        ],
    )
    listed = shell("resume")
    assert "resting: start its program again" in listed.err


def test_nothing_is_left_out_silently(shell: Shell) -> None:
    """More than a page of unfinished tasks: all are in the JSON, and the list says how many it does not show."""
    with stepkeep.open(shell.url) as store:
        for number in range(105):
            store.phases.create_checkpoint("plan", session_id=f"t{number}", task_summary="t")
    assert len(json.loads(shell("resume", "--json").out)) == 105
    assert "and 5 more" in shell("resume").err


def test_work_in_the_users_folder_is_taken_up_without_naming_the_store(shell: Shell) -> None:
    """Also where the store does not exist yet; the note says how to complete it."""
    shell.phase("theirs")
    taken = shell("resume", "theirs")
    assert taken.code == 0, taken.err
    assert "Move the mail" in taken.out
    assert f"stepkeep complete theirs --store 'files:{shell.phases}?layout=phase'" in taken.err
    assert not (shell.folder / "store.db").exists()
    with stepkeep.open(shell.url) as store:
        store.session("s").save({})
    assert shell("resume", "theirs").code == 0
    assert shell("resume", "nobody").code == 3


def test_work_with_phases_goes_on_from_an_older_checkpoint(shell: Shell) -> None:
    """`--from` is a checkpoint of the session: the work goes on there, on a branch; nonsense is refused."""
    with stepkeep.open(shell.url) as store:
        first = store.phases.create_checkpoint(
            "plan", {"at": 1}, session_id="t", task_summary="Move the mail"
        )
        store.phases.create_checkpoint("build", {"at": 2}, session_id="t", task_summary="Move the mail")
    taken = shell("resume", "t", "--from", "#1", "--json")
    found = json.loads(taken.out)
    assert (found["checkpoint"], found["phase_number"]) == (first.checkpoint_id, 3)
    with stepkeep.open(shell.url) as store:
        assert store.get("t").load().state == {"at": 1}
    assert shell("resume", "t", "--from", "#99").code == 3
    assert shell("resume", "t", "--from", "no such thing").code == 2
    assert shell("resume", "t", "--var", "a=b").code == 2
