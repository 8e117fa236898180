"""A store on disk does what the model says, whatever is done to it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stepkeep.storage.port import Backend
from stepkeep.storage.sqlite import SqliteBackend
from stepkeep.testing import RawAccess, StoreMachine, run_machine
from tests.contract.test_sqlite import SqliteAccess


class SqliteMachine(StoreMachine):
    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self._path = Path(self._folder.name) / "stepkeep.db"
        super().__init__()

    def open_backend(self) -> Backend:
        return SqliteBackend(self._path)

    def raw_access(self) -> RawAccess:
        return SqliteAccess(self._path)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._folder.cleanup()


def test_a_store_on_disk_is_as_modelled() -> None:
    """Saves, loads, forks, removals, damage: what comes back is what the model holds, or says that it is not."""
    run_machine(SqliteMachine, examples=8, steps=25)


@pytest.mark.slow
def test_a_store_on_disk_is_as_modelled_for_long() -> None:
    """The same over 500 runs of 50 steps."""
    run_machine(SqliteMachine, examples=500, steps=50)
