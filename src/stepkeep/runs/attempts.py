"""Calling handlers: each attempt on a thread of its own, or as a coroutine on an event loop, with values of its own.

Handlers run at the same time and keep what they return. So every value is copied on its way in and out, by the
encoding it is saved with: what the next step sees is what a resumed run would see.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

import msgspec

from stepkeep.engine import Engine, NewBody
from stepkeep.errors import InvalidInput
from stepkeep.runs.plan import place_in
from stepkeep.runs.questions import Waiting
from stepkeep.runs.run_options import Handler, StepContext
from stepkeep.text import error_text


def copy_of(engine: Engine, value: object, *, what: str) -> Any:
    """An independent copy, equal to what loading it gives.

    Raises:
        InvalidInput: it cannot be saved; `.path` names the place, starting with `what`.
    """
    return _value(_kept(engine, value, what))


class Outputs(Mapping[str, Any]):
    """Outputs by step id; each is copied when it is asked for."""

    def __init__(self, outputs: Mapping[str, Any], copy: Callable[[Any], Any]) -> None:
        self._outputs = outputs
        self._copy = copy

    def __getitem__(self, step: str) -> Any:
        return self._copy(self._outputs[step])

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)


class WorkingMemory:
    """The working memory of a run. A step gets a copy; what it changed is taken over when it is completed.

    Where two steps change the same key at the same time, the one that is completed later wins.
    """

    def __init__(self, engine: Engine, values: Mapping[str, Any]) -> None:
        self._engine = engine
        self._kept = {key: _kept(engine, value, _place(key)) for key, value in values.items()}
        self.values = {key: _value(kept) for key, kept in self._kept.items()}

    def lend(self) -> tuple[dict[str, Any], dict[str, NewBody]]:
        """A copy for a step, and what it is compared with afterwards."""
        return {key: _value(kept) for key, kept in self._kept.items()}, self._kept

    def changes(self, before: Mapping[str, NewBody], after: object) -> dict[str, NewBody | None]:
        """What a step did to its copy: new values, None for a key it removed.

        Raises:
            InvalidInput: a value cannot be saved.
        """
        if not isinstance(after, Mapping):
            raise InvalidInput(
                f"the context is a dict, not {type(after).__name__}", code="state_not_exact", path="context"
            )
        now = {key: _kept(self._engine, value, _place(key)) for key, value in after.items()}
        changed: dict[str, NewBody | None] = {
            key: kept for key, kept in now.items() if before.get(key) != kept
        }
        return changed | {key: None for key in before if key not in now}

    def with_changes(self, changes: Mapping[str, NewBody | None]) -> WorkingMemory:
        """The memory after a step's changes; this one stays as it is."""
        if not changes:
            return self
        new = WorkingMemory(self._engine, {})
        kept = {**self._kept, **changes}
        new._kept = {key: body for key, body in kept.items() if body is not None}
        new.values = {
            key: self.values[key] if key not in changes else _value(body) for key, body in new._kept.items()
        }
        return new


def _place(key: object) -> str:
    return f"context[{key!r}]"


def _kept(engine: Engine, value: object, what: str) -> NewBody:
    try:
        return engine.encode(value)
    except InvalidInput as exc:
        place = place_in(what, exc.path)
        raise InvalidInput(f"{place} cannot be saved: {exc}", code=exc.code, path=place) from exc


def _value(kept: NewBody) -> Any:
    return kept.value()


CLOSE_SECONDS: Final = 2.0
"""How long the end of a run waits for cancelled coroutines to clean up."""


class Attempt(msgspec.Struct, kw_only=True, eq=False):
    """One attempt that was started. `memory` is what its copy of the context is compared with."""

    context: StepContext
    memory: Mapping[str, NewBody]
    timeout_seconds: float | None
    started: float = msgspec.field(default_factory=time.monotonic)
    future: Future[Any] | None = None

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


class AttemptEnded(msgspec.Struct, frozen=True):
    """An attempt came to its end, with a value or an error, or because it waits for a person."""

    attempt: Attempt
    value: Any = None
    error: Exception | None = None
    waiting: Waiting | None = None


Calls: TypeAlias = SimpleQueue[Callable[[], AttemptEnded] | None]


class Attempts:
    """Starts attempts and posts their ends. `loop` is where coroutines run; without one, a private loop."""

    def __init__(
        self,
        handler: Handler,
        post: Callable[[AttemptEnded], object],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._handler = handler
        self._post = post
        self._loop = loop
        self._threads: list[Calls] = []
        self._idle: list[Calls] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object with an async __call__
        )

    def start(self, attempt: Attempt) -> None:
        if self._is_async:
            self._start_coroutine(attempt)
            return
        calls = self._idle.pop() if self._idle else self._new_thread()
        calls.put(partial(copy_context().run, self._ended, attempt, partial(self._call, attempt)))

    def _new_thread(self) -> Calls:
        """What is put there is called on a new thread, one after the other; None ends it."""
        calls: Calls = SimpleQueue()
        # One that hangs must not keep the process from ending.
        threading.Thread(target=self._work, args=(calls,), name="stepkeep-step", daemon=True).start()
        self._threads.append(calls)
        return calls

    def _work(self, calls: Calls) -> None:
        while (call := calls.get()) is not None:
            ended = call()
            self._idle.append(calls)  # before the end is told: the next step finds this thread
            self._post(ended)

    def _call(self, attempt: Attempt) -> Any:
        value = self._handler(attempt.context)
        if not inspect.isawaitable(value):
            return value
        attempt.future = self._submit(_awaited(value))
        return attempt.future.result()

    @staticmethod
    def _ended(attempt: Attempt, call: Callable[[], Any]) -> AttemptEnded:
        """What a call returns or raises."""
        try:
            return AttemptEnded(attempt, call())
        except Waiting as exc:
            return AttemptEnded(attempt, waiting=exc)
        except BaseException as exc:  # `sys.exit` in a handler ends its step, not the process
            return AttemptEnded(attempt, error=_as_exception(exc))

    def _start_coroutine(self, attempt: Attempt) -> None:
        async def call() -> Any:
            return await _awaited(self._handler(attempt.context))

        attempt.future = self._submit(call())
        attempt.future.add_done_callback(lambda future: self._post(self._ended(attempt, future.result)))

    def _submit(self, work: Any) -> Future[Any]:
        with self._lock:
            if self._loop is None:
                self._loop = self._private_loop()
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise

    def _private_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop on a thread of its own, until the end of the run."""
        started: SimpleQueue[asyncio.AbstractEventLoop] = SimpleQueue()

        async def work() -> None:
            self._is_over = asyncio.Event()
            started.put(asyncio.get_running_loop())
            await self._is_over.wait()

        self._thread = threading.Thread(target=lambda: asyncio.run(work()), name="stepkeep-loop", daemon=True)
        self._thread.start()
        return started.get()

    def __enter__(self) -> Attempts:
        return self

    def __exit__(self, *_: object) -> None:
        """End the threads that are done; cancel what still runs on the private loop, and give it a moment."""
        for calls in self._threads:
            calls.put(None)
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._is_over.set)
            self._thread.join(CLOSE_SECONDS)  # a coroutine that does not end is left to the daemon thread


async def _awaited(work: Any) -> Any:
    """The result of a coroutine; what would end the loop's thread becomes an ordinary error."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as exc:
        raise _as_exception(exc) from exc


def _as_exception(error: BaseException) -> Exception:
    if isinstance(error, Exception) and not isinstance(error, CancelledError):
        return error
    said = error_text(error)
    wrapped = RuntimeError(f"the handler ended with {type(error).__name__}{f': {said}' if said else ''}")
    wrapped.__cause__ = error
    return wrapped
