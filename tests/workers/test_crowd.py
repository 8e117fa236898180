"""Many workers on one server, some of which are killed: everything is done, and nothing twice."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter, defaultdict
from contextlib import ExitStack

import pytest

import stepkeep
from stepkeep.api import Workflows
from stepkeep.model import Status
from tests.workers.crew import Crew

STEPS = 3
WORKERS = 4

# Each run of a step leaves a line with a number of its own, and prints that number: it is stored with the step.
FLOW = "name: crowd\nsteps:\n" + "".join(
    f"""\
  - id: n{number}
    shell: |
      echo "$STEPKEEP_RUN n{number} $$" >>log
      sleep 0.05
      echo $$
"""
    for number in range(1, STEPS + 1)
)

# A second runner of the same session would find the folder of the first.
ALONE = """\
name: alone
steps:
  - {id: a, shell: 'mkdir "in-$STEPKEEP_RUN" && echo a >>log && sleep 0.02 && rmdir "in-$STEPKEEP_RUN"'}
  - {id: b, shell: 'mkdir "in-$STEPKEEP_RUN" && echo b >>log && rmdir "in-$STEPKEEP_RUN"'}
"""


def queue_many(crew: Crew, count: int) -> list[str]:
    planned = Workflows.plan(crew.folder / "flow.yaml")
    with stepkeep.open(crew.url) as store:
        return [store.workflows.queue(planned, key=f"s{number:03}").session for number in range(count)]


def left(crew: Crew) -> int:
    with stepkeep.open(crew.url) as store:
        return sum(info.status is not Status.COMPLETED for info in store.sessions())


def check_all(crew: Crew, keys: list[str], kills: int) -> None:
    """All are completed; a step ran again only where a kill had stopped it, and never once it was stored."""
    runs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in crew.log:
        session, step, number = line.split()
        runs[session, step].append(number)
    assert runs.keys() == {(key, f"n{number}") for key in keys for number in range(1, STEPS + 1)}
    with stepkeep.open(crew.url) as store:
        for key in keys:
            session = store.get(key)
            assert session.info.status is Status.COMPLETED
            for header in session.history():
                for step in store.checkpoint(header.id).state["completed_steps"]:
                    # Whichever checkpoint is looked at: what it stored was the last run of that step.
                    assert runs[key, step["id"]][-1] == step["output"]["stdout"].strip(), (key, step["id"])
            assert len(session.load().state["completed_steps"]) == STEPS
    again = Counter({place: len(numbers) - 1 for place, numbers in runs.items() if len(numbers) > 1})
    assert again.total() <= kills


def kill_one_after_another(crew: Crew, count: int, *, seed: int) -> None:
    crew.write(FLOW)
    keys = queue_many(crew, count)
    chance = random.Random(seed)
    kills = 0
    with ExitStack() as stack:
        crowd: list[subprocess.Popen[bytes]] = []

        def hire() -> None:
            crowd.append(stack.enter_context(crew.worker("--idle-exit", "3")))

        for _ in range(WORKERS):
            hire()
        deadline = time.monotonic() + 120 + 2 * count
        before = count
        while (remaining := left(crew)) and time.monotonic() < deadline:
            time.sleep(chance.uniform(0.01, 0.05))
            if WORKERS < remaining < before:  # a slow machine must be able to get on
                before = remaining
                crew.stop(crowd.pop(0), signal.SIGKILL)
                kills += 1
                hire()
        for worker in crowd:
            worker.communicate(timeout=60)
    unfinished = {key: info for key, info in crew.sessions().items() if info.status is not Status.COMPLETED}
    assert not unfinished
    assert kills >= min(5, count // 8), "too fast to be disturbed"
    check_all(crew, keys, kills)


@pytest.mark.full
def test_four_workers_that_are_killed_one_after_another(server_crew: Crew) -> None:
    """16 sessions on a server: every one completes, completed steps ran once."""
    kill_one_after_another(server_crew, 16, seed=1)


@pytest.mark.slow
def test_four_workers_that_are_killed_one_after_another_for_long(server_crew: Crew) -> None:
    """The same with 200 sessions."""
    kill_one_after_another(server_crew, 200, seed=2)


@pytest.mark.full
def test_workers_on_one_file_that_are_killed(crew: Crew) -> None:
    """The same on SQLite, with 12 sessions."""
    kill_one_after_another(crew, 12, seed=3)


@pytest.mark.full
def test_no_session_is_run_by_two_at_once(server_crew: Crew) -> None:
    """Four workers with two sessions each at a time: no step finds another one at work in its session."""
    crew = server_crew
    crew.write(ALONE)
    keys = queue_many(crew, 16)
    with ExitStack() as stack:
        crowd = [stack.enter_context(crew.worker("--once", "--parallel", "2")) for _ in range(WORKERS)]
        outputs = [worker.communicate(timeout=120)[0] for worker in crowd]
    assert left(crew) == 0
    assert sorted(crew.log) == ["a"] * len(keys) + ["b"] * len(keys)
    started = [line for out in outputs for line in out.splitlines() if b'"event":"started"' in line]
    assert len(started) == len(keys)
    assert sum(bool(out.count(b'"event":"started"')) for out in outputs) > 1, "one of them did it all"
