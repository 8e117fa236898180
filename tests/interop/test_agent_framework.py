"""Microsoft Agent Framework keeps the checkpoints of its workflows in a store."""

from __future__ import annotations

import asyncio
import datetime
import multiprocessing
from dataclasses import dataclass
from typing import Any

import pytest
from agent_framework import WorkflowCheckpoint, WorkflowCheckpointException

from stepkeep.adapters.agent_framework import StepkeepCheckpointStorage
from stepkeep.errors import Corrupt
from tests.interop.adapter_contract import AdapterContract
from tests.interop.conftest import Bodies


@dataclass
class Own:
    """A class of the application."""

    number: int


def checkpoint(number: int, **more: Any) -> WorkflowCheckpoint:
    fields: dict[str, Any] = {"workflow_name": "w", "graph_signature_hash": "g", "state": {"n": number}}
    return WorkflowCheckpoint(**fields | {"checkpoint_id": f"c{number}", "iteration_count": number} | more)


class TestContract(AdapterContract):
    NAME = "agent_framework"


@pytest.fixture
def storage(url: str) -> Any:
    with StepkeepCheckpointStorage(url) as storage:
        yield storage


def test_checkpoints_come_back_equal(storage: StepkeepCheckpointStorage) -> None:
    """By id, as the latest, and as a list in the order in which they were saved."""
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    given = [checkpoint(1), checkpoint(2, state={"when": moment, "pair": (1, 2)}, metadata={"a": [1]})]

    async def work() -> None:
        assert await storage.get_latest(workflow_name="w") is None
        assert await storage.list_checkpoints(workflow_name="w") == []
        assert [await storage.save(each) for each in given] == ["c1", "c2"]
        assert await storage.list_checkpoints(workflow_name="w") == given
        assert await storage.list_checkpoint_ids(workflow_name="w") == ["c1", "c2"]
        assert await storage.load("c1") == given[0]
        assert await storage.get_latest(workflow_name="w") == given[1]
        assert await storage.list_checkpoint_ids(workflow_name="other") == []
        with pytest.raises(WorkflowCheckpointException, match="nope"):
            await storage.load("nope")

    asyncio.run(work())


def test_the_latest_is_the_one_saved_last(storage: StepkeepCheckpointStorage) -> None:
    """A machine whose clock is an hour behind does not hide its work."""
    early = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)).isoformat()

    async def work() -> None:
        await storage.save(checkpoint(1))
        await storage.save(checkpoint(2, timestamp=early))
        latest = await storage.get_latest(workflow_name="w")
        assert latest is not None
        assert latest.checkpoint_id == "c2"

    asyncio.run(work())


def test_what_the_workflow_changes_later_is_not_stored(storage: StepkeepCheckpointStorage) -> None:
    async def work() -> None:
        given = checkpoint(1, state={"list": [1]})
        saving = asyncio.ensure_future(storage.save(given))
        await asyncio.sleep(0)
        given.state["list"].append(2)
        await saving
        assert (await storage.load("c1")).state == {"list": [1]}

    asyncio.run(work())


def test_only_allowed_types_are_unpickled(storage: StepkeepCheckpointStorage) -> None:
    """A checkpoint with another is refused when it is saved, so that it is not found out when it is needed."""
    given = checkpoint(1, state={"own": Own(7)})
    name = f"{Own.__module__}:{Own.__qualname__}"
    allowing = StepkeepCheckpointStorage(storage.store, allowed_checkpoint_types=[name])

    async def work() -> None:
        with pytest.raises(WorkflowCheckpointException, match="blocked"):
            await storage.save(given)
        assert list(storage.store.sessions()) == []
        await allowing.save(given)
        assert await allowing.load("c1") == given
        with pytest.raises(WorkflowCheckpointException, match="blocked"):
            await storage.load("c1")

    asyncio.run(work())


def test_a_checkpoint_of_the_same_id_is_replaced(storage: StepkeepCheckpointStorage) -> None:
    async def work() -> None:
        await storage.save(checkpoint(1))
        await storage.save(checkpoint(2))
        await storage.save(checkpoint(1, state={"n": "new"}))
        assert (await storage.load("c1")).state == {"n": "new"}
        assert await storage.list_checkpoint_ids(workflow_name="w") == ["c2", "c1"]

    asyncio.run(work())


def test_deleting_removes_one_and_keeps_the_others(storage: StepkeepCheckpointStorage) -> None:
    async def work() -> None:
        for number in (1, 2, 3):
            await storage.save(checkpoint(number, state={"list": ["x" * 2000] * number}))
        assert await storage.delete("c2")
        assert not await storage.delete("c2")
        assert await storage.list_checkpoint_ids(workflow_name="w") == ["c1", "c3"]
        assert len((await storage.load("c3")).state["list"]) == 3
        storage.store.get("agent-framework:w").clear()
        await storage.save(checkpoint(4))
        assert await storage.list_checkpoint_ids(workflow_name="w") == ["c4"]

    asyncio.run(work())


def test_a_damaged_checkpoint_is_an_error(
    storage: StepkeepCheckpointStorage, url: str, bodies: Bodies
) -> None:
    """An older one can still be loaded by its id."""

    async def write() -> None:
        await storage.save(checkpoint(1))
        await storage.save(checkpoint(2))

    asyncio.run(write())
    bodies.damage(storage.store.get("agent-framework:w").header("latest").id, "state")

    async def read() -> None:
        async with StepkeepCheckpointStorage(url) as again:
            with pytest.raises(Corrupt):
                await again.get_latest(workflow_name="w")
            with pytest.raises(Corrupt):
                await again.load("c2")
            assert (await again.load("c1")).state == {"n": 1}

    asyncio.run(read())


def _save_some(url: str, name: str) -> None:
    async def work() -> None:
        async with StepkeepCheckpointStorage(url) as storage:
            for number in range(10):
                await storage.save(checkpoint(number, checkpoint_id=f"{name}-{number}"))

    asyncio.run(work())


def test_processes_that_save_lose_nothing(url: str) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_save_some, args=(url, name)) for name in "xyz"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with StepkeepCheckpointStorage(url) as storage:
        ids = asyncio.run(storage.list_checkpoint_ids(workflow_name="w"))
    assert sorted(ids) == sorted(f"{name}-{number}" for name in "xyz" for number in range(10))
    for name in "xyz":
        own = [id for id in ids if id.startswith(name)]
        assert own == [f"{name}-{number}" for number in range(10)]
