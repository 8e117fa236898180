"""Servers and stores for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres.server import Server


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server for one test, which may kill it or change its settings."""
    server = Server()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def url(postgres: Server) -> str:
    """A store that nobody used yet."""
    return postgres.fresh_url()
