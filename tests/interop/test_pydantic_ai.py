"""Pydantic AI keeps its conversations in a store."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelRequest, UserPromptPart

from stepkeep.adapters.pydantic_ai import StepkeepConversationStore
from stepkeep.errors import Corrupt
from tests.interop.adapter_contract import AdapterContract
from tests.interop.conftest import Bodies


def said(text: Any) -> ModelMessage:
    return ModelRequest(parts=[UserPromptPart(text)])


def texts(conversation: Any) -> list[Any]:
    return [message.parts[0].content for message in conversation.messages]


class TestContract(AdapterContract):
    NAME = "pydantic_ai"


@pytest.fixture
def conversations(url: str) -> Any:
    with StepkeepConversationStore(url) as conversations:
        yield conversations


class Mirror:
    """The same operations on two stores. What they return is compared; revisions are the stores' own."""

    def __init__(self, ours: ConversationStore, theirs: ConversationStore, seed: int) -> None:
        self._stores = (ours, theirs)
        self._random = random.Random(seed)
        self._loaded: dict[str, tuple[Any, ...]] = {}
        self._said = 0

    async def step(self) -> None:
        name = self._random.choice(
            ["save", "save", "save", "load", "branch", "fork", "list", "delete", "stale"]
        )
        await getattr(self, f"_{name}")(self._random.choice("abcdef"))

    async def _both(self, call: Any) -> tuple[Any, ...]:
        """What both return, or the class of what both raise."""
        results: list[Any] = []
        for place, store in enumerate(self._stores):
            try:
                results.append(await call(store, place))
            except (ConversationConflict, UserError) as exc:
                results.append(type(exc))
        ours, theirs = results
        if isinstance(theirs, Conversation):
            assert isinstance(ours, Conversation)
            assert ours.messages == theirs.messages
            assert ours.usage == theirs.usage
        elif isinstance(theirs, type) or theirs is None:
            assert ours is theirs
        return ours, theirs

    async def _load(self, id: str) -> None:
        limit, scope = self._random.choice([None, None, 1, 3]), self._random.choice([None, None, "x"])
        loaded = await self._both(lambda store, _: store.load(id, limit=limit, scope=scope))
        if isinstance(loaded[0], Conversation):
            self._loaded[id] = loaded

    async def _save(self, id: str) -> None:
        loaded = self._loaded.get(id) or tuple(Conversation(conversation_id=id) for _ in range(2))
        for _ in range(self._random.randint(0, 3)):
            self._said += 1
            message = said(f"message {self._said}")
            for conversation in loaded:
                conversation.messages.append(deepcopy(message))
        scope = self._random.choice([None, None, None, "x", "y"])
        saved = await self._both(lambda store, place: store.save(loaded[place], scope=scope))
        if isinstance(saved[0], list):
            assert [entry.message for entry in saved[0]] == [entry.message for entry in saved[1]]
            self._loaded[id] = loaded
        else:
            self._loaded.pop(id, None)

    async def _branch(self, id: str) -> None:
        if (loaded := self._loaded.get(id)) is not None:
            at = self._random.randint(0, 5)
            branched = await self._both(
                lambda store, place: store.branch(id, at=at, expected_revision=loaded[place].revision)
            )
            if isinstance(branched[0], Conversation):
                self._loaded[id] = branched

    async def _fork(self, id: str) -> None:
        new, at = self._random.choice("abcdef"), self._random.choice([None, 0, 1, 2, 4])
        forked = await self._both(lambda store, _: store.fork(id, at=at, new_conversation_id=new))
        if isinstance(forked[0], Conversation):
            self._loaded[new] = forked

    async def _list(self, _: str) -> None:
        scope, limit = self._random.choice([None, "x", "y"]), self._random.choice([None, 2])
        ours, theirs = await self._both(lambda store, _: store.list_conversations(scope=scope, limit=limit))
        assert list(map(_shown, ours)) == list(map(_shown, theirs))

    async def _delete(self, id: str) -> None:
        if self._random.random() < 0.4:
            scope = self._random.choice([None, "x"])
            await self._both(lambda store, _: store.delete(id, scope=scope))

    async def _stale(self, id: str) -> None:
        """Save what was loaded before someone else saved."""
        if (loaded := self._loaded.get(id)) is not None:
            await self._save(id)
            await self._both(
                lambda store, place: store.save(
                    Conversation(
                        conversation_id=id, messages=[said("stale")], revision=f"not that of {place}"
                    )
                )
            )
            self._loaded[id] = loaded


def _shown(record: ConversationRecord) -> tuple[Any, ...]:
    return record.conversation_id, record.scope, record.forked_from, record.usage, len(record.branches)


@pytest.mark.parametrize("seed", range(6))
def test_it_does_what_the_store_in_memory_does(seed: int, tmp_path: Path) -> None:
    """400 random operations each: the same results, messages, conflicts and lists, also after reopening."""

    async def work() -> None:
        url, theirs = f"sqlite:{tmp_path}/c.db", InMemoryConversationStore()
        for part in range(4):
            async with StepkeepConversationStore(url) as ours:
                mirror = Mirror(ours, theirs, 4 * seed + part)
                for _ in range(100):
                    await mirror.step()
                assert ours.store.verify().is_intact

    asyncio.run(work())


def test_an_entry_is_found_in_a_new_process(conversations: StepkeepConversationStore, url: str) -> None:
    """By its id alone, also when the conversation that added it is gone and only a fork has it."""

    async def work() -> None:
        first = Conversation(conversation_id="a", messages=[said("1"), said("2")])
        entries = await conversations.save(first)
        await conversations.fork("a", new_conversation_id="b")
        async with StepkeepConversationStore(url) as again:
            assert (await again.read_entry(entries[0].id)).message == entries[0].message
            await again.delete("a")
        async with StepkeepConversationStore(url) as again:
            assert await again.load("a") is None
            history = await again.read_history(entries[1].id)
            assert [entry.message for entry in history] == first.messages
            with pytest.raises(LookupError):
                await again.read_entry("nope")

    asyncio.run(work())


def test_a_deletion_that_was_interrupted_is_finished(conversations: StepkeepConversationStore) -> None:
    """A conversation that is begun under the id of a deleted one is a new one."""

    async def work() -> None:
        await conversations.save(Conversation(conversation_id="a", messages=[said("1")]))
        session = conversations.store.get("pydantic-ai:a")
        session.save(
            {"entries": []}, details={"record": None}
        )  # as far as a deletion comes before it is killed
        assert await conversations.load("a") is None
        assert await conversations.list_conversations() == []
        await conversations.save(Conversation(conversation_id="a", messages=[said("2")]))
        assert texts(await conversations.load("a")) == ["2"]
        assert len(list(conversations.store.get("pydantic-ai:a").history())) == 1

    asyncio.run(work())


def test_bytes_in_messages_come_back(conversations: StepkeepConversationStore) -> None:
    async def work() -> None:
        document = BinaryContent(data=bytes(range(256)), media_type="application/pdf")
        given = [said(["look", document])]
        await conversations.save(Conversation(conversation_id="a", messages=list(given)))
        loaded = await conversations.load("a")
        assert loaded is not None
        assert loaded.messages == given

    asyncio.run(work())


def test_a_damaged_conversation_is_an_error(
    conversations: StepkeepConversationStore, url: str, bodies: Bodies
) -> None:
    """Its record can be read as long as that is intact; its messages cannot."""
    asyncio.run(conversations.save(Conversation(conversation_id="a", messages=[said("1")])))
    header = conversations.store.get("pydantic-ai:a").header("latest")
    bodies.damage(header.id, "state")

    async def work() -> None:
        async with StepkeepConversationStore(url) as again:
            assert len(await again.list_conversations()) == 1
            with pytest.raises(Corrupt):
                await again.load("a")
            bodies.damage(header.id, "details")
            with pytest.raises(Corrupt):
                await again.read_record("a")

    asyncio.run(work())


def _save_some(url: str, name: str) -> None:
    async def work() -> None:
        async with StepkeepConversationStore(url) as conversations:
            for number in range(8):
                while True:
                    loaded = await conversations.load("a")
                    assert loaded is not None
                    loaded.messages.append(said(f"{name}{number}"))
                    try:
                        await conversations.save(loaded)
                        break
                    except ConversationConflict:
                        continue

    asyncio.run(work())


def test_processes_that_save_lose_nothing(url: str) -> None:
    """Who is told of a conflict loads again; then every message is there, in the order of each process."""
    with StepkeepConversationStore(url) as conversations:
        asyncio.run(conversations.save(Conversation(conversation_id="a")))
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_save_some, args=(url, name)) for name in "xyz"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with StepkeepConversationStore(url) as conversations:
        found = texts(asyncio.run(conversations.load("a")))
    assert len(found) == 24
    for name in "xyz":
        assert [text for text in found if text.startswith(name)] == [f"{name}{n}" for n in range(8)]
