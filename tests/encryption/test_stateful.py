"""An encrypted store does what the model says, whatever is done to it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stepkeep.storage.key_slots import unlocked
from stepkeep.storage.port import Backend
from stepkeep.storage.sqlite import SqliteBackend
from stepkeep.testing import RawAccess, StoreMachine, run_machine
from tests.contract.test_sqlite import SqliteAccess


class EncryptedMachine(StoreMachine):
    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self._path = Path(self._folder.name) / "stepkeep.db"
        super().__init__()

    def open_backend(self) -> Backend:
        return unlocked(SqliteBackend(self._path), lambda: b"k" * 32, encrypt=True)

    def raw_access(self) -> RawAccess:
        return SqliteAccess(self._path)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._folder.cleanup()


def test_an_encrypted_store_is_as_modelled() -> None:
    """Saves, loads, forks, removals, damage: what comes back is what the model holds, or says that it is not."""
    run_machine(EncryptedMachine, examples=8, steps=25)


@pytest.mark.slow
def test_an_encrypted_store_is_as_modelled_for_long() -> None:
    """The same over 200 runs of 50 steps."""
    run_machine(EncryptedMachine, examples=200, steps=50)
