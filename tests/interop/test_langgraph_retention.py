"""Retention on threads: what the rules let go goes, and nothing that a kept checkpoint needs."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

import pytest
from langgraph.types import Command

import stepkeep
from stepkeep.adapters.langgraph import StepkeepSaver
from stepkeep.errors import Conflict, Corrupt
from stepkeep.model import BranchState
from tests.interop.graphs import counter, deltas, workflow
from tests.interop.threads import checkpoint, config, id_of, put, values_of

pytestmark = pytest.mark.filterwarnings("ignore:.*DeltaChannel.*")

THREAD: Any = {"configurable": {"thread_id": "t"}}


def count(saver: StepkeepSaver, thread: str = "t") -> int:
    return sum(1 for _ in saver.store.get(thread).history())


def test_everything_is_kept_by_default(saver: StepkeepSaver) -> None:
    """As users of LangGraph expect; also when the store is pruned and cleaned."""
    graph = counter(saver, steps=40)
    graph.invoke({"log": []}, THREAD)
    before = [each.config for each in graph.get_state_history(THREAD)]
    saver.store.prune()
    saver.store.clean()
    assert [each.config for each in graph.get_state_history(THREAD)] == before


def test_keep_last_keeps_the_last(url: str) -> None:
    """The rest goes with `trim`; the thread goes on from what is left."""
    with StepkeepSaver(url, keep_last=5) as saver:
        graph = counter(saver, steps=10)
        graph.invoke({"log": []}, THREAD)
        report = saver.trim("t")
        assert report is not None
        assert (report.kept, count(saver)) == (5, 5)
        assert graph.get_state(THREAD).values["count"] == 10
        assert graph.invoke({"count": 10, "log": []}, THREAD)["count"] == 20
        older = list(graph.get_state_history(THREAD))[1]
        assert graph.invoke(None, older.config)["count"] % 10 == 0
        assert saver.trim("nothing") is None


def test_the_keeper_applies_the_rules(url: str) -> None:
    """Nobody has to call anything: the open store does it by itself, at the latest when it is closed."""
    with StepkeepSaver(url, keep_last=3) as saver:
        counter(saver, steps=20).invoke({"log": []}, THREAD)
    with StepkeepSaver(url) as saver:
        assert count(saver) == 3


def test_a_list_survives_pruning_meanwhile(url: str) -> None:
    """What is listed has its values, a few neighbours are loaded together; what the rules took before is left out."""
    with StepkeepSaver(url, keep_last=2) as saver:
        at = config()
        for number in range(30):
            at = put(saver, {"x": number}, at)
        listed = saver.list(config())
        first = next(listed)
        saver.trim("t")
        rest = [each.checkpoint["channel_values"]["x"] for each in listed]
        assert first.checkpoint["channel_values"] == {"x": 29}
        assert rest == list(range(28, 28 - len(rest), -1))
        assert 1 <= len(rest) < 29


def test_rules_apply_to_threads_that_exist(url: str) -> None:
    """A saver with rules puts them upon the threads it puts into; one without leaves them as they are."""
    with StepkeepSaver(url) as saver:
        at = put(saver, {"x": 0})
    with StepkeepSaver(url, keep_last=2) as saver:
        at = put(saver, {"x": 1}, at)
    with StepkeepSaver(url) as saver:
        put(saver, {"x": 2}, at)
        assert saver.store.get("t").info.policy == {"keep_last": 2}


def test_old_and_large_threads_are_cut(url: str) -> None:
    """By age and by bytes; the newest stays in any case."""
    now = [1_800_000_000_000_000]
    with stepkeep.open(url, clock=lambda: now[0]) as store:
        saver = StepkeepSaver(store, max_age=timedelta(days=7))
        at = config()
        for number in range(5):
            at = put(saver, {"x": number}, at)
            now[0] += 2 * 86_400_000_000
        saver.trim("t")
        assert [values_of(saver, each.config)["x"] for each in saver.list(config())] == [4, 3, 2]
        small = StepkeepSaver(store, max_bytes=3000)
        at = config("large")
        for number in range(6):
            at = put(small, {"x": number, "noise": secrets.token_hex(1000)}, at)
        small.trim("large")
        assert 1 <= count(small, "large") < 6
        assert values_of(small, config("large"))["x"] == 5


@pytest.mark.parametrize("way", ["prune", "keep_last"])
def test_delta_channels_are_rebuilt_after_pruning(url: str, way: str) -> None:
    """What lies between a kept checkpoint and the snapshot it is rebuilt from stays, with its writes."""
    with StepkeepSaver(url, keep_last=1 if way == "keep_last" else None) as saver:
        graph = deltas(saver)
        for number in range(7):
            expected = graph.invoke({"items": [f"in{number}"]}, THREAD)
            before = count(saver)
            if way == "prune":
                saver.prune(["t"])
            else:
                saver.trim("t")
            assert graph.get_state(THREAD).values == expected
            assert count(saver) <= before
        assert count(saver) < 20
    with StepkeepSaver(url) as saver:
        graph = deltas(saver)
        assert graph.get_state(THREAD).values == expected
        assert all("items" in each.values for each in graph.get_state_history(THREAD))


def test_a_delta_channel_that_lost_its_history_is_an_error(saver: StepkeepSaver) -> None:
    """An ancestor that is missing is told; the official savers would rebuild an empty value."""
    made = checkpoint()
    made["channel_versions"] = {"items": 2}
    put(saver, {"x": 1})
    counters: Any = {
        "source": "loop",
        "step": 1,
        "parents": {},
        "counters_since_delta_snapshot": {"items": (1, 1)},
    }
    at = saver.put(config(checkpoint="gone"), made, counters, {})
    with pytest.raises(Corrupt) as lost:
        saver.get_delta_channel_history(config=at, channels=["items"])
    assert lost.value.code == "delta_history_missing"


def test_a_run_that_others_are_rebuilt_from_is_not_deleted(saver: StepkeepSaver) -> None:
    """`delete_for_runs` removes what nothing needs, and says what must stay."""
    graph = deltas(saver)
    graph.invoke({"items": ["x"]}, {**THREAD, "metadata": {"run_id": "one"}})
    expected = graph.invoke({"items": ["y"]}, {**THREAD, "metadata": {"run_id": "two"}})
    with pytest.raises(Conflict) as refused:
        saver.delete_for_runs(["one"])
    assert refused.value.code == "still_required"
    assert graph.get_state(THREAD).values == expected
    saver.delete_for_runs(["two", "one"])
    assert list(saver.list(config())) == []


def test_an_interrupt_outlives_pruning(url: str) -> None:
    """A subgraph that waits for an answer can still be resumed when only the newest checkpoint is kept."""
    with StepkeepSaver(url, keep_last=1) as saver:
        graph = workflow(saver)
        graph.invoke({"log": []}, THREAD)
        saver.trim("t")
        saver.prune(["t"])
    with StepkeepSaver(url) as saver:
        graph = workflow(saver)
        (task,) = graph.get_state(THREAD, subgraphs=True).tasks
        assert task.interrupts[0].value["question"] == "go on?"
        assert graph.invoke(Command(resume="yes"), THREAD)["answer"] == "yes"


def test_namespaces_of_finished_calls_are_let_go(url: str) -> None:
    """Each call of a subgraph has a namespace of its own; those of calls long gone do not pile up."""
    with StepkeepSaver(url, keep_last=8) as saver:
        graph = workflow(saver)
        for _ in range(4):
            graph.invoke({"log": []}, THREAD)
            graph.invoke(Command(resume="yes"), THREAD)
            saver.trim("t")
            saver.trim("t")
        branches = saver.store.get("t").branches
        still_open = [each for each in branches if each.state is BranchState.OPEN]
        assert len(branches) == 5
        assert len(still_open) <= 3
        assert graph.get_state(THREAD).values["answer"] == "yes"


def test_a_call_whose_caller_is_still_on_its_way_is_not_let_go(url: str) -> None:
    """A subgraph begins before the checkpoint that called it is stored, and waits for an answer in the end."""
    with StepkeepSaver(url, keep_last=2) as saver:
        root = put(saver, {"x": 0})
        called = checkpoint({"x": 1})
        parents = {"": called["id"]}
        first = put(saver, {"v": 1}, config(namespace="A:1"), parents=parents)
        saver.trim("t")
        saver.put(root, called, {"source": "loop", "step": 1, "parents": {}}, {})
        waiting = put(saver, {"v": 2}, first, parents=parents)
        saver.put_writes(waiting, [("__interrupt__", "May I?")], "task")
        beside = config(namespace="B:1")
        for number in range(6):
            beside = put(saver, {"v": number}, beside, parents=parents)
        saver.trim("t")
        assert values_of(saver, config(namespace="A:1")) == {"v": 2}


def test_a_namespace_that_was_let_go_is_held_again_by_a_put(url: str) -> None:
    """The call goes on after all, and its newest checkpoint stays."""
    with StepkeepSaver(url, keep_last=2) as saver:
        first = put(saver, {"v": 1}, config(namespace="A:1"), parents={"": "gone"})
        root = put(saver, {"x": 0})
        saver.trim("t")
        (let_go,) = (each for each in saver.store.get("t").branches if each.name == "ns:A:1")
        assert let_go.state is BranchState.ARCHIVED
        put(saver, {"v": 2}, first, parents={"": id_of(root)})
        for number in range(6):
            root = put(saver, {"x": number}, root)
        saver.prune(["t"])
        assert values_of(saver, config(namespace="A:1")) == {"v": 2}


def test_a_copied_thread_stands_alone(url: str) -> None:
    """Parents, namespaces, writes and delta channels come along; the source may go, and a repeat changes nothing."""
    with StepkeepSaver(url) as saver:
        graph = deltas(saver)
        for number in range(3):
            expected = graph.invoke({"items": [f"in{number}"]}, THREAD)
        ids = [id_of(each.config) for each in saver.list(config())]
        saver.copy_thread("t", "copy")
        saver.copy_thread("t", "copy")
        saver.delete_thread("t")
        assert [id_of(each.config) for each in saver.list(config("copy"))] == ids
        target: Any = {"configurable": {"thread_id": "copy"}}
        assert graph.get_state(target).values == expected
        parents = [each.parent_config and id_of(each.parent_config) for each in saver.list(config("copy"))]
        assert parents == [*ids[1:], None]
        assert saver.store.verify().findings == ()
