"""Google's ADK keeps its sessions in a store."""

from __future__ import annotations

import asyncio
import datetime
import multiprocessing
from typing import Any

import pytest
from google.adk.errors import InvocationNotFoundError, StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions

from stepkeep.adapters.adk import StepkeepSessionService
from tests.interop.adapter_contract import AdapterContract

ME: Any = {"app_name": "app", "user_id": "ada"}
HERE: Any = ME | {"session_id": "s"}


def event(invocation: str, **delta: Any) -> Event:
    return Event(author="agent", invocation_id=invocation, actions=EventActions(state_delta=delta))


class TestContract(AdapterContract):
    NAME = "adk"


@pytest.fixture
def service(url: str) -> Any:
    with StepkeepSessionService(url) as service:
        yield service


def test_state_belongs_to_session_user_and_app(service: StepkeepSessionService) -> None:
    """What begins with `app:` and `user:` is seen in other sessions, in whichever process; `temp:` is kept nowhere."""

    async def work() -> None:
        session = await service.create_session(**HERE, state={"a": 1, "user:b": 2, "app:c": 3})
        await service.append_event(session, event("i", **{"d": 4, "user:e": 5, "app:f": 6, "temp:g": 7}))
        assert session.state["temp:g"] == 7
        again = await service.get_session(**HERE)
        assert again is not None
        own, users, apps = {"a": 1, "d": 4}, {"user:b": 2, "user:e": 5}, {"app:c": 3, "app:f": 6}
        assert again.state == own | users | apps
        assert (await service.create_session(**ME, session_id="other")).state == users | apps
        bob = await service.create_session(app_name="app", user_id="bob")
        assert bob.state == apps
        assert await service.get_user_state(**ME) == {"b": 2, "e": 5}
        assert await service.get_user_state(app_name="x", user_id="y") == {}

    asyncio.run(work())
    assert {info.key.partition(":")[0] for info in service.store.sessions()} == {"adk", "adk-app", "adk-user"}


def test_values_of_state_come_back_as_they_were(service: StepkeepSessionService) -> None:
    """Types that JSON lacks, too."""
    values = {"when": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "pair": (1, 2), "raw": b"\x00"}

    async def work() -> None:
        await service.create_session(**HERE, state=dict(values))
        again = await service.get_session(**HERE)
        assert again is not None
        assert again.state == values

    asyncio.run(work())


def test_a_stale_session_is_told_and_nothing_is_lost(service: StepkeepSessionService) -> None:
    """Of two who read the same, one appends; the other reads again first. No clock plays a part."""

    async def work() -> None:
        first = await service.create_session(**HERE)
        second = await service.get_session(**HERE)
        assert second is not None
        await service.append_event(first, event("1", n=1, **{"user:x": 1}))
        stale = event("2", n=2, **{"user:x": 2})
        stale.timestamp += 3600
        with pytest.raises(StaleSessionError):
            await service.append_event(second, stale)
        assert (await service.get_user_state(**ME)) == {"x": 1}
        again = await service.get_session(**HERE)
        assert again is not None
        await service.append_event(again, stale)
        await service.append_event(again, event("3"))
        newest = await service.get_session(**HERE)
        assert newest is not None
        assert [each.invocation_id for each in newest.events] == ["1", "2", "3"]

    asyncio.run(work())


def test_an_event_that_is_appended_again_is_stored_once(service: StepkeepSessionService) -> None:
    async def work() -> None:
        session = await service.create_session(**HERE)
        given = event("1", n=1)
        await service.append_event(session, given)
        again = await service.get_session(**HERE)
        assert again is not None
        await service.append_event(again, given.model_copy(deep=True))
        newest = await service.get_session(**HERE)
        assert newest is not None
        assert len(newest.events) == 1

    asyncio.run(work())


def test_a_deleted_session_is_gone(service: StepkeepSessionService) -> None:
    async def work() -> None:
        session = await service.create_session(**HERE)
        await service.delete_session(**HERE)
        await service.delete_session(**HERE)
        assert await service.get_session(**HERE) is None
        with pytest.raises(SessionNotFoundError):
            await service.append_event(session, event("1", **{"user:x": 1}))
        assert await service.get_user_state(**ME) == {}
        assert (await service.list_sessions(app_name="app")).sessions == []

    asyncio.run(work())


def test_rewinding_brings_everything_back_as_it_was(service: StepkeepSessionService) -> None:
    """Also what the session began with, which ADK's own rewind sets to None."""

    async def work() -> None:
        session = await service.create_session(**HERE, state={"begun": "with", "n": 0})
        for number in (1, 2, 2, 3):
            await service.append_event(session, event(str(number), n=number, **{f"k{number}": True}))
        back = await service.rewind(session, "2")
        assert back.state == {"begun": "with", "n": 1, "k1": True}
        assert [each.invocation_id for each in back.events] == ["1"]
        await service.append_event(back, event("instead"))
        with pytest.raises(StaleSessionError):
            await service.append_event(session, event("4"))
        with pytest.raises(InvocationNotFoundError):
            await service.rewind(back, "3")

    asyncio.run(work())
    assert len(list(service.store.get("adk:app/ada/s").branches)) == 2


def test_a_list_is_in_the_order_of_use(service: StepkeepSessionService) -> None:
    async def work() -> None:
        sessions = [await service.create_session(**ME, session_id=name) for name in ("a", "b/c", "d")]
        await service.append_event(sessions[0], event("1"))
        found = (await service.list_sessions(**ME)).sessions
        assert [each.id for each in found] == ["b/c", "d", "a"]
        assert found[-1].events == []

    asyncio.run(work())


def _append_some(url: str, name: str) -> None:
    async def work() -> None:
        async with StepkeepSessionService(url) as service:
            for number in range(8):
                while True:
                    session = await service.get_session(**HERE)
                    assert session is not None
                    try:
                        await service.append_event(
                            session, event(f"{name}{number}", **{"user:" + name: number})
                        )
                        break
                    except StaleSessionError:
                        continue

    asyncio.run(work())


def test_processes_that_append_lose_nothing(url: str) -> None:
    """Who is told to read again does so; then every event is there, in the order of each process."""
    with StepkeepSessionService(url) as service:
        asyncio.run(service.create_session(**HERE))
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_some, args=(url, name)) for name in "xyz"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with StepkeepSessionService(url) as service:
        found: Any = asyncio.run(service.get_session(**HERE))
    invocations = [each.invocation_id for each in found.events]
    assert len(invocations) == 24
    for name in "xyz":
        assert [each for each in invocations if each.startswith(name)] == [f"{name}{n}" for n in range(8)]
    assert {name: found.state[f"user:{name}"] for name in "xyz"} == dict.fromkeys("xyz", 7)
