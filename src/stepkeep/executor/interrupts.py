"""Reasons to stop a run from outside: a signal, another thread, a lost lease."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from types import FrameType, TracebackType
from typing import Any, Final

import msgspec

from stepkeep import forks

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Reason(StrEnum):
    CANCELLED = "cancelled"
    SIGNAL = "signal"
    LEASE_LOST = "lease_lost"


class Stop(msgspec.Struct, frozen=True):
    """Stop the run. `signal` is the number of the signal, where it was one."""

    reason: Reason
    signal: int = 0


class Cancellation:
    """Stops runs from any thread: pass it on when they start, then call `cancel`. It stays cancelled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], object]] = []
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> None:
        """Stop every run that has it; each saves a `paused` checkpoint. Repeating it is harmless."""
        with self._lock:
            listeners = [] if self._is_cancelled else list(self._listeners)
            self._is_cancelled = True
        for listener in listeners:
            listener()

    def subscribe(self, listener: Callable[[], object]) -> None:
        """Call `listener` when it is cancelled; at once if it already is."""
        with self._lock:
            self._listeners.append(listener)
            is_late = self._is_cancelled
        if is_late:
            listener()

    def unsubscribe(self, listener: Callable[[], object]) -> None:
        with self._lock:
            self._listeners.remove(listener)


class Signals:
    """SIGINT and SIGTERM are told to `post` instead of ending the process, from `with` to its end.

    Only on the main thread, which is the only one that may; elsewhere, and for signals that are ignored, nothing
    changes. `post` is called between two instructions of the main thread, so it must not take a lock. A child that
    is forked meanwhile runs nothing that could be paused: a signal does to it what it did before. It waits until the
    child has its old handlers: Python forgets signals that come in the middle of a fork, and a handler in Python
    does not end a child that waits for a lock.
    """

    def __init__(self, post: Callable[[Stop], object], *, is_enabled: bool = True) -> None:
        self._post = post
        self._is_enabled = is_enabled
        self._previous: dict[signal.Signals, Any] = {}
        self._mask: set[int] = set()
        self._pid = os.getpid()

    def __enter__(self) -> Signals:
        self._pid = os.getpid()
        if self._is_enabled and threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous[number] = signal.signal(number, self._handle)
        if self._previous:
            forks.register(self)
        return self

    def before_fork(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._previous)

    def after_fork(self, *, is_child: bool) -> None:
        if is_child and all(signal.getsignal(number) == self._handle for number in self._previous):
            self._restore()
        # What raises here would keep the others from learning of the fork; Python would drop it as well.
        with suppress(BaseException):
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self._post(Stop(Reason.SIGNAL, number))
            return
        self._restore()
        os.kill(os.getpid(), number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
