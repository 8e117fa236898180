"""The SQLite backend keeps the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from stepkeep.storage.port import Backend
from stepkeep.storage.sqlite import SqliteBackend
from stepkeep.testing import BackendContract, FakeClock, RawAccess


class SqliteAccess:
    """A connection of its own to the database file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def damage_header(self, checkpoint: str) -> None:
        self._flip("checkpoints", "header", "id = ?", (checkpoint,))

    def damage_body(self, checkpoint: str, name: str) -> None:
        self._flip("bodies", "data", "checkpoint = ? AND name = ?", (checkpoint, name))

    def damage_session(self, uid: str) -> None:
        self._run("UPDATE sessions SET updated_us = updated_us + 1 WHERE uid = ?", (uid,))

    def _flip(self, table: str, column: str, where: str, values: tuple[str, ...]) -> None:
        """Flip a bit in the middle of a column."""
        connection = self._connect()
        ((data,),) = connection.execute(f"SELECT {column} FROM {table} WHERE {where} LIMIT 1", values)
        middle = len(data) // 2
        changed = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (changed, *values))
        connection.close()

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self._path))
        connection.set_busy_timeout(10_000)
        return connection

    def _run(self, sql: str, values: tuple[str, ...]) -> None:
        connection = self._connect()
        connection.execute(sql, values)
        connection.close()


class TestSqlite(BackendContract):
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "store" / "stepkeep.db"

    @pytest.fixture
    def opened(self) -> Iterator[list[SqliteBackend]]:
        """Every backend a test opened, the newest last."""
        backends: list[SqliteBackend] = []
        yield backends
        for backend in backends:
            backend.close()

    @pytest.fixture
    def backend(self, path: Path, clock: FakeClock, opened: list[SqliteBackend]) -> Backend:
        opened.append(SqliteBackend(path, clock=clock))
        return opened[-1]

    @pytest.fixture
    def reopen(
        self, path: Path, clock: FakeClock, backend: Backend, opened: list[SqliteBackend]
    ) -> Callable[[], Backend]:
        def again() -> Backend:
            opened[-1].close()
            opened.append(SqliteBackend(path, clock=clock))
            return opened[-1]

        return again

    @pytest.fixture
    def raw(self, path: Path, backend: Backend) -> RawAccess:
        return SqliteAccess(path)
