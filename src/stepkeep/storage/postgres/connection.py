"""`Connection` over psycopg: statements are sent without waiting, and answers are fetched when they are needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import Pipeline, RawCursor

from stepkeep.errors import InvalidInput
from stepkeep.storage.sql.connection import Locks, Query, Row, Value

Raw: TypeAlias = psycopg.Connection[tuple[Any, ...]]

ROW_LOCKS: Final = Locks(change=" FOR UPDATE", keep=" FOR KEY SHARE", free=" FOR UPDATE SKIP LOCKED")

_INTEGERS: Final = range(-(2**63), 2**63)


class PostgresConnection:
    """Statements of one transaction, in a pipeline: each call that wants an answer is one round trip."""

    trusts_storage = True  # its pages have checksums, by default since PostgreSQL 18

    def __init__(self, raw: Raw, pipeline: Pipeline, locks: Locks) -> None:
        self._raw = raw
        self._pipeline = pipeline
        self.locks = locks

    def all(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        return self.ask([(sql, values)])[0]

    def one(self, sql: str, values: Sequence[Value] = ()) -> Row | None:
        return next(iter(self.all(sql, values)), None)

    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        cursor = self.send(sql, values)
        self._pipeline.sync()
        return cursor.rowcount

    def put(self, sql: str, values: Sequence[Value] = ()) -> None:
        self.send(sql, values)

    def run_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        for row in rows:
            self.send(sql, row)

    def ask(self, queries: Sequence[Query]) -> list[list[Row]]:
        cursors = [self.send(sql, values) for sql, values in queries]
        if cursors:
            self._pipeline.sync()
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]

    def send(self, sql: str, values: Sequence[Value] = ()) -> RawCursor[Row]:
        """Queue a statement; its answer is there after the next one that is waited for."""
        for value in values:
            if isinstance(value, int) and value not in _INTEGERS:
                raise InvalidInput("a number is beyond 64 bits", code="invalid_value")
        cursor: RawCursor[Row] = RawCursor(self._raw)
        try:
            cursor.execute(numbered(sql), values, binary=True)
        except UnicodeEncodeError as exc:
            raise InvalidInput(
                f"a value cannot be stored or looked for: {exc}", code="invalid_value"
            ) from exc
        return cursor


@lru_cache(maxsize=1000)
def numbered(sql: str) -> bytes:
    """The statement with `$1`, `$2` … for its question marks; none of the statements has one in a literal."""
    first, *rest = sql.split("?")
    return (first + "".join(f"${at}{part}" for at, part in enumerate(rest, 1))).encode()
