"""The byte budget of a store, its limit, and the free space of its disk: history gives way before any is used up.

From 90 % of a limit on, history is squeezed until 80 % are left: finished sessions first, the oldest of them first,
down to what V7 keeps; then active ones, to fewer and fewer checkpoints. Sessions that are kept for ever are left
alone. When nothing may go any more, the save that would cross a limit is refused before anything is written.

The budget is squeezed for when it is full, and refuses nothing: where V7 does not let it be kept, saves go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import BackendUnavailable, InvalidInput
from stepkeep.maintenance.space import (
    MAX_STEP_BYTES,
    counted_bytes,
    database_bytes,
    reclaim,
    store_free_bytes,
)
from stepkeep.model import MAX_SEQ, SessionInfo, Status
from stepkeep.policy.cleanup import is_kept
from stepkeep.policy.retention import Retention
from stepkeep.processes import tell_of_forks
from stepkeep.storage.port import Append, BoundsLog, KeepsFiles, SessionQuery
from stepkeep.storage.urls import database_file
from stepkeep.text import size

SQUEEZE_AT: Final = 0.9
SQUEEZE_TO: Final = 0.8
_WHEN_FULL: Final = 1 / SQUEEZE_AT

MEASURE_SECONDS: Final = 0.25
MEASURE_BYTES: Final = 256 * 1024
"""How old a measured size may be, and how much may be saved since."""

LOG_SHARE: Final = 32
"""A log takes about that part of a limit at most. What is in it will be in the database too: it counts twice."""

RETRY_SECONDS: Final = 5.0
"""How long to wait before squeezing again when it did not help."""

BUDGET_SECONDS: Final = 3600.0
"""How long to wait before squeezing for the budget again when it did not help; and how often a store that is not one
file is measured for it, which takes a look at all its records."""

STEPS: Final = (10, 3, 1)
"""To how many checkpoints active sessions are brought down, one round after the other."""

GENTLE_STEPS: Final = (1000, 300, 100, 30)
"""The same before these, where there is a budget and no limit: nothing is lost if it takes a few rounds."""

_FINISHED: Final = tuple(status for status in Status if status.is_finished)
_ACTIVE: Final = tuple(status for status in Status if not status.is_finished)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How large the store may become, and how much of its disk must stay free; None for no limit.

    Beyond `budget_bytes` history is thinned, and saves go on.
    """

    max_bytes: int | None = None
    min_free_bytes: int | None = None
    budget_bytes: int | None = None

    @property
    def refuses(self) -> bool:
        """Whether a save may be refused because of them."""
        return self.max_bytes is not None or self.min_free_bytes is not None

    @property
    def is_set(self) -> bool:
        return self.refuses or self.budget_bytes is not None

    @property
    def squeezed_for(self) -> Limits:
        """The same, where a full budget counts as much as a limit that is about to be reached."""
        if self.budget_bytes is None:
            return self
        full = int(self.budget_bytes * _WHEN_FULL)
        most = full if self.max_bytes is None else min(full, self.max_bytes)
        return Limits(max_bytes=most, min_free_bytes=self.min_free_bytes)


class Room(msgspec.Struct, frozen=True):
    """What the store takes, and what its disk has left; None where there is no disk."""

    store_bytes: int
    free_bytes: int | None

    def after(self, size: int) -> Room:
        return Room(self.store_bytes + size, None if self.free_bytes is None else self.free_bytes - size)

    def level(self, limits: Limits) -> float:
        """How much of the limits is used up; more than 1 is beyond one of them."""
        levels = [0.0]
        if limits.max_bytes is not None:
            levels.append(self.store_bytes / limits.max_bytes)
        if limits.min_free_bytes is not None and self.free_bytes is not None:
            levels.append(limits.min_free_bytes / max(self.free_bytes, 1))
        return max(levels)

    def excess(self, limits: Limits, level: float) -> int:
        """How many bytes must go until no more than `level` of the limits is used."""
        excess = 0
        if limits.max_bytes is not None:
            excess = self.store_bytes - int(limits.max_bytes * level)
        if limits.min_free_bytes is not None and self.free_bytes is not None:
            excess = max(excess, int(limits.min_free_bytes / level) - self.free_bytes)
        return max(excess, 0)


class Budget:
    """Keeps a store within its limits. Safe for threads and forks.

    `prune` brings one session down to what rules keep and returns the bytes that freed; it does not raise. Without
    it nothing is squeezed, and only `admit` holds. `on_pressure` is called from a save when it is time to squeeze.
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        *,
        prune: Callable[[SessionInfo, Retention], int] | None = None,
        on_pressure: Callable[[], None] | None = None,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._soft = limits.squeezed_for
        self._prune = prune
        self._on_pressure = on_pressure
        self._file = database_file(engine.backend.url)
        self._log_bytes: int | None = None
        if limits.max_bytes is not None and isinstance(engine.backend, BoundsLog):
            self._log_bytes = limits.max_bytes // LOG_SHARE
            engine.backend.bound_log(self._log_bytes)
        self._lock = threading.Lock()
        self._room = Room(0, None)
        self._measured_at = float("-inf") if limits.refuses else time.monotonic()
        self._admitted_bytes = 0
        self._saved_since_squeeze = False  # then there may be history that the last one did not see
        self._retry_at = float("-inf")
        tell_of_forks(self)

    # --- on the save path

    def admit(self, append: Append) -> None:
        """Refuse a save that would cross a limit although all that may go is gone. Cheap while there is room.

        Raises:
            BackendUnavailable: `store_budget_exceeded` or `disk_floor_reached`; nothing was written.
        """
        blobs = sum(len(blob.data) for blob in append.blobs)
        size = blobs + sum(len(body.data) for body in append.bodies)
        size *= 1 if self._log_bytes is None else 2
        if self._admitted_bytes > MEASURE_BYTES or time.monotonic() - self._measured_at > MEASURE_SECONDS:
            self.measure()
        level = self._room.after(size).level(self._limits)
        if level > 1 and isinstance(self._engine.backend, KeepsFiles):
            size = blobs + self._engine.backend.written_bytes(append.bodies)
            level = self._room.after(size).level(self._limits)
        if level > 1:
            self._make_room(size)
        elif (
            self._on_pressure is not None
            and self._may_squeeze
            and self._room.after(size).level(self._soft) >= SQUEEZE_AT
        ):
            self._on_pressure()
        self._room = self._room.after(size)
        self._admitted_bytes += size
        self._saved_since_squeeze = True

    def _make_room(self, size: int) -> None:
        if self._log_bytes is not None:
            self.reclaim()  # what is in the log counts twice
        if self.measure().after(size).level(self._limits) <= 1:
            return
        if self._prune is not None:
            self.squeeze(extra=size)
        room = self._room.after(size)
        if room.level(self._limits) > 1:
            raise self._refusal(room)

    def _refusal(self, room: Room) -> BackendUnavailable:
        hint = "delete sessions, or raise the limit"
        if self._prune is None:
            hint = "switch on keeper.enabled, prune or delete sessions, or raise the limit"
        limits = self._limits
        if limits.max_bytes is not None and room.store_bytes > limits.max_bytes:
            return BackendUnavailable(
                f"the save would bring the store to {size(room.store_bytes)}, over limits.max_bytes of "
                f"{size(limits.max_bytes)}, and no more history may be pruned: {hint}",
                code="store_budget_exceeded",
                retryable=False,
            )
        return BackendUnavailable(
            f"the save would leave {size(max(0, room.free_bytes or 0))} free on the disk, less than "
            f"limits.min_free_bytes of {size(limits.min_free_bytes or 0)}, and no more history may be "
            f"pruned: free some space, {hint}",
            code="disk_floor_reached",
            retryable=False,
        )

    def batch(self, reclaimable_bytes: int, count: int, most: int) -> int:
        """How many of `count` checkpoints may go at once: what goes is overwritten, by way of the log."""
        if self._log_bytes is None or reclaimable_bytes == 0:
            return most
        return max(1, min(most, self._log_bytes * count // reclaimable_bytes))

    def reclaim(self, max_bytes: int = MAX_SEQ) -> None:
        """Give freed space back in steps that the log has room for: what lies behind it moves."""
        step = MAX_STEP_BYTES if self._log_bytes is None else self._log_bytes
        reclaim(self._engine, max_bytes=max_bytes, step_bytes=max(1, min(step, MAX_STEP_BYTES)))

    # --- measuring

    def measure(self) -> Room:
        """What the store takes and its disk has left, now."""
        backend = self._engine.backend
        size = database_bytes(backend.url, room_for_log=self._log_bytes or 0)
        size = counted_bytes(backend, backend.usage()) if size is None else size
        self._room = Room(size, store_free_bytes(backend.url))
        self._measured_at = time.monotonic()
        self._admitted_bytes = 0
        return self._room

    def reached(self) -> tuple[str, str] | None:
        """What is full, in words, and the key that says how much that is; None while nothing was found to be."""
        limits, room = self._limits, self._room
        if limits.budget_bytes is not None and room.store_bytes >= limits.budget_bytes:
            return f"the store has reached its budget of {size(limits.budget_bytes)}", "limits.budget_bytes"
        if limits.max_bytes is not None and room.store_bytes >= limits.max_bytes * SQUEEZE_AT:
            return f"the store is about to reach its limit of {size(limits.max_bytes)}", "limits.max_bytes"
        if limits.min_free_bytes is not None:
            return (
                f"the disk has little more than {size(limits.min_free_bytes)} left",
                "limits.min_free_bytes",
            )
        return None

    # --- squeezing

    @property
    def is_pressed(self) -> bool:
        """Whether it is time to squeeze, and squeezing may help."""
        if not self._limits.is_set or not self._may_squeeze:
            return False
        is_cheap = self._limits.refuses or self._file is not None
        if not is_cheap and time.monotonic() - self._measured_at < BUDGET_SECONDS:
            return False
        return self.measure().level(self._soft) >= SQUEEZE_AT

    @property
    def _may_squeeze(self) -> bool:
        return self._prune is not None and time.monotonic() >= self._retry_at

    def squeeze(self, *, extra: int = 0, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Prune until enough room is left, also for `extra` bytes, or nothing more may go; then reclaim the space."""
        with self._lock:
            now = self.measure()
            room = now.after(extra)
            if room.level(self._soft) < SQUEEZE_AT:
                return  # another thread did it
            if not self._may_squeeze and not self._saved_since_squeeze:
                return
            self._saved_since_squeeze = False
            # Where not even an empty store would help, no history is given up in vain.
            if room.excess(self._soft, 1.0) <= now.store_bytes:
                self._squeeze(extra, should_stop)
            if self.measure().after(extra).level(self._soft) >= SQUEEZE_AT:
                self._retry_at = time.monotonic() + (RETRY_SECONDS if self._is_urgent else BUDGET_SECONDS)

    def _squeeze(self, extra: int, should_stop: Callable[[], bool]) -> None:
        assert self._prune is not None
        self.reclaim()  # what was freed before and not yet given back
        missing = self._missing(extra)
        for session, retention in self._victims():
            if missing <= 0 or should_stop():
                break
            missing -= self._prune(session, retention)
            if missing <= 0:
                self.reclaim()
                # A file shrinks only when nobody reads in its log: for a budget no more goes because it did not yet.
                missing = self._missing(extra) if self._is_urgent or extra else 0
        self.reclaim()

    @property
    def _is_urgent(self) -> bool:
        """Whether a limit is about to be reached, and not only the budget."""
        return self._room.level(self._limits) >= SQUEEZE_AT

    def _missing(self, extra: int) -> int:
        return self.measure().after(extra).excess(self._soft, SQUEEZE_TO)

    def _victims(self) -> Iterator[tuple[SessionInfo, Retention]]:
        for session in self._sessions(_FINISHED):
            yield session, Retention(keep_last=1)
        active = self._sessions(_ACTIVE)
        for keep_last in STEPS if self._is_urgent else (*GENTLE_STEPS, *STEPS):
            for session in active:
                if session.stored_count > keep_last:
                    yield session, Retention(keep_last=keep_last)

    def _sessions(self, statuses: tuple[Status, ...]) -> list[SessionInfo]:
        """Those that may be squeezed, the oldest first."""
        found = self._engine.backend.sessions(SessionQuery(statuses=statuses))
        return sorted(
            (session for session in found if session.stored_count > 1 and _gives_way(session)),
            key=lambda session: session.updated_us,
        )

    # --- forks

    def before_fork(self) -> None:
        pass  # a squeeze under way stops at the backend

    def after_fork(self, *, is_child: bool) -> None:
        if is_child:
            self._lock = threading.Lock()  # the thread that may have held it is not here


def _gives_way(session: SessionInfo) -> bool:
    try:
        return not is_kept(session)
    except InvalidInput:
        return False  # of a newer release: not ours to judge
