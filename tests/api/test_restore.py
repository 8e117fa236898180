"""Restoring: going on from an old checkpoint, and back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stepkeep
import stepkeep.aio
from stepkeep.history import branches
from stepkeep.model import BranchState
from stepkeep.storage.memory import MemoryBackend
from stepkeep.storage.urls import open_backend
from tests.api import programs


@pytest.fixture(params=["memory", "sqlite"])
def reopened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], stepkeep.Session]]:
    """Opens the session anew each time: what a test reads then was stored."""
    shared = MemoryBackend() if request.param == "memory" else None
    opened: list[stepkeep.Store] = []

    def session() -> stepkeep.Session:
        backend = shared or open_backend(f"sqlite:{tmp_path / 'store.db'}")
        opened.append(stepkeep.Store(backend))
        return opened[-1].session("run", profile="archive")

    yield session
    for store in opened:
        store.close()


@pytest.fixture
def run(reopened: Callable[[], stepkeep.Session]) -> stepkeep.Session:
    """A session with the steps 1 to 5."""
    session = reopened()
    for step in range(1, 6):
        session.save({"step": step}, step=step, message=f"step {step}")
    return session


def branch(session: stepkeep.Session, name: str) -> stepkeep.Branch:
    return next(each for each in session.branches if each.name == name)


def stored(session: stepkeep.Session) -> list[int | None]:
    """The steps of all checkpoints, oldest first."""
    return [header.step for header in session.history(newest_first=False)]


def events(session: stepkeep.Session, type: str) -> list[dict[str, Any]]:
    return [event.data for event in session.events() if event.type == type]


# --- going back


def test_a_restore_goes_on_from_an_old_checkpoint(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]
) -> None:
    """The session moves to a branch there; what came after stays on the branch that was left."""
    head = run.header("latest").id
    restored = run.restore("step-3")
    assert restored.state == {"step": 3}
    assert (restored.branch, restored.is_new_branch) == ("from-3", True)
    assert (restored.previous_branch, restored.previous_head) == ("main", head)
    assert "latest@before" in restored.undo
    assert head in restored.undo
    again = reopened()
    assert again.info.branch == "from-3"
    assert again.load().state == {"step": 3}
    assert again.save({"step": 30}, step=30).parents == (restored.checkpoint.id,)
    assert stored(reopened()) == [1, 2, 3, 4, 5, 30]
    assert reopened().load("branch:main").step == 5
    assert reopened().verify().is_intact


def test_a_restore_can_be_undone(run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]) -> None:
    """`latest@before` returns to the old branch at its head, and undoing that is doing it again."""
    run.restore("step-3")
    run.save({"step": 30}, step=30)
    undone = reopened().restore("latest@before")
    assert (undone.branch, undone.is_new_branch, undone.state) == ("main", False, {"step": 5})
    assert reopened().save({"step": 6}, step=6).branch == "main"
    redone = reopened().restore("latest@before")
    assert (redone.branch, redone.state) == ("from-3", {"step": 30})
    assert reopened().restore("latest@before").state == {"step": 6}
    assert [each.name for each in reopened().branches] == ["main", "from-3"]


def test_undoing_returns_to_the_very_branch(run: stepkeep.Session) -> None:
    """When several branches have the same head, undo knows which one was left."""
    run.branches.fork("latest", "same")
    assert run.restore("latest@before").branch == "main"
    assert run.restore("latest@before").branch == "same"


def test_undoing_takes_in_what_was_saved_there_since(run: stepkeep.Session) -> None:
    """The branch that was left may have gone on; undo returns to its head now."""
    run.restore("step-3")
    run.save({"step": 6}, step=6, branch="main")
    assert run.restore("latest@before").state == {"step": 6}
    assert run.info.branch == "main"


def test_undoing_to_a_closed_branch_forks_where_it_was_left(run: stepkeep.Session) -> None:
    """A branch that was abandoned since is not entered."""
    run.restore("step-3")
    run.branches.abandon("main")
    undone = run.restore("latest@before")
    assert (undone.branch, undone.is_new_branch, undone.state) == ("from-5", True, {"step": 5})


def test_undoing_does_not_land_on_something_older(run: stepkeep.Session) -> None:
    """When pruning took what was left the session stays; when the branch went on since, undo returns there."""
    run.restore("step-3")
    run.save({"step": 30}, step=30)
    run.save({"step": 31}, step=31)
    run.prune(keep_last=2)
    with pytest.raises(stepkeep.NotFound) as caught:
        run.restore("latest@before")
    assert "was removed" in caught.value.message
    assert (run.info.branch, stored(run)) == ("from-3", [3, 30, 31])
    run.save({"step": 6}, step=6, branch="main")
    assert run.restore("latest@before").state == {"step": 6}


def test_there_may_be_nothing_to_undo(run: stepkeep.Session) -> None:
    """A session that never changed its branch says so."""
    with pytest.raises(stepkeep.NotFound) as caught:
        run.restore("latest@before")
    assert caught.value.code == "checkpoint_not_found"
    assert [each.name for each in run.branches] == ["main"]


def test_a_head_is_entered_and_not_forked(run: stepkeep.Session) -> None:
    """Where an open branch has the checkpoint as head no other is made, however often one restores."""
    for _ in range(3):
        assert run.restore("step-3").branch == "from-3"
        assert run.restore("branch:main").branch == "main"
    assert [each.name for each in run.branches] == ["main", "from-3"]
    run.branches.abandon("from-3")
    assert run.restore("step-3").branch == "from-3-2"


def test_restoring_where_one_is_changes_nothing(run: stepkeep.Session) -> None:
    """The latest checkpoint of the current branch is where the session is already."""
    restored = run.restore("latest")
    assert (restored.branch, restored.previous_branch, restored.is_new_branch) == ("main", "main", False)
    assert run.events() == []
    assert len(run.branches) == 1


def test_the_new_branch_may_be_named(run: stepkeep.Session) -> None:
    """A name that exists elsewhere or is closed is refused; one that is at the checkpoint is entered."""
    assert run.restore("step-3", branch="again").branch == "again"
    run.save({"step": 30}, step=30)
    with pytest.raises(stepkeep.Conflict) as caught:
        run.restore("step-2", branch="main")
    assert caught.value.code == "branch_exists"
    assert run.restore("branch:main", branch="main").branch == "main"
    run.branches.abandon("again")
    with pytest.raises(stepkeep.Conflict) as caught:
        run.restore("branch:again", branch="again")
    assert caught.value.code == "branch_closed"
    assert run.info.branch == "main"


def test_unknown_refs_change_nothing(run: stepkeep.Session) -> None:
    """What names no checkpoint is refused before anything is written."""
    for ref in ("step-99", "#99", "tag:none", "branch:none", "latest~99"):
        with pytest.raises(stepkeep.NotFound):
            run.restore(ref)
    with pytest.raises(stepkeep.InvalidInput):
        run.restore("the good one")
    assert (run.events(), len(run.branches)) == ([], 1)


def test_a_finished_session_goes_on(run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]) -> None:
    """Restoring reopens it, with an event; a paused one stays paused until it is saved to."""
    run.fail("out of quota")
    target = run.header("step-3").id
    reopened().restore("step-3")
    info = reopened().info
    assert (info.status, info.finished_us, info.error) == (stepkeep.Status.IN_PROGRESS, None, None)
    assert events(run, "session_reopened") == [{"checkpoint": target}]
    run.complete()
    assert run.restore("latest").branch == "from-3"
    statuses = [run.info.status]
    run.pause()
    run.restore("step-2")
    assert [*statuses, run.info.status] == [stepkeep.Status.IN_PROGRESS, stepkeep.Status.PAUSED]
    assert len(events(run, "session_reopened")) == 2


# --- compare-and-set


def test_a_stale_head_is_a_conflict(run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]) -> None:
    """With `expect_head` a restore happens only if nobody saved meanwhile."""
    seen = run.header("latest").id
    newer = reopened().save({"step": 6}, step=6).id
    with pytest.raises(stepkeep.Conflict) as caught:
        run.restore("step-3", expect_head=seen)
    assert (caught.value.code, caught.value.checkpoint) == ("head_moved", newer)
    assert (run.info.branch, len(run.branches)) == ("main", 1)
    assert run.restore("step-3", expect_head=newer).branch == "from-3"
    with pytest.raises(stepkeep.Conflict):
        run.restore("latest@before", expect_head=newer)


def test_a_save_at_the_last_moment_is_a_conflict(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save between the look at the head and the switch takes the switch back; the new branch is abandoned."""
    seen = run.header("latest").id
    run.complete()
    other = reopened()
    update = branches._update

    def late(engine: Any, session: Any, fields: Any) -> Any:
        monkeypatch.setattr(branches, "_update", update)
        other.save({"step": 6}, step=6, status="completed")
        return update(engine, session, fields)

    monkeypatch.setattr(branches, "_update", late)
    with pytest.raises(stepkeep.Conflict) as caught:
        run.restore("step-3", expect_head=seen)
    assert caught.value.code == "head_moved"
    info = reopened().info
    assert (info.branch, info.status) == ("main", stepkeep.Status.COMPLETED)
    assert reopened().load().state == {"step": 6}
    assert branch(run, "from-3").state is BranchState.ABANDONED
    assert events(run, "branch_switched") == []


def test_two_restores_at_once_are_one_after_the_other(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore that finds the session changed looks again: what it leaves is what the other one entered."""
    other = reopened()
    update = branches._update

    def late(engine: Any, session: Any, fields: Any) -> Any:
        monkeypatch.setattr(branches, "_update", update)
        other.restore("step-2")
        return update(engine, session, fields)

    monkeypatch.setattr(branches, "_update", late)
    restored = run.restore("step-3")
    assert (restored.previous_branch, restored.branch) == ("from-2", "from-3")
    assert reopened().info.branch == "from-3"
    assert [(data["from"], data["to"]) for data in events(run, "branch_switched")] == [
        ("main", "from-2"),
        ("from-2", "from-3"),
    ]


def test_saves_during_restores_are_never_lost(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]
) -> None:
    """Threads save while the session is restored again and again: every acknowledged save is on some branch."""
    stop = threading.Event()
    saved: list[str] = []

    def save(session: stepkeep.Session, writer: int) -> None:
        number = 0
        while not stop.is_set():
            saved.append(session.save({"writer": writer, "n": number}).id)
            number += 1

    threads = [threading.Thread(target=save, args=(reopened(), writer)) for writer in range(2)]
    for thread in threads:
        thread.start()
    try:
        for step in [3, 1, 4, 2] * 5:
            run.restore(f"#{step}")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    again = reopened()
    by_branch = {each.name for each in again.branches}
    headers = {header.id: header for header in again.history()}
    assert set(saved) <= headers.keys()
    assert {header.branch for header in headers.values()} <= by_branch
    assert again.verify().is_intact


@pytest.mark.full
def test_a_restore_while_another_process_saves(url: str) -> None:
    """Acknowledged saves of another process are all there, each on a branch, and the session is usable."""
    with stepkeep.open(url) as store:
        session = store.session("run", profile="archive")
        session.save({"n": 0}, step=1)
        process = programs.start(programs.save_until_killed, url, "run", 1)
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(5)]
        for _ in range(10):
            session.restore("#1")
            acknowledged.append(process.stdout.readline())
            session.restore("latest@before")
        process.kill()
        acknowledged += process.communicate()[0].splitlines()
    seqs = {
        int(line.split()[1]) for line in acknowledged if line.startswith("ACK ") and len(line.split()) == 3
    }
    found = programs.run(programs.survey, url, "run")
    assert seqs <= set(found["seqs"])
    assert len(seqs) >= 15
    assert found["findings"] == []


# --- damage


def test_a_damaged_target_changes_nothing(path: Path, session: stepkeep.Session) -> None:
    """The checkpoint is verified before the session moves; its neighbours can be restored."""
    for step in range(1, 6):
        session.save({"step": step, "noise": "x" * 2000 * step}, step=step)
    target = session.header("step-3").id
    with programs.raw(path) as connection:
        for rowid, data in programs.rows(
            connection, "SELECT rowid, data FROM bodies WHERE checkpoint = ?", (target,)
        ):
            connection.execute(
                "UPDATE bodies SET data = ? WHERE rowid = ?", (programs.flipped(data, 0), rowid)
            )
    with stepkeep.open(path) as store:
        run = store.get("run")
        before = run.info, list(run.branches), run.events()
        with pytest.raises(stepkeep.Corrupt):
            run.restore("step-3")
        assert (run.info, list(run.branches), run.events()) == before
        assert run.restore("step-1").state["step"] == 1


# --- pruning


def test_pruning_after_a_restore_keeps_the_current_line(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]
) -> None:
    """V7: head and fork point of the current branch stay, though they are older than what was left behind."""
    run.restore("step-2")
    run.prune(keep_last=1)
    assert stored(reopened()) == [2, 5]
    assert reopened().load().state == {"step": 2}
    run.save({"step": 30}, step=30)
    run.prune(keep_last=1)
    again = reopened()
    assert stored(again) == [2, 30]
    assert again.load().state == {"step": 30}
    assert again.load("latest~1").state == {"step": 2}
    assert again.verify().is_intact


def test_what_was_left_stays_until_its_fork_point_may_go(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]
) -> None:
    """V7: a branch left behind is not pinned; it stays as long as the rules reach back to where it began."""
    run.restore("step-4")
    for step in (40, 41):
        run.save({"step": step}, step=step)
    run.restore("step-2")  # leaves from-4, which began at step 4
    assert [(each.name, each.is_pinned) for each in run.branches] == [
        ("main", False),
        ("from-4", False),
        ("from-2", True),
    ]
    for step in (20, 21):
        run.save({"step": step}, step=step)
    run.prune(keep_last=6)
    assert stored(reopened()) == [2, 4, 5, 40, 41, 20, 21]
    assert reopened().load("branch:from-4").step == 41
    run.prune(keep_last=5)  # the rules let step 4 go, and then from-4, from its older end
    assert stored(reopened()) == [2, 5, 40, 41, 20, 21]
    run.prune(keep_last=2)
    again = reopened()
    assert stored(again) == [2, 20, 21]
    assert branch(again, "from-4").head == again.header("step-2").id  # the nearest that is left of its line
    assert again.load().state == {"step": 21}
    assert again.verify().is_intact


def test_a_branch_that_a_person_named_stays_pinned(run: stepkeep.Session) -> None:
    """Restoring leaves it pinned, so pruning keeps its head and fork point; entering a branch pins it again."""
    run.branches.fork("step-3", "mine")
    run.save({"step": 30}, step=30)
    run.restore("branch:main")
    run.restore("step-4", branch="also")
    run.restore("step-1")
    pinned = {each.name: each.is_pinned for each in run.branches}
    assert pinned == {"main": False, "mine": True, "also": True, "from-1": True}
    run.prune(keep_last=1)
    assert stored(run) == [1, 3, 4, 30]
    run.branches.switch("main")
    assert branch(run, "main").is_pinned


def test_the_keeper_does_not_take_what_is_restored(url: str) -> None:
    """A session with few checkpoints kept can be restored, saved to, closed and restored back."""
    with stepkeep.open(url) as store:
        session = store.session("run", retention={"keep_last": 3})
        for step in range(1, 31):
            session.save({"step": step}, step=step)
        store.prune()
        oldest = session.header("latest~2")
        session.restore(oldest.seq)
        session.save({"step": 100}, step=100)
    with stepkeep.open(url) as store:
        session = store.get("run")
        assert session.load().state == {"step": 100}
        assert session.load("latest~1").id == oldest.id
        assert session.restore("latest@before").state == {"step": 30}


# --- asyncio


def test_asyncio_has_the_same_methods(url: str) -> None:
    """Branches and restoring are awaited like everything else."""

    async def main() -> list[str]:
        async with stepkeep.aio.open(url) as store:
            run = await store.session("run", profile="archive")
            for step in (1, 2, 3):
                await run.save({"step": step}, step=step)
            restored = await run.restore("step-2")
            await run.branches.fork("latest", "try")
            await run.save({"step": 2, "new": 1})
            await run.branches.switch("main")
            await run.branches.merge("try", on_conflict="ours")
            await run.branches.abandon(restored.branch)
            await run.branches.reopen(restored.branch)
            await run.branches.archive(restored.branch)
            return [f"{each.name} {each.state}" for each in (await run.branches.list()).branches]

    assert asyncio.run(main()) == ["main open", "from-2 archived", "try merged"]
