"""Who counts and keeps for an open store: its meter, its keeper, its limits.

They are made with the first thing to count or keep: most processes that open a store only read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from stepkeep.config import Settings
from stepkeep.engine import Engine, Saved
from stepkeep.errors import StepkeepError
from stepkeep.model import SessionInfo

if TYPE_CHECKING:
    from pathlib import Path

    from stepkeep.maintenance.keeper import Keeper
    from stepkeep.maintenance.metering import Meter


class _Made(NamedTuple):
    meter: Meter
    keeper: Keeper | None


class Upkeep:
    """Listens to an engine. Without settings it counts for this process alone, and keeps nothing."""

    def __init__(self, engine: Engine, settings: Settings | None, *, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._parts: dict[str, _Made] = {}
        engine.on_saved.append(self._saved)
        engine.on_failed.append(self._failed)
        engine.on_fallback.append(self._fell_back)
        engine.on_resumed.append(self._resumed)
        if settings is not None and settings["keeper.enabled"]:
            engine.on_finished.append(self._finished)
        if settings is not None and (settings["limits.max_bytes"] or settings["limits.min_free_bytes"]):
            self._limit(settings)

    @property
    def meter(self) -> Meter:
        return self._made().meter

    @property
    def keeper(self) -> Keeper | None:
        """None when the configuration switches it off, or there is none."""
        return self._made().keeper

    def _made(self) -> _Made:
        made = self._parts.get("made")
        # Of two threads that come at once one is first; what the other made has no thread yet, and is dropped.
        return self._parts.setdefault("made", self._make()) if made is None else made

    def _make(self) -> _Made:
        from stepkeep.maintenance.metering import Meter
        from stepkeep.maintenance.metrics_file import MetricsFile, metrics_path
        from stepkeep.maintenance.space import Ballast
        from stepkeep.maintenance.telemetry import reporter

        url, settings = self._engine.backend.url, self._settings
        Ballast(url).hold()
        path = None
        if settings is not None and settings["metrics.enabled"]:
            path = metrics_path(url, data_folder=_data_folder)
        meter = Meter(None if path is None else MetricsFile(path), clock=self._clock, reporter=reporter())
        if settings is None or not settings["keeper.enabled"]:
            return _Made(meter, None)
        from stepkeep.maintenance.budget import Limits
        from stepkeep.maintenance.keeper import Keeper

        keeper = Keeper(
            self._engine,
            retention_of=settings.retention_of,
            policies=settings.cleanup_policies,
            limits=Limits(
                max_bytes=settings["limits.max_bytes"], min_free_bytes=settings["limits.min_free_bytes"]
            ),
            keeps_history=settings["checkpoint.history.enabled"],
            compress_after_hours=settings["checkpoint.compress_after_hours"],
            interval_seconds=settings["keeper.interval_seconds"],
        )
        return _Made(meter, keeper)

    def _limit(self, settings: Settings) -> None:
        """Refuse saves beyond the limits, also where no keeper makes room before they are reached."""
        from stepkeep.maintenance.budget import Budget, Limits

        keeper = self.keeper
        limits = Limits(
            max_bytes=settings["limits.max_bytes"], min_free_bytes=settings["limits.min_free_bytes"]
        )
        budget = Budget(self._engine, limits) if keeper is None else keeper.budget
        self._engine.on_append.append(budget.admit)

    def _saved(self, saved: Saved) -> None:
        meter, keeper = self._made()
        meter.saved(saved)
        if keeper is not None:
            keeper.saved(saved)

    def _failed(self, error: StepkeepError) -> None:
        self.meter.failed(error)

    def _fell_back(self) -> None:
        self.meter.count(fallbacks=1)

    def _resumed(self, steps: int) -> None:
        self.meter.count(resumes=1, steps_recovered=steps)

    def _finished(self, session: SessionInfo) -> None:
        if (keeper := self.keeper) is not None:
            keeper.finished(session)

    def end_keeping(self) -> None:
        """Let the keeper do what is due, for a moment, and end its thread."""
        self._engine.flush()
        made = self._parts.get("made")
        if made is not None and made.keeper is not None:
            made.keeper.close()

    def close(self) -> None:
        """Write down what was counted."""
        if "made" in self._parts:
            self.meter.close()


def _data_folder() -> Path:
    from platformdirs import user_data_path

    return user_data_path("stepkeep")
