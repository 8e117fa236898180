"""One transaction over one connection: its settings, the work, and what is known when it fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeVar

import psycopg
from psycopg import RawCursor
from psycopg.pq import TransactionStatus

from stepkeep.errors import BackendUnavailable
from stepkeep.storage.postgres.address import Address
from stepkeep.storage.postgres.connection import ROW_LOCKS, PostgresConnection, Raw
from stepkeep.storage.postgres.schema import quoted
from stepkeep.storage.sql.connection import NO_LOCKS, Query, Row, Value

T = TypeVar("T")
R = TypeVar("R", covariant=True)

WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
COMMIT: Final = "COMMIT"
_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"  # one state of the store for all statements

# A server that acknowledges before it wrote is not believed (V1); a stricter setting than `on` stays.
_DURABLE: Final = (
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'"
    " ELSE current_setting('synchronous_commit') END, true)"
)


def settings(address: Address) -> Query:
    """The statement that says, for one transaction, where the tables are and how long things may take."""
    milliseconds = str(max(1, round(address.timeout_seconds * 1000)))
    wanted = {
        "search_path": f"{quoted(address.schema)}, pg_temp",
        "statement_timeout": milliseconds,
        # A client that froze must not hold the rows of a session for ever.
        "idle_in_transaction_session_timeout": milliseconds,
    }
    if address.project is not None:
        wanted["stepkeep.project"] = address.project
    values: list[Value] = [text for pair in wanted.items() for text in pair]
    return f"SELECT {', '.join(['set_config(?, ?, true)'] * len(wanted))}, {_DURABLE}", values


class Repeatable(Protocol[R]):
    """Work that can be tried several times, on a new connection each time."""

    is_unknown: bool

    def run(self, raw: Raw) -> R: ...


class Transaction(Generic[T]):
    """Work that can be tried several times, on a new connection each time.

    `is_unknown` tells of the last try whether its commit was under way: if the connection broke, it may have been made.
    """

    def __init__(self, work: Callable[[PostgresConnection], T], start: Query, *, is_write: bool) -> None:
        self._work = work
        self._start = start
        self._is_write = is_write
        self.is_unknown = False

    def run(self, raw: Raw) -> T:
        """Do the work and commit. The last statements and the commit travel together."""
        self.is_unknown = False
        results: list[tuple[T, RawCursor[Row]]] = []
        failure: BaseException | None = None
        try:
            with raw.pipeline() as pipeline:
                tx = PostgresConnection(raw, pipeline, ROW_LOCKS if self._is_write else NO_LOCKS)
                try:
                    results.append(self._send(tx))
                except BaseException as exc:
                    failure = exc  # the pipeline ends in order, whatever happened in it
        except psycopg.Error as exc:
            failure = failure or exc
        if failure is not None:
            undo(raw)
            raise failure
        self.is_unknown = False
        ((result, commit),) = results
        check_committed(commit.statusmessage)
        return result

    def _send(self, tx: PostgresConnection) -> tuple[T, RawCursor[Row]]:
        """Do the work, and send the commit; the end of the pipeline waits for its answer."""
        tx.put(WRITE if self._is_write else _READ)
        tx.put(*self._start)
        result = self._work(tx)
        self.is_unknown = self._is_write
        return result, tx.send(COMMIT)


def check_committed(answer: str | None) -> None:
    """A server answers a commit with another word when it undid the transaction instead."""
    if answer != COMMIT:
        raise BackendUnavailable(
            "the server undid a transaction without saying why", code="server_error", retryable=True
        )


def undo(raw: Raw) -> None:
    """Leave the transaction, or the connection where that is not possible."""
    with suppress(psycopg.Error):
        if raw.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            raw.execute("ROLLBACK")
        if raw.info.transaction_status is TransactionStatus.IDLE:
            return
    raw.close()
