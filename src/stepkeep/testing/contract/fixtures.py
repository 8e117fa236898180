"""What a backend's test class supplies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest

from stepkeep.model import Session
from stepkeep.storage.port import Backend
from stepkeep.testing.clock import FakeClock
from stepkeep.testing.records import new_session


class RawAccess(Protocol):
    """Access to what is stored that bypasses the code under test: each method flips one byte of it."""

    def damage_header(self, checkpoint: str) -> None: ...

    def damage_body(self, checkpoint: str, name: str) -> None: ...

    def damage_session(self, uid: str) -> None:
        """Damage the session's row, in any place but those it is found by: uid and key."""


_OVERRIDE = "a test class for a backend overrides the fixtures `backend`, `reopen` and `raw`"


class Fixtures:
    """A subclass overrides `backend`, `reopen` and `raw`."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The clock the backend uses for leases."""
        return FakeClock()

    @pytest.fixture
    def backend(self, clock: FakeClock) -> Backend:  # noqa: ARG002
        """An open backend on an empty store, with `clock` as its clock."""
        return pytest.fail(_OVERRIDE)

    @pytest.fixture
    def reopen(self, backend: Backend) -> Callable[[], Backend]:  # noqa: ARG002
        """A function that closes the store and opens it again."""
        return pytest.fail(_OVERRIDE)

    @pytest.fixture
    def raw(self, backend: Backend) -> RawAccess:  # noqa: ARG002
        """Raw access to the store of `backend`."""
        return pytest.fail(_OVERRIDE)

    @pytest.fixture
    def session(self, backend: Backend) -> Session:
        """A new session."""
        return backend.create_session(new_session())

    @pytest.fixture
    def uid(self, session: Session) -> str:
        return session.uid
