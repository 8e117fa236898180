"""A store on disk for every test, and a session in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stepkeep


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The database file of a store that does not exist yet."""
    return tmp_path / "store" / "stepkeep.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:{path}"


@pytest.fixture
def store(url: str) -> Iterator[stepkeep.Store]:
    with stepkeep.open(url) as store:
        yield store


@pytest.fixture
def session(store: stepkeep.Store) -> stepkeep.Session:
    return store.session("run", profile="archive")
