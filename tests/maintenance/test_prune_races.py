"""Pruning and cleaning while other processes save, and pruners killed at random moments."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.api import Store
from stepkeep.maintenance.clean import apply_clean, plan_clean
from stepkeep.maintenance.prune import apply_prune, plan_prune, prune_session
from stepkeep.policy.cleanup import CleanupPolicies, CleanupRule
from stepkeep.policy.retention import Retention
from stepkeep.storage.sqlite import SqliteBackend
from tests import interpreter

ROOT = Path(__file__).parents[2]
SOURCE = Path(stepkeep.__file__).parents[1]


# --- in the child ----------------------------------------------------------------------------------------------


def open_store(path: str) -> Store:
    """A store without a keeper: only the test prunes."""
    return Store(SqliteBackend(path))


def state_of(writer: object, number: int) -> dict[str, Any]:
    """A state that grows, as a conversation does, and is stored as deltas."""
    return {"writer": writer, "n": number, "log": [f"line {line} of {writer}" for line in range(number % 80)]}


def save_many(path: str, key: str, writer: str, count: int, pause_seconds: float = 0) -> None:
    """Save; any error ends the process with a trace."""
    with open_store(path) as store:
        session = store.session(key, profile="agent")
        for number in range(count):
            session.save(state_of(writer, number), tags=["tenth"] if number % 10 == 0 else [])
            time.sleep(pause_seconds)


def prune_step_by_step(path: str, key: str, keep_last: int) -> None:
    """Prune in small batches; a line is written before the first, and after each."""
    with open_store(path) as store:
        engine = store.engine
        tell_step(0)
        plan = plan_prune(engine, store.get(key).info, Retention(keep_last=keep_last), now_us=engine.clock())
        apply_prune(engine, plan, batch=5, progress=tell_step)


def tell_step(_: int) -> None:
    os.write(1, b"step\n")


# --- in the test -----------------------------------------------------------------------------------------------


def start(call: str) -> subprocess.Popen[bytes]:
    """Run a function of this module in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if name != "STEPKEEP_STORE"}
    environment = {**kept, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"}
    code = f"from tests.maintenance import test_prune_races as t; t.{call}"
    return interpreter.start(["-c", code], stdout=subprocess.PIPE, env=environment, cwd=ROOT)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store" / "stepkeep.db")


def check(path: str, key: str, *, at_least: int, last_seq: int | None = None) -> None:
    """The store verifies, the newest are all there, and each loads as what its writer saved."""
    with open_store(path) as store:
        session = store.get(key)
        assert session.verify().findings == ()  # numbers that are neither stored nor pruned would be one
        if last_seq is not None:
            assert session.info.last_seq == last_seq
        headers = list(session.history())
        newest = [header.seq for header in headers[:at_least]]
        assert newest == list(range(session.info.last_seq, session.info.last_seq - at_least, -1))
        for header in headers:
            state = session.load(header.id).state
            assert state == state_of(state["writer"], state["n"])
        latest = session.latest()
        assert latest is not None
        assert latest.seq == session.info.last_seq


@pytest.mark.full
def test_pruning_and_cleaning_while_four_others_save(path: str) -> None:
    """No error reaches a writer, every number is stored or pruned, and nothing that must stay is lost."""
    count = 150
    policies = CleanupPolicies(failed=CleanupRule(retention_days=0), completed=CleanupRule(retention_days=0))
    retention = Retention(keep_last=20, keep_tags=("tenth",))
    deleted = cleaned = 0
    with open_store(path) as store:
        engine = store.engine
        uid = store.session("run", profile="agent").uid
        writers = [start(f"save_many({path!r}, 'run', 'w{number}', {count}, 0.005)") for number in range(4)]
        while any(writer.poll() is None for writer in writers):
            session = engine.backend.session(uid)
            deleted += prune_session(engine, session, retention).deleted
            store.session("done").save({"n": 1}, status="completed")
            now_us = engine.clock()
            plan = plan_clean(engine, lambda _: policies, now_us=now_us)
            report = apply_clean(engine, plan, now_us=now_us)
            assert report.errors == ()
            cleaned += report.cleaned
        assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.close()
    assert deleted > 100
    assert cleaned > 0
    check(path, "run", at_least=20, last_seq=4 * count)
    with open_store(path) as store:
        assert len(list(store.get("run").history(tag="tenth"))) == 4 * count // 10


def kill_a_pruner(path: str, keep_last: int, steps: int, wait_seconds: float) -> None:
    child = start(f"prune_step_by_step({path!r}, 'run', {keep_last})")
    assert child.stdout is not None
    for _ in range(steps):
        assert child.stdout.readline() == b"step\n"
    time.sleep(wait_seconds)
    child.kill()
    child.wait()
    child.stdout.close()


def kill_rounds(path: str, rounds: int, seed: int) -> None:
    """Each round: more checkpoints, a pruner killed amid its work, a valid store, and a prune that finishes."""
    rng = random.Random(seed)
    retention = Retention(keep_last=5)
    interrupted = 0
    for round_ in range(rounds):
        save_many(path, "run", f"round {round_}", 120)
        kill_a_pruner(path, 5, rng.randint(1, 25), rng.uniform(0, 0.002))
        check(path, "run", at_least=5)
        with open_store(path) as store:
            session = store.get("run")
            interrupted += 5 < session.usage().checkpoints < 125
            prune_session(store.engine, session.info, retention)
            assert session.usage().checkpoints == 5
            plan = plan_prune(store.engine, session.info, retention, now_us=store.engine.clock())
            assert (plan.going, plan.reclaimable_bytes) == ((), 0)
        check(path, "run", at_least=5)
    assert interrupted or rounds < 5, "no kill hit a prune at work"


def test_a_killed_pruner(path: str) -> None:
    """Two rounds, so that the fast set has them too."""
    kill_rounds(path, 2, seed=1)


@pytest.mark.full
def test_10_killed_pruners(path: str) -> None:
    """The store verifies after each kill, and the next prune finishes the work."""
    kill_rounds(path, 10, seed=2)
