"""The memory backend keeps the contract."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from stepkeep.storage.memory import MemoryBackend
from stepkeep.storage.port import Backend
from stepkeep.testing import BackendContract, FakeClock, RawAccess


def flipped(data: bytes) -> bytes:
    """The same bytes but for the middle one."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


class MemoryAccess:
    """Reaches into the tables."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend = backend

    def damage_header(self, checkpoint: str) -> None:
        for table in self._backend._tables.session_tables.values():
            if checkpoint in table.headers:
                stored = table.headers[checkpoint]
                table.headers[checkpoint] = stored._replace(raw=flipped(stored.raw))

    def damage_body(self, checkpoint: str, name: str) -> None:
        for table in self._backend._tables.session_tables.values():
            if (checkpoint, name) in table.bodies:
                body = table.bodies[checkpoint, name]
                table.bodies[checkpoint, name] = replace(body, data=flipped(body.data))

    def damage_session(self, uid: str) -> None:
        table = self._backend._tables.session_tables[uid]
        table.row = flipped(table.row)


class TestMemory(BackendContract):
    @pytest.fixture
    def backend(self, clock: FakeClock) -> Backend:
        return MemoryBackend(clock=clock)

    @pytest.fixture
    def reopen(self, backend: Backend) -> Callable[[], Backend]:
        """There is nothing to open again: the object is the store."""
        return lambda: backend

    @pytest.fixture
    def raw(self, backend: MemoryBackend) -> RawAccess:
        return MemoryAccess(backend)
