"""What the shared statements need of a driver. SQL is written with `?` for bound parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import msgspec

from stepkeep.errors import BackendUnavailable

if TYPE_CHECKING:
    from stepkeep.storage.sql.checkpoints import SessionRows

Value: TypeAlias = str | int | bytes | None
Row: TypeAlias = tuple[Any, ...]
Query: TypeAlias = tuple[str, Sequence[Value]]

T = TypeVar("T")


class Locks(msgspec.Struct, frozen=True):
    """What ends a SELECT to hold its rows until the transaction ends; nothing where writers come one by one."""

    change: str = ""
    """For rows that this transaction changes: other writers of them wait."""
    keep: str = ""
    """For rows that must not go, whoever else keeps them too."""
    free: str = ""
    """For rows that this transaction changes; those that others hold are passed over."""


NO_LOCKS: Final = Locks()


class NotUnique(BackendUnavailable):
    """A row that was written has a name that another one holds."""


class Connection(Protocol):
    """One connection inside a transaction, or reading outside one."""

    @property
    def locks(self) -> Locks: ...

    @property
    def trusts_storage(self) -> bool:
        """Whether damaged pages are noticed below: then nothing goes astray or hides without an error."""

    def all(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """All rows of one statement."""

    def one(self, sql: str, values: Sequence[Value] = ()) -> Row | None:
        """The first row of one statement."""

    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        """Execute one statement; how many rows it changed."""

    def put(self, sql: str, values: Sequence[Value] = ()) -> None:
        """Execute one statement of which nothing need be known; it may travel with the next one."""

    def run_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        """Execute one statement for each of the rows."""

    def ask(self, queries: Sequence[Query]) -> list[list[Row]]:
        """The rows of several statements, executed in order; a server is asked for all of them at once."""

    def rows_at_hand(self) -> dict[str, SessionRows] | None:
        """The rows that the last append left, where it is certain that nobody wrote since; None where it never is."""


def marks(count: int) -> str:
    """`count` placeholders for an IN list."""
    return ",".join("?" * count) or "NULL"  # an empty list matches nothing


def parts(items: Sequence[T], size: int = 500) -> Iterator[Sequence[T]]:
    """The items, as many at a time as one IN list may have."""
    return (items[start : start + size] for start in range(0, len(items), size))


def among(tx: Connection, sql: str, sid: int, items: Sequence[Value], *more: Value) -> list[Row]:
    """The rows of a statement on one session, for as many items at a time as its IN list, written `({})`, may have.

    `more` are the values behind the list.
    """
    queries = [(sql.format(marks(len(some))), (sid, *some, *more)) for some in parts(items)]
    return [row for rows in tx.ask(queries) for row in rows]


class Conditions:
    """A WHERE clause: conditions that all hold, each with its values. Those given with None are left out."""

    def __init__(self, *given: tuple[str, Value]) -> None:
        self._all = [condition for condition, value in given if value is not None]
        self.values: list[Value] = [value for _, value in given if value is not None]

    def __str__(self) -> str:
        return " WHERE " + " AND ".join(self._all) if self._all else ""

    def add(self, condition: str, *values: Value) -> None:
        self._all.append(condition)
        self.values.extend(values)

    def among(self, column: str, values: Sequence[Value] | None) -> None:
        if values is not None:
            self.add(f"{column} IN ({marks(len(values))})", *values)

    def prefix(self, column: str, prefix: str | None) -> None:
        if prefix is not None:
            self.add(f"{column} >= ? AND substr({column}, 1, ?) = ?", prefix, len(prefix), prefix)
