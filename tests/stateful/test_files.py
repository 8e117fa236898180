"""A store of readable files does what the model says, whatever is done to it, in each layout."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stepkeep.codec.readable import Layout
from stepkeep.storage.files import FilesBackend
from stepkeep.storage.port import Backend
from stepkeep.testing import RawAccess, StoreMachine, run_machine
from tests.contract.test_files import FilesAccess


class FilesMachine(StoreMachine):
    layout = Layout.RUN

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self._path = Path(self._folder.name) / "store"
        super().__init__()

    def open_backend(self) -> Backend:
        return FilesBackend(self._path, layout=self.layout)

    def raw_access(self) -> RawAccess:
        return FilesAccess(self._path)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._folder.cleanup()


class WorkflowMachine(FilesMachine):
    layout = Layout.WORKFLOW


class PhaseMachine(FilesMachine):
    layout = Layout.PHASE


MACHINES = [FilesMachine, WorkflowMachine, PhaseMachine]


@pytest.mark.full
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.layout)
def test_a_store_of_files_is_as_modelled(machine: type[FilesMachine]) -> None:
    """Saves, loads, forks, removals, damage: what comes back is what the model holds, or says that it is not."""
    run_machine(machine, examples=3, steps=20)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.layout)
def test_a_store_of_files_is_as_modelled_for_long(machine: type[FilesMachine]) -> None:
    """The same over 500 runs of 50 steps, a third on each layout."""
    run_machine(machine, examples=170, steps=50)
