"""The background worker: one thread at a time, started on demand, quiet at a fork, and ended with its owner."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import time

import pytest

from stepkeep.processes import Worker

SECONDS = 30
NAME = "stepkeep-test-worker"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


class Turns:
    """Work that comes at once, again and again, and says when."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.worker = Worker(NAME, self.work)

    def work(self) -> float:
        self.came.set()
        return 0.001

    def come(self) -> bool:
        self.came.clear()
        return self.came.wait(SECONDS)


def test_jobs_are_done_in_order_on_one_thread() -> None:
    """`wait` returns when all are done; the thread starts with the first."""
    worker, done = Worker(NAME), []
    assert threads() == []
    for number in range(100):
        worker.submit(lambda number=number: done.append((number, threading.current_thread().name)))
    worker.wait()
    assert done == [(number, NAME) for number in range(100)]
    worker.stop()
    assert threads() == []


def test_a_job_that_raises_is_logged_and_the_next_is_done(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing ends the thread."""
    worker, done = Worker(NAME), threading.Event()
    with caplog.at_level(logging.ERROR, "stepkeep"):
        worker.submit(lambda: 1 / 0)
        worker.submit(done.set)
        worker.wait()
    assert done.is_set()
    assert "division by zero" in caplog.text
    worker.stop()


def test_stopping_finishes_the_jobs_so_far() -> None:
    """What was asked for is done, and a worker that was stopped takes jobs again."""
    worker, done = Worker(NAME), []
    for number in range(3):
        worker.submit(lambda number=number: (time.sleep(0.01), done.append(number)))
    worker.stop()
    assert done == [0, 1, 2]
    worker.submit(lambda: done.append(3))
    worker.wait()
    assert done[-1] == 3
    worker.stop()


def test_a_wait_for_the_end_has_a_limit() -> None:
    """Closing does not hang on a job that hangs."""
    worker, release = Worker(NAME), threading.Event()
    worker.submit(lambda: release.wait(SECONDS))
    worker.stop(0.01)
    assert len(threads()) == 1
    release.set()
    worker.stop()
    assert threads() == []


def test_a_worker_that_was_stopped_works_again() -> None:
    """Every start is as good as the first."""
    turns = Turns()
    for _ in range(3):
        turns.worker.start()
        assert turns.come()
        turns.worker.stop()
        assert threads() == []


def test_many_threads_start_one_thread() -> None:
    """Whoever comes first."""
    turns = Turns()
    starters = [threading.Thread(target=turns.worker.start) for _ in range(8)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    assert len(threads()) == 1
    turns.worker.stop()
    assert threads() == []
    turns.worker.stop()


def test_work_may_stop_and_start_its_own_worker() -> None:
    """The thread that stops itself ends, and only the new one goes on."""
    done, first = threading.Event(), [True]

    def work() -> float:
        if first:
            first.clear()
            worker.stop()
            worker.start()
            done.set()
        return 0.001

    worker = Worker(NAME, work)
    worker.start()
    assert done.wait(SECONDS)
    worker.stop()
    for thread in threads():
        thread.join(SECONDS)
    assert threads() == []


def test_work_that_raises_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and tried again after the same time."""
    calls, done = [], threading.Event()

    def work() -> float | None:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("not now")
        done.set()
        return None

    worker = Worker(NAME, work)
    worker.start(0.001)
    assert done.wait(SECONDS)
    worker.stop()
    assert "not now" in caplog.text
    assert not worker.is_alive


def test_waking_brings_the_work_now_and_a_pause_ends_with_a_stop() -> None:
    """An interval of an hour is cut short."""
    came = threading.Event()

    def work() -> float:
        came.set()
        worker.pause(3600)
        return 3600

    worker = Worker(NAME, work)
    worker.start(3600)
    worker.wake()
    assert came.wait(SECONDS)
    worker.stop()
    assert threads() == []


def test_an_owner_that_is_dropped_takes_the_thread_along() -> None:
    """Its method is held weakly."""
    turns = Turns()
    turns.worker.start()
    assert turns.come()
    (thread,) = threads()
    del turns
    gc.collect()
    thread.join(SECONDS)
    assert threads() == []


def test_jobs_are_done_before_a_fork_and_the_child_begins_afresh() -> None:
    """The child does no job of the parent, has no thread, and may start its own."""
    worker, done = Worker(NAME), []
    worker.submit(lambda: (time.sleep(0.05), done.append("parent")))
    pid = os.fork()
    if not pid:
        os._exit(_in_the_child(worker, done))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    worker.submit(lambda: done.append("again"))
    worker.wait()
    assert done == ["parent", "again"]
    worker.stop()


def _in_the_child(worker: Worker, done: list[str]) -> int:
    if done != ["parent"] or worker.is_alive or threads():
        return 1
    worker.submit(lambda: done.append("child"))
    worker.wait()
    worker.stop()
    return 0 if done == ["parent", "child"] else 2


def test_a_fork_does_not_wait_for_work_at_intervals() -> None:
    """It may wait for something that the forking thread holds."""
    came, release = threading.Event(), threading.Event()

    def work() -> None:
        came.set()
        release.wait(SECONDS)

    worker = Worker(NAME, work)
    worker.start()
    assert came.wait(SECONDS)
    pid = os.fork()
    if not pid:
        os._exit(int(worker.is_alive))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    release.set()
    worker.stop()


def test_the_end_of_the_program_ends_the_thread_and_finishes_the_jobs() -> None:
    """A program that ends without a stop loses no job, and is not held up by an interval."""
    program = """
import time
from stepkeep.processes import Worker
ticking = Worker("ticking", lambda: 3600.0)
ticking.start(3600)
worker = Worker("jobs")
worker.submit(lambda: (time.sleep(0.1), print("done", flush=True)))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=SECONDS, check=True)
    assert ended.stdout == b"done\n"


def test_importing_processes_is_cheap() -> None:
    """Hooks import it: nothing that starts commands or event loops comes along."""
    program = """
import sys, stepkeep.processes
print([name for name in ("asyncio", "subprocess", "queue", "yaml") if name in sys.modules])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert ended.stdout == "[]\n"
