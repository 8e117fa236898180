"""The async facade: the same answers as the synchronous store, sound when cancelled, nothing left when closed."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import re
import subprocess
import sys
import threading
import typing
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import aio
from stepkeep.errors import BackendUnavailable, Conflict, InvalidInput, NotFound

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "use-asyncio.md"
SECONDS = 30.0
"""How long anything may take before a test is called stuck."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'store.db'}"


def run(work: Awaitable[Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(SECONDS):
            return await work

    return asyncio.run(limited())


def open_files() -> list[str]:
    """What the process has open, apart from the listing itself."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return sorted(name for name in found if not name.startswith(f"/proc/{os.getpid()}"))


@contextmanager
def nothing_left() -> Iterator[None]:
    """Fail if the block leaves a thread or an open file behind."""
    threads, files = set(threading.enumerate()), open_files()
    yield
    assert set(threading.enumerate()) <= threads
    assert open_files() == files


class Gate:
    """Holds the commits of a store back until it is opened, and keeps the size of each batch."""

    def __init__(self, store: aio.AsyncStore) -> None:
        backend = store.sync.engine.backend
        self._append = backend.append
        self._open = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._reached = asyncio.Event()
        self._then: Callable[[], object] = lambda: None
        self.batches: list[int] = []
        backend.append = self._held  # type: ignore[method-assign,assignment]

    def _held(self, items: Sequence[Any], *rest: Any) -> Any:
        self._loop.call_soon_threadsafe(self._reach)
        assert self._open.wait(SECONDS)
        self.batches.append(len(items))
        return self._append(items, *rest)

    def open(self) -> None:
        self._open.set()

    def _reach(self) -> None:
        self._reached.set()
        self._then()

    async def reached(self) -> None:
        """Return when a commit stands before the gate."""
        await self._reached.wait()

    def when_reached(self, then: Callable[[], object]) -> None:
        """Call `then` on the event loop when a commit stands before the gate."""
        self._then = then


async def begin(work: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
    """A task that has run up to its first wait."""

    async def awaited() -> Any:
        return await work()

    task = asyncio.create_task(awaited())
    await asyncio.sleep(0)
    return task


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- the same store


def public_names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_public_name_has_its_async_form() -> None:
    """The facade offers what `Session` and `Store` offer; only closing and the engine differ in name."""
    assert public_names(aio.AsyncSession) == public_names(stepkeep.Session)
    assert public_names(aio.AsyncBranches) == public_names(stepkeep.api.Branches)
    assert public_names(aio.AsyncStore) - {"aclose", "sync"} == public_names(stepkeep.Store) - {
        "close",
        "engine",
    }


def test_open_takes_what_the_synchronous_open_takes() -> None:
    """`aio.open` has every option of `stepkeep.open` with the same type, and `threads`."""
    ours = dict(inspect.signature(aio.open).parameters)
    theirs = dict(inspect.signature(stepkeep.open).parameters)
    assert list(ours) == ["url", "threads", "options"]
    assert ours["url"] == theirs.pop("url")
    sync = typing.get_type_hints(stepkeep.open)
    assert typing.get_type_hints(aio.OpenOptions) == {name: sync[name] for name in theirs}


def test_importing_stepkeep_does_not_import_asyncio() -> None:
    """Synchronous programs do not pay for the facade."""
    code = "import sys, stepkeep; sys.exit('asyncio' in sys.modules or 'stepkeep.aio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_saves_and_loads(url: str) -> None:
    """What is saved through the facade comes back through it, and through the synchronous store."""

    async def work() -> str:
        async with aio.open(url) as store:
            session = await store.session("a", profile="agent")
            first = await session.save({"n": 1}, step=1, tags=["x"], details={"why": "test"})
            second = await session.save({"n": 2}, step=2, expect_head=first.id)
            latest = await session.latest()
            assert isinstance(latest, stepkeep.Checkpoint)
            assert (latest.state, latest.header) == ({"n": 2}, second)
            assert (await session.at(1)).details == {"why": "test"}
            assert (await session.load("latest~1")).state == {"n": 1}
            assert await session.header(first.id) == first
            newest = await session.newest()
            assert newest is not None
            assert newest.id == (await store.checkpoint(second.id)).id
            assert (await session.info()).profile == "agent"
            assert (await session.verify()).checkpoints == (await store.verify()).checkpoints == 2
            assert [branch.head for branch in (await session.branches.list()).branches] == [second.id]
            assert (await session.usage()).checkpoints == (await store.usage()).checkpoints
            assert (await session.complete()).status == "completed"
            assert [event.type for event in await session.events()][-1] == "session_completed"
            await session.delete(first.id)
            await store.flush()
            return second.id

    newest = run(work())
    with stepkeep.open(url) as store:
        assert [header.id for header in store.get("a").history()] == [newest]


def test_statuses_and_clear(url: str) -> None:
    """The verbs set the status; a cleared session is gone."""

    async def work() -> None:
        async with aio.open(url) as store:
            session = await store.session("a")
            await session.save(1)
            assert (await session.pause()).status == "paused"
            assert (await session.cancel()).status == "cancelled"
            assert (await session.fail("broken")).error == "broken"
            await session.clear()
            with pytest.raises(NotFound):
                await session.save(2)

    run(work())


def test_lists_arrive_page_by_page(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`async for` yields the whole list in order, fetching no further than it is read."""
    monkeypatch.setattr(aio, "PAGE", 3)

    async def work() -> None:
        async with aio.open(url) as store:
            session = await store.session("a")
            for step in range(8):
                await session.save(step, step=step)
            await store.session("b")
            assert [header.step async for header in session.history()] == [*range(8)][::-1]
            assert [header.step async for header in session.history(limit=2, newest_first=False)] == [0, 1]
            assert [header.step async for header in store.checkpoints(limit=1)] == [7]
            assert {info.key async for info in store.sessions()} == {"a", "b"}
            async for header in session.history():
                if header.step == 6:
                    break

    with nothing_left():
        run(work())


def test_exceptions_pass_unchanged(url: str) -> None:
    """The caller gets the error of the synchronous call itself, with its fields."""

    async def work() -> None:
        async with aio.open(url) as store:
            with pytest.raises(NotFound) as missing:
                await store.get("nobody")
            assert (missing.value.code, missing.value.session) == ("session_not_found", "nobody")
            session = await store.session("a")
            with pytest.raises(InvalidInput) as refused:
                await session.save({"x": [object()]})
            assert refused.value.path is not None
            await session.save(1)
            with pytest.raises(Conflict):
                await session.save(2, expect_head=None)
            with pytest.raises(InvalidInput):
                [header async for header in session.history(status="nonsense")]

    run(work())


def test_a_save_takes_the_state_as_it_is(url: str) -> None:
    """A state that changes while its save waits for a thread does not change what is stored."""

    async def work() -> None:
        async with aio.open(url, threads=1) as store:
            busy, session = await store.session("busy"), await store.session("a")
            gate = Gate(store)
            holding = await begin(lambda: busy.save(1))
            await gate.reached()
            state = {"items": [1, 2]}
            saving = await begin(lambda: session.save(state))
            state["items"].append(3)
            gate.open()
            await holding
            assert (await session.load((await saving).id)).state == {"items": [1, 2]}

    run(work())


def test_saves_awaited_together_share_commits(url: str) -> None:
    """Saves of several sessions that arrive during a commit are committed as one."""

    async def work() -> list[int]:
        async with aio.open(url) as store:
            sessions = [await store.session(f"s{n}") for n in range(16)]
            gate = Gate(store)
            saving = asyncio.gather(*(session.save(n) for n, session in enumerate(sessions)))
            await gate.reached()
            await asyncio.sleep(0.2)  # the others queue behind the one that stands before the gate
            gate.open()
            await saving
            return gate.batches

    batches = run(work())
    assert sum(batches) == 16
    assert len(batches) < 8


def test_context_variables_reach_the_worker() -> None:
    """What the caller's context holds, such as a trace id, is seen where the work is done."""
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    seen = []

    def clock() -> int:
        seen.append(variable.get())
        return 1

    async def work() -> None:
        async with aio.open("memory:", clock=clock) as store:
            variable.set("caller")
            await store.session("a")

    run(work())
    assert set(seen) == {"caller"}


# --- cancelling


async def save_until_it_commits(gate: Gate, session: aio.AsyncSession, state: object) -> None:
    """A save whose time limit ends while its commit stands before the gate."""
    try:
        async with asyncio.timeout(None) as limit:
            gate.when_reached(lambda: limit.reschedule(0))
            await session.save(state)
    except TimeoutError:
        return
    pytest.fail("the save was not cut short")


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_a_cancelled_save_ends_its_wait_at_once_and_is_settled_before_the_next_call(
    url: str, how: str
) -> None:
    """A save cancelled during its commit is stored whole, in its place, and the next call sees it."""

    async def work() -> None:
        async with aio.open(url) as store:
            session = await store.session("a")
            gate = Gate(store)
            if how == "timeout":
                await save_until_it_commits(gate, session, "first")
            else:
                saving = await begin(lambda: session.save("first"))
                await gate.reached()
                await cancel(saving)
            again = await store.get("a")
            later = [await begin(again.latest), await begin(lambda: session.save("second"))]
            gave_up = await begin(lambda: session.save("third"))
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in later)
            await cancel(gave_up)
            gate.open()
            latest, second = await asyncio.gather(*later)
            assert latest.state in ("first", "second")
            assert [header.seq async for header in session.history()] == [second.seq, second.seq - 1]
            assert (await session.at(second.seq - 1)).state == "first"

    with nothing_left():
        run(work())


def test_a_save_cancelled_before_its_turn_is_never_stored(url: str) -> None:
    """With every thread busy, a cancelled save is taken from the queue."""

    async def work() -> None:
        async with aio.open(url, threads=1) as store:
            busy, waiting = await store.session("busy"), await store.session("waiting")
            gate = Gate(store)
            holding = await begin(lambda: busy.save(1))
            await gate.reached()
            saving = await begin(lambda: waiting.save(1))
            await cancel(saving)
            gate.open()
            await holding
            await store.flush()
            assert await waiting.latest() is None

    run(work())


def test_a_cancelled_save_that_fails_is_silent_and_harmless(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error has no reader; the next call works, and the event loop has nothing to complain of."""

    async def work() -> None:
        async with aio.open(url) as store:
            session = await store.session("a")
            await session.save(1)
            gate = Gate(store)
            saving = await begin(lambda: session.save(2, expect_head=None))
            await gate.reached()
            await cancel(saving)
            gate.open()
            latest = await session.latest()
            assert latest is not None
            assert latest.state == 1

    run(work())
    assert [record for record in caplog.records if record.name == "asyncio"] == []


# --- closing


def test_closing_waits_for_cancelled_saves(url: str) -> None:
    """A save that was cancelled while under way is finished before the store closes."""

    async def work() -> None:
        store = await aio.open(url)
        session = await store.session("a")
        gate = Gate(store)
        saving = await begin(lambda: session.save("kept"))
        await gate.reached()
        await cancel(saving)
        closing = await begin(store.aclose)
        await asyncio.sleep(0.05)
        assert not closing.done()
        gate.open()
        await closing

    with nothing_left():
        run(work())
    with stepkeep.open(url) as store:
        latest = store.get("a").latest()
        assert latest is not None
        assert latest.state == "kept"


def test_closing_leaves_nothing_even_before_the_loop_ends(url: str) -> None:
    """After `aclose` no thread and no file of the store is left, while the event loop goes on."""

    async def work() -> None:
        with nothing_left():
            async with await aio.open(url) as store:
                sessions = [await store.session(f"s{n}") for n in range(20)]
                await asyncio.gather(*(session.save(1) for session in sessions))
                await asyncio.gather(*(session.latest() for session in sessions))

    run(work())


def test_closing_again_is_harmless_and_calls_after_it_are_refused(url: str) -> None:
    """A closed store says so, in the words of the synchronous one."""

    async def work() -> None:
        async with aio.open(url) as store:
            session = await store.session("a")
            await asyncio.gather(store.aclose(), store.aclose())
            for call in (session.latest, session.info, store.usage, lambda: session.save(1)):
                with pytest.raises(BackendUnavailable) as closed:
                    await call()
                assert (closed.value.code, closed.value.retryable) == ("store_closed", False)

    run(work())


def test_a_cancelled_close_goes_on(url: str) -> None:
    """Cancelling `aclose` ends the wait only; awaiting it again waits for the end."""

    async def work() -> None:
        with nothing_left():
            store = await aio.open(url)
            session = await store.session("a")
            gate = Gate(store)
            saving = await begin(lambda: session.save(1))
            await gate.reached()
            await cancel(await begin(store.aclose))
            gate.open()
            assert (await saving).seq == 1
            await store.aclose()

    run(work())


def test_an_error_in_the_block_closes_the_store(url: str) -> None:
    """The block's own error passes, and nothing is left."""

    async def work() -> None:
        async with aio.open(url) as store:
            await (await store.session("a")).save(1)
            raise ZeroDivisionError

    with nothing_left(), pytest.raises(ZeroDivisionError):
        run(work())


def test_a_failed_open_leaves_nothing(tmp_path: Path) -> None:
    """A store that cannot be opened raises what the synchronous open raises."""
    with nothing_left(), pytest.raises(stepkeep.StepkeepError):
        run(aio.open(f"sqlite:{tmp_path}"))  # a directory
    with nothing_left(), pytest.raises(InvalidInput):
        run(aio.open("memory:", keyframe_every=0))
    with pytest.raises(InvalidInput):
        aio.open("memory:", threads=0)


def test_a_cancelled_open_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that finishes opening after its opener was cancelled is closed."""
    go, begun, opened = threading.Event(), threading.Event(), []
    real_open = stepkeep.api.open

    def slow_open(*args: Any, **options: Any) -> stepkeep.Store:
        begun.set()
        assert go.wait(SECONDS)
        opened.append(real_open(*args, **options))
        return opened[-1]

    monkeypatch.setattr(stepkeep.api, "open", slow_open)

    async def work() -> None:
        with nothing_left():
            opening = await begin(lambda: aio.open(url))
            while not begun.is_set():
                await asyncio.sleep(0.001)
            opening.cancel()
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await opening

    run(work())
    with pytest.raises(BackendUnavailable):
        opened[0].usage()


# --- all of it together

CHECK = """
import json, sys, stepkeep

acknowledged = json.loads(sys.stdin.read())
with stepkeep.open(sys.argv[1]) as store:
    report = store.verify()
    assert not report.findings, report.findings
    for key, saved in acknowledged.items():
        session = store.get(key)
        for id, state in saved:
            assert session.load(id).state == state, (key, id)
        numbers = [session.load(header.id).state["n"] for header in session.history(newest_first=False)]
        assert numbers == sorted(set(numbers)), (key, numbers)
        assert not saved or session.latest().state["n"] >= saved[-1][1]["n"], key
print(report.checkpoints)
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_hundred_sessions_cancelled_at_random_lose_nothing(url: str, seed: int) -> None:
    """What was acknowledged is there in a new process, in order; no thread or file handle is left."""
    chance = random.Random(seed)
    acknowledged: dict[str, list[tuple[str, Any]]] = {f"s{n}": [] for n in range(100)}
    cancelled = 0

    async def agent(store: aio.AsyncStore, key: str) -> None:
        nonlocal cancelled
        saved = acknowledged[key]
        session = await store.session(key)
        for n in range(12):
            state = {"n": n, "log": [f"{key} line {line}" for line in range(n)]}
            try:
                async with asyncio.timeout(chance.choice([None, None, 0.0, 0.001, 0.005, 0.02])):
                    saved.append(((await session.save(state, step=n)).id, state))
                async with asyncio.timeout(chance.choice([None, 0.002])):
                    latest = await session.latest()
                    assert latest is not None
                    assert latest.state == state
            except TimeoutError:
                cancelled += 1

    async def work() -> None:
        with nothing_left():
            async with aio.open(url) as store:
                agents = [asyncio.create_task(agent(store, key)) for key in acknowledged]
                for victim in chance.sample(agents, 30):
                    await asyncio.sleep(chance.random() * 0.02)
                    victim.cancel()
                ends = await asyncio.gather(*agents, return_exceptions=True)
                assert [end for end in ends if isinstance(end, Exception)] == []
                for key in acknowledged:  # an agent may have been cancelled before it had a session
                    await store.session(key)

    with nothing_left():
        run(work())
    count = sum(map(len, acknowledged.values()))
    assert count > 0
    assert cancelled > 0
    check = subprocess.run(
        [sys.executable, "-c", CHECK, url],
        input=json.dumps(acknowledged),
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stderr
    assert int(check.stdout) >= count


def test_the_examples_of_the_document_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block of the how-to runs as it stands."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, DOCUMENT.name, "exec"), {"__name__": "__main__"})
