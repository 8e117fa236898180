"""Captures nobody waits for: one thread makes them one after the other, in the order they were asked for."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from weakref import WeakKeyDictionary

from stepkeep import forks
from stepkeep.engine import Engine, Pending
from stepkeep.model import Header

log = logging.getLogger("stepkeep")


class PendingCapture(Pending):
    """A save whose files are still being captured; otherwise as any pending save. Its id is known at the end."""

    def __init__(self, make: Callable[[], Header]) -> None:
        self._make = make
        self._done = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do it, on whichever thread; what it raises is for who asks for the result."""
        try:
            self._header = self._make()
        except BaseException as exc:
            log.error("a capture in the background failed: %s", exc)
            self._error = exc
        finally:
            self._done.set()

    @property
    def id(self) -> str:  # type: ignore[override]
        return self.result().id

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def result(self) -> Header:
        self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._header is not None
        return self._header


class CaptureQueue:
    """The captures under way on one engine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.Queue[PendingCapture | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        forks.register(self)

    def submit(self, make: Callable[[], Header]) -> PendingCapture:
        pending = PendingCapture(make)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="stepkeep-capture", daemon=True)
                self._thread.start()
            self._jobs.put(pending)
        return pending

    def wait(self) -> None:
        """Return when every capture asked for so far is saved, or failed."""
        self._jobs.join()

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._jobs.put(None)
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while (pending := self._jobs.get()) is not None:
            pending.run()
            self._jobs.task_done()
        self._jobs.task_done()

    def before_fork(self) -> None:
        self._jobs.join()

    def after_fork(self, *, is_child: bool) -> None:
        if is_child:
            self._lock, self._jobs, self._thread = threading.Lock(), queue.Queue(), None


_queues: WeakKeyDictionary[Engine, CaptureQueue] = WeakKeyDictionary()
_guard = threading.Lock()


def submit(engine: Engine, make: Callable[[], Header]) -> PendingCapture:
    """Let the engine's thread make a capture."""
    with _guard:
        if engine not in _queues:
            _queues[engine] = CaptureQueue()
        return _queues[engine].submit(make)


def settle(engine: Engine) -> None:
    """Return when no capture is under way on this engine: a save must not overtake one that was asked for before."""
    found = _queues.get(engine)
    if found is not None:
        found.wait()


def close(engine: Engine) -> None:
    """Finish what was asked for, and end the thread."""
    found = _queues.pop(engine, None)
    if found is not None:
        found.close()
