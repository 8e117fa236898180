"""Resuming a plan: what is done again and what is not, changed plans, killed processes."""

from __future__ import annotations

import json
import logging
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepkeep
from stepkeep import Cancellation, Conflict, Hooks, InvalidInput, NotFound, PlanStep, Status, StepContext
from stepkeep.storage.memory import MemoryBackend
from tests.runs import programs

COMPETITORS = ["CompanyA", "CompanyB", "CompanyC"]

RESEARCH = [
    PlanStep("1", "Identify competitors from industry database", "search", {"industry": "cars"}),
    PlanStep("2", "Fetch Q4 revenue for each competitor", "fetch", dependencies=("1",)),
    PlanStep("3", "Compile comparison report", "compile", dependencies=("2",)),
]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'store.db'}"


@pytest.fixture
def store() -> Iterator[stepkeep.Store]:
    with stepkeep.open("memory:") as store:
        yield store


class Research:
    """The seed's research agent; the network is down until it is repaired."""

    def __init__(self, *, is_down: bool) -> None:
        self.is_down = is_down
        self.calls: list[str] = []

    def __call__(self, context: StepContext) -> Any:
        self.calls.append(context.step.action)
        if context.step.action == "search":
            return COMPETITORS
        if context.step.action == "fetch":
            if self.is_down:
                raise TimeoutError("API timeout")
            return {name: len(name) for name in context.outputs["1"]}
        return sorted(context.outputs["2"].items())


def done(context: StepContext) -> str:
    return f"out {context.step.id}"


def steps(*ids: str) -> list[PlanStep]:
    return [PlanStep(name, f"step {name}") for name in ids]


def fail_at(name: str) -> Any:
    def handle(context: StepContext) -> str:
        if context.step.id == name:
            raise OSError("broken on purpose")
        return f"out {context.step.id}"

    return handle


# --- the worked example


def test_the_worked_example(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Fail at step 2, resume later in another process: skip 1, retry 2, finish 3."""
    caplog.set_level(logging.INFO, "stepkeep")
    with stepkeep.open(url) as store:
        first = store.execute("research", RESEARCH, Research(is_down=True), query="Find all competitors")
    assert (first.status, first.error) == (Status.FAILED, "API timeout")
    with stepkeep.open(url) as store:
        checkpoint = store.agents.load_latest("research")
        assert checkpoint is not None
        state = checkpoint.state
        assert state["currentStepIndex"] == 1
        assert (state["lastError"]["message"], state["lastError"]["stepIndex"]) == ("API timeout", 1)
        assert state["results"][0]["output"] == COMPETITORS
        agent = Research(is_down=False)
        second = store.execute("research", RESEARCH, agent, resume=True)
    assert agent.calls == ["fetch", "compile"]
    assert (second.success, second.steps_run, second.steps_recovered) == (True, 2, 1)
    assert second.output("3") == [("CompanyA", 8), ("CompanyB", 8), ("CompanyC", 8)]
    assert second.state.query == "Find all competitors"
    assert second.state.last_error is None
    assert len(second.results) > len(state["results"])
    assert "Resuming from checkpoint at step 1" in caplog.text


def test_resume_tells_how_long_the_work_took_so_far(url: str) -> None:
    """The time of earlier runs counts in the checkpoints, not in the result."""
    with stepkeep.open(url) as store:
        store.agents.save(
            "s",
            None,
            {
                "plan": [{"id": "a", "status": "completed"}, {"id": "b"}],
                "results": [{"stepId": "a", "output": 1}],
            },
            duration_ms=60_000,
        )
        result = store.execute("s", steps("a", "b"), done, resume=True)
    assert result.checkpoint is not None
    assert result.checkpoint.metadata["durationMs"] >= 60_000
    assert result.duration_ms < 60_000
    assert [found.output for found in result.results] == [1, "out b"]


# --- what there is to resume


def test_resume_without_a_checkpoint_is_an_error(store: stepkeep.Store) -> None:
    """Never an empty success, and no session is made."""
    for _ in range(2):
        with pytest.raises(NotFound) as caught:
            store.execute("s", steps("a"), done, resume=True)
        assert caught.value.code == "nothing_to_resume"
    assert list(store.sessions()) == []
    store.session("s")
    with pytest.raises(NotFound) as caught:
        store.execute("s", steps("a"), done, resume=True)
    assert caught.value.code == "nothing_to_resume"
    assert store.engine.backend.lease(store.get("s").uid) is None


def test_resuming_what_is_complete_does_and_saves_nothing(store: stepkeep.Store) -> None:
    """All steps are recovered."""
    calls: list[str] = []
    store.execute("s", steps("a", "b"), done)
    before = store.get("s").info.last_seq
    result = store.execute("s", steps("a", "b"), lambda context: calls.append(context.step.id), resume=True)
    assert (result.success, result.steps_run, result.steps_recovered, calls) == (True, 0, 2, [])
    assert store.get("s").info.last_seq == before
    assert [found.output for found in result.results] == ["out a", "out b"]


def test_a_second_fresh_run_starts_over_and_is_the_newest(url: str) -> None:
    """Its first checkpoint is newer than the last of the first run, although its step is lower."""
    with stepkeep.open(url) as store:
        store.execute("s", steps("a", "b", "c"), done, context={"run": 1})
        second = store.execute("s", steps("a", "b", "c"), fail_at("b"), context={"run": 2})
    assert second.status is Status.FAILED
    with stepkeep.open(url) as store:
        latest = store.get("s").load()
        assert (latest.header.status, latest.state["context"]) == ("failed", {"run": 2})
        assert latest.state["currentStepIndex"] == 1
        result = store.execute("s", steps("a", "b", "c"), done, resume=True)
        assert (result.steps_recovered, result.steps_run) == (1, 2)


def test_a_second_run_that_dies_in_its_first_step_is_not_taken_for_the_first(store: stepkeep.Store) -> None:
    """The start is saved: otherwise resuming would find the completed first run and do nothing."""
    store.execute("s", steps("a", "b"), done, auto_checkpoint=False)
    cancellation = Cancellation()
    hooks = Hooks(on_checkpoint=lambda header: cancellation.cancel())
    store.execute("s", steps("a", "b"), done, auto_checkpoint=False, hooks=hooks, cancel=cancellation)
    result = store.execute("s", steps("a", "b"), done, resume=True)
    assert (result.steps_recovered, result.steps_run) == (0, 2)


def test_a_fresh_run_does_not_believe_the_statuses_it_is_given(store: stepkeep.Store) -> None:
    """A plan taken from an earlier result is done from its first step."""
    first = store.execute("s", steps("a", "b"), done)
    again = store.execute("s", first.state.plan, done)
    assert again.steps_run == 2


def test_a_step_that_was_running_is_done_again(store: stepkeep.Store) -> None:
    """At least once for the interrupted step, never again for a completed one."""
    state = {
        "plan": [
            {"id": "a", "status": "completed"},
            {"id": "b", "status": "running"},
            {"id": "c", "status": "skipped", "dependencies": ["b"]},
        ],
        "results": [{"stepId": "a", "output": 1}],
        "context": {"k": (1,)},
    }
    store.agents.save("s", "p", state)
    calls: list[str] = []
    plan = [PlanStep("a"), PlanStep("b"), PlanStep("c", dependencies=("b",))]
    result = store.execute("s", plan, lambda context: calls.append(context.step.id), resume=True)
    assert calls == ["b", "c"]
    assert result.success
    assert result.state.context == {"k": (1,)}


def test_a_state_that_is_no_plan_cannot_be_resumed(store: stepkeep.Store) -> None:
    """It is refused, and stays as it is."""
    store.session("s").save(["something", "else"])
    with pytest.raises(InvalidInput) as caught:
        store.execute("s", steps("a"), done, resume=True)
    assert caught.value.code == "not_resumable"
    assert store.get("s").load().state == ["something", "else"]


FOREIGN: list[dict[str, Any]] = [{"note": 1}, {"query": "why", "plan": []}, {"plan": None, "results": []}]


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("force", [False, True])
def test_a_foreign_save_does_not_hide_completed_steps(url: str, foreign: dict[str, Any], force: bool) -> None:
    """It is no plan of which nothing is done: it is named, with the checkpoint to go on from."""
    calls: list[str] = []

    def handle(context: StepContext) -> str:
        calls.append(context.step.id)
        return context.step.id

    with stepkeep.open(url) as store:
        store.execute("s", steps("a", "b"), fail_at("b"))
    with stepkeep.open(url) as store:
        session = store.get("s")
        before = session.load().header
        saved = session.save(foreign)
        with pytest.raises(InvalidInput) as caught:
            store.execute("s", steps("a", "b"), handle, resume=True, force=force)
        assert (caught.value.code, caught.value.checkpoint) == ("not_resumable", saved.id)
        assert before.id in caught.value.message
        assert calls == []
        store.execute("s", steps("a", "b"), handle, resume=True, from_ref=before.id)
        assert calls == ["b"]


# --- from elsewhere


def test_resume_from_an_older_checkpoint(store: stepkeep.Store) -> None:
    """Steps completed later are done again; the new checkpoints name where they come from."""
    calls: list[str] = []

    def handle(context: StepContext) -> int:
        calls.append(context.step.id)
        return len(calls)

    store.execute("s", steps("a", "b", "c"), handle, profile="archive")
    session = store.get("s")
    origin = session.header("step-1")
    result = store.execute("s", steps("a", "b", "c"), handle, resume=True, from_ref="step-1")
    assert calls == ["a", "b", "c", "b", "c"]
    assert (result.steps_recovered, result.output("a"), result.output("c")) == (1, 1, 5)
    first = session.header(6)
    assert (first.message, first.parents) == ("Resumed at step 1", (origin.id,))
    with pytest.raises(NotFound):
        store.execute("s", steps("a", "b", "c"), handle, resume=True, from_ref="step-99")


def test_resume_falls_back_when_the_newest_is_damaged(url: str, tmp_path: Path) -> None:
    """The step that the damaged checkpoints told of is done again, the one before is not."""
    with stepkeep.open(url) as store:
        store.execute("s", steps("a", "b", "c"), fail_at("c"), profile="archive")
        newest = [header.id for header in store.get("s").history()][:2]
    connection = apsw.Connection(str(tmp_path / "store.db"))
    for id in newest:
        connection.execute("UPDATE bodies SET data = zeroblob(8) WHERE checkpoint = ?", (id,))
    connection.close()
    calls: list[str] = []
    with stepkeep.open(url) as store:
        result = store.execute(
            "s", steps("a", "b", "c"), lambda context: calls.append(context.step.id), resume=True
        )
    assert result.success
    assert calls == ["b", "c"]


# --- changed plans


def test_a_changed_plan_is_refused_with_the_differences(url: str) -> None:
    """Nothing runs and nothing is saved."""
    plan = [PlanStep("a", action="go", parameters={"n": 1}), PlanStep("b"), PlanStep("c")]
    changed = [PlanStep("a", action="go", parameters={"n": 2}), PlanStep("b"), PlanStep("d")]
    calls: list[str] = []
    with stepkeep.open(url) as store:
        store.execute("s", plan, fail_at("b"))
    with stepkeep.open(url) as store:
        before = store.get("s").info
        with pytest.raises(Conflict) as caught:
            store.execute("s", changed, lambda context: calls.append(context.step.id), resume=True)
        assert caught.value.code == "plan_changed"
        for text in ("step 'c' was removed", "step 'd' was added", "step 'a' has other parameters"):
            assert text in caught.value.message
        assert calls == []
        assert store.get("s").info == before


def test_force_goes_on_with_the_changed_plan(store: stepkeep.Store) -> None:
    """Completed steps stay completed by their ids, new ones are done, and the new plan is the stored one."""
    store.execute("s", steps("a", "b", "c"), fail_at("b"))
    calls: list[str] = []

    def handle(context: StepContext) -> str:
        calls.append(context.step.id)
        return "new"

    plan = [PlanStep("a", action="other"), PlanStep("d"), PlanStep("b")]
    result = store.execute("s", plan, handle, resume=True, force=True)
    assert calls == ["d", "b"]
    assert [step.id for step in result.state.plan] == ["a", "d", "b"]
    assert (result.output("a"), result.output("d")) == ("out a", "new")
    assert store.execute("s", plan, handle, resume=True).steps_run == 0


def test_other_descriptions_are_no_change(store: stepkeep.Store) -> None:
    """Words about a step may be polished between runs."""
    store.execute("s", steps("a", "b"), fail_at("b"))
    plan = [PlanStep("a", "polished"), PlanStep("b", "words")]
    assert store.execute("s", plan, done, resume=True).steps_recovered == 1


# --- any plan


class Chaos:
    """Fails each step as often as told, and notes what it was called for and what was completed then."""

    def __init__(self, failures: dict[str, int]) -> None:
        self._failures = dict(failures)
        self._lock = threading.Lock()
        self.calls: Counter[str] = Counter()

    def __call__(self, context: StepContext) -> list[str]:
        assert set(context.step.dependencies) <= set(context.outputs)
        with self._lock:
            self.calls[context.step.id] += 1
            left = self._failures.get(context.step.id, 0)
            self._failures[context.step.id] = left - 1
        if left > 0:
            raise OSError("broken on purpose")
        return sorted(context.step.dependencies)


@st.composite
def plans(draw: st.DrawFn) -> list[PlanStep]:
    """A plan of a few steps in any order, each depending on any of those it may depend on."""
    names = [str(number) for number in range(draw(st.integers(1, 7)))]
    steps = [
        PlanStep(
            name, dependencies=tuple(sorted(draw(st.sets(st.sampled_from(names[:place]))))) if place else ()
        )
        for place, name in enumerate(names)
    ]
    return list(draw(st.permutations(steps)))


@pytest.mark.full
@given(
    plan=plans(),
    failures=st.dictionaries(st.sampled_from("0123456"), st.integers(1, 2)),
    parallel=st.integers(1, 3),
    on_failure=st.sampled_from(["stop", "continue"]),
    auto_checkpoint=st.booleans(),
)
def test_any_plan_is_finished_by_resuming(
    plan: list[PlanStep], failures: dict[str, int], parallel: int, on_failure: Any, auto_checkpoint: bool
) -> None:
    """Each step is completed once, after what it depends on, and called once more per failure; none is forgotten."""
    handler = Chaos(failures)
    needed = {step.id: failures.get(step.id, 0) for step in plan}
    with stepkeep.Store(MemoryBackend()) as store:
        options: Any = {"parallel": parallel, "on_failure": on_failure, "auto_checkpoint": auto_checkpoint}
        result = store.execute("s", plan, handler, **options)
        for _ in range(sum(needed.values())):
            if result.success:
                break
            check_failed(result, plan, on_failure)
            result = store.execute("s", plan, handler, resume=True, **options)
        assert result.success
        assert handler.calls == {name: count + 1 for name, count in needed.items()}
        assert {found.step_id: found.output for found in result.results} == {
            step.id: list(step.dependencies) for step in plan
        }
        saved = store.agents.load_latest("s")
        assert saved is not None
        assert saved.agent_state() == result.state


def check_failed(result: stepkeep.ExecutionResult, plan: list[PlanStep], on_failure: str) -> None:
    """Skipped is what depends on a failure; what is left to do otherwise only where the run was to stop."""
    status = {step.id: step.status for step in result.state.plan}
    assert result.status is Status.FAILED
    for step in plan:
        is_blocked = any(status[name] in ("failed", "skipped") for name in step.dependencies)
        assert (status[step.id] == "skipped") == is_blocked
        assert status[step.id] != "running"
        assert status[step.id] != "pending" or on_failure == "stop"


# --- killed processes


@pytest.mark.full
def test_a_handler_that_ends_its_process(url: str, tmp_path: Path) -> None:
    """What was completed before stays; the step that did it is tried again on request."""
    log = tmp_path / "log"
    assert programs.end(programs.start(programs.die_in_second, url, str(log), False))[0] == 7
    code, output, errors = programs.end(programs.start(programs.die_in_second, url, str(log), True))
    assert code == 0, errors
    assert json.loads(output) == {"status": "completed", "run": 2, "recovered": 1}
    assert Counter(programs.lines(log)) == {"begin first": 1, "begin second": 2, "begin third": 1}


def kill_and_resume(url: str, log: Path, kills: int, chance: random.Random) -> tuple[int, dict[str, Any]]:
    """Run the long plan, killing it at random moments: how often, and what the run that came through returned."""
    killed, is_resumed = 0, False
    while True:
        begun = sum(line.startswith("begin") for line in programs.lines(log))
        process = programs.start(programs.work_through, url, str(log), 0.02, is_resumed)
        if killed < kills:
            wait_for_a_step(process, log, begun)
            time.sleep(chance.uniform(0, 0.08))
            process.send_signal(signal.SIGKILL)
        code, output, errors = programs.end(process)
        if code == 0:
            return killed, dict(json.loads(output))
        assert code == -signal.SIGKILL, errors
        killed, is_resumed = killed + 1, True


def wait_for_a_step(process: subprocess.Popen[str], log: Path, begun: int) -> None:
    """Return when the process has begun a step, or ended."""
    while process.poll() is None and sum(line.startswith("begin") for line in programs.lines(log)) <= begun:
        time.sleep(0.002)


def check_effects(log: Path) -> None:
    """No step was begun again after it was acknowledged, and every step ran."""
    acknowledged: set[str] = set()
    ran: Counter[str] = Counter()
    for line in programs.lines(log):
        word, name = line.split()
        if word == "begin":
            assert name not in acknowledged, f"{name} was done again after it was completed"
        elif word == "ran":
            ran[name] += 1
        else:
            acknowledged.add(name)
    assert set(ran) == {step.id for step in programs.long_plan()}


def kills_lose_nothing(tmp_path: Path, kills: int) -> None:
    undisturbed = programs.start(
        programs.work_through, f"sqlite:{tmp_path / 'calm.db'}", str(tmp_path / "calm"), 0.0, False
    )
    expected = json.loads(programs.end(undisturbed)[1])
    chance, killed = random.Random(kills), 0
    while killed < kills:
        folder = tmp_path / str(killed)
        folder.mkdir()
        count, found = kill_and_resume(
            f"sqlite:{folder / 'store.db'}", folder / "log", kills - killed, chance
        )
        assert found == expected
        check_effects(folder / "log")
        killed += count


@pytest.mark.full
def test_ten_kills_lose_nothing(tmp_path: Path) -> None:
    """Every completed step ran exactly once, the interrupted one at least once, and the result is the same."""
    kills_lose_nothing(tmp_path, 10)


@pytest.mark.slow
def test_a_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    """The same, a hundred times."""
    kills_lose_nothing(tmp_path, 100)
