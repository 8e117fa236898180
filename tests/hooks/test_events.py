"""Every event of every client, through the real command: what is saved, and what is answered."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import pytest

import stepkeep
from stepkeep.codec.readable import CommandOutcome
from stepkeep.recording.coding_agents.hook_events import BEFORE_TOOL, END, EVENTS, START
from stepkeep.recording.phase_checkpoints import record_of
from stepkeep.storage.urls import open_backend
from stepkeep.testing import FakeClock
from tests.hooks.conftest import FIXTURES, Agent

CASES = [(client, event) for client, events in EVENTS.items() for event in events]
KEYS = {
    "claude-code": "claude-code:00893aaf-19fa-41d2-8238-13269b9b3ca0",
    "gemini": "gemini:gemini-7",
    "codex": "codex:019a-codex",
    "copilot": "copilot:copilot-7",
    "cursor": "cursor:cursor-7",
    "opencode": "opencode:ses_7",
}
SAVES_NOTHING = {START, BEFORE_TOOL, END}
"""What an agent that has done nothing yet has nothing to save at."""


def test_there_is_a_fixture_for_every_event() -> None:
    """The table of events and the inputs kept for them name the same."""
    found = {(path.parent.name, path.stem) for path in FIXTURES.glob("*/*.json")}
    assert found == set(CASES)


@pytest.mark.full
@pytest.mark.parametrize(("client", "event"), CASES)
def test_an_event_is_saved_and_answered(agent: Agent, client: str, event: str) -> None:
    """Its checkpoint is there after reopening; the answer is JSON the client takes; nothing else is printed."""
    if event == "agent-turn-complete":
        command = [*agent.command(event, client), agent.input(event, client).decode()]
        answer = agent.raw(command, b"")
    else:
        answer = agent.hook(event, client)
    assert (answer.code, answer.err, agent.problems()) == (0, "", [])
    assert answer.out == ("" if client in ("claude-code", "opencode") else "{}\n")
    if EVENTS[client][event] in SAVES_NOTHING:
        assert not agent.file.exists() or not list(agent.store().sessions())
        return
    with agent.store() as store:
        session = store.get(KEYS[client])
        newest = session.latest()
        assert newest is not None
        assert newest.state["client"] == client
        assert newest.state["cwd"] == str(agent.folder)
        assert session.info.profile == "phase"
        assert record_of(newest.header, session.info).phase in ("observe", "execute", "verify")
        for outcome in newest.details["command_outcomes"]:
            msgspec.convert(outcome, CommandOutcome)


def test_outcomes_of_tools_wait_for_the_next_checkpoint(agent: Agent) -> None:
    """A tool that was used is noted at once, and part of the next checkpoint; the first one makes one."""
    agent.hook("UserPromptSubmit")
    assert agent.hook("PostToolUse").out == ""
    assert agent.hook("PostToolUse", tool_input={"command": "ls"}).out == ""
    with agent.store() as store:
        session = store.get(KEYS["claude-code"])
        assert session.info.last_seq == 1
        assert [event.type for event in session.events()].count("agent_event") == 2
    agent.hook("Stop")
    with agent.store() as store:
        newest = store.get(KEYS["claude-code"]).load()
        names = [outcome["name"] for outcome in newest.details["command_outcomes"]]
        assert names == ["pytest -q", "ls"]
        assert newest.details["command_outcomes"][0]["duration_ms"] == 840
        assert newest.state["last_message"] == "The login works again; next I look at the tests."
        assert newest.header.trigger.event == "turn_end"


def test_a_failed_tool_is_an_error_boundary(agent: Agent) -> None:
    """It is saved at once, with what went wrong."""
    agent.hook("UserPromptSubmit")
    agent.hook("PostToolUseFailure")
    with agent.store() as store:
        newest = store.get(KEYS["claude-code"]).load()
    assert (newest.header.trigger.kind, newest.header.trigger.event) == ("error", "recoverable_error")
    (outcome,) = newest.details["command_outcomes"]
    assert (outcome["result"], outcome["reason_code"]) == ("FAIL", "tool_failure")
    assert "non-zero status" in outcome["summary"]


def test_the_task_list_is_kept(agent: Agent) -> None:
    """Changing the list is a step boundary, and a completed task is marked."""
    todos = [
        {"content": "Repair the login form", "status": "in_progress", "activeForm": "Repairing"},
        {"content": "Write a test", "status": "pending", "activeForm": "Writing"},
    ]
    agent.hook("PostToolUse", tool_name="TodoWrite", tool_input={"todos": todos})
    agent.hook("TaskCompleted")
    with agent.store() as store:
        newest = store.get(KEYS["claude-code"]).load()
    assert [(task["subject"], task["status"]) for task in newest.state["tasks"]] == [
        ("Repair the login form", "completed"),
        ("Write a test", "pending"),
    ]
    assert newest.header.message == "Write a test"
    assert newest.details["step_state"] == {"step_id": "2", "step_status": "pending"}


def test_where_the_transcript_ends_is_saved_not_the_transcript(agent: Agent) -> None:
    """A pointer and a digest of the tail; the last answer is read from it where the event brings none."""
    entries = [
        {"type": "user", "message": {"role": "user", "content": "a long story " * 50}},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": "I read auth.py."}]}},
        {"type": "assistant", "message": {"content": [{"type": "tool_use", "name": "Bash", "input": {}}]}},
    ]
    agent.transcript.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    agent.hook("PreCompact")
    with agent.store() as store:
        state = store.get(KEYS["claude-code"]).load().state
    assert state["transcript"]["size_bytes"] == agent.transcript.stat().st_size
    assert len(state["transcript"]["tail_sha256"]) == 64
    assert state["last_message"] == "I read auth.py."
    assert "a long story" not in json.dumps(state)


def test_the_commit_is_read_without_running_git(agent: Agent, tmp_path: Path) -> None:
    """Branch and commit come from git's own files, loose or packed; the project is the repository."""
    git, inner = agent.folder / ".git", agent.folder / "src"
    (git / "refs" / "heads").mkdir(parents=True)
    inner.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/work\n", encoding="utf-8")
    (git / "packed-refs").write_text(f"# pack-refs\n{'a' * 40} refs/heads/work\n", encoding="utf-8")
    agent.hook("Stop", cwd=str(inner))
    agent.settled()
    with agent.store() as store:
        session = store.get(KEYS["claude-code"])
        assert session.load().state["git"] == {"commit": "a" * 40, "branch": "work"}
        assert session.info.project == str(agent.folder)
    (git / "refs" / "heads" / "work").write_text("b" * 40 + "\n", encoding="utf-8")
    agent.hook("Stop", cwd=str(inner), last_assistant_message="More.")
    agent.settled()
    with agent.store() as store:
        assert store.get(KEYS["claude-code"]).load().state["git"]["commit"] == "b" * 40


def test_nothing_secret_is_stored(agent: Agent) -> None:
    """Values that look like secrets are hidden in commands, messages and prompts."""
    key = "sk-" + "a1b2c3d4" * 4
    agent.hook("UserPromptSubmit", prompt=f"use the key {key} please")
    agent.hook(
        "PostToolUseFailure",
        tool_input={"command": f"curl -H 'Authorization: Bearer {key}' --password hunter22"},
    )
    agent.hook("Stop", last_assistant_message=f"API_TOKEN={key[3:]} is set; fix the password reset form")
    stored = b"".join(path.read_bytes() for path in agent.file.parent.glob("store.db*"))
    with agent.store() as store:
        checkpoints = [checkpoint.state for checkpoint in map(store.get(KEYS["claude-code"]).load, (1, 2, 3))]
    text = json.dumps(checkpoints)
    assert key not in text
    assert key.encode() not in stored
    assert "hunter22" not in text
    assert "fix the password reset form" in text


@pytest.mark.full
def test_a_session_that_ends_with_nothing_left_is_completed(agent: Agent) -> None:
    """The last turn came to its end and no task is open: completed. In the middle of a turn: paused, and offered."""
    agent.hook("UserPromptSubmit")
    agent.hook("PostToolUse")
    agent.hook("SessionEnd")
    with agent.store() as store:
        assert store.get(KEYS["claude-code"]).info.status == "paused"
    agent.hook("UserPromptSubmit", prompt="go on")
    agent.hook("Stop")
    agent.hook("SessionEnd")
    with agent.store() as store:
        assert store.get(KEYS["claude-code"]).info.status == "completed"
    agent.hook("Stop")
    with agent.store() as store:
        assert store.get(KEYS["claude-code"]).info.status == "completed", (
            "what comes after the end reopens nothing"
        )


@pytest.mark.full
def test_the_end_of_a_session_cleans_up(agent: Agent) -> None:
    """Sessions whose time has come go then, since no keeper runs in a hook; what is young stays."""
    long_ago = FakeClock(int((time.time() - 40 * 86_400) * 1e6))
    with stepkeep.Store(open_backend(agent.url), clock=long_ago) as store:
        done = store.phases.create_checkpoint("learn", session_id="old", task_summary="Old and done")
        store.phases.complete_checkpoint(done.checkpoint_id or "")
    agent.hook("UserPromptSubmit")
    agent.hook("SessionEnd")
    with agent.store() as store:
        assert [info.key for info in store.sessions()] == [KEYS["claude-code"]]


@pytest.mark.full
def test_gemini_gets_the_context_back_with_the_next_prompt(agent: Agent) -> None:
    """It starts no session after a compression, so the next prompt brings what was saved, once."""
    assert agent.hook("BeforeAgent", "gemini").context == ""
    agent.hook("PreCompress", "gemini")
    agent.hook("AfterAgent", "gemini")
    answer = agent.hook("BeforeAgent", "gemini", prompt="what now?")
    assert "Saved before the context was compacted" in answer.context
    assert answer.json["hookSpecificOutput"]["hookEventName"] == "BeforeAgent"
    assert "Last answer of the agent:\nThe login works again." in answer.context
    assert agent.hook("BeforeAgent", "gemini", prompt="and now?").context == ""
