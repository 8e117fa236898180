"""The recorder: snapshots at boundaries, coalescing, the heartbeat, outcomes, hints, on a clock that stands still."""

# A block of a recorder, and how it ends, is what is tested here.
# ruff: noqa: PT012

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import aio
from stepkeep.codec.readable import CommandOutcome, ContextDigest
from stepkeep.recording.details import MAX_OUTCOMES, MAX_SUMMARY, pressure_of
from stepkeep.recording.recorder import Recorder
from stepkeep.storage.memory import MemoryBackend
from stepkeep.testing import FakeClock
from stepkeep.testing.faults import Fault, Faults, fail


def passed(name: str, /, **fields: Any) -> CommandOutcome:
    given = {"kind": "shell", "name": name, "result": "PASS", "duration_ms": 12, "summary": "fine", **fields}
    return CommandOutcome(**given)


def history(session: stepkeep.Session) -> list[stepkeep.Header]:
    return list(session.history(newest_first=False))


def triggers(session: stepkeep.Session) -> list[tuple[str, str | None]]:
    return [(str(header.trigger.kind), header.trigger.event) for header in history(session)]


# --- boundaries


def test_every_boundary_is_a_snapshot(session: stepkeep.Session, clock: FakeClock) -> None:
    """Steps that begin and end, errors, stops, requests: each with its trigger, step and status."""
    state = {"done": 0}
    recorder = session.recorder(state=lambda: dict(state))
    recorder.step_started("build", 1)
    state["done"] = 1
    recorder.step_finished("build", "completed")
    recorder.step_started("test", 2)
    clock.advance(10)
    recorder.recoverable_error(TimeoutError("no answer"), "timeout")
    recorder.step_finished("test", "failed")
    recorder.step_finished("docs", "skipped")
    clock.advance(10)
    recorder.manual("before I go", tags=["mine"])
    recorder.before_forced_stop("out of money", "tool_failure")
    saved = history(session)
    assert triggers(session) == [
        ("auto", "step_boundary"),
        ("auto", "step_boundary"),
        ("auto", "step_boundary"),
        ("error", "recoverable_error"),
        ("auto", "step_boundary"),
        ("auto", "step_boundary"),
        ("manual", None),
        ("error", "forced_stop"),
    ]
    assert [header.step for header in saved] == [1, 1, 2, 2, 2, None, None, None]
    assert [str(header.status) for header in saved] == ["in_progress"] * 7 + ["failed"]
    assert saved[0].message == "Step build: running"
    assert saved[3].message == "TimeoutError: no answer"
    assert session.at(saved[1].id).state == {"done": 1}
    assert (session.info.status, session.info.error) == ("failed", "out of money")
    assert session.load("tag:mine").header.message == "before I go"


def test_a_run_that_is_completed_or_paused_says_so(session: stepkeep.Session) -> None:
    """The session follows, and a step that starts afterwards takes the work up again."""
    recorder = session.recorder()
    recorder.step_started("build", 1)
    recorder.pause("lunch")
    assert session.info.status == "paused"
    recorder.step_finished("build")
    assert session.info.status == "in_progress"
    recorder.complete()
    assert session.info.status == "completed"
    assert [event.type for event in session.events()][-1] == "session_completed"


def test_the_details_hold_the_contract(session: stepkeep.Session, clock: FakeClock, tmp_path: Path) -> None:
    """Every field is filled from what was told; before it was told, it is absent."""
    recorder = session.recorder(state=lambda: {"n": 1}, plan_path="plans/today.md")
    recorder.manual()
    bare = session.load().details
    assert bare["step_state"] == {"plan_path": "plans/today.md"}
    assert bare["command_outcomes"] == []
    assert "context_digest" not in bare

    (tmp_path / "data.csv").touch()
    recorder.step_started("build", 1, artifacts=[str(tmp_path / "data.csv")])
    recorder.todo_compliance("PASS", [])
    recorder.context(ContextDigest("high", ["plan.md"], 7, ""))
    recorder.command(passed("make"))
    recorder.step_finished("build")
    details = session.load().details
    step = details["step_state"]
    assert (step["plan_path"], step["step_id"], step["step_ordinal"]) == ("plans/today.md", "build", 1)
    assert step["step_status"] == "completed"
    assert step["todo_compliance"] == {
        "result": "PASS",
        "violations": [],
        "checked_at": session.load().created_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    assert step["resume_hints"]["reason_code"] == "resume_allowed"
    assert details["context_digest"] == {
        "window_pressure": "high",
        "protected_artifacts": ["plan.md"],
        "dropped_items": 7,
        "policy_profile": "archive",
    }
    assert [outcome["name"] for outcome in details["command_outcomes"]] == ["make"]
    recorder.complete()
    assert "resume_hints" not in session.load().details["step_state"]


def test_the_document_speaks_the_words_of_the_specification(session: stepkeep.Session) -> None:
    """Field by field, from any backend."""
    recorder = session.recorder(plan_path="plan.md")
    recorder.step_started("build", 1)
    recorder.command(passed("make", reason_code="cached"))
    header = recorder.step_finished("build").header
    document = session.run_document()
    assert list(document) == [
        "snapshot_id",
        "created_at",
        "run_id",
        "source",
        "source_details",
        "status",
        "step_state",
        "command_outcomes",
    ]
    assert (document["snapshot_id"], document["run_id"]) == (header.id, "run")
    assert (document["source"], document["status"]) == ("step_boundary", "in_progress")
    assert document["step_state"]["step_status"] == "done"
    assert session.run_document(1)["step_state"]["step_status"] == "in_progress"
    assert document["command_outcomes"][0]["reason_code"] == "cached"


# --- coalescing


@pytest.mark.parametrize(("seconds", "snapshots"), [(2.9, 1), (3.1, 2)])
def test_two_triggers_within_three_seconds_are_one_snapshot(
    session: stepkeep.Session, clock: FakeClock, seconds: float, snapshots: int
) -> None:
    """The second is noted on the first, and readers show it."""
    recorder = session.recorder(state=lambda: {"same": True})
    first = recorder.step_started("build", 1)
    clock.advance(seconds)
    second = recorder.manual("please")
    assert len(history(session)) == snapshots
    assert second.is_merged is (snapshots == 1)
    if second.is_merged:
        assert second.header == first.header
        assert session.run_document()["source_details"] == ["step_boundary", "manual"]
    else:
        assert session.run_document()["source_details"] == []


def test_a_change_of_state_status_or_step_is_never_merged(session: stepkeep.Session) -> None:
    """Nor are tags, by which a snapshot is to be found."""
    state = [0]
    recorder = session.recorder(state=lambda: list(state))
    recorder.step_started("build", 1)
    state.append(1)
    assert not recorder.manual().is_merged
    assert not recorder.step_finished("build").is_merged
    assert not recorder.pause().is_merged
    assert recorder.manual("again").is_merged
    assert not recorder.manual("again", tags=["found"]).is_merged
    assert session.load("tag:found").header.status == "paused"


def test_many_triggers_are_merged_in_their_order(session: stepkeep.Session, clock: FakeClock) -> None:
    """Also at one and the same moment; the window counts from the snapshot, not from the last trigger."""
    recorder = session.recorder()
    recorder.compaction_warning()
    recorder.recoverable_error("first", "timeout")
    recorder.manual()
    clock.advance(2)
    recorder.manual()
    clock.advance(2)
    assert not recorder.manual().is_merged
    assert session.run_document(1)["source_details"] == [
        "context_compaction_warning",
        "recoverable_error",
        "manual",
        "manual",
    ]


def test_compaction_warnings_are_never_merged(session: stepkeep.Session) -> None:
    """Each is a snapshot, however fast they come."""
    recorder = session.recorder()
    for _ in range(3):
        assert not recorder.compaction_warning("window is full").is_merged
    assert triggers(session) == [("auto", "context_compaction_warning")] * 3


def test_outcomes_of_a_merged_trigger_are_in_the_next_snapshot(
    session: stepkeep.Session, clock: FakeClock
) -> None:
    """Nothing is lost, and nothing is told twice."""
    recorder = session.recorder()
    recorder.step_started("build", 1)
    recorder.command(passed("make"))
    assert recorder.manual().is_merged
    recorder.command(passed("test"))
    recorder.step_finished("build")
    assert [outcome["name"] for outcome in session.load().details["command_outcomes"]] == ["make", "test"]
    clock.advance(10)
    recorder.manual()
    assert session.load().details["command_outcomes"] == []


# --- outcomes and context


def test_outcomes_are_bounded(session: stepkeep.Session) -> None:
    """The newest are kept, the rest counted, long texts cut."""
    recorder = session.recorder()
    for number in range(MAX_OUTCOMES + 10):
        recorder.command(passed(f"command {number}", summary="x" * 5000))
    recorder.manual()
    details = session.load().details
    assert len(details["command_outcomes"]) == MAX_OUTCOMES
    assert details["command_outcomes_dropped"] == 10
    assert session.run_document()["command_outcomes_dropped"] == 10
    assert details["command_outcomes"][-1]["name"] == f"command {MAX_OUTCOMES + 9}"
    assert len(details["command_outcomes"][-1]["summary"]) == MAX_SUMMARY


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "magic"}, {"result": "pass"}, {"duration_ms": -1}, {"duration_ms": "fast"}, {"name": 5}],
)
def test_an_outcome_that_makes_no_sense_is_refused(session: stepkeep.Session, wrong: dict[str, Any]) -> None:
    """At once, and the recorder goes on without it."""
    recorder = session.recorder()
    with pytest.raises(stepkeep.InvalidInput) as refused:
        recorder.command(passed("make", **wrong))
    assert refused.value.code == "invalid_outcome"
    recorder.manual()
    assert session.load().details["command_outcomes"] == []


def test_the_pressure_of_a_window(session: stepkeep.Session) -> None:
    """From tokens used and tokens in all."""
    assert [pressure_of(used, 100) for used in (0, 59, 60, 84, 85, 120)] == [
        "low",
        "low",
        "medium",
        "medium",
        "high",
        "high",
    ]
    for wrong in ((1, 0), (-1, 10), (float("nan"), 10)):
        with pytest.raises(stepkeep.InvalidInput):
            pressure_of(*wrong)
    with pytest.raises(stepkeep.InvalidInput):
        session.recorder().context(ContextDigest("full", [], 0, "run"))  # type: ignore[arg-type]
    with pytest.raises(stepkeep.InvalidInput):
        session.recorder().context(ContextDigest("low", [], -1, "run"))


def test_misuse_is_refused(session: stepkeep.Session) -> None:
    """A step that was never started, a status that is no end, tags that are one text, odd timers."""
    recorder = session.recorder()
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: recorder.step_finished("never"), "unknown_step"),
        (lambda: recorder.step_finished("never", "running"), "invalid_status"),
        (lambda: recorder.step_finished("never", "splendid"), "invalid_status"),
        (lambda: recorder.step_started(""), "invalid_name"),
        (lambda: recorder.manual(tags="mine"), "invalid_name"),
        (lambda: recorder.recoverable_error("x", "bad luck"), "invalid_interruption"),
        (lambda: recorder.todo_compliance("FAIL", [object()]), "invalid_outcome"),
        (lambda: recorder.todo_compliance("FAIL", [1]), "invalid_outcome"),
        (lambda: recorder.todo_compliance("FAIL", ["\ud800"]), "state_not_exact"),
        (lambda: recorder.todo_compliance("MAYBE"), "invalid_outcome"),
        (lambda: recorder.context("x"), "invalid_context"),  # type: ignore[arg-type]
        (lambda: recorder.step_started("a", -1), "invalid_step"),
        (lambda: recorder.step_started("a", True), "invalid_step"),
        (lambda: recorder.update({"x": object()}), "state_not_exact"),
        (lambda: session.recorder(heartbeat_seconds=0), "invalid_option"),
    ]
    for call, code in wrong:
        with pytest.raises(stepkeep.InvalidInput) as refused:
            call()
        assert refused.value.code == code
    assert history(session) == []


def test_a_state_that_was_set_is_saved_as_it_was_then(session: stepkeep.Session) -> None:
    """It may change afterwards; without any state the snapshot's is an empty dict."""
    recorder = session.recorder()
    recorder.manual()
    assert session.load().state == {}
    state = {"n": [1]}
    recorder.update(state)
    state["n"].append(2)
    recorder.manual()
    assert session.load().state == {"n": [1]}


# --- the heartbeat


class Waits:
    """Stands for waiting: moves the clock instead, does what is planned for that moment, ends after the last."""

    def __init__(self, clock: FakeClock, *then: Callable[[], object]) -> None:
        self._clock = clock
        self._then = list(then)
        self.seconds: list[float] = []
        self.ended = threading.Event()

    def __call__(self, seconds: float) -> bool:
        if not self._then:
            self.ended.set()
            return True
        self.seconds.append(seconds)
        self._clock.advance(seconds)
        self._then.pop(0)()
        return False


def nothing() -> None:
    pass


def test_the_heart_beats_every_120_seconds(session: stepkeep.Session, clock: FakeClock) -> None:
    """While work is in progress; its snapshots are of the timer."""
    waits = Waits(clock, nothing, nothing, nothing)
    with session.recorder(state=lambda: {"n": 1}, wait=waits):
        assert waits.ended.wait(30)
    assert triggers(session) == [("timer", "heartbeat")] * 3
    times = [header.time_us for header in history(session)]
    assert [later - earlier for earlier, later in pairwise(times)] == [120_000_000] * 2
    assert waits.seconds == [120, 120, 120]


def test_an_hour_of_silent_work_leaves_enough_to_go_back_to(
    session: stepkeep.Session, clock: FakeClock
) -> None:
    """Thirty snapshots; the specification asks for ten."""
    waits = Waits(clock, *[nothing] * 30)
    with session.recorder(wait=waits):
        assert waits.ended.wait(30)
    assert len(history(session)) == 30
    assert sum(waits.seconds) == 3600


def test_no_heartbeat_before_120_seconds(session: stepkeep.Session, clock: FakeClock) -> None:
    """The period counts from the last snapshot of any kind."""
    recorder = session.recorder()
    clock.advance(119.9)
    assert recorder.heartbeat() is None
    clock.advance(0.1)
    assert recorder.heartbeat() is not None
    clock.advance(60)
    recorder.step_started("build", 1)
    clock.advance(119)
    assert recorder.heartbeat() is None
    clock.advance(1)
    assert recorder.heartbeat() is not None


def test_a_snapshot_moves_the_next_heartbeat(session: stepkeep.Session, clock: FakeClock) -> None:
    """The thread that looks too early waits for the rest."""
    recorder: list[Recorder] = []

    def step_halfway() -> None:
        clock.advance(-60)
        recorder[0].step_started("build", 1)
        clock.advance(60)

    waits = Waits(clock, step_halfway, nothing)
    recorder.append(session.recorder(wait=waits))
    with recorder[0]:
        assert waits.ended.wait(30)
    assert triggers(session) == [("auto", "step_boundary"), ("timer", "heartbeat")]
    assert waits.seconds == [120, 60]


@pytest.mark.parametrize("by", ["recorder", "another handle", "completed"])
def test_no_heartbeat_while_paused(session: stepkeep.Session, clock: FakeClock, by: str) -> None:
    """Whoever paused or ended it; once a step goes on, the heart beats again."""
    recorder: list[Recorder] = []

    def pause() -> None:
        {
            "recorder": lambda: recorder[0].pause(),
            "another handle": session.pause,
            "completed": lambda: recorder[0].complete(),
        }[by]()

    waits = Waits(clock, pause, nothing, nothing, lambda: recorder[0].step_started("build", 1), nothing)
    recorder.append(session.recorder(wait=waits))
    with recorder[0]:
        assert waits.ended.wait(30)
    kinds = [kind for kind, event in triggers(session) if event == "heartbeat"]
    assert kinds == ["timer"]
    assert triggers(session)[-2:] == [("auto", "step_boundary"), ("timer", "heartbeat")]


def test_a_failing_heartbeat_is_logged_and_an_event(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a failing store nor a failing state ends the thread; the next beat saves."""
    faults = Faults()
    store = stepkeep.Store(faults.wrap(MemoryBackend()), clock=clock)
    session = store.session("run")
    broken = [True]

    def state() -> dict[str, int]:
        if broken:
            broken.pop()
            raise ZeroDivisionError("state on fire")
        return {"n": 1}

    waits = Waits(clock, nothing, lambda: faults.add(Fault(fail, method="append")), nothing)
    with session.recorder(state=state, wait=waits):
        assert waits.ended.wait(30)
    failed = [event.data["code"] for event in session.events() if event.type == "heartbeat_failed"]
    assert failed == ["ZeroDivisionError", "backend_unavailable"]
    assert "state on fire" in caplog.text
    assert triggers(session) == [("timer", "heartbeat")]
    store.close()


def test_a_failing_save_raises_where_it_was_asked_for(clock: FakeClock) -> None:
    """And what was to be saved is in the next snapshot."""
    faults = Faults()
    store = stepkeep.Store(faults.wrap(MemoryBackend()), clock=clock)
    recorder = store.session("run").recorder()
    recorder.step_started("build", 1)
    recorder.command(passed("make"))
    faults.add(Fault(fail, method="append"))
    with pytest.raises(stepkeep.BackendUnavailable):
        recorder.step_finished("build")
    recorder.step_finished("build")
    details = store.get("run").load().details
    assert details["step_state"]["step_status"] == "completed"
    assert [outcome["name"] for outcome in details["command_outcomes"]] == ["make"]
    faults.add(Fault(fail, method="annotate"))
    with pytest.raises(stepkeep.BackendUnavailable):
        recorder.manual()
    store.close()


def test_a_real_heartbeat_runs_and_ends(tmp_path: Path) -> None:
    """A thread of its own, which is gone after the block."""
    with stepkeep.open(tmp_path / "store.db") as store:
        session = store.session("run", profile="archive")
        with session.recorder(state=lambda: {"n": 1}, heartbeat_seconds=0.05):
            give_up = time.monotonic() + 30
            while len(history(session)) < 2 and time.monotonic() < give_up:
                time.sleep(0.01)
        count = len(history(session))
        assert count >= 2
        assert "stepkeep-heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_an_exception_that_ends_the_block_is_a_forced_stop(session: stepkeep.Session) -> None:
    """Unless the run was ended before."""
    with pytest.raises(ZeroDivisionError), session.recorder() as recorder:
        recorder.step_started("build", 1)
        raise ZeroDivisionError("on purpose")
    assert session.info.status == "failed"
    assert triggers(session)[-1] == ("error", "forced_stop")
    with pytest.raises(ZeroDivisionError), session.recorder() as recorder:
        recorder.complete()
        raise ZeroDivisionError("too late to matter")
    assert session.info.status == "completed"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_stops_the_program_is_a_forced_stop(
    session: stepkeep.Session, error: type[BaseException]
) -> None:
    """Ctrl-C, an exit and a cancelled task go on, and the run does not stay in progress."""
    with pytest.raises(error), session.recorder() as recorder:
        recorder.step_started("build", 1)
        raise error
    assert session.info.status == "failed"
    assert session.info.error == f"{error.__name__}: "
    assert triggers(session)[-1] == ("error", "forced_stop")


def test_a_failing_state_does_not_hide_the_error(session: stepkeep.Session) -> None:
    """What ended the block goes on, with a note; the run is failed although its last state is not known."""
    states = iter([{"n": 1}])
    with pytest.raises(ZeroDivisionError) as raised, session.recorder(state=lambda: next(states)) as recorder:
        recorder.step_started("build", 1)
        raise ZeroDivisionError("on purpose")
    assert any("could not save the stop" in note for note in raised.value.__notes__)
    assert (session.info.status, session.info.error) == ("failed", "ZeroDivisionError: on purpose")


# --- resuming


def test_resume_hints_follow_what_happened(session: stepkeep.Session, clock: FakeClock) -> None:
    """Each snapshot says whether the one who finds it may go on."""

    def reason() -> str:
        code: str = session.load().details["step_state"]["resume_hints"]["reason_code"]
        return code

    recorder = session.recorder(has_artifact=lambda name: name == "there")
    recorder.step_started("safe", 1)
    assert reason() == "resume_allowed"
    recorder.step_started("pay", 2, is_idempotent=False)
    assert reason() == "resume_step_not_idempotent"
    recorder.step_started("read", 3, artifacts=["there", "gone"])
    assert reason() == "resume_missing_artifacts"
    recorder.step_started("tool", 4, artifacts=["there"])
    clock.advance(10)
    recorder.recoverable_error("exit code 1", "tool_failure")
    assert reason() == "resume_blocked_by_cooldown"
    clock.advance(30)
    recorder.manual()
    assert reason() == "resume_allowed"
    recorder.before_forced_stop("nobody knows why")
    assert reason() == "resume_unknown_interruption"


def test_resuming_after_a_crash_waits_and_counts(
    session: stepkeep.Session, store: stepkeep.Store, clock: FakeClock
) -> None:
    """Cool-down first; three attempts, of which refused ones are none; a new step has a new budget."""
    assert session.recorder().may_resume().reason_code == "resume_missing_checkpoint"
    session.recorder().step_started("build", 1)
    crashed = store.get("run").recorder()
    assert crashed.try_resume().reason_code == "resume_blocked_by_cooldown"
    for _ in range(3):
        clock.advance(60)
        assert crashed.may_resume().eligible
        assert crashed.try_resume().eligible
        assert crashed.try_resume().reason_code in (
            "resume_blocked_by_cooldown",
            "resume_attempt_limit_reached",
        )
    clock.advance(3600)
    assert crashed.try_resume().reason_code == "resume_attempt_limit_reached"
    types = [event.type for event in session.events() if event.type.startswith("resume")]
    assert types.count("resume_attempted") == 3
    crashed.step_started("build", 1)
    hints = session.load().details["step_state"]["resume_hints"]
    assert hints["reason_code"] == "resume_attempt_limit_reached"
    crashed.step_finished("build")
    crashed.step_started("test", 2)
    clock.advance(60)
    assert store.get("run").recorder().may_resume().eligible


def test_an_error_that_was_merged_still_counts(session: stepkeep.Session, clock: FakeClock) -> None:
    """Before the first step nothing else changes; the class of the interruption is read from the note."""
    recorder = session.recorder()
    recorder.manual()
    assert recorder.recoverable_error("no answer", "timeout").is_merged
    clock.advance(119)
    assert recorder.may_resume().reason_code == "resume_blocked_by_cooldown"
    clock.advance(1)
    assert recorder.may_resume().eligible


def test_paused_and_finished_work(session: stepkeep.Session, clock: FakeClock) -> None:
    """Paused work may go on at once; finished work has nothing to resume."""
    recorder = session.recorder()
    recorder.step_started("build", 1)
    recorder.pause()
    assert recorder.may_resume().eligible
    recorder.complete()
    assert recorder.may_resume().reason_code == "resume_missing_checkpoint"


# --- elsewhere


def test_snapshots_outlive_the_process(tmp_path: Path, clock: FakeClock) -> None:
    """Details and merged triggers are there after reopening."""
    url = f"sqlite:{tmp_path / 'store.db'}"
    with stepkeep.open(url, clock=clock) as store:
        recorder = store.session("run").recorder(state=lambda: {"n": 1})
        recorder.step_started("build", 1)
        recorder.manual("hello")
    with stepkeep.open(url, clock=clock) as store:
        document = store.get("run").run_document()
        assert document["source_details"] == ["step_boundary", "manual"]
        assert document["step_state"]["step_id"] == "build"
        assert store.verify().is_intact


def test_a_recorder_on_asyncio(tmp_path: Path) -> None:
    """The same methods, awaited."""

    async def main() -> None:
        async with aio.open(tmp_path / "store.db") as store:
            session = await store.session("run")
            async with await session.recorder(state=lambda: {"n": 1}) as recorder:
                await recorder.step_started("build", 1)
                await recorder.command(passed("make"))
                recorded = await recorder.step_finished("build")
                assert not recorded.is_merged
                assert (await recorder.may_resume()).reason_code == "resume_blocked_by_cooldown"
            assert (await session.run_document())["step_state"]["step_status"] == "done"
            with pytest.raises(ZeroDivisionError):
                async with await session.recorder() as recorder:
                    raise ZeroDivisionError
            assert (await session.info()).status == "failed"

    asyncio.run(main())


def test_every_method_of_a_recorder_has_its_async_form() -> None:
    """The facade offers what the recorder offers."""

    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(aio.AsyncRecorder) == public(Recorder)


def test_threads_may_share_a_recorder(session: stepkeep.Session) -> None:
    """Every trigger is a snapshot or merged into one."""
    recorder = session.recorder(state=lambda: {"n": 1})
    merged: list[bool] = []

    def work(number: int) -> None:
        merged.append(recorder.step_started(f"step {number}", number).is_merged)
        merged.append(recorder.manual().is_merged)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    notes = sum(len(session.run_document(header.id)["source_details"]) - 1 for header in history(session))
    assert len(merged) == 16
    assert len(history(session)) == merged.count(False)
    assert notes == merged.count(True)
