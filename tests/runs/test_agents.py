"""The agent store: states by session and project, the same whichever surface saved them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import AgentState, InvalidInput, NotFound, PlanStep, StepResult, StepStatus, aio

NOW = datetime(2026, 1, 20, 14, 30, tzinfo=UTC)

STATE = AgentState(
    query="test query",
    plan=(PlanStep("1", "Step 1", "test", {}, StepStatus.COMPLETED),),
    current_step_index=1,
    results=(StepResult("1", "result", NOW, 100),),
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'store.db'}"


@pytest.fixture
def store(url: str) -> Iterator[stepkeep.Store]:
    with stepkeep.open(url) as store:
        yield store


def test_a_saved_state_is_loaded(url: str) -> None:
    """After reopening, typed and raw; the step is the state's own."""
    with stepkeep.open(url) as store:
        saved = store.agents.save("session-1", "project-1", STATE, duration_ms=1234, token_usage=56)
        assert saved.agent_state() == STATE
    with stepkeep.open(url) as store:
        loaded = store.agents.load_latest("session-1")
        assert loaded == saved
        assert (loaded.session, loaded.project, loaded.step_number) == ("session-1", "project-1", 1)
        assert (loaded.trigger, loaded.duration_ms, loaded.token_usage) == ("auto", 1234, 56)
        assert loaded.state["results"][0]["output"] == "result"
        assert loaded.state["results"][0]["completedAt"] == "2026-01-20T14:30:00Z"
        assert loaded.agent_state() == STATE
        assert store.agents.load(saved.id) == saved
        assert store.get("session-1").info.profile == "agent"
        assert store.get("session-1").load().header.metadata == {"durationMs": 1234, "tokenUsage": 56}


def test_what_is_not_there_is_none(store: stepkeep.Store) -> None:
    """Asking does not make a session; removing says that there is nothing."""
    assert store.agents.load_latest("nobody") is None
    assert store.agents.load("cp_20260101T000000000000_0000000000") is None
    assert store.agents.list("nobody") == []
    assert list(store.sessions()) == []
    with pytest.raises(NotFound):
        store.agents.delete("cp_20260101T000000000000_0000000000")
    with pytest.raises(NotFound):
        store.agents.clear_session("nobody")
    store.session("empty")
    assert store.agents.load_latest("empty") is None


def test_a_manual_checkpoint_says_why(store: stepkeep.Store) -> None:
    """The seed's second example."""
    text = "User requested pause before external API calls"
    store.agents.save("s", "p", STATE, trigger="manual", description=text)
    [summary] = store.agents.list("s")
    assert (summary.trigger, summary.description, summary.duration_ms) == ("manual", text, 0)
    with pytest.raises(InvalidInput) as caught:
        store.agents.save("s", "p", STATE, trigger="sometimes")
    assert caught.value.code == "invalid_trigger"


def test_fifteen_saves_leave_ten(url: str) -> None:
    """The profile `agent` keeps ten, at every moment, in the process that saved as in any other."""
    with stepkeep.open(url) as store:
        for step in range(15):
            store.agents.save("session-1", "project-1", {"currentStepIndex": step})
            assert len(store.agents.list("session-1")) == min(step + 1, 10)
    with stepkeep.open(url) as store:
        listed = store.agents.list("session-1")
        assert [summary.step_number for summary in listed] == list(range(14, 4, -1))


def test_the_newest_is_the_one_saved_last(store: stepkeep.Store) -> None:
    """Not the one with the highest step."""
    store.agents.save("s", "p", {"currentStepIndex": 9})
    store.agents.save("s", "p", {"currentStepIndex": 1})
    latest = store.agents.load_latest("s")
    assert latest is not None
    assert latest.step_number == 1


@pytest.mark.parametrize(
    "state",
    [
        {"currentStepIndex": 2, "mine": {"a": (1, 2)}},
        {"currentStepIndex": "odd"},
        ["not", "an", "agent"],
        None,
        b"bytes",
    ],
)
def test_load_returns_what_any_surface_saved(store: stepkeep.Store, state: Any) -> None:
    """Raw it is exactly that; typed only if it is an agent's."""
    store.session("other", project="p").save(state, step=7, message="by hand")
    store.agents.save("mine", None, state)
    for key in ("other", "mine"):
        loaded = store.agents.load_latest(key)
        assert loaded is not None
        assert loaded.state == state
        assert store.get(key).load().state == state
        if state == {"currentStepIndex": 2, "mine": {"a": (1, 2)}}:
            assert loaded.agent_state() == AgentState(current_step_index=2, extra={"mine": {"a": (1, 2)}})
        else:
            with pytest.raises(InvalidInput):
                loaded.agent_state()
    other = store.agents.load_latest("other")
    assert other is not None
    assert (other.step_number, other.description, other.project) == (7, "by hand", "p")


def test_a_state_saved_by_hand_is_resumed_by_the_executor(store: stepkeep.Store) -> None:
    """More results than the checkpoint held: completed steps are not done again."""
    store.agents.save("session-1", "project-1", STATE)
    plan = [PlanStep("1", "Step 1", "test")]
    checkpoint = store.agents.load_latest("session-1")
    assert checkpoint is not None
    more = [*plan, PlanStep("2", "Step 2", "test")]
    result = store.execute("session-1", more, lambda _: "more", resume=True, force=True)
    assert len(result.results) > len(checkpoint.agent_state().results)
    assert result.output("1") == "result"


def test_saving_into_a_session_of_another_profile_leaves_it(store: stepkeep.Store) -> None:
    """Only new sessions get the profile `agent`; the project follows where it is given."""
    store.session("s", profile="archive", project="old")
    store.agents.save("s", None, STATE)
    assert (store.get("s").info.profile, store.get("s").info.project) == ("archive", "old")
    store.agents.save("s", "new", STATE)
    assert store.get("s").info.project == "new"
    store.execute("s", [PlanStep("1")], lambda _: None, restart=True)
    assert store.get("s").info.profile == "archive"


def test_deleting_one_and_clearing_all(url: str) -> None:
    """They do not come back on reopening."""
    with stepkeep.open(url) as store:
        first = store.agents.save("s", "p", {"currentStepIndex": 1})
        second = store.agents.save("s", "p", {"currentStepIndex": 2})
        store.agents.save("t", "p", {"currentStepIndex": 3})
        store.agents.delete(second.id)
        store.agents.clear_session("t")
    with stepkeep.open(url) as store:
        assert [summary.id for summary in store.agents.list("s")] == [first.id]
        assert store.agents.load(second.id) is None
        assert store.agents.load_latest("t") is None


def test_a_state_that_cannot_be_saved_makes_no_session(store: stepkeep.Store) -> None:
    """It is refused before anything is written."""
    with pytest.raises(InvalidInput):
        store.agents.save("s", "p", {"handle": object()})
    assert list(store.sessions()) == []


def test_the_agent_store_has_an_async_form(url: str) -> None:
    """The same methods, awaited."""

    async def main() -> None:
        async with aio.open(url) as store:
            saved = await store.agents.save("s", "p", STATE)
            assert await store.agents.load_latest("s") == saved
            assert await store.agents.load(saved.id) == saved
            assert [summary.id for summary in await store.agents.list("s")] == [saved.id]
            await store.agents.delete(saved.id)
            assert await store.agents.list("s") == []
            await store.agents.clear_session("s")
            names = {name for name in dir(stepkeep.AgentStore) if not name.startswith("_")}
            assert names == {name for name in dir(aio.AsyncAgentStore) if not name.startswith("_")}

    asyncio.run(main())
