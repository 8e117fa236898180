"""What a store counts beside its saves, and where the counts of a store are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepkeep.config import Settings
from stepkeep.executor.result import ExecutionResult, Interrupted
from stepkeep.executor.scripts import Run
from stepkeep.maintenance.metering import Meter, MeteredEngine
from stepkeep.maintenance.metrics_file import MetricsFile, metrics_path
from stepkeep.maintenance.telemetry import reporter
from stepkeep.model import Session as SessionInfo


def meter_of(url: str, settings: Settings | None, *, clock: Callable[[], int]) -> Meter:
    """The meter of a store. Without settings, or switched off, it counts for this process alone."""
    path = None
    if settings is not None and settings["metrics.enabled"]:
        path = metrics_path(url, data_folder=_data_folder)
    return Meter(None if path is None else MetricsFile(path), clock=clock, reporter=reporter())


def _data_folder() -> Path:
    from platformdirs import user_data_path

    return user_data_path("stepkeep")


class CountedRun(Run):
    """A script that tells how many finished steps it begins with."""

    def __init__(
        self, engine: MeteredEngine, session: Callable[[], SessionInfo], *, resume: bool, force: bool
    ) -> None:
        super().__init__(engine, session, resume=resume, force=force)
        self._resumed = engine.resumed

    def open(self) -> None:
        super().open()
        if self._done.outputs:
            self._resumed(len(self._done.outputs))


def counted(
    engine: MeteredEngine, execute: Callable[..., ExecutionResult], *args: Any, **options: Any
) -> Any:
    """Run a plan, and count it if it is a resumed one, also when it is interrupted."""
    is_resumed = options.get("resume", False)
    try:
        result = execute(*args, **options)
    except Interrupted as exc:
        if is_resumed:
            engine.resumed(exc.result.steps_recovered)
        raise
    if is_resumed:
        engine.resumed(result.steps_recovered)
    return result
