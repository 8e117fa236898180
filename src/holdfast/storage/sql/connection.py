"""What the shared statements need of a driver. SQL is written with `?` for bound parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias

Value: TypeAlias = str | int | bytes | None
Row: TypeAlias = tuple[Any, ...]


class Connection(Protocol):
    """One connection inside a transaction, or reading outside one."""

    def all(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """All rows of one statement."""

    def one(self, sql: str, values: Sequence[Value] = ()) -> Row | None:
        """The first row of one statement."""

    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        """Execute one statement; how many rows it changed."""

    def run_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        """Execute one statement for each of the rows."""


def marks(count: int) -> str:
    """`count` placeholders for an IN list."""
    return ",".join("?" * count) or "NULL"  # an empty list matches nothing
