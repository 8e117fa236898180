"""A folder with a store on each backend that several workers can share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres.pgbouncer import PgBouncer
from tests.postgres.server import Server
from tests.workers.crew import Crew


@pytest.fixture
def crew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crew:
    """Workers on a SQLite file."""
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Crew(tmp_path / "work")


@pytest.fixture(params=["postgres", "pgbouncer"])
def server_crew(crew: Crew, request: pytest.FixtureRequest) -> Crew:
    """The same on a server, and on one behind a pooler that lends connections by transaction."""
    crew.url = _on_server(request)
    return crew


def _on_server(request: pytest.FixtureRequest) -> str:
    server: Server = request.getfixturevalue("postgres")
    if request.param == "postgres":
        return server.fresh_url()
    pooler: PgBouncer = request.getfixturevalue("pgbouncer")
    return pooler.url(server.fresh_url())


@pytest.fixture(params=["sqlite", "files", "postgres", "pgbouncer", "memory"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new store of each kind."""
    if request.param in ("postgres", "pgbouncer"):
        return _on_server(request)
    return "memory:" if request.param == "memory" else f"{request.param}:{tmp_path / 'store'}"
