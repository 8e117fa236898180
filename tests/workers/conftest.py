"""A folder with a store on each backend that several workers can share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres.server import Server
from tests.workers.crew import Crew


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crew:
    """Workers on a SQLite file."""
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Crew(tmp_path / "work")


@pytest.fixture
def server_crew(crew: Crew, postgres: Server) -> Crew:
    """The same on a server."""
    crew.url = postgres.fresh_url()
    return crew


@pytest.fixture(params=["sqlite", "files", "postgres", "memory"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new store of each kind."""
    if request.param == "postgres":
        server: Server = request.getfixturevalue("postgres")
        return server.fresh_url()
    return "memory:" if request.param == "memory" else f"{request.param}:{tmp_path / 'store'}"
