"""What a backend's test class supplies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import pytest

from stepkeep.errors import Conflict
from stepkeep.model import Branch, SessionInfo
from stepkeep.storage.port import Backend, HeaderQuery
from stepkeep.testing.builders import FakeClock, append_one, draft, item, keyframe, new_owner, new_session

HOSTILE_NAMES: Final = (
    "'; DROP TABLE headers; --",
    'say "hello"',
    "two\nlines\ttab",
    "100%",
    "under_score",
    "%",
    "_",
    "back\\slash",
    "../../etc/passwd",
    "?1 :name $x {y}",
    "emoji 🪢 한국어",
    "e\u0301 is not \u00e9",
    "é" * 512,  # 1,024 bytes
    " ",
)
"""Names that try to be more than names."""


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
    def session(self, backend: Backend) -> SessionInfo:
        """A new session."""
        return backend.create_session(new_session())

    @pytest.fixture
    def uid(self, session: SessionInfo) -> str:
        return session.uid

    @pytest.fixture
    def other(self, backend: Backend) -> str:
        """The uid of another session."""
        return backend.create_session(new_session()).uid


@contextmanager
def refused(code: str) -> Iterator[None]:
    """The block must be refused with a `Conflict` of that code."""
    with pytest.raises(Conflict) as refusal:
        yield
    assert refusal.value.code == code


def calls_on(backend: Backend, uid: str) -> list[Callable[[], object]]:
    """A call of every method that takes the uid of a session."""
    return [
        lambda: backend.session(uid),
        lambda: backend.update_session(uid, {}),
        lambda: backend.delete_session(uid),
        lambda: backend.branch(uid, "b"),
        lambda: backend.branches(uid),
        lambda: backend.set_branch(uid, Branch(name="b", created_us=1)),
        lambda: append_one(backend, item(draft(uid))),
        lambda: list(backend.headers(HeaderQuery(session=uid))),
        lambda: backend.body(uid, "cp", "state"),
        lambda: backend.body_chain(uid, "cp", "state"),
        lambda: backend.redundant_delta(uid, "cp", "state"),
        lambda: backend.bodies(uid),
        lambda: backend.blob_sizes(uid),
        lambda: backend.replace_body(uid, keyframe("cp"), expect_digest=""),
        lambda: backend.remove(uid, []),
        lambda: backend.sweep(session=uid),
        lambda: backend.adopt(uid, b"", bodies=[]),
        lambda: backend.annotate(uid, "cp", "k", "n", b"", time_us=1),
        lambda: backend.annotations(uid),
        lambda: backend.record_event(uid, "t", {}, time_us=1),
        lambda: backend.events(uid),
        lambda: backend.acquire_lease(uid, new_owner(), seconds=1),
        lambda: backend.renew_lease(uid, 1, seconds=1),
        lambda: backend.release_lease(uid, 1),
        lambda: backend.lease(uid),
        lambda: backend.usage(uid),
    ]
