"""Access to the tables of a store that bypasses the code under test."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.postgres.server import Server


class PostgresAccess:
    """A connection of its own for each change."""

    def __init__(self, server: Server, url: str) -> None:
        self._server = server
        (self.schema,) = parse_qs(urlsplit(url).query)["schema"]

    def damage_header(self, checkpoint: str) -> None:
        self._flip("checkpoints", "header", "id = %s", (checkpoint,))

    def damage_body(self, checkpoint: str, name: str) -> None:
        self._flip("bodies", "data", "checkpoint = %s AND name = %s", (checkpoint, name))

    def damage_session(self, uid: str) -> None:
        self.run("UPDATE {}.sessions SET updated_us = updated_us + 1 WHERE uid = %s", (uid,))

    def _flip(self, table: str, column: str, where: str, values: tuple[str, ...]) -> None:
        """Flip a bit in the middle of a column."""
        ((data,), *_) = self.run(f"SELECT {column} FROM {{}}.{table} WHERE {where}", values)
        middle = len(data) // 2
        changed = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        self.run(f"UPDATE {{}}.{table} SET {column} = %s WHERE {where}", (changed, *values))

    def run(self, sql: str, values: tuple[Any, ...] | None = None) -> list[Any]:
        """Execute a statement in which `{}` stands for the schema."""
        return self._server.execute(sql.replace("{}", self.schema), values)
