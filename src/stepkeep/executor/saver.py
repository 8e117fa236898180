"""Saving the progress of a run: fenced, repeated where that helps, each save at most once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from stepkeep.engine import Engine, Save
from stepkeep.executor.progress import Progress, Shape
from stepkeep.executor.retrying import persistently
from stepkeep.model import STATE, Header, Session, Status, Trigger, new_uid
from stepkeep.storage.port import Blob


class Saver:
    """Saves on the branch the session was on when the run began.

    `wait` passes the time between repeats; it may return early.
    """

    def __init__(
        self,
        engine: Engine,
        session: Session,
        *,
        shape: Shape,
        fence: int,
        wait: Callable[[float], object],
        parent: str | None = None,
        tags: tuple[str, ...] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._engine = engine
        self._session = session
        self._shape = shape
        self._fence = fence
        self._wait = wait
        self._parent = parent
        self._tags = tags
        self._metadata = dict(metadata or {})
        self._run = new_uid()
        self._count = 0
        self._blobs: dict[str, Blob] = {}

    def add_blobs(self, blobs: Iterable[Blob]) -> None:
        """Blobs that the next save names."""
        self._blobs |= {blob.digest: blob for blob in blobs}

    def save(
        self,
        progress: Progress,
        *,
        message: str,
        duration_ms: int,
        status: Status,
        trigger: Trigger,
    ) -> Header:
        """Store a checkpoint durably. A passing failure is repeated.

        Raises:
            InvalidInput: this progress cannot be saved.
            Conflict: (`lease_lost`) another runner took over. Nothing is stored.
            BackendUnavailable: nothing is stored, and a repeat did not or would not help.
        """
        state = self._engine.encode(self._shape.dump(progress))
        metadata = {**self._metadata, "durationMs": duration_ms}
        if (tokens := progress.token_usage) is not None:
            metadata["tokenUsage"] = tokens
        named = progress.blobs
        self._count += 1
        save = Save(
            session=self._session.uid,
            bodies={STATE: msgspec.structs.replace(state, blobs=named)},
            blobs=tuple(blob for digest, blob in self._blobs.items() if digest in named),
            branch=self._session.branch,
            parents=None if self._parent is None else (self._parent,),
            # The answer to a save may be lost on its way: repeated, it must not count twice.
            idempotency_key=f"run-{self._run}-{self._count}",
            fence=self._fence,
            step=progress.current_step_index,
            status=status,
            trigger=trigger,
            message=message,
            tags=self._tags,
            metadata=metadata,
        )
        header = persistently(lambda: self._engine.save(save), self._wait)
        self._parent = None
        self._blobs.clear()
        return header
