"""`StepkeepSession` in the place of the SDK's `SQLiteSession`."""

from __future__ import annotations

from typing import Any

import agents
from agents.memory import sqlite_session
from fresh_stores import fresh_url

from stepkeep.adapters.openai_agents import StepkeepSession


class SQLiteSession(StepkeepSession):
    """Made as the SDK's own is: with a path, or in a store of its own."""

    def __init__(
        self,
        session_id: str,
        db_path: Any = ":memory:",
        sessions_table: str = "",
        messages_table: str = "",
        session_settings: Any = None,
    ) -> None:
        url = fresh_url() if str(db_path) == ":memory:" else f"sqlite:{db_path}"
        super().__init__(session_id, url, session_settings=session_settings)


agents.SQLiteSession = SQLiteSession  # type: ignore[misc]
agents.memory.SQLiteSession = SQLiteSession  # type: ignore[misc]
sqlite_session.SQLiteSession = SQLiteSession  # type: ignore[misc]
