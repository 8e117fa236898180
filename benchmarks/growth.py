"""A workload saved step by step by all subjects in turns, then read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Final

from benchmarks import cold, peers
from benchmarks.timing import interleaved, percentile, say, seconds_of
from benchmarks.workloads import State, Workload, size_of

_POINTS: Final = 40
LEAST_SAMPLES: Final = 25
"""How many saves a median is taken of, where a tenth of them is less."""


@dataclass
class Result:
    """What one subject did with one workload. Seconds are medians; a read it does not offer is missing."""

    workload: str
    steps: int
    subject: str
    state_bytes: int = 0
    stored_bytes: int = 0
    save_p50: float = 0.0
    save_p95: float = 0.0
    save_mean: float = 0.0
    reads: dict[str, float] = field(default_factory=dict)
    size_points: list[tuple[int, int]] = field(default_factory=list)
    save_points: list[tuple[int, float]] = field(default_factory=list)


def run(workload: Workload, steps: int, directory: Path, *, with_peers: bool, repeats: int) -> list[Result]:
    """Save all steps with each subject, the subjects taking turns at every step, then time the reads."""
    say(f"{workload.name}, {steps} steps")
    subjects = peers.subjects(directory, with_peers=with_peers)
    results = {subject.name: Result(workload.name, steps, subject.name) for subject in subjects}
    state = _save_all(workload, steps, subjects, results)
    _read_all(steps, state, subjects, results, repeats)
    for subject in subjects:
        subject.close()
        results[subject.name].stored_bytes = bytes_in(peers.place(directory, subject.name))
    _load_cold(directory, results, repeats)
    return list(results.values())


def _save_all(
    workload: Workload, steps: int, subjects: list[peers.Subject], results: Mapping[str, Result]
) -> State:
    samples: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    # Whoever follows a heavy writer is another at each step; but the bare insert always repeats the save before it.
    turns = [subjects[:2], *([subject] for subject in subjects[2:])]
    every = max(1, steps // _POINTS)
    state: State = {}
    for step, state in enumerate(workload.take(steps), 1):
        first = (step - 1) % len(turns)
        for subject in chain(*turns[first:], *turns[:first]):
            samples[subject.name].append(seconds_of(subject.saver(step, state)))
        if step % every == 0:
            for subject in subjects:
                recent = samples[subject.name][-every:]
                results[subject.name].size_points.append((step, subject.size_bytes()))
                results[subject.name].save_points.append((step, median(recent)))
    for name, result in results.items():
        last = samples[name][-max(steps // 10, min(steps, LEAST_SAMPLES)) :]
        result.save_p50, result.save_p95 = median(last), percentile(last, 95)
        result.save_mean = fmean(samples[name][steps // 2 :])
        result.state_bytes = size_of(state)
    return state


def _read_all(
    steps: int, state: State, subjects: list[peers.Subject], results: Mapping[str, Result], repeats: int
) -> None:
    """Time the reads of all subjects in turns, after checking that they return what was saved."""
    expected = json.loads(json.dumps(state))
    # In the middle of a history, and of a group of patches.
    reads = {subject.name: subject.reads(max(1, steps // 2 - 3)) for subject in subjects}
    for name, offered in reads.items():
        if peers.LATEST in offered and offered[peers.LATEST]() != expected:
            raise AssertionError(f"{name} does not return the state that was saved last")
        if peers.LIST in offered and offered[peers.LIST]() != steps:
            raise AssertionError(f"{name} does not list {steps} checkpoints")
    for kind in (peers.LATEST, peers.OLD, peers.LIST):
        works = {name: offered[kind] for name, offered in reads.items() if kind in offered}
        for name, seconds in interleaved(works, repeats=repeats).items():
            results[name].reads[kind] = seconds


def _load_cold(directory: Path, results: Mapping[str, Result], repeats: int) -> None:
    """Time the first load in new processes. They report their own seconds: starting Python is not counted."""
    samples: dict[str, list[float]] = {name: [] for name, result in results.items() if result.reads}
    for _ in range(repeats):
        for name, taken in samples.items():
            taken.append(cold.load_seconds(name, peers.place(directory, name)))
    for name, taken in samples.items():
        results[name].reads["cold"] = median(taken)


def bytes_in(directory: Path) -> int:
    """What is stored. SQLite's `-shm` file is an index in shared memory, made anew at opening: it holds no data."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.name.endswith("-shm")]
    return sum(path.stat().st_size for path in files)
