"""Seed 003: checkpoints at phase transitions and the offer to resume, criterion by criterion."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stepkeep
from stepkeep.testing import FakeClock
from tests.phases.conftest import SEED, Home

CRITERIA = [{"id": "isc-1", "subject": "mail arrives", "status": "pending"}]
SUMMARY = "Move the mail server to the new host this week"
DAY = 86_400


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def create(home: Home, phase: str = "plan", *, session: str = "s-1", clock: FakeClock | None = None) -> str:
    with stepkeep.open_phases(home.path, **({} if clock is None else {"clock": clock})) as phases:
        made = phases.create_checkpoint(
            phase,
            {"open": ["dns"]},
            session_id=session,
            task_summary=SUMMARY,
            criteria=CRITERIA,
            metadata={"hosts": ["a", "b"]},
        )
    assert made.ok, made.error
    assert made.checkpoint_id is not None
    return made.checkpoint_id


# --- scenario 1: creation at a phase transition ----------------------------------------------------------------


def test_creating_writes_a_json_snapshot(home: Home) -> None:
    """The snapshot lies in `checkpoints`, named by time and phase, with all fields of FR-1."""
    checkpoint = create(home)
    (file,) = home.files
    assert re.fullmatch(r"ckpt-\d{8}T\d{12}Z-plan\.json", file.name)
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["id"] == checkpoint
    assert document["sessionId"] == "s-1"
    assert (document["phase"], document["phaseNumber"], document["completed"]) == ("plan", 3, False)
    assert document["taskSummary"] == "Move the mail server to the new host"
    assert document["iscCriteria"] == CRITERIA
    assert document["metadata"] == {"hosts": ["a", "b"]}
    assert document["state"] == {"open": ["dns"]}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", document["createdAt"])


def test_creating_sets_the_reference(home: Home) -> None:
    """`seed.json` points at the newest; all else in it, and its formatting, stays."""
    create(home, "observe")
    newest = create(home, "think")
    document = json.loads(home.seed.read_text(encoding="utf-8"))
    assert document["state"].pop("checkpointRef") == newest
    assert document == SEED
    assert list(document) == list(SEED)


def test_creating_logs_an_event(home: Home) -> None:
    """One line of type `custom` in the file of the day, with the action in its data."""
    checkpoint = create(home)
    (event,) = home.events
    assert set(event) == {"id", "timestamp", "sessionId", "type", "data"}
    assert (event["type"], event["sessionId"]) == ("custom", "s-1")
    assert event["data"]["action"] == "checkpoint_created"
    assert event["data"]["checkpointId"] == checkpoint
    (file,) = (home.path / "events").iterdir()
    assert file.name == f"events-{event['timestamp'][:10]}.jsonl"


def test_creating_answers_with_id_and_file(home: Home) -> None:
    """`{ok, checkpointId, file}`; `{ok: false, error}` when it cannot be."""
    with stepkeep.open_phases(home.path) as phases:
        made = phases.create_checkpoint("plan", session_id="s-1", task_summary="t")
        assert (made.ok, made.error) == (True, None)
        assert made.file is not None
        assert Path(made.file) == home.files[0]
        failed = phases.create_checkpoint("plan", session_id="s-1", task_summary="t", phase_number=8)
        assert (failed.ok, failed.checkpoint_id) == (False, None)
        assert "from 1 to 7" in (failed.error or "")


# --- scenario 2: detection at session start --------------------------------------------------------------------


def test_the_newest_incomplete_checkpoint_is_found(home: Home, clock: FakeClock) -> None:
    """With phase and task, as the line that a session shows; from another process too."""
    create(home, "observe", clock=clock)
    clock.advance(seconds=60)
    newest = create(home, "build", clock=clock)
    with stepkeep.open_phases(home.path, clock=clock) as phases:
        found = phases.detect_incomplete_checkpoint()
    assert found is not None
    assert (found.id, found.phase, found.phase_number) == (newest, "build", 4)
    assert found.offer == "Checkpoint: Resume from Phase 4? (Move the mail server to the new host)"
    assert found.state == {"open": ["dns"]}


def test_a_session_that_starts_shows_the_line_and_else_nothing(home: Home, tmp_path: Path) -> None:
    """Through the hook that agents run; silent when there is nothing to show."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("STEPKEEP_", "XDG_"))
    }
    environment |= {
        "STEPKEEP_PHASES": str(home.path),
        "STEPKEEP_STORE": f"sqlite:{tmp_path / 'store.db'}",
        "STEPKEEP_HOOK_LOG": str(tmp_path / "hooks.log"),
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(stepkeep.__file__).parent.parent),
    }

    def start() -> str:
        content = json.dumps({"session_id": "x", "cwd": str(tmp_path), "source": "startup"})
        command = [sys.executable, "-m", "stepkeep", "hook", "SessionStart"]
        return subprocess.run(
            command, input=content, capture_output=True, text=True, check=True, env=environment, timeout=60
        ).stdout

    assert start() == ""
    checkpoint = create(home, "build")
    context = json.loads(start())["hookSpecificOutput"]["additionalContext"]
    line = r"Checkpoint: Resume from Phase 4\? \(Move the mail server to the new host, \d+ s ago\)"
    assert re.fullmatch(line, context.splitlines()[0])
    with stepkeep.open_phases(home.path) as phases:
        phases.complete_checkpoint(checkpoint)
    assert start() == ""


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    """No folder, no checkpoint, no answer; and looking makes no checkpoint."""
    with stepkeep.open_phases(tmp_path / "new") as phases:
        assert phases.detect_incomplete_checkpoint() is None
        assert phases.list_checkpoints() == []


# --- scenario 3: cleanup ---------------------------------------------------------------------------------------


def test_cleanup_removes_what_is_older_than_thirty_days(home: Home, clock: FakeClock) -> None:
    """The default is 30 days; the count is told; the reference to what went is cleared, and only that."""
    old = create(home, clock=clock)
    clock.advance(seconds=29 * DAY)
    with stepkeep.open_phases(home.path, clock=clock) as phases:
        assert phases.cleanup_checkpoints().deleted == 0
        assert home.ref == old
        clock.advance(seconds=DAY)
        result = phases.cleanup_checkpoints()
        assert (result.ok, result.deleted) == (True, 1)
        assert phases.load_checkpoint(old) is None
    assert home.ref is None
    assert home.files == []
    newer = create(home, clock=clock)
    with stepkeep.open_phases(home.path, clock=clock) as phases:
        assert phases.cleanup_checkpoints(1).deleted == 0
    assert home.ref == newer


def test_old_phases_of_a_running_task_go_and_the_newest_stays(home: Home, clock: FakeClock) -> None:
    """A task that is worked on keeps where it stands."""
    create(home, "observe", clock=clock)
    clock.advance(seconds=40 * DAY)
    newest = create(home, "think", clock=clock)
    with stepkeep.open_phases(home.path, clock=clock) as phases:
        assert phases.cleanup_checkpoints(30).deleted == 1
        found = phases.detect_incomplete_checkpoint()
    assert found is not None
    assert found.id == newest == home.ref


# --- scenario 4: completion ------------------------------------------------------------------------------------


def test_completing_closes_the_task(home: Home) -> None:
    """No phase of it is offered, the reference is cleared, and the event is logged."""
    before = home.seed.read_bytes()
    first = create(home, "observe")
    create(home, "learn")
    with stepkeep.open_phases(home.path) as phases:
        assert phases.complete_checkpoint(first).ok
        assert phases.detect_incomplete_checkpoint() is None
        assert [each.completed for each in phases.list_checkpoints()] == [True, True]
    assert home.seed.read_bytes() == before
    assert home.events[-1]["data"]["action"] == "checkpoint_completed"
    with stepkeep.open_phases(home.path) as phases:
        assert phases.detect_incomplete_checkpoint() is None, "nor after reopening"


# --- FR-3, FR-7, NFR-1 to 3 ------------------------------------------------------------------------------------


def test_loading_and_listing(home: Home) -> None:
    """By id; filtered by completed and incomplete; invalid files are skipped."""
    done, running = create(home, session="a"), create(home, session="b")
    (home.path / "checkpoints" / "ckpt-20260101T000000000000Z-plan.json").write_text("{", encoding="utf-8")
    with stepkeep.open_phases(home.path) as phases:
        phases.complete_checkpoint(done)
        assert [each.id for each in phases.list_checkpoints(completed=True)] == [done]
        assert [each.id for each in phases.list_checkpoints(completed=False)] == [running]
        loaded = phases.load_checkpoint(running)
        assert loaded is not None
        assert loaded.session_id == "b"
        assert phases.load_checkpoint("nothing") is None


def test_the_directory_is_resolved_by_a_pure_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`~/.pai/checkpoints`, or the override; nothing is made by asking."""
    assert stepkeep.resolve_checkpoints_dir(home=tmp_path) == tmp_path / ".pai" / "checkpoints"
    assert stepkeep.resolve_checkpoints_dir(tmp_path / "x") == tmp_path / "x" / "checkpoints"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("STEPKEEP_PHASES", raising=False)
    assert stepkeep.resolve_checkpoints_dir() == tmp_path / ".pai" / "checkpoints"
    with stepkeep.open_phases() as phases:
        assert phases.checkpoints_dir == tmp_path / ".pai" / "checkpoints"


def test_a_failed_write_harms_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The existing checkpoint stays whole, the failure is a result, and no temporary file counts as one."""
    first = create(home)
    content = home.files[0].read_bytes()
    with stepkeep.open_phases(home.path) as phases:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            failed = phases.create_checkpoint("build", session_id="s-1", task_summary="t")
        assert not failed.ok
        assert failed.error
        assert [each.id for each in phases.list_checkpoints()] == [first]
    assert home.files[0].read_bytes() == content
    assert home.ref == first


def test_only_the_known_field_of_the_seed_file_is_used(home: Home) -> None:
    """No key is added but `state.checkpointRef`, which its schema has; the log knows no new type."""
    create(home)
    document = json.loads(home.seed.read_text(encoding="utf-8"))
    assert set(document) == set(SEED)
    assert set(document["state"]) == {*SEED["state"], "checkpointRef"}  # type: ignore[misc]
    assert {event["type"] for event in home.events} == {"custom"}
