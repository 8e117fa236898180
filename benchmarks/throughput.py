"""Durable saves per second of small states, from many threads and from many processes."""

from __future__ import annotations

import multiprocessing
import threading
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final

import stepkeep
from benchmarks.peers import LangGraphSqlite
from benchmarks.timing import say
from benchmarks.workloads import State

THREADS: Final = (1, 4, 16)
PROCESSES: Final = (1, 4, 8)
SQLITE_SAVER: Final = "threads, SqliteSaver"


@dataclass(frozen=True)
class Crowd:
    """Savers at work together: threads of one process, or processes, in sessions of their own or in one."""

    kind: str
    savers: int
    is_shared: bool

    def key(self, saver: int) -> str:
        return "shared" if self.is_shared else f"own-{saver}"


@dataclass
class Rate:
    kind: str
    savers: int
    is_shared: bool
    saves_per_second: float


def run(
    directory: Path,
    *,
    rounds: int,
    seconds: float,
    max_processes: int = max(PROCESSES),
    with_peers: bool = False,
) -> list[Rate]:
    """The median rate of each crowd; all crowds take their turn in every round, each in a new store.

    Starting a process takes longer than a short measurement: `max_processes` leaves large crowds out.
    """
    crowds = [
        Crowd(kind, savers, is_shared)
        for kind, counts in (("threads", THREADS), ("processes", PROCESSES))
        for is_shared in (False, True)
        for savers in counts
        if kind == "threads" or savers <= max_processes
    ]
    if with_peers:
        crowds += [Crowd(SQLITE_SAVER, savers, is_shared=False) for savers in THREADS]
    rates: dict[Crowd, list[float]] = {crowd: [] for crowd in crowds}
    for number in range(rounds):
        say(f"throughput, round {number + 1} of {rounds}")
        for place, crowd in enumerate(crowds):
            path = directory / f"throughput-{number}-{place}.db"
            work = {"threads": _threads, "processes": _processes}.get(crowd.kind, _saver_threads)
            rates[crowd].append(work(crowd, path, seconds))
    return [Rate(crowd.kind, crowd.savers, crowd.is_shared, median(taken)) for crowd, taken in rates.items()]


def _save_for(session: stepkeep.Session, seconds: float, saver: int) -> int:
    """Save small states for a while; how many."""
    saved = 0
    end = perf_counter() + seconds
    while perf_counter() < end:
        saved += 1
        session.save(small_state(saver, saved), step=saved)
    return saved


def small_state(saver: int, count: int) -> State:
    """About 50 bytes."""
    return {"saver": saver, "count": count, "note": f"small state {count * 7919 % 10007}"}


def _threads(crowd: Crowd, path: Path, seconds: float) -> float:
    saved = [0] * crowd.savers
    with stepkeep.open(f"sqlite:{path}") as store:
        sessions = [store.session(crowd.key(saver), profile="archive") for saver in range(crowd.savers)]

        def work(saver: int) -> None:
            saved[saver] = _save_for(sessions[saver], seconds, saver)

        took = _together([threading.Thread(target=work, args=(saver,)) for saver in range(crowd.savers)])
    return sum(saved) / took


def _saver_threads(crowd: Crowd, path: Path, seconds: float) -> float:
    """LangGraph's saver with the same states, each thread of the process in a thread of its own."""
    saver = LangGraphSqlite(path.with_suffix(".saver"), make=True)
    saved = [0] * crowd.savers

    def work(number: int) -> None:
        save = saver.in_thread(crowd.key(number))
        end = perf_counter() + seconds
        while perf_counter() < end:
            saved[number] += 1
            save(saved[number], small_state(number, saved[number]))

    took = _together([threading.Thread(target=work, args=(number,)) for number in range(crowd.savers)])
    saver.close()
    return sum(saved) / took


def _together(threads: list[threading.Thread]) -> float:
    start = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return perf_counter() - start


def _processes(crowd: Crowd, path: Path, seconds: float) -> float:
    stepkeep.open(f"sqlite:{path}").close()
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(crowd.savers)
    counts: Queue[int] = context.Queue()
    workers = [
        context.Process(target=_process, args=(str(path), crowd.key(saver), saver, seconds, barrier, counts))
        for saver in range(crowd.savers)
    ]
    for worker in workers:
        worker.start()
    total = sum(_received(counts, workers) for _ in workers)
    for worker in workers:
        worker.join()
    return total / seconds


def _received(counts: Queue[int], workers: list[multiprocessing.context.SpawnProcess]) -> int:
    """The next count; an error instead of waiting for ever when a worker died."""
    while True:
        try:
            return counts.get(timeout=1)
        except Exception:
            if any(worker.exitcode for worker in workers):
                raise RuntimeError("a saving process failed") from None


def _process(path: str, key: str, saver: int, seconds: float, barrier: Barrier, counts: Queue[int]) -> None:
    with stepkeep.open(f"sqlite:{path}") as store:
        session = store.session(key, profile="archive")
        barrier.wait(60)
        counts.put(_save_for(session, seconds, saver))
