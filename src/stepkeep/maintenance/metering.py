"""Counting what happens in a store: in memory on the way, written down in the background and at close.

A save pays for a few additions. From the second thing to count on, a thread adds it all to a file every few seconds;
closing the store, or the end of the program, adds the rest. A process that is killed loses the counts of its last
seconds, or its only one, and nothing else.
Whatever goes wrong while counting is logged once and never felt by a save.

The file is a small database of its own beside the store, so that counting never waits for the store's write lock, nor a
save for the counting. It is written without waiting for the disk: a loss of power may cost the counts of the last
seconds, or the file, never a checkpoint. Programs that use OpenTelemetry get the same counts there.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from stepkeep.codec.integrity import digest
from stepkeep.engine import Saved
from stepkeep.errors import Conflict, StepkeepError
from stepkeep.logs import Log
from stepkeep.maintenance.space import beside_store
from stepkeep.model import utc_now_us
from stepkeep.processes import END_SECONDS, Worker, tell_of_forks
from stepkeep.storage.disk import make_private_directory

if TYPE_CHECKING:
    import apsw  # loaded when something is counted: whoever only starts does without

log = Log("stepkeep")

T = TypeVar("T")

FLUSH_SECONDS: Final = 10.0

HOUR_US: Final = 3_600_000_000

LATENCIES_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 1000, 5000)
"""The upper ends of the latency classes; the last class has none."""

CLASSES: Final = (*(f"le_{end}" for end in LATENCIES_MS), "le_inf")

Counts: TypeAlias = dict[tuple[int, str], int]
"""(hour since 1970, counter) -> how much was counted in that hour."""


def latency_class(seconds: float) -> str:
    """The class that a latency belongs to."""
    return CLASSES[bisect_left(LATENCIES_MS, seconds * 1e3)]


def added(one: Counts, other: Counts) -> Counts:
    """Two counts as one."""
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


class Meter:
    """The counters of one open store. Safe for threads and forks; nothing here raises.

    Without a file to keep them they live as long as the store.
    """

    def __init__(
        self,
        file: MetricsFile | None = None,
        *,
        clock: Callable[[], int] = utc_now_us,
        reporter: Reporter | None = None,
    ) -> None:
        self._clock = clock
        self._reporter = reporter
        self._ledger = _Ledger(file)
        self._worker: Worker | None = None
        self._is_started = file is None
        self._has_counted = False
        # Also at the end of the program, for a store that nobody closed.
        self._end = weakref.finalize(self, self._ledger.flush)
        tell_of_forks(self)

    def count(self, **numbers: int) -> None:
        """Add to counters."""
        self._ledger.add(self._clock() // HOUR_US, numbers)
        if not self._is_started:
            self._start()
        if self._reporter is not None:
            self._report(lambda reporter: reporter.count(numbers))

    def saved(self, save: Saved) -> None:
        """Count a save that is durable."""
        if not save.is_new:
            self.count(repeats=1)
            return
        numbers = {
            "saves": 1,
            "content_bytes": save.header.size_bytes,
            "stored_bytes": save.stored_bytes,
            "save_us": int(save.seconds * 1e6),
            latency_class(save.seconds): 1,
        }
        self._ledger.add(save.header.time_us // HOUR_US, numbers)
        if not self._is_started:
            self._start()
        if self._reporter is not None:
            self._report(lambda reporter: reporter.saved(save))

    def _start(self) -> None:
        """Begin the thread with the second thing to count: a process that saves once writes it down at its end."""
        self._is_started, self._has_counted = self._has_counted, True
        if self._is_started and self._end.alive:  # a meter that was closed stays so
            self._worker = Worker("stepkeep-metrics", self._write_down)
            self._worker.start(FLUSH_SECONDS)

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

    def _write_down(self) -> float:
        self._ledger.flush()
        return FLUSH_SECONDS

    def close(self) -> None:
        """End the thread and write down the rest. Repeating it is harmless."""
        if self._worker is not None:
            self._worker.stop(END_SECONDS)
        self._end()

    def before_fork(self) -> None:
        self._ledger.before_fork()

    def after_fork(self, *, is_child: bool) -> None:
        self._ledger.after_fork(is_child=is_child)
        if is_child:
            self._is_started, self._worker = self._ledger.file is None, None


class _Ledger:
    """Counts that wait to be written down. It outlives its meter for one last write."""

    def __init__(self, file: MetricsFile | None) -> None:
        self.file = file
        self._counts: Counts = {}
        self._lock = threading.Lock()  # guards the counts
        self._writing = threading.Lock()  # one write at a time, and none during a fork
        self._has_complained = False

    def add(self, hour: int, numbers: dict[str, int]) -> None:
        with self._lock:
            counts = self._counts
            for name, number in numbers.items():
                key = (hour, name)
                counts[key] = counts.get(key, 0) + number

    def counts(self) -> Counts:
        self.flush()
        with self._lock:
            waiting = dict(self._counts)
        try:
            return waiting if self.file is None else added(self.file.read(), waiting)
        except Exception as exc:
            self._complain(exc)
            return waiting

    def flush(self) -> None:
        if self.file is None:
            return
        with self._writing:
            with self._lock:
                taken, self._counts = self._counts, {}
            try:
                self.file.add(taken)
            except Exception as exc:  # counting never harms what is counted
                self._complain(exc)
                with self._lock:
                    self._counts = added(taken, self._counts)

    def _complain(self, exc: Exception) -> None:
        if not self._has_complained:
            self._has_complained = True
            log.warning("the metrics are not kept: %s", exc)

    def before_fork(self) -> None:
        self._writing.acquire()
        self._lock.acquire()

    def after_fork(self, *, is_child: bool) -> None:
        if is_child:
            self._counts = {}  # what was counted is the parent's to write down
        self._lock.release()
        self._writing.release()


# --- the file --------------------------------------------------------------------------------------------------

KEEP_HOURS: Final = 24 * 35
"""How long the hours stay apart; what is older is summed up."""

BUSY_MILLISECONDS: Final = 2000

_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS counters (hour INTEGER NOT NULL, name TEXT NOT NULL, value INTEGER NOT NULL,"
    " PRIMARY KEY (hour, name)) WITHOUT ROWID"
)
_ADD: Final = (
    "INSERT INTO counters (hour, name, value) VALUES (?, ?, ?)"
    " ON CONFLICT (hour, name) DO UPDATE SET value = value + excluded.value"
)
_FOLD: Final = (
    "INSERT INTO counters (hour, name, value)"
    " SELECT 0, name, sum(value) FROM counters WHERE hour > 0 AND hour < ? GROUP BY name"
    " ON CONFLICT (hour, name) DO UPDATE SET value = value + excluded.value"
)


def metrics_path(url: str, *, data_folder: Callable[[], str]) -> str | None:
    """The file for a store: beside a database, in the sidecar of a folder; None for a store in memory.

    A server's counts are those of this user and machine, in the data folder, under a digest of its URL.
    """
    if url == "memory:":
        return None
    own = beside_store(url, ".metrics", "metrics.db")
    return f"{data_folder()}/metrics/{digest(url.encode())[:32]}.db" if own is None else own


class MetricsFile:
    """Counts in a file that any number of processes add to. No connection outlives a call, so forks are harmless.

    Both methods raise `OSError` when the file cannot be used right now.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)  # `pathlib` takes longer to import than a save takes

    def add(self, counts: Counts) -> None:
        """Add to what is kept, all or nothing."""
        rows = [(hour, name, number) for (hour, name), number in counts.items() if number]
        if not rows:
            return
        newest, _ = max(counts)

        def work(connection: apsw.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")  # closing undoes what does not come to its end
            connection.executemany(_ADD, rows)
            connection.execute(_FOLD, (newest - KEEP_HOURS,))
            connection.execute("DELETE FROM counters WHERE hour > 0 AND hour < ?", (newest - KEEP_HOURS,))
            connection.execute("COMMIT")

        self._with_connection(work)

    def read(self) -> Counts:
        """All that is kept."""
        if not os.path.exists(self.path):
            return {}
        return self._with_connection(
            lambda connection: {
                (int(hour), str(name)): int(number)
                for hour, name, number in connection.execute("SELECT hour, name, value FROM counters")
            }
        )

    def _with_connection(self, work: Callable[[apsw.Connection], T], *, is_repeat: bool = False) -> T:
        import apsw

        self._make()
        connection = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(BUSY_MILLISECONDS)
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute(_TABLE)
            return work(connection)
        except apsw.Error as exc:
            if is_repeat or not isinstance(exc, apsw.CorruptError | apsw.NotADBError):
                raise OSError(f"{self.path}: {exc}") from exc
            log.warning("the metrics in %s are damaged and begin anew: %s", self.path, exc)
        finally:
            connection.close(True)
        with suppress(OSError):
            os.unlink(self.path)
        return self._with_connection(work, is_repeat=True)

    def _make(self) -> None:
        """Make the file for its owner only, if need be; a link that someone put in its place is not followed."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            os.close(os.open(self.path, flags, 0o600))
        except FileNotFoundError:
            make_private_directory(os.path.dirname(self.path))
            os.close(os.open(self.path, flags, 0o600))


# --- OpenTelemetry ---------------------------------------------------------------------------------------------

_INSTRUMENTS: Final = {
    "repeats": ("checkpoint.repeats", "Saves that an idempotency key found stored already"),
    "failures": ("checkpoint.failures", "Saves that were not stored"),
    "conflicts": ("checkpoint.conflicts", "Saves refused because someone wrote first"),
    "fallbacks": ("checkpoint.fallbacks", "Loads that took an older checkpoint, the newest being damaged"),
    "resumes": ("checkpoint.resumes", "Runs that went on where an earlier one stopped"),
    "steps_recovered": ("steps.recovered", "Steps not done again because of checkpoints"),
}
"""Counter -> the instrument's name below `stepkeep`, and its description."""


class Reporter:
    """Instruments of one OpenTelemetry meter: counters, and histograms of size and latency of saves."""

    def __init__(self, meter: Any) -> None:
        counter, histogram, save = meter.create_counter, meter.create_histogram, "stepkeep.checkpoint.save"
        self._saves = counter(f"{save}s", description="Checkpoints saved")
        self._size = histogram(f"{save}.size", "By", "Bytes of a checkpoint")
        self._stored = histogram(f"{save}.stored", "By", "Bytes it is stored in")
        self._latency = histogram(f"{save}.duration", "s", "From the encoded state until it is durable")
        self._counters = {
            name: counter(f"stepkeep.{instrument}", description=description)
            for name, (instrument, description) in _INSTRUMENTS.items()
        }

    def saved(self, save: Saved) -> None:
        self._saves.add(1)
        self._size.record(save.header.size_bytes)
        self._stored.record(save.stored_bytes)
        self._latency.record(save.seconds)

    def count(self, numbers: Mapping[str, int]) -> None:
        for name, number in numbers.items():
            if number and name in self._counters:
                self._counters[name].add(number)


def reporter() -> Reporter | None:
    """A reporter if the program has loaded OpenTelemetry, else None. It is never loaded on our account."""
    api = sys.modules.get("opentelemetry.metrics")
    return None if api is None else Reporter(api.get_meter("stepkeep"))
