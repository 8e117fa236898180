"""Real graphs behave the same with StepkeepSaver as with LangGraph's saver in memory, invoked and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.types import Command

from stepkeep.adapters.langgraph import StepkeepSaver
from tests.interop.graphs import Graph, carrier, counter, deltas, failing, seen, workflow
from tests.interop.test_langgraph_values import Rot

WAYS = [
    pytest.param(
        durability, is_async, marks=() if is_default else pytest.mark.slow, id=f"{durability} {kind}"
    )
    for durability, default in (("sync", False), ("async", True), ("exit", False))
    for is_async, kind in ((False, "invoked"), (True, "awaited"))
    for is_default in [is_async is default]
]
"""When LangGraph saves, and how it is called: each once, and every combination with `--slow`."""

Saver = BaseCheckpointSaver[Any]


class Drive:
    """One graph on one thread, invoked or awaited."""

    def __init__(self, graph: Graph, *, is_async: bool, durability: Any) -> None:
        self.graph = graph
        self.config: Any = {"configurable": {"thread_id": "t"}}
        self._is_async = is_async
        self._durability = durability
        self.names: dict[str, str] = {}

    async def invoke(self, given: Any, config: Any = None) -> Any:
        at, how = config or self.config, self._durability
        if self._is_async:
            found = await self.graph.ainvoke(given, at, durability=how)
        else:
            found = await asyncio.to_thread(self.graph.invoke, given, at, durability=how)
        # The id of an interrupt depends on that of its checkpoint.
        return {**found, "__interrupt__": [each.value for each in found.get("__interrupt__", ())]}

    async def update(self, config: Any, values: Any, **options: Any) -> Any:
        if self._is_async:
            return await self.graph.aupdate_state(config, values, **options)
        return self.graph.update_state(config, values, **options)

    async def history(self) -> list[Any]:
        if self._is_async:
            return [each async for each in self.graph.aget_state_history(self.config)]
        return list(self.graph.get_state_history(self.config))

    async def state(self, **options: Any) -> Any:
        if self._is_async:
            return await self.graph.aget_state(self.config, **options)
        return self.graph.get_state(self.config, **options)

    async def picture(self) -> list[Any]:
        """All that can be seen of the thread, oldest first."""
        return [seen(each, self.names) for each in reversed(await self.history())]


async def interrupted(saver: Saver, **how: Any) -> list[Any]:
    """Run into the interrupt of a subgraph, look around, resume, and go a second round."""
    drive = Drive(workflow(saver), **how)
    found: list[Any] = [await drive.invoke({"log": ["start"]})]
    state = await drive.state(subgraphs=True)
    (task,) = state.tasks
    found.append((task.name, task.state.values, task.state.next, [each.value for each in task.interrupts]))
    found.append(await drive.invoke(Command(resume="yes")))
    found.append(await drive.invoke({"log": ["again"]}))
    found.append(await drive.invoke(Command(resume="no")))
    return [*found, await drive.picture()]


async def time_travel(saver: Saver, **how: Any) -> list[Any]:
    """Replay from an old checkpoint, change an old state, fork by copying, and go on from each."""
    drive = Drive(counter(saver), **how)
    found = [await drive.invoke({"log": ["one"]}), await drive.invoke({"log": ["two"], "count": 3})]
    history = await drive.history()
    old = history[len(history) // 2].config
    found.append(await drive.invoke(None, old))
    changed = await drive.update(old, {"log": ["changed"], "count": 10})
    found.append(await drive.invoke(None, changed))
    copied = await drive.update(old, None, as_node="__copy__")
    found.append(await drive.invoke(None, copied))
    found.append(await drive.update(drive.config, {"log": ["last"]}, as_node="step") and None)
    return [*found, await drive.picture()]


async def delta_channels(saver: Saver, **how: Any) -> list[Any]:
    """A channel stored as its changes, over snapshots, an old checkpoint and a changed state."""
    drive = Drive(deltas(saver), **how)
    found = [await drive.invoke({"items": [f"in{number}"]}) for number in range(5)]
    history = await drive.history()
    old = history[len(history) // 2].config
    found.append(await drive.invoke({"items": ["forked"]}, old))
    found.append(await drive.update(drive.config, {"items": ["by hand"]}, as_node="b") and None)
    found.append(await drive.invoke({"items": ["after"]}))
    return [*found, await drive.picture()]


GRAPHS = {interrupted: workflow, time_travel: counter, delta_channels: deltas}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("durability", "is_async"), WAYS)
@pytest.mark.parametrize("program", [interrupted, time_travel, delta_channels])
def test_a_graph_behaves_as_in_memory(
    url: str, program: Callable[..., Any], durability: str, is_async: bool
) -> None:
    """The same results, the same history, the same tasks and interrupts at every checkpoint."""
    how = {"durability": durability, "is_async": is_async}
    expected = asyncio.run(program(InMemorySaver(), **how))
    with StepkeepSaver(url) as saver:
        assert asyncio.run(program(saver, **how)) == expected
    with StepkeepSaver(url) as saver:
        again = Drive(
            {interrupted: workflow, time_travel: counter, delta_channels: deltas}[program](saver), **how
        )  # type: ignore[index]
        assert asyncio.run(again.picture()) == expected[-1]


@pytest.mark.parametrize(("durability", "is_async"), WAYS)
@pytest.mark.parametrize("first", [{"update": {"log": ["u"]}}, {"resume": "x"}, {"goto": "step"}], ids=repr)
def test_a_command_may_be_the_first_input_of_a_thread(
    saver: StepkeepSaver, first: dict[str, Any], durability: Any, is_async: bool
) -> None:
    async def story(drive: Drive) -> list[Any]:
        return [await drive.invoke(Command(**first)), *await drive.picture()]

    results = [
        asyncio.run(story(Drive(counter(each), is_async=is_async, durability=durability)))
        for each in (InMemorySaver(), saver)
    ]
    assert results[0] == results[1]


@pytest.mark.parametrize("carried", [("a", "b"), {"pair": (1, 2)}, float("nan"), {1, 2}], ids=repr)
def test_a_graph_may_send_and_ask_with_any_plain_value(saver: StepkeepSaver, carried: Any) -> None:
    """What a node asks and what it is sent are the values themselves, also when the graph goes on later."""
    thread: Any = {"configurable": {"thread_id": "t"}}
    graph = carrier(saver, carried)
    asked = graph.invoke({"log": []}, thread)["__interrupt__"][0].value
    assert repr(asked) == repr(carried)
    assert graph.invoke(Command(resume="yes"), thread)["log"] == [f"{carried!r}: yes"]


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_graph_that_encrypts_can_ask_and_fail(url: str, is_encrypted: bool) -> None:
    """A person can answer, and the error of a node is seen afterwards, as with the saver in memory."""
    serde = EncryptedSerializer(Rot()) if is_encrypted else None
    thread: Any = {"configurable": {"thread_id": "t"}}
    with StepkeepSaver(url, serde=serde) as saver:
        workflow(saver).invoke({"log": []}, thread)
    with StepkeepSaver(url, serde=serde) as saver:
        graph = workflow(saver)
        (task,) = graph.get_state(thread).tasks
        assert task.interrupts[0].value["question"] == "go on?"
        assert graph.invoke(Command(resume="yes"), thread)["answer"] == "yes"
        broken, other = failing(saver), {"configurable": {"thread_id": "broken"}}
        with pytest.raises(ValueError, match="no luck"):
            broken.invoke({"log": []}, other)
        assert [each.error for each in broken.get_state(other).tasks] == ["ValueError('no luck')"]
