"""Threads are sessions like any other: the commands show them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage

import stepkeep
from stepkeep.adapters.langgraph import StepkeepSaver
from tests.interop.graphs import counter, workflow
from tests.interop.threads import config, id_of, put
from tests.surfaces.test_cli import Cli

THREAD: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def store(cli: Cli) -> str:
    return cli.url


@pytest.fixture
def run(cli: Cli) -> Callable[..., str]:
    def call(*arguments: str) -> str:
        done = cli.here(*arguments)
        assert done.code == 0, done.err
        return str(done.out)

    return call


def test_the_commands_show_threads(store: str, run: Callable[..., str]) -> None:
    """list, history, show, diff and timeline, with the channel values to be read."""
    with StepkeepSaver(store) as saver:
        counter(saver).invoke({"log": ["begin"]}, THREAD)
        put(saver, {"messages": [AIMessage("hello there", id="1")]}, config("chat"))

    assert {"t", "chat"} <= {each["key"] for each in json.loads(run("list", "--json"))}
    assert "step 3" in run("history", "t")
    assert "loop: count, log" in run("list", "t")
    assert "hello there" in run("show", "chat")
    difference = run("diff", "t", "#3", "#4")
    assert "count" in difference
    assert "channel_versions" not in difference
    assert "loop: count, log" in run("timeline", "t")
    run("verify")


def test_a_thread_with_subgraphs_has_branches(store: str, run: Callable[..., str]) -> None:
    """Each namespace is a branch that is named after it."""
    with StepkeepSaver(store) as saver:
        workflow(saver).invoke({"log": []}, THREAD)
    assert "ns:inner:" in run("branch", "list", "t")
    assert "ns:inner:" in run("timeline", "t")


def test_a_listed_tuple_reads_its_values_when_asked(store: str) -> None:
    """It is a tuple of five in every way, and equals what get_tuple gives."""
    with StepkeepSaver(store) as saver:
        at = put(saver, {"x": 1})
        saver.put_writes(at, [("x", 2)], "task")
        whole = saver.get_tuple(at)
        (listed,) = saver.list(config())
        assert listed == whole
        assert list(listed) == list(whole)  # type: ignore[arg-type]
        assert listed[1] == listed.checkpoint
        assert len(listed) == 5
        one, two, *_ = listed
        assert (one, two["channel_values"]) == (at, {"x": 1})
        assert listed._replace(pending_writes=None).checkpoint == listed.checkpoint
        (later,) = saver.list(config())
        saver.delete_thread("t")
        with pytest.raises(stepkeep.NotFound):
            later.checkpoint  # noqa: B018


def test_a_history_that_is_listed_again_is_the_same(store: str) -> None:
    """Values are each caller's own, what others put meanwhile comes first, and what they delete is gone."""
    with StepkeepSaver(store) as saver, StepkeepSaver(store) as other:
        at = config()
        for n in range(3):
            at = put(saver, {"n": n, "said": ["x" * 1000] * n}, at)
        for listed in saver.list(config()):
            listed.checkpoint["channel_values"]["said"].append("changed by the caller")
        again = [each.checkpoint["channel_values"] for each in saver.list(config())]
        assert again == [{"n": n, "said": ["x" * 1000] * n} for n in (2, 1, 0)]
        put(other, {"n": 3}, at)
        assert [each.checkpoint["channel_values"]["n"] for each in saver.list(config())] == [3, 2, 1, 0]
        other.delete_thread("t")
        assert list(saver.list(config())) == []


def test_all_threads_are_listed(store: str) -> None:
    """Without a config, the newest first, and only what LangGraph saved."""
    with StepkeepSaver(store) as saver:
        first = put(saver, {}, config("a"))
        second = put(saver, {}, config("b", "inner"))
        saver.store.session("other").save({"x": 1})
        assert [each.config for each in saver.list(None)] == [second, first]
        found = asyncio.run(_collect(saver))
        assert [id_of(each.config) for each in found] == [id_of(second), id_of(first)]


async def _collect(saver: StepkeepSaver) -> list[Any]:
    return [each async for each in saver.alist(None)]


def test_a_saver_closes_only_the_store_that_it_opened(store: str) -> None:
    with stepkeep.open(store) as opened:
        with StepkeepSaver(opened) as saver:
            put(saver, {"x": 1})
        assert opened.get("t").latest() is not None
