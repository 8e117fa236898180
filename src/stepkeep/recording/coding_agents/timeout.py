"""A time limit on a block of code, whatever it waits for."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

from stepkeep.errors import BackendUnavailable


class Timeout:
    """Raise in the block when it takes too long, where signals allow it. Blocks may be nested.

    Raises:
        BackendUnavailable: (`hook_timeout`) the time is over.
    """

    def __init__(self, seconds: float, problem: str) -> None:
        self._seconds = seconds
        self._problem = problem
        self._is_main_thread = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._is_main_thread:
            self._began = time.monotonic()
            self._handler = signal.signal(signal.SIGALRM, self._give_up)
            self._left, _ = signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *_: object) -> None:
        if self._is_main_thread:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._handler)
            if self._left:  # that of the block around this one goes on
                passed = time.monotonic() - self._began
                signal.setitimer(signal.ITIMER_REAL, max(0.001, self._left - passed))

    def _give_up(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        raise BackendUnavailable(f"{self._problem} within {self._seconds:g} seconds", code="hook_timeout")
