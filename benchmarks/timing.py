"""Taking times, and summing them up by medians: other work on the machine only ever makes a sample longer."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter


def seconds_of(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least `percent` of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def interleaved(
    works: Mapping[str, Callable[[], object]], *, repeats: int, budget_seconds: float = 15.0
) -> dict[str, float]:
    """The median seconds of each work. They take turns, so that a slow moment of the machine hits all of them.

    A work that used up the budget is not repeated again.
    """
    samples: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            if sum(samples[name]) < budget_seconds:
                samples[name].append(seconds_of(work))
    return {name: median(taken) for name, taken in samples.items()}


def say(text: str) -> None:
    """Tell how far the run is; results go to standard output, this does not."""
    print(text, file=sys.stderr, flush=True)
