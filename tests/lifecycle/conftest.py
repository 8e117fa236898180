"""A store with a clock that stands still, on every backend that needs no server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stepkeep
from stepkeep.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


URLS = {"memory": "memory:", "sqlite": "sqlite:{}/store.db", "files": "files:{}/store?layout=run"}


@pytest.fixture(params=list(URLS))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return URLS[request.param].format(tmp_path)


@pytest.fixture
def store(url: str, clock: FakeClock) -> Iterator[stepkeep.Store]:
    with stepkeep.open(url, clock=clock) as store:
        yield store


@pytest.fixture
def session(store: stepkeep.Store) -> stepkeep.Session:
    return store.session("run", profile="archive")
