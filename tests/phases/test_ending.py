"""Whatever ends, changes or removes a task, the files that other programs read stay true."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.testing import FakeClock
from tests import interpreter
from tests.phases.conftest import Home

DAY = 86_400


def create(home: Home, phase: str = "plan", *, session: str = "task-1", **options: Any) -> str:
    with stepkeep.open_phases(home.path, **options) as phases:
        made = phases.create_checkpoint(phase, {"open": 1}, session_id=session, task_summary="Move the mail")
    assert made.ok, made.error
    return made.checkpoint_id or ""


def actions(home: Home) -> list[str]:
    return [event["data"]["action"] for event in home.events]


def completed(home: Home) -> list[bool]:
    """What another program reads in the documents."""
    return [json.loads(file.read_text(encoding="utf-8"))["completed"] for file in home.files]


def _command(*words: str) -> Callable[[Home], None]:
    def run(home: Home) -> None:
        store = f"files:{home.path}?layout=phase"
        done = interpreter.python("-m", "stepkeep", *words, "--store", store, cwd=home.path)
        assert done.returncode == 0, done.stderr

    return run


def _session(name: str) -> Callable[[Home], None]:
    def run(home: Home) -> None:
        with stepkeep.open(f"files:{home.path}?layout=phase") as store:
            getattr(store.get("task-1"), name)()

    return run


ENDS = {
    "complete": _command("complete", "task-1"),
    "cancel": _command("cancel", "task-1"),
    "Session.complete": _session("complete"),
    "Session.fail": _session("fail"),
}


@pytest.mark.parametrize("end", list(ENDS.values()), ids=list(ENDS))
def test_every_end_of_a_task_is_told_to_other_programs(home: Home, end: Callable[[Home], None]) -> None:
    """The pointer is cleared, the event is logged, and every document says so, also when the index is lost."""
    create(home, "plan")
    create(home, "build")
    assert (completed(home), home.ref is None) == ([False, False], False)
    end(home)
    assert completed(home) == [True, True]
    assert home.ref is None
    assert actions(home) == ["checkpoint_created", "checkpoint_created", "checkpoint_completed"]
    shutil.rmtree(home.path / ".stepkeep")
    with stepkeep.open_phases(home.path) as phases:
        assert phases.detect_incomplete_checkpoint() is None
        assert len(phases.list_checkpoints(completed=True)) == 2


def test_a_status_with_the_last_save_ends_a_task_too(home: Home) -> None:
    """A save that says completed closes the phases before it; what is logged is the last phase."""
    made = create(home)
    with stepkeep.open(f"files:{home.path}?layout=phase") as store:
        store.get("task-1").save({"done": True}, status="completed")
        assert store.verify().is_intact
    assert completed(home) == [True, True]
    assert (home.ref, actions(home)[-1]) == (None, "checkpoint_completed")
    told = home.events[-1]["data"]
    assert (told["checkpointId"], told["phase"], told["taskSummary"]) == (made, "plan", "Move the mail")


REMOVALS = {
    "delete": _command("delete", "task-1", "--whole-session", "--yes"),
    "Session.clear": _session("clear"),
}


@pytest.mark.parametrize("remove", list(REMOVALS.values()), ids=list(REMOVALS))
def test_every_removal_is_told_to_other_programs(home: Home, remove: Callable[[Home], None]) -> None:
    """No pointer to what is gone stays, and each checkpoint that went is logged, once."""
    create(home, "plan")
    create(home, "build")
    remove(home)
    assert (home.files, home.ref) == ([], None)
    assert actions(home)[2:] == ["checkpoint_deleted", "checkpoint_deleted"]


@pytest.mark.usefixtures("of_an_ended_process")
def test_cleaning_the_store_is_told_too(home: Home, clock: FakeClock) -> None:
    """`stepkeep clean` knows nothing of phases, and leaves no pointer to what it removed."""
    create(home, clock=clock)  # that was long ago
    _command("clean")(home)
    assert (home.files, home.ref, actions(home)[-1]) == ([], None, "checkpoint_deleted")


def test_cleaning_is_told_and_counted_alike(home: Home, clock: FakeClock) -> None:
    """What cleanup reports is what it logs."""
    finished = create(home, clock=clock)
    with stepkeep.open_phases(home.path, clock=clock) as phases:
        phases.complete_checkpoint(finished)
        clock.advance(seconds=20 * DAY)
        assert phases.cleanup_checkpoints(10).deleted == 1
    assert actions(home).count("checkpoint_deleted") == 1
    assert home.ref is None


@pytest.mark.usefixtures("of_an_ended_process")
def test_old_tasks_go_by_themselves_and_are_not_offered(home: Home, clock: FakeClock) -> None:
    """After 30 days without activity a task is not offered, and the next one that is saved cleans it away."""
    old = create(home, session="old", clock=clock)
    clock.advance(seconds=40 * DAY)
    with stepkeep.open_phases(home.path, clock=clock) as phases:
        assert phases.detect_incomplete_checkpoint() is None
        assert phases.load_checkpoint(old) is not None, "looking removes nothing"
    newest = create(home, session="new", clock=clock)
    with stepkeep.open_phases(home.path, clock=clock) as phases:
        assert [each.id for each in phases.list_checkpoints()] == [newest]
    assert home.ref == newest


@pytest.mark.usefixtures("of_an_ended_process")
def test_the_users_settings_hold_for_a_folder_of_phases(
    home: Home, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for every store: here they say when a task is stale, and that it goes then."""
    (tmp_path / "stepkeep").mkdir()
    (tmp_path / "stepkeep" / "config.yaml").write_text(
        "checkpoint:\n  cleanup: {stale_days: 5, failed_retention_days: 5}\n", encoding="utf-8"
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    create(home, session="old", clock=clock)
    clock.advance(seconds=6 * DAY)
    newest = create(home, session="new", clock=clock)
    with stepkeep.open_phases(home.path, clock=clock) as phases:
        assert [each.id for each in phases.list_checkpoints()] == [newest]


def test_what_is_saved_in_a_folder_of_phases_is_counted(home: Home) -> None:
    """By those who open it for phases alone, too."""
    create(home, "plan")
    create(home, "build")
    with stepkeep.open(f"files:{home.path}?layout=phase") as store:
        assert store.stats().metrics.checkpoint_save_count == 2


def test_a_plain_save_does_not_hide_the_offer(home: Home) -> None:
    """What was saved by hand in between says nothing of a phase: the last one that does is offered."""
    phase = create(home, "build")
    with stepkeep.open(f"files:{home.path}?layout=phase") as store:
        store.get("task-1").save({"by": "hand"}, message="in between")
    with stepkeep.open_phases(home.path) as phases:
        found = phases.detect_incomplete_checkpoint()
        assert found is not None
        assert (found.id, found.phase_number, found.task_summary) == (phase, 4, "Move the mail")
        assert [each.id for each in phases.list_checkpoints()] == [phase]
    assert home.ref == phase


def test_a_tilde_is_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an argument and in the environment; no folder is called `~`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with stepkeep.open_phases("~/given") as phases:
        assert phases.checkpoints_dir == tmp_path / "given" / "checkpoints"
    monkeypatch.setenv("STEPKEEP_PHASES", "~/named")
    with stepkeep.open_phases() as phases:
        assert phases.checkpoints_dir == tmp_path / "named" / "checkpoints"
    assert not (tmp_path / "~").exists()


def test_ids_may_be_shortened_and_limits_make_sense(home: Home) -> None:
    """The beginning of an id is enough where it is the only one; a limit below zero is refused."""
    checkpoint = create(home)
    with stepkeep.open_phases(home.path) as phases:
        found = phases.load_checkpoint(checkpoint[:-4])
        assert found is not None
        assert found.id == checkpoint
        assert phases.load_checkpoint("") is None
        with pytest.raises(stepkeep.InvalidInput):
            phases.list_checkpoints(limit=-1)


def test_nothing_that_a_terminal_acts_upon_reaches_the_offer(home: Home) -> None:
    """ESC and BEL in a task are shown, not sent."""
    with stepkeep.open_phases(home.path) as phases:
        phases.create_checkpoint("plan", session_id="t", task_summary="red \x1b[31m bell \x07")
        found = phases.detect_incomplete_checkpoint()
        assert found is not None
        assert found.offer == r"Checkpoint: Resume from Phase 3? (red \x1b[31m bell \x07)"
