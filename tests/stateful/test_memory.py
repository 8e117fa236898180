"""A store in memory does what the model says, whatever is done to it."""

from __future__ import annotations

import pytest

from stepkeep.storage.memory import MemoryBackend
from stepkeep.storage.port import Backend
from stepkeep.testing import RawAccess, StoreMachine, run_machine
from tests.contract.test_memory import MemoryAccess


class KeptBackend(MemoryBackend):
    """Closing and opening again leaves it as it is: the object is the store."""

    def close(self) -> None:
        pass


class MemoryMachine(StoreMachine):
    def __init__(self) -> None:
        self._kept = KeptBackend()
        super().__init__()

    def open_backend(self) -> Backend:
        return self._kept

    def raw_access(self) -> RawAccess:
        return MemoryAccess(self._kept)


def test_a_store_in_memory_is_as_modelled() -> None:
    """Saves, loads, forks, removals, damage: what comes back is what the model holds, or says that it is not."""
    run_machine(MemoryMachine, examples=20, steps=30)


@pytest.mark.slow
def test_a_store_in_memory_is_as_modelled_for_long() -> None:
    """The same over 500 runs of 50 steps."""
    run_machine(MemoryMachine, examples=500, steps=50)
