"""What a run found: the figures to reach with their targets, all tables as text, and everything as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import apsw

from benchmarks.care import Care
from benchmarks.floor import Floor
from benchmarks.growth import Result
from benchmarks.parts import Part, Row
from benchmarks.profile import Profile
from benchmarks.throughput import SQLITE_SAVER, Rate
from benchmarks.workloads import WORKLOADS, W

STEPS: Final = (50, 200, 1000)
_IN_MEMORY: Final = ("tmpfs", "ramfs")
_PACKAGES: Final = (
    "apsw",
    "msgspec",
    "backports.zstd",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "langgraph",
)


@dataclass
class Report:
    """The results of one run; parts that did not run are empty."""

    machine: dict[str, Any]
    growth: list[Result] = field(default_factory=list)
    floors: list[Floor] = field(default_factory=list)
    rates: list[Rate] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    care: Care | None = None
    parts: dict[str, Part] = field(default_factory=dict)

    def result(self, workload: str, steps: int, subject: str) -> Result | None:
        wanted = (workload, steps, subject)
        return next((r for r in self.growth if (r.workload, r.steps, r.subject) == wanted), None)


# --- the figures to reach


def rows(report: Report) -> list[Row]:
    """The figures of this release, in the order in which the design lists them."""
    ours = {steps: report.result(W.name, steps, "stepkeep") for steps in STEPS}
    peers = {steps: report.result(W.name, steps, "SqliteSaver") for steps in STEPS}
    peer = peers[1000]
    rate = {(rate.kind, rate.savers): rate.saves_per_second for rate in report.rates if not rate.is_shared}
    return [
        Row("stored bytes after 1,000 steps of W ÷ final state, all kept", _bytes_ratio(ours[1000]), 3.0),
        Row("the same after 200 steps", _bytes_ratio(ours[200]), 2.0),
        *(
            Row(
                f"save p50 at step {steps:,} ÷ SqliteSaver.put p50",
                _save_ratio(ours[steps], peers[steps]),
                reach,
            )
            for steps, reach in zip(STEPS, (1.1, 0.7, 0.45), strict=True)
        ),
        *(
            Row(
                f"save mean of the second half of {steps:,} steps ÷ SqliteSaver.put",
                _mean_ratio(ours[steps], peers[steps]),
                1.0,
            )
            for steps in STEPS
        ),
        *(
            Row(
                f"save p50, {size(size_bytes)} state ÷ bare durable insert of the same delta",
                _floor_ratio(report.floors, size_bytes),
                reach,
            )
            for size_bytes, reach in ((20_000, 1.9), (93_000, 2.0), (2_000_000, 5.0))
        ),
        *(
            Row(
                f"load latest at {steps:,}, hot ÷ SqliteSaver.get_tuple",
                _read_ratio(ours[steps], peers[steps], "latest"),
                1.0,
            )
            for steps in STEPS
        ),
        Row("load latest at 1,000, cold ÷ SqliteSaver.get_tuple", _read_ratio(ours[1000], peer, "cold"), 1.3),
        Row("list 1,000 headers ÷ SqliteSaver.list", _read_ratio(ours[1000], peer, "list"), 0.02),
        Row(
            "durable small saves/s, 16 threads ÷ SqliteSaver's with 16",
            _rate_ratio(rate, ("threads", 16), (SQLITE_SAVER, 16)),
            1.0,
            is_ceiling=False,
        ),
        Row(
            "durable small saves/s, 8 processes ÷ 1",
            _rate_ratio(rate, ("processes", 8), ("processes", 1)),
            0.9,
            is_ceiling=False,
        ),
        Row(
            "save with history ÷ without (only the newest kept)",
            report.care and report.care.with_history_p50 / report.care.without_history_p50,
            1.05,
        ),
        Row(
            "save p95 while the keeper prunes 10,000 checkpoints ÷ idle",
            report.care and report.care.pruning_p95 / report.care.idle_p95,
            1.5,
        ),
        *(report.care.rows() if report.care else ()),
        *(row for part in report.parts.values() for row in part.rows),
    ]


def _rate_ratio(
    rate: dict[tuple[str, int], float], ours: tuple[str, int], other: tuple[str, int]
) -> float | None:
    return rate[ours] / rate[other] if rate.keys() >= {ours, other} else None


def _floor_ratio(floors: Iterable[Floor], size_bytes: int) -> float | None:
    return next((floor.ratio for floor in floors if floor.size_bytes == size_bytes), None)


def _bytes_ratio(ours: Result | None) -> float | None:
    return None if ours is None else ours.stored_bytes / ours.state_bytes


def _save_ratio(ours: Result | None, peer: Result | None) -> float | None:
    return None if ours is None or peer is None else ours.save_p50 / peer.save_p50


def _mean_ratio(ours: Result | None, peer: Result | None) -> float | None:
    return None if ours is None or peer is None else ours.save_mean / peer.save_mean


def _read_ratio(ours: Result | None, peer: Result | None, kind: str) -> float | None:
    return None if ours is None or peer is None else ours.reads[kind] / peer.reads[kind]


# --- the machine


def machine(directory: Path) -> dict[str, Any]:
    """Where and with what the figures were taken. The load says how quiet the machine was at the start."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(directory),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "load": round(os.getloadavg()[0], 2),
        "packages": {name: found for name in _PACKAGES if (found := _installed(name))},
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def _file_system(directory: Path) -> str:
    """The kind of file system: on one in memory, syncing costs nothing and the figures mean little."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    found = [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()]
    above = [mount for mount in found if directory.resolve().is_relative_to(mount[1])]
    return max(above, key=lambda mount: len(mount[1]))[2] if above else "unknown"


# --- text


def as_text(report: Report) -> str:
    """All tables for a terminal."""
    parts = [_machine_line(report.machine), *_warnings(report.machine), _rows_table(rows(report))]
    if report.growth:
        parts.append(_growth_table(report.growth))
    if report.floors:
        parts.append(_floor_table(report.floors))
    if report.rates:
        parts.append(_rates_table(report.rates))
    if report.care is not None:
        parts.append(_care_table(report.care))
    parts += [_profile_table(profile) for profile in report.profiles]
    parts += [
        table(each.title, each.names, each.lines) for part in report.parts.values() for each in part.tables
    ]
    return "\n\n".join(parts)


def _machine_line(found: dict[str, Any]) -> str:
    return (
        f"{found['date']}, {found['cores']} × {found['cpu']}, {found['system']}, {found['file_system']},"
        f" Python {found['python']}, SQLite {found['sqlite']}, load {found['load']}"
    )


def _warnings(found: dict[str, Any]) -> list[str]:
    """What makes the figures of this run doubtful."""
    warnings = []
    if found["load"] > 0.5 * (found["cores"] or 1):
        warnings.append(
            "The machine was busy when this began. Beside others that sync the same disk, ratios of durable writes\n"
            "are too flattering (all wait for the disk), and those of many threads mean little: repeat it when idle."
        )
    if found["file_system"] in _IN_MEMORY:
        warnings.append("The stores were in memory, where syncing is free: name a disk with --dir.")
    return warnings


def _rows_table(found: Sequence[Row]) -> str:
    lines = [
        (row.what, "–" if row.ratio is None else f"{row.ratio:.3g}", row.reach, row.verdict) for row in found
    ]
    return table("Figures to reach", ("ratio in this run", "measured", "reach", ""), lines)


def _growth_table(results: Iterable[Result]) -> str:
    titles = {workload.name: workload.title for workload in WORKLOADS}
    lines: list[tuple[str, ...]] = []
    heading = ""
    for result in results:
        label = f"{titles[result.workload]}, {result.steps} steps, {size(result.state_bytes)}"
        lines.append(
            (
                label if label != heading else "",
                result.subject,
                size(result.stored_bytes),
                f"{result.stored_bytes / result.state_bytes:.2f}×",
                ms(result.save_p50),
                ms(result.save_p95),
                *(ms(result.reads.get(kind)) for kind in ("latest", "cold", "old", "list")),
            )
        )
        heading = label
    names = "workload, subject, stored, ÷ state, save p50, p95, load hot, cold, old, list"
    return table("Workloads (milliseconds)", names.split(", "), lines)


def _floor_table(floors: Iterable[Floor]) -> str:
    lines = [
        (
            size(floor.size_bytes),
            size(floor.patch_bytes),
            ms(floor.save_p50),
            ms(floor.save_p95),
            ms(floor.bare_p50),
            ms(floor.bare_p95),
            f"{floor.ratio:.2f}",
        )
        for floor in floors
    ]
    names = ("state", "patch", "save p50", "p95", "bare insert p50", "p95", "ratio")
    return table("A save beside a bare durable insert of its patch (milliseconds)", names, lines)


def _rates_table(rates: Iterable[Rate]) -> str:
    lines = [
        (
            f"{rate.savers} {rate.kind}",
            "one shared" if rate.is_shared else "their own",
            f"{rate.saves_per_second:.0f}",
        )
        for rate in rates
    ]
    return table("Durable small saves per second", ("savers", "sessions", "saves/s"), lines)


def _care_table(care: Care) -> str:
    lines = [
        ("save of 20 KB, the last 100 kept, p50", ms(care.with_history_p50)),
        ("the same, only the newest kept, p50", ms(care.without_history_p50)),
        ("small save, idle, p95", ms(care.idle_p95)),
        (f"small save while the keeper prunes ({care.pruned:,} gone meanwhile), p95", ms(care.pruning_p95)),
        (f"load one of {care.checkpoints:,} checkpoints by its number", ms(care.look_up)),
        (f"list {care.checkpoints:,} headers", ms(care.list_headers)),
        (f"timeline of {2 * care.checkpoints:,} checkpoints", ms(care.timeline)),
        (f"prune {2 * care.checkpoints:,} checkpoints", ms(care.prune)),
        (f"list {2 * care.sessions:,} sessions", ms(care.list_sessions)),
        (f"decide about {2 * care.sessions:,} sessions", ms(care.plan_clean)),
        (f"remove {care.sessions:,} sessions of 3 checkpoints", ms(care.clean)),
    ]
    return table("Keeping history small (milliseconds)", ("what", "time"), lines)


def _profile_table(profile: Profile) -> str:
    total = sum(profile.parts.values())
    lines = [
        (name, f"{seconds * 1e6:.0f}", f"{seconds / total:.0%}") for name, seconds in profile.parts.items()
    ]
    title = f"Where a save of {size(profile.size_bytes)} spends {total * 1e3:.2f} ms"
    note = f"\nnot found: {', '.join(profile.missing)}" if profile.missing else ""
    return table(title, ("part", "µs", "share"), lines) + note


def table(title: str, names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Text in columns; the first one to the left, numbers to the right."""
    widths = [max(len(line[column]) for line in (names, *lines)) for column in range(len(names))]

    def row(cells: Sequence[str]) -> str:
        aligned = [
            cell.rjust(width) if column and _is_figure(cell) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(aligned).rstrip()

    return "\n".join([title, row(names), "  ".join("-" * width for width in widths), *map(row, lines)])


def _is_figure(cell: str) -> bool:
    return cell[:1].isdigit() or cell == "–"


def ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def size(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


# --- files


def write_json(report: Report, path: Path) -> None:
    """Everything that was measured, and the figures with their verdicts."""
    content = asdict(report)
    content["rows"] = [{**asdict(row), "verdict": row.verdict} for row in rows(report)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
