"""The same counts for OpenTelemetry, in programs that use it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

API: Final = "opentelemetry.metrics"

COUNTED: Final = {
    "repeats": ("stepkeep.checkpoint.repeats", "Saves that an idempotency key found stored already"),
    "failures": ("stepkeep.checkpoint.failures", "Saves that were not stored"),
    "conflicts": ("stepkeep.checkpoint.conflicts", "Saves refused because someone wrote first"),
    "fallbacks": (
        "stepkeep.checkpoint.fallbacks",
        "Loads that took an older checkpoint, the newest being damaged",
    ),
    "resumes": ("stepkeep.checkpoint.resumes", "Runs that went on where an earlier one stopped"),
    "steps_recovered": ("stepkeep.steps.recovered", "Steps not done again because of checkpoints"),
}
"""Counter -> the instrument's name and description."""


class Reporter:
    """Instruments of one OpenTelemetry meter: counters, and histograms of size and latency of saves."""

    def __init__(self, meter: Any) -> None:
        self._saves = meter.create_counter("stepkeep.checkpoint.saves", description="Checkpoints saved")
        self._size = meter.create_histogram("stepkeep.checkpoint.save.size", "By", "Bytes of a checkpoint")
        self._stored = meter.create_histogram(
            "stepkeep.checkpoint.save.stored", "By", "Bytes it is stored in"
        )
        self._latency = meter.create_histogram(
            "stepkeep.checkpoint.save.duration", "s", "From the encoded state until it is durable"
        )
        self._counters = {
            counter: meter.create_counter(name, description=description)
            for counter, (name, description) in COUNTED.items()
        }

    def saved(self, *, content_bytes: int, stored_bytes: int, seconds: float) -> None:
        self._saves.add(1)
        self._size.record(content_bytes)
        self._stored.record(stored_bytes)
        self._latency.record(seconds)

    def count(self, numbers: Mapping[str, int]) -> None:
        for counter, number in numbers.items():
            if number and counter in self._counters:
                self._counters[counter].add(number)


def reporter() -> Reporter | None:
    """A reporter if the program has loaded OpenTelemetry, else None. It is never loaded on our account."""
    api = sys.modules.get(API)
    return None if api is None else Reporter(api.get_meter("stepkeep"))
