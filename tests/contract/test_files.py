"""The store of readable files keeps the contract, in each layout."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepkeep.codec.readable import Layout
from stepkeep.storage.files import FilesBackend
from stepkeep.storage.port import Backend
from stepkeep.testing import BackendContract, FakeClock, RawAccess
from tests.contract.test_sqlite import SqliteAccess

pytestmark = pytest.mark.full


class FilesAccess:
    """The files themselves, changed as a decaying disk would: the bytes, and not the times.

    A checkpoint may be stored more than once: its header is also in the index, and `latest.json` is a copy. All of
    them are damaged.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._index = SqliteAccess(root / ".stepkeep" / "index.db")

    def damage_header(self, checkpoint: str) -> None:
        self._index.damage_header(checkpoint)
        for file in self._files(checkpoint):
            data = file.read_bytes()
            start = data.index(b'\n,"header":\n')
            self._flip(file, data.index(b'"time_us":', start) + 12)

    def damage_body(self, checkpoint: str, name: str) -> None:
        for file in self._files(checkpoint):
            data = file.read_bytes()
            own = max(data.find(b'\n,"state":\n'), data.find(b'\n,"data":\n'))
            start = own if name == "state" else data.index(f'{{"name":"{name}"'.encode())
            start = data.index(b":\n", start) + 2
            self._flip(file, (start + data.index(b"\n", start)) // 2)

    def damage_session(self, uid: str) -> None:
        self._index.damage_session(uid)

    def _files(self, checkpoint: str) -> list[Path]:
        marker = f'{{"v":1,"id":"{checkpoint}"'.encode()
        found = [file for file in self._root.rglob("*.json") if marker in file.read_bytes()]
        assert found
        return found

    def _flip(self, file: Path, at: int) -> None:
        before = file.stat()
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        file.write_bytes(data)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


class FilesFixtures:
    layout: Layout

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "store"

    @pytest.fixture
    def opened(self) -> Iterator[list[FilesBackend]]:
        """Every backend a test opened, the newest last."""
        backends: list[FilesBackend] = []
        yield backends
        for backend in backends:
            backend.close()

    @pytest.fixture
    def backend(self, path: Path, clock: FakeClock, opened: list[FilesBackend]) -> Backend:
        opened.append(FilesBackend(path, layout=self.layout, clock=clock))
        return opened[-1]

    @pytest.fixture
    def reopen(
        self, path: Path, clock: FakeClock, backend: Backend, opened: list[FilesBackend]
    ) -> Callable[[], Backend]:
        def again() -> Backend:
            opened[-1].close()
            opened.append(FilesBackend(path, clock=clock))
            return opened[-1]

        return again

    @pytest.fixture
    def raw(self, path: Path, backend: Backend) -> RawAccess:
        return FilesAccess(path)


class TestWorkflow(FilesFixtures, BackendContract):
    layout = Layout.WORKFLOW


class TestRun(FilesFixtures, BackendContract):
    layout = Layout.RUN


class TestPhase(FilesFixtures, BackendContract):
    layout = Layout.PHASE
