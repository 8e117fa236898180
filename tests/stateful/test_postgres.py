"""A store on a server does what the model says, whatever is done to it."""

from __future__ import annotations

import pytest

from stepkeep.storage.port import Backend
from stepkeep.storage.postgres import PostgresBackend
from stepkeep.testing import RawAccess, StoreMachine, run_machine
from tests.postgres.access import PostgresAccess
from tests.postgres.server import Server


def machine_on(server: Server) -> type[StoreMachine]:
    """The state machine whose stores are on that server."""

    class PostgresMachine(StoreMachine):
        def __init__(self) -> None:
            self._url = server.fresh_url()
            super().__init__()

        def open_backend(self) -> Backend:
            return PostgresBackend(self._url)

        def raw_access(self) -> RawAccess:
            return PostgresAccess(server, self._url)

    return PostgresMachine


@pytest.mark.full
def test_a_store_on_a_server_is_as_modelled(postgres: Server) -> None:
    """Saves, loads, forks, removals, damage: what comes back is what the model holds, or says that it is not."""
    run_machine(machine_on(postgres), examples=4, steps=25)


@pytest.mark.slow
def test_a_store_on_a_server_is_as_modelled_for_long(postgres: Server) -> None:
    """The same over 500 runs of 50 steps."""
    run_machine(machine_on(postgres), examples=500, steps=50)
