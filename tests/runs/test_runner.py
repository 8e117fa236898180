"""Running a plan: order, parallel steps, failures, retries, time-outs, what is saved, and who is told."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stepkeep
from stepkeep import (
    BackendUnavailable,
    Cancellation,
    Hooks,
    Interrupted,
    InvalidInput,
    Outcome,
    PlanStep,
    RetryPolicy,
    Status,
    StepContext,
    StepStatus,
    aio,
    config,
)
from stepkeep.storage.memory import MemoryBackend
from stepkeep.testing.faults import Fault, Faults, fail
from tests.runs import programs

SOON = 20.0
"""Seconds after which a test gives up; nothing is expected to take that long."""

THREE = [PlanStep("1", "one"), PlanStep("2", "two"), PlanStep("3", "three")]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'store.db'}"


@pytest.fixture
def store() -> Iterator[stepkeep.Store]:
    with stepkeep.open("memory:") as store:
        yield store


class Recorder:
    """A handler that notes its calls; what it does with a step is looked up by the step's id."""

    def __init__(self, **actions: Callable[[StepContext], Any]) -> None:
        self._actions = actions
        self.calls: list[str] = []

    def __call__(self, context: StepContext) -> Any:
        self.calls.append(context.step.id)
        act = self._actions.get(f"s{context.step.id}")
        return f"out {context.step.id}" if act is None else act(context)


def broken(_: StepContext) -> None:
    raise ZeroDivisionError("broken on purpose")


def statuses(result: stepkeep.ExecutionResult) -> list[str]:
    return [step.status.value for step in result.state.plan]


def messages(session: stepkeep.Session) -> list[str]:
    return [header.message for header in session.history(newest_first=False)]


# --- the ordinary run


def test_a_plan_is_run_in_order_and_every_step_is_saved(url: str) -> None:
    """One checkpoint at the start, one after each step, one at the end; the state has the seed's names."""
    handler = Recorder()
    with stepkeep.open(url) as store:
        result = store.execute("s", THREE, handler, query="why", context={"k": 1}, project="p")
    assert handler.calls == ["1", "2", "3"]
    assert (result.status, result.success, result.error) == (Status.COMPLETED, True, None)
    assert (result.steps_run, result.steps_recovered, result.steps_skipped) == (3, 0, 0)
    with stepkeep.open(url) as store:
        session = store.get("s")
        assert messages(session) == [
            "Execution started",
            "Completed: one",
            "Completed: two",
            "Completed: three",
            "Execution complete",
        ]
        latest = session.latest()
        assert latest is not None
        assert latest.id == (result.checkpoint and result.checkpoint.id)
        assert latest.header.status is Status.COMPLETED
        assert latest.header.step == 3
        assert latest.state["currentStepIndex"] == 3
        assert latest.state["query"] == "why"
        assert [found["output"] for found in latest.state["results"]] == ["out 1", "out 2", "out 3"]
        assert (session.info.status, session.info.profile, session.info.project) == (
            "completed",
            "agent",
            "p",
        )
        assert session.info.fingerprint is not None
        assert store.engine.backend.lease(session.uid) is None


def test_steps_wait_for_their_dependencies(store: stepkeep.Store) -> None:
    """A step starts when all it depends on is completed, wherever it stands in the plan."""
    plan = [PlanStep("3", dependencies=("1", "2")), PlanStep("2", dependencies=("1",)), PlanStep("1")]
    handler = Recorder(s3=lambda context: dict(context.outputs))
    result = store.execute("s", plan, handler)
    assert handler.calls == ["1", "2", "3"]
    assert result.output("3") == {"1": "out 1", "2": "out 2"}
    with pytest.raises(KeyError):
        result.output("4")


def test_parameters_are_the_handlers_own(store: stepkeep.Store) -> None:
    """Whatever it does with them, by either name, the plan of the caller and the stored one stay."""
    plan = [PlanStep("1", parameters={"urls": ["a"]}), PlanStep("2")]

    def handle(context: StepContext) -> object:
        context.step.parameters.setdefault("urls", []).append("b")
        context.parameters["more"] = 1
        return context.step.id

    store.execute("s", plan, handle)
    assert [step.parameters for step in plan] == [{"urls": ["a"]}, {}]
    assert [step["parameters"] for step in store.get("s").load().state["plan"]] == [{"urls": ["a"]}, {}]


def test_independent_steps_run_at_the_same_time(store: stepkeep.Store) -> None:
    """As many as `parallel` allows, and no more."""
    meeting, now, most = threading.Barrier(3), [0], [0]
    lock = threading.Lock()

    def handle(_: StepContext) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        meeting.wait(SOON)
        with lock:
            now[0] -= 1

    plan = [PlanStep(str(number)) for number in range(6)]
    assert store.execute("s", plan, handle, parallel=3).success
    assert most == [3]


def test_working_memory_is_handed_from_step_to_step(store: stepkeep.Store) -> None:
    """A step may change the context; the next one sees it, and it is saved."""

    def count(context: StepContext) -> None:
        context.context["n"] = context.context.get("n", 0) + 1
        context.context.pop("start", None)

    result = store.execute("s", THREE, count, context={"start": True, "kept": [1]})
    assert result.state.context == {"kept": [1], "n": 3}
    assert store.get("s").load().state["context"] == {"kept": [1], "n": 3}


def test_context_and_parameters_may_hold_what_json_lacks(store: stepkeep.Store) -> None:
    """Keys that are no text, bytes, tuples and sets come back on resuming."""
    odd = {1: b"x", (1, 2): {3, 4}, "when": (None, 1.5)}
    plan = [PlanStep("1", parameters=odd), PlanStep("2", parameters=odd)]
    store.execute("s", plan, Recorder(s2=broken), context=odd)
    seen: list[Any] = []
    result = store.execute(
        "s", plan, lambda context: seen.append((context.parameters, context.context)), resume=True
    )
    assert seen == [(odd, odd)]
    assert result.state.context == odd


def test_parallel_steps_do_not_lose_each_others_context(store: stepkeep.Store) -> None:
    """Each has a copy; what it changed is merged when it is completed."""
    meeting = threading.Barrier(3)

    def handle(context: StepContext) -> None:
        meeting.wait(SOON)
        context.context[context.step.id] = context.attempt

    result = store.execute("s", THREE, handle, parallel=3, context={"a": 0})
    assert result.state.context == {"a": 0, "1": 1, "2": 1, "3": 1}


def test_what_a_handler_keeps_does_not_change_what_is_saved(store: stepkeep.Store) -> None:
    """Outputs, parameters and context are copied on their way in and out."""
    kept: list[Any] = []
    parameters = {"list": [1]}

    def handle(context: StepContext) -> list[Any]:
        for value in kept:
            value.append("late")
        for output in context.outputs.values():
            output.append("stolen")
        context.parameters["list"].append(2)
        kept.append(output := [context.step.id])
        return output

    plan = [PlanStep("1", parameters=parameters), PlanStep("2", parameters=parameters)]
    result = store.execute("s", plan, handle)
    assert [found.output for found in result.results] == [["1"], ["2"]]
    assert parameters == {"list": [1]}


def test_an_outcome_tells_tokens_and_keeps_long_outputs_as_blobs(url: str) -> None:
    """Tokens add up in the metadata; a blob stays as long as a checkpoint names it."""
    content = b"long output " * 10_000

    def handle(context: StepContext) -> Outcome:
        if context.step.id != "1":
            return Outcome(output=None, token_usage=5)
        blob = context.blob(content)
        return Outcome(output={"stdout": blob.digest}, blobs=(blob,), token_usage=7)

    with stepkeep.open(url) as store:
        result = store.execute("s", THREE, handle, profile="archive")
        session = store.get("s")
        oldest = [header.id for header in session.history()][1:]
        session.delete(*oldest)
        store.engine.backend.sweep()
    with stepkeep.open(url) as store:
        found = store.get("s").load()
        assert found.header.metadata["tokenUsage"] == 17
        assert found.header.metadata["durationMs"] >= 0
        assert store.engine.load_blob(found.state["results"][0]["output"]["stdout"]) == content
        assert result.results[0].blobs == (found.state["results"][0]["output"]["stdout"],)


def test_a_step_may_be_skipped_by_choice(store: stepkeep.Store) -> None:
    """It has no result, and the steps that depend on it run all the same."""
    told: list[str] = []
    hooks = Hooks(on_step_skip=lambda step, reason: told.append(f"{step.id}: {reason}"))
    plan = [PlanStep("1"), PlanStep("2", dependencies=("1",))]
    skip = Recorder(s1=lambda _: Outcome(is_skipped=True, output="not needed"))
    result = store.execute("s", plan, skip, hooks=hooks)
    assert result.success
    assert statuses(result) == ["skipped", "completed"]
    assert told == ["1: not needed"]
    again = store.execute("s", plan, skip, resume=True)
    assert skip.calls == ["1", "2"]
    assert again.steps_skipped == 1


# --- coroutines


def test_a_coroutine_function_is_awaited(store: stepkeep.Store) -> None:
    """On one loop of its own, several at a time."""
    loops = set()

    async def handle(context: StepContext) -> str:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return context.step.id

    result = store.execute("s", THREE, handle, parallel=3)
    assert [result.output(step.id) for step in THREE] == ["1", "2", "3"]
    assert len(loops) == 1


def test_other_forms_of_async_handlers_work(store: stepkeep.Store) -> None:
    """An object with an async call, and a function that returns an awaitable."""

    class Handler:
        async def __call__(self, context: StepContext) -> str:
            return context.step.id

    async def work(context: StepContext) -> str:
        return context.step.id

    assert store.execute("a", THREE, Handler()).success
    assert store.execute("b", THREE, lambda context: work(context)).output("3") == "3"


def test_through_aio_coroutines_run_on_the_callers_loop(url: str) -> None:
    """So they may use everything that belongs to it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def handle(context: StepContext) -> bool:
            await asyncio.sleep(0)
            return asyncio.get_running_loop() is loop

        async with aio.open(url) as store:
            result = await store.execute("s", THREE, handle, parallel=2)
            assert [found.output for found in result.results] == [True, True, True]
            assert (await store.execute("t", THREE, lambda context: context.step.id)).success
            saved = await store.agents.load_latest("s")
            assert saved is not None
            assert saved.agent_state() == result.state

    asyncio.run(main())


def test_cancelling_an_awaited_run_saves_it_as_paused(url: str) -> None:
    """The cancellation goes on once the checkpoint is saved; the coroutine is cancelled too."""
    ended: list[str] = []

    async def main() -> None:
        begun = asyncio.Event()

        async def handle(context: StepContext) -> str:
            if context.step.id == "2":
                begun.set()
                try:
                    await asyncio.sleep(SOON)
                finally:
                    ended.append(context.step.id)
            return context.step.id

        async with aio.open(url) as store:
            task = asyncio.create_task(store.execute("s", THREE, handle))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert store.sync.get("s").info.status is Status.PAUSED
            cancellation = Cancellation()
            cancellation.cancel()
            paused = await store.execute("s", THREE, handle, resume=True, cancel=cancellation)
            assert (paused.status, paused.steps_run) == (Status.PAUSED, 0)

    asyncio.run(main())
    assert ended == ["2"]
    with stepkeep.open(url) as store:
        state = store.get("s").load().state
        assert [step["status"] for step in state["plan"]] == ["completed", "pending", "pending"]
        assert store.execute("s", THREE, Recorder(), resume=True).steps_recovered == 1


# --- failures


def test_a_failing_step_is_saved_and_told(url: str) -> None:
    """Trigger error, the seed's message, lastError and a failed session; the other steps are untouched."""
    handler = Recorder(s2=broken)
    with stepkeep.open(url) as store:
        result = store.execute("s", THREE, handler)
    assert handler.calls == ["1", "2"]
    assert (result.status, result.error) == (Status.FAILED, "broken on purpose")
    assert isinstance(result.exception, ZeroDivisionError)
    assert statuses(result) == ["completed", "failed", "pending"]
    with stepkeep.open(url) as store:
        session = store.get("s")
        latest = session.load()
        assert latest.header.message == "Failed at step 1: two"
        assert (latest.header.trigger.kind, latest.header.status, latest.header.step) == (
            "error",
            "failed",
            1,
        )
        assert latest.state["lastError"]["stepIndex"] == 1
        assert latest.state["lastError"]["message"] == "broken on purpose"
        assert (session.info.status, session.info.error) == ("failed", "broken on purpose")


def test_steps_that_depend_on_a_failed_one_are_skipped(store: stepkeep.Store) -> None:
    """Directly or not; independent steps go on only when asked."""
    plan = [
        PlanStep("1"),
        PlanStep("2", dependencies=("1",)),
        PlanStep("3", dependencies=("2",)),
        PlanStep("4"),
    ]
    told: list[str] = []
    hooks = Hooks(on_step_skip=lambda step, _: told.append(step.id))
    stopped = store.execute("a", plan, Recorder(s1=broken), hooks=hooks)
    assert statuses(stopped) == ["failed", "skipped", "skipped", "pending"]
    assert told == ["2", "3"]
    handler = Recorder(s1=broken)
    going_on = store.execute("b", plan, handler, on_failure="continue")
    assert handler.calls == ["1", "4"]
    assert statuses(going_on) == ["failed", "skipped", "skipped", "completed"]
    assert (going_on.status, going_on.steps_skipped) == (Status.FAILED, 2)
    session = store.get("b")
    assert [header.status.value for header in session.history(newest_first=False)] == [
        "in_progress",
        "in_progress",
        "in_progress",
        "failed",
    ]
    assert session.info.status is Status.FAILED


def test_what_runs_beside_a_failing_step_is_finished_and_saved(store: stepkeep.Store) -> None:
    """No work that was begun is thrown away."""
    failed = threading.Event()
    hooks = Hooks(on_step_error=lambda step, error, again: failed.set())
    handler = Recorder(s1=broken, s2=lambda _: failed.wait(SOON))
    result = store.execute("s", THREE, handler, parallel=2, hooks=hooks)
    assert statuses(result) == ["failed", "completed", "pending"]
    assert store.get("s").load().header.status is Status.FAILED


def test_a_step_is_tried_again(store: stepkeep.Store) -> None:
    """As often as the policy says; a failed attempt leaves no trace in the context."""
    told: list[tuple[str, bool]] = []
    hooks = Hooks(on_step_error=lambda step, error, again: told.append((str(error), again)))

    def flaky(context: StepContext) -> int:
        context.context["tries"] = context.context.get("tries", 0) + 1
        if context.attempt < 3:
            raise OSError(f"try {context.attempt}")
        return context.attempt

    result = store.execute(
        "s", THREE[:1], flaky, retry=RetryPolicy(attempts=3, delay_seconds=0.001), hooks=hooks
    )
    assert result.output("1") == 3
    assert result.state.context == {"tries": 1}
    assert told == [("try 1", True), ("try 2", True)]
    given_up = store.execute(
        "t", THREE[:1], flaky, retry=RetryPolicy(attempts=2, delay_seconds=0), hooks=hooks
    )
    assert given_up.error == "try 2"
    assert given_up.progress.steps[0].attempts == 2


def test_steps_can_have_rules_of_their_own(store: stepkeep.Store) -> None:
    """Those of the run hold for the others."""
    often = msgspec.structs.replace(THREE[0], retry=RetryPolicy(attempts=4, delay_seconds=0))
    handler = Recorder(s1=broken, s2=broken)
    store.execute("s", [often, *THREE[1:]], handler, on_failure="continue")
    assert sorted(handler.calls) == ["1", "1", "1", "1", "2", "3"]


def test_a_wait_before_a_retry_can_be_interrupted(store: stepkeep.Store) -> None:
    """Nobody waits an hour for a run to stop."""
    cancellation = Cancellation()
    hooks = Hooks(on_step_error=lambda step, error, again: cancellation.cancel())
    result = store.execute(
        "s",
        THREE,
        Recorder(s1=broken),
        retry=RetryPolicy(attempts=2, delay_seconds=3600, max_delay_seconds=3600),
        hooks=hooks,
        cancel=cancellation,
    )
    assert result.status is Status.PAUSED
    assert statuses(result) == ["pending", "pending", "pending"]


def test_a_thread_that_hangs_is_given_up(store: stepkeep.Store, caplog: pytest.LogCaptureFixture) -> None:
    """The step failed; the thread is told, and its late result is ignored."""
    release, late = threading.Event(), threading.Event()
    seen: list[bool] = []

    def hang(context: StepContext) -> str:
        release.wait(SOON)
        seen.append(context.cancelled.is_set())
        late.set()
        return "late"

    result = store.execute(
        "s",
        THREE,
        Recorder(s1=hang, s2=lambda _: release.set() or late.wait(SOON)),
        timeout=0.05,
        on_failure="continue",
    )
    assert result.progress.steps[0].status is StepStatus.FAILED
    assert result.error == "step '1' took longer than 0.05 s"
    assert isinstance(result.exception, TimeoutError)
    assert "cannot be stopped" in caplog.text
    assert seen == [True]
    assert store.get("s").load().state["plan"][0]["status"] == "failed"


def test_a_coroutine_that_hangs_is_cancelled(store: stepkeep.Store) -> None:
    """Its clean-up runs."""
    cleaned = threading.Event()

    async def hang(_: StepContext) -> None:
        try:
            await asyncio.sleep(SOON)
        finally:
            cleaned.set()

    result = store.execute("s", THREE[:1], hang, timeout=0.01)
    assert result.status is Status.FAILED
    assert cleaned.wait(SOON)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), "output"),
        ({"rows": [1, {"when": lambda: 0}]}, "output.rows[1].when"),
        ([[object()]], "output[0][0]"),
    ],
)
def test_a_result_that_cannot_be_saved_is_a_failed_step(url: str, value: Any, path: str) -> None:
    """The place is named, and all the rest is saved."""
    with stepkeep.open(url) as store:
        result = store.execute("s", THREE, Recorder(s2=lambda _: value))
        assert statuses(result) == ["completed", "failed", "pending"]
        assert isinstance(result.exception, InvalidInput)
        assert result.exception.path == path
        assert path in (result.error or "")
    with stepkeep.open(url) as store:
        state = store.get("s").load().state
        assert [found["stepId"] for found in state["results"]] == ["1"]
        assert store.execute("s", THREE, Recorder(), resume=True).success


def test_a_context_that_cannot_be_saved_is_a_failed_step(store: stepkeep.Store) -> None:
    """The key is named, and the context stays as it was."""

    def spoil(context: StepContext) -> None:
        context.context["handle"] = object()

    result = store.execute("s", THREE, Recorder(s2=spoil), context={"a": 1})
    assert statuses(result) == ["completed", "failed", "pending"]
    assert "context['handle']" in (result.error or "")
    assert result.state.context == {"a": 1}


def test_a_state_that_grows_too_large_is_a_failed_step() -> None:
    """The step whose output does not fit any more failed; what was done before stays."""
    with stepkeep.open("memory:", max_state_bytes=4000) as store:
        result = store.execute("s", THREE, lambda context: "x" * 1500)
        assert statuses(result) == ["completed", "completed", "failed"]
        assert result.exception is not None
        assert getattr(result.exception, "code", "") == "state_too_large"
        assert len(store.get("s").load().state["results"]) == 2


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), Exception(), ValueError("bad \ud800\0 text")]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_a_handler_raises_is_a_failed_step(
    store: stepkeep.Store, error: BaseException, is_async: bool
) -> None:
    """Also what would end a process, has no message, or is no proper text."""

    def handle(_: StepContext) -> None:
        raise error

    async def handle_async(_: StepContext) -> None:
        raise error

    result = store.execute("s", THREE, handle_async if is_async else handle)
    assert result.status is Status.FAILED
    assert result.error
    assert store.get("s").load().state["lastError"]["message"] == result.error


class Odd:
    """An object whose encoding raises what it likes."""

    def model_dump(self) -> Any:
        raise LookupError("odd on purpose")


@pytest.mark.parametrize(
    "value", [Odd(), [Odd()], Outcome(blobs=("ab",)), Outcome(blobs=7), Outcome(token_usage="many")]
)
def test_an_odd_result_is_a_failed_step(store: stepkeep.Store, value: Any) -> None:
    """Whatever is wrong with it, the run comes to its end and the rest is saved."""
    result = store.execute("s", THREE, Recorder(s2=lambda _: value))
    assert statuses(result) == ["completed", "failed", "pending"]
    assert store.get("s").load().header.status is Status.FAILED


def test_a_flood_of_output_is_saved_whole(store: stepkeep.Store) -> None:
    """An output of megabytes is an output."""
    flood = "line\n" * 500_000
    assert store.execute("s", THREE[:1], lambda _: flood).output("1") == flood
    assert store.get("s").load().state["results"][0]["output"] == flood


# --- when the store fails


def faulty() -> tuple[stepkeep.Store, Faults]:
    faults = Faults()
    return stepkeep.Store(faults.wrap(MemoryBackend())), faults


@pytest.mark.full
def test_a_failing_save_is_no_failing_step() -> None:
    """It is raised after three repeats, stops the run, and marks nothing."""
    store, faults = faulty()
    with store:
        handler = Recorder(s2=lambda _: faults.add(*[Fault(fail, "append", call) for call in range(1, 5)]))
        with pytest.raises(BackendUnavailable):
            store.execute("s", THREE, handler)
        assert handler.calls == ["1", "2"]
        state = store.get("s").load().state
        assert [step["status"] for step in state["plan"]] == ["completed", "pending", "pending"]
        assert "lastError" not in state
        assert store.engine.backend.lease(store.get("s").uid) is None
        result = store.execute("s", THREE, Recorder(), resume=True)
        assert (result.success, result.steps_recovered) == (True, 1)


def test_a_passing_failure_of_a_save_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """Also when it was stored and only the answer was lost: it counts once."""
    store, faults = faulty()
    with store:
        faults.add(Fault(fail, "append", 2), Fault(fail, "append", 4, is_after=True))
        assert store.execute("s", THREE, Recorder()).success
        assert len(messages(store.get("s"))) == 5
        assert "is repeated in 0.1 s" in caplog.text


def test_a_full_disk_is_final_at_once() -> None:
    """No repeat can help, so there is none."""
    store, faults = faulty()

    def full() -> None:
        raise BackendUnavailable("disk full", retryable=False)

    with store:
        faults.add(Fault(full, "append", 2))
        before = faults.calls.count("append")
        with pytest.raises(BackendUnavailable, match="disk full"):
            store.execute("s", THREE, Recorder())
        assert faults.calls.count("append") == before + 2


# --- what is saved


def test_auto_checkpoint_can_be_switched_off(store: stepkeep.Store) -> None:
    """Start, failure and end are saved all the same."""
    store.execute("s", THREE, Recorder(s2=broken), auto_checkpoint=False)
    store.execute("s", THREE, Recorder(), auto_checkpoint=False, resume=True)
    assert messages(store.get("s")) == ["Execution started", "Failed at step 1: two", "Execution complete"]


def test_the_settings_decide_about_checkpoints(tmp_path: Path) -> None:
    """`agent.checkpoints.autoCheckpoint` gives the default; with `enabled: false` there is none at all."""
    file = tmp_path / "stepkeep.yaml"
    file.write_text("agent: {checkpoints: {autoCheckpoint: false}}")
    with stepkeep.open("memory:", config=config.load(cwd=tmp_path, environ={})) as store:
        store.execute("s", THREE, Recorder())
        assert messages(store.get("s")) == ["Execution started", "Execution complete"]
        store.execute("t", THREE, Recorder(), auto_checkpoint=True)
        assert len(messages(store.get("t"))) == 5
    file.write_text("agent: {checkpoints: {enabled: false}}")
    with stepkeep.open("memory:", config=config.load(cwd=tmp_path, environ={})) as store:
        result = store.execute("s", THREE, Recorder())
        assert (result.success, result.checkpoint) == (True, None)
        assert messages(store.get("s")) == []
        assert store.get("s").info.status is Status.COMPLETED


def test_hooks_are_told_and_change_nothing(store: stepkeep.Store, caplog: pytest.LogCaptureFixture) -> None:
    """Start, completion and checkpoints, in order; what a hook raises is logged."""
    told: list[str] = []

    def note(text: str) -> None:
        told.append(text)
        raise RuntimeError("hook broken on purpose")

    hooks = Hooks(
        on_step_start=lambda step, attempt: note(f"start {step.id} {attempt}"),
        on_step_complete=lambda step, result: note(f"complete {step.id} {result.output}"),
        on_checkpoint=lambda header: note(f"saved {header.message}"),
    )
    assert store.execute("s", THREE[:1], Recorder(), hooks=hooks).success
    assert told == [
        "saved Execution started",
        "start 1 1",
        "saved Completed: one",
        "complete 1 out 1",
        "saved Execution complete",
    ]
    assert "hook broken on purpose" in caplog.text


# --- bad input


def test_nothing_is_stored_when_the_call_makes_no_sense(store: stepkeep.Store) -> None:
    """No handler, a bad plan, a bad option: found before a session is made."""
    with pytest.raises(InvalidInput, match="executeStep must be implemented") as caught:
        store.execute("s", THREE)
    assert caught.value.code == "handler_missing"
    for plan, options in [([], {}), ([PlanStep("a"), PlanStep("a")], {}), (THREE, {"parallel": 0})]:
        with pytest.raises(InvalidInput):
            store.execute("s", plan, Recorder(), **options)
    assert list(store.sessions()) == []


def test_a_plan_or_context_that_cannot_be_saved_is_refused_before_any_step(store: stepkeep.Store) -> None:
    """Better now than after the first hour of work."""
    handler = Recorder()
    with pytest.raises(InvalidInput):
        store.execute("s", [PlanStep("1", parameters={"x": object()})], handler)
    with pytest.raises(InvalidInput):
        store.execute("s", THREE, handler, context={"x": object()})
    assert handler.calls == []


# --- stopping


def test_a_run_can_be_cancelled_from_another_thread(store: stepkeep.Store) -> None:
    """It is saved as paused; a step that sees it and ends in time may still be completed."""
    cancellation = Cancellation()

    def handle(context: StepContext) -> str:
        if context.step.id == "2":
            cancellation.cancel()
            context.cancelled.wait(SOON)
        return context.step.id

    told: list[str] = []
    hooks = Hooks(on_step_complete=lambda step, _: told.append(step.id))
    result = store.execute("s", THREE, handle, cancel=cancellation, hooks=hooks)
    assert told == ["1", "2"]
    assert result.status is Status.PAUSED
    assert statuses(result) == ["completed", "completed", "pending"]
    session = store.get("s")
    assert (session.info.status, session.load().header.status) == ("paused", "paused")
    assert session.load().header.message == "Paused at step 2: three"
    assert session.load().state["currentStepIndex"] == 2
    assert cancellation.is_cancelled


def test_sigint_saves_paused_and_interrupts(url: str) -> None:
    """On the main thread; the handlers of before are there again afterwards."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def handle(context: StepContext) -> str:
        if context.step.id == "2":
            os.kill(os.getpid(), signal.SIGINT)
            context.cancelled.wait(SOON)
            raise RuntimeError("stopped")
        return context.step.id

    with stepkeep.open(url) as store:
        with pytest.raises(KeyboardInterrupt) as caught:
            store.execute("s", THREE, handle)
        assert isinstance(caught.value, Interrupted)
        assert caught.value.signal == signal.SIGINT
        assert statuses(caught.value.result) == ["completed", "pending", "pending"]
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    with stepkeep.open(url) as store:
        assert store.get("s").info.status is Status.PAUSED
        assert "lastError" not in store.get("s").load().state
        assert store.execute("s", THREE, Recorder(), resume=True).steps_recovered == 1


def test_a_signal_that_does_not_interrupt_the_wait_is_heard(store: stepkeep.Store) -> None:
    """The kernel may give it to another thread, or just before the wait begins; the run stops all the same."""

    def handle(context: StepContext) -> None:
        context.cancelled.wait(0.1)  # by now the run waits for this step
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert context.cancelled.wait(SOON)

    with pytest.raises(KeyboardInterrupt) as caught:
        store.execute("s", THREE, handle)
    assert isinstance(caught.value, Interrupted)
    assert store.get("s").info.status is Status.PAUSED


def test_signals_to_forked_children_do_what_they_did_before(url: str) -> None:
    """SIGTERM ends a child of a handler, however early, SIGINT raises in it, a pool can be ended; the run goes on."""
    code, output, errors = programs.end(programs.start(programs.run_with_children, url))
    assert code == 0, errors
    assert json.loads(output) == {
        "status": "completed",
        "outputs": [-signal.SIGTERM, 5, [-signal.SIGTERM], [1, 4, 9]],
    }


def test_signals_can_be_left_alone(store: stepkeep.Store) -> None:
    """Then they do what they did before."""

    def handle(_: StepContext) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "done"

    with pytest.raises(KeyboardInterrupt) as caught:
        store.execute("s", [PlanStep("1"), PlanStep("2")], handle, handle_signals=False)
    assert not isinstance(caught.value, Interrupted)


@pytest.mark.full
def test_sigterm_saves_paused_in_a_process_of_its_own(url: str, tmp_path: Path) -> None:
    """What was completed stays, and the next run goes on."""
    log = tmp_path / "log"
    process = programs.start(programs.run_slowly, url, str(log), 0.3)
    programs.wait_for(log, "begin second by slow")
    process.send_signal(signal.SIGTERM)
    code, output, errors = programs.end(process)
    assert (code, output) == (0, f'{{"signal": {int(signal.SIGTERM)}, "status": "paused"}}'), errors
    with stepkeep.open(url) as store:
        session = store.get("shared")
        assert (session.info.status, session.load().header.status) == ("paused", "paused")
        assert [step["status"] for step in session.load().state["plan"]] == ["completed", "pending"]
    code, output, errors = programs.end(programs.start(programs.run_slowly, url, str(log), 0.01, True))
    assert output == '{"status": "completed", "outputs": ["slow", "slow"]}', errors
    assert programs.lines(log).count("ran first by slow") == 1


@pytest.mark.full
def test_a_hanging_thread_does_not_keep_the_process_from_ending(url: str) -> None:
    """It is a daemon: who gave up on a step can leave."""
    code = (
        "import stepkeep, threading\n"
        f"with stepkeep.open({url!r}) as store:\n"
        "    plan = [stepkeep.PlanStep('1')]\n"
        "    result = store.execute('s', plan, lambda _: threading.Event().wait(), timeout=0.05)\n"
        "    print(result.status)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=programs.environment(),
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "failed"
