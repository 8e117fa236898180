"""Where the counts of a store are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepkeep.config import Settings
from stepkeep.maintenance.metering import Meter
from stepkeep.maintenance.metrics_file import MetricsFile, metrics_path
from stepkeep.maintenance.telemetry import reporter


def meter_of(url: str, settings: Settings | None, *, clock: Callable[[], int]) -> Meter:
    """The meter of a store. Without settings, or switched off, it counts for this process alone."""
    path = None
    if settings is not None and settings["metrics.enabled"]:
        path = metrics_path(url, data_folder=_data_folder)
    return Meter(None if path is None else MetricsFile(path), clock=clock, reporter=reporter())


def _data_folder() -> Path:
    from platformdirs import user_data_path

    return user_data_path("stepkeep")
