"""What a plan takes is looked at before its first step: what one process runs, the next can resume."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import (
    AgentState,
    Conflict,
    InvalidInput,
    PlanStep,
    RetryPolicy,
    Status,
    StepContext,
    StepResult,
    aio,
)
from stepkeep.config import load as settings


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'store.db'}"


@pytest.fixture
def store(url: str) -> Iterator[stepkeep.Store]:
    with stepkeep.open(url) as store:
        yield store


def never(context: StepContext) -> None:
    raise AssertionError(f"step {context.step.id} must not be called")


# --- plans


@pytest.mark.parametrize(
    ("step", "named"),
    [
        (PlanStep(1, "one"), "id"),  # type: ignore[arg-type]
        (PlanStep("1", description=5), "description"),  # type: ignore[arg-type]
        (PlanStep("1", parameters=[1]), "parameters"),  # type: ignore[arg-type]
        (PlanStep("1", dependencies="ab"), "dependencies"),  # type: ignore[arg-type]
        (PlanStep("1", status="odd"), "status"),  # type: ignore[arg-type]
        (PlanStep("1", timeout="5"), "timeout"),  # type: ignore[arg-type]
        (PlanStep("1", timeout=-1), "timeout"),
        ({"id": "1", "retry": "often"}, "retry"),
        ({"id": "1", "actoin": "search"}, "did you mean 'action'?"),
        (5, "not int"),
    ],
)
def test_a_step_that_could_not_be_resumed_is_not_run(store: stepkeep.Store, step: Any, named: str) -> None:
    """Objects are checked like dicts, and no session is made."""
    with pytest.raises(InvalidInput) as refused:
        store.execute("s", [step], never)
    assert refused.value.code == "invalid_plan"
    assert named in refused.value.message
    assert not list(store.sessions())


def test_parameters_that_are_none_are_none_at_all(url: str) -> None:
    """A plan with them is resumed by the identical plan."""
    plan = [PlanStep("1", parameters=None), PlanStep("2")]  # type: ignore[arg-type]
    with stepkeep.open(url) as store:
        assert (
            store.execute("s", plan, lambda context: 1 // int(context.step.id == "1")).status is Status.FAILED
        )
    with stepkeep.open(url) as store:
        assert store.execute("s", plan, lambda _: "done", resume=True).success


def test_the_state_of_the_specification_is_saved_and_resumed(url: str) -> None:
    """Statuses may be texts, and moments as well."""
    state = AgentState(
        query="test query",
        plan=(PlanStep("1", "Step 1", "test", {}, "completed"), PlanStep("2")),  # type: ignore[arg-type]
        current_step_index=1,
        results=(StepResult("1", "result", "2026-01-20T12:00:00Z", 100),),  # type: ignore[arg-type]
    )
    with stepkeep.open(url) as store:
        store.agents.save("session-1", "project-1", state)
    with stepkeep.open(url) as store:
        loaded = store.agents.load_latest("session-1")
        assert loaded is not None
        found = loaded.agent_state()
        assert found.plan[0].status is stepkeep.StepStatus.COMPLETED
        assert found.results[0].completed_at == datetime(2026, 1, 20, 12, tzinfo=UTC)
        result = store.execute("session-1", state.plan, lambda context: context.step.id, resume=True)
        assert (result.steps_recovered, result.steps_run) == (1, 1)


@pytest.mark.parametrize("state", [AgentState(query=5), AgentState(plan=(PlanStep(1),))])  # type: ignore[arg-type]
def test_a_state_of_the_wrong_kinds_is_not_saved(store: stepkeep.Store, state: AgentState) -> None:
    """It could not be read as what it is meant to be."""
    with pytest.raises(InvalidInput) as refused:
        store.agents.save("s", None, state)
    assert refused.value.code == "state_type_mismatch"
    assert not list(store.sessions())


def test_keys_beside_those_of_an_agent_survive_a_resume(url: str) -> None:
    """What another program keeps in the state is carried along, and is in `extra`."""
    state = {"plan": [{"id": "1"}, {"id": "2"}], "mood": {"now": "good"}, "none": None}
    with stepkeep.open(url) as store:
        store.agents.save("s", None, state)
        assert store.execute("s", [PlanStep("1"), PlanStep("2")], lambda _: 1, resume=True).success
    with stepkeep.open(url) as store:
        found = store.get("s").load().state
        assert (found["mood"], found["none"]) == ({"now": "good"}, None)
        loaded = store.agents.load_latest("s")
        assert loaded is not None
        assert loaded.agent_state().extra == {"mood": {"now": "good"}, "none": None}


def test_a_state_with_nothing_of_an_agent_is_none(store: stepkeep.Store) -> None:
    """It is not taken for an empty one."""
    checkpoint = store.agents.save("s", None, {"x": 1})
    with pytest.raises(InvalidInput) as refused:
        checkpoint.agent_state()
    assert refused.value.code == "state_type_mismatch"


# --- options


@pytest.mark.parametrize(
    "options",
    [
        {"query": 5},
        {"context": [1]},
        {"context": {"file": object()}},
        {"retry": "often"},
        {"retry": 0},
        {"timeout": "1"},
        {"timeout": True},
        {"hooks": {}},
        {"hooks": stepkeep.Hooks(on_step_start="no")},  # type: ignore[arg-type]
        {"cancel": True},
        {"resume": "maybe"},
        {"restart": True, "resume": True},
        {"label": 5},
    ],
)
def test_options_are_looked_at_before_anything_runs(url: str, options: dict[str, Any]) -> None:
    """Nothing is called and nothing stored, with and without asyncio."""
    with stepkeep.open(url) as store:
        with pytest.raises(InvalidInput):
            store.execute("s", [PlanStep("1")], never, **options)
        assert not list(store.sessions())

    async def execute() -> None:
        async with await aio.open(url) as astore:
            await astore.execute("s", [PlanStep("1")], never, **options)

    with pytest.raises(InvalidInput):
        asyncio.run(execute())


def test_retry_may_be_a_number_and_steps_have_their_own(store: stepkeep.Store) -> None:
    """A step's policy and time-out come before those of the run, as objects and in plain data."""
    tries: list[str] = []

    def flaky(context: StepContext) -> int:
        tries.append(context.step.id)
        raise OSError("no")

    plan = [
        {"id": "a", "retry": {"attempts": 3, "delay_seconds": 0}},
        PlanStep("b", retry=RetryPolicy(attempts=2, delay_seconds=0)),
        {"id": "c"},
    ]
    store.execute("s", plan, flaky, on_failure="continue", retry=RetryPolicy(attempts=1))
    assert sorted(tries) == ["a", "a", "a", "b", "b", "c"]
    hanging = PlanStep("slow", timeout=0.01)
    result = store.execute("t", [hanging], lambda context: context.cancelled.wait(30), retry=1, timeout=600)
    assert "0.01" in (result.error or "")


def test_a_number_of_attempts_is_a_policy(store: stepkeep.Store) -> None:
    """Also where the step fails, which is saved."""
    assert store.execute("s", [PlanStep("1")], lambda _: 1 // 0, retry=1).status is Status.FAILED
    assert store.get("s").info.status is Status.FAILED


class Silent(Exception):
    def __str__(self) -> str:
        raise TypeError("no text")


def test_an_error_that_cannot_say_what_it_is_fails_its_step(store: stepkeep.Store) -> None:
    """The failure is saved, and the run can be resumed."""

    def fails(_: StepContext) -> None:
        raise Silent

    result = store.execute("s", [PlanStep("1")], fails, retry=RetryPolicy(attempts=2, delay_seconds=0))
    assert result.status is Status.FAILED
    assert "Silent" in (result.error or "")
    assert store.execute("s", [PlanStep("1")], lambda _: 1, resume=True).success


# --- unfinished work


def test_unfinished_work_is_not_run_over(url: str) -> None:
    """The error names the choices, and each of them works."""
    plan, calls = [PlanStep("1"), PlanStep("2")], list[str]()

    def handle(context: StepContext) -> str:
        calls.append(context.step.id)
        if calls == ["1", "2"]:
            raise OSError("no")
        return context.step.id

    with stepkeep.open(url) as store:
        assert store.execute("s", plan, handle, resume="auto").status is Status.FAILED
    with stepkeep.open(url) as store:
        with pytest.raises(Conflict) as refused:
            store.execute("s", plan, never)
        assert refused.value.code == "unfinished_work"
        for choice in ("resume=True", 'resume="auto"', "restart=True"):
            assert choice in refused.value.message
        assert store.execute("s", plan, handle, resume="auto").success
        assert calls == ["1", "2", "2"]
        assert store.execute("s", plan, never, resume="auto").steps_recovered == 2
        assert store.execute("s", plan, handle).success  # what is completed is no obstacle
        store.get("s").pause()
        assert store.execute("s", plan, handle, restart=True).success
        assert calls == ["1", "2", "2", "1", "2", "1", "2"]


# --- handlers


def test_each_action_may_have_its_handler(store: stepkeep.Store) -> None:
    """Plain functions and coroutine functions; one that is missing is noticed before the first step."""

    async def write(context: StepContext) -> str:
        return f"wrote {context.outputs['1']}"

    plan = [PlanStep("1", action="read"), PlanStep("2", action="write", dependencies=("1",))]
    result = store.execute("s", plan, {"read": lambda _: "text", "write": write})
    assert result.output("2") == "wrote text"
    with pytest.raises(InvalidInput) as refused:
        store.execute("t", plan, {"read": never})
    assert refused.value.code == "handler_missing"
    assert "'write'" in refused.value.message
    with pytest.raises(InvalidInput):
        store.execute("t", plan, "read")  # type: ignore[arg-type]


def test_without_a_plan_that_of_the_checkpoint_is_resumed(url: str) -> None:
    """Who resumes need not have the plan."""
    with stepkeep.open(url) as store:
        store.execute("s", [{"id": "1"}, {"id": "2"}], lambda context: 1 // (2 - int(context.step.id)))
    with stepkeep.open(url) as store:
        assert store.execute("s", None, lambda context: context.step.id, resume=True).output("2") == "2"
        with pytest.raises(InvalidInput):
            store.execute("s", None, never)


# --- the agent store


def test_switched_off_checkpoints_are_off_in_python_too(url: str) -> None:
    """As for servers: the caller is told, and nothing is stored."""
    off = settings(cwd=None, environ={}, flags={"agent.checkpoints.enabled": False})
    with stepkeep.open(url, config=off) as store:
        with pytest.raises(Conflict) as refused:
            store.agents.save("s", None, {"currentStepIndex": 1})
        assert refused.value.code == "checkpoints_disabled"
        assert not list(store.sessions())


@pytest.mark.parametrize("options", [{"duration_ms": "5"}, {"duration_ms": True}, {"token_usage": 1.5}])
def test_numbers_of_a_checkpoint_are_numbers(store: stepkeep.Store, options: dict[str, Any]) -> None:
    """Texts are not stored in their place."""
    with pytest.raises(InvalidInput):
        store.agents.save("s", None, {}, **options)
    assert (
        store.agents.save("s", None, {}, description=None, duration_ms=2.5, token_usage=7).description == ""
    )


def test_the_beginning_of_an_id_is_enough(store: stepkeep.Store) -> None:
    """Where it is the beginning of one alone; several are told."""
    first, second = (store.agents.save("s", None, {"currentStepIndex": n}) for n in (1, 2))
    assert store.agents.load(first.id[:-1]) == store.agents.load(first.id)
    assert store.checkpoint(second.id[:-1]).id == second.id
    assert store.agents.load("") is None
    with pytest.raises(InvalidInput) as refused:
        store.agents.load("cp_")
    assert refused.value.code == "ambiguous_ref"
    with pytest.raises(InvalidInput):
        list(store.checkpoints(limit=-1))
    with pytest.raises(InvalidInput):
        list(store.sessions(limit=-1))


def test_a_lost_lease_names_the_session(url: str) -> None:
    """Its key, as its owner knows it."""
    with stepkeep.open(url) as store, stepkeep.open(url) as other:

        def overtaken(_: StepContext) -> None:
            uid = other.get("my-job").uid
            lease = other.engine.backend.lease(uid)
            assert lease is not None
            other.engine.backend.acquire_lease(uid, lease.owner, seconds=60, replacing=lease.token)

        with pytest.raises(Conflict) as refused:
            store.execute("my-job", [PlanStep("1")], overtaken)
        assert refused.value.code == "lease_lost"
        assert "'my-job'" in refused.value.message
        assert refused.value.session == "my-job"
