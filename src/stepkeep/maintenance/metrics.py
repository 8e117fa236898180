"""What the metrics are: counters by the hour, and the figures made of them. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

HOUR_US: Final = 3_600_000_000

LATENCIES_MS: Final = (1, 2, 5, 10, 25, 50, 100, 250, 1000, 5000)
"""The upper ends of the latency classes; the last class has none."""

_CLASSES: Final = (*(f"le_{end}" for end in LATENCIES_MS), "le_inf")

COUNTERS: Final = (
    "saves",
    "content_bytes",
    "stored_bytes",
    "save_us",
    "repeats",
    "failures",
    "conflicts",
    "fallbacks",
    "resumes",
    "steps_recovered",
    *_CLASSES,
)
"""Every counter that is kept. All of them only grow."""

Counts: TypeAlias = dict[tuple[int, str], int]
"""(hour since 1970, counter) -> how much was counted in that hour."""


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted, by all processes that used the store, since it is counted.

    Sizes are averages per save; latencies are from the moment a state was encoded until it was durable, and the
    two percentiles the upper ends of their classes. `spared_bytes` is what deltas and compression saved.
    """

    checkpoint_save_count: int = 0
    checkpoint_resume_count: int = 0
    checkpoint_save_size_bytes: float = 0.0
    checkpoint_save_latency_ms: float = 0.0
    steps_recovered: int = 0
    checkpoint_save_latency_p50_ms: float | None = None
    checkpoint_save_latency_p95_ms: float | None = None
    checkpoint_repeat_count: int = 0
    checkpoint_failure_count: int = 0
    checkpoint_conflict_count: int = 0
    checkpoint_fallback_count: int = 0
    content_bytes: int = 0
    stored_bytes: int = 0
    spared_bytes: int = 0


def latency_class(seconds: float) -> str:
    """The class that a latency belongs to."""
    return _CLASSES[bisect_left(LATENCIES_MS, seconds * 1e3)]


def metrics_of(totals: Mapping[str, int]) -> Metrics:
    """The figures for the totals of all counters; those that are missing are 0."""
    saves = totals.get("saves", 0)
    content, stored = totals.get("content_bytes", 0), totals.get("stored_bytes", 0)
    return Metrics(
        checkpoint_save_count=saves,
        checkpoint_resume_count=totals.get("resumes", 0),
        checkpoint_save_size_bytes=round(content / saves, 1) if saves else 0.0,
        checkpoint_save_latency_ms=round(totals.get("save_us", 0) / saves / 1e3, 3) if saves else 0.0,
        steps_recovered=totals.get("steps_recovered", 0),
        checkpoint_save_latency_p50_ms=percentile(totals, 0.50),
        checkpoint_save_latency_p95_ms=percentile(totals, 0.95),
        checkpoint_repeat_count=totals.get("repeats", 0),
        checkpoint_failure_count=totals.get("failures", 0),
        checkpoint_conflict_count=totals.get("conflicts", 0),
        checkpoint_fallback_count=totals.get("fallbacks", 0),
        content_bytes=content,
        stored_bytes=stored,
        spared_bytes=max(0, content - stored),
    )


def percentile(totals: Mapping[str, int], share: float) -> float | None:
    """The upper end of the latency class in which that share of the saves is reached; None without saves.

    In the class without an end it is infinite.
    """
    counts = classes(totals)
    wanted = sum(counts) * share
    if not wanted:
        return None
    reached = 0
    for end, count in zip(LATENCIES_MS, counts, strict=False):
        reached += count
        if reached >= wanted:
            return float(end)
    return float("inf")


def classes(totals: Mapping[str, int]) -> list[int]:
    """How many saves each latency class has, the fastest first."""
    return [totals.get(name, 0) for name in _CLASSES]


def totals_of(counts: Counts, *, since_hour: int | None = None) -> dict[str, int]:
    """The sum of every counter over all hours, or those from one on."""
    totals: dict[str, int] = {}
    for (hour, name), number in counts.items():
        if since_hour is None or hour >= since_hour:
            totals[name] = totals.get(name, 0) + number
    return totals


def added(*several: Counts) -> Counts:
    """Several counts as one."""
    result: Counts = {}
    for key, number in _entries(several):
        result[key] = result.get(key, 0) + number
    return result


def _entries(several: Iterable[Counts]) -> Iterable[tuple[tuple[int, str], int]]:
    for counts in several:
        yield from counts.items()
