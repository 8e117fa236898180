"""Where counters are kept between processes: a small database of its own beside the store.

Of its own, so that counting never waits for the store's write lock, nor a save for the counting. It is written
without waiting for the disk: a loss of power may cost the counts of the last seconds, or the file, never a checkpoint.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from stepkeep.maintenance.metrics import Counts
from stepkeep.storage.disk import make_private_directory
from stepkeep.storage.urls import database_file, directory_of

if TYPE_CHECKING:
    import apsw  # loaded when something is counted: whoever only starts does without

log = logging.getLogger("stepkeep")

T = TypeVar("T")

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


class KeepsCounts(Protocol):
    """Something that keeps counts. Both methods raise `OSError` when that is not possible right now."""

    def add(self, counts: Counts) -> None:
        """Add to what is kept, all or nothing."""

    def read(self) -> Counts:
        """All that is kept."""


def metrics_path(url: str, *, data_folder: Callable[[], Path]) -> Path | None:
    """The file for a store: beside a database, in the sidecar of a folder; None for a store in memory.

    A server's counts are those of this user and machine, in the data folder, under a digest of its URL.
    """
    if (file := database_file(url)) is not None:
        return file.absolute().with_name(f"{file.name}.metrics")
    if (folder := directory_of(url)) is not None:
        return folder.absolute() / ".stepkeep" / "metrics.db"
    if url == "memory:":
        return None
    return data_folder() / "metrics" / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.db"


class MetricsFile:
    """Counts in a file that any number of processes add to. No connection outlives a call, so forks are harmless."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, counts: Counts) -> None:
        rows = [(hour, name, number) for (hour, name), number in counts.items() if number]
        if not rows:
            return
        newest = max(hour for hour, _, _ in rows)

        def work(connection: apsw.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")  # closing undoes what does not come to its end
            connection.executemany(_ADD, rows)
            connection.execute(_FOLD, (newest - KEEP_HOURS,))
            connection.execute("DELETE FROM counters WHERE hour > 0 AND hour < ?", (newest - KEEP_HOURS,))
            connection.execute("COMMIT")

        self._with_connection(work)

    def read(self) -> Counts:
        if not self.path.exists():
            return {}
        return self._with_connection(
            lambda connection: {
                (int(hour), str(name)): int(number)
                for hour, name, number in connection.execute("SELECT hour, name, value FROM counters")
            }
        )

    def _with_connection(self, work: Callable[[apsw.Connection], T]) -> T:
        import apsw

        try:
            return self._attempt(work)
        except (apsw.CorruptError, apsw.NotADBError) as exc:
            log.warning("the metrics in %s are damaged and begin anew: %s", self.path, exc)
            with suppress(OSError):
                self.path.unlink()
        except apsw.Error as exc:
            raise OSError(f"{self.path}: {exc}") from exc
        try:
            return self._attempt(work)
        except apsw.Error as exc:
            raise OSError(f"{self.path}: {exc}") from exc

    def _attempt(self, work: Callable[[apsw.Connection], T]) -> T:
        import apsw

        make_private_directory(self.path.parent)
        # Made here for its owner only; a link that someone put in its place is not followed.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(BUSY_MILLISECONDS)
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute(_TABLE)
            return work(connection)
        finally:
            connection.close(True)
