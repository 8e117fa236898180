"""Counting what happens in a store: in memory on the way, written down in the background and at close.

A save pays for a few additions. A thread adds what was counted to the file every few seconds; closing the store, or
the end of the program, adds the rest. A process that is killed loses the counts of its last seconds and nothing else.
Whatever goes wrong while counting is logged once and never felt by a save.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from stepkeep import forks
from stepkeep.engine import Engine, Loaded, Pending, Save
from stepkeep.engine.committer import Ticket
from stepkeep.errors import Conflict, StepkeepError
from stepkeep.maintenance.metrics import HOUR_US, Counts, added, latency_class
from stepkeep.maintenance.metrics_file import KeepsCounts
from stepkeep.maintenance.telemetry import Reporter
from stepkeep.model import Header, Session, utc_now_us
from stepkeep.storage.port import Append, Backend

log = logging.getLogger("stepkeep")

FLUSH_SECONDS: Final = 10.0
END_SECONDS: Final = 5.0
"""How long closing waits for a write that is under way."""

MAX_UNDER_WAY: Final = 10_000


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
        forks.register(self)

    def count(self, **numbers: int) -> None:
        """Add to counters."""
        self._ledger.add(self._clock() // HOUR_US, numbers)
        if self._reporter is not None:
            self._report(lambda reporter: reporter.count(numbers))

    def saved(self, *, content_bytes: int, stored_bytes: int, seconds: float) -> None:
        """Count a save that is durable."""
        numbers = {
            "saves": 1,
            "content_bytes": content_bytes,
            "stored_bytes": stored_bytes,
            "save_us": int(seconds * 1e6),
            latency_class(seconds): 1,
        }
        self._ledger.add(self._clock() // HOUR_US, numbers)
        if self._reporter is not None:
            self._report(
                lambda reporter: reporter.saved(
                    content_bytes=content_bytes, stored_bytes=stored_bytes, seconds=seconds
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


class MeteredEngine(Engine):
    """An engine that counts its saves, what became of them, and the loads that fell back."""

    def __init__(self, backend: Backend, *, meter: Meter, **options: Any) -> None:
        super().__init__(backend, **options)
        self.meter = meter
        self._under_way: dict[str, float] = {}

    def submit(self, save: Save) -> Pending:
        started = time.perf_counter()
        try:
            pending = super().submit(save)
        except StepkeepError as exc:
            self.meter.failed(exc)
            raise
        if len(self._under_way) >= MAX_UNDER_WAY:
            self._under_way.clear()
        self._under_way[pending.id] = started
        return pending

    def confirm(self, ticket: Ticket) -> Header:
        try:
            header = super().confirm(ticket)
        except StepkeepError as exc:
            if self._under_way.pop(ticket.item.draft.id, None) is not None:
                self.meter.failed(exc)
            raise
        started = self._under_way.pop(ticket.item.draft.id, None)
        if header.id != ticket.item.draft.id:
            self.meter.count(repeats=1)
        elif started is not None:
            self.meter.saved(
                content_bytes=header.size_bytes,
                stored_bytes=_stored_bytes(ticket.item),
                seconds=time.perf_counter() - started,
            )
        return header

    def latest(self, session: Session, branch: str | None = None) -> Loaded | None:
        loaded = super().latest(session, branch)
        if loaded is not None and loaded.fallback is not None:
            self.meter.count(fallbacks=1)
        return loaded

    def resumed(self, steps: int) -> None:
        """Note that work goes on where it stopped, and how many finished steps are not done again."""
        self.meter.count(resumes=1, steps_recovered=steps)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.meter.close()


def _stored_bytes(append: Append) -> int:
    bodies = sum(body.stored_size for body in append.bodies)
    return bodies + sum(len(blob.data) for blob in append.blobs)
