"""Whatever comes in, and whatever is wrong with the store: the agent goes on, and the person learns of it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time

import apsw
import pytest

from tests.hooks.conftest import Agent

INPUTS = {
    "empty": b"",
    "blank": b" \n",
    "no JSON": b"hello",
    "truncated": b'{"session_id": "a", "cwd": "/tm',
    "a list": b"[1, 2]",
    "a number": b"7",
    "foreign": b'{"jsonrpc": "2.0", "method": "ping"}',
    "no session": b'{"hook_event_name": "Stop"}',
    "a session that is no text": b'{"session_id": 7}',
    "an empty session": b'{"session_id": ""}',
    "not UTF-8": b'{"session_id": "\xff\xfe"}',
    "deep": b'{"session_id":"a","tool_input":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "NaN": b'{"session_id": "a", "duration_ms": NaN}',
}


@pytest.mark.parametrize("name", INPUTS)
def test_input_that_makes_no_sense_is_told_and_ignored(agent: Agent, name: str) -> None:
    """Exit code 0, one message for the person, one line in the log, and no store."""
    answer = agent.raw(agent.command("Stop"), INPUTS[name])
    assert (answer.code, answer.err) == (0, "")
    assert answer.message.startswith("Stepkeep saved nothing at Stop: the input")
    (problem,) = agent.problems()
    assert (problem["event"], problem["code"]) == ("Stop", "invalid_event")
    assert not agent.file.exists()


@pytest.mark.parametrize("client", ["claude-code", "gemini", "codex", "nobody", "../../x"])
def test_unknown_events_and_clients_do_not_stop_the_agent(agent: Agent, client: str) -> None:
    """They are told, with what there is."""
    answer = agent.raw(agent.command("NoSuchEvent", client), agent.input("Stop"))
    assert (answer.code, answer.err) == (0, "")
    assert "use one of" in answer.message
    assert len(agent.problems()) == 1


def test_unknown_and_wrong_fields_are_tolerated(agent: Agent) -> None:
    """New fields are ignored, and fields of the wrong kind count as missing."""
    fields = {
        "brand_new": {"deep": [1, {}]},
        "last_assistant_message": {"not": "text"},
        "transcript_path": 7,
        "permission_mode": [],
        "tool_input": "text",
        "tool_response": None,
        "stop_hook_active": "yes",
    }
    assert agent.hook("Stop", **fields).out == ""
    assert (
        agent.hook("PostToolUse", tool_input="text", tool_name=None, duration_ms="x", tool_response=3).out
        == ""
    )
    assert agent.hook("TaskCompleted", task_id=None, task_subject=["x"]).out == ""
    assert agent.problems() == []


@pytest.mark.full
def test_a_huge_input_is_read_to_its_end_and_bounded(agent: Agent) -> None:
    """A long tool answer is fine; more than the bound is refused without being kept."""
    assert agent.hook("PostToolUse", tool_response={"stdout": "x" * 20_000_000}).out == ""
    assert agent.file.stat().st_size < 1_000_000
    answer = agent.raw(agent.command("Stop"), b'{"session_id": "a", "x": "' + b"y" * (65 << 20))
    assert answer.code == 0
    assert "more than" in answer.message


@pytest.mark.parametrize(
    "session", ["../../etc/passwd", "a/b\\c", "nul\0byte", "x" * 5000, "emoji 🙂", "-rf"]
)
def test_session_ids_are_only_ever_keys(agent: Agent, session: str) -> None:
    """Path characters, endless and broken texts make a session like any other, and no file."""
    before = sorted(agent.home.parent.rglob("*"))
    answer = agent.raw(
        agent.command("Stop"), json.dumps({"session_id": session, "cwd": str(agent.folder)}).encode()
    )
    assert (answer.code, answer.out) == (0, "")
    with agent.store() as store:
        (info,) = store.sessions()
        assert info.key.startswith("claude-code:")
    new = {path.name for path in set(agent.home.parent.rglob("*")) - set(before)}
    assert new <= {"store.db", "store.db-wal", "store.db.metrics", "store.db-shm", "store.db-lock"}


@pytest.mark.full
@pytest.mark.parametrize("client", ["claude-code", "gemini", "codex"])
def test_half_characters_are_replaced_and_that_is_said(agent: Agent, client: str) -> None:
    """An emoji that was cut in the middle costs no event; python itself refuses such a text."""
    event = "BeforeAgent" if client == "gemini" else "UserPromptSubmit"
    content = agent.input(event, client).replace(b"{", b'{"prompt": "Repair the form \\ud83d", ', 1)
    content = content.replace(b'"prompt": "Fix', b'"old": "Fix').replace(b'"prompt": "What', b'"old": "What')
    answer = agent.raw(agent.command(event, client), content)
    assert (answer.code, answer.message) == (0, "")
    with agent.store() as store:
        (info,) = store.sessions()
        assert store.get(info.key).load().state["prompt"] == "Repair the form \ufffd"
    assert [problem["code"] for problem in agent.problems()] == ["text_repaired"]
    assert "hooks could not save" not in agent.stepkeep("status").err


@pytest.mark.full
def test_a_locked_store_does_not_stall_the_agent(agent: Agent) -> None:
    """The hook gives up after a moment, and says so once in a while, not at every tool."""
    agent.hook("Stop")
    with contextlib.closing(apsw.Connection(str(agent.file))) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        answer = agent.hook("PostToolUse")
        assert answer.code == 0
        assert "keeps it for the next event, at PostToolUse" in answer.message
        assert agent.hook("PostToolUse").out == "", "the same trouble is not told again at once"
        assert time.monotonic() - began < 20
        other.execute("ROLLBACK")
    assert len(agent.problems()) == 2
    assert agent.hook("PostToolUse").out == ""
    status = agent.stepkeep("hooks", "status")
    assert "Problems, newest first" in status.out
    assert "PostToolUse" in status.out
    assert "hooks could not save" in agent.stepkeep("status").err


@pytest.mark.full
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:/proc/no/such/place.db", "keeps it for the next event, at Stop"),
        ("nonsense:x", "Stepkeep saved nothing at Stop"),
        ("postgresql://127.0.0.1:1/none?connect_timeout=1", "keeps it for the next event, at Stop"),
        ("sqlite:{folder}", "Stepkeep saved nothing at Stop"),
    ],
)
def test_a_store_that_cannot_be_used_is_told(agent: Agent, url: str, told: str) -> None:
    """Missing, unknown, unreachable, or a directory; what may be usable later gets the event then."""
    command = [*agent.command("Stop"), "--store", url.format(folder=agent.folder)]
    answer = agent.raw(command, agent.input("Stop"))
    assert (answer.code, answer.err) == (0, "")
    assert told in answer.message
    assert len(agent.problems()) == 1


@pytest.mark.full
def test_a_full_disk_is_told(agent: Agent) -> None:
    """What cannot be written is no reason to stop, and the store is whole afterwards."""
    agent.hook("UserPromptSubmit")
    small = (
        "import os, resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", small]
    answer = agent.raw([*command, *agent.command("Stop")], agent.input("Stop"))
    assert answer.code == 0
    assert "Stepkeep saved nothing at Stop" in answer.message
    with agent.store() as store:
        assert store.verify().is_intact


def test_a_log_that_cannot_be_written_is_no_reason_either(agent: Agent) -> None:
    """Then the answer alone tells the person."""
    answer = agent.raw(agent.command("Stop"), b"", STEPKEEP_HOOK_LOG="/proc/nothing/here.log")
    assert (answer.code, answer.err) == (0, "")
    assert "the input is empty" in answer.message


def test_nobody_reads_the_answer(agent: Agent) -> None:
    """A closed stdout is no error of the hook."""
    process = subprocess.Popen(
        agent.command("SessionStart", "gemini"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=agent.environment,
        cwd=agent.folder,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.write(agent.input("SessionStart", "gemini"))
    process.stdin.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(60) == 0


def test_without_an_event_the_usage_is_shown(agent: Agent) -> None:
    """Never with exit code 2, which would block an agent."""
    bare = [sys.executable, "-m", "stepkeep", "hook"]
    assert agent.raw(bare, b"").code == 0
    assert "Usage: stepkeep hook EVENT" in agent.raw([*bare, "--help"], b"").out
    behind = [sys.executable, "-m", "stepkeep", "--store", agent.url, "hook"]
    assert agent.raw(behind, b"").code == 0
    assert agent.raw([*behind, "Stop"], agent.input("Stop")).out == ""
    assert agent.file.exists(), "options may also stand before the command"


@pytest.mark.full
def test_a_broken_configuration_is_told(agent: Agent) -> None:
    """The store is not known then, so nothing is saved into a wrong one."""
    (agent.folder / "stepkeep.yaml").write_text("store: [", encoding="utf-8")
    answer = agent.raw(agent.command("Stop"), agent.input("Stop"), STEPKEEP_STORE="")
    assert answer.code == 0
    assert "stepkeep.yaml" in answer.message
    (agent.folder / "stepkeep.yaml").write_text("store: sqlite:here.db\n", encoding="utf-8")
    assert agent.raw(agent.command("Stop"), agent.input("Stop"), STEPKEEP_STORE="").out == ""
    assert (agent.folder / "here.db").exists()


@pytest.mark.full
def test_many_hooks_at_once_lose_nothing(agent: Agent) -> None:
    """Tools in parallel: every outcome is in the session, and none waits long enough to fail."""
    agent.hook("UserPromptSubmit")
    processes = []
    for number in range(12):
        process = subprocess.Popen(
            agent.command("PostToolUse"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=agent.environment,
            cwd=agent.folder,
        )
        assert process.stdin is not None
        process.stdin.write(agent.input("PostToolUse", tool_input={"command": f"echo {number}"}))
        process.stdin.close()
        processes.append(process)
    assert [process.wait(60) for process in processes] == [0] * 12
    agent.hook("Stop")
    with agent.store() as store:
        newest = store.get("claude-code:00893aaf-19fa-41d2-8238-13269b9b3ca0").load()
    names = {outcome["name"] for outcome in newest.details["command_outcomes"]}
    assert names == {f"echo {number}" for number in range(12)}
    assert agent.problems() == []


HEAVY = (
    "base64",
    "click",
    "yaml",
    "rich",
    "platform",
    "textwrap",
    "platformdirs",
    "asyncio",
    "mcp",
    "pydantic",
    "psycopg",
)


@pytest.mark.full
@pytest.mark.parametrize(
    "event", ["SessionStart", "UserPromptSubmit", "PostToolUse", "PreCompact", "Stop", "SessionEnd"]
)
def test_a_hook_imports_nothing_heavy(agent: Agent, event: str) -> None:
    """Neither what commands need, nor yaml where no file is there to read."""
    agent.hook("UserPromptSubmit")
    program = (
        "import sys; sys.argv = ['stepkeep', *sys.argv[1:]]\n"
        "from stepkeep.hooks.answering import main\n"
        "main(sys.argv[2:])\n"
        "print(','.join(sorted(sys.modules)), file=sys.stderr)"
    )
    answer = agent.raw([sys.executable, "-c", program, "hook", event], agent.input(event))
    imported = answer.err.strip().split(",")
    modules = {name.partition(".")[0] for name in imported}
    assert "apsw" in modules
    assert "stepkeep.recording.coding_agents.destruction" not in imported
    assert not modules & set(HEAVY)
