"""Reasons to stop a run from outside: a signal, another thread, a lost lease."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.processes import tell_of_forks

if TYPE_CHECKING:
    import asyncio

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

LONGEST_WAIT_SECONDS: Final = 0.5
"""How long a run's thread waits at a time: a signal that comes just before a wait begins, or that the kernel gives to
another thread, does not interrupt it, and its handler runs when the wait is over."""


class Stop(msgspec.Struct, frozen=True):
    """Stop the run. `signal` is the number of the signal, where it was one."""

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

    @contextmanager
    def stopping(self, listener: Callable[[], object]) -> Iterator[None]:
        """Let it stop what runs in the block, by calling `listener`."""
        self.subscribe(listener)
        try:
            yield
        finally:
            self.unsubscribe(listener)

    def unsubscribe(self, listener: Callable[[], object]) -> None:
        with self._lock:
            self._listeners.remove(listener)


def cancellation(given: object) -> Cancellation:
    """What a caller passed as `cancel`; one of its own where that is nothing."""
    if given is None:
        return Cancellation()
    if not isinstance(given, Cancellation):
        raise InvalidInput(
            f"cancel is a Cancellation, not {type(given).__name__}: make one, pass it, and call its cancel()",
            code="invalid_option",
        )
    return given


class SignalHandler:
    """SIGINT and SIGTERM are told to `handle` instead of ending the process, from `with` to its end.

    Only on the main thread, which is the only one that may; elsewhere, and for signals that are ignored, nothing
    changes. `handle` is called between two instructions of the main thread, so it must not take a lock; with a `loop`
    it is called by that event loop. With `keeps_others` a signal that the program handles in its own way stays as it
    is.

    A child that is forked meanwhile has nothing that could be paused: a signal does to it what it did before. The
    signal waits until the child has its old handlers: Python forgets signals that come in the middle of a fork, and
    a handler in Python does not end a child that waits for a lock.
    """

    def __init__(
        self,
        handle: Callable[[Stop], object],
        *,
        numbers: tuple[signal.Signals, ...] = SIGNALS,
        keeps_others: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._handle = handle
        self._numbers = numbers
        self._keeps_others = keeps_others
        self._loop = loop
        self._previous: dict[signal.Signals, Any] = {}
        self._installed: dict[signal.Signals, Any] = {}
        self._mask: set[int] = set()
        self._pid = os.getpid()

    def __enter__(self) -> SignalHandler:
        self._pid = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                self._install(number)
        if self._previous:
            tell_of_forks(self)
        return self

    def _install(self, number: signal.Signals) -> None:
        previous = signal.getsignal(number)
        if previous in (signal.SIG_IGN, None) or (self._keeps_others and previous is not signal.SIG_DFL):
            return
        if self._loop is None:
            signal.signal(number, self._called)
        else:
            try:
                self._loop.add_signal_handler(number, self._handle, Stop(number))
            except (NotImplementedError, RuntimeError, ValueError):
                return  # a loop that cannot, or that another thread runs
        self._previous[number] = previous
        self._installed[number] = signal.getsignal(number)

    def before_fork(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._previous)

    def after_fork(self, *, is_child: bool) -> None:
        if is_child and all(signal.getsignal(number) == own for number, own in self._installed.items()):
            self._restore()
            if self._loop is not None:
                signal.set_wakeup_fd(-1)  # it is the parent's: the child's signals would reach its event loop
        # What raises here would keep the others from learning of the fork; Python would drop it as well.
        with suppress(BaseException):
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _called(self, number: int, _: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self._handle(Stop(number))
            return
        self._restore()
        os.kill(os.getpid(), number)

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and os.getpid() == self._pid:
            for number in self._previous:
                self._loop.remove_signal_handler(number)
        self._restore()

    def _restore(self) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}
        self._installed = {}


def exits_on_sigterm() -> SignalHandler:
    """SIGTERM as `SystemExit`, so that a script, which is the program itself, can save where it stands.

    Only an exception reaches the code that runs; Ctrl-C already is one. A program that handles SIGTERM in its own way
    keeps that.
    """

    def leave(stop: Stop) -> NoReturn:
        raise SystemExit(128 + stop.signal)

    return SignalHandler(leave, numbers=(signal.SIGTERM,), keeps_others=True)
