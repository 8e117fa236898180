"""SIGKILL at random moments: what was acknowledged is there, whole."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.api import programs


def one_round(url: str, round_: int, wait_seconds: float) -> list[tuple[int, int]]:
    """Let a child save for a while after its first acknowledgement, kill it, and return what it acknowledged."""
    child = programs.start(programs.save_until_killed, url, "run", round_)
    assert child.stdout is not None
    first = child.stdout.readline()
    time.sleep(wait_seconds)
    child.kill()
    rest = child.stdout.read()
    child.wait()
    child.stdout.close()
    lines = [line.split() for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]
    return [(int(seq), int(number)) for word, seq, number in lines if word == "ACK"]


def kill_rounds(url: str, rounds: int, *, seed: int) -> None:
    random.seed(seed)
    acknowledged: dict[int, tuple[int, int]] = {}
    for round_ in range(rounds):
        for seq, number in one_round(url, round_, random.uniform(0, 0.03)):
            assert seq not in acknowledged, "a number was given twice"
            acknowledged[seq] = (round_, number)
        if round_ % 10 == 9 or round_ == rounds - 1:
            check(url, acknowledged)
    assert programs.run(programs.save_many, url, "run", "after", 1) == [len(seqs(url))]


def seqs(url: str) -> list[int]:
    found: list[int] = programs.run(programs.survey, url, "run")["seqs"]
    return found


def check(url: str, acknowledged: dict[int, tuple[int, int]]) -> None:
    """Nothing acknowledged is lost, nothing is half there, and the numbers have no hole."""
    found = programs.run(programs.survey, url, "run")
    assert found["findings"] == []
    assert found["seqs"] == list(range(1, len(found["seqs"]) + 1))
    assert found["latest"] == len(found["seqs"])
    for seq, state in zip(found["seqs"], found["states"], strict=True):
        assert state == programs.state_of(state["writer"], state["n"])
        if seq in acknowledged:
            assert (state["writer"], state["n"]) == acknowledged[seq]
    assert acknowledged.keys() <= set(found["seqs"])


def test_three_kills(url: str) -> None:
    """A few rounds, so that the fast set has them too."""
    kill_rounds(url, 3, seed=1)


@pytest.mark.full
def test_20_kills(url: str) -> None:
    """20 writers killed at random moments."""
    kill_rounds(url, 20, seed=2)


@pytest.mark.slow
def test_200_kills(url: str) -> None:
    """200 writers killed at random moments."""
    kill_rounds(url, 200, seed=3)


@pytest.mark.full
def test_kills_while_the_store_is_created(tmp_path: Path) -> None:
    """Killed at any moment of the first open, a store is absent, or opens and works."""
    random.seed(4)
    for round_ in range(20):
        url = f"sqlite:{tmp_path / str(round_) / 'h.db'}"
        child = programs.start(programs.save_until_killed, url, "run", round_)
        time.sleep(random.uniform(0.005, 0.08))  # it begins after a hundredth of a second
        child.kill()
        assert child.stdout is not None
        count = child.stdout.read().count("\n")
        child.wait()
        child.stdout.close()
        saved = programs.run(programs.save_many, url, "run", "after", 1)
        assert saved[0] > count
