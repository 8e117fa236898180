"""What a recorder makes of the run it finds: its status, its head, its budget of attempts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import stepkeep
from stepkeep.recording.recorder import Recorded, Recorder
from stepkeep.storage.memory import MemoryBackend
from stepkeep.testing import FakeClock
from stepkeep.testing.faults import Fault, Faults, fail

UNCHANGING: dict[str, Callable[[Recorder], Recorded]] = {
    "manual": lambda recorder: recorder.manual("a note", tags=["note"]),
    "compaction_warning": lambda recorder: recorder.compaction_warning("window is full"),
    "recoverable_error": lambda recorder: recorder.recoverable_error("no answer", "timeout"),
}
ENDS: dict[str, Callable[[stepkeep.Session], object]] = {
    "completed": lambda session: session.complete(),
    "paused": lambda session: session.pause(),
    "failed": lambda session: session.fail("out of money"),
    "cancelled": lambda session: session.cancel(),
}


# --- the status


@pytest.mark.parametrize("status", ENDS)
def test_a_run_that_rests_or_ended_stays_so(store: stepkeep.Store, clock: FakeClock, status: str) -> None:
    """A later process that takes a note, warns or tells of an error neither reopens it nor forgets its error."""
    for key, trigger in UNCHANGING.items():
        session = store.session(key, profile="archive")
        first = session.recorder(state=lambda: {"v": 1})
        first.step_started("build", 1)
        first.step_finished("build")
        ENDS[status](session)
        error = session.info.error
        clock.advance(10)

        later = store.get(key)
        recorded = trigger(later.recorder(state=lambda: {"v": 2}))
        assert (str(later.info.status), later.info.error) == (status, error)
        assert str(recorded.header.status) == status
        assert not any(event.type == "session_reopened" for event in later.events())


@pytest.mark.parametrize("status", ENDS)
def test_a_living_recorder_sees_that_another_handle_ended_the_run(store: stepkeep.Store, status: str) -> None:
    """The next snapshot that leaves the run unchanged says so, and a step takes the work up again."""
    for key, trigger in UNCHANGING.items():
        session = store.session(key, profile="archive")
        recorder = session.recorder(state=lambda: {"v": 1})
        recorder.step_started("build", 1)
        ENDS[status](store.get(key))
        recorded = trigger(recorder)
        assert not recorded.is_merged
        assert str(session.info.status) == str(recorded.header.status) == status
        hints = session.load().details["step_state"].get("resume_hints")
        assert (hints is None) is (status in ("completed", "cancelled"))
        recorder.step_finished("build")
        assert session.info.status == "in_progress"


def test_a_recorder_that_rests_sees_that_another_one_goes_on(
    store: stepkeep.Store, session: stepkeep.Session
) -> None:
    """Its note does not pause the work of the other."""
    resting = session.recorder(state=lambda: {"v": 1})
    resting.step_started("build", 1)
    resting.pause()
    store.get("run").recorder(state=lambda: {"v": 2}).step_started("test", 2)
    resting.manual("a note")
    assert session.info.status == "in_progress"


def test_a_run_that_ends_while_its_state_is_taken_stays_ended(session: stepkeep.Session) -> None:
    """The status is looked up after the state, which may take its time."""

    def state() -> dict[str, int]:
        session.cancel()
        return {"v": 1}

    session.recorder(state=state).manual("a note")
    assert session.info.status == "cancelled"


def test_a_run_that_could_not_be_completed_does_not_stay_in_progress(clock: FakeClock) -> None:
    """What ends the block is a forced stop, also when it comes from the end of the run itself."""
    faults = Faults()
    store = stepkeep.Store(faults.wrap(MemoryBackend()), clock=clock)
    session = store.session("run")

    def work() -> None:
        with session.recorder(state=lambda: {"v": 1}) as recorder:
            recorder.step_started("build", 1)
            faults.add(Fault(fail, method="append"))
            recorder.complete()

    with pytest.raises(stepkeep.BackendUnavailable):
        work()
    assert session.info.status == "failed"
    store.close()


# --- the head


def test_a_trigger_is_not_merged_into_what_was_left_behind(session: stepkeep.Session) -> None:
    """After a restore the last snapshot is on another branch, and what is asked for is saved."""
    state = {"v": 1}
    recorder = session.recorder(state=lambda: dict(state))
    recorder.manual("one")
    state["v"] = 2
    recorder.manual("two")
    session.restore("#1")
    assert not recorder.manual("keep v=2").is_merged
    assert session.latest().state == {"v": 2}
    assert recorder.manual("again").is_merged


def test_a_trigger_is_not_merged_below_the_save_of_another(
    store: stepkeep.Store, session: stepkeep.Session
) -> None:
    """Another handle saved meanwhile: the newest state is the one that was asked for."""
    recorder = session.recorder(state=lambda: {"v": 1})
    recorder.manual("one")
    store.get("run").save({"v": "theirs"})
    assert not recorder.manual("mine").is_merged
    assert session.latest().state == {"v": 1}


def test_a_trigger_is_not_merged_into_a_deleted_snapshot(session: stepkeep.Session) -> None:
    """The last snapshot is gone, with it the state: it is saved again."""
    state = {"v": 1}
    recorder = session.recorder(state=lambda: dict(state))
    recorder.manual("one")
    state["v"] = 2
    newest = recorder.manual("two")
    session.delete(newest.header.id)
    assert not recorder.manual("keep v=2").is_merged
    assert session.latest().state == {"v": 2}


# --- errors and repeated starts


def test_an_error_at_a_step_is_a_snapshot_of_its_own(session: stepkeep.Session, clock: FakeClock) -> None:
    """It changes whether the step may be resumed, and the stored document says what `may_resume` says."""
    recorder = session.recorder(state=lambda: {"v": 1})
    recorder.step_started("build", 1)
    assert not recorder.recoverable_error("exit code 1", "tool_failure").is_merged
    stored = session.run_document()["step_state"]["resume_hints"]
    assert stored["reason_code"] == recorder.may_resume().reason_code == "resume_blocked_by_cooldown"
    clock.advance(1)
    assert recorder.recoverable_error("exit code 1 again", "tool_failure").is_merged
    assert not recorder.recoverable_error("no answer", "timeout").is_merged
    assert not recorder.step_started("build", 1).is_merged
    assert session.run_document()["step_state"]["resume_hints"]["eligible"]


def test_a_step_that_starts_again_with_other_needs_is_never_merged(session: stepkeep.Session) -> None:
    """Whether it may be repeated, and what it needs, is what the one who resumes asks."""
    recorder = session.recorder(state=lambda: {"v": 1}, has_artifact=lambda name: False)
    recorder.step_started("pay", 1)
    assert not recorder.step_started("pay", 1, artifacts=["bill"]).is_merged
    assert recorder.may_resume().reason_code == "resume_missing_artifacts"
    assert not recorder.step_started("pay", 1, is_idempotent=False).is_merged
    assert recorder.may_resume().reason_code == "resume_step_not_idempotent"


# --- the budget


def test_a_completed_step_has_its_budget_again(store: stepkeep.Store, clock: FakeClock) -> None:
    """Only attempts without success count: a step that was resumed and completed may crash again later."""
    store.session("run", profile="archive").recorder().step_started("build", 1)
    for _ in range(4):
        clock.advance(3600)
        resumed = store.get("run").recorder()
        assert resumed.try_resume().reason_code == "resume_allowed"
        resumed.step_started("build", 1)
        resumed.step_finished("build", "completed")
        resumed.step_started("build", 1)
        hints = store.get("run").load().details["step_state"]["resume_hints"]
        assert hints["reason_code"] == "resume_allowed"


@pytest.mark.parametrize("end", ["failed", "skipped"])
def test_a_step_that_was_not_completed_keeps_its_count(
    store: stepkeep.Store, clock: FakeClock, end: str
) -> None:
    """Neither does the success of another step give it a new budget."""
    store.session("run", profile="archive").recorder().step_started("build", 1)
    for _ in range(3):
        clock.advance(3600)
        resumed = store.get("run").recorder()
        assert resumed.try_resume().eligible
        resumed.step_started("build", 1)
        resumed.step_finished("build", end)
        resumed.step_started("lint", 2)
        resumed.step_finished("lint")
        resumed.step_started("build", 1)
    clock.advance(3600)
    assert store.get("run").recorder().may_resume().reason_code == "resume_attempt_limit_reached"


def test_a_note_changes_nothing_about_resuming(store: stepkeep.Store, clock: FakeClock) -> None:
    """A later process that begins no step leaves what the last one said of it: no step is repeated by mistake."""
    store.session("pay").recorder().step_started("pay", 1, is_idempotent=False)
    stopped = store.session("stop").recorder()
    stopped.step_started("build", 1)
    stopped.before_forced_stop("no answer", "timeout")
    clock.advance(3600)
    for key, reason in (("pay", "resume_step_not_idempotent"), ("stop", "resume_allowed")):
        later = store.get(key).recorder()
        assert later.may_resume().reason_code == reason
        later.manual("a note")
        clock.advance(3600)
        assert later.may_resume().reason_code == reason
        later.step_started("another", 2)
        assert store.get(key).load().details["step_state"]["resume_hints"]["reason_code"] == "resume_allowed"


# --- no state


def test_without_a_state_the_latest_is_saved_again(
    store: stepkeep.Store, session: stepkeep.Session, clock: FakeClock
) -> None:
    """A note in a later process does not wipe out what the run had reached."""
    session.save({"v": (1, 2)})
    clock.advance(10)
    recorder = store.get("run").recorder()
    assert not recorder.manual("a note").is_merged
    assert session.latest().state == {"v": (1, 2)}
    store.get("run").save({"v": 3})
    recorder.manual("another")
    assert session.latest().state == {"v": 3}
    recorder.update({"v": 4})
    recorder.manual("mine")
    assert session.latest().state == {"v": 4}


def test_a_note_survives_reopening(tmp_path: Path) -> None:
    """The run is completed in one process and stays so in the next."""
    url = f"sqlite:{tmp_path / 'store.db'}"
    with stepkeep.open(url) as store:
        recorder = store.session("job").recorder(state=lambda: {"v": 1})
        recorder.step_started("a", 1)
        recorder.step_finished("a")
        recorder.complete()
    with stepkeep.open(url) as store:
        session = store.get("job")
        session.recorder(state=lambda: {"v": 1}).manual("a note")
    with stepkeep.open(url) as store:
        assert store.get("job").info.status == "completed"
