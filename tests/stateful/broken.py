"""Five backends that each break one promise, to prove that the contract and the state machine notice.

The file is not collected with the rest: `tests/contract/test_broken.py` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from stepkeep.errors import StepkeepError
from stepkeep.storage.memory import MemoryBackend
from stepkeep.storage.port import ANY_HEAD, Append, Appended, Backend, Removed, Seal
from stepkeep.testing import BackendContract, FakeClock, RawAccess, StoreMachine
from tests.contract.test_memory import MemoryAccess


class Sound(MemoryBackend):
    """Keeps every promise. What is not on the disk of the others is lost when the power fails."""

    def power_fails(self) -> None:
        """Nothing happens to what was written in order."""


class SyncsInTheWrongOrder(Sound):
    """Answers when the header is on disk, and leaves the bodies of the newest append to luck."""

    _unsynced: tuple[tuple[str, str], ...] = ()  # (session, checkpoint)

    def append(self, batch: Sequence[Append], seal: Seal) -> list[Appended | StepkeepError]:
        self._unsynced = tuple((item.draft.session, item.draft.id) for item in batch)
        return super().append(batch, seal)

    def power_fails(self) -> None:
        for uid, checkpoint in self._unsynced:
            if uid in self._tables.session_tables:
                with self._writing(uid) as tables:
                    bodies = tables.session_tables[uid].bodies
                    for key in [key for key in bodies if key[0] == checkpoint]:
                        del bodies[key]


class ReusesSeq(Sound):
    """Takes the next number from the newest checkpoint that is left."""

    def remove(self, uid: str, checkpoints: Sequence[str], **options: Any) -> Removed:
        removed = super().remove(uid, checkpoints, **options)
        with self._writing(uid) as tables:
            table = tables.session_tables[uid]
            last_seq = max((stored.header.seq for stored in table.headers.values()), default=0)
            table.put_session(replace(table.session, last_seq=last_seq))
        return removed


class LosesAnnotations(Sound):
    """Forgets what was attached before its checkpoint came."""

    def append(self, batch: Sequence[Append], seal: Seal) -> list[Appended | StepkeepError]:
        answers = super().append(batch, seal)
        for item in batch:
            if item.draft.session in self._tables.session_tables:
                with self._writing(item.draft.session) as tables:
                    table = tables.session_tables[item.draft.session]
                    early = (item.draft.branch, item.draft.external_id)
                    table.annotations = {
                        key: each for key, each in table.annotations.items() if key[0] != early
                    }
        return answers


class DropsBases(Sound):
    """Removes the bodies of a checkpoint although others are based on them."""

    def remove(self, uid: str, checkpoints: Sequence[str], **options: Any) -> Removed:
        removed = super().remove(uid, checkpoints, **options)
        with self._writing(uid) as tables:
            bodies = tables.session_tables[uid].bodies
            for key in [key for key in bodies if key[0] in removed.removed]:
                del bodies[key]
        return removed


class IgnoresExpectHead(Sound):
    """The last writer wins."""

    def append(self, batch: Sequence[Append], seal: Seal) -> list[Appended | StepkeepError]:
        return super().append([replace(item, expect_head=ANY_HEAD) for item in batch], seal)


class BrokenContract(BackendContract):
    """The contract over a kind of backend; opening again comes after a loss of power."""

    kind: type[Sound]

    @pytest.fixture
    def backend(self, clock: FakeClock) -> Backend:
        return self.kind(clock=clock)

    @pytest.fixture
    def reopen(self, backend: Sound) -> Callable[[], Backend]:
        def again() -> Backend:
            backend.power_fails()
            return backend

        return again

    @pytest.fixture
    def raw(self, backend: Sound) -> RawAccess:
        return MemoryAccess(backend)


class TestSound(BrokenContract):
    kind = Sound


class TestSyncsInTheWrongOrder(BrokenContract):
    kind = SyncsInTheWrongOrder


class TestReusesSeq(BrokenContract):
    kind = ReusesSeq


class TestLosesAnnotations(BrokenContract):
    kind = LosesAnnotations


class TestDropsBases(BrokenContract):
    kind = DropsBases


class TestIgnoresExpectHead(BrokenContract):
    kind = IgnoresExpectHead


def machine_of(kind: type[Sound]) -> type[StoreMachine]:
    """The state machine over a kind of backend. Whenever the store is closed, the power fails."""

    class Kept(kind):  # type: ignore[misc, valid-type]
        def close(self) -> None:
            self.power_fails()

    class Machine(StoreMachine):
        def __init__(self) -> None:
            self._kept = Kept()
            super().__init__()

        def open_backend(self) -> Backend:
            return self._kept

        def raw_access(self) -> RawAccess:
            return MemoryAccess(self._kept)

    Machine.__qualname__ = f"Machine of {kind.__name__}"  # Hypothesis tells tests apart by it
    return Machine
