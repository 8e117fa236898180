"""A checkpoint as its reader sees it."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from stepkeep.codec import exact
from stepkeep.engine import Fallback, Loaded
from stepkeep.model import DETAILS, STATE, Header

if TYPE_CHECKING:
    from stepkeep.api.values import ChangeCounts, RestoredInfo
    from stepkeep.history.documents import CheckpointInfo

T = TypeVar("T")


class Checkpoint:
    """A verified checkpoint: its header, and the values that were saved."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    @property
    def header(self) -> Header:
        return self._loaded.header

    @property
    def id(self) -> str:
        return self._loaded.header.id

    @property
    def seq(self) -> int:
        return self._loaded.header.seq

    @property
    def step(self) -> int | None:
        return self._loaded.header.step

    @property
    def created_at(self) -> datetime:
        return self._loaded.header.created_at

    @property
    def fallback(self) -> Fallback | None:
        """Set when this is not the newest checkpoint, because newer ones are damaged."""
        return self._loaded.fallback

    @cached_property
    def state(self) -> Any:
        """What was saved."""
        return self._loaded.value()

    @cached_property
    def details(self) -> Any:
        """What was saved as details, None if nothing was."""
        return self._loaded.value(DETAILS) if DETAILS in self._loaded.contents else None

    def load(self, type: type[T]) -> T:
        """The state rebuilt as a dataclass, msgspec struct or pydantic model."""
        return exact.convert(self._loaded.value(), type)

    def content(self, name: str = STATE) -> bytes:
        """The exact bytes of a body."""
        return self._loaded.contents[name]

    def __repr__(self) -> str:
        return f"<Checkpoint {self.id} #{self.seq}>"


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A session that goes on from an old checkpoint: on which branch, and what it left behind.

    `changes` lead from the state before to the restored one; None when that cannot be read, or nobody asked.
    """

    session: str
    checkpoint: Checkpoint
    info: CheckpointInfo
    branch: str
    is_new_branch: bool
    previous_branch: str
    previous_head: str | None
    previous_seq: int | None
    undo: str
    changes: ChangeCounts | None = None
    parts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    @property
    def state(self) -> Any:
        """The state to go on with."""
        return self.checkpoint.state

    @property
    def restored_to(self) -> str:
        """The id of the checkpoint."""
        return self.checkpoint.id

    @property
    def timestamp(self) -> datetime:
        """When it was saved."""
        return self.checkpoint.created_at

    @property
    def message(self) -> str:
        return self.checkpoint.header.message

    def document(self) -> RestoredInfo:
        """The same as JSON can hold it, without the state."""
        from stepkeep.api.values import RestoredInfo
        from stepkeep.history.refs import BEFORE

        return RestoredInfo(
            session=self.session,
            checkpoint=self.info,
            branch=self.branch,
            is_new_branch=self.is_new_branch,
            previous_branch=self.previous_branch,
            previous_head=self.previous_head,
            previous_seq=self.previous_seq,
            changes=self.changes,
            undo=BEFORE,
        )

    @property
    def recovery_complete(self) -> bool:
        """Whether every connected part was in the checkpoint, and every part of it is connected.

        With no part connected the state is the caller's, and nothing is missing.
        """
        return not self.missing and not (self.parts and self.extra)
