"""Hooks of coding agents on an encrypted store: nothing of an event is written in clear, wherever it waits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import stepkeep
from stepkeep.api import agent_hooks
from tests.encryption.stores_of_encryption import KEY, MARK, marked_files
from tests.hooks.conftest import Agent, Answer

SESSION = "claude-code:00893aaf-19fa-41d2-8238-13269b9b3ca0"

pytestmark = pytest.mark.full


class EncryptedAgent(Agent):
    """An agent whose store is encrypted, with the key in a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.key_file = folder / "key"
        self.key_file.write_bytes(KEY)
        self.has_key = True
        self.store(encrypt=True).close()

    @property
    def environment(self) -> dict[str, str]:
        key = {"STEPKEEP_KEY_FILE": str(self.key_file)} if self.has_key else {}
        return {**super().environment, **key}

    def store(self, **options: bool) -> stepkeep.Store:
        return stepkeep.open(self.url, key=KEY, **options)

    def tool(self) -> Answer:
        return self.hook("PostToolUse", tool_name="Bash", tool_input={"command": f"make {MARK}"})

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Somebody writes to the store, and does not come to an end."""
        with contextlib.closing(apsw.Connection(str(self.file))) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")


@pytest.fixture
def agent(tmp_path: Path) -> EncryptedAgent:
    return EncryptedAgent(tmp_path)


def test_what_waits_in_the_spool_is_encrypted_and_comes_in(agent: EncryptedAgent, tmp_path: Path) -> None:
    """While the store is locked, also before a compaction, which is kept before the store is tried."""
    agent.hook("UserPromptSubmit", prompt=f"Repair {MARK}")
    with agent.locked():
        agent.tool()
        agent.hook("PreCompact")
        assert len(agent.spooled) == 2
        assert marked_files(tmp_path) == []
    back = agent.hook("SessionStart", source="compact")
    assert f"make {MARK}" in back.context
    assert agent.spooled == []
    assert marked_files(tmp_path) == []
    with agent.store() as store:
        assert MARK in str(store.get(SESSION).latest().state)


def test_without_the_key_nothing_is_kept_in_clear(agent: EncryptedAgent, tmp_path: Path) -> None:
    """The agent goes on, the person is told, and what the event said is nowhere."""
    agent.has_key = False
    answer = agent.hook("UserPromptSubmit", prompt=f"Repair {MARK}")
    assert "saved nothing" in answer.message
    assert "STEPKEEP_KEY_FILE" in answer.message
    agent.hook("PreCompact", custom_instructions=MARK)
    assert agent.spooled == []
    assert marked_files(tmp_path) == []
    assert {each["code"] for each in agent.problems()} == {"key_missing"}


def test_a_store_that_is_away_gets_its_events_later(agent: EncryptedAgent, tmp_path: Path) -> None:
    """They are encrypted by what was noted of its keys."""
    agent.hook("UserPromptSubmit", prompt=f"Repair {MARK}")
    with contextlib.closing(apsw.Connection(str(agent.file))) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE; UPDATE meta SET value = value")
        agent.tool()
        assert len(agent.spooled) == 1
        assert marked_files(tmp_path) == []
    agent.hook("SessionStart", source="compact")
    assert agent.spooled == []


def test_the_log_of_hooks_does_not_say_what_was_to_be_saved(
    agent: EncryptedAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors name keys of a state, which an encrypted store keeps secret: the log has their code only."""
    (tmp_path / "plain").mkdir()
    plain = Agent(tmp_path / "plain")
    for each in (plain, agent):
        if "STEPKEEP_KEY_FILE" in each.environment:
            monkeypatch.setenv("STEPKEEP_KEY_FILE", each.environment["STEPKEEP_KEY_FILE"])
        stores = agent_hooks._Stores("claude-code", "PostToolUse", each.url, each.environment)
        store = stores.own()
        assert store is not None
        with pytest.raises(stepkeep.InvalidInput, match=MARK) as refused:
            store.session("run").save({MARK: object()})
        told = agent_hooks._told(stores, refused.value)
        assert MARK in told["systemMessage"]  # the person may know
        assert each.problems()[0]["code"] == refused.value.code
        store.close()
    assert MARK in plain.problems()[0]["message"]
    assert [file for file in marked_files(tmp_path) if not file.startswith("plain")] == []


def test_what_waits_comes_in_after_the_data_key_changed(agent: EncryptedAgent, tmp_path: Path) -> None:
    """It is encrypted with a key that stays: nobody can encrypt anew what lies outside the store."""
    agent.hook("UserPromptSubmit", prompt=f"Repair {MARK}")
    with agent.locked():
        agent.tool()
        assert len(agent.spooled) == 1
    with agent.store() as store:
        assert store.keys.rekey().is_done
    back = agent.hook("SessionStart", source="compact")
    assert f"make {MARK}" in back.context
    assert agent.spooled == []
    assert marked_files(tmp_path) == []
