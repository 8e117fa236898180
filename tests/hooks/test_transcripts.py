"""Transcripts that are kept beside the state: incremental, readable, and given back byte for byte."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.hooks.conftest import Agent
from tests.hooks.test_files import KEY, make_repository
from tests.hooks.test_rewind import prompt, rewind, said, stop, transcript, turns

pytestmark = pytest.mark.full


def keeping(agent: Agent) -> None:
    (agent.folder / "stepkeep.yaml").write_text("hooks:\n  transcript: true\n", encoding="utf-8")


def exported(agent: Agent, *words: str) -> bytes:
    output = agent.home / "out.jsonl"
    done = agent.stepkeep("export", KEY, *words, "--transcript", "--output", str(output), "--force")
    assert done.code == 0, done.err
    return output.read_bytes()


def test_a_transcript_is_given_back_byte_for_byte(agent: Agent) -> None:
    """As it was at each checkpoint, also half a line and bytes that are no text."""
    keeping(agent)
    seen = []
    for number in range(3):
        transcript(agent, said("user", f"u{number}", "Do it"), said("assistant", f"a{number}", "Done."))
        with agent.transcript.open("ab") as file:
            file.write(b'{"type": "odd \xff\x00')
        agent.hook("Stop", last_assistant_message=f"Done {number}.")
        seen.append(agent.transcript.read_bytes())
    for number, content in enumerate(seen, 1):
        assert exported(agent, f"#{number}") == content
    assert exported(agent) == seen[-1]
    agent.transcript.write_bytes(b'{"type": "summary"}\n')
    agent.hook("PreCompact")
    assert exported(agent) == b'{"type": "summary"}\n', "what is written anew is kept anew"
    assert exported(agent, "#2") == seen[1]
    with agent.store() as store:
        assert store.verify().is_intact


def test_a_long_transcript_costs_its_growth(agent: Agent) -> None:
    """Each turn adds what it wrote, not the whole: stored bytes grow with the transcript, not with its square."""
    keeping(agent)
    stored = []
    for number in range(8):
        noise = "".join(f"{(each * 7919 + number) % 104729:x}" for each in range(60_000))
        transcript(agent, said("assistant", f"a{number}", noise))
        agent.hook("Stop", last_assistant_message=f"Done {number}.")
        with agent.store() as store:
            usage = store.usage()
            stored.append(usage.blob_bytes + usage.body_bytes)
    growth = [after - before for before, after in itertools.pairwise(stored)]
    assert max(growth) < 1.5 * min(growth)


def test_the_conversation_is_shown(agent: Agent) -> None:
    """`show` has the last messages, `rewind` the whole prompt, even when the client's file is gone."""
    keeping(agent)
    make_repository(agent.folder)
    long = "Repair the login form, and " + "check it again " * 60
    prompt(agent, "Begin with the first thing")
    transcript(agent, said("user", "u1", "Begin with the first thing"), said("assistant", "a1", "I did."))
    stop(agent)
    prompt(agent, long)
    transcript(agent, said("user", "u2", long), said("assistant", "a2", "The form is repaired."))
    stop(agent)
    agent.transcript.unlink()
    shown = agent.stepkeep("show", KEY).out
    assert "transcript: 4 entries" in shown
    assert "assistant: The form is repaired." in shown
    found = json.loads(agent.stepkeep("show", KEY, "--json").out)["transcript"]
    assert [each["role"] for each in found["messages"]] == ["user", "assistant", "user", "assistant"]
    assert turns(agent)[0]["prompt"] == long
    assert turns(agent)[0]["answer"] == "Done."
    assert long.strip() in rewind(agent, "2", "--conversation").out


def test_nothing_is_kept_unless_asked_for(agent: Agent, tmp_path: Path) -> None:
    """The state has where the transcript ends, and no more."""
    transcript(agent, said("user", "u1", "a very particular sentence"))
    agent.hook("UserPromptSubmit")
    agent.hook("PreCompact")
    done = agent.stepkeep("export", KEY, "--transcript", "--output", str(tmp_path / "out"))
    assert done.code == 3
    assert "hooks.transcript" in done.err
    assert b"a very particular sentence" not in agent.file.read_bytes()
