"""What a hook cannot save is kept, and brought in by the next one: in order, once, and never lost."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

import apsw
import pytest

from tests.hooks.conftest import WAIT_SECONDS, Agent

KEY = "claude-code:00893aaf-19fa-41d2-8238-13269b9b3ca0"

pytestmark = pytest.mark.full


@contextlib.contextmanager
def locked(agent: Agent) -> Iterator[None]:
    """Somebody writes to the store, and does not come to an end."""
    with contextlib.closing(apsw.Connection(str(agent.file))) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def tool(agent: Agent, name: str) -> None:
    agent.hook("PostToolUse", tool_name="Bash", tool_input={"command": name})


def events(agent: Agent) -> list[str]:
    with agent.store() as store:
        return [header.trigger.event for header in reversed(list(store.get(KEY).history()))]


def test_what_could_not_be_saved_comes_with_the_next_event(agent: Agent) -> None:
    """Tools and the save before a compaction, in their order; the context after it has all of it."""
    agent.hook("UserPromptSubmit", prompt="Repair the login form")
    with locked(agent):
        tool(agent, "make one")
        answer = agent.hook("PreCompact")
        assert "keeps it for the next event, at PreCompact" in answer.message
    assert len(agent.spooled) == 2
    back = agent.hook("SessionStart", source="compact")
    assert "PASS make one" in back.context
    assert agent.spooled == []
    assert events(agent) == ["prompt", "context_compaction_warning"]
    with agent.store() as store:
        outcomes = store.get(KEY).load().details["command_outcomes"]
    assert [outcome["name"] for outcome in outcomes] == ["make one"]


def test_a_hook_before_a_compaction_waits_for_others(agent: Agent) -> None:
    """Who writes for some seconds costs no save, and no other event has to bring it in."""
    agent.hook("UserPromptSubmit", prompt="Repair the login form")
    with locked(agent):
        process = subprocess.Popen(
            agent.command("PreCompact"),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=agent.environment,
            cwd=agent.folder,
        )
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(agent.input("PreCompact"))
        process.stdin.close()
        told = process.stderr.readline()  # after two seconds
    with process:
        assert b"waiting for another process" in told
    assert (process.returncode, agent.spooled) == (0, [])
    assert events(agent) == ["prompt", "context_compaction_warning"]


def test_a_hook_that_is_killed_before_a_compaction_loses_nothing(agent: Agent) -> None:
    """The event is durable before the store is tried: clients end hooks that take too long."""
    agent.hook("UserPromptSubmit", prompt="Repair the login form")
    with locked(agent):
        process = subprocess.Popen(
            agent.command("PreCompact"), stdin=subprocess.PIPE, env=agent.environment, cwd=agent.folder
        )
        assert process.stdin is not None
        process.stdin.write(agent.input("PreCompact"))
        process.stdin.close()
        end = time.monotonic() + WAIT_SECONDS
        while not agent.spooled and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    tool(agent, "make one")
    assert agent.spooled == []
    assert events(agent) == ["prompt", "context_compaction_warning"]


def test_what_is_brought_in_twice_is_saved_once(agent: Agent) -> None:
    """A hook that is killed after saving, and before the file is gone, leaves it to the next one."""
    agent.hook("UserPromptSubmit", prompt="Repair the login form")
    with locked(agent):
        tool(agent, "make one")
        agent.hook("PreCompact")
    files = agent.spooled
    kept = [shutil.copy2(file, agent.home / file.name) for file in files]
    tool(agent, "make two")
    for file, copy in zip(files, kept, strict=True):
        shutil.copy2(copy, file)
    agent.hook("Stop", last_assistant_message="Done.")
    assert agent.spooled == []
    assert events(agent) == ["prompt", "context_compaction_warning", "turn_end"]
    with agent.store() as store:
        state = store.get(KEY).load().state
    assert [each["name"] for each in state["recent"]] == ["make one", "make two"]
    assert agent.problems()[-1]["event"] == "PreCompact", "bringing in is no trouble"


def test_a_file_that_makes_no_sense_is_set_aside(agent: Agent) -> None:
    """It stops neither the agent nor what was kept after it."""
    agent.hook("UserPromptSubmit", prompt="Repair the login form")
    with locked(agent):
        tool(agent, "make one")
    (file,) = agent.spooled
    file.with_name("00000000000000000000-x.json").write_text("{", encoding="utf-8")
    assert agent.hook("PreCompact").out == ""
    assert agent.spooled == []
    assert list(file.parent.glob("*.unreadable"))
    assert events(agent) == ["prompt", "context_compaction_warning"]


def test_an_event_that_no_store_takes_stops_nobody(agent: Agent) -> None:
    """It is set aside, and the hooks after it save."""
    agent.hook("UserPromptSubmit", prompt="Repair the login form")
    with locked(agent):
        tool(agent, "make one")
    (file,) = agent.spooled
    event = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**event, "kind": "nothing known"}), encoding="utf-8")
    assert agent.hook("Stop", last_assistant_message="Done.").out == ""
    assert agent.spooled == []
    assert len(list(file.parent.glob("*.unreadable"))) == 1
    assert events(agent) == ["prompt", "turn_end"]


def test_kept_events_hold_no_secret_and_are_private(agent: Agent) -> None:
    """What is kept is what would be saved, readable by its owner alone."""
    agent.hook("UserPromptSubmit", prompt="Repair the login form")
    with locked(agent):
        tool(agent, "curl -H 'Authorization: Bearer abcdefghijklmnop1234' x")
    (file,) = agent.spooled
    assert "abcdefghijklmnop1234" not in file.read_text(encoding="utf-8")
    assert json.loads(file.read_text(encoding="utf-8"))["kind"] == "tool"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
