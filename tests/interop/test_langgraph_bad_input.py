"""Bad input: as LangGraph's contract says, or a clear error."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

import stepkeep
from stepkeep.adapters.langgraph import StepkeepSaver
from stepkeep.errors import Conflict, InvalidInput
from tests.interop.threads import config, id_of, put, values_of

NAMES = [
    "../x",
    "child:1|y",
    "n" * 10_000,
    "with\0nul",
    "",
    "latest",
    "main",
    "3 days ago",
    "branch:x",
    "\ud800",
    "thread#x",
    "ns#x",
    "%s'; DROP TABLE sessions; --",
    " ",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:20]))
def test_any_text_is_a_thread_id(saver: StepkeepSaver, name: str) -> None:
    """It comes back as it was given, and belongs to no other thread."""
    put(saver, {"x": "other"}, config("other"))
    at = put(saver, {"x": name.encode("utf-8", "backslashreplace").decode()}, config(name))

    assert at["configurable"]["thread_id"] == name
    assert values_of(saver, config(name)) == values_of(saver, at)
    assert {each.config["configurable"]["thread_id"] for each in saver.list(None)} == {name, "other"}
    assert [id_of(each.config) for each in saver.list(config(name))] == [id_of(at)]
    saver.delete_thread(name)
    assert saver.get_tuple(config(name)) is None
    assert values_of(saver, config("other")) == {"x": "other"}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:20]))
def test_any_text_is_a_namespace(saver: StepkeepSaver, name: str) -> None:
    """It comes back as it was given, and belongs to no other namespace of its thread."""
    root = put(saver, {"x": "root"})
    first = put(saver, {"x": 1}, config(namespace=name)) if name else root
    at = put(saver, {"x": 2}, first)
    saver.put_writes(at, [("x", 3)], "task")

    assert at["configurable"]["checkpoint_ns"] == name
    found = saver.get_tuple(config(namespace=name))
    assert found is not None
    assert (found.config, found.parent_config) == (at, first)
    assert found.pending_writes == [("task", "x", 3)]
    assert [each.config for each in saver.list(config(namespace=name))] == [at, first]
    assert values_of(saver, root) == {"x": "root"}


def test_a_number_is_a_thread_id(saver: StepkeepSaver) -> None:
    """As in LangGraph's own SQL savers, it is the same as its text."""
    put(saver, {"x": 1}, config(7))
    assert values_of(saver, config("7")) == {"x": 1}


@pytest.mark.parametrize("bad", [{}, {"configurable": {}}, {"configurable": {"thread_id": None}}])
def test_a_config_without_thread_id_is_refused(saver: StepkeepSaver, bad: Any) -> None:
    """With the same error everywhere."""
    calls = [
        lambda: saver.get_tuple(bad),
        lambda: list(saver.list(bad)),
        lambda: put(saver, {}, bad or {"configurable": {}}),
        lambda: saver.put_writes(bad, [("x", 1)], "task"),
    ]
    for call in calls:
        with pytest.raises(InvalidInput) as refused:
            call()
        assert refused.value.code == "thread_id_missing"


@pytest.mark.parametrize(
    "bad",
    [config(["t"]), config({"a": 1}), config(True), config("t", namespace=3.5)],
    ids=repr,  # type: ignore[arg-type]
)
def test_names_that_are_no_text_are_refused(saver: StepkeepSaver, bad: Any) -> None:
    with pytest.raises(InvalidInput):
        saver.get_tuple(bad)


def test_writes_without_a_checkpoint_are_refused(saver: StepkeepSaver) -> None:
    put(saver, {})
    with pytest.raises(InvalidInput) as refused:
        saver.put_writes(config(), [("x", 1)], "task")
    assert refused.value.code == "checkpoint_id_missing"


@pytest.mark.parametrize(
    "unknown",
    [
        {"missing": 1},
        {"step": {"$gt": 0}},
        {"step": [1]},
        {"a'] OR 1=1 --": "x"},
        {"\0": 1},
        {"": ""},
        {"step": "1"},
        {5: 1},
    ],
    ids=repr,
)
def test_filters_that_match_nothing_match_nothing(saver: StepkeepSaver, unknown: Any) -> None:
    """Unknown keys, operators and hostile texts are compared for equality, and that is all."""
    put(saver, {"x": 1})
    assert list(saver.list(config(), filter=unknown)) == []
    assert len(list(saver.list(config(), filter={"step": 1}))) == 1


def test_limits_and_cursors(saver: StepkeepSaver) -> None:
    """`limit` 0 gives nothing; a cursor that is not stored has its place among the ids."""
    at = config()
    for number in range(3):
        at = put(saver, {"x": number}, at)
    assert list(saver.list(config(), limit=0)) == []
    assert len(list(saver.list(config(), limit=2))) == 2
    assert len(list(saver.list(None, before=config(checkpoint="~")))) == 3
    assert list(saver.list(config(), before=config(checkpoint="!"))) == []


@pytest.mark.full
def test_a_huge_value_is_stored(saver: StepkeepSaver) -> None:
    """Eight million characters in one channel, and a list of a hundred thousand."""
    values = {"text": "0123456789abcdef" * 500_000, "list": list(range(100_000))}
    put(saver, values)
    assert values_of(saver) == values


def test_a_value_beyond_the_limit_is_refused(tmp_path: Any) -> None:
    with stepkeep.open(f"sqlite:{tmp_path}/small.db", max_state_bytes=1000) as store:
        with pytest.raises(InvalidInput) as refused:
            put(StepkeepSaver(store), {"text": "x" * 2000})
        assert refused.value.code == "state_too_large"


@pytest.mark.parametrize("make", [lambda: _nested(10_000), lambda: _endless()], ids=["deep", "cycle"])
def test_values_without_end_are_refused(saver: StepkeepSaver, make: Any) -> None:
    with pytest.raises(InvalidInput):
        put(saver, {"x": make()})


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def _endless() -> list[Any]:
    value: list[Any] = []
    value += [value, value]
    return value


def test_a_session_that_is_no_thread_is_left_alone(saver: StepkeepSaver) -> None:
    """A thread id that is the key of someone else's session is refused, whatever is asked."""
    saver.store.session("t").save({"mine": True})
    for call in (
        lambda: put(saver, {}),
        lambda: saver.get_tuple(config()),
        lambda: saver.delete_thread("t"),
        lambda: saver.prune(["t"]),
    ):
        with pytest.raises(Conflict) as refused:
            call()
        assert refused.value.code == "not_a_thread"
    assert list(saver.list(None)) == []
    assert saver.store.get("t").latest().state == {"mine": True}  # type: ignore[union-attr]


def test_a_checkpoint_of_someone_else_hides_no_thread(saver: StepkeepSaver) -> None:
    """A list of all threads leaves it out; the thread itself says what is wrong, once it is its newest."""
    put(saver, {"x": 1}, config("other"))
    at = put(saver, {"x": 2})
    session = saver.store.get("t")
    session.branches.fork(name="beside")
    session.save({"mine": True})
    assert [each.config for each in saver.list(config())] == [at]
    assert [each.config for each in saver.list({"configurable": {"thread_id": "t"}})] == [at]
    session.branches.switch("main")
    session.save({"mine": True})
    assert [values_of(saver, each.config) for each in saver.list(None)] == [{"x": 2}, {"x": 1}]
    assert len(list(saver.list(None, filter={"step": 1}))) == 2
    for call in (lambda: saver.get_tuple(config()), lambda: list(saver.list(config()))):
        with pytest.raises(Conflict) as refused:
            call()
        assert refused.value.code == "not_a_thread"


@pytest.mark.parametrize(
    "rules", [{"keep_last": 0}, {"keep_last": "x"}, {"max_age": "soon"}, {"max_bytes": -1}], ids=repr
)
def test_rules_that_make_no_sense_are_refused(tmp_path: Any, rules: Any) -> None:
    with pytest.raises(InvalidInput):
        StepkeepSaver(f"sqlite:{tmp_path}/x.db", **rules)
    with pytest.raises(InvalidInput):
        StepkeepSaver(f"sqlite:{tmp_path}/x.db").prune([], strategy="some")


def test_the_saver_is_one_of_langgraphs(saver: StepkeepSaver) -> None:
    assert isinstance(saver, BaseCheckpointSaver)
