"""What seed 004, agent checkpointing, asks for, but for its MCP tools and metrics, which have tests of their own.

Everything goes through the public API or the commands, and what is stored is read by a store that was opened anew. The
docstrings name the rows of the table of requirements. Where the table decided against the seed's sketch (the order of
checkpoints, resuming where nothing was saved), the decision is tested.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest

import stepkeep
from stepkeep import (
    AgentState,
    BackendUnavailable,
    Conflict,
    Hooks,
    InvalidInput,
    NotFound,
    PlanStep,
    Status,
    StepContext,
    StepResult,
    StepStatus,
    config,
)
from stepkeep.storage.memory import MemoryBackend
from stepkeep.storage.sqlite import SqliteBackend
from stepkeep.testing.faults import Fault, Faults
from tests.surfaces.test_cli import Cli

NOW = datetime(2026, 1, 20, 14, 30, tzinfo=UTC)
STATE = AgentState(
    query="test query",
    plan=(PlanStep("1", "Step 1", "test", {"depth": 2}, StepStatus.COMPLETED, ("0",)),),
    current_step_index=1,
    results=(StepResult("1", "result", NOW, 100, 7),),
    context={"notes": ["kept"]},
)
PLAN = [
    PlanStep("1", "Identify competitors", "search", {"industry": "cars"}),
    PlanStep("2", "Fetch Q4 revenue", "fetch", dependencies=("1",)),
    PlanStep("3", "Compile report", "compile", dependencies=("2",)),
]


class Place:
    """A store that is opened anew for every look."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "store.db"
        self.url = f"sqlite:{self.file}"

    def open(self, **flags: Any) -> stepkeep.Store:
        settings = config.load(
            cwd=None, environ={}, flags={f"agent.checkpoints.{k}": v for k, v in flags.items()}
        )
        return stepkeep.open(self.url, config=settings)

    def latest(self, key: str = "s") -> stepkeep.AgentCheckpoint:
        with self.open() as store:
            found = store.agents.load_latest(key)
        assert found is not None
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def memory() -> Iterator[stepkeep.Store]:
    with stepkeep.Store(MemoryBackend()) as store:
        yield store


class Agent:
    """Does steps and notes which; breaks at one of them while it is told to."""

    def __init__(self, broken: str | None = None) -> None:
        self.broken = broken
        self.calls: list[str] = []

    def __call__(self, context: StepContext) -> Any:
        self.calls.append(context.step.id)
        if context.step.id == self.broken:
            raise TimeoutError("API timeout")
        return {"1": ["CompanyA", "CompanyB", "CompanyC"], "2": 300}.get(context.step.id, "a report")


# --- the manager: save, load, list, delete, clear


def test_save_and_load_round_trip(place: Place) -> None:
    """P2, C6, C7, C8, H1: the seed's first test; every field of the state comes back, typed and plain."""
    with place.open() as store:
        store.agents.save("session-1", "project-1", STATE)
    loaded = place.latest("session-1")
    assert loaded.agent_state() == STATE
    assert loaded.state["currentStepIndex"] == 1
    assert loaded.state["results"] == [
        {
            "stepId": "1",
            "output": "result",
            "completedAt": "2026-01-20T14:30:00Z",
            "durationMs": 100,
            "tokenUsage": 7,
        }
    ]
    assert loaded.state["plan"][0] == {
        "id": "1",
        "description": "Step 1",
        "action": "test",
        "parameters": {"depth": 2},
        "status": "completed",
        "dependencies": ["0"],
    }


def test_what_a_checkpoint_says_of_itself(place: Place) -> None:
    """B1, B2, B4, B6, B11, B14: id, time, session, project, step, description, trigger, duration and tokens."""
    with place.open() as store:
        saved = store.agents.save(
            "s", "p", STATE, trigger="error", description="why", duration_ms=1500, token_usage=42
        )
        plain = store.agents.save("t", "p", STATE)
    found = place.latest()
    assert found.id == saved.id
    assert found.id.startswith("cp_")
    assert found.created_at.tzinfo is not None
    assert (found.session, found.project, found.step_number) == ("s", "p", 1)
    assert (found.description, found.trigger, found.duration_ms, found.token_usage) == (
        "why",
        "error",
        1500,
        42,
    )
    assert (plain.description, plain.trigger, plain.duration_ms, plain.token_usage) == ("", "auto", 0, None)


def test_a_manual_checkpoint_before_a_long_task(place: Place) -> None:
    """E7: the seed's second example."""
    text = "User requested pause before external API calls"
    with place.open() as store:
        store.agents.save("s", "p", STATE, trigger="manual", description=text)
    assert (place.latest().trigger, place.latest().description) == ("manual", text)


def test_load_by_id_and_what_is_not_there(place: Place) -> None:
    """H1: by id from whichever session; None when there is none."""
    with place.open() as store:
        old = store.agents.save("s", "p", {"currentStepIndex": 1})
        store.agents.save("s", "p", {"currentStepIndex": 2})
    with place.open() as store:
        assert store.agents.load(old.id) == old
        assert store.agents.load("cp_20260101T000000000000_0000000000") is None
        assert store.agents.load_latest("nobody") is None


def test_list_has_no_states(place: Place) -> None:
    """I1: summaries, newest first."""
    with place.open() as store:
        ids = [store.agents.save("s", "p", {"currentStepIndex": step}).id for step in range(3)]
    with place.open() as store:
        listed = store.agents.list("s")
    assert [summary.id for summary in listed] == ids[::-1]
    assert not any(hasattr(summary, "state") for summary in listed)


def test_the_latest_is_the_one_saved_last(place: Place) -> None:
    """H2, as decided: a second run in the same session begins at a lower step, and is the newest all the same."""
    with place.open() as store:
        store.execute("s", PLAN, Agent())
        store.execute("s", PLAN, Agent(broken="2"))
    assert (place.latest().step_number, place.latest().trigger) == (1, "error")


def test_delete_and_clear(place: Place) -> None:
    """I9: one checkpoint, a whole session; neither comes back."""
    with place.open() as store:
        first = store.agents.save("s", "p", {"currentStepIndex": 1})
        second = store.agents.save("s", "p", {"currentStepIndex": 2})
        store.agents.save("t", "p", STATE)
        store.agents.delete(second.id)
        store.agents.clear_session("t")
    assert place.latest().id == first.id
    with place.open() as store:
        assert store.agents.load(second.id) is None
        assert store.agents.list("t") == []


def test_fifteen_saves_leave_ten(place: Place) -> None:
    """P2, J1: the seed's second test."""
    with place.open() as store:
        for step in range(15):
            store.agents.save("session-1", "project-1", {"currentStepIndex": step})
    with place.open() as store:
        assert [each.step_number for each in store.agents.list("session-1")] == list(range(14, 4, -1))


# --- the executor


def test_execute_saves_after_each_step_and_at_the_end(place: Place) -> None:
    """E2, E5, H15: a result with success, state and duration; checkpoints after each step and `Execution complete`."""
    with place.open() as store:
        result = store.execute("s", PLAN, Agent(), query="Find all competitors", project="p")
        steps = [each.step_number for each in store.agents.list("s")][::-1]
    assert (result.success, result.error) == (True, None)
    assert result.duration_ms >= 0
    assert [step.status for step in result.state.plan] == [StepStatus.COMPLETED] * 3
    assert steps == [0, 1, 2, 3, 3]
    latest = place.latest()
    assert (latest.description, latest.trigger, latest.project) == ("Execution complete", "auto", "p")
    assert latest.agent_state() == result.state
    with place.open() as store:
        assert store.get("s").info.status is Status.COMPLETED


def test_the_handler_is_the_callers(memory: stepkeep.Store) -> None:
    """H15: without one there is nothing that could do a step."""
    with pytest.raises(InvalidInput, match="executeStep must be implemented"):
        memory.execute("s", PLAN)


def test_a_failing_step_is_saved(place: Place) -> None:
    """E4: an error checkpoint with its description, `lastError`, and the step failed; the rest is not marked done."""
    with place.open() as store:
        result = store.execute("s", PLAN, Agent(broken="2"))
    assert (result.success, result.error) == (False, "API timeout")
    found = place.latest()
    assert (found.trigger, found.description) == ("error", "Failed at step 1: Fetch Q4 revenue")
    state = found.agent_state()
    assert state.last_error is not None
    assert (state.last_error.step_index, state.last_error.message) == (1, "API timeout")
    assert state.last_error.timestamp is not None
    assert [step.status for step in state.plan] == ["completed", "failed", "skipped"]


def test_the_research_agent(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """P2, H11, N6: the seed's first example and third test: fail at 2, resume, skip 1, try 2 again, finish 3."""
    caplog.set_level(logging.INFO, "stepkeep")
    with place.open() as store:
        store.execute("s", PLAN, Agent(broken="2"), query="Find all competitors and their quarterly revenue")
    checkpoint = place.latest().agent_state()
    assert (checkpoint.current_step_index, len(checkpoint.results)) == (1, 1)
    agent = Agent()
    with place.open() as store:
        result = store.execute("s", PLAN, agent, resume=True)
    assert agent.calls == ["2", "3"]
    assert len(result.state.results) > len(checkpoint.results)
    assert result.state.query == "Find all competitors and their quarterly revenue"
    assert place.latest().agent_state().last_error is None
    assert "Resuming from checkpoint at step 1" in caplog.text


def test_working_memory_is_kept(place: Place) -> None:
    """C6: what a step puts into `context` is there after resuming."""

    def note(context: StepContext) -> None:
        if context.step.id == "2" and "tries" not in seen:
            seen.append("tries")
            raise OSError("once")
        context.context[context.step.id] = sorted(context.context)

    seen: list[str] = []
    with place.open() as store:
        store.execute("s", PLAN, note, context={"begin": 1})
    with place.open() as store:
        store.execute("s", PLAN, note, resume=True)
    assert place.latest().agent_state().context == {
        "begin": 1,
        "1": ["begin"],
        "2": ["1", "begin"],
        "3": ["1", "2", "begin"],
    }


def test_who_watches_is_told(memory: stepkeep.Store) -> None:
    """The annex: hooks for the start, completion and error of a step, and for a saved checkpoint."""
    told: list[str] = []
    hooks = Hooks(
        on_step_start=lambda step, _: told.append(f"start {step.id}"),
        on_step_complete=lambda step, _: told.append(f"complete {step.id}"),
        on_step_error=lambda step, error, _: told.append(f"error {step.id}: {error}"),
        on_checkpoint=lambda header: told.append(f"saved {header.step}"),
    )
    memory.execute("s", PLAN, Agent(broken="2"), hooks=hooks)
    wanted = ["start 1", "complete 1", "start 2", "error 2: API timeout"]
    assert [each for each in told if not each.startswith("saved")] == wanted
    assert {"saved 1"} <= set(told)


# --- the configuration


@pytest.mark.parametrize(
    ("flags", "saved"),
    [({}, 5), ({"auto_checkpoint": False}, 2), ({"enabled": False}, 0)],
    ids=["default", "auto off", "all off"],
)
def test_checkpoints_can_be_switched_off(place: Place, flags: dict[str, Any], saved: int) -> None:
    """L3: `enabled` and `autoCheckpoint`; the work is done all the same."""
    with place.open(**flags) as store:
        assert store.execute("s", PLAN, Agent()).success
    with place.open() as store:
        assert len(store.agents.list("s")) == saved


def test_how_much_is_kept(place: Place) -> None:
    """L3, J1: `maxCheckpointsPerSession`."""
    with place.open(max_checkpoints_per_session=3) as store:
        for step in range(8):
            store.agents.save("s", "p", {"currentStepIndex": step})
    with place.open() as store:
        assert [each.step_number for each in store.agents.list("s")] == [7, 6, 5]


def test_how_long_it_is_kept(tmp_path: Path) -> None:
    """L3, J4: `pruneAfterDays`, from the file of a project, by the command."""
    cli = Cli(tmp_path)
    (tmp_path / "stepkeep.yaml").write_text(
        "agent: {checkpoints: {prune_after_days: 0}}\nkeeper: {enabled: false}\n", encoding="utf-8"
    )
    with stepkeep.open(cli.url, config=config.load(cwd=tmp_path, environ={})) as store:
        store.execute("s", PLAN, Agent())
    assert cli.here("clean").code == 0
    assert cli.here("list", "--json").json == []


@pytest.mark.parametrize("compresses", [True, False])
def test_large_states_are_compressed(place: Place, compresses: bool) -> None:
    """L3, G4: `compressState`, on unless switched off; either way the state comes back."""
    state = {"currentStepIndex": 0, "context": {"text": "the same again " * 2000}}
    with place.open(compress_state=compresses) as store:
        store.agents.save("s", "p", state)
    with apsw.Connection(str(place.file)) as database:
        rows: list[Any] = database.execute("SELECT stored_size FROM bodies").fetchall()
    assert (rows[0][0] < 3000) is compresses
    assert place.latest().state == state


# --- its traps


def test_a_failing_save_is_not_a_failing_step(place: Place) -> None:
    """The save has an error of its own; the step is not marked failed, and is simply done again later."""

    def fill_the_disk() -> None:
        raise BackendUnavailable("the disk is full", retryable=False)

    faults = Faults(Fault(fill_the_disk, "append", 3))
    with stepkeep.Store(faults.wrap(SqliteBackend(place.file))) as store, pytest.raises(BackendUnavailable):
        store.execute("s", PLAN, Agent())
    found = place.latest().agent_state()
    assert found.last_error is None
    assert [step.status for step in found.plan] == ["completed", "pending", "pending"]
    agent = Agent()
    with place.open() as store:
        assert store.execute("s", PLAN, agent, resume=True).success
    assert agent.calls == ["2", "3"]


def test_a_second_run_in_one_session(place: Place) -> None:
    """Its newest checkpoint is not lost behind the higher steps of the first run, and is what is resumed."""
    with place.open() as store:
        store.execute("s", PLAN, Agent(), query="first")
        store.execute("s", PLAN, Agent(broken="2"), query="second")
    assert place.latest().agent_state().query == "second"
    agent = Agent()
    with place.open() as store:
        assert store.execute("s", PLAN, agent, resume=True).state.query == "second"
    assert agent.calls == ["2", "3"]


def test_resume_without_a_checkpoint(place: Place) -> None:
    """H11, as decided: an error, never an empty success; and it leaves nothing."""
    agent = Agent()
    with place.open() as store:
        with pytest.raises(NotFound) as caught:
            store.execute("s", PLAN, agent, resume=True)
        assert list(store.sessions()) == []
    assert (caught.value.code, agent.calls) == ("nothing_to_resume", [])


def test_a_changed_plan_is_seen(place: Place) -> None:
    """It is refused with what changed, and goes on only when it is forced to."""
    with place.open() as store:
        store.execute("s", PLAN, Agent(broken="2"))
    changed = [*PLAN[:2], PlanStep("4", "Send it", "mail", dependencies=("2",))]
    agent = Agent()
    with place.open() as store:
        with pytest.raises(Conflict) as caught:
            store.execute("s", changed, agent, resume=True)
        assert (caught.value.code, agent.calls) == ("plan_changed", [])
        assert store.execute("s", changed, agent, resume=True, force=True).success
    assert agent.calls == ["2", "4"]


def test_undone_work_is_never_marked_done(place: Place) -> None:
    """Steps that never ran are skipped or pending, have no result, and run when the work is resumed."""
    independent = [PlanStep("1"), PlanStep("2"), PlanStep("3"), PlanStep("4", dependencies=("2",))]
    with place.open() as store:
        result = store.execute("s", independent, Agent(broken="2"))
    assert not result.success
    state = place.latest().agent_state()
    assert [step.status for step in state.plan] == ["completed", "failed", "pending", "skipped"]
    assert [each.step_id for each in state.results] == ["1"]
    agent = Agent()
    with place.open() as store:
        store.execute("s", independent, agent, resume=True)
    assert agent.calls == ["2", "3", "4"]
