"""Resumable scripts for asyncio: the same run, its steps awaited.

```python
async with store.run("nightly") as run:
    pages = await asyncio.gather(*(run.step(f"fetch {url}", fetch, url) for url in urls))
```

A step may be a coroutine function, which runs on the event loop, or a plain function, which runs on a thread.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, wraps
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from stepkeep.runs.questions import Waiting
from stepkeep.runs.scripts import (
    AwaitingAnswer,
    FinishedOutput,
    Run,
    Started,
    arguments_of,
    related,
    step_name,
)
from stepkeep.runs.signals import SignalHandler

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class ThreadCall(Protocol):
    """Runs a call on a thread, to its end even when nobody waits any more."""

    def __call__(self, call: Callable[[], T]) -> Coroutine[Any, Any, T]: ...


class AsyncRun:
    """`stepkeep.Run` for asyncio, entered with `async with`.

    Cancelling the task that runs the block, Ctrl-C and SIGTERM pause the run.
    """

    def __init__(self, run: Run, work: ThreadCall) -> None:
        self._run = run
        self._work = work
        self._calls: set[asyncio.Future[Any]] = set()
        self._is_terminated = False
        self._awaiting: AwaitingAnswer | None = None

    def __repr__(self) -> str:
        return f"<Async{repr(self._run)[1:]}"

    async def __aenter__(self) -> AsyncRun:
        await self._unless_cancelled(self._run.open, lambda _: self._run.close(asyncio.CancelledError()))
        task = asyncio.current_task()
        assert task is not None  # an `async with` runs in one
        self._signals = SignalHandler(
            lambda _: self._terminate(task),
            numbers=(signal.SIGTERM,),
            keeps_others=True,
            loop=asyncio.get_running_loop(),
        )
        self._signals.__enter__()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, *rest: object) -> None:
        self._signals.__exit__()
        if self._calls:  # a plain function whose wait was cancelled still works: keep the lease until it ends
            await asyncio.wait(self._calls)
        is_waiting = error is not None and any(isinstance(each, Waiting) for each in related(error))
        await self._work(partial(self._run.close, self._awaiting if is_waiting else error))
        if self._is_terminated:
            raise SystemExit(128 + signal.SIGTERM)
        if is_waiting and self._awaiting is not None:
            raise self._awaiting from None

    def _terminate(self, task: asyncio.Task[Any]) -> None:
        self._is_terminated = True
        task.cancel()

    @property
    def outputs(self) -> dict[str, Any]:
        """What the finished steps returned, by name; a copy."""
        return self._run.outputs

    @overload
    async def step(
        self, name: str, call: Callable[..., Awaitable[R]], /, *args: Any, key: object = None, **kwargs: Any
    ) -> R: ...

    @overload
    async def step(
        self, name: str, call: Callable[..., R], /, *args: Any, key: object = None, **kwargs: Any
    ) -> R: ...

    async def step(
        self, name: str, call: Callable[..., Any], /, *args: Any, key: object = None, **kwargs: Any
    ) -> Any:
        """Call a function, or await a coroutine function, once in the life of this run; see `Run.step`."""
        arguments = arguments_of(name, args, kwargs, key)
        started = await self._unless_cancelled(partial(self._run.start, name, call, arguments), self._give_up)
        if isinstance(started, FinishedOutput):
            return started.output
        try:
            returned = await self._call(call, args, kwargs)
        except BaseException as exc:
            self._run.fail(started, exc)
            raise
        return await self._work(partial(self._run.finish, started, returned))

    async def ask(self, name: str, text: str, *, timeout: float | None = None) -> Any:
        """What a person answered, as a step of this run; see `Run.ask`. It is the block that raises `AwaitingAnswer`.

        An exception that ends programs would end the event loop, wherever other tasks are at that moment.
        """
        return await self._work(partial(self._ask, name, text, timeout))

    def _ask(self, name: str, text: str, timeout: float | None) -> Any:
        try:
            return self._run.ask(name, text, timeout=timeout)
        except AwaitingAnswer as exc:
            self._awaiting = exc
            raise Waiting(text) from None

    @overload
    def task(self, call: Callable[P, Awaitable[R]], /) -> Callable[P, Coroutine[Any, Any, R]]: ...

    @overload
    def task(
        self, call: None = None, /, *, name: str
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]: ...

    def task(self, call: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
        """Make a step of a function or coroutine function; see `Run.task`. The result is to be awaited."""
        if call is None:
            return lambda function: self._task(function, name)
        return self._task(call, name)

    def _task(self, call: Callable[..., Any], name: str | None) -> Callable[..., Coroutine[Any, Any, Any]]:
        @wraps(call)
        async def step(*args: Any, **kwargs: Any) -> Any:
            return await self.step(step_name(call, name, args, kwargs), call, *args, **kwargs)

        return step

    async def _call(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(call):
            return await call(*args, **kwargs)
        calling = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
        self._calls.add(calling)
        calling.add_done_callback(self._called)
        returned = await asyncio.shield(calling)
        return await returned if inspect.isawaitable(returned) else returned

    def _called(self, calling: asyncio.Future[Any]) -> None:
        self._calls.discard(calling)
        if not calling.cancelled():
            calling.exception()  # its waiter may be gone, and then nobody else asks

    def _give_up(self, started: Started | FinishedOutput) -> None:
        if isinstance(started, Started):
            self._run.fail(started, asyncio.CancelledError())

    async def _unless_cancelled(self, call: Callable[[], T], undo: Callable[[T], None]) -> T:
        """What a call on a thread returns. When the wait is cancelled, what it did is undone."""
        calling = asyncio.ensure_future(self._work(call))
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            await asyncio.wait([calling])
            if not calling.cancelled() and calling.exception() is None:
                await self._work(partial(undo, calling.result()))
            raise
