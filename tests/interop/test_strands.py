"""Strands Agents keeps its snapshots in a store."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from typing import Any

import pytest
from strands.types.exceptions import StorageError

import stepkeep
from stepkeep.adapters.strands import StepkeepStorage
from tests.interop.adapter_contract import AdapterContract
from tests.interop.conftest import Bodies
from tests.interop.offline.strands import Agent

FOLDER = "session/s/scopes/agent/a/snapshots"
LATEST = f"{FOLDER}/snapshot_latest.json"
SESSION = "strands:session/s/scopes/agent/a"


def immutable(id: str) -> str:
    return f"{FOLDER}/immutable_history/snapshot_{id}.json"


def snapshot(**data: Any) -> bytes:
    return json.dumps({"data": data}, ensure_ascii=False).encode()


class TestContract(AdapterContract):
    NAME = "strands"


@pytest.fixture
def storage(url: str) -> Any:
    with StepkeepStorage(url) as storage:
        yield storage


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff",
        b"{}",
        b'{"a":1}',
        b'{"a": 1, "a": 2}',
        b'{"a": NaN, "b": 1.0, "c": 1e400}',
        b'{"a": 1e+22, "b": [1e-07, 12345678901234567890123]}',
        '{"a": "é \\u0000 \U0001f600"}'.encode(),
        b'{"a": "\\ud800"}',
        b"[" * 5000,
    ],
)
def test_bytes_come_back_as_they_were(storage: StepkeepStorage, data: bytes) -> None:
    """Whether they are JSON, nearly so, or not at all; under every kind of key."""

    async def work() -> None:
        for key in (LATEST, immutable("1"), "notes/x"):
            await storage.write(key, data)
            assert await storage.read(key) == data

    asyncio.run(work())


@pytest.mark.parametrize("value", [1, 1e22, "é", [], float("nan")], ids=repr)
def test_what_strands_writes_can_be_read(storage: StepkeepStorage, value: Any) -> None:
    """The state of a snapshot is what its JSON says, however its numbers are written."""
    asyncio.run(storage.write(LATEST, snapshot(value=value)))
    assert repr(storage.store.get(SESSION).load().state) == repr({"data": {"value": value}})


def test_snapshots_of_an_agent_are_one_history(storage: StepkeepStorage) -> None:
    """Each time that the latest is overwritten, and each that is immutable; their state can be read."""

    async def work() -> None:
        for number in (1, 2, 3):
            data = snapshot(messages=[f"m{n}" for n in range(number)])
            await storage.write(immutable(str(number)), data)
            await storage.write(LATEST, data)
        assert await storage.list("") == [*map(immutable, "123"), LATEST]
        assert await storage.list(f"{FOLDER}/immutable_history/") == [*map(immutable, "123")]
        assert await storage.list("session/other") == []
        await storage.write(immutable("4"), snapshot(messages=[]))
        assert await storage.read(LATEST) == snapshot(messages=["m0", "m1", "m2"])
        assert await storage.read(immutable("2")) == snapshot(messages=["m0", "m1"])
        assert await storage.read(immutable("nope")) is None

    asyncio.run(work())
    session = storage.store.get(SESSION)
    assert len(list(session.history())) == 7
    assert session.load("tag:latest").state == {"data": {"messages": ["m0", "m1", "m2"]}}


def test_a_snapshot_of_the_same_id_is_replaced(storage: StepkeepStorage) -> None:
    """On whichever branch it is: its key gives the newest, is listed once, and is gone once it is deleted."""

    async def write(n: int) -> None:
        await storage.write(immutable("1"), snapshot(n=n))
        await storage.write(LATEST, snapshot(n=n))
        assert await storage.read(immutable("1")) == snapshot(n=n)
        assert await storage.list("session/") == [immutable("1"), LATEST]

    asyncio.run(write(1))
    asyncio.run(write(2))
    session = storage.store.get(SESSION)
    session.restore("latest~1")
    asyncio.run(write(3))
    asyncio.run(storage.delete(immutable("1")))
    assert asyncio.run(storage.list("session/")) == [LATEST]


def test_deleting_everything_leaves_nothing(storage: StepkeepStorage) -> None:
    """A deleted latest is gone while others are there; with the last one the whole history is."""

    async def work() -> None:
        await storage.write(immutable("1"), snapshot(n=1))
        await storage.write(LATEST, snapshot(n=1))
        await storage.write("notes/x", b"x")
        await storage.delete(LATEST)
        assert await storage.read(LATEST) is None
        assert await storage.list("session/") == [immutable("1")]
        await storage.delete("nope")
        await storage.delete(immutable("1"))
        await storage.delete("notes/x")
        assert await storage.list("") == []

    asyncio.run(work())
    assert list(storage.store.sessions()) == []


def test_a_session_is_deleted_by_its_manager(store: stepkeep.Store) -> None:
    async def work() -> None:
        agent = Agent(store)
        await agent.turn("c", "one")
        await agent.sessions("c").delete_session()
        assert await agent.turn("c", "anew") == ["anew"]

    asyncio.run(work())


@pytest.fixture
def store(url: str) -> Any:
    with stepkeep.open(url) as store:
        yield store


def test_a_restored_agent_goes_on_from_there(store: stepkeep.Store) -> None:
    """Going back is the store's: what came after stays on its branch."""

    async def work() -> None:
        agent = Agent(store)
        for prompt in ("one", "two", "three"):
            await agent.turn("c", prompt)
        store.get(agent.key("c")).restore("latest~2")
        assert await agent.turn("c", "instead") == ["one", "instead"]

    asyncio.run(work())


def test_a_damaged_snapshot_is_an_error(storage: StepkeepStorage, url: str, bodies: Bodies) -> None:
    async def write() -> None:
        await storage.write(immutable("1"), snapshot(n=1))
        await storage.write(LATEST, snapshot(n=2))

    asyncio.run(write())
    bodies.damage(storage.store.get(SESSION).header("latest").id, "state")

    async def read() -> None:
        async with StepkeepStorage(url) as again:
            with pytest.raises(StorageError):
                await again.read(LATEST)
            assert await again.read(immutable("1")) == snapshot(n=1)
            assert await again.list("") == [immutable("1"), LATEST]

    asyncio.run(read())


def _write_some(url: str, name: str) -> None:
    async def work() -> None:
        async with StepkeepStorage(url) as storage:
            for number in range(8):
                await storage.write(immutable(f"{name}{number}"), snapshot(n=number))
                await storage.write(LATEST, snapshot(by=name, n=number))

    asyncio.run(work())


def test_processes_that_write_lose_nothing(url: str) -> None:
    """All that is immutable is there, and every latest is in the history."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_some, args=(url, name)) for name in "xyz"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with StepkeepStorage(url) as storage:
        keys = asyncio.run(storage.list(""))
        history = list(storage.store.get(SESSION).history(tag="latest"))
    assert keys == sorted([LATEST, *(immutable(f"{name}{n}") for name in "xyz" for n in range(8))])
    assert len(history) == 24
