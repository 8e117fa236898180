"""Resumable scripts: finished steps are never called again, whatever stopped the script, in every form."""

# A script is a block, and how it ends is what is tested here.
# ruff: noqa: PT012

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

import stepkeep
from stepkeep import aio
from stepkeep.runs.scripts import Run
from stepkeep.storage.memory import MemoryBackend
from stepkeep.testing.faults import Fault, Faults, fail
from tests.runs import script_programs as programs


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'store.db'}"


@pytest.fixture
def store(url: str) -> Iterator[stepkeep.Store]:
    with stepkeep.open(url) as store:
        yield store


class Counted:
    """A function that counts its calls."""

    def __init__(self, returns: Callable[..., Any] = lambda *args: list(args)) -> None:
        self._returns = returns
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self._returns(*args, **kwargs)


def broken(*_: object) -> None:
    raise ZeroDivisionError("broken on purpose")


# --- running and resuming


def test_a_finished_step_is_not_called_again(url: str) -> None:
    """A later run, on a store opened anew, gets the stored output."""
    fetch = Counted(lambda url: {"pages": [url], "at": (1, 2)})
    for _ in range(3):
        with stepkeep.open(url) as store, store.run("nightly") as run:
            assert run.step("fetch", fetch, "a") == {"pages": ["a"], "at": (1, 2)}
            assert run.outputs == {"fetch": {"pages": ["a"], "at": (1, 2)}}
    assert fetch.calls == 1
    with stepkeep.open(url) as store:
        assert store.get("nightly").info.status == "completed"
        assert store.get("nightly").info.profile == "standard"


def test_every_finished_step_is_a_checkpoint(store: stepkeep.Store) -> None:
    """It is automatic, at a step boundary, named after the step, and holds the outputs of all steps so far."""
    with store.run("nightly") as run:
        run.step("fetch", lambda: [1])
        run.step("count", len, [1])
    first, second = store.get("nightly").history(newest_first=False)
    assert [(each.message, each.step) for each in (first, second)] == [("fetch", 1), ("count", 2)]
    assert (second.trigger.kind, second.trigger.event) == ("auto", "step_boundary")
    assert store.checkpoint(second.id).state == {"fetch": [1], "count": 1}
    steps = store.checkpoint(second.id).details["script"]["steps"]
    assert [steps[name]["ordinal"] for name in ("fetch", "count")] == [1, 2]


def test_a_script_that_failed_goes_on_behind_its_last_finished_step(url: str) -> None:
    """The error checkpoint names the step; the next run calls that step, and none before it."""
    fetch, count = Counted(), Counted(broken)
    with stepkeep.open(url) as store:
        with pytest.raises(ZeroDivisionError), store.run("nightly") as run:
            run.step("fetch", fetch, 1)
            run.step("count", count, 2)
        session = store.get("nightly")
        info, newest = session.info, session.newest()
        assert (info.status, info.error) == ("failed", "ZeroDivisionError: broken on purpose")
        assert newest is not None
        assert newest.header.message == "Failed at step 2: count"
        assert (newest.header.trigger.kind, newest.header.status, newest.step) == ("error", "failed", 2)
        error = newest.details["script"]["lastError"]
        assert (error["step"], error["stepIndex"]) == ("count", 2)
        assert error["message"] == "ZeroDivisionError: broken on purpose"
    repaired = Counted(lambda number: number * 10)
    with stepkeep.open(url) as store:
        with store.run("nightly") as run:
            assert run.step("fetch", fetch, 1) == [1]
            assert run.step("count", repaired, 2) == 20
        info = store.get("nightly").info
        assert (info.status, info.error) == ("completed", None)
    assert (fetch.calls, count.calls, repaired.calls) == (1, 1, 1)


def test_an_error_between_steps_blames_none(store: stepkeep.Store) -> None:
    """The checkpoint says behind which step the script broke."""
    with pytest.raises(ZeroDivisionError), store.run("nightly") as run:
        run.step("fetch", Counted())
        broken()
    newest = store.get("nightly").newest()
    assert newest is not None
    assert newest.header.message == "Failed after step 1: fetch"
    assert newest.details["script"]["lastError"].get("step") is None


@pytest.mark.parametrize("text", ["x" * 1_000_000, "lone \ud800 surrogate", "nul \0 byte"])
def test_whatever_an_error_says_the_run_is_marked_failed(store: stepkeep.Store, text: str) -> None:
    """Texts that no store can hold are cut and mended."""
    with pytest.raises(RuntimeError) as raised, store.run("nightly") as run:
        run.step("first", Counted())
        raise RuntimeError(text)
    assert not hasattr(raised.value, "__notes__")
    assert store.get("nightly").info.status == "failed"


def test_a_wrapped_or_grouped_error_still_names_its_step(store: stepkeep.Store) -> None:
    """`raise … from` and exception groups lead back to the step."""
    with pytest.raises(RuntimeError), store.run("wrapped") as run:
        try:
            run.step("bad", broken)
        except ZeroDivisionError as exc:
            raise RuntimeError("translated") from exc
    with pytest.raises(ExceptionGroup), store.run("grouped") as run:
        try:
            run.step("bad", broken)
        except ZeroDivisionError as exc:
            raise ExceptionGroup("several", [ValueError(), exc]) from None
    for key in ("wrapped", "grouped"):
        assert next(store.get(key).history()).message == "Failed at step 1: bad"


def test_a_failing_step_that_the_script_catches_does_not_end_it(store: stepkeep.Store) -> None:
    """The script goes on and completes; the failed step has no output."""
    with store.run("nightly") as run:
        with pytest.raises(ZeroDivisionError):
            run.step("try", broken)
        run.step("instead", Counted())
    assert store.get("nightly").info.status == "completed"
    assert store.get("nightly").load().state == {"instead": []}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_stop_pauses(store: stepkeep.Store, stop: type[BaseException]) -> None:
    """Ctrl-C and `sys.exit` are no failure of the step."""

    def interrupted() -> None:
        raise stop

    with pytest.raises(stop), store.run("nightly") as run:
        run.step("first", Counted())
        run.step("second", interrupted)
    newest = store.get("nightly").newest()
    assert newest is not None
    assert (newest.header.message, newest.header.status) == ("Paused at step 2: second", "paused")
    assert store.get("nightly").info.status == "paused"


def test_resume_false_begins_a_new_run(url: str) -> None:
    """Every step is called again, and a crash right after the beginning does not bring the old outputs back."""
    fetch = Counted()
    with stepkeep.open(url) as store:
        with store.run("nightly") as run:
            run.step("fetch", fetch, 1)
        with pytest.raises(ZeroDivisionError), store.run("nightly", resume=False) as run:
            broken()
    with stepkeep.open(url) as store:
        with store.run("nightly") as run:
            assert run.outputs == {}
            run.step("fetch", fetch, 2)
        assert store.get("nightly").load().details["script"]["run"] == 2
    assert fetch.calls == 2


def test_a_completed_script_stays_completed_when_it_runs_again(store: stepkeep.Store) -> None:
    """Nothing is saved and no event recorded, even if the code between its steps raises."""
    with store.run("nightly") as run:
        run.step("fetch", Counted())
    session = store.get("nightly")
    before = session.info, session.events()
    with pytest.raises(ZeroDivisionError), store.run("nightly") as run:
        run.step("fetch", Counted())
        broken()
    assert (session.info.status, session.events()) == ("completed", before[1])
    assert session.info.last_seq == before[0].last_seq


def test_a_completed_script_with_a_new_step_calls_only_that(store: stepkeep.Store) -> None:
    """The session is reopened for it, and completed again."""
    fetch = Counted()
    with store.run("nightly") as run:
        run.step("fetch", fetch)
    with store.run("nightly") as run:
        run.step("fetch", fetch)
        assert run.step("count", lambda: 7) == 7
        assert store.get("nightly").info.status == "in_progress"
    assert fetch.calls == 1
    assert store.get("nightly").info.status == "completed"


def test_a_damaged_newest_checkpoint_costs_only_its_own_step(tmp_path: Path, url: str) -> None:
    """The run falls back to the checkpoint before it and calls one step again."""
    steps = [Counted(), Counted(), Counted()]

    def script() -> str:
        with stepkeep.open(url, keyframe_every=1) as store:
            with store.run("nightly", profile="archive") as run:
                for number, step in enumerate(steps):
                    run.step(f"step {number}", step, os.urandom(600).hex(), key=number)
            return next(store.get("nightly").history()).id

    newest = script()
    connection = apsw.Connection(str(tmp_path / "store.db"))
    connection.execute("UPDATE bodies SET data = zeroblob(10) WHERE checkpoint = ?", (newest,))
    connection.close()
    script()
    assert [step.calls for step in steps] == [1, 1, 2]


# --- names and arguments


def test_a_name_that_comes_again_is_another_step(url: str) -> None:
    """Also with the same arguments, or none: a loop gets a new output each time, and those again when it is resumed."""
    with stepkeep.open(url) as store, pytest.raises(RuntimeError), store.run("dice") as run:
        rolls = iter((4, 2, 6))
        first = [run.step("roll", lambda: next(rolls)) for _ in range(3)]
        assert (first, list(run.outputs)) == ([4, 2, 6], ["roll", "roll #2", "roll #3"])
        raise RuntimeError("stop")
    with stepkeep.open(url) as store, store.run("dice") as run:
        assert [run.step("roll", lambda: 1) for _ in range(4)] == [4, 2, 6, 1]


def test_an_output_is_shared_with_nobody(store: stepkeep.Store) -> None:
    with store.run("nightly") as run:
        run.step("fetch", Counted(), 1).append("mine")
        run.step("count", Counted())
    assert store.get("nightly").load().state["fetch"] == [1]


def test_a_name_in_a_loop_is_numbered(url: str) -> None:
    """Each call is a step of its own; resumed, the calls meet their own outputs again."""
    with stepkeep.open(url) as store, pytest.raises(RuntimeError), store.run("chat") as run:
        assert [run.step("llm", str.upper, word) for word in ("a", "b")] == ["A", "B"]
        raise RuntimeError("stop")
    call = Counted()
    with stepkeep.open(url) as store, store.run("chat") as run:
        assert [run.step("llm", str.upper, word) for word in ("a", "b")] == ["A", "B"]
        assert run.step("llm", call, "c") == ["c"]
        assert list(run.outputs) == ["llm", "llm #2", "llm #3"]
    assert call.calls == 1
    with stepkeep.open(url) as store, pytest.raises(stepkeep.Conflict) as refused, store.run("chat") as run:
        run.step("llm", str.upper, "other")
    assert refused.value.code == "step_changed"


def test_an_error_that_cannot_say_what_it_is_fails_the_run(store: stepkeep.Store) -> None:
    """The failure is saved all the same."""
    with pytest.raises(Silent), store.run("nightly") as run:
        run.step("one", Silent.throw)
    assert store.get("nightly").info.status is stepkeep.Status.FAILED
    assert "Silent" in (store.get("nightly").info.error or "")


class Silent(Exception):
    """An exception of a careless library."""

    @staticmethod
    def throw() -> None:
        raise Silent

    def __str__(self) -> str:
        raise TypeError("no text")


@pytest.mark.parametrize(
    ("again", "named"),
    [
        (lambda run, call: run.step("fetch", call, "b", depth=1), "argument 1 (url) changed"),
        (lambda run, call: run.step("fetch", call, "a", depth=2), "argument depth changed"),
        (lambda run, call: run.step("fetch", call, "a"), "argument depth is gone"),
        (lambda run, call: run.step("fetch", call, "a", depth=1, more=0), "argument more is new"),
        (lambda run, call: run.step("fetch", call, "a", depth=True), "argument depth changed"),
        (lambda run, call: run.step("fetch", call, "a", depth=1.0), "argument depth changed"),
    ],
)
def test_a_finished_step_with_other_arguments_is_refused(
    store: stepkeep.Store, again: Callable[[Run, Callable[..., Any]], Any], named: str
) -> None:
    """The error names the step and the argument; types count as well."""

    def fetch(url: str, depth: int = 0, more: int = 0) -> str:
        return url * depth

    with store.run("nightly") as run:
        run.step("fetch", fetch, "a", depth=1)
    with pytest.raises(stepkeep.Conflict) as refused, store.run("nightly") as run:
        again(run, fetch)
    assert refused.value.code == "step_changed"
    assert "'fetch'" in refused.value.message
    assert named in refused.value.message


def test_force_runs_a_changed_step_again(store: stepkeep.Store) -> None:
    """Its new output replaces the stored one; what did not change stays."""
    same, changed = Counted(), Counted()
    for argument in (1, 2):
        with store.run("nightly", force=True) as run:
            run.step("same", same, "x")
            assert run.step("changed", changed, argument) == [argument]
    assert (same.calls, changed.calls) == (1, 2)
    assert store.get("nightly").load().state == {"same": ["x"], "changed": [2]}


def test_an_argument_without_exact_encoding_needs_a_key(store: stepkeep.Store) -> None:
    """The error names the place; with `key` that alone is compared."""
    use = Counted(lambda *_: "used")
    with store.run("nightly") as run:
        with pytest.raises(stepkeep.InvalidInput, match="key=") as refused:
            run.step("use", use, {"lock": [threading.Lock()]})
        assert refused.value.path == "#1.lock[0]"
        assert run.step("use", use, threading.Lock(), key=["v1"]) == "used"
    with store.run("nightly") as run:
        assert run.step("use", use, threading.Lock(), key=["v1"]) == "used"
    with pytest.raises(stepkeep.Conflict, match="the key changed"), store.run("nightly") as run:
        run.step("use", use, threading.Lock(), key=["v2"])
    assert use.calls == 1


@pytest.mark.parametrize("name", ["", "x" * 1025, "a\0b"])
def test_a_step_needs_a_name(store: stepkeep.Store, name: str) -> None:
    """The rule for names is that of tags and keys."""
    with store.run("nightly") as run, pytest.raises(stepkeep.InvalidInput):
        run.step(name, Counted())


def test_typed_outputs_come_back_as_data_the_first_time_too(store: stepkeep.Store) -> None:
    """A resumed run sees what the first one saw."""

    @dataclass
    class Page:
        title: str

    for _ in range(2):
        with store.run("nightly") as run:
            assert run.step("fetch", lambda: Page("A")) == {"title": "A"}


def test_an_output_that_cannot_be_saved_fails_its_step(store: stepkeep.Store) -> None:
    """The error names step and place, nothing of it is stored, and the next run calls the step again."""
    bad = Counted(lambda: {"items": [1, object()]})
    with pytest.raises(stepkeep.InvalidInput, match="'fetch' returned") as refused, store.run("a") as run:
        run.step("before", Counted())
        run.step("fetch", bad)
    assert (refused.value.code, refused.value.path) == ("state_not_exact", "items[1]")
    assert next(store.get("a").history()).message == "Failed at step 2: fetch"
    assert store.get("a").load().state == {"before": []}


def test_an_output_too_large_beside_the_others_fails_its_step(url: str) -> None:
    """The outputs of all steps share the limit of a state; what was stored before stays."""
    with stepkeep.open(url, max_state_bytes=2000) as store:
        with pytest.raises(stepkeep.InvalidInput) as refused, store.run("a") as run:
            run.step("first", lambda: "x" * 1500)
            run.step("second", lambda: "x" * 1500)
        assert refused.value.code == "state_too_large"
        assert next(store.get("a").history()).message == "Failed at step 2: second"
        assert list(store.get("a").load().state) == ["first"]


# --- decorators


def test_a_task_is_a_step_named_after_its_function(store: stepkeep.Store) -> None:
    """With a pattern, each call is a step of its own."""
    calls: list[str] = []
    for _ in range(2):
        with store.run("nightly") as run:

            @run.task
            def index() -> list[str]:
                calls.append("index")
                return ["a", "b"]

            @run.task(name="fetch {url}")
            def fetch(url: str, depth: int = 1) -> str:
                calls.append(url)
                return url * depth

            assert [fetch(url, depth=2) for url in index()] == ["aa", "bb"]
            assert list(run.outputs) == ["index", "fetch a", "fetch b"]
    assert calls == ["index", "a", "b"]


# --- when saving fails


def test_a_failing_save_is_not_a_failing_step() -> None:
    """The step is done: calling it again only saves it. Leaving the block with the error blames no step."""
    faults = Faults()
    store = stepkeep.Store(faults.wrap(MemoryBackend()))
    work, later = Counted(), Counted()
    with store.run("nightly") as run:
        faults.add(Fault(fail, method="append"))
        with pytest.raises(stepkeep.BackendUnavailable):
            run.step("work", work, 1)
        assert run.step("work", work, 1) == [1]
        faults.add(Fault(fail, method="append"))
        with pytest.raises(stepkeep.BackendUnavailable):
            run.step("later", later)
    assert (work.calls, later.calls) == (1, 1)
    assert store.get("nightly").load().state == {"work": [1], "later": []}
    assert store.get("nightly").info.status == "completed"
    with pytest.raises(stepkeep.BackendUnavailable), store.run("nightly") as run:
        faults.add(Fault(fail, method="append"))
        run.step("last", Counted())
    newest = store.get("nightly").newest()
    assert newest is not None
    assert newest.header.message == "Failed after step 1: last"
    assert newest.details["script"]["lastError"].get("step") is None
    assert "last" in newest.state
    store.close()


def test_an_error_that_cannot_be_saved_says_so() -> None:
    """The script's own error goes on, with a note about the store."""
    faults = Faults()
    store = stepkeep.Store(faults.wrap(MemoryBackend()))
    with pytest.raises(ZeroDivisionError) as raised, store.run("nightly") as run:
        faults.add(Fault(fail, method="append"))
        run.step("bad", broken)
    assert any("could not save" in note for note in raised.value.__notes__)
    store.close()


# --- threads, processes, misuse


def test_steps_may_run_on_several_threads(store: stepkeep.Store) -> None:
    """Every output is in the newest checkpoint, whichever came first."""
    with store.run("wide", profile="archive") as run, ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(run.step, f"square {n}", lambda n: n * n, n) for n in range(40)]
        assert [future.result() for future in futures] == [n * n for n in range(40)]
    session = store.get("wide")
    assert session.load().state == {f"square {n}": n * n for n in range(40)}
    counts = [len(store.checkpoint(header.id).state) for header in session.history(newest_first=False)]
    assert counts == list(range(1, 41))


def test_one_name_on_two_threads_at_once_is_refused(store: stepkeep.Store) -> None:
    """A step is never called twice at the same time."""
    inside, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        go_on.wait(30)

    with store.run("wide") as run, ThreadPoolExecutor(1) as pool:
        first = pool.submit(run.step, "one", wait)
        inside.wait(30)
        with pytest.raises(stepkeep.Conflict) as refused:
            run.step("one", wait)
        go_on.set()
        first.result()
    assert refused.value.code == "step_running"


def test_steps_may_call_steps(store: stepkeep.Store) -> None:
    """The inner one is stored first, and not called again when the outer one is."""
    inner = Counted(lambda: 1)
    with pytest.raises(ZeroDivisionError), store.run("nested") as run:
        run.step("outer", lambda: (run.step("inner", inner), broken()))
    with store.run("nested") as run:
        assert run.step("outer", lambda: run.step("inner", inner) + 1) == 2
    assert inner.calls == 1


def test_a_run_is_entered_once_and_used_inside(store: stepkeep.Store) -> None:
    """Steps after the block, and a second `with` on the same object, are refused."""
    run = store.run("nightly")
    with pytest.raises(stepkeep.InvalidInput, match="inside"):
        run.step("early", Counted())
    with run:
        run.step("fetch", Counted())
    with pytest.raises(stepkeep.InvalidInput) as late:
        run.step("late", Counted())
    assert late.value.code == "run_ended"
    with pytest.raises(stepkeep.InvalidInput) as again, run:
        pass
    assert again.value.code == "run_entered"


def test_a_session_that_no_script_saved_is_left_alone(store: stepkeep.Store) -> None:
    """Its state is not taken for outputs; `resume=False` may begin a script in it."""
    store.session("agent").save({"fetch": "not an output"})
    with pytest.raises(stepkeep.Conflict) as refused, store.run("agent"):
        pass
    assert refused.value.code == "not_a_script"
    with store.run("agent", resume=False) as run:
        assert run.step("fetch", Counted()) == []


def test_a_forked_child_leaves_the_run_to_its_parent(url: str) -> None:
    """A child that unwinds the block ends nothing and gives no lease back."""
    code, output, errors = programs.end(programs.start(programs.forking, url))
    assert code == 0, errors
    assert json.loads(output) == {"child": 3, "meanwhile": "in_progress", "state": ["first", "second"]}
    with stepkeep.open(url) as store:
        assert store.get("forking").info.status == "completed"


def test_a_forked_child_does_no_steps(url: str) -> None:
    """The parent would save over what the child did, so the child is told so at once."""
    code, output, errors = programs.end(programs.start(programs.forking_and_working, url))
    assert code == 0, errors
    assert json.loads(output) == {"codes": [7, 7, 7], "state": ["first", "inside", "second"]}


def test_a_second_runner_in_this_process_is_refused_as_well(store: stepkeep.Store) -> None:
    """One runner per session, whoever it is; afterwards the lease is free."""
    with store.run("nightly"), pytest.raises(stepkeep.Conflict) as refused, store.run("nightly"):
        pass
    assert refused.value.code == "lease_held"
    with store.run("nightly") as run:
        run.step("fetch", Counted())


# --- real processes


@pytest.mark.full
@pytest.mark.parametrize("place", ["inside", "after"])
def test_a_killed_script_never_repeats_a_finished_step(url: str, tmp_path: Path, place: str) -> None:
    """Killed inside or right behind each of its steps, it ends like an undisturbed run."""
    log, count = tmp_path / "log", 4
    for victim in range(1, count + 1):
        code, _, errors = programs.end(programs.start(programs.chain, url, str(log), count, [place, victim]))
        assert code == -signal.SIGKILL, errors
    code, output, errors = programs.end(programs.start(programs.chain, url, str(log), count, []))
    assert code == 0, errors
    assert json.loads(output) == list(range(1, count + 1))
    lines = programs.lines_of(log)
    begun = {number: lines.count(f"begin {number}") for number in range(1, count + 1)}
    assert [lines.count(f"end {number}") for number in range(1, count + 1)] == [1] * count
    assert set(begun.values()) == ({2} if place == "inside" else {1})


@pytest.mark.full
def test_kills_at_random_moments_repeat_at_most_the_step_under_way(url: str, tmp_path: Path) -> None:
    """What a step returned is never computed again; each kill costs one step at most."""
    log, count, kills = tmp_path / "log", 20, 6
    chance = random.Random(8)
    for _ in range(kills):
        process = programs.start(programs.slow_chain, url, str(log), count)
        before = len(programs.lines_of(log))
        while len(programs.lines_of(log)) == before and process.poll() is None:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.05)
        process.kill()
        programs.end(process)
    code, _, errors = programs.end(programs.start(programs.slow_chain, url, str(log), count))
    assert code == 0, errors
    lines = programs.lines_of(log)
    for number in range(1, count + 1):
        stored = lines.index(f"stored {number}")
        assert f"begin {number}" not in lines[stored:]
    begun = [line for line in lines if line.startswith("begin")]
    assert count <= len(begun) <= count + kills
    with stepkeep.open(url) as store:
        assert store.get("slow").load().state == {f"step {n}": n for n in range(1, count + 1)}
        assert store.verify().is_intact


@pytest.mark.full
def test_a_killed_async_script_repeats_only_what_was_under_way(url: str, tmp_path: Path) -> None:
    """Steps side by side are stored each on its own."""
    log = tmp_path / "log"
    code, _, errors = programs.end(programs.start(programs.async_chain, url, str(log), 5, 3))
    assert code == -signal.SIGKILL, errors
    code, output, errors = programs.end(programs.start(programs.async_chain, url, str(log), 5, 0))
    assert code == 0, errors
    assert json.loads(output) == [1, 4, 9, 16, 25]
    lines = programs.lines_of(log)
    assert [lines.count(f"begin {number}") for number in range(1, 6)] == [1, 1, 2, 1, 1]


@pytest.mark.parametrize("is_async", [False, True])
def test_sigterm_ends_the_children_of_a_script_however_early(url: str, is_async: bool) -> None:
    """A child that a step forked, such as a worker of a pool, ends by the signal, and the script goes on."""
    code, output, errors = programs.end(programs.start(programs.with_children, url, is_async))
    assert code == 0, errors
    assert json.loads(output) == [[-signal.SIGTERM], [1, 2]]
    with stepkeep.open(url) as store:
        assert store.get("parent").info.status == "completed"


@pytest.mark.full
@pytest.mark.parametrize("program", [programs.holding, programs.async_holding])
@pytest.mark.parametrize(("number", "ends"), [(signal.SIGTERM, 143), (signal.SIGINT, None)])
def test_a_signal_pauses_the_script(
    url: str, tmp_path: Path, program: Callable[..., Any], number: signal.Signals, ends: int | None
) -> None:
    """SIGTERM and Ctrl-C save a paused checkpoint, and the process ends as one that was stopped."""
    log = tmp_path / "log"
    process = programs.start(program, url, str(log))
    programs.wait_for(log, "waiting")
    process.send_signal(number)
    code, _, errors = programs.end(process)
    assert code == ends if ends is not None else code != 0, errors
    with stepkeep.open(url) as store:
        session = store.get("held")
        assert session.info.status == "paused"
        assert next(session.history()).message == "Paused at step 2: second"
        assert list(session.load().state) == ["first"]


@pytest.mark.full
def test_a_second_process_waits_for_the_first_and_takes_over_when_it_is_dead(
    url: str, tmp_path: Path
) -> None:
    """The refusal names the holder; after a SIGKILL the next one goes on at once."""
    log = tmp_path / "log"
    first = programs.start(programs.holding, url, str(log))
    programs.wait_for(log, "waiting")
    code, refused, message = json_end(programs.start(programs.one_step, url))
    assert (code, refused) == (0, "lease_held")
    assert f"pid {first.pid}" in message
    first.kill()
    programs.end(first)
    code, output, errors = programs.end(programs.start(programs.one_step, url))
    assert (code, output) == (0, '"done"'), errors


def json_end(process: Any) -> tuple[int, str, str]:
    code, output, errors = programs.end(process)
    assert code == 0, errors
    refused, message = json.loads(output)
    return code, refused, message


@pytest.mark.full
def test_a_runner_that_was_taken_over_cannot_save(url: str, store: stepkeep.Store) -> None:
    """Its token is stale: the step's result is refused, and nothing else of it is stored."""
    from stepkeep.processes import this_process

    with pytest.raises(stepkeep.Conflict) as lost, store.run("nightly") as run:
        run.step("first", Counted())
        uid = store.get("nightly").uid
        backend = store.engine.backend
        held = backend.lease(uid)
        assert held is not None
        backend.acquire_lease(uid, this_process("thief"), seconds=15, replacing=held.token)
        run.step("second", Counted())
    assert lost.value.code == "lease_lost"
    assert list(store.get("nightly").load().state) == ["first"]
    assert store.get("nightly").info.status == "in_progress"


@pytest.mark.full
def test_the_example_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    """The first run dies in its second step, the second one does only what is left, the third one nothing."""
    example = Path(__file__).parents[2] / "examples" / "script.py"
    ends = [
        subprocess.run(
            [sys.executable, str(example), str(tmp_path / "runs.db"), *crash],
            env=programs.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=programs.TIMEOUT_SECONDS,
        )
        for crash in (["--crash"], [], [])
    ]
    assert [end.returncode for end in ends] == [-signal.SIGKILL, 0, 0], ends[1].stderr
    assert [end.stdout.count("fetching") for end in ends] == [3, 0, 0]
    assert [end.stdout.count("counting") for end in ends] == [1, 1, 0]
    assert ends[1].stdout.splitlines()[-1] == ends[2].stdout.splitlines()[-1] == "words: 13"


# --- asyncio


def test_async_steps_of_both_kinds(url: str) -> None:
    """Coroutine functions run on the loop, plain ones on a thread, side by side; each once in a script's life."""
    loop_thread = threading.get_ident()
    calls: list[str] = []

    async def fetch(url: str) -> tuple[str, bool]:
        calls.append(url)
        await asyncio.sleep(0)
        return url, threading.get_ident() == loop_thread

    def parse(url: str) -> tuple[str, bool]:
        calls.append(f"parse {url}")
        return url, threading.get_ident() == loop_thread

    async def main() -> None:
        async with aio.open(url) as store, store.run("nightly") as run:
            fetched = await asyncio.gather(*(run.step(f"fetch {url}", fetch, url) for url in "abc"))
            assert fetched == [("a", True), ("b", True), ("c", True)]
            assert await run.step("parse", parse, "x") == ("x", False)
            assert await run.step("made", lambda: fetch("late")) == ("late", True)
            assert sorted(run.outputs) == ["fetch a", "fetch b", "fetch c", "made", "parse"]

    asyncio.run(main())
    asyncio.run(main())
    assert sorted(calls) == ["a", "b", "c", "late", "parse x"]
    with stepkeep.open(url) as store:
        assert store.get("nightly").info.status == "completed"


def test_an_async_step_that_fails_ends_the_run(url: str) -> None:
    """As in the synchronous form; a task group's error leads to the step."""

    async def bad() -> None:
        broken()

    async def main() -> None:
        async with aio.open(url) as store:
            with pytest.raises(ExceptionGroup):
                async with store.run("nightly") as run, asyncio.TaskGroup() as group:
                    group.create_task(run.step("bad", bad))
            session = await store.get("nightly")
            assert (await session.info()).status == "failed"
            assert [header.message async for header in session.history()] == ["Failed at step 1: bad"]

    asyncio.run(main())


def test_a_cancelled_async_step_can_be_called_again(url: str) -> None:
    """A time-out around a step leaves it undone, whether it was a coroutine or a thread."""
    calls: list[str] = []

    async def slow(name: str) -> str:
        calls.append(name)
        await asyncio.sleep(0 if len(calls) > 1 else 60)
        return name

    async def main() -> None:
        async with aio.open(url) as store, store.run("nightly") as run:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await run.step("slow", slow, "a")
            assert await run.step("slow", slow, "a") == "a"

    asyncio.run(main())
    assert calls == ["a", "a"]


def test_a_cancelled_block_is_paused_and_its_threads_are_awaited(url: str) -> None:
    """The lease is kept until a plain function, which cannot be interrupted, has ended."""
    order: list[str] = []
    inside = threading.Event()

    def slow() -> None:
        inside.set()
        time.sleep(0.2)
        order.append("function ended")

    async def script(store: aio.AsyncStore) -> None:
        async with store.run("nightly") as run:
            await run.step("slow", slow)

    async def main() -> None:
        async with aio.open(url) as store:
            task = asyncio.create_task(script(store))
            await asyncio.to_thread(inside.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            order.append("block left")
            assert (await (await store.get("nightly")).info()).status == "paused"

    asyncio.run(main())
    assert order == ["function ended", "block left"]


def test_async_tasks(url: str) -> None:
    """The decorator makes an awaitable step of a coroutine function."""

    async def main() -> None:
        async with aio.open(url) as store, store.run("nightly") as run:

            @run.task
            async def index() -> list[str]:
                return ["a", "b"]

            @run.task(name="fetch {url}")
            async def fetch(url: str) -> str:
                return url * 2

            assert await asyncio.gather(*(fetch(url) for url in await index())) == ["aa", "bb"]
            assert next(iter(run.outputs)) == "index"

    asyncio.run(main())
