"""One PostgreSQL server, many machines. Needs the extra `postgres`.

`driver` is the backend; `address` reads its URL, `connections` has the pool, transactions and errors,
`optimistic_append` the short way of a save, `migrations` the tables and the function it calls. All other statements are
in `storage.sql`.
"""

from __future__ import annotations

from stepkeep.storage.postgres.driver import PostgresBackend

__all__ = ["PostgresBackend"]
