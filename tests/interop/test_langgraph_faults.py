"""What goes wrong with LangGraph's own savers does not go wrong here."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import pytest
from langgraph.checkpoint.base import uuid6

import stepkeep
from stepkeep.adapters.langgraph import StepkeepSaver
from stepkeep.adapters.langgraph.records import REST
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound
from tests.interop.conftest import Bodies
from tests.interop.threads import checkpoint, config, id_of, put, values_of


def header_of(saver: StepkeepSaver, external_id: str, thread: str = "t") -> stepkeep.Header:
    return next(header for header in saver.store.get(thread).history() if header.external_id == external_id)


def test_two_writers_from_one_parent_are_both_kept(saver: StepkeepSaver) -> None:
    """Neither overwrites the other, and the one that was put last is the latest."""
    parent = put(saver, {"x": 0})
    first = put(saver, {"x": 1}, parent)
    second = put(saver, {"x": 2}, parent)

    assert [values_of(saver, at) for at in (first, second)] == [{"x": 1}, {"x": 2}]
    assert values_of(saver) == {"x": 2}
    found = [saver.get_tuple(at) for at in (first, second)]
    assert [each and each.parent_config and id_of(each.parent_config) for each in found] == [
        id_of(parent)
    ] * 2
    parents = {header_of(saver, id_of(at)).parents for at in (first, second)}
    assert parents == {(header_of(saver, id_of(parent)).id,)}


@pytest.mark.parametrize("seconds_behind", [5, 3600])
def test_a_child_put_by_a_machine_behind_is_latest(saver: StepkeepSaver, seconds_behind: int) -> None:
    """The order is that of the puts; ids and clocks play no part, in the list as little as for the latest."""
    parent = put(saver, {"x": 0})
    behind = str(uuid6())
    early = f"{int(behind[:8], 16) - seconds_behind * 10_000_000 // 2**16 % 2**28:08x}{behind[8:]}"
    child = put(saver, {"x": 1}, parent, id=min(early, "00000000" + behind[8:]))

    assert id_of(child) < id_of(parent)
    assert values_of(saver) == {"x": 1}
    assert [id_of(each.config) for each in saver.list(config())] == [id_of(child), id_of(parent)]
    assert [id_of(each.config) for each in saver.list(config(), before=child)] == [id_of(parent)]


def test_a_clock_behind_does_not_matter(url: str) -> None:
    """Another process whose clock is an hour behind puts a child: it is the latest."""
    with stepkeep.open(url) as store:
        parent = put(StepkeepSaver(store), {"x": 0})
    with stepkeep.open(url, clock=lambda: store.engine.clock() - 3_600_000_000) as behind:
        put(StepkeepSaver(behind), {"x": 1}, parent)
    with StepkeepSaver(url) as saver:
        assert values_of(saver) == {"x": 1}


def test_a_late_put_does_not_bring_a_deleted_thread_back(saver: StepkeepSaver) -> None:
    """A run that goes on after `delete_thread` gets an error, and the thread stays gone."""
    at = put(saver, {"x": 0})
    saver.delete_thread("t")

    with pytest.raises(NotFound, match="does not exist"):
        put(saver, {"x": 1}, at)
    with pytest.raises(NotFound, match="does not exist"):
        saver.put_writes(at, [("x", 2)], "task")
    assert saver.get_tuple(config()) is None
    assert list(saver.list(None)) == []
    with pytest.raises(NotFound):
        saver.store.get("t")


def test_a_late_put_of_another_process_does_not_either(url: str) -> None:
    """The saver that puts need not be the one that deleted, and may have looked the thread up since."""
    with StepkeepSaver(url) as running, StepkeepSaver(url) as deleting, StepkeepSaver(url) as third:
        at = put(running, {"x": 0})
        deleting.delete_thread("t")
        with pytest.raises(NotFound):
            put(running, {"x": 1}, at)
        assert running.get_tuple(config()) is None
        with pytest.raises(NotFound):
            put(running, {"x": 1}, at)
        inside = config(namespace="child:1")
        inside["configurable"]["checkpoint_map"] = {"": id_of(at)}
        put(running, {"x": 5})
        deleting.delete_thread("t")
        with pytest.raises(NotFound):
            put(running, {"x": 1}, inside)
        assert list(third.list(None)) == []


def test_a_thread_can_begin_again_after_it_was_deleted(saver: StepkeepSaver) -> None:
    """A put that names no checkpoint begins a thread; what belonged to the old one is not in it."""
    old = put(saver, {"x": 0})
    saver.put_writes(old, [("x", 1)], "task")
    saver.delete_thread("t")
    new = put(saver, {"x": 7})

    assert [id_of(each.config) for each in saver.list(config())] == [id_of(new)]
    assert saver.get_tuple(old) is None


def test_a_put_may_continue_a_checkpoint_that_was_never_here(url: str) -> None:
    """As with LangGraph's own savers. `verify` tells that its parent is unknown, also of a copy."""
    elsewhere = config(checkpoint=str(uuid6()))
    with StepkeepSaver(url) as saver:
        at = put(saver, {"x": 1}, elsewhere)
        put(saver, {"x": 2}, at)
        saver.copy_thread("t", "copied")
    with StepkeepSaver(url) as saver:
        found = saver.get_tuple(at)
        assert found is not None
        assert found.parent_config == elsewhere
        first = [header_of(saver, id_of(at), thread) for thread in ("t", "copied")]
        assert {header.parents for header in first} == {(id_of(elsewhere),)}
        report = saver.store.verify()
        assert report.is_intact
        assert sorted(report.parent_unknown) == sorted(header.id for header in first)
        assert [line.checkpoint.id for line in saver.store.get("t").timeline().entries][-1] == first[0].id


def test_writes_may_come_before_the_first_checkpoint(saver: StepkeepSaver) -> None:
    """With asynchronous durability the writes of a task can overtake the put that begins their thread."""
    made = checkpoint({"x": 0})
    saver.put_writes(config(checkpoint=made["id"]), [("x", 1)], "task")
    assert saver.get_tuple(config()) is None
    saver.put(config(), made, {"source": "input", "step": -1, "parents": {}}, {})

    found = saver.get_tuple(config())
    assert found is not None
    assert found.pending_writes == [("task", "x", 1)]


def test_writes_may_come_before_the_first_checkpoint_of_a_thread_that_begins_again(
    saver: StepkeepSaver,
) -> None:
    """They wait for it: without it they would be those of a run that did not notice that its thread is gone."""
    put(saver, {"x": 0})
    saver.delete_thread("t")
    assert saver.get_tuple(config()) is None
    made = checkpoint({"x": 0})
    writing = threading.Thread(
        target=saver.put_writes, args=(config(checkpoint=made["id"]), [("x", 1)], "task")
    )
    writing.start()
    saver.put(config(), made, {"source": "input", "step": -1, "parents": {}}, {})
    writing.join()

    found = saver.get_tuple(config())
    assert found is not None
    assert found.pending_writes == [("task", "x", 1)]


def test_get_tuple_inside_a_list_does_not_block(saver: StepkeepSaver) -> None:
    """Reading and putting while a list is being read works on one thread."""
    at = config()
    for number in range(5):
        at = put(saver, {"x": number}, at)
    seen = []
    for found in saver.list(config()):
        again = saver.get_tuple(found.config)
        assert again is not None
        seen.append(again.checkpoint["channel_values"]["x"])
        put(saver, {"x": -1}, found.config)
    assert seen == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("name", ["state", REST])
def test_changed_bytes_are_an_error(saver: StepkeepSaver, bodies: Bodies, url: str, name: str) -> None:
    """A flipped bit is told, by get_tuple, by the values of a list, and to a new process."""
    at = put(saver, {"text": "x" * 2000})
    bodies.damage(header_of(saver, id_of(at)).id, name)

    with pytest.raises(Corrupt):
        saver.get_tuple(config())
    (found,) = saver.list(config())
    with pytest.raises(Corrupt):
        found.checkpoint  # noqa: B018
    with StepkeepSaver(url) as another, pytest.raises(Corrupt):
        another.get_tuple(at)


def test_a_damaged_checkpoint_hides_no_other_in_a_list(saver: StepkeepSaver, bodies: Bodies) -> None:
    """Neighbours in a list are loaded together: one that is damaged is an error of its own, and of no other."""
    at = put(saver, {"n": 0})
    bad = put(saver, {"n": 1}, at)
    put(saver, {"n": 2}, bad)
    bodies.damage(header_of(saver, id_of(bad)).id, "state")

    newest, damaged, oldest = saver.list(config())
    assert newest.checkpoint["channel_values"] == {"n": 2}
    assert oldest.checkpoint["channel_values"] == {"n": 0}
    with pytest.raises(Corrupt):
        damaged.checkpoint  # noqa: B018


@pytest.mark.parametrize("name", ["state", REST])
def test_a_missing_body_is_an_error(saver: StepkeepSaver, bodies: Bodies, url: str, name: str) -> None:
    """Never an empty state."""
    at = put(saver, {"text": "x" * 2000})
    bodies.remove(header_of(saver, id_of(at)).id, name)

    with pytest.raises(Corrupt):
        saver.get_tuple(at)
    with StepkeepSaver(url) as another, pytest.raises(Corrupt):
        another.get_tuple(config())


def test_changed_writes_are_an_error(saver: StepkeepSaver, bodies: Bodies) -> None:
    """Pending writes have a digest too."""
    at = put(saver, {"x": 1})
    saver.put_writes(at, [("x", "y" * 100)], "task")
    bodies.damage_writes()

    with pytest.raises(Corrupt):
        saver.get_tuple(at)
    with pytest.raises(Corrupt):
        list(saver.list(config()))


def set_up(url: str, barrier: Any, failures: Any, number: int) -> None:
    try:
        barrier.wait(60)
        with StepkeepSaver(url) as saver:
            saver.setup()
            put(saver, {"x": number}, config(f"thread-{number}"))
    except BaseException as exc:
        failures.put(repr(exc))


@pytest.mark.full
def test_eight_processes_set_up_an_empty_store_at_once(
    request: pytest.FixtureRequest, tmp_path: Any, url: str
) -> None:
    """Ten rounds, eight processes each, none of them fails."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.interop.test_langgraph_faults"])
    for number in range(10):
        fresh = (
            f"sqlite:{tmp_path}/round-{number}.db"
            if url.startswith("sqlite:")
            else request.getfixturevalue("postgres").fresh_url()
        )
        barrier, failures = context.Barrier(8), context.Queue()
        processes = [
            context.Process(target=set_up, args=(fresh, barrier, failures, each)) for each in range(8)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert failures.empty(), failures.get()
        with StepkeepSaver(fresh) as saver:
            assert sum(1 for _ in saver.list(None)) == 8


def test_a_put_can_be_repeated(saver: StepkeepSaver) -> None:
    """The same checkpoint again is no error and no second one; another one under its id is a conflict."""
    made = checkpoint({"x": 1})
    for _ in range(2):
        saver.put(config(), made, {"source": "loop", "step": 1, "parents": {}}, {})
    assert sum(1 for _ in saver.list(config())) == 1
    with pytest.raises(Conflict):
        put(saver, {"x": 2}, id=made["id"])


def test_a_value_that_cannot_be_stored_names_its_path(saver: StepkeepSaver) -> None:
    """And nothing is stored, for puts and for writes."""
    at = put(saver, {"x": 1})
    with pytest.raises(InvalidInput) as refused:
        put(saver, {"messages": [{"ok": 1}, {"handle": threading.Lock()}]}, at)
    assert refused.value.path == "messages[1].handle"
    with pytest.raises(InvalidInput) as refused:
        saver.put_writes(at, [("x", 1), ("context", {"lock": threading.Lock()})], "task")
    assert refused.value.path == "context.lock"
    found = saver.get_tuple(config())
    assert found is not None
    assert (id_of(found.config), found.pending_writes) == (id_of(at), [])
