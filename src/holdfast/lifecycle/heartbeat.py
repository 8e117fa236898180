"""A thread that beats while work is in progress. What a beat raises never leaves it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeAlias

Wait: TypeAlias = Callable[[float], bool]
"""Wait so many seconds; True when the heart shall stop. Tests give one that moves their clock instead."""


class Heartbeat:
    """Calls `beat` again and again, each time after `seconds_left()`. `beat` must not raise."""

    def __init__(
        self, beat: Callable[[], object], seconds_left: Callable[[], float], wait: Wait | None = None
    ) -> None:
        self._beat = beat
        self._seconds_left = seconds_left
        self._stopped = threading.Event()
        self._wait = self._stopped.wait if wait is None else wait
        self._thread: threading.Thread | None = None
        self._pid = 0

    def start(self) -> None:
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._work, name="holdfast-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when the thread has ended. A forked child has none, and a beat may stop itself."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._pid and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        while not self._stopped.is_set() and not self._wait(self._seconds_left()):
            self._beat()
