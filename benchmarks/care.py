"""What keeping history small costs: the saves beside a keeper or a pruner, and the work on large stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Final

import stepkeep
from benchmarks.timing import percentile, say, seconds_of
from benchmarks.workloads import near
from stepkeep import config
from stepkeep.config import Settings
from stepkeep.maintenance.clean import apply_clean, plan_clean
from stepkeep.model import utc_now_us

WINDOW_SECONDS: Final = 20.0


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
    list_all: float
    plan_clean: float
    apply_clean: float


def run(directory: Path, *, checkpoints: int, sessions: int, samples: int) -> Care:
    """Measure all of it, each part in a store of its own."""
    say("history care")
    directory.mkdir(parents=True, exist_ok=True)
    with_history, without_history = _history_on_and_off(directory, samples)
    idle, pruning, pruned, look_up, list_all = _beside_a_prune(directory, checkpoints, samples)
    planning, applying = _cleaning(directory, sessions)
    return Care(
        checkpoints=checkpoints,
        sessions=sessions,
        with_history_p50=with_history,
        without_history_p50=without_history,
        idle_p95=idle,
        pruning_p95=pruning,
        pruned=pruned,
        look_up=look_up,
        list_all=list_all,
        plan_clean=planning,
        apply_clean=applying,
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
        large = store.session("large", profile="archive")
        for number in range(checkpoints):
            large.save({"number": number}, step=number, wait=False)
        store.flush()
        look_up = median(seconds_of(lambda: large.load(checkpoints // 2)) for _ in range(20))
        list_all = seconds_of(lambda: sum(1 for _ in large.history()))
    with stepkeep.open(path, config=_settings()) as store:
        saver = store.session("saver", profile="archive")
        idle = [seconds_of(lambda: saver.save({"n": 1})) for _ in range(samples)]
        store.session("large", profile="agent").save({"number": checkpoints}, status="paused")
        pruning, pruned = _while_it_prunes(store, checkpoints, lambda: saver.save({"n": 1}))
    return percentile(idle, 95), percentile(pruning, 95), pruned, look_up, list_all


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


def _cleaning(directory: Path, sessions: int) -> tuple[float, float]:
    """Plan and removal of as many finished sessions, eight days old."""
    long_ago = utc_now_us() - 8 * 86_400_000_000
    settings = _settings(keeper__enabled=False)
    with stepkeep.open(directory / "clean.db", config=settings, clock=lambda: long_ago) as store:
        for number in range(sessions):
            store.session(f"session-{number}", profile="workflow").save(
                {"number": number}, status="completed", wait=False
            )
        store.flush()
        now_us = utc_now_us()
        policies = settings.cleanup_policies
        planning = seconds_of(lambda: plan_clean(store.engine, policies, now_us=now_us))
        plan = plan_clean(store.engine, policies, now_us=now_us)
        applying = seconds_of(lambda: apply_clean(store.engine, plan, now_us=now_us))
    return planning, applying
