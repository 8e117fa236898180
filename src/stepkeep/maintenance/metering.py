"""Counting what happens in a store: in memory on the way, written down in the background and at close.

A save pays for a few additions. A thread adds what was counted to the file every few seconds; closing the store, or
the end of the program, adds the rest. A process that is killed loses the counts of its last seconds and nothing else.
Whatever goes wrong while counting is logged once and never felt by a save.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from stepkeep.engine import Saved
from stepkeep.errors import Conflict, StepkeepError
from stepkeep.maintenance.metrics import HOUR_US, Counts, added, latency_class
from stepkeep.maintenance.metrics_file import KeepsCounts
from stepkeep.maintenance.telemetry import Reporter
from stepkeep.model import utc_now_us
from stepkeep.processes import tell_of_forks

log = logging.getLogger("stepkeep")

FLUSH_SECONDS: Final = 10.0
END_SECONDS: Final = 5.0
"""How long closing waits for a write that is under way."""


class Meter:
    """The counters of one open store. Safe for threads and forks; nothing here raises.

    Without a place to keep them they live as long as the store.
    """

    def __init__(
        self,
        place: KeepsCounts | None = None,
        *,
        clock: Callable[[], int] = utc_now_us,
        reporter: Reporter | None = None,
    ) -> None:
        self._clock = clock
        self._reporter = reporter
        self._ledger = _Ledger(place)
        # Also at the end of the program, for a store that nobody closed.
        self._end = weakref.finalize(self, self._ledger.end)
        tell_of_forks(self)

    def count(self, **numbers: int) -> None:
        """Add to counters."""
        self._ledger.add(self._clock() // HOUR_US, numbers)
        if self._reporter is not None:
            self._report(lambda reporter: reporter.count(numbers))

    def saved(self, save: Saved) -> None:
        """Count a save that is durable."""
        if not save.is_new:
            self.count(repeats=1)
            return
        content_bytes = save.header.size_bytes
        numbers = {
            "saves": 1,
            "content_bytes": content_bytes,
            "stored_bytes": save.stored_bytes,
            "save_us": int(save.seconds * 1e6),
            latency_class(save.seconds): 1,
        }
        self._ledger.add(save.header.time_us // HOUR_US, numbers)
        if self._reporter is not None:
            self._report(
                lambda reporter: reporter.saved(
                    content_bytes=content_bytes, stored_bytes=save.stored_bytes, seconds=save.seconds
                )
            )

    def _report(self, work: Callable[[Reporter], None]) -> None:
        if self._reporter is None:
            return
        try:
            work(self._reporter)
        except Exception as exc:  # instruments are foreign code, and no save is to feel them
            self._reporter = None
            log.warning("nothing more is reported to OpenTelemetry: %s", exc)

    def failed(self, error: StepkeepError) -> None:
        """Count a save that was refused or could not be stored."""
        self.count(**{"conflicts" if isinstance(error, Conflict) else "failures": 1})

    def counts(self) -> Counts:
        """What all processes counted, this one included."""
        return self._ledger.counts()

    def flush(self) -> None:
        """Write down what was counted so far."""
        self._ledger.flush()

    def close(self) -> None:
        """Write down the rest and end the thread. Repeating it is harmless."""
        self._end()

    def before_fork(self) -> None:
        self._ledger.before_fork()

    def after_fork(self, *, is_child: bool) -> None:
        self._ledger.after_fork(is_child=is_child)


class _Ledger:
    """Counts that wait to be written down, and the thread that does it. It outlives its meter for one last write."""

    def __init__(self, place: KeepsCounts | None) -> None:
        self._place = place
        self._counts: Counts = {}
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()  # guards the counts
        self._writing = threading.Lock()  # one write at a time, and none during a fork
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_complained = False

    def add(self, hour: int, numbers: dict[str, int]) -> None:
        with self._lock:
            counts = self._counts
            for name, number in numbers.items():
                key = (hour, name)
                counts[key] = counts.get(key, 0) + number
            if self._thread is None and self._place is not None and not self._ending.is_set():
                self._thread = threading.Thread(target=self._work, name="stepkeep-metrics", daemon=True)
                with suppress(RuntimeError):  # the program is ending: the last write takes it along
                    self._thread.start()

    def counts(self) -> Counts:
        self.flush()
        with self._lock:
            waiting = dict(self._counts)
        if self._place is None:
            return waiting
        try:
            return added(self._place.read(), waiting)
        except Exception as exc:
            self._complain(exc)
            return waiting

    def flush(self) -> None:
        place = self._place
        if place is None:
            return
        with self._writing:
            with self._lock:
                taken, self._counts = self._counts, {}
            if not taken:
                return
            try:
                place.add(taken)
            except Exception as exc:  # counting never harms what is counted
                self._complain(exc)
                with self._lock:
                    self._counts = added(taken, self._counts)

    def _complain(self, exc: Exception) -> None:
        if not self._has_complained:
            self._has_complained = True
            log.warning("the metrics are not kept: %s", exc)

    def _work(self) -> None:
        ending = self._ending
        while not ending.wait(FLUSH_SECONDS):
            self.flush()

    def end(self) -> None:
        self._ending.set()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(END_SECONDS)
        self.flush()

    def before_fork(self) -> None:
        self._writing.acquire()
        self._lock.acquire()

    def after_fork(self, *, is_child: bool) -> None:
        if not is_child:
            self._lock.release()
            self._writing.release()
            return
        self._counts = {}  # the parent's to write down
        self._start_afresh()
