"""An investigation in a store with a clock of its own, opened anew as often as a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stepkeep
from stepkeep.api.investigating import Investigation
from stepkeep.storage.urls import open_backend
from stepkeep.testing import FakeClock

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
