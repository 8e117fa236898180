"""The PostgreSQL backend keeps the contract: on the newest server, on an older one, and behind a pooler."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stepkeep.storage.port import Backend
from stepkeep.storage.postgres import PostgresBackend
from stepkeep.testing import BackendContract, FakeClock, RawAccess
from tests.postgres.access import PostgresAccess
from tests.postgres.pgbouncer import PgBouncer
from tests.postgres.server import Server

pytestmark = pytest.mark.full


class TestPostgres(BackendContract):
    @pytest.fixture
    def url(self, postgres: Server) -> str:
        return postgres.fresh_url()

    @pytest.fixture
    def opened(self) -> Iterator[list[PostgresBackend]]:
        """Every backend a test opened, the newest last."""
        backends: list[PostgresBackend] = []
        yield backends
        for backend in backends:
            backend.close()

    @pytest.fixture
    def backend(self, url: str, clock: FakeClock, opened: list[PostgresBackend]) -> Backend:
        opened.append(PostgresBackend(url, clock=clock))
        return opened[-1]

    @pytest.fixture
    def reopen(
        self, url: str, clock: FakeClock, backend: Backend, opened: list[PostgresBackend]
    ) -> Callable[[], Backend]:
        def again() -> Backend:
            opened[-1].close()
            opened.append(PostgresBackend(url, clock=clock))
            return opened[-1]

        return again

    @pytest.fixture
    def raw(self, postgres: Server, url: str, backend: Backend) -> RawAccess:
        return PostgresAccess(postgres, url)


class TestPostgres15(TestPostgres):
    """The oldest server that people still run on Debian."""

    @pytest.fixture
    def postgres(self, postgres15: Server) -> Server:
        return postgres15


class TestBehindPgBouncer(TestPostgres):
    """Connections are lent by transaction, and any of them may come next."""

    @pytest.fixture
    def url(self, postgres: Server, pgbouncer: PgBouncer) -> str:
        return pgbouncer.url(postgres.fresh_url())
