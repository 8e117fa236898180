"""One PostgreSQL server, many machines. Needs the extra `postgres`."""

from __future__ import annotations

from stepkeep.storage.postgres.backend import PostgresBackend

__all__ = ["PostgresBackend"]
