"""An investigation in a store with a clock of its own, opened anew as often as a test wants."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import stepkeep
from stepkeep.api.investigating import Investigation
from stepkeep.storage.urls import open_backend
from stepkeep.testing import FakeClock
from tests import interpreter

KEY = "bug-7"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def reopened(tmp_path: Path, clock: FakeClock) -> Iterator[Callable[[], Investigation]]:
    """Takes the investigation up as a new process would: from what is stored."""
    opened: list[stepkeep.Store] = []

    def found() -> Investigation:
        opened.append(stepkeep.Store(open_backend(f"sqlite:{tmp_path / 'store.db'}"), clock=clock))
        return opened[-1].investigation(KEY)

    yield found
    for store in opened:
        store.close()


@pytest.fixture
def bug(reopened: Callable[[], Investigation]) -> Investigation:
    return reopened()


Shell = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Runs `stepkeep` as a process on the same store and investigation, in the folder of the test."""
    env = {
        "STEPKEEP_STORE": f"sqlite:{tmp_path / 'store.db'}",
        "STEPKEEP_SESSION": KEY,
        "HOME": str(tmp_path),
    }
    env["PATH"] = os.environ["PATH"]

    def run(*words: str, code: int = 0, cwd: Path = tmp_path, **more: str) -> CompletedProcess[str]:
        done = interpreter.stepkeep(*words, cwd=cwd, env={**env, **more})
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run
