"""OpenAI Agents keeps its conversations and its interrupted runs in a store."""

from __future__ import annotations

import asyncio
import multiprocessing
from typing import Any

import agents
import pytest
from agents import Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

import stepkeep
from stepkeep.adapters.openai_agents import StepkeepSession
from stepkeep.errors import Conflict, InvalidInput, NotFound
from tests.interop.adapter_contract import AdapterContract, program


def said(text: str) -> Any:
    return {"role": "user", "content": text}


class TestContract(AdapterContract):
    NAME = "openai_agents"


@pytest.fixture
def session(url: str) -> Any:
    with StepkeepSession("s", url) as session:
        yield session


def test_items_come_back_as_they_were(session: StepkeepSession) -> None:
    """The latest of them up to a limit, oldest first; popping takes the newest, clearing takes all."""

    async def work() -> None:
        await session.add_items([said("1"), said("2")])
        await session.add_items([])
        await session.add_items([said("3")])
        assert await session.get_items() == [said("1"), said("2"), said("3")]
        assert await session.get_items(2) == [said("2"), said("3")]
        assert await session.get_items(0) == []
        limited = StepkeepSession("s", session.store, session_settings={"limit": 1})
        assert await limited.get_items() == [said("3")]
        assert await session.pop_item() == said("3")
        await session.clear_session()
        assert await session.get_items() == []
        assert await session.pop_item() is None

    asyncio.run(work())
    assert session.store.get("openai:s").load("latest~1").state["items"] == [said("1"), said("2")]


def test_what_cannot_be_stored_is_refused_and_leaves_nothing(session: StepkeepSession) -> None:
    with pytest.raises(InvalidInput, match=r"content"):
        asyncio.run(session.add_items([{"role": "user", "content": object()}]))
    assert list(session.store.sessions()) == []


def test_what_the_caller_changes_later_is_not_stored(session: StepkeepSession) -> None:
    async def work() -> list[Any]:
        given = said("before")
        await session.add_items([given])
        given["content"] = "changed"
        (await session.get_items())[0]["content"] = "changed as well"
        await session.add_items([said("next")])
        return await session.get_items()

    assert asyncio.run(work()) == [said("before"), said("next")]


def _add_pairs(url: str, name: str) -> None:
    async def work() -> None:
        async with StepkeepSession("s", url) as session:
            for number in range(10):
                await session.add_items([said(f"{name}-{number}"), said(f"{name}-{number}")])

    asyncio.run(work())


def test_processes_that_add_lose_nothing(url: str) -> None:
    """Everything is there, and what was added together is together."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_add_pairs, args=(url, name)) for name in "xyz"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with StepkeepSession("s", url) as session:
        texts = [item["content"] for item in asyncio.run(session.get_items())]
    assert len(texts) == 60
    assert texts[::2] == texts[1::2]


def _agent(model: ScriptedModel, done: list[int], *, asks: bool = False) -> Any:
    @function_tool(needs_approval=asks)
    def work(number: int) -> str:
        """Do a piece of work."""
        done.append(number)
        return f"did {number}"

    return agents.Agent(name="worker", model=model, tools=[work])


def _call(number: int) -> Any:
    return function_call("work", {"number": number}, call_id=f"c{number}")


PROGRAM = """
import asyncio, os
import agents
from agents import Runner, function_tool
from agents.testing import ScriptedModel
from stepkeep.adapters.openai_agents import StepkeepSession
from tests.interop.test_openai_agents import _call

agents.set_tracing_disabled(True)
first_is_saved = asyncio.Event()

@function_tool
async def work(number: int) -> str:
    if number == 2:
        await first_is_saved.wait()
        os.kill(os.getpid(), 9)
    return f"did {{number}}"

class Hooks(agents.RunHooks):
    def __init__(self, saving):
        self.saving = saving
    async def on_tool_end(self, context, agent, tool, result):
        await self.saving.on_tool_end(context, agent, tool, result)
        first_is_saved.set()

async def main():
    session = StepkeepSession("s", {url!r})
    model = ScriptedModel([[_call(1), _call(2)]])
    agent = agents.Agent(name="worker", model=model, tools=[work])
    await Runner.run(agent, "begin", session=session, hooks=Hooks(session.run_hooks()))

asyncio.run(main())
"""


def test_a_run_that_was_killed_among_its_tools_knows_what_they_did(url: str) -> None:
    """The runner saves a turn when all its tools are done; the hooks save each of them, for the next process."""
    killed = program(PROGRAM.format(url=url))
    assert killed.returncode == -9, killed.stderr

    done: list[int] = []
    model = ScriptedModel([[_call(2)], [assistant_message("all done")]])

    async def go_on() -> list[Any]:
        async with StepkeepSession("s", url) as session:
            result = await Runner.run(
                _agent(model, done), "go on", session=session, hooks=session.run_hooks()
            )
            assert result.final_output == "all done"
            return await session.get_items()

    items = asyncio.run(go_on())
    assert done == [2]
    given = model.calls[0].input
    assert [(item.get("type") or item["role"], item.get("call_id")) for item in given] == [
        ("user", None),
        ("function_call", "c1"),
        ("function_call_output", "c1"),
        ("user", None),
    ]
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    assert outputs == ["c1", "c2"]


def test_hooks_store_nothing_twice(session: StepkeepSession) -> None:
    """What the hooks saved and the runner saves afterwards is there once."""
    done: list[int] = []
    model = ScriptedModel([[_call(1), _call(2)], [_call(3)], [assistant_message("all done")]])

    async def work() -> list[Any]:
        await Runner.run(_agent(model, done), "begin", session=session, hooks=session.run_hooks())
        return await session.get_items()

    kinds = [item.get("type") or item["role"] for item in asyncio.run(work())]
    assert sorted(done) == [1, 2, 3]
    assert kinds.count("function_call") == kinds.count("function_call_output") == 3
    assert "tools" not in session.store.get("openai:s").load().state


def test_an_approval_survives_a_restart(url: str) -> None:
    """The run waits in the store. Whoever approves it, whenever, lets it go on; then it is forgotten."""
    done: list[int] = []

    async def begin() -> None:
        async with StepkeepSession("s", url) as session:
            result = await Runner.run(
                _agent(ScriptedModel([[_call(1)]]), done, asks=True), "begin", session=session
            )
            assert len(result.interruptions) == 1
            await session.save_run(result)

    async def approve() -> None:
        async with StepkeepSession("s", url) as session:
            assert session.store.get("openai:s").info.status == "paused"
            agent = _agent(ScriptedModel([[assistant_message("all done")]]), done, asks=True)
            run = await session.load_run(agent)
            assert run is not None
            run.approve(run.get_interruptions()[0])
            result = await Runner.run(agent, run, session=session)
            await session.save_run(result)
            assert result.final_output == "all done"
            assert await session.load_run(agent) is None
            assert session.store.get("openai:s").info.status == "in_progress"
            kinds = [item.get("type") or item["role"] for item in await session.get_items()]
            assert kinds == ["user", "function_call", "function_call_output", "message"]

    asyncio.run(begin())
    assert done == []
    asyncio.run(approve())
    assert done == [1]


def test_a_fork_goes_its_own_way(session: StepkeepSession) -> None:
    """It begins as the conversation was at a checkpoint, and neither changes the other."""

    async def work() -> None:
        await session.add_items([said("1")])
        await session.add_items([said("2")])
        forked = await session.fork("other", "latest~1")
        await forked.add_items([said("instead")])
        assert await forked.get_items() == [said("1"), said("instead")]
        assert await session.get_items() == [said("1"), said("2")]
        with pytest.raises(Conflict):
            await session.fork("other")
        await forked.delete()
        with pytest.raises(NotFound):
            await forked.delete()

    asyncio.run(work())


def test_a_restored_conversation_goes_on_from_there(session: StepkeepSession) -> None:
    """Going back is the store's: what came after stays on its branch."""

    async def work() -> None:
        for number in "123":
            await session.add_items([said(number)])
        session.store.get("openai:s").restore("latest~2")
        await session.add_items([said("instead")])
        assert await session.get_items() == [said("1"), said("instead")]

    asyncio.run(work())
    branches = session.store.get("openai:s").branches
    assert len(list(branches)) == 2


def test_a_damaged_head_is_gone_back_from(session: StepkeepSession, bodies: Any, url: str) -> None:
    """The error names the newest intact checkpoint; after restoring that the conversation goes on."""

    async def work(store: stepkeep.Store) -> None:
        again = StepkeepSession("s", store)
        with pytest.raises(stepkeep.Corrupt) as told:
            await again.get_items()
        intact = str(told.value).split("`stepkeep restore openai:s ")[1].split("`")[0]
        store.get("openai:s").restore(intact)
        await again.add_items([said("instead")])
        assert await again.get_items() == [said("1"), said("instead")]

    asyncio.run(session.add_items([said("1")]))
    asyncio.run(session.add_items([said("2")]))
    bodies.damage(session.store.get("openai:s").header("latest").id, "state")
    with stepkeep.open(url) as store:
        asyncio.run(work(store))
