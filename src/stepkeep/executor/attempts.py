"""Calling handlers: each attempt on a thread of its own, or as a coroutine on an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from types import TracebackType
from typing import Any, Final

import msgspec

from stepkeep.engine.engine import NewBody
from stepkeep.executor.steps import Handler, StepContext

CLOSE_SECONDS: Final = 1.0
"""How long the end of a run waits for cancelled coroutines to clean up."""


class Attempt:
    """One attempt that was started. `memory` is what its copy of the context is compared with."""

    def __init__(
        self, context: StepContext, *, memory: Mapping[str, NewBody], timeout_seconds: float | None
    ) -> None:
        self.context = context
        self.memory = memory
        self.timeout_seconds = timeout_seconds
        self.started = time.monotonic()
        self.future: Future[Any] | None = None

    @property
    def index(self) -> int:
        return self.context.index

    @property
    def deadline(self) -> float | None:
        return None if self.timeout_seconds is None else self.started + self.timeout_seconds

    @property
    def duration_ms(self) -> int:
        return round((time.monotonic() - self.started) * 1000)

    def cancel(self) -> None:
        """Say that the result is no longer wanted. A thread cannot be stopped: it is left alone."""
        self.context.cancelled.set()
        if self.future is not None:
            self.future.cancel()


class Ended(msgspec.Struct, frozen=True):
    """An attempt came to its end, with a value or an error."""

    attempt: Attempt
    value: Any = None
    error: Exception | None = None


class Attempts:
    """Starts attempts and posts their ends. `loop` is where coroutines run; without one, a private loop."""

    def __init__(
        self,
        handler: Handler,
        post: Callable[[Ended], object],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._handler = handler
        self._post = post
        self._loop = loop
        self._private: _PrivateLoop | None = None
        self._lock = threading.Lock()
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object with an async __call__
        )

    def start(self, attempt: Attempt) -> None:
        if self._is_async:
            self._start_coroutine(attempt)
            return
        context = copy_context()
        threading.Thread(
            target=lambda: context.run(self._call, attempt),
            name=f"stepkeep-step-{attempt.context.step.id}",
            daemon=True,  # one that hangs must not keep the process from ending
        ).start()

    def _call(self, attempt: Attempt) -> None:
        try:
            value = self._handler(attempt.context)
            if inspect.isawaitable(value):
                attempt.future = self._submit(_awaited(value))
                value = attempt.future.result()
        except BaseException as exc:  # `sys.exit` in a handler ends its step, not the process
            self._post(Ended(attempt, error=_as_exception(exc)))
        else:
            self._post(Ended(attempt, value))

    def _start_coroutine(self, attempt: Attempt) -> None:
        def end(future: Future[Any]) -> None:
            if future.cancelled():
                self._post(Ended(attempt, error=_as_exception(asyncio.CancelledError())))
            elif (error := future.exception()) is not None:
                self._post(Ended(attempt, error=_as_exception(error)))
            else:
                self._post(Ended(attempt, future.result()))

        async def call() -> Any:
            return await _awaited(self._handler(attempt.context))

        attempt.future = self._submit(call())
        attempt.future.add_done_callback(end)

    def _submit(self, work: Any) -> Future[Any]:
        with self._lock:
            if self._loop is None:
                self._private = _PrivateLoop()
                self._loop = self._private.loop
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise

    def __enter__(self) -> Attempts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._private is not None:
            self._private.close()


async def _awaited(work: Any) -> Any:
    """The result of a coroutine; what would end the loop's thread becomes an ordinary error."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as exc:
        raise _as_exception(exc) from exc


def _as_exception(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(
        f"the handler ended with {type(error).__name__}{f': {error}' if str(error) else ''}"
    )
    wrapped.__cause__ = error
    return wrapped


class _PrivateLoop:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="stepkeep-loop", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def close(self) -> None:
        """Cancel what still runs, give it a moment, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._finish(), self.loop)
        self._thread.join(2 * CLOSE_SECONDS)  # a coroutine that blocks its loop is left to the daemon thread

    async def _finish(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        await self.loop.shutdown_asyncgens()
        self.loop.call_soon(self.loop.stop)
