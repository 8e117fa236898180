"""The same store for asyncio programs: every call runs on a thread of a small pool, the event loop stays free.

```python
async with holdfast.aio.open("sqlite:runs.db") as store:
    run = await store.session("research-42")
    await run.save({"results": []}, step=1)
    print((await run.latest()).state)
```

There is no second implementation here: each method calls the one of `holdfast.api` and awaits it. Results and
exceptions are the same objects.

Cancelling a call that a thread has begun ends the wait, not the work: whether a cancelled save is stored is
unknown at that moment, but it is stored whole or not at all. The next call on that session waits until it is
settled, so a cancelled save never lands after a later one, and `latest()` tells what became of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial, wraps
from itertools import islice
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar, Unpack

from holdfast import api
from holdfast.api import SaveOptions, Session, Store
from holdfast.codec import exact
from holdfast.config import Settings
from holdfast.errors import BackendUnavailable, InvalidInput
from holdfast.model import Header, utc_now_us
from holdfast.model import Session as SessionInfo

__all__ = ["THREADS", "AsyncSession", "AsyncStore", "Opening", "open"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

THREADS: Final = 16
"""How many calls of one store run at a time; as many saves can share one commit."""

PAGE: Final = 200
"""How many entries of a list are fetched at a time."""


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    config: Settings | None = None,
    keyframe_every: int | None = None,
    max_state_bytes: int = exact.MAX_BYTES,
    clock: Callable[[], int] = utc_now_us,
    threads: int = THREADS,
) -> Opening:
    """Open a store as `holdfast.open` does: `async with open(…) as store`, or `store = await open(…)`.

    Up to `threads` calls run at a time, others wait for their turn.
    """
    if threads < 1:
        raise InvalidInput("threads counts the calls that run at a time: 1 or more", code="invalid_option")
    opener = partial(
        api.open,
        url,
        config=config,
        keyframe_every=keyframe_every,
        max_state_bytes=max_state_bytes,
        clock=clock,
    )
    return Opening(opener, threads)


class Opening:
    """A store about to be opened: await it, or enter it with `async with`."""

    def __init__(self, opener: Callable[[], Store], threads: int) -> None:
        self._opener = opener
        self._threads = threads
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def _open(self) -> AsyncStore:
        workers = _Workers(self._threads)
        opened = ExitStack()
        try:
            store = await workers.run(None, lambda: opened.enter_context(self._opener()))
        except BaseException:
            await workers.close(opened.close)  # cancelled or failed: nobody else could
            raise
        return AsyncStore(store, workers)

    async def __aenter__(self) -> AsyncStore:
        self._store = await self
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.aclose()


class _Workers:
    """The threads of one store, and the writes there that nobody waits for any more."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-aio")
        self._closer = ThreadPoolExecutor(1, thread_name_prefix="holdfast-aio-close")
        self._closing: Future[None] | None = None
        self._abandoned: dict[Future[None], str | None] = {}

    async def run(self, session: str | None, call: Callable[[], R], *, is_write: bool = False) -> R:
        """Run a call on a thread, after the abandoned writes of that session.

        A cancelled call that has not begun never runs; one that has runs to its end.
        """
        if session is not None:
            await self.settle(session)
        if self._closing is not None:
            raise BackendUnavailable("this store is closed", code="store_closed", retryable=False)
        future = self._pool.submit(copy_context().run, call)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if is_write and not future.cancel():
                self._abandon(session, future)
            raise

    def _abandon(self, session: str | None, future: Future[Any]) -> None:
        # Waiting for this one cannot raise: what the call itself raises is nobody's business any more.
        settled: Future[None] = Future()

        def settle(_: object) -> None:
            self._abandoned.pop(settled)
            settled.set_result(None)

        self._abandoned[settled] = session
        future.add_done_callback(settle)

    async def settle(self, session: str | None = None) -> None:
        """Return when the abandoned writes of that session, or of all, have come to their end."""
        abandoned = list(self._abandoned.items())  # a copy in one step: threads take entries away
        waiting = [settled for settled, owner in abandoned if session in (None, owner)]
        if waiting:
            # Unlike `gather` this leaves them alone when it is cancelled itself.
            await asyncio.wait([asyncio.wrap_future(settled) for settled in waiting])

    async def close(self, release: Callable[[], None]) -> None:
        """Let every call under way finish, end the threads, then call `release`: once, however often repeated.

        Cancelling it ends the wait, not the closing.
        """
        if self._closing is None:
            self._closing = self._closer.submit(self._finish, release)
        await asyncio.wait([ended := asyncio.wrap_future(self._closing)])
        self._closer.shutdown()
        ended.result()

    def _finish(self, release: Callable[[], None]) -> None:
        self._pool.shutdown()
        release()


class _Facade(Generic[S]):
    """A synchronous object and the threads its methods run on."""

    def __init__(self, sync: S, workers: _Workers) -> None:
        self._sync = sync
        self._workers = workers

    @property
    def _owner(self) -> str | None:
        """The session whose abandoned writes a call waits for."""
        return None


def _reading(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[_Facade[S], P], Coroutine[Any, Any, R]]:
    """The awaitable form of a method."""

    @wraps(method)
    async def call(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._workers.run(self._owner, partial(method, self._sync, *args, **kwargs))

    return call


def _writing(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[_Facade[S], P], Coroutine[Any, Any, R]]:
    """The awaitable form of a method that later calls on its session must not overtake."""

    @wraps(method)
    async def call(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        work = partial(method, self._sync, *args, **kwargs)
        return await self._workers.run(self._owner, work, is_write=True)

    return call


def _listing(
    method: Callable[Concatenate[S, P], Iterator[R]],
) -> Callable[Concatenate[_Facade[S], P], AsyncIterator[R]]:
    """The form for `async for` of a method that lists: each page is fetched on a thread."""

    @wraps(method)
    async def pages(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[R]:
        entries = await self._workers.run(self._owner, partial(method, self._sync, *args, **kwargs))
        while page := await self._workers.run(self._owner, lambda: list(islice(entries, PAGE))):
            for entry in page:
                yield entry

    return pages


def _finding(
    method: Callable[Concatenate[Store, P], Session],
) -> Callable[Concatenate[_Facade[Store], P], Coroutine[Any, Any, AsyncSession]]:
    """The awaitable form of a method that finds or makes a session."""
    find = _reading(method)

    @wraps(method)
    async def call(self: _Facade[Store], /, *args: P.args, **kwargs: P.kwargs) -> AsyncSession:
        return AsyncSession(await find(self, *args, **kwargs), self._workers)

    return call


class AsyncSession(_Facade[Session]):
    """`holdfast.Session` for asyncio: the same methods, awaited; lists are read with `async for`."""

    @property
    def key(self) -> str:
        return self._sync.key

    @property
    def uid(self) -> str:
        return self._sync.uid

    @property
    def _owner(self) -> str:
        return self._sync.uid

    def __repr__(self) -> str:
        return f"<AsyncSession {self.key!r}>"

    async def info(self) -> SessionInfo:
        """The session as it is stored now: status, profile, current branch, times."""
        return await self._workers.run(self._owner, lambda: self._sync.info)

    async def save(self, state: object, **options: Unpack[SaveOptions]) -> Header:
        """Save a state as the next checkpoint. When this returns, it survives a crash and a loss of power.

        The state is encoded before anything is awaited, on the event loop: what is stored is the state as it was
        then, and it may change at once. The rest happens on a thread. Otherwise as `Session.save`.

        When this is cancelled the outcome is unknown, but never half a checkpoint; the next call on this
        session waits until it is known.
        """
        save = self._sync._save_of(state, **options)
        return await self._workers.run(self._owner, partial(self._sync._engine.save, save), is_write=True)

    latest = _reading(Session.latest)
    newest = _reading(Session.newest)
    load = _reading(Session.load)
    at = _reading(Session.at)
    header = _reading(Session.header)
    history = _listing(Session.history)

    bodies = _reading(Session.bodies)
    branches = _reading(Session.branches)
    events = _reading(Session.events)
    usage = _reading(Session.usage)
    verify = _reading(Session.verify)

    complete = _writing(Session.complete)
    fail = _writing(Session.fail)
    cancel = _writing(Session.cancel)
    pause = _writing(Session.pause)

    prune = _writing(Session.prune)
    delete = _writing(Session.delete)
    clear = _writing(Session.clear)


class AsyncStore(_Facade[Store]):
    """`holdfast.Store` for asyncio. Use it as an async context manager, or await `aclose`."""

    @property
    def url(self) -> str:
        return self._sync.url

    @property
    def sync(self) -> Store:
        """The store underneath, for what must run outside the event loop. Leave closing it to `aclose`."""
        return self._sync

    @property
    def settings(self) -> Settings:
        return self._sync.settings

    session = _finding(Store.session)
    get = _finding(Store.get)
    sessions = _listing(Store.sessions)
    checkpoint = _reading(Store.checkpoint)
    checkpoints = _listing(Store.checkpoints)
    verify = _reading(Store.verify)
    usage = _reading(Store.usage)
    prune = _writing(Store.prune)
    clean = _writing(Store.clean)

    async def flush(self) -> None:
        """Return when every write whose wait was cancelled is settled."""
        await self._workers.settle()
        await self._workers.run(None, self._sync.flush)

    async def aclose(self) -> None:
        """Finish every call under way, cancelled ones too, end the threads and release everything.

        Repeating it is harmless. When it is cancelled, the closing goes on; awaiting it again waits for the end.
        """
        await self._workers.close(self._sync.close)

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
