"""Stores for the tests with frameworks: every one runs on SQLite and on PostgreSQL. And savers for LangGraph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from tests.interop.frameworks import FRAMEWORKS
from tests.postgres.access import PostgresAccess

if TYPE_CHECKING:
    from stepkeep.adapters.langgraph import StepkeepSaver

# Frameworks pin each other out: each has an environment of its own, made by `./dev interop`. That of `./dev test` has
# LangGraph and the Claude Agent SDK.
collect_ignore = [name for each in FRAMEWORKS if not each.is_installed for name in each.tests]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that nobody used yet."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/threads.db"
    return str(request.getfixturevalue("postgres").fresh_url())


@pytest.fixture
def saver(url: str) -> Iterator[StepkeepSaver]:
    from stepkeep.adapters.langgraph import StepkeepSaver

    with StepkeepSaver(url) as saver:
        yield saver


class Bodies:
    """Access to stored bodies that bypasses the code under test."""

    def __init__(self, url: str, request: pytest.FixtureRequest) -> None:
        self._url = url
        self._request = request

    def run(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        """Run a statement in which `{}` stands before the name of a table."""
        if self._url.startswith("sqlite:"):
            connection = apsw.Connection(self._url.removeprefix("sqlite:"))
            try:
                return connection.execute(sql.replace("{}.", ""), values).fetchall()
            finally:
                connection.close()
        server = self._request.getfixturevalue("postgres")
        return PostgresAccess(server, self._url).run(sql.replace("?", "%s"), values)

    def damage(self, checkpoint: str, name: str) -> None:
        """Flip a bit in a body, and in the delta that stands in for a keyframe."""
        place = "checkpoint = ? AND name = ?"
        for (data,) in self.run(f"SELECT data FROM {{}}.bodies WHERE {place}", checkpoint, name):
            assert isinstance(data, bytes)
            changed = bytes([data[0] ^ 1]) + data[1:]
            self.run(
                f"UPDATE {{}}.bodies SET data = ? WHERE {place} AND data = ?", changed, checkpoint, name, data
            )

    def damage_writes(self) -> None:
        """Flip a bit in the only annotation."""
        ((data,),) = self.run("SELECT data FROM {}.annotations")
        assert isinstance(data, bytes)
        self.run("UPDATE {}.annotations SET data = ?", data[:-1] + bytes([data[-1] ^ 1]))

    def remove(self, checkpoint: str, name: str) -> None:
        self.run("DELETE FROM {}.bodies WHERE checkpoint = ? AND name = ?", checkpoint, name)


@pytest.fixture
def bodies(url: str, request: pytest.FixtureRequest) -> Bodies:
    return Bodies(url, request)
