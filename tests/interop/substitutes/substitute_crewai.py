"""`StepkeepFlowPersistence` in the place of CrewAI's persistence on SQLite."""

from __future__ import annotations

from typing import Any

import crewai.flow.persistence
from crewai.flow.persistence import sqlite
from fresh_stores import fresh_url

from stepkeep.adapters.crewai import StepkeepFlowPersistence


class SQLiteFlowPersistence(StepkeepFlowPersistence):
    """Made with a path, or in a store of its own."""

    persistence_type: str = "SQLiteFlowPersistence"
    db_path: str = ""

    def __init__(self, db_path: str | None = None, /, **fields: Any) -> None:
        path = db_path or fields.get("db_path")
        super().__init__(
            fresh_url() if path is None else f"sqlite:{path}", **fields | {"db_path": path or ""}
        )


crewai.flow.persistence.SQLiteFlowPersistence = SQLiteFlowPersistence  # type: ignore[misc]
sqlite.SQLiteFlowPersistence = SQLiteFlowPersistence  # type: ignore[misc]
