"""The project files beside what hooks save: captured at boundaries in a repository, and never in the agent's way."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.errors import BackendUnavailable
from stepkeep.recording.coding_agents.hook_process import Timeout
from tests.hooks.conftest import Agent, Answer

KEY = "claude-code:00893aaf-19fa-41d2-8238-13269b9b3ca0"
FILES = "files"
WAIT_SECONDS = 30


def make_repository(folder: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)


def captures(agent: Agent) -> list[stepkeep.Header]:
    """The checkpoints with files, newest first."""
    with agent.store() as store:
        return [header for header in store.get(KEY).history() if FILES in header.contents]


def waited_for(agent: Agent, count: int) -> list[stepkeep.Header]:
    """The captures, once the process that makes them after the hook has answered is done."""
    agent.settled()
    found = captures(agent)
    assert len(found) == count
    return found


def hook(agent: Agent, event: str, **fields: Any) -> Answer:
    """Let a hook run; it has nothing to say."""
    answer = agent.hook(event, **fields)
    assert (answer.code, answer.out, answer.err) == (0, "", "")
    return answer


@pytest.mark.full
def test_a_turn_brings_the_files_back(agent: Agent) -> None:
    """What was in the repository at the end of a turn is restored by the command, files that came later aside."""
    make_repository(agent.folder)
    program = agent.folder / "program.py"
    program.write_text("print(1)\n", encoding="utf-8")
    hook(agent, "UserPromptSubmit")
    hook(agent, "Stop", last_assistant_message="It prints one.")
    first, _ = waited_for(agent, 2)
    with agent.store() as store:
        newest = store.get(KEY).load()
        assert newest.header == first
        assert newest.state["last_message"] == "It prints one."
        assert (first.trigger.event, first.metadata["phase"]) == ("turn_end", "observe")
        assert store.get(KEY).info.last_seq == 2, "the prompt, and the turn with its files"
    program.write_text("print(2)\n", encoding="utf-8")
    hook(agent, "PreCompact")
    waited_for(agent, 3)
    shown = agent.stepkeep("restore", first.id, "--files", "--dry-run")
    assert (shown.code, "program.py" in shown.out) == (0, True)
    assert agent.stepkeep("restore", first.id, "--files").code == 0
    assert program.read_text(encoding="utf-8") == "print(1)\n"
    hook(agent, "Stop", last_assistant_message="It prints one again.")
    waited_for(agent, 5)  # the restore took one of its own, before it wrote
    with agent.store() as store:
        assert store.get(KEY).load().state["last_message"] == "It prints one again."


@pytest.mark.full
def test_every_turn_is_one_checkpoint_with_its_files(agent: Agent) -> None:
    """Also one that only talked; the end of a session has them too, and completes it."""
    make_repository(agent.folder)
    (agent.folder / "a.txt").write_text("a", encoding="utf-8")
    for message in ("One.", "Two."):
        hook(agent, "Stop", last_assistant_message=message)
        agent.settled()
    (agent.folder / "a.txt").write_text("b", encoding="utf-8")
    hook(agent, "SessionEnd")
    third, second, first = waited_for(agent, 3)
    with agent.store() as store:
        session = store.get(KEY)
        assert session.info.last_seq == 3
        assert session.info.status is stepkeep.Status.COMPLETED
        assert [each.trigger.event for each in (first, second, third)] == [
            "turn_end",
            "turn_end",
            "session_end",
        ]
        assert session.load(second.id).state["last_message"] == "Two."
        assert session.files.at(second.id).read("a.txt") == b"a"
        assert session.files.at(third.id).read("a.txt") == b"b"


@pytest.mark.full
def test_a_capture_that_is_killed_costs_only_the_files(agent: Agent) -> None:
    """The event waits in the spool, and the next hook brings it in, before its own."""
    make_repository(agent.folder)
    program = (
        "import os, sys; from stepkeep.recording.coding_agents import file_capture;"
        " file_capture._saved = lambda *_: os.kill(os.getpid(), 9);"
        " from stepkeep.cli import main; sys.argv[0] = 'stepkeep'; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, "hook", "Stop", "--client", "claude-code"]
    assert agent.raw(command, agent.input("Stop", last_assistant_message="One.")).code == 0
    assert len(agent.spooled) == 1
    hook(agent, "UserPromptSubmit", prompt="Now write the tests for it")
    agent.settled()
    with agent.store() as store:
        newest, before = store.get(KEY).history()
        assert [newest.trigger.event, before.trigger.event] == ["prompt", "turn_end"]
        assert store.get(KEY).load(before.id).state["last_message"] == "One."


@pytest.mark.full
@pytest.mark.parametrize("why", ["no repository", "a tool", "a home", "switched off", "a wrong setting"])
def test_no_files_are_captured(agent: Agent, why: str) -> None:
    """Outside a repository, at tools, of a whole home, when it is switched off; trouble costs only the files."""
    if why == "a home":
        agent.home = agent.folder
    if why != "no repository":
        make_repository(agent.folder)
    settings = {"switched off": "hooks:\n  workspace: false\n", "a wrong setting": "hooks:\n  workspce: 1\n"}
    if why in settings:
        (agent.folder / "stepkeep.yaml").write_text(settings[why], encoding="utf-8")
    hook(agent, "PostToolUse" if why == "a tool" else "Stop")
    end = time.monotonic() + WAIT_SECONDS
    while why == "a wrong setting" and not agent.problems() and time.monotonic() < end:
        time.sleep(0.05)
    answer = agent.hook("TaskCompleted")
    agent.settled()
    assert captures(agent) == []
    codes = [(entry["code"], "saved without files" in entry["message"]) for entry in agent.problems()]
    assert codes == ([("invalid_config", True)] if why == "a wrong setting" else [])
    assert ("could not capture the files" in answer.message) == (why == "a wrong setting")
    with agent.store() as store:
        assert store.get(KEY).info.last_seq == 2


@pytest.mark.full
def test_a_tree_that_takes_too_long_is_tried_again_later(agent: Agent) -> None:
    """The checkpoint is there, the person is told in the client, and the next capture comes after a while."""
    make_repository(agent.folder)
    first = changed_hook(agent, "Stop", SECONDS=1e-6)
    agent.settled()
    assert [entry["code"] for entry in agent.problems()] == ["hook_timeout"]
    told = first.message or agent.hook("PreCompact").message
    assert "were not captured within 1e-06 seconds; tried again in 10 minutes" in told
    hook(agent, "UserPromptSubmit", prompt="Go on with it")
    agent.settled()
    assert captures(agent) == []
    assert changed_hook(agent, "Stop", RETRY_SECONDS=0).code == 0
    waited_for(agent, 1)


def changed_hook(agent: Agent, event: str, **values: float) -> Answer:
    """A hook with other values of the module that captures."""
    lines = "".join(f"file_capture.{name} = {value!r}; " for name, value in values.items())
    program = (
        f"import sys; from stepkeep.recording.coding_agents import file_capture; {lines}"
        "from stepkeep.cli import main; sys.argv[0] = 'stepkeep'; sys.exit(main())"
    )
    return agent.raw(
        [sys.executable, "-c", program, "hook", event, "--client", "claude-code"], agent.input(event)
    )


def test_a_timeout_ends_in_the_block_that_ran_out() -> None:
    """An inner block that gives up leaves the outer one its time."""
    with Timeout(60, "outer"):
        with pytest.raises(BackendUnavailable, match=r"inner within 0\.01 seconds"), Timeout(0.01, "inner"):
            time.sleep(5)
        with pytest.raises(BackendUnavailable, match="again"), Timeout(0.01, "again"):
            time.sleep(5)


# --- the log of the store --------------------------------------------------------------------------------------

_LEAVES_A_LOG = """
import os, sys, stepkeep
store = stepkeep.open(sys.argv[1])
store.session("other").save({"noise": os.urandom(1_500_000).hex()})
os._exit(0)
"""


def test_a_hook_empties_a_log_that_grew(agent: Agent) -> None:
    """Hooks leave the store open for speed, but not for ever: the next one would read a longer log each time."""
    log = Path(f"{agent.file}-wal")
    hook(agent, "Stop")
    assert log.stat().st_size > 0
    agent.raw([sys.executable, "-c", _LEAVES_A_LOG, agent.url], b"")
    assert log.stat().st_size > 1 << 20
    hook(agent, "UserPromptSubmit")
    assert log.stat().st_size == 0
    with agent.store() as store:
        assert store.get(KEY).info.last_seq == 2
