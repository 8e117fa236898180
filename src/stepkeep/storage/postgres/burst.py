"""A transaction that asks nothing before it ends: all of it is sent in one piece, and answered in one."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import errors
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from stepkeep.storage.postgres.connection import Raw, numbered
from stepkeep.storage.postgres.transaction import COMMIT, WRITE, check_committed, undo
from stepkeep.storage.sql.connection import Query

Parameter = str | bytes

_BYTES: Final = 17  # the type of a parameter that is sent as it is; texts take the type their place wants
_ANY: Final = 0


class Burst:
    """Statements with texts and bytes for parameters, between the beginning and the commit of a transaction.

    Cursors cost more time than the statements they send, so the protocol is spoken directly. `is_unknown` is as in
    `Transaction`.
    """

    def __init__(self, start: Query, statements: Sequence[tuple[str, Sequence[Parameter]]]) -> None:
        begin: tuple[str, Sequence[Parameter]] = (WRITE, ())
        settings: tuple[str, Sequence[Parameter]] = (start[0], [str(value) for value in start[1]])
        self._statements = [begin, settings, *statements, (COMMIT, ())]
        self._answered = len(statements)
        self.is_unknown = False

    def run(self, raw: Raw) -> list[bytes | None]:
        """The first value that each of the statements answers with, as text."""
        self.is_unknown = False
        try:
            results = self._exchange(raw.pgconn)
        except BaseException:
            raw.close()  # nobody knows what is under way
            raise
        try:
            _check(raw.pgconn, results)
        except psycopg.Error:
            undo(raw)
            raise
        self.is_unknown = False
        check_committed((results[-1].command_status or b"").decode())
        return [result.get_value(0, 0) for result in results[-1 - self._answered : -1]]

    def _exchange(self, pgconn: PGconn) -> list[PGresult]:
        pgconn.enter_pipeline_mode()
        for sql, values in self._statements:
            _send(pgconn, sql, values)
        self.is_unknown = True
        pgconn.pipeline_sync()
        _flush(pgconn)
        answers = [_answer(pgconn) for _ in self._statements]
        _next(pgconn)  # where they all end
        if pgconn.status == ConnStatus.OK:
            pgconn.exit_pipeline_mode()
        return [answer for answer in answers if answer is not None]


def _send(pgconn: PGconn, sql: str, values: Sequence[Parameter]) -> None:
    is_binary = [isinstance(value, bytes) for value in values]
    pgconn.send_query_params(
        numbered(sql),
        [value if isinstance(value, bytes) else value.encode() for value in values],
        param_types=[_BYTES if binary else _ANY for binary in is_binary],
        param_formats=[int(binary) for binary in is_binary],
    )


def _check(pgconn: PGconn, results: Sequence[PGresult]) -> None:
    """Raise what the server refused first, or that the connection is gone."""
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR and result.error_field(DiagnosticField.SQLSTATE):
            raise errors.error_from_result(result)
    if pgconn.status != ConnStatus.OK or not results:
        raise psycopg.OperationalError(
            pgconn.error_message.decode("utf-8", "replace") or "the connection is lost"
        )


def _answer(pgconn: PGconn) -> PGresult | None:
    first: PGresult | None = None
    while (result := _next(pgconn)) is not None:
        first = first or result
    return first


def _next(pgconn: PGconn) -> PGresult | None:
    while pgconn.is_busy():
        _wait(pgconn, select.POLLIN)
        pgconn.consume_input()
    return pgconn.get_result()


def _flush(pgconn: PGconn) -> None:
    """Send everything; what comes meanwhile is read, or both sides could wait for each other."""
    while pgconn.flush():
        _wait(pgconn, select.POLLIN | select.POLLOUT)
        pgconn.consume_input()


def _wait(pgconn: PGconn, events: int) -> None:
    waiting = select.poll()
    waiting.register(pgconn.socket, events)
    waiting.poll()
