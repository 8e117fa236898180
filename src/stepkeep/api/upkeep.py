"""Who counts and keeps for an open store: its meter, its keeper, its limits.

They are made when there is something to count or keep, because most processes that open a store only read, and of those
that save many save once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from stepkeep.config import Settings, data_folder
from stepkeep.engine import Engine, Saved
from stepkeep.errors import StepkeepError
from stepkeep.maintenance.space import database_bytes, hold_ballast, most_bytes
from stepkeep.model import SessionInfo
from stepkeep.processes import tell_of_forks
from stepkeep.storage.port import Compresses

if TYPE_CHECKING:
    from stepkeep.maintenance.budget import Limits
    from stepkeep.maintenance.keeper import Keeper
    from stepkeep.maintenance.metering import Meter

_LIMITS: Final = frozenset({"limits.max_bytes", "limits.min_free_bytes"})
"""The keys that let saves be refused. Nothing is limited unless one of them is set."""


class Upkeep:
    """Listens to an engine. Without settings it counts for this process alone, and keeps nothing.

    The first save is only noted: a command saves once and ends. The keeper begins with the second one.
    """

    def __init__(self, engine: Engine, settings: Settings | None, *, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._has_keeper = settings is not None and settings["keeper.enabled"]
        hold_ballast(engine.backend.url)
        self._made: dict[str, Any] = {}
        # Making imports. A child that is forked while another thread imports waits for that thread for ever.
        self._making = threading.RLock()
        tell_of_forks(self)
        engine.on_saved.append(self._saved)
        engine.on_failed.append(self._failed)
        engine.on_fallback.append(self._fell_back)
        engine.on_resumed.append(self._resumed)
        if self._has_keeper:
            engine.on_finished.append(self._finished)
        if settings is None or _LIMITS.isdisjoint(settings.given):
            return
        for_store = settings.for_store
        if any(for_store[name] for name in _LIMITS):
            from stepkeep.maintenance.budget import Budget

            keeper = self.keeper
            budget = Budget(engine, self._limits) if keeper is None else keeper.budget
            engine.on_append.append(budget.admit)

    # --- made on demand

    @property
    def meter(self) -> Meter:
        meter: Meter = self._made.get("meter") or self._once("meter", self._make_meter)
        return meter

    @property
    def keeper(self) -> Keeper | None:
        """None when the configuration switches it off, or there is none."""
        if not self._has_keeper:
            return None
        keeper: Keeper = self._made.get("keeper") or self._once("keeper", self._make_keeper)
        return keeper

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        with self._making:
            if name not in self._made:
                self._made[name] = make()
            return self._made[name]

    def _make_meter(self) -> Meter:
        from stepkeep.maintenance.metering import Meter, MetricsFile, metrics_path, reporter

        path = None
        if self._settings is not None and self._settings["metrics.enabled"]:
            path = metrics_path(self._engine.backend.url, data_folder=data_folder)
        return Meter(None if path is None else MetricsFile(path), clock=self._clock, reporter=reporter())

    def _make_keeper(self) -> Keeper:
        from stepkeep.maintenance.keeper import Keeper

        settings = self._settings
        assert settings is not None
        return Keeper(
            self._engine,
            retention_of=settings.retention_of,
            policies=settings.policies_of,
            limits=self._limits,
            keeps_history=settings["checkpoint.history.enabled"],
            compress_after_hours=settings.for_store["checkpoint.compress_after_hours"],
            interval_seconds=settings.for_store["keeper.interval_seconds"],
        )

    @property
    def _limits(self) -> Limits:
        from stepkeep.maintenance.budget import Limits

        assert self._settings is not None
        settings = self._settings.for_store
        return Limits(
            max_bytes=settings["limits.max_bytes"],
            min_free_bytes=settings["limits.min_free_bytes"],
            budget_bytes=settings["limits.budget_bytes"],
        )

    # --- what the engine tells

    def _saved(self, saved: Saved) -> None:
        self.meter.saved(saved)
        if not self._has_keeper:
            return
        keeper: Keeper | None = self._made.get("keeper")
        if keeper is None and self._made.setdefault("first", saved) is not saved:
            keeper = self.keeper
            self._hand_over(keeper)
        if keeper is not None:
            keeper.saved(saved)

    def _hand_over(self, keeper: Keeper | None) -> None:
        noted, self._made["first"] = self._made.get("first"), None
        if noted is not None and keeper is not None:
            keeper.saved(noted)

    def _failed(self, error: StepkeepError) -> None:
        self.meter.failed(error)

    def _fell_back(self) -> None:
        self.meter.count(fallbacks=1)

    def _resumed(self, steps: int) -> None:
        self.meter.count(resumes=1, steps_recovered=steps)

    def _finished(self, session: SessionInfo) -> None:
        if (keeper := self.keeper) is not None:
            keeper.finished(session)

    # --- forks

    def before_fork(self) -> None:
        self._making.acquire()

    def after_fork(self, *, is_child: bool) -> None:  # noqa: ARG002  (both sides only go on)
        self._making.release()

    # --- the end

    def end_keeping(self) -> None:
        """Settle all saves, let the keeper do what is due for a moment, and end its thread."""
        self._engine.flush()
        noted: Saved | None = self._made.get("first")
        if noted is not None and ("keeper" in self._made or self._may_go(noted)):
            self._hand_over(self.keeper)
        if (keeper := self._made.get("keeper")) is not None:
            keeper.close()

    def _may_go(self, saved: Saved) -> bool:
        """Whether anything of the session of a process's only save may have to go, or be stored smaller."""
        header, settings = saved.header, self._settings
        assert settings is not None
        if header.status.is_finished:
            return True
        if header.seq == 1:
            return False
        size = database_bytes(self._engine.backend.url)
        if size is not None and size > (settings["limits.budget_bytes"] or size):
            return True
        try:
            retention = settings.retention_of(self._engine.seen(header.session))
            is_below = size is not None and size <= (retention.max_bytes or size)
            most = size if is_below else most_bytes(self._engine, header.session, retention.max_bytes)
        except StepkeepError:
            return True  # the keeper tells what is wrong
        keeps_all = not retention.is_off and retention.keeps_all_of(header.seq, most or 0)
        return not keeps_all or isinstance(self._engine.backend, Compresses)

    def close(self) -> None:
        """Write down what was counted."""
        if (meter := self._made.get("meter")) is not None:
            meter.close()
