"""What keeping history small costs: the saves beside a keeper or a pruner, and the work on large stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Final

import stepkeep
from benchmarks.parts import Row
from benchmarks.timing import percentile, say, seconds_of
from benchmarks.workloads import near
from stepkeep import config
from stepkeep.config import Settings
from stepkeep.maintenance.clean import plan_clean
from stepkeep.model import utc_now_us

WINDOW_SECONDS: Final = 20.0
DAY_US: Final = 86_400_000_000
_REMOVED: Final = "a text that must not be found again"


@dataclass
class Care:
    """Seconds, each the median or the 95th percentile of many."""

    checkpoints: int
    sessions: int
    with_history_p50: float
    without_history_p50: float
    idle_p95: float
    pruning_p95: float
    pruned: int
    look_up: float
    list_headers: float
    timeline: float
    prune: float
    list_sessions: float
    plan_clean: float
    clean: float

    def rows(self) -> list[Row]:
        """The work on large stores beside what it may take; times of durable work are those of this disk."""
        twice, done = f"{2 * self.checkpoints:,} checkpoints", f"{self.sessions:,} sessions"
        return [
            Row(f"list {self.checkpoints:,} headers ÷ 50 ms", self.list_headers / 0.05, 1.0),
            Row(f"timeline of {twice} ÷ 0.5 s", self.timeline / 0.5, 1.0),
            Row(f"prune {twice} ÷ 5 s", self.prune / 5, 1.0),
            Row(f"list {2 * self.sessions:,} sessions ÷ 0.3 s", self.list_sessions / 0.3, 1.0),
            Row(f"remove {done} of 3 checkpoints, bytes gone ÷ 5 s", self.clean / 5, 1.0),
        ]


def run(directory: Path, *, checkpoints: int, sessions: int, samples: int) -> Care:
    """Measure all of it, each part in a store of its own."""
    say("history care")
    directory.mkdir(parents=True, exist_ok=True)
    with_history, without_history = _history_on_and_off(directory, samples)
    idle, pruning, pruned, look_up, list_headers = _beside_a_prune(directory, checkpoints, samples)
    timeline, prune = _long_session(directory, 2 * checkpoints)
    list_sessions, planning, cleaning = _many_sessions(directory, sessions)
    return Care(
        checkpoints=checkpoints,
        sessions=sessions,
        with_history_p50=with_history,
        without_history_p50=without_history,
        idle_p95=idle,
        pruning_p95=pruning,
        pruned=pruned,
        look_up=look_up,
        list_headers=list_headers,
        timeline=timeline,
        prune=prune,
        list_sessions=list_sessions,
        plan_clean=planning,
        clean=cleaning,
    )


def _settings(**flags: object) -> Settings:
    given = {name.replace("__", "."): value for name, value in flags.items()}
    return config.load(cwd=None, environ={}, flags=given)


def _history_on_and_off(directory: Path, samples: int) -> tuple[float, float]:
    """Saves of 20 KB that keep the last 100, and saves that keep only the newest, taking turns."""
    off = _settings(checkpoint__history__enabled=False)
    with (
        stepkeep.open(directory / "on.db", config=_settings()) as on_store,
        stepkeep.open(directory / "off.db", config=off) as off_store,
    ):
        on, without = on_store.session("on"), off_store.session("off")
        times: dict[str, list[float]] = {"on": [], "off": []}
        for scene in near(20_000, samples):
            times["on"].append(seconds_of(lambda scene=scene: on.save(scene.state)))  # type: ignore[misc]
            times["off"].append(seconds_of(lambda scene=scene: without.save(scene.state)))  # type: ignore[misc]
    return median(times["on"]), median(times["off"])


def _beside_a_prune(
    directory: Path, checkpoints: int, samples: int
) -> tuple[float, float, int, float, float]:
    """The 95th percentile of small saves before, and while, the keeper prunes a large session of the same store."""
    path = directory / "prune.db"
    with stepkeep.open(path, config=_settings(keeper__enabled=False)) as store:
        large = _filled(store, checkpoints)
        look_up = median(seconds_of(lambda: large.load(checkpoints // 2)) for _ in range(20))
        list_headers = median(seconds_of(lambda: sum(1 for _ in large.history())) for _ in range(5))
    with stepkeep.open(path, config=_settings()) as store:
        saver = store.session("saver", profile="archive")
        idle = [seconds_of(lambda: saver.save({"n": 1})) for _ in range(samples)]
        store.session("large", profile="agent").save({"number": checkpoints}, status="paused")
        pruning, pruned = _while_it_prunes(store, checkpoints, lambda: saver.save({"n": 1}))
    return percentile(idle, 95), percentile(pruning, 95), pruned, look_up, list_headers


def _filled(store: stepkeep.Store, checkpoints: int) -> stepkeep.Session:
    large = store.session("large", profile="archive")
    for number in range(checkpoints):
        large.save({"number": number}, step=number, wait=False)
    store.flush()
    return large


def _while_it_prunes(
    store: stepkeep.Store, checkpoints: int, sample: Callable[[], object]
) -> tuple[list[float], int]:
    """How long each sample took while the keeper worked, for some seconds at most, and how many it removed."""
    large = store.get("large")
    large.complete()  # a session that ends is looked at soon
    samples = []
    end = monotonic() + WINDOW_SECONDS
    while monotonic() < end and large.usage().checkpoints > 20:
        samples += [seconds_of(sample) for _ in range(50)]
    return samples, checkpoints - large.usage().checkpoints


def _long_session(directory: Path, checkpoints: int) -> tuple[float, float]:
    """The whole timeline of a long session, and pruning all of it but the last 100."""
    with stepkeep.open(directory / "long.db", config=_settings(keeper__enabled=False)) as store:
        large = _filled(store, checkpoints)
        timeline = median(seconds_of(large.timeline) for _ in range(5))
        return timeline, seconds_of(lambda: store.prune("large", keep_last=100))


def _many_sessions(directory: Path, sessions: int) -> tuple[float, float, float]:
    """Twice as many sessions listed; then those that ended eight days ago are found, and removed."""
    path = directory / "clean.db"
    settings = _settings(keeper__enabled=False)
    moments = count(utc_now_us() - 8 * DAY_US, 1000)
    with stepkeep.open(path, config=settings, clock=moments.__next__) as store:
        for number in range(sessions):
            ended = store.session(f"ended-{number}", profile="workflow")
            for status in ("in_progress", "in_progress", "completed"):
                ended.save({"number": number}, status=status, message=_REMOVED, wait=False)
            store.session(f"going-on-{number}", profile="workflow").save({"number": number}, wait=False)
        store.flush()
    with stepkeep.open(path, config=settings) as store:
        listing = median(seconds_of(store.summaries) for _ in range(5))
        now_us = utc_now_us()
        planning = seconds_of(lambda: plan_clean(store.engine, settings.cleanup_policies, now_us=now_us))
        cleaning = seconds_of(lambda: _check(store.clean(), path, sessions))
    return listing, planning, cleaning


def _check(report: stepkeep.CleanReport, path: Path, sessions: int) -> None:
    """A removal that leaves something behind is no removal."""
    stored = b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))
    if report.cleaned != sessions or _REMOVED.encode() in stored:
        raise RuntimeError(f"{report.cleaned} of {sessions} sessions removed, or their bytes are still there")
