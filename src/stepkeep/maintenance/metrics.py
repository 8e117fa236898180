"""What the metrics are: counters by the hour, the figures made of them, and the same as Prometheus text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from stepkeep.engine import Engine
from stepkeep.maintenance.last_backup import LastBackup
from stepkeep.maintenance.metering import CLASSES, HOUR_US, LATENCIES_MS, Counts
from stepkeep.maintenance.space import store_free_bytes
from stepkeep.maintenance.spending import TokenUsage, usage_in
from stepkeep.maintenance.status import count_statuses
from stepkeep.model import from_us
from stepkeep.storage.port import HeaderQuery, SessionQuery, Usage


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted, by all processes that used the store, since it is counted.

    Sizes are averages per save; latencies are from the moment a state was encoded until it was durable, and the
    two percentiles the upper ends of their classes. `spared_bytes` is what deltas and compression saved.
    """

    checkpoint_save_count: int = 0
    checkpoint_save_latency_ms: float = 0.0
    checkpoint_save_latency_p50_ms: float | None = None
    checkpoint_save_latency_p95_ms: float | None = None
    checkpoint_save_size_bytes: float = 0.0
    checkpoint_resume_count: int = 0
    steps_recovered: int = 0
    checkpoint_repeat_count: int = 0
    checkpoint_failure_count: int = 0
    checkpoint_conflict_count: int = 0
    checkpoint_fallback_count: int = 0
    content_bytes: int = 0
    stored_bytes: int = 0
    spared_bytes: int = 0


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
    return [totals.get(name, 0) for name in CLASSES]


def totals_of(counts: Counts) -> dict[str, int]:
    """The sum of every counter over all hours."""
    totals: dict[str, int] = {}
    for (_, name), number in counts.items():
        totals[name] = totals.get(name, 0) + number
    return totals


# --- statistics ------------------------------------------------------------------------------------------------


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
    counted; `is_counted` is False where the configuration switches counting off. `checkpoint_removed_count` are the
    checkpoints that pruning and `delete` took from sessions which exist; `tokens` and `cost` are what those sessions
    took of models, as far as their callers told. `statuses` says how many sessions have which status, `last_save` when
    the newest checkpoint was made; `max_bytes` is the limit of the store and `free_bytes` what its disk has left, None
    where there is none.
    """

    store: str
    since: datetime | None
    metrics: Metrics
    checkpoint_removed_count: int
    tokens: int
    cost: float
    usage: Usage
    statuses: dict[str, int]
    last_save: datetime | None
    max_bytes: int | None
    free_bytes: int | None
    latencies: tuple[LatencyClass, ...]
    hours: tuple[HourStats, ...]
    is_counted: bool = True
    last_backup: LastBackup | None = None


def store_stats(
    engine: Engine,
    counts: Counts,
    *,
    hours: int,
    is_counted: bool,
    max_bytes: int | None,
    last_backup: LastBackup | None = None,
) -> Stats:
    """All totals of what was counted, the last hours one by one, the oldest first, and what is there now."""
    totals = totals_of(counts)
    sessions = list(engine.backend.sessions(SessionQuery()))
    spent = sum((usage_in(info.metadata) for info in sessions), TokenUsage())
    newest = next(engine.headers(HeaderQuery(limit=1)), None)
    last = engine.clock() // HOUR_US
    known = [hour for hour, _ in counts if hour > 0]
    ends: tuple[int | None, ...] = (*LATENCIES_MS, None)
    return Stats(
        store=engine.backend.url,
        since=from_us(min(known) * HOUR_US) if known else None,
        metrics=metrics_of(totals),
        checkpoint_removed_count=sum(info.removed_count for info in sessions),
        tokens=spent.tokens,
        cost=spent.cost,
        usage=engine.backend.usage(),
        statuses=count_statuses(sessions),
        last_save=None if newest is None else newest.created_at,
        max_bytes=max_bytes,
        free_bytes=store_free_bytes(engine.backend.url),
        latencies=tuple(
            LatencyClass(up_to_ms=end, saves=number)
            for end, number in zip(ends, classes(totals), strict=True)
        ),
        hours=tuple(_hour(counts, hour) for hour in range(last - hours + 1, last + 1)),
        is_counted=is_counted,
        last_backup=last_backup,
    )


def _hour(counts: Counts, hour: int) -> HourStats:
    saves, save_us = counts.get((hour, "saves"), 0), counts.get((hour, "save_us"), 0)
    return HourStats(
        time=from_us(hour * HOUR_US),
        latency_ms=round(save_us / saves / 1e3, 3) if saves else None,
        **{name: counts.get((hour, name), 0) for name in HourStats.__struct_fields__[1:-1]},
    )


# --- Prometheus ------------------------------------------------------------------------------------------------

_COUNTERS: Final = {
    "checkpoint_save_count": ("checkpoint_saves", "Checkpoints saved"),
    "checkpoint_repeat_count": ("checkpoint_repeats", "Saves found stored by their key"),
    "checkpoint_failure_count": ("checkpoint_failures", "Saves that were not stored"),
    "checkpoint_conflict_count": ("checkpoint_conflicts", "Saves refused because someone wrote first"),
    "checkpoint_fallback_count": ("checkpoint_fallbacks", "Loads that took an older checkpoint"),
    "checkpoint_resume_count": ("resumes", "Runs that went on where one stopped"),
    "steps_recovered": ("steps_recovered", "Steps not done again because of checkpoints"),
    "content_bytes": ("saved_content_bytes", "Bytes of all saved checkpoints"),
    "stored_bytes": ("saved_stored_bytes", "Bytes they were stored in"),
}
_USAGE: Final = {
    "checkpoints": "Checkpoints in the store",
    "body_bytes": "Bytes that the bodies take",
    "store_bytes": "Bytes that the store takes on the disk",
}


def prometheus(stats: Stats) -> str:
    """The totals and the state of the store in the text format that Prometheus reads: seconds, bytes, counters that
    end in `_total`, one histogram. A gauge without a value is left out.
    """
    lines: list[str] = []
    for field, (name, text) in _COUNTERS.items():
        lines += _sample(f"{name}_total", "counter", getattr(stats.metrics, field), text)
    lines += _histogram(stats)
    lines += _described("sessions", "gauge", "Sessions in the store")
    lines += [f'stepkeep_sessions{{status="{status}"}} {count}' for status, count in stats.statuses.items()]
    for name, text in _USAGE.items():
        lines += _sample(name, "gauge", getattr(stats.usage, name), text)
    removed = stats.checkpoint_removed_count
    backup_at = None if stats.last_backup is None else round(stats.last_backup.time.timestamp(), 3)
    saved_at = None if stats.last_save is None else stats.last_save.timestamp()
    for gauge, value, text in (
        ("checkpoints_removed", removed, "Checkpoints removed from living sessions"),
        ("tokens", stats.tokens, "Tokens that the living sessions took"),
        ("cost", stats.cost, "What these tokens cost"),
        ("budget_bytes", stats.max_bytes, "Bytes that the store may take"),
        ("free_bytes", stats.free_bytes, "Bytes left on the disk of the store"),
        ("last_save_timestamp_seconds", saved_at, "When the newest checkpoint was made"),
        ("last_backup_timestamp_seconds", backup_at, "When the last backup was made"),
    ):
        if value is not None:
            lines += _sample(gauge, "gauge", value, text)
    return "\n".join(lines) + "\n"


def _described(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP stepkeep_{name} {text}.", f"# TYPE stepkeep_{name} {kind}"]


def _sample(name: str, kind: str, value: float, text: str) -> list[str]:
    return [*_described(name, kind, text), f"stepkeep_{name} {value}"]


def _histogram(stats: Stats) -> list[str]:
    name = "checkpoint_save_duration_seconds"
    lines = _described(name, "histogram", "Time from the encoded state until it was durable")
    reached = 0
    for each in stats.latencies:
        reached += each.saves
        end = "+Inf" if each.up_to_ms is None else str(each.up_to_ms / 1e3)
        lines.append(f'stepkeep_{name}_bucket{{le="{end}"}} {reached}')
    total = round(stats.metrics.checkpoint_save_latency_ms * stats.metrics.checkpoint_save_count / 1e3, 6)
    return [*lines, f"stepkeep_{name}_sum {total}", f"stepkeep_{name}_count {reached}"]
