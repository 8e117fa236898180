"""Phases on every backend: checked fields, results instead of exceptions, completion per session."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import aio
from stepkeep.codec.readable import PHASES
from stepkeep.processes import this_process
from stepkeep.storage.urls import open_backend
from stepkeep.testing import FakeClock
from tests.phases.conftest import Home

URLS = {
    "memory": "memory:",
    "sqlite": "sqlite:{}/s.db",
    "run": "files:{}/s?layout=run",
    "phase": "files:{}/p?layout=phase",
}
DAY = 86_400


@pytest.fixture(params=list(URLS))
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[stepkeep.Store]:
    with stepkeep.open(URLS[request.param].format(tmp_path), clock=clock) as store:
        yield store


def create(phases: stepkeep.Phases, phase: str = "plan", **fields: Any) -> str:
    given = {"session_id": "task-1", "task_summary": "Move the mail server", **fields}
    result = phases.create_checkpoint(phase, **given)
    assert result.ok, result.error
    assert result.checkpoint_id is not None
    return result.checkpoint_id


def test_other_keys_of_a_criterion_are_kept(store: stepkeep.Store) -> None:
    """In the order of the list, by every way in, and out again."""
    given = {"id": "c1", "subject": "mail arrives", "status": "pending", "owner": "me", "tries": [1, 2]}
    typed = stepkeep.Criterion("c1", "mail arrives", "pending", {"owner": "me", "tries": [1, 2]})
    for criteria in ([given], [typed]):
        loaded = store.phases.load_checkpoint(create(store.phases, criteria=criteria))
        assert loaded is not None
        assert loaded.criteria == (typed,)


def test_every_backend_keeps_phases(store: stepkeep.Store, clock: FakeClock) -> None:
    """Fields and state come back, lists filter, and finishing closes all phases of the session."""
    phases = store.phases
    criteria = [{"id": "c1", "subject": "mail arrives", "status": "in_progress"}]
    first = create(phases, "observe", state={"seen": (1, 2)}, criteria=criteria, metadata={"hosts": ["a"]})
    clock.advance(seconds=1)
    second = create(phases, "build")
    loaded = phases.load_checkpoint(first)
    assert loaded is not None
    assert (loaded.phase, loaded.phase_number, loaded.completed) == ("observe", 1, False)
    assert loaded.criteria == (stepkeep.Criterion("c1", "mail arrives", "in_progress"),)
    assert (loaded.metadata, loaded.state) == ({"hosts": ["a"]}, {"seen": (1, 2)})
    assert [each.id for each in phases.list_checkpoints()] == [second, first]
    assert phases.list_checkpoints(completed=True) == []
    found = phases.detect_incomplete_checkpoint()
    assert found is not None
    assert (found.id, found.offer) == (second, "Checkpoint: Resume from Phase 4? (Move the mail server)")
    assert phases.complete_checkpoint(first).ok
    assert phases.detect_incomplete_checkpoint() is None
    assert [each.completed for each in phases.list_checkpoints()] == [True, True]
    assert phases.list_checkpoints(completed=False) == []
    assert phases.complete_checkpoint(second).ok, "repeating it is harmless"


@pytest.mark.parametrize("number", range(1, 8))
def test_known_phases_have_their_number(phases: stepkeep.Phases, number: int) -> None:
    """The seven phases need none given; any other needs one."""
    loaded = phases.load_checkpoint(create(phases, PHASES[number - 1]))
    assert loaded is not None
    assert loaded.phase_number == number
    named = phases.load_checkpoint(create(phases, "Über/../prüfen", phase_number=number))
    assert named is not None
    assert (named.phase, named.phase_number) == ("Über/../prüfen", number)


BAD: list[dict[str, Any]] = [
    {"phase": ""},
    {"phase": "x\0"},
    {"phase": 7},
    {"phase": "unknown"},
    {"phase_number": 0},
    {"phase_number": 8},
    {"phase_number": True},
    {"phase_number": 1.5},
    {"task_summary": 7},
    {"session_id": ""},
    {"session_id": "x" * 2000},
    {"criteria": "text"},
    {"criteria": 7},
    {"criteria": [{"id": "1"}]},
    {"criteria": [{"id": 1, "subject": "x", "status": "pending"}]},
    {"criteria": [{"id": "1", "subject": "x", "status": "done"}]},
    {"metadata": []},
    {"metadata": {"phase": "x"}},
    {"metadata": {"iscCriteria": []}},
    {"metadata": {"when": {1, 2}}},
    {"metadata": {"big": "x" * 100_000}},
    {"state": object()},
]


@pytest.mark.parametrize("fields", BAD, ids=[f"{next(iter(each))}-{at}" for at, each in enumerate(BAD)])
def test_a_field_that_makes_no_sense_is_told_in_the_result(
    phases: stepkeep.Phases, home: Home, fields: dict[str, Any]
) -> None:
    """Nothing is raised, nothing is stored, and the seed file stays."""
    before = home.seed.read_bytes()
    given = {"phase": "plan", "session_id": "task-1", "task_summary": "t", **fields}
    result = phases.create_checkpoint(given.pop("phase"), **given)
    assert not result.ok
    assert result.error
    assert result.code
    assert result.checkpoint_id is None
    assert phases.list_checkpoints() == []
    assert home.seed.read_bytes() == before
    assert home.events == []


def test_what_is_not_there_is_told(phases: stepkeep.Phases) -> None:
    """No checkpoint, no raise."""
    assert phases.load_checkpoint("cp_none") is None
    result = phases.complete_checkpoint("cp_none")
    assert (result.ok, result.code) == (False, "checkpoint_not_found")
    for days in (-1, "x", 1.5, True, None):
        result = phases.cleanup_checkpoints(days)  # type: ignore[arg-type]
        assert (result.ok, result.code) == (False, "invalid_setting")


def test_a_session_of_another_kind_is_refused(store: stepkeep.Store) -> None:
    """Phases never mix with the checkpoints of other programs, and never show them."""
    store.session("task-1", profile="agent").save({"other": 1})
    result = store.phases.create_checkpoint("plan", session_id="task-1", task_summary="t")
    assert (result.ok, result.code) == (False, "not_a_phase_session")
    assert store.phases.list_checkpoints() == []
    assert store.phases.detect_incomplete_checkpoint() is None


def test_a_finished_task_is_not_offered_when_only_documents_are_left(
    home: Home, phases: stepkeep.Phases, clock: FakeClock
) -> None:
    """The documents say so, so even a store that was rebuilt from its files knows."""
    first = create(phases)
    assert phases.complete_checkpoint(first).ok
    phases.close()
    for file in sorted((home.path / ".stepkeep").iterdir()):
        file.unlink()
    with stepkeep.open_phases(home.path, clock=clock) as again:
        assert again.detect_incomplete_checkpoint() is None
        assert [each.id for each in again.list_checkpoints(completed=True)] == [first]
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in home.files]
    assert [document["completed"] for document in documents] == [True]


def test_other_work_is_offered_after_one_task_is_done(phases: stepkeep.Phases, clock: FakeClock) -> None:
    """The most recent of the rest; a failed one is finished, a paused one is not."""
    ids = {}
    for name in ("a", "b", "c"):
        ids[name] = create(phases, session_id=name)
        clock.advance(seconds=1)
    assert phases.complete_checkpoint(ids["c"]).ok
    found = phases.detect_incomplete_checkpoint()
    assert found is not None
    assert found.id == ids["b"]


def test_saving_again_reopens_the_task(phases: stepkeep.Phases, home: Home) -> None:
    """Work that goes on after all is offered again."""
    phases.complete_checkpoint(create(phases))
    second = create(phases, "verify")
    found = phases.detect_incomplete_checkpoint()
    assert found is not None
    assert found.id == second == home.ref


def test_the_pointer_of_another_task_stays(phases: stepkeep.Phases, home: Home) -> None:
    """Completing one task does not take the pointer to another."""
    first = create(phases, session_id="a")
    second = create(phases, session_id="b")
    assert phases.complete_checkpoint(first).ok
    assert home.ref == second


def test_a_broken_seed_file_does_not_cost_the_checkpoint(phases: stepkeep.Phases, home: Home) -> None:
    """It is saved, the trouble is a warning in the result, and the file stays as it is."""
    home.seed.write_text("{broken", encoding="utf-8")
    result = phases.create_checkpoint("plan", session_id="a", task_summary="t")
    assert result.ok
    assert "seed.json is not valid JSON" in result.warnings[0]
    assert home.seed.read_text(encoding="utf-8") == "{broken"
    home.seed.unlink()
    result = phases.create_checkpoint("build", session_id="a", task_summary="t")
    assert result.ok
    assert "is missing" in result.warnings[0]
    assert not home.seed.exists()
    assert phases.complete_checkpoint(result.checkpoint_id or "").warnings == ()


def test_a_folder_needs_no_seed_file(tmp_path: Path) -> None:
    """One that never was there is missed only by who asks for it; one that comes later is used."""
    home = tmp_path / "home"
    with stepkeep.open_phases(home) as phases:
        assert phases.create_checkpoint("plan", session_id="a", task_summary="t").warnings == ()
        (home / "seed.json").write_text('{"state": {}}', encoding="utf-8")
        made = phases.create_checkpoint("build", session_id="a", task_summary="t")
        assert (made.warnings, json.loads((home / "seed.json").read_text())) == (
            (),
            {"state": {"checkpointRef": made.checkpoint_id}},
        )
        (home / "seed.json").unlink()
        assert "is missing" in phases.create_checkpoint("learn", session_id="a", task_summary="t").warnings[0]
    with stepkeep.open_phases(home, expects_seed=True) as phases:
        assert "is missing" in phases.create_checkpoint("plan", session_id="b", task_summary="t").warnings[0]


def test_an_event_log_that_cannot_be_written_does_not_either(phases: stepkeep.Phases, home: Home) -> None:
    """Appending never raises."""
    (home.path / "events").write_text("in the way", encoding="utf-8")
    result = phases.create_checkpoint("plan", session_id="a", task_summary="t")
    assert result.ok
    assert "could not be logged" in result.warnings[0]


def test_a_torn_line_in_the_event_log_is_ended(phases: stepkeep.Phases, home: Home) -> None:
    """What a crash left half written does not swallow the next event."""
    create(phases)
    (file,) = (home.path / "events").iterdir()
    file.write_bytes(file.read_bytes() + b'{"torn": ')
    create(phases)
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [line[:1] for line in lines] == ["{", "{", "{"]
    assert json.loads(lines[2])["data"]["action"] == "checkpoint_created"


def test_a_stale_pointer_is_cleared_when_a_session_starts(phases: stepkeep.Phases, home: Home) -> None:
    """A program may be stopped between removing a checkpoint and clearing the pointer, or restore an old file."""
    first = create(phases)
    before = home.seed.read_bytes()
    with stepkeep.open(f"files:{home.path}?layout=phase") as store:
        store.get("task-1").delete(first)
    home.seed.write_bytes(before)
    assert phases.detect_incomplete_checkpoint() is None
    assert home.ref is None


def test_invalid_files_are_left_out_and_logged(
    phases: stepkeep.Phases, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """Lists skip what is damaged; loading it directly says what is wrong; detection falls back."""
    first = create(phases, "observe")
    second = create(phases, "plan")
    (damaged,) = [file for file in home.files if file.name.endswith("-plan.json")]
    damaged.write_text(damaged.read_text(encoding="utf-8").replace("Move", "Lose"), encoding="utf-8")
    (home.path / "checkpoints" / "ckpt-foreign.json").write_text("{}", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert [each.id for each in phases.list_checkpoints()] == [first]
    assert second in caplog.text
    with pytest.raises(stepkeep.Corrupt):
        phases.load_checkpoint(second)
    found = phases.detect_incomplete_checkpoint()
    assert found is not None
    assert found.id == first


@pytest.mark.parametrize("url", list(URLS.values()), ids=list(URLS))
def test_cleanup_takes_finished_tasks_first_and_keeps_leased_ones(
    url: str, tmp_path: Path, clock: FakeClock
) -> None:
    """Old checkpoints go, those of finished tasks first; what somebody runs stays."""
    store = stepkeep.Store(open_backend(url.format(tmp_path)), clock=clock)  # no keeper that cleans too
    phases, gone = store.phases, []
    finished = create(phases, session_id="finished")
    open_one = create(phases, session_id="open")
    create(phases, session_id="busy")
    phases.complete_checkpoint(finished)
    clock.advance(seconds=31 * DAY)
    young = create(phases, session_id="young")
    busy = store.get("busy")
    store.engine.backend.acquire_lease(busy.uid, this_process(), seconds=60)
    remove = store.engine.backend.delete_session

    def noted(uid: str, **options: Any) -> None:
        gone.append(store.engine.backend.session(uid).key)
        remove(uid, **options)

    store.engine.backend.delete_session = noted  # type: ignore[method-assign]
    result = phases.cleanup_checkpoints(30)
    assert (result.ok, result.deleted, result.warnings) == (True, 2, ())
    assert gone == ["finished", "open"]
    assert {each.id for each in phases.list_checkpoints()} >= {young}
    assert phases.load_checkpoint(open_one) is None
    assert phases.load_checkpoint(finished) is None
    store.close()


def test_the_async_store_has_phases_too(tmp_path: Path) -> None:
    """The same results, awaited."""

    async def work() -> None:
        async with aio.open(f"sqlite:{tmp_path / 'a.db'}") as store:
            made = await store.phases.create_checkpoint("plan", session_id="a", task_summary="t")
            found = await store.phases.detect_incomplete_checkpoint()
            assert found is not None
            assert found.id == made.checkpoint_id
            await store.phases.complete_checkpoint(found.id)
            assert await store.phases.detect_incomplete_checkpoint() is None

    asyncio.run(work())
