"""The Claude Agent SDK keeps its transcripts in a store."""

from __future__ import annotations

import asyncio
import multiprocessing
import shlex
import threading
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from claude_agent_sdk import (
    ClaudeAgentOptions,
    fork_session_via_store,
    list_sessions_from_store,
    project_key_for_directory,
)
from claude_agent_sdk._internal.transport.subprocess_cli import SubprocessCLITransport
from claude_agent_sdk.testing import run_session_store_conformance

import stepkeep
from stepkeep.adapters.claude import StepkeepSessionStore
from stepkeep.errors import Conflict, Corrupt, NotFound
from stepkeep.recording.coding_agents.conversation_fork import claude_words, fork_before
from stepkeep.recording.coding_agents.turns import Turn
from tests.interop.adapter_contract import AdapterContract
from tests.interop.conftest import Bodies
from tests.interop.offline.claude import Agent
from tests.surfaces.test_cli import Cli

KEY: Any = {"project_key": "proj", "session_id": "s"}


def entry(uuid: str | None = None, **more: Any) -> Any:
    return {"type": "user", **({"uuid": uuid} if uuid else {}), **more}


def _asyncio(work: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
    return asyncio.run(work(*args))


@pytest.fixture(params=[_asyncio, trio.run], ids=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Both event loops that the SDK runs under."""
    found: Callable[..., Any] = request.param
    return found


class TestContract(AdapterContract):
    NAME = "claude"


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "memory", "files"])
def test_the_kit_of_the_sdk_passes(
    kind: str, run: Callable[..., Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """All 14 contracts, none of them skipped, on every kind of store and both event loops."""
    made: list[StepkeepSessionStore] = []

    def fresh() -> StepkeepSessionStore:
        number = len(made)
        urls = {"sqlite": f"sqlite:{tmp_path}/{number}.db", "files": f"files:{tmp_path}/{number}"}
        url = urls.get(kind, "memory:")
        if kind == "postgres":
            url = request.getfixturevalue("postgres").fresh_url()
        made.append(StepkeepSessionStore(url))
        return made[-1]

    run(run_session_store_conformance, fresh)
    for each in made:
        each.close()


@pytest.fixture
def sessions(url: str) -> Any:
    with StepkeepSessionStore(url) as sessions:
        yield sessions


def test_a_batch_that_is_handed_over_again_is_stored_once(sessions: StepkeepSessionStore) -> None:
    """The SDK repeats a batch after an error. The uuid tells what is there; entries without one are always new."""

    async def work() -> None:
        await sessions.append(KEY, [entry("a"), entry("b"), entry("a")])
        await sessions.append(KEY, [entry("b"), entry(title="x"), entry("c"), entry(title="x")])
        await sessions.append(KEY, [entry("c")])
        found = await sessions.load(KEY)
        assert [each.get("uuid") for each in found or ()] == ["a", "b", None, "c", None]

    asyncio.run(work())
    assert len(list(sessions.store.get("claude:proj/s").history())) == 2


def test_what_the_caller_changes_later_is_not_stored(sessions: StepkeepSessionStore) -> None:
    """Neither an entry it handed over nor one it got back is shared with what the next save stores."""

    async def work() -> Any:
        given = entry("a", message={"content": "said"})
        await sessions.append(KEY, [given])
        given["message"]["content"] = "changed"
        got: Any = await sessions.load(KEY)
        got[0]["message"]["content"] = "changed as well"
        await sessions.append(KEY, [entry("b")])
        return await sessions.load(KEY)

    assert asyncio.run(work())[0]["message"]["content"] == "said"


def test_what_was_gone_back_from_can_be_appended_again(sessions: StepkeepSessionStore) -> None:
    """What is remembered between appends never hides that someone restored an older checkpoint."""

    async def work() -> None:
        await sessions.append(KEY, [entry("a")])
        await sessions.append(KEY, [entry("b")])
        sessions.store.get("claude:proj/s").restore("latest~1")
        await sessions.append(KEY, [entry("b")])
        assert await sessions.load(KEY) == [entry("a"), entry("b")]

    asyncio.run(work())
    assert len(list(sessions.store.get("claude:proj/s").branches)) == 2


def test_keys_do_not_run_into_each_other(sessions: StepkeepSessionStore) -> None:
    """Slashes and percent signs in names make no two transcripts one."""
    keys: list[Any] = [
        {"project_key": "a/b", "session_id": "c"},
        {"project_key": "a", "session_id": "b/c"},
        {"project_key": "a", "session_id": "b", "subpath": "c"},
        {"project_key": "a%2Fb", "session_id": "c"},
    ]

    async def work() -> None:
        for number, key in enumerate(keys):
            await sessions.append(key, [entry(str(number))])
        for number, key in enumerate(keys):
            assert await sessions.load(key) == [entry(str(number))]
        assert [each["session_id"] for each in await sessions.list_sessions("a")] == ["b/c"]
        assert [each["session_id"] for each in await sessions.list_sessions("a/b")] == ["c"]

    asyncio.run(work())


def _append_pairs(url: str, name: str) -> None:
    async def work() -> None:
        async with StepkeepSessionStore(url) as sessions:
            for number in range(10):
                await sessions.append(KEY, [entry(f"{name}-{number}-{half}") for half in "ab"])

    asyncio.run(work())


def test_processes_that_append_lose_nothing(url: str) -> None:
    """Everything is there, each batch in one piece, and the entries of each process in their order."""
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_pairs, args=(url, name)) for name in "xyz"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with StepkeepSessionStore(url) as sessions:
        found: Any = asyncio.run(sessions.load(KEY))
    uuids = [each["uuid"] for each in found]
    assert len(uuids) == 60
    assert [uuid[:-1] for uuid in uuids[::2]] == [uuid[:-1] for uuid in uuids[1::2]]
    for name in "xyz":
        own = [uuid for uuid in uuids if uuid.startswith(name)]
        assert own == [f"{name}-{number}-{half}" for number in range(10) for half in "ab"]


def test_a_damaged_transcript_is_listed_and_cannot_be_loaded(
    sessions: StepkeepSessionStore, url: str, bodies: Bodies
) -> None:
    """One damaged conversation does not hide the others, nor itself."""

    async def write() -> None:
        for id in ("good", "bad"):
            prompt = {"message": {"role": "user", "content": f"the {id} one"}}
            key: Any = {"project_key": project_key_for_directory("/w"), "session_id": id}
            await sessions.append(key, [entry(id, **prompt, timestamp="2026-01-01T00:00:00Z")])

    asyncio.run(write())
    key = f"claude:{project_key_for_directory('/w')}/bad"
    header = sessions.store.get(key).header("latest")
    bodies.damage(header.id, "state")
    bodies.damage(header.id, "details")

    async def read() -> None:
        async with StepkeepSessionStore(url) as again:
            listed = await list_sessions_from_store(again, directory="/w")
            assert {each.session_id: each.summary for each in listed} == {"good": "the good one", "bad": ""}
            with pytest.raises(Corrupt):
                await again.load({"project_key": project_key_for_directory("/w"), "session_id": "bad"})

    asyncio.run(read())


def test_a_cancelled_append_is_settled_under_trio(sessions: StepkeepSessionStore) -> None:
    """As under asyncio, the caller goes on when the batch is stored."""
    begun = threading.Event()
    sessions.store.engine.on_append.append(lambda _: begun.set())

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sessions.append, KEY, [entry("a")])
            await trio.to_thread.run_sync(begun.wait)
            nursery.cancel_scope.cancel()

    trio.run(work)
    assert trio.run(sessions.load, KEY) == [entry("a")]


def test_files_and_conversation_are_one_checkpoint(
    store_with_agent: tuple[Agent, stepkeep.Store, Path],
) -> None:
    """Going back restores the files of a turn and forks the conversation at its end; the other one stays."""
    agent, store, project = store_with_agent

    async def work() -> None:
        for number in (1, 2, 3):
            await agent.turn("c", f"write plan.txt version {number}")
        session = store.get(agent.key("c"))
        assert [header.step for header in session.history()] == [3, 2, 1]
        assert session.header("step-2").message == "write plan.txt version 2"

        rewound = await agent.sessions.rewind(agent.id("c"), "step-2")
        assert (project / "plan.txt").read_text() == "version 2"
        assert rewound.files is not None
        prompts, forked = await agent.ask("what now?", **rewound.options)
        assert prompts == ["write plan.txt version 1", "write plan.txt version 2", "what now?"]
        assert forked != agent.id("c")
        assert len(await agent.turn("c", "go on")) == 4

    asyncio.run(work())


def test_changed_files_are_not_overwritten_without_force(
    store_with_agent: tuple[Agent, stepkeep.Store, Path],
) -> None:
    """What nobody captured stays until it is forced, and even then a safety checkpoint has it."""
    agent, store, project = store_with_agent

    async def work() -> None:
        await agent.turn("c", "write plan.txt by agent")
        (project / "plan.txt").write_text("by hand")
        with pytest.raises(Conflict) as told:
            await agent.sessions.rewind(agent.id("c"), "step-1")
        assert told.value.code == "files_changed"
        await agent.sessions.rewind(agent.id("c"), "step-1", force=True)
        assert (project / "plan.txt").read_text() == "by agent"
        store.get(agent.key("c")).files.undo(workspace=project)
        assert (project / "plan.txt").read_text() == "by hand"
        assert await agent.turn("c", "go on") == ["write plan.txt by agent", "go on"]

    asyncio.run(work())


@pytest.fixture
def store_with_agent(url: str, tmp_path: Path) -> Any:
    """An agent that works in a folder of its own."""
    project = tmp_path / "project"
    project.mkdir()
    with stepkeep.open(url) as store:
        yield Agent(store, cwd=project, workspace=project), store, project


def test_a_checkpoint_of_another_branch_is_told(sessions: StepkeepSessionStore) -> None:
    """The SDK cannot fork at an entry that the transcript does not have any more."""

    async def work() -> None:
        await sessions.append(KEY, [entry("a")])
        await sessions.append(KEY, [entry("b")])
        later = sessions.store.get("claude:proj/s").header("latest").id
        sessions.store.get("claude:proj/s").restore("latest~1")
        assert await sessions.load(KEY) == [entry("a")]
        with pytest.raises(NotFound) as told:
            await sessions.rewind("s", later, project_key="proj")
        assert told.value.code == "not_in_transcript"
        assert (await sessions.rewind("s", project_key="proj")).options["resume_session_at"] == "a"

    asyncio.run(work())


def test_the_sdk_forks_inside_the_store(sessions: StepkeepSessionStore) -> None:
    """The fork has the entries of the first under ids of its own."""
    id = "3f0bd5b9-1c7a-4b8e-9f58-0b8f7b1f1a11"
    uuid = "6f0bd5b9-1c7a-4b8e-9f58-0b8f7b1f1a12"
    key: Any = {"project_key": project_key_for_directory("/w"), "session_id": id}

    async def work() -> None:
        said = {"message": {"role": "user", "content": "hello"}, "sessionId": id, "parentUuid": None}
        await sessions.append(key, [entry(uuid, **said)])
        forked = await fork_session_via_store(sessions, id, directory="/w")
        found = await sessions.load({**key, "session_id": forked.session_id})
        assert found is not None
        assert "hello" in str(found)

    asyncio.run(work())


def test_the_commands_show_conversations(tmp_path: Path) -> None:
    """list, timeline, show and diff."""
    cli = Cli(tmp_path)
    with stepkeep.open(cli.url) as store:
        agent = Agent(store)
        for prompt in ("plan the release", "cut it"):
            asyncio.run(agent.turn("c", prompt))
        key = agent.key("c")
    for arguments, text in (
        (("list",), key),
        (("timeline", key), "plan the release"),
        (("show", key), "cut it"),
        (("diff", key), "entries"),
    ):
        done = cli.here(*arguments)
        assert done.code == 0, done.err
        assert text in done.out


def test_the_fork_command_has_the_flags_of_the_sdk() -> None:
    """What `stepkeep rewind` prints for Claude Code is what the SDK's own command builder writes, value by value."""
    turn = Turn(
        number=2,
        checkpoint="cp_1",
        time=datetime.now(UTC),
        prompt="Repair the login form",
        status="ended",
        tasks=0,
        open_tasks=0,
        files=None,
        entry="0c1d6e9e-8a5b-4f0e-9c55-0b6f3c4f9d10",
        prompt_entry="5b3e5b1c-3f58-4a07-8f5f-1d8a3b0f2c77",
    )
    session = "00893aaf-19fa-41d2-8238-13269b9b3ca0"
    for is_newest in (True, False):
        options = ClaudeAgentOptions(
            cli_path="/usr/bin/claude",
            resume=session,
            fork_session=True,
            resume_session_at=turn.entry,
            resume_drops_turn=turn.prompt_entry if is_newest else None,
        )
        built = SubprocessCLITransport(prompt="Repair the login form", options=options)._build_command()
        flags = ("--resume", "--fork-session")
        theirs = {word for word in built if word.startswith(flags)}
        assert set(claude_words(session, turn, is_newest=is_newest)) == theirs
    command = fork_before("claude-code", session, turn, is_newest=True).commands[0]
    assert shlex.split(command)[:3] == ["claude", "-p", "Repair the login form"]
    assert set(shlex.split(command)[3:]) == set(claude_words(session, turn, is_newest=True))
