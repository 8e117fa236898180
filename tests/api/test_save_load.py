"""What was saved comes back, in order, also in another process."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import random
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

import stepkeep
from stepkeep.storage.port import Append
from tests.api import programs


def test_a_thousand_saves_are_all_there_in_another_process(url: str) -> None:
    """1,000 saves as fast as possible: distinct ids, seq 1 to 1,000, every one loads and verifies."""
    with stepkeep.open(url) as store:
        session = store.session("run", profile="archive")
        headers = [session.save(programs.state_of("one", number)) for number in range(1000)]
    found = programs.run(programs.survey, url, "run")
    assert found["ids"] == [header.id for header in headers]
    assert len(set(found["ids"])) == 1000
    assert found["seqs"] == list(range(1, 1001))
    assert found["states"] == [programs.state_of("one", number) for number in range(1000)]
    assert found["findings"] == []
    assert found["checkpoints"] == 1000


def test_a_state_of_very_many_keys_costs_a_few_calls_for_each(session: stepkeep.Session) -> None:
    """What is remembered of the state before never takes more work than encoding all of it."""
    keys, calls = 10_000, 0
    state = {f"key {number}": {"text": "x" * 600} for number in range(keys)}

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    for number in range(4):
        state[f"key {number}"] = {"text": "y" * 600}
        calls = 0
        sys.setprofile(count)
        try:
            session.save(state)
        finally:
            sys.setprofile(None)
        assert calls < 3 * keys
    assert session.load().state == state


def test_a_state_comes_back_exactly(session: stepkeep.Session, url: str) -> None:
    """Types that JSON lacks survive, also for another store object on the same file."""
    state = {
        "when": datetime(2025, 1, 2, tzinfo=UTC),
        "pair": (1, 2),
        3: {"set": {1, 2}},
        "big": 2**70,
        "bytes": b"\0\xff",
        "-0": -0.0,
    }
    saved = session.save(state)
    with stepkeep.open(url) as other:
        loaded = other.get("run").latest()
        assert loaded is not None
        assert loaded.state == state
        assert type(loaded.state["pair"]) is tuple
        assert loaded.id == saved.id
        assert other.checkpoint(saved.id).state == state


def test_an_empty_session_has_no_latest(session: stepkeep.Session) -> None:
    """`latest` and `newest` are None where nothing was saved; a named checkpoint is `NotFound`."""
    assert session.latest() is None
    assert session.newest() is None
    with pytest.raises(stepkeep.NotFound):
        session.load()
    assert list(session.history()) == []


def test_changing_a_loaded_state_changes_nothing_stored(session: stepkeep.Session) -> None:
    """Each load gives its own copy."""
    session.save({"items": [1]})
    session.load().state["items"].append(2)
    assert session.load().state == {"items": [1]}


def test_details_are_a_body_of_their_own(session: stepkeep.Session) -> None:
    """Details of any type come back, None where there are none, and both bodies verify."""
    session.save({"n": 1}, details={"outcome": (1, 2)})
    session.save({"n": 2})
    assert session.load(1).details == {"outcome": (1, 2)}
    assert session.load(2).details is None
    assert set(session.load(1).header.contents) == {"state", "details"}
    assert session.verify().is_intact


@dataclasses.dataclass
class Point:
    x: int
    tags: tuple[str, ...]


class Plan(msgspec.Struct):
    title: str
    points: list[Point]


def test_typed_loading_rebuilds_dataclasses_and_structs(session: stepkeep.Session) -> None:
    """A dataclass and a struct are saved as data and rebuilt when their type is named."""
    point = Point(1, ("a", "b"))
    plan = Plan("t", [point])
    session.save(point)
    session.save(plan)
    assert session.load(1).load(Point) == point
    assert session.load(2).load(Plan) == plan
    assert session.load(2).state == {"title": "t", "points": [{"x": 1, "tags": ("a", "b")}]}
    with pytest.raises(stepkeep.InvalidInput) as caught:
        session.load(1).load(Plan)
    assert caught.value.code == "state_type_mismatch"


def test_header_fields_come_back(session: stepkeep.Session) -> None:
    """Everything that describes a checkpoint is in its header."""
    first = session.save(
        {}, step=3, message="first ✓", tags=["b", "a", "b"], metadata={"k": [1, {"x": None}]}
    )
    second = session.save({}, trigger="manual", external_id="ext", requires=[first.id], status="paused")
    header = session.header(first.id)
    assert (header.step, header.message, header.tags) == (3, "first ✓", ("b", "a"))
    assert header.metadata == {"k": [1, {"x": None}]}
    assert session.header(second.id) == second
    assert second.parents == (first.id,)
    assert second.parent_chains == (first.chain,)
    assert second.requires == (first.id,)
    assert session.info.status is stepkeep.Status.PAUSED


def test_history_is_ordered_filtered_and_limited(session: stepkeep.Session) -> None:
    """History is newest first; every filter and the limit choose among the headers."""
    for n in range(1, 21):
        session.save(
            {"n": n},
            step=n % 5,
            tags=["even"] if n % 2 == 0 else [],
            status="paused" if n % 7 == 0 else "in_progress",
            metadata={"third": n % 3, "deep": {"n": [n]}},
        )

    def seqs(**filters: Any) -> list[int]:
        return [header.seq for header in session.history(**filters)]

    assert seqs() == list(range(20, 0, -1))
    assert seqs(newest_first=False, limit=3) == [1, 2, 3]
    assert seqs(limit=0) == []
    assert seqs(step=2) == [17, 12, 7, 2]
    assert seqs(tag="even", limit=2) == [20, 18]
    assert seqs(status="paused") == [14, 7]
    assert seqs(metadata={"third": 0}, limit=2) == [18, 15]
    assert seqs(metadata={"third": 2, "deep": {"n": [5]}}) == [5]
    assert seqs(branch="main", tag="even", step=0) == [20, 10]
    with pytest.raises(stepkeep.NotFound):
        seqs(branch="other")
    assert seqs(tag="nothing") == []


def test_history_can_be_read_while_others_save(session: stepkeep.Session) -> None:
    """An iteration under way neither fails nor repeats while checkpoints arrive; it holds nothing open."""
    for n in range(600):
        session.save({"n": n})
    seen: list[int] = []
    for header in session.history(newest_first=False):
        if header.seq % 100 == 0 and header.seq <= 600:
            session.save({"n": "late"})
        seen.append(header.seq)
    assert seen == list(range(1, len(seen) + 1))  # what arrives behind the last page may be missed
    assert len(seen) >= 600
    assert [header.seq for header in session.history(limit=2)] == [606, 605]


def test_newest_looks_at_all_branches_and_latest_at_the_current_one(session: stepkeep.Session) -> None:
    """`newest` is the highest seq; `latest` is the head of the session's current branch."""
    first = session.save({"n": 1})
    session.save({"n": 2})
    fork = session.save({"n": 3}, branch="side", parents=[first.id])
    newest, latest = session.newest(), session.latest()
    assert newest is not None
    assert newest.id == fork.id
    assert latest is not None
    assert latest.seq == 2
    side = next(branch for branch in session.branches if branch.name == "side")
    assert (side.head, side.fork, side.fork_branch, side.fork_seq) == (fork.id, first.id, "main", 1)


def test_sessions_are_listed_by_use_and_filtered(store: stepkeep.Store) -> None:
    """The most recently used session comes first; project, workflow, status and prefix choose."""
    for key, project in (("a/1", "p"), ("a/2", "q"), ("b/1", "p")):
        store.session(key, project=project, workflow=f"w{key[0]}").save({})
    store.get("a/1").save({})
    store.get("b/1").complete()
    store.get("a/2").fail("boom")

    def keys(**filters: Any) -> list[str]:
        return [info.key for info in store.sessions(**filters)]

    assert keys() == ["a/2", "b/1", "a/1"]
    assert keys(project="p") == ["b/1", "a/1"]
    assert keys(prefix="a/") == ["a/2", "a/1"]
    assert keys(workflow="wb") == ["b/1"]
    assert keys(status="failed") == ["a/2"]
    assert keys(limit=1) == ["a/2"]
    assert store.get("a/2").info.error == "boom"


def test_saving_into_a_finished_session_reopens_it(session: stepkeep.Session) -> None:
    """The session is in progress again and an event says so."""
    session.save({"n": 1})
    info = session.complete()
    assert info.status.is_finished
    assert info.finished_us is not None
    session.save({"n": 2})
    assert session.info.status is stepkeep.Status.IN_PROGRESS
    assert session.info.finished_us is None
    assert [event.type for event in session.events()] == ["session_completed", "session_reopened"]


def test_session_fields_that_are_given_are_stored_and_others_stay(store: stepkeep.Store) -> None:
    """Opening a session again changes only what is named."""
    store.session("k", profile="agent", project="p", metadata={"a": 1})
    info = store.session("k", workflow="w").info
    assert (info.profile, info.project, info.workflow, info.metadata) == ("agent", "p", "w", {"a": 1})
    assert store.session("k", profile="run").info.profile == "run"


# --- saves in the background -----------------------------------------------------------------------------------


def test_background_saves_keep_their_order(session: stepkeep.Session, url: str) -> None:
    """Saves that nobody waits for are committed in the order they were made, and settle."""
    pending = [session.save(programs.state_of("b", n), wait=False) for n in range(300)]
    assert [each.result().seq for each in pending] == list(range(1, 301))
    assert all(each.is_done for each in pending)
    assert pending[7].result() is pending[7].result()
    found = programs.run(programs.survey, url, "run")
    assert [state["n"] for state in found["states"]] == list(range(300))


def test_close_waits_for_background_saves(url: str) -> None:
    """Leaving the `with` block commits everything that was queued."""
    programs.run(programs.save_in_background, url, "run", 200)
    found = programs.run(programs.survey, url, "run")
    assert [state["n"] for state in found["states"]] == list(range(200))
    assert found["findings"] == []


def test_flush_settles_what_was_queued(session: stepkeep.Session, store: stepkeep.Store) -> None:
    """After `flush` every save is readable without asking for its result."""
    for n in range(20):
        session.save({"n": n}, wait=False)
    store.flush()
    assert session.load().state == {"n": 19}


def test_a_background_error_surfaces_in_the_result(session: stepkeep.Session) -> None:
    """A refused save raises from `result`, every time, and the others are stored."""
    good = session.save({"n": 1}, wait=False)
    bad = session.save({"n": 2}, wait=False, expect_head="cp_nothing")
    after = session.save({"n": 3}, wait=False)
    assert good.result().seq == 1
    for _ in range(2):
        with pytest.raises(stepkeep.Conflict) as caught:
            bad.result()
        assert caught.value.code == "head_moved"
    assert after.result().seq == 2
    assert [header.seq for header in session.history()] == [2, 1]
    assert session.load(2).state == {"n": 3}


def test_a_state_that_cannot_be_saved_is_refused_at_once(session: stepkeep.Session) -> None:
    """`wait=False` defers the commit, not the check of the state."""
    with pytest.raises(stepkeep.InvalidInput):
        session.save({"f": print}, wait=False)
    assert session.latest() is None


def test_the_state_may_change_right_after_the_call(
    session: stepkeep.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a background save stores is what was there when it was called: state, details and metadata."""
    gate = threading.Event()
    backend = session._engine.backend
    append = backend.append

    def late(batch: Sequence[Append], seal: Any) -> Any:
        gate.wait(10)
        return append(batch, seal)

    monkeypatch.setattr(backend, "append", late)
    state: dict[str, Any] = {"items": [1]}
    details: dict[str, Any] = {"more": [1]}
    metadata: dict[str, Any] = {"deep": {"list": [1]}}
    tags = ["a"]
    pending = session.save(state, details=details, metadata=metadata, tags=tags, wait=False)
    state["items"].append(2)
    details["more"].append(2)
    metadata["deep"]["list"].append(2)
    tags.append("b")
    gate.set()
    header = pending.result()
    loaded = session.load(1)
    assert (loaded.state, loaded.details) == ({"items": [1]}, {"more": [1]})
    assert header.tags == ("a",)
    assert header.metadata == {"deep": {"list": [1]}}


def test_threads_share_a_commit(session: stepkeep.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves that arrive while another is being committed go into one commit together."""
    sizes: list[int] = []
    first_is_in = threading.Event()
    gate = threading.Event()
    backend = session._engine.backend
    append = backend.append

    def counted(batch: Sequence[Append], seal: Any) -> Any:
        sizes.append(len(batch))
        first_is_in.set()
        assert gate.wait(10)
        return append(batch, seal)

    monkeypatch.setattr(backend, "append", counted)
    committer = session._engine._committer
    threads = [threading.Thread(target=session.save, args=({"n": n},)) for n in range(9)]
    threads[0].start()
    assert first_is_in.wait(10)
    for thread in threads[1:]:
        thread.start()
    while len(committer.queue) < 8:
        threading.Event().wait(0.001)
    gate.set()
    for thread in threads:
        thread.join()
    assert sizes == [1, 8]
    assert sorted(header.seq for header in session.history()) == list(range(1, 10))
    assert {session.load(seq).state["n"] for seq in range(1, 10)} == set(range(9))


def test_a_refusal_takes_nothing_from_the_others_of_its_commit(session: stepkeep.Session) -> None:
    """Each save of a group commit is decided alone."""
    engine = session._engine
    pending = []
    with engine._committer._leader:
        for n in range(6):
            options: dict[str, Any] = {"expect_head": "cp_other"} if n % 2 else {}
            pending.append(session.save({"n": n}, wait=False, **options))
    results: list[int | None] = []
    for each in pending:
        try:
            results.append(each.result().seq)
        except stepkeep.Conflict:
            results.append(None)
    assert results == [1, None, 2, None, 3, None]
    assert [session.load(seq).state["n"] for seq in (1, 2, 3)] == [0, 2, 4]
    assert session.verify().is_intact


# --- files -----------------------------------------------------------------------------------------------------


def test_a_store_is_found_by_path_url_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL, a path and `STEPKEEP_STORE` lead to the same store."""
    file = tmp_path / "s" / "x.db"
    with stepkeep.open(f"sqlite:{file}") as store:
        store.session("k").save({"n": 1})
        assert store.url == f"sqlite:{file}"
    monkeypatch.setenv("STEPKEEP_STORE", f"sqlite:{file}")
    for url in (file, str(file), f"sqlite://{file}", None):
        with stepkeep.open(url) as store:
            assert store.get("k").load().state == {"n": 1}


def test_a_path_object_is_always_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `Path` names a file whatever its name looks like; only text may be a URL."""
    monkeypatch.chdir(tmp_path)
    for name in ("state", "memory:", "a:b"):
        with stepkeep.open(Path(name)) as store:
            store.session("k").save({"n": 1})
        assert (tmp_path / name).is_file()


def test_a_large_random_history_comes_back(session: stepkeep.Session, url: str) -> None:
    """States that change in every way (grow, shrink, edit, replace) all load equal in another process."""
    random.seed(20_250_101)
    state: list[str] = []
    saved: list[list[str]] = []
    for _ in range(150):
        kind = random.randrange(6)
        if kind == 0 and state:
            del state[random.randrange(len(state)) :]
        elif kind == 1:
            state = [random.randbytes(20).hex() for _ in range(random.randrange(50))]
        elif kind == 2 and state:
            state[random.randrange(len(state))] = random.randbytes(30).hex()
        else:
            state += [random.randbytes(random.randrange(200)).hex()]
        session.save(state)
        saved.append(list(state))
    assert programs.run(programs.survey, url, "run")["states"] == saved


def test_the_beginning_of_an_id_is_enough() -> None:
    """Where it is the only one; several are told apart, and none is not found."""
    with stepkeep.open("memory:") as store:
        first = store.session("a").save({"n": 1})
        store.session("b").save({"n": 2})
        assert store.checkpoint(first.id[:-2]).state == {"n": 1}
        with pytest.raises(stepkeep.InvalidInput) as several:
            store.checkpoint("cp_")
        assert several.value.code == "ambiguous_ref"
        for missing in ("cp_nothing", ""):
            with pytest.raises(stepkeep.NotFound):
                store.checkpoint(missing)


def test_how_a_session_ended_is_told_although_it_is_gone(store: stepkeep.Store) -> None:
    """A test goes as soon as it ends: whoever ended it shows what the call returned, and does not look again."""
    run = store.session("trial", test=True)
    run.save({"n": 1})
    info = run.complete()
    if any(each.key == "trial" for each in store.sessions()):  # the keeper may be faster
        with contextlib.suppress(stepkeep.NotFound):
            run.clear()
    assert run.summary(info).status == "completed"
    with pytest.raises(stepkeep.NotFound):
        run.summary()


def test_a_save_leaves_nothing_to_the_cycle_collector(tmp_path: Path) -> None:
    """Contents are given back at once: cycles would hold a few of them, each as large as the state."""
    with stepkeep.open(f"sqlite:{tmp_path}/s.db") as store:
        session = store.session("run")
        session.save({"n": 0})
        session.save({"n": 1})
        gc.collect()
        gc.disable()
        try:
            session.save({"n": 2})
            assert gc.collect() == 0
        finally:
            gc.enable()


def test_what_was_read_is_read_again_as_it_is_by_now(session: stepkeep.Session, url: str) -> None:
    """Whoever only reads sees each save, branch and deletion of others, and no caller the changes of another."""
    said = [f"word {number}" for number in range(200)]
    with stepkeep.open(url) as other:
        for number in range(40):
            session.save({"said": [*said, number]})
            found = other.get("run").load().state
            assert found == {"said": [*said, number]}
            found["said"].clear()
            assert other.get("run").load().state == {"said": [*said, number]}
        session.restore("latest~20")
        assert other.get("run").load().state == {"said": [*said, 19]}
        session.clear()
        with pytest.raises(stepkeep.NotFound):
            other.get("run")
