"""Forking, switching, merging and closing branches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.history import branches, merge
from stepkeep.history.documents import ABSENT
from stepkeep.history.paths import format_path
from stepkeep.model import BranchState
from stepkeep.storage.memory import MemoryBackend
from stepkeep.storage.urls import open_backend

ODD_NAMES = [
    "",
    "x" * 2000,
    "nul\0",
    "latest",
    "newest",
    "now",
    "#3",
    "tag:x",
    "cp_1",
    "2 hours ago",
    7,
    None,
]


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
        session.save({"step": step, "log": [f"line {at}" for at in range(step)]}, step=step)
    return session


def steps(session: stepkeep.Session) -> list[int | None]:
    """The steps of the current line, newest first."""
    found = []
    for back in range(20):
        try:
            found.append(session.header(f"latest~{back}").step)
        except stepkeep.NotFound:
            break
    return found


def branch(session: stepkeep.Session, name: str) -> stepkeep.Branch:
    return next(each for each in session.branches if each.name == name)


def switches(session: stepkeep.Session) -> list[dict[str, Any]]:
    return [event.data for event in session.events() if event.type == "branch_switched"]


# --- forking


def test_a_fork_goes_on_from_its_checkpoint(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]
) -> None:
    """Right after the fork latest is the checkpoint; the next save has it as parent; the old branch stays."""
    target = run.header("step-3")
    made = run.branches.fork("step-3", "try")
    assert (made.name, made.head, made.fork, made.fork_branch, made.fork_seq) == (
        "try",
        target.id,
        target.id,
        "main",
        3,
    )
    again = reopened()
    latest = again.latest()
    assert latest is not None
    assert (latest.id, again.info.branch) == (target.id, "try")
    saved = again.save({"step": 30}, step=30)
    assert (saved.branch, saved.parents, saved.seq) == ("try", (target.id,), 6)
    third = reopened()
    assert steps(third) == [30, 3, 2, 1]
    assert third.load("branch:main").step == 5
    assert third.verify().is_intact


def test_a_fork_may_stay_aside(run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]) -> None:
    """Without switching, the session stays where it is and nothing is recorded."""
    run.branches.fork("step-2", "aside", switch=False, metadata={"hypothesis": "H1"})
    again = reopened()
    assert again.info.branch == "main"
    assert steps(again) == [5, 4, 3, 2, 1]
    assert again.load("branch:aside").step == 2
    assert branch(again, "aside").metadata["hypothesis"] == "H1"
    assert switches(again) == []


def test_forks_without_a_name_get_one(run: stepkeep.Session) -> None:
    """The name says where the branch begins, and is never one that exists."""
    names = [run.branches.fork("step-3", switch=False).name for _ in range(3)]
    assert names == ["from-3", "from-3-2", "from-3-3"]
    assert run.branches.fork().name == "from-5"


def test_a_fork_of_a_fork_of_a_fork(run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]) -> None:
    """A branch may begin on any branch, also on one that has no checkpoint of its own."""
    run.branches.fork("step-2", "one")
    run.branches.fork("latest", "two")
    run.save({"step": 20}, step=20)
    run.branches.fork("latest", "three")
    run.save({"step": 30}, step=30)
    again = reopened()
    assert steps(again) == [30, 20, 2, 1]
    assert [(each.name, each.fork_branch, each.fork_seq) for each in again.branches] == [
        ("main", None, 0),
        ("one", "main", 2),
        ("two", "main", 2),
        ("three", "two", 6),
    ]


def test_an_existing_name_is_refused(run: stepkeep.Session) -> None:
    """A name that is taken is a conflict, and neither branch nor session change."""
    run.branches.fork("step-2", "taken", switch=False)
    for name in ("taken", "main"):
        before = branch(run, name)
        with pytest.raises(stepkeep.Conflict) as caught:
            run.branches.fork("step-4", name)
        assert (caught.value.code, caught.value.branch) == ("branch_exists", name)
        assert branch(run, name) == before
    assert run.info.branch == "main"


@pytest.mark.parametrize("name", ODD_NAMES[:-1])
def test_odd_names_are_refused(run: stepkeep.Session, name: Any) -> None:
    """What is no name, or reads like a ref, is refused before anything is written."""
    with pytest.raises(stepkeep.InvalidInput):
        run.branches.fork("step-2", name)
    with pytest.raises(stepkeep.InvalidInput):
        run.restore("step-2", branch=name)
    assert [each.name for each in run.branches] == ["main"]


def test_a_name_may_be_any_other_text(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]
) -> None:
    """Spaces, slashes, controls and 1,024 bytes are names like any other, and are kept exactly."""
    names = ["../../etc", "a b\n\x1b[31m", "ветка", "x" * 1024, "'; DROP TABLE branches; --"]
    for name in names:
        run.branches.fork("step-2", name, switch=False)
    assert [each.name for each in list(reopened().branches)[1:]] == names
    assert reopened().branches.switch(names[1]).name == names[1]


def test_forking_nowhere_changes_nothing(run: stepkeep.Session) -> None:
    """An unknown or nonsense ref is refused."""
    for ref in ("step-99", "#99", "branch:none", "cp_00000000T000000000000_0000000000"):
        with pytest.raises(stepkeep.NotFound):
            run.branches.fork(ref, "new")
    with pytest.raises(stepkeep.InvalidInput):
        run.branches.fork("what is this", "new")
    assert len(run.branches) == 1


def test_forks_at_once_never_overwrite_each_other(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]
) -> None:
    """Of many that want one name one gets it; those without a name all get their own."""
    handles = [reopened() for _ in range(4)]
    outcomes: list[str] = []
    barrier = threading.Barrier(len(handles))

    def work(handle: stepkeep.Session, step: int) -> None:
        barrier.wait()
        try:
            outcomes.append(handle.branches.fork(f"step-{step}", "one", switch=False).name)
        except stepkeep.Conflict as exc:
            outcomes.append(exc.code)
        outcomes.append(handle.branches.fork("step-4").name)

    threads = [
        threading.Thread(target=work, args=(handle, step)) for step, handle in enumerate(handles, start=1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == sorted(
        ["one", *["branch_exists"] * 3, "from-4", "from-4-2", "from-4-3", "from-4-4"]
    )
    assert run.info.branch.startswith("from-4")
    # However they came, each switch began where the one before had ended.
    chain = switches(run)
    assert len(chain) == 4
    assert {data["from"] for data in chain} | {run.info.branch} == {"main", *(data["to"] for data in chain)}


# --- switching


def test_switching_moves_latest_and_saves(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]
) -> None:
    """Saves of every handle follow the session to its current branch, in whichever process they are."""
    other = reopened()
    other.save({"warm": True}, step=6)
    run.branches.fork("step-2", "try")
    assert other.save({"step": 7}, step=7).branch == "try"
    run.branches.switch("main")
    assert other.save({"step": 8}, step=8).branch == "main"
    assert steps(reopened()) == [8, 6, 5, 4, 3, 2, 1]


def test_every_change_of_branch_is_recorded(run: stepkeep.Session) -> None:
    """An event says from where, to where, at which heads, and why; staying is no change."""
    heads = {step: run.header(f"step-{step}").id for step in (2, 5)}
    run.branches.fork("step-2", "try")
    run.branches.switch("main")
    run.branches.switch("main")
    run.restore("branch:try")
    assert switches(run) == [
        {"from": "main", "from_head": heads[5], "to": "try", "to_head": heads[2], "why": "fork"},
        {"from": "try", "from_head": heads[2], "to": "main", "to_head": heads[5], "why": "switch"},
        {"from": "main", "from_head": heads[5], "to": "try", "to_head": heads[2], "why": "restore"},
    ]


def test_an_unknown_branch_names_those_that_exist(run: stepkeep.Session) -> None:
    """Every method that takes a name says which there are."""
    run.branches.fork("step-2", "try", switch=False)
    names = run.branches
    for method in (names.switch, names.merge, names.abandon, names.archive, names.reopen, names.log):
        with pytest.raises(stepkeep.NotFound) as caught:
            method("tyr")
        assert caught.value.code == "branch_not_found"
        assert "there are main, try" in caught.value.message
    assert run.info.branch == "main"


# --- closing


@pytest.mark.parametrize(
    ("verb", "state"), [("abandon", BranchState.ABANDONED), ("archive", BranchState.ARCHIVED)]
)
def test_a_closed_branch_can_be_reopened(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session], verb: str, state: BranchState
) -> None:
    """Its checkpoints can be loaded, switching to it is refused, and reopening lifts that."""
    run.branches.fork("step-2", "try")
    run.save({"step": 20}, step=20)
    with pytest.raises(stepkeep.Conflict) as caught:
        getattr(run.branches, verb)("try")
    assert caught.value.code == "branch_is_current"
    run.branches.switch("main")
    assert getattr(run.branches, verb)("try").state is state
    again = reopened()
    assert branch(again, "try").state is state
    assert again.load("branch:try").step == 20
    for refused in (again.branches.switch, again.branches.merge):
        with pytest.raises(stepkeep.Conflict) as caught:
            refused("try")
        assert caught.value.code == "branch_closed"
    assert again.info.branch == "main"
    again.branches.reopen("try")
    assert reopened().branches.switch("try").state is BranchState.OPEN
    assert steps(reopened()) == [20, 2, 1]


def test_closing_waits_for_no_saver(run: stepkeep.Session) -> None:
    """A branch that others keep saving to is closed all the same, and nothing of theirs is lost."""
    run.branches.fork("step-2", "busy", switch=False)
    stop = threading.Event()
    saved: list[str] = []

    def save() -> None:
        while not stop.is_set():
            saved.append(run.save({"n": len(saved)}, branch="busy").id)

    thread = threading.Thread(target=save)
    thread.start()
    try:
        for _ in range(10):
            run.branches.abandon("busy")
            run.branches.reopen("busy")
    finally:
        stop.set()
        thread.join()
    assert [header.id for header in run.history(branch="busy", newest_first=False)] == saved
    assert branch(run, "busy").state is BranchState.OPEN


# --- merging


def diverge(run: stepkeep.Session, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Save `theirs` on a branch `try`, and `ours` on main, where the session stays."""
    run.branches.fork("latest", "try")
    run.save(theirs, step=70)
    run.branches.switch("main")
    run.save(ours, step=60, details={"who": "ours"})


def test_a_union_keeps_the_work_of_both(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]
) -> None:
    """The merge is a checkpoint with both heads as parents; the branch is closed and the history whole."""
    base = run.header("latest")
    log = [f"line {at}" for at in range(5)]
    diverge(
        run,
        {"step": 6, "log": [*log, "ours"]},
        {"step": 5, "log": [*log, "theirs"], "tags": {"a": (1, b"x")}},
    )
    ours, theirs = run.header("latest"), run.header("branch:try")
    done = run.branches.merge("try", message="both")
    assert (done.strategy, done.base, done.clashes, done.is_closed) == ("union", base.id, (), True)
    again = reopened()
    latest = again.latest()
    assert latest is not None
    assert latest.state == {"step": 6, "log": [*log, "ours", "theirs"], "tags": {"a": (1, b"x")}}
    assert (latest.details, latest.step) == ({"who": "ours"}, 60)
    header = latest.header
    assert done.checkpoint == run.describe(header)
    assert (header.parents, header.message, header.tags) == (
        (ours.id, theirs.id),
        "both",
        ("merge", "branch_merged"),
    )
    assert header.metadata["merge"]["branch"] == "try"
    assert branch(again, "try").state is BranchState.MERGED
    assert steps(again) == [60, 60, 5, 4, 3, 2, 1]
    assert again.verify().is_intact


@pytest.mark.parametrize(("strategy", "n", "step"), [("ours", 1, 60), ("theirs", 2, 70)])
def test_one_side_may_be_taken_whole(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session], strategy: Any, n: int, step: int
) -> None:
    """`ours` and `theirs` take one state as it is, conflicts or not."""
    diverge(run, {"n": 1}, {"n": 2})
    run.branches.merge("try", strategy=strategy)
    latest = reopened().latest()
    assert latest is not None
    assert (latest.state, latest.step, len(latest.header.parents)) == ({"n": n}, step, 2)
    assert latest.header.message == "merged try"


def test_conflicts_are_listed_and_nothing_is_written(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]
) -> None:
    """Every clash has its path and three values; the store is as it was, and a side can be chosen."""
    diverge(run, {"step": 6, "log": ["ours"], "a": 1}, {"step": 7, "a": 1})
    before = reopened().usage(), list(reopened().branches), reopened().events()
    with pytest.raises(stepkeep.MergeConflict) as caught:
        run.branches.merge("try")
    found = {format_path(each.path): (each.ours, each.theirs) for each in caught.value.clashes}
    assert found == {"step": (6, 7), "log": (["ours"], ABSENT)}
    assert {each.base for each in caught.value.clashes if each.path == ("step",)} == {5}
    for text in ("'try'", "'main'", "step: was 5, ours 6, theirs 7", "on_conflict"):
        assert text in caught.value.message
    again = reopened()
    assert (again.usage(), list(again.branches), again.events()) == before
    assert not caught.value.result.is_merged
    assert [each.path for each in caught.value.result.clashes] == ["step", "log"]
    done = again.branches.merge("try", on_conflict="theirs")
    assert [each.path for each in done.clashes] == ["step", "log"]
    latest = reopened().latest()
    assert latest is not None
    assert latest.state == {"step": 7, "a": 1}
    assert latest.header.metadata["merge"]["clashes"] == 2


def test_a_second_merge_builds_on_the_first(run: stepkeep.Session) -> None:
    """After a merge only what came since is merged: nothing is appended twice."""
    run.save({"log": ["base"]})
    diverge(run, {"log": ["base", "ours"]}, {"log": ["base", "theirs"]})
    run.branches.merge("try")
    run.branches.reopen("try")
    run.save({"log": ["base", "theirs", "more"]}, branch="try")
    first = run.header("branch:try").parents[0]
    # The list of main has grown in between, so this is a change of both, not an addition.
    with pytest.raises(stepkeep.MergeConflict) as caught:
        run.branches.merge("try")
    assert [each.base for each in caught.value.clashes] == [["base", "theirs"]]
    done = run.branches.merge("try", on_conflict="ours")
    assert done.base == first


def test_merging_what_is_already_in(run: stepkeep.Session) -> None:
    """A branch without work of its own changes nothing, and is closed."""
    run.branches.fork("step-3", "old", switch=False)
    run.branches.fork("latest", "same", switch=False)
    state = run.load().state
    for name in ("old", "same"):
        assert run.branches.merge(name).is_closed
        assert run.load().state == state


def test_the_common_ancestor_is_found_through_thinned_lines(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session]
) -> None:
    """Checkpoints between the fork and the heads may be gone; the fork point of an open branch is not."""
    run.branches.fork("step-3", "try")
    for number in range(4):
        run.save({"step": 3, "log": [], "theirs": number})
    run.branches.switch("main")
    run.prune(keep_last=1)
    assert [header.seq for header in run.history()] == [9, 5, 3]
    with pytest.raises(stepkeep.MergeConflict) as caught:
        reopened().branches.merge("try")
    assert {format_path(each.path): each.base for each in caught.value.clashes} == {"log": _log(3)}


def _log(step: int) -> list[str]:
    return [f"line {at}" for at in range(step)]


def test_a_lost_ancestor_is_said_and_not_guessed(run: stepkeep.Session) -> None:
    """When what both began from is gone, an older checkpoint does not take its place."""
    run.branches.fork("step-3", "try")
    run.save({"step": 3, "theirs": 1})
    run.branches.switch("main")
    run.delete(run.header("#3").id)
    with pytest.raises(stepkeep.MergeConflict) as caught:
        run.branches.merge("try")
    assert "not stored any more" in caught.value.message
    assert [each.base for each in caught.value.clashes] == [ABSENT]
    done = run.branches.merge("try", on_conflict="ours")
    assert done.base is None
    assert run.load().state == {"step": 5, "log": _log(5), "theirs": 1}


def test_a_branch_is_not_merged_into_itself(run: stepkeep.Session) -> None:
    """The current branch cannot be merged, nor with a strategy that does not exist."""
    with pytest.raises(stepkeep.Conflict) as caught:
        run.branches.merge("main")
    assert caught.value.code == "branch_is_current"
    run.branches.fork("step-2", "try", switch=False)
    for options in ({"strategy": "both"}, {"on_conflict": "mine"}):
        with pytest.raises(stepkeep.InvalidInput):
            run.branches.merge("try", **options)  # type: ignore[arg-type]


def test_an_empty_branch_has_nothing_to_merge(reopened: Callable[[], stepkeep.Session]) -> None:
    """A session that has not begun says so."""
    session = reopened()
    session.save({"n": 1}, branch="try")
    with pytest.raises(stepkeep.NotFound) as caught:
        session.branches.merge("try")
    assert caught.value.code == "checkpoint_not_found"


def test_a_save_during_a_merge_is_a_conflict(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What someone saves to the current branch between reading and writing refuses the merge."""
    diverge(run, {"ours": 1}, {"theirs": 1})
    other = reopened()
    search = branches.common_ancestor

    def slow(*arguments: Any) -> Any:
        other.save({"late": 1})
        return search(*arguments)

    monkeypatch.setattr(merge, "common_ancestor", slow)
    with pytest.raises(stepkeep.Conflict) as caught:
        run.branches.merge("try")
    assert caught.value.code == "head_moved"
    assert run.load().state == {"late": 1}
    assert branch(run, "try").state is BranchState.OPEN


def test_work_saved_to_the_merged_branch_meanwhile_keeps_it_open(
    run: stepkeep.Session, reopened: Callable[[], stepkeep.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch is never closed over work that is not merged."""
    diverge(run, {"ours": 1}, {"theirs": 1})
    other = reopened()
    search = branches.common_ancestor

    def slow(*arguments: Any) -> Any:
        other.save({"theirs": 2}, branch="try")
        return search(*arguments)

    monkeypatch.setattr(merge, "common_ancestor", slow)
    done = run.branches.merge("try", on_conflict="ours")
    assert not done.is_closed
    assert branch(reopened(), "try").state is BranchState.OPEN


# --- pruning


def test_pruning_keeps_open_branches_and_lets_closed_ones_go(run: stepkeep.Session) -> None:
    """V7: head and fork point of an open branch stay; those of an abandoned one go by the rules."""
    run.branches.fork("step-2", "try")
    run.save({"step": 20}, step=20)
    run.branches.switch("main")
    run.save({"step": 6}, step=6)
    run.save({"step": 7}, step=7)
    run.prune(keep_last=1)
    assert sorted(header.step or 0 for header in run.history()) == [2, 7, 20]
    run.branches.abandon("try")
    run.prune(keep_last=1, max_age=timedelta(days=1))
    assert [header.step for header in run.history()] == [7]


def test_the_head_falls_back_behind_a_deleted_fork_point(run: stepkeep.Session) -> None:
    """Restoring a checkpoint and deleting it, because a secret is in it, leaves the one before it as latest."""
    headers = [run.save({"n": number}) for number in range(3)]
    run.restore(headers[1].id)
    run.delete(headers[1].id)
    latest = run.latest()
    assert latest is not None
    assert latest.id == headers[0].id
    assert run.save({"n": 3}).parents == (headers[0].id,)


def test_a_branch_of_which_nothing_is_left_is_not_switched_to(run: stepkeep.Session) -> None:
    """Latest would be nothing although the session has checkpoints."""
    for number in range(2):
        run.save({"n": number})
    run.branches.fork("latest", name="side")
    run.save({"n": 2})
    run.branches.switch("main")
    kept = run.save({"n": 4})
    run.delete(*(header.id for header in run.history() if header.id != kept.id))
    with pytest.raises(stepkeep.Conflict) as refusal:
        run.branches.switch("side")
    assert refusal.value.code == "branch_empty"
    assert run.load().state == {"n": 4}


def test_history_says_what_makes_no_sense(run: stepkeep.Session) -> None:
    """A branch that is not there and a negative limit are errors, not an empty list."""
    run.save({"n": 1})
    with pytest.raises(stepkeep.NotFound) as missing:
        run.history(branch="nope")
    assert missing.value.session == run.key
    with pytest.raises(stepkeep.InvalidInput):
        run.history(limit=-1)
    with pytest.raises(stepkeep.InvalidInput):
        run.query(seq="3")  # type: ignore[arg-type]
