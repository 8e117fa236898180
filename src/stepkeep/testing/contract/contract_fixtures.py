"""What a backend's test class supplies, and the words in which the contract is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import pytest

from stepkeep.errors import Conflict
from stepkeep.model import MAIN_BRANCH, STATE, Branch, Header, SessionInfo
from stepkeep.storage.port import ANY_HEAD, Backend, Blob, Body, HeaderQuery, Removed, Target, Usage
from stepkeep.testing.builders import (
    FakeClock,
    append,
    append_one,
    draft,
    headers,
    ids,
    item,
    keyframe,
    new_owner,
    new_session,
    redundant_on,
    save,
)

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


class SessionDriver:
    """One session of the backend under test."""

    def __init__(self, backend: Backend, session: SessionInfo) -> None:
        self.backend = backend
        self.created = session
        self.uid = session.uid

    @property
    def info(self) -> SessionInfo:
        """The session as it is stored now."""
        return self.backend.session(self.uid)

    @property
    def usage(self) -> Usage:
        return self.backend.usage(self.uid)

    # --- saving

    def draft(self, **fields: Any) -> Header:
        return draft(self.uid, **fields)

    def append(self, new: Header, **options: Any) -> Header:
        """Store a draft with the options of `builders.item`; a refusal is raised."""
        return append_one(self.backend, item(new, **options))

    def save(self, **fields: Any) -> Header:
        return save(self.backend, self.uid, **fields)

    def save_many(self, count: int) -> None:
        """So many in one batch."""
        append(self.backend, *(item(self.draft()) for _ in range(count)))

    def save_naming(self, *blobs: Blob) -> Header:
        """A checkpoint whose keyframe names blobs, which are sent along."""
        new = self.draft()
        digests = tuple(sorted(blob.digest for blob in blobs))
        return self.append(new, bodies=[keyframe(new.id, blobs=digests)], blobs=blobs)

    def save_redundantly(self, base: str) -> Header:
        """A checkpoint with a keyframe, and a redundant delta on `base`."""
        new = self.draft()
        return self.append(new, bodies=[keyframe(new.id), redundant_on(base, new.id)])

    def save_chain(self, deltas: int) -> list[str]:
        """A keyframe, and deltas that are each based on the one before."""
        chain = [self.save().id]
        for _ in range(deltas):
            chain.append(self.save(base=chain[-1]).id)
        return chain

    def put_branch(self, name: str, *, expect_head: str | None = ANY_HEAD, **fields: Any) -> Branch:
        branch = Branch(name=name, **({"created_us": 1} | fields))
        return self.backend.set_branch(self.uid, branch, expect_head=expect_head)

    def annotate(self, target: Target, name: str, data: bytes = b"", *, time_us: int = 1) -> bool:
        return self.backend.annotate(self.uid, target, "k", name, data, time_us=time_us)

    def remove(self, *checkpoints: str, **options: Any) -> Removed:
        return self.backend.remove(self.uid, checkpoints, **options)

    # --- reading

    def headers(self, **conditions: Any) -> list[Header]:
        return headers(self.backend, session=self.uid, **conditions)

    def ids(self, **conditions: Any) -> list[str]:
        return ids(self.backend, session=self.uid, **conditions)

    def branch(self, name: str = MAIN_BRANCH) -> Branch:
        """The branch with that name, which must exist."""
        (branch,) = [branch for branch in self.backend.branches(self.uid) if branch.name == name]
        return branch

    def branch_names(self) -> list[str]:
        return [branch.name for branch in self.backend.branches(self.uid)]

    def head(self, branch: str = MAIN_BRANCH) -> tuple[str | None, int]:
        found = self.branch(branch)
        return found.head, found.head_seq

    def chain(self, checkpoint: str, name: str = STATE) -> list[Body]:
        return self.backend.body_chain(self.uid, checkpoint, name)

    def chain_ids(self, checkpoint: str, name: str = STATE) -> list[str]:
        return [body.checkpoint for body in self.chain(checkpoint, name)]

    def redundant(self, checkpoint: str) -> Body | None:
        return self.backend.redundant_delta(self.uid, checkpoint, STATE)

    def stored(self) -> list[str]:
        """The checkpoint of every body record."""
        return [body.checkpoint for body in self.backend.bodies(self.uid)]

    def notes(self, *targets: Target) -> list[str]:
        """The names of annotations, of these targets or of all."""
        return [note.name for note in self.backend.annotations(self.uid, targets or None)]


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
    def run(self, backend: Backend) -> SessionDriver:
        """A new session."""
        return SessionDriver(backend, backend.create_session(new_session()))

    @pytest.fixture
    def other(self, backend: Backend) -> SessionDriver:
        """Another session."""
        return SessionDriver(backend, backend.create_session(new_session()))


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
