"""An encrypted store keeps the contract: nobody above notices that anything is encrypted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepkeep.storage.key_slots import unlocked
from stepkeep.storage.memory import MemoryBackend
from stepkeep.storage.port import Backend
from stepkeep.storage.postgres import PostgresBackend
from stepkeep.storage.sqlite import SqliteBackend
from stepkeep.testing import BackendContract, FakeClock, RawAccess
from tests.contract.test_memory import MemoryAccess
from tests.contract.test_sqlite import SqliteAccess
from tests.postgres.access import PostgresAccess
from tests.postgres.server import Server

KEY = b"k" * 32

DIFFERS = {
    "a cipher text takes 34 bytes more than its plain text": {
        "test_a_deleted_session_leaves_its_blobs_to_the_sweep",
        "test_a_redundant_delta_goes_with_its_checkpoint",
        "test_a_redundant_delta_stays_while_its_base_is_hidden",
        "test_a_removed_checkpoint_is_gone",
        "test_bodies_lists_every_record_without_bytes",
        "test_each_body_is_decided_alone",
        "test_usage_counts_a_session_and_the_store",
    },
    "a session has its own blobs": {
        "test_a_blob_goes_when_no_body_names_it",
        "test_a_blob_is_stored_once",
        "test_blobs_of_a_session_are_weighed",
    },
    "stored digests are of cipher texts: one that was made up, or that damage leaves behind, does not come back": {
        "test_a_blob_comes_back_equal",
        "test_a_body_can_be_stored_otherwise",
        "test_a_body_comes_back_equal",
        "test_a_damaged_body_comes_back_as_found",
    },
    "a header that comes from a store in clear is sealed anew": {
        "test_a_checkpoint_is_adopted_verbatim",
        "test_a_removed_checkpoint_can_be_adopted_again",
        "test_an_appended_checkpoint_comes_back_as_sealed",
    },
}
"""What of the contract cannot hold here, and why. `tests/encryption` says what holds instead."""


class EncryptedContract(BackendContract):
    @pytest.fixture(autouse=True)
    def _only_what_can_hold(self, request: pytest.FixtureRequest) -> None:
        for reason, tests in DIFFERS.items():
            if request.node.originalname in tests:
                pytest.skip(reason)


def encrypted(backend: Backend) -> Backend:
    return unlocked(backend, lambda: KEY, encrypt=True)


class TestEncryptedMemory(EncryptedContract):
    @pytest.fixture
    def plain(self, clock: FakeClock) -> MemoryBackend:
        return MemoryBackend(clock=clock)

    @pytest.fixture
    def backend(self, plain: MemoryBackend) -> Backend:
        return encrypted(plain)

    @pytest.fixture
    def reopen(self, backend: Backend, plain: MemoryBackend) -> Callable[[], Backend]:
        return lambda: encrypted(plain)

    @pytest.fixture
    def raw(self, plain: MemoryBackend) -> RawAccess:
        return MemoryAccess(plain)


class TestEncryptedSqlite(EncryptedContract):
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "store" / "stepkeep.db"

    @pytest.fixture
    def opened(self) -> Iterator[list[SqliteBackend]]:
        backends: list[SqliteBackend] = []
        yield backends
        for backend in backends:
            backend.close()

    @pytest.fixture
    def backend(self, path: Path, clock: FakeClock, opened: list[SqliteBackend]) -> Backend:
        opened.append(SqliteBackend(path, clock=clock))
        return encrypted(opened[-1])

    @pytest.fixture
    def reopen(
        self, path: Path, clock: FakeClock, backend: Backend, opened: list[SqliteBackend]
    ) -> Callable[[], Backend]:
        def again() -> Backend:
            opened[-1].close()
            opened.append(SqliteBackend(path, clock=clock))
            return encrypted(opened[-1])

        return again

    @pytest.fixture
    def raw(self, path: Path, backend: Backend) -> RawAccess:
        return SqliteAccess(path)


@pytest.mark.full
class TestEncryptedPostgres(EncryptedContract):
    @pytest.fixture
    def url(self, postgres: Server) -> str:
        return postgres.fresh_url()

    @pytest.fixture
    def opened(self) -> Iterator[list[PostgresBackend]]:
        backends: list[PostgresBackend] = []
        yield backends
        for backend in backends:
            backend.close()

    @pytest.fixture
    def backend(self, url: str, clock: FakeClock, opened: list[PostgresBackend]) -> Backend:
        opened.append(PostgresBackend(url, clock=clock))
        return encrypted(opened[-1])

    @pytest.fixture
    def reopen(
        self, url: str, clock: FakeClock, backend: Backend, opened: list[PostgresBackend]
    ) -> Callable[[], Backend]:
        def again() -> Backend:
            opened[-1].close()
            opened.append(PostgresBackend(url, clock=clock))
            return encrypted(opened[-1])

        return again

    @pytest.fixture
    def raw(self, postgres: Server, url: str, backend: Backend) -> RawAccess:
        return PostgresAccess(postgres, url)
