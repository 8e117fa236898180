"""Checkpoint tuples whose values are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple, PendingWrite


class StoredTuple(CheckpointTuple):
    """A checkpoint tuple whose checkpoint is read from the store when it is first looked at, and then kept.

    In every other way it is a tuple of five like any. Looking may raise what loading raises: `NotFound` when the
    checkpoint was removed since it was listed, `Corrupt` when it is damaged.
    """

    _load: Callable[[], Checkpoint] | None

    def __new__(
        cls,
        config: RunnableConfig,
        load: Callable[[], Checkpoint],
        metadata: CheckpointMetadata,
        parent_config: RunnableConfig | None,
        pending_writes: list[PendingWrite],
    ) -> StoredTuple:
        self = super().__new__(cls, config, cast(Checkpoint, None), metadata, parent_config, pending_writes)
        self._load = load
        return self

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint with its channel values."""
        if self._load is not None:
            self._checkpoint = self._load()
            self._load = None
        return self._checkpoint

    # A tuple would answer these from its own slots, where the checkpoint is not.

    def __iter__(self) -> Iterator[Any]:
        return iter((self.config, self.checkpoint, self.metadata, self.parent_config, self.pending_writes))

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _replace(self, **changes: Any) -> CheckpointTuple:  # type: ignore[override]
        return CheckpointTuple(*self)._replace(**changes)

    __hash__ = None  # type: ignore[assignment]  # its parts are dicts

    def __repr__(self) -> str:
        return repr(CheckpointTuple(*self))

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckpointTuple, tuple(self)
