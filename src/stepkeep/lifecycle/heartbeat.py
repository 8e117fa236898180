"""A thread that beats while work is in progress. What a beat raises never leaves it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeAlias

Wait: TypeAlias = Callable[[float], bool]
"""Wait so many seconds; True when the heart shall stop. Tests give one that moves their clock instead."""


class Heartbeat:
    """Calls `beat` again and again, each time after `seconds_left()`. `beat` must not raise.

    It may be started again after a stop, and in a forked child.
    """

    def __init__(
        self, beat: Callable[[], object], seconds_left: Callable[[], float], wait: Wait | None = None
    ) -> None:
        self._beat = beat
        self._seconds_left = seconds_left
        self._wait = wait
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def start(self) -> None:
        """Begin to beat. Nothing happens when the heart beats already."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            # Each thread has an event of its own: one that is still ending must not go on with the next.
            self._stopped = threading.Event()
            self._pid = os.getpid()
            self._thread = threading.Thread(
                target=self._work, args=(self._stopped,), name="stepkeep-heartbeat", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Return when the thread has ended. A forked child has none, and a beat may stop itself."""
        with self._lock:
            self._stopped.set()
            thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._pid and thread is not threading.current_thread():
            thread.join()

    def _work(self, stopped: threading.Event) -> None:
        wait = stopped.wait if self._wait is None else self._wait
        while not stopped.is_set() and not wait(self._seconds_left()):
            self._beat()
