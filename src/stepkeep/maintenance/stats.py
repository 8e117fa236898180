"""What was counted in a store: totals, the last hours, and the same as Prometheus text."""

from __future__ import annotations

from datetime import datetime

import msgspec

from stepkeep.engine import Engine
from stepkeep.maintenance.metrics import (
    HOUR_US,
    LATENCIES_MS,
    Counts,
    Metrics,
    classes,
    metrics_of,
    totals_of,
)
from stepkeep.model import from_us
from stepkeep.storage.port import SessionQuery, Usage


class HourStats(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted in one hour, which begins at `time`. The latency is an average, None without saves."""

    time: datetime
    saves: int
    failures: int
    conflicts: int
    fallbacks: int
    resumes: int
    steps_recovered: int
    content_bytes: int
    stored_bytes: int
    latency_ms: float | None


class LatencyClass(msgspec.Struct, frozen=True, kw_only=True):
    """How many saves took up to `up_to_ms`, and more than the class before; None: any longer."""

    up_to_ms: int | None
    saves: int


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted, by all processes. `since` is the first hour that is known apart, None when nothing was
    counted. `checkpoint_removed_count` are the checkpoints that pruning and `delete` took from sessions which exist.
    """

    store: str
    since: datetime | None
    metrics: Metrics
    checkpoint_removed_count: int
    usage: Usage
    latencies: tuple[LatencyClass, ...]
    hours: tuple[HourStats, ...]


def store_stats(engine: Engine, counts: Counts, *, hours: int) -> Stats:
    """All totals of what was counted, and the last hours one by one, the oldest first."""
    totals = totals_of(counts)
    last = engine.clock() // HOUR_US
    known = [hour for hour, _ in counts if hour > 0]
    ends: tuple[int | None, ...] = (*LATENCIES_MS, None)
    return Stats(
        store=engine.backend.url,
        since=from_us(min(known) * HOUR_US) if known else None,
        metrics=metrics_of(totals),
        checkpoint_removed_count=sum(info.removed_count for info in engine.backend.sessions(SessionQuery())),
        usage=engine.backend.usage(),
        latencies=tuple(
            LatencyClass(up_to_ms=end, saves=number)
            for end, number in zip(ends, classes(totals), strict=True)
        ),
        hours=tuple(_hour(counts, hour) for hour in range(last - hours + 1, last + 1)),
    )


def _hour(counts: Counts, hour: int) -> HourStats:
    def of(name: str) -> int:
        return counts.get((hour, name), 0)

    return HourStats(
        time=from_us(hour * HOUR_US),
        saves=of("saves"),
        failures=of("failures"),
        conflicts=of("conflicts"),
        fallbacks=of("fallbacks"),
        resumes=of("resumes"),
        steps_recovered=of("steps_recovered"),
        content_bytes=of("content_bytes"),
        stored_bytes=of("stored_bytes"),
        latency_ms=round(of("save_us") / of("saves") / 1e3, 3) if of("saves") else None,
    )


# --- Prometheus ------------------------------------------------------------------------------------------------


def prometheus(stats: Stats) -> str:
    """The totals in the text format that Prometheus reads."""
    metrics, usage = stats.metrics, stats.usage
    counters: dict[str, tuple[float, str]] = {
        "checkpoint_save_count": (metrics.checkpoint_save_count, "Checkpoints saved"),
        "checkpoint_resume_count": (metrics.checkpoint_resume_count, "Runs that went on where one stopped"),
        "steps_recovered": (metrics.steps_recovered, "Steps not done again because of checkpoints"),
        "checkpoint_repeat_count": (metrics.checkpoint_repeat_count, "Saves found stored by their key"),
        "checkpoint_failure_count": (metrics.checkpoint_failure_count, "Saves that were not stored"),
        "checkpoint_conflict_count": (
            metrics.checkpoint_conflict_count,
            "Saves refused: someone wrote first",
        ),
        "checkpoint_fallback_count": (
            metrics.checkpoint_fallback_count,
            "Loads that took an older checkpoint",
        ),
        "content_bytes": (metrics.content_bytes, "Bytes of all saved checkpoints"),
        "stored_bytes": (metrics.stored_bytes, "Bytes they were stored in"),
    }
    gauges: dict[str, tuple[float, str]] = {
        "checkpoint_save_size_bytes": (metrics.checkpoint_save_size_bytes, "Average size of a checkpoint"),
        "checkpoint_removed_count": (
            stats.checkpoint_removed_count,
            "Checkpoints removed from living sessions",
        ),
        "sessions": (usage.sessions, "Sessions in the store"),
        "checkpoints": (usage.checkpoints, "Checkpoints in the store"),
        "body_bytes": (usage.body_bytes, "Bytes that the bodies take"),
        "store_bytes": (usage.store_bytes, "Bytes that the store takes on the disk"),
    }
    lines: list[str] = []
    for name, (value, text) in counters.items():
        lines += _sample(f"{name}_total", "counter", value, text)
    for name, (value, text) in gauges.items():
        lines += _sample(name, "gauge", value, text)
    return "\n".join([*lines, *_histogram(stats)]) + "\n"


def _sample(name: str, kind: str, value: float, text: str) -> list[str]:
    full = f"stepkeep_{name}"
    return [f"# HELP {full} {text}.", f"# TYPE {full} {kind}", f"{full} {value}"]


def _histogram(stats: Stats) -> list[str]:
    name = "stepkeep_checkpoint_save_latency_ms"
    saves = stats.metrics.checkpoint_save_count
    lines = [f"# HELP {name} Time to save a checkpoint.", f"# TYPE {name} histogram"]
    reached = 0
    for each in stats.latencies:
        reached += each.saves
        end = "+Inf" if each.up_to_ms is None else str(each.up_to_ms)
        lines.append(f'{name}_bucket{{le="{end}"}} {reached}')
    total = round(stats.metrics.checkpoint_save_latency_ms * saves, 3)
    return [*lines, f"{name}_sum {total}", f"{name}_count {reached}"]
