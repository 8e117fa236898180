"""`StepkeepSaver` in the place of LangGraph's savers on SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import langgraph.checkpoint.sqlite
import langgraph.checkpoint.sqlite.aio
from fresh_stores import fresh_url

from stepkeep.adapters.langgraph import StepkeepSaver


class SqliteSaver(StepkeepSaver):
    """Made in a store of its own."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, _: str) -> Iterator[StepkeepSaver]:
        with cls(fresh_url()) as saver:
            yield saver


class AsyncSqliteSaver(StepkeepSaver):
    """The same for graphs that are awaited."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, _: str) -> AsyncIterator[StepkeepSaver]:
        async with cls(fresh_url()) as saver:
            yield saver


langgraph.checkpoint.sqlite.SqliteSaver = SqliteSaver  # type: ignore[assignment, misc]
langgraph.checkpoint.sqlite.aio.AsyncSqliteSaver = AsyncSqliteSaver  # type: ignore[assignment, misc]
