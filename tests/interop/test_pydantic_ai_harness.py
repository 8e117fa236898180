"""Pydantic AI's harness keeps the steps of its runs in a store."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic_ai
import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai_harness.step_persistence import (
    ContinuableSnapshot,
    InMemoryStepStore,
    RunRecord,
    StepEvent,
    StepPersistence,
    StepStore,
    ToolEffectRecord,
    continue_run,
)

import stepkeep
from stepkeep.adapters.pydantic_ai_harness import StepkeepStepStore
from tests.interop.adapter_contract import AdapterContract, program


class TestContract(AdapterContract):
    NAME = "pydantic_ai_harness"


@pytest.fixture
def steps(url: str) -> Iterator[StepkeepStepStore]:
    with StepkeepStepStore(url) as steps:
        yield steps


def said(text: str) -> ModelMessage:
    return ModelRequest(parts=[UserPromptPart(text)])


async def _step(ours: StepStore, theirs: StepStore, chance: random.Random, at: int) -> None:
    """One random operation on both stores; what they return is equal."""
    run, call = chance.choice("abc"), chance.choice("xyz")
    key = chance.choice([None, f"{at}:{call}", f"{at - at % 5}:{call}"])
    what = chance.choice(["run", "event", "snapshot", "effect", "read", "read", "list"])
    given: Any = None
    if what == "run":
        parent, conversation = chance.choice([None, "a"]), chance.choice([None, "c"])
        given = RunRecord(
            run_id=run, parent_run_id=parent, conversation_id=conversation, metadata={"at": str(at)}
        )
    elif what == "event":
        given = StepEvent(run_id=run, kind="run_started", step_index=at, idempotency_key=key)
    elif what == "snapshot":
        state: Any = chance.choice(["complete", "interrupted"])
        messages = [said(f"message {number}") for number in range(chance.randint(0, 4))]
        given = ContinuableSnapshot(
            run_id=run, step_index=at, messages=messages, state=state, idempotency_key=key
        )
    elif what == "effect":
        status: Any = chance.choice(["started", "completed", "failed"])
        given = ToolEffectRecord(tool_call_id=call, tool_name="tool", run_id=run, status=status)
    names = {
        "run": "register_run",
        "event": "append_event",
        "snapshot": "save_snapshot",
        "effect": "record_tool_effect",
    }
    if what in names:
        for store in (ours, theirs):
            await getattr(store, names[what])(given)
    elif what == "list":
        for filters in ({}, {"parent_run_id": "a"}, {"conversation_id": "c", "parent_run_id": "a"}):
            assert await ours.list_runs(**filters) == await theirs.list_runs(**filters)
    else:
        assert await _read(ours, run, call) == await _read(theirs, run, call)


async def _read(store: StepStore, run: str, call: str) -> list[Any]:
    unresolved = await store.list_unresolved_tool_effects(run_id=run)
    return [
        await store.get_run(run_id=run),
        await store.list_events(run_id=run),
        await store.latest_snapshot(run_id=run),
        await store.latest_snapshot(run_id=run, include_interrupted=True),
        await store.get_tool_effect(run_id=run, tool_call_id=call),
        sorted(unresolved, key=lambda each: each.tool_call_id),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_it_does_what_the_store_in_memory_does(seed: int, tmp_path: Path) -> None:
    """300 random operations each: the same results, also after reopening."""

    async def work() -> None:
        theirs, chance = InMemoryStepStore(), random.Random(seed)
        for part in range(3):
            async with StepkeepStepStore(f"sqlite:{tmp_path}/s.db") as ours:
                for number in range(100):
                    await _step(ours, theirs, chance, 100 * part + number)
                assert ours.store.verify().is_intact

    asyncio.run(work())


RUN = """
import asyncio, os, signal, sys
import pydantic_ai
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai_harness.step_persistence import StepPersistence
from stepkeep.adapters.pydantic_ai_harness import StepkeepStepStore

def model(messages, info):
    return ModelResponse(parts=[ToolCallPart("pay", {{}}, tool_call_id="c1")])

steps = StepkeepStepStore({url!r}, workspace={workspace!r})
agent = pydantic_ai.Agent(FunctionModel(model), capabilities=[StepPersistence(store=steps, run_id="r")])

@agent.tool_plain
def pay() -> str:
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(agent.run("pay the bill"))
"""


def test_a_run_that_was_killed_in_a_tool_tells_what_is_unknown(url: str, tmp_path: Path) -> None:
    """The call of the tool is unresolved, and the events say how far the run came."""
    done = program(RUN.format(url=url, workspace=None))
    assert done.returncode == -9, done.stderr

    async def look() -> None:
        async with StepkeepStepStore(url) as steps:
            (unresolved,) = await steps.list_unresolved_tool_effects(run_id="r")
            assert (unresolved.tool_name, unresolved.tool_call_id) == ("pay", "c1")
            events = [event.kind for event in await steps.list_events(run_id="r")]
            assert events[0] == "run_started"
            assert events[-1] == "tool_call_started"
            assert steps.store.verify().is_intact

    asyncio.run(look())


def test_files_and_messages_are_one_checkpoint(url: str, tmp_path: Path) -> None:
    """What the tools of a run wrote comes back with the messages of that moment."""
    folder = tmp_path / "work"
    folder.mkdir()
    file = folder / "notes.txt"

    def model(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        if any(isinstance(part, ToolCallPart) for message in messages for part in message.parts):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("write", {"text": "first"}, tool_call_id="c1")])

    def write(text: str) -> str:
        file.write_text(text)
        return "written"

    async def work() -> list[ModelMessage]:
        async with StepkeepStepStore(url, workspace=folder) as steps:
            persistence: Any = StepPersistence(store=steps, run_id="r")
            agent = pydantic_ai.Agent(FunctionModel(model), tools=[write], capabilities=[persistence])
            await agent.run("write")
            return await continue_run(steps, run_id="r")

    messages = asyncio.run(work())
    assert messages[-1].parts[0] == TextPart("done")
    file.write_text("destroyed")
    with stepkeep.open(url) as store:
        session = store.get("pydantic-ai-run:r")
        session.files.restore("latest", workspace=str(folder), force=True)
    assert file.read_text() == "first"


def _append(url: str, name: str) -> None:
    async def work() -> None:
        async with StepkeepStepStore(url) as steps:
            for number in range(10):
                event = StepEvent(run_id="r", kind="run_started", step_index=number, agent_name=name)
                await steps.append_event(event)

    asyncio.run(work())


def test_processes_that_append_lose_nothing(url: str) -> None:
    names = ["a", "b", "c"]
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append, args=(url, name)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    with StepkeepStepStore(url) as steps:
        events = asyncio.run(steps.list_events(run_id="r"))
    for name in names:
        assert [event.step_index for event in events if event.agent_name == name] == list(range(10))
