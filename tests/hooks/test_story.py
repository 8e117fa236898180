"""A coding agent's session that is compacted and crashes: the next one offers to continue."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.model import utc_now_us
from stepkeep.testing import FakeClock
from tests.hooks.conftest import Agent, Answer

PROGRAM = Path(__file__).with_name("program.py")

pytestmark = pytest.mark.full


class Living:
    """An agent whose process lives for the whole session."""

    def __init__(self, agent: Agent, session: str) -> None:
        self._agent = agent
        self._session = session
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=agent.environment,
            cwd=agent.folder,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def hook(self, event: str, **fields: Any) -> Answer:
        content = self._agent.input(event, session_id=self._session, **fields).decode()
        return self._run(self._agent.command(event), content)

    def shell(self, command: str) -> Answer:
        """What the agent runs by itself, as a text in its context told it."""
        return self._run(shlex.split(command), "")

    def _run(self, command: list[str], content: str) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([command, content]) + "\n")
        self._process.stdin.flush()
        code, out, err = json.loads(self._process.stdout.readline())
        return Answer(subprocess.CompletedProcess(command, code, out.encode(), err.encode()))

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def living(agent: Agent, session: str) -> Iterator[Living]:
    one = Living(agent, session)
    try:
        yield one
    finally:
        one.kill()


def test_the_story(agent: Agent) -> None:
    """Starts, works, is compacted, is killed; the next one is offered the work, takes it up, and completes it."""
    with living(agent, "one") as first:
        assert first.hook("SessionStart").out == "", "nothing to offer"
        first.hook("UserPromptSubmit", prompt="Repair the login form of the admin area and test it well")
        first.hook("PostToolUse", tool_name="Read", tool_input={"file_path": "auth.py"})
        todos = [
            {"content": "Repair the login form", "status": "in_progress"},
            {"content": "Write a test for it", "status": "pending"},
        ]
        first.hook("PostToolUse", tool_name="TodoWrite", tool_input={"todos": todos})
        first.hook("PostToolUse", tool_name="Edit", tool_input={"file_path": "auth.py"})
        first.hook("PostToolUseFailure", error="1 failed, 11 passed")
        assert first.hook("PreCompact").out == "", "what it prints is thrown away"

        back = first.hook("SessionStart", source="compact")
        assert back.json["hookSpecificOutput"]["hookEventName"] == "SessionStart"
        assert "[in_progress] Repair the login form" in back.context
        assert "FAIL npm test (1 failed, 11 passed)" in back.context
        assert "Last request: Repair the login form of the admin area" in back.context
        first.hook("PostToolUse", tool_name="Edit", tool_input={"file_path": "auth.py"})

        with living(agent, "neighbour") as other:
            assert other.hook("SessionStart").out == "", "work that somebody is at is not offered"
        first.kill()

    with living(agent, "two") as second:
        offer = second.hook("SessionStart")
        line = offer.context.splitlines()[0]
        assert re.fullmatch(r"Checkpoint: Resume from Phase 4\? \(Repair the login form, \d+ s ago\)", line)
        assert offer.message == line, "the person sees it too"
        assert "Do not resume it without a yes" in offer.context

        listed = agent.stepkeep("resume")
        assert "claude-code:one" in listed.out
        assert "Phase 4 (build): Repair the login form" in listed.out
        assert "Name one to resume it" in listed.err, "listing resumes nothing"
        with agent.store() as store:
            assert "taken_up_us" not in store.get("claude-code:one").info.metadata

        accept = next(found for found in re.findall(r"run `([^`]* resume [^`]*)`", offer.context))
        taken = second.shell(accept)
        assert taken.code == 0
        assert "[in_progress] Repair the login form" in taken.out
        second.hook("UserPromptSubmit", prompt="yes, go on")
        done = [{**todo, "status": "completed"} for todo in todos]
        second.hook("PostToolUse", tool_name="TodoWrite", tool_input={"todos": done})
        with agent.store() as store:
            session = store.get("claude-code:one")
            newest = session.load()
            assert newest.state["agent_session"] == "two", "the work goes on in its session"
            assert [task["status"] for task in newest.state["tasks"]] == ["completed", "completed"]
            assert "resume_accepted" in [event.type for event in session.events()]
        with living(agent, "neighbour") as other:
            assert other.hook("SessionStart").out == "", "it is being worked on again"

        finish = next(found for found in re.findall(r"run `([^`]* complete [^`]*)`", offer.context))
        assert second.shell(finish).code == 0
        second.hook("Stop")
        second.hook("SessionEnd")

    with agent.store() as store:
        assert [info.key for info in store.sessions()] == ["claude-code:one"], (
            "no empty session is left behind"
        )
    for session in ("three", "one", "two"):
        with living(agent, session) as later:
            assert later.hook("SessionStart").out == "", "nothing is offered any more"
    with agent.store() as store:
        assert store.get("claude-code:one").info.status == "completed"
        assert store.verify().is_intact
    assert agent.problems() == []


def test_a_no_is_an_answer_too(agent: Agent) -> None:
    """Declined work is cancelled, and not offered again."""
    agent.hook("UserPromptSubmit", session_id="one")
    offer = agent.hook("SessionStart", session_id="two")
    decline = next(found for found in re.findall(r"run `[^`]* (cancel [^`]*)`", offer.context))
    assert agent.stepkeep(*decline.split()).code == 0
    assert agent.hook("SessionStart", session_id="three").out == ""


def test_work_of_another_project_is_not_offered(agent: Agent, tmp_path: Path) -> None:
    """What is unfinished elsewhere is listed by the command, and not brought up here."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    agent.hook("UserPromptSubmit", session_id="one", cwd=str(elsewhere))
    assert agent.hook("SessionStart", session_id="two").out == ""
    assert "Fix the login bug" in agent.stepkeep("resume").out
    assert "Checkpoint: Resume from Phase 1? (Fix the login bug in the admin area, " in (
        agent.hook("SessionStart", session_id="two", cwd=str(elsewhere)).context
    )


def test_phases_of_other_programs_are_offered(agent: Agent) -> None:
    """Unfinished phases in the user's folder are found when a session starts, with the store they are in."""
    home = agent.home / ".pai"
    with stepkeep.open_phases(home) as phases:
        made = phases.create_checkpoint("verify", session_id="pai-1", task_summary="Move the mail server")
        assert made.ok
    offer = agent.hook("SessionStart")
    assert offer.context.startswith("Checkpoint: Resume from Phase 6? (Move the mail server, ")
    assert f"--store 'files:{home}?layout=phase'" in offer.context
    taken = agent.stepkeep("resume", "pai-1", "--store", f"files:{home}?layout=phase")
    assert taken.code == 0
    assert "Move the mail server" in taken.out
    assert agent.stepkeep("complete", "pai-1", "--store", f"files:{home}?layout=phase").code == 0
    assert agent.hook("SessionStart").out == ""


def test_a_plain_save_between_phases_changes_no_offer(agent: Agent) -> None:
    """What is offered has the number and the task of the last phase, not of what was saved by hand after it."""
    home = agent.home / ".pai"
    with stepkeep.open_phases(home) as phases:
        phases.create_checkpoint("verify", session_id="pai-1", task_summary="Move the mail server")
    with stepkeep.open(f"files:{home}?layout=phase") as store:
        store.get("pai-1").save({"by": "hand"}, message="in between")
    offer = agent.hook("SessionStart")
    assert offer.message.startswith("Checkpoint: Resume from Phase 6? (Move the mail server, ")
    assert "resume pai-1 --store" in offer.context


def test_what_is_said_to_be_listed_is_listed(agent: Agent) -> None:
    """Of several tasks in the user's folder one is offered, and the command has all, without naming a store."""
    with stepkeep.open_phases(agent.home / ".pai") as phases:
        for number in range(3):
            phases.create_checkpoint("plan", session_id=f"pai-{number}", task_summary=f"Task {number}")
    offer = agent.hook("SessionStart")
    assert "There is more unfinished work (2 more)" in offer.context
    listed = agent.stepkeep("resume").out
    assert [number for number in range(3) if f"Task {number}" not in listed] == []


def test_phases_below_the_home_are_offered(agent: Agent) -> None:
    """A tilde in the variable is the home of the user, as a shell leaves it in quotes."""
    with stepkeep.open_phases(agent.home / "phases") as phases:
        phases.create_checkpoint("build", session_id="pai-1", task_summary="Move the mail server")
    command, content = agent.command("SessionStart"), agent.input("SessionStart")
    offer = agent.raw(command, content, STEPKEEP_PHASES="~/phases")
    assert offer.message.startswith("Checkpoint: Resume from Phase 4? (Move the mail server, ")


def test_an_answer_is_not_taken_for_the_task(agent: Agent) -> None:
    """What is offered is the first prompt that says what to do, however often the person says yes."""
    for prompt in ("hi", "Repair the login form", "yes", "ok, go on", "/compact"):
        agent.hook("UserPromptSubmit", session_id="one", prompt=prompt)
    offer = agent.hook("SessionStart", session_id="two")
    assert re.fullmatch(
        r"Checkpoint: Resume from Phase 1\? \(Repair the login form, \d+ s ago\)", offer.message
    )


def test_nothing_that_a_terminal_acts_upon_is_offered(agent: Agent) -> None:
    """Neither to the person nor to the model: ESC and BEL of a task are shown, not sent."""
    agent.hook("UserPromptSubmit", session_id="one", prompt="Paint it red \x1b[31m and ring \x07")
    offer = agent.hook("SessionStart", session_id="two")
    assert r"(Paint it red \x1b[31m and ring \x07, " in offer.message
    assert offer.context.splitlines()[0] == offer.message
    assert not {"\x1b", "\x07"} & set(offer.message + offer.context)


def test_who_only_looks_leaves_no_session(agent: Agent) -> None:
    """One that starts, is offered something and ends has nothing to keep."""
    agent.hook("UserPromptSubmit", session_id="one")
    for event in ("SessionStart", "SessionEnd"):
        agent.hook(event, session_id="two")
        with agent.store() as store:
            assert [info.key for info in store.sessions()] == ["claude-code:one"]


def test_a_checkpoint_by_hand_goes_into_the_session_of_its_own_folder(agent: Agent, tmp_path: Path) -> None:
    """Another agent worked later in another folder: `create` here still saves into the session here."""
    there = tmp_path / "elsewhere"
    there.mkdir()
    agent.hook("UserPromptSubmit", session_id="here", prompt="Repair the login form")
    agent.hook("UserPromptSubmit", session_id="there", prompt="Write the letter", cwd=str(there))
    done = agent.stepkeep("create", "done here", "--tags", "command")
    assert (done.code, "of claude-code:here," in done.out) == (0, True)


def test_the_session_of_an_agent_that_lives_stays(agent: Agent) -> None:
    """However long nobody asked it anything. When its process has ended, the session goes."""

    def cleaned() -> list[tuple[bool, str]]:
        clock = FakeClock(utc_now_us())
        clock.advance(400 * 86_400)
        with stepkeep.open(agent.url, clock=clock) as store:
            return [(each.goes, each.reason) for each in store.clean(dry_run=True).sessions]

    with living(agent, "s-1") as one:
        assert one.hook("Stop").code == 0
        agent.settled()
        assert cleaned() == [(False, f"its agent lives (pid {one.pid})")]
    assert [goes for goes, _ in cleaned()] == [True]
