"""Saving the progress of a run: fenced, repeated where that helps, each save at most once; and at which boundaries."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from stepkeep.engine import Engine, Pending, Save
from stepkeep.errors import BackendUnavailable
from stepkeep.model import Header, Status, Trigger, TriggerKind, new_uid
from stepkeep.runs.plan import Progress, Serializer
from stepkeep.runs.run_options import Hooks, tell
from stepkeep.storage.port import Blob
from stepkeep.text import error_text

SAVE_DELAYS: Final = (0.1, 0.5, 2.0)
"""Seconds to wait before a save that failed for a passing reason is repeated."""

log = logging.getLogger("stepkeep")
T = TypeVar("T")


def persistently(write: Callable[[], T], wait: Callable[[float], object]) -> T:
    """Do a write, and repeat it after `SAVE_DELAYS` as long as it fails for a passing reason.

    The write must be one that may be repeated. A full disk or a missing permission is final at once.
    """
    for delay in SAVE_DELAYS:
        try:
            return write()
        except BackendUnavailable as exc:
            if not exc.retryable:
                raise
            log.warning("a write failed and is repeated in %g s: %s", delay, exc)
            wait(delay)
    return write()


class RunSaver:
    """Makes and stores the checkpoints of one run, of a plan, a workflow or a script, fenced by its lease.

    `wait` passes the time between repeats; it may return early. `branch` is the one to stay on; None follows the
    session. `parent` is that of the first save. `tags` and `metadata` go onto every checkpoint.
    """

    def __init__(
        self,
        engine: Engine,
        uid: str,
        *,
        fence: int,
        wait: Callable[[float], object],
        branch: str | None = None,
        parent: str | None = None,
        tags: tuple[str, ...] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._engine = engine
        self._uid = uid
        self._fence = fence
        self._wait = wait
        self._branch = branch
        self._parent = parent
        self._tags = tags
        self._metadata = dict(metadata or {})
        self._run = new_uid()
        self._count = 0
        self._blobs: dict[str, Blob] = {}

    def add_blobs(self, blobs: Iterable[Blob]) -> None:
        """Blobs that the next save names."""
        self._blobs |= {blob.digest: blob for blob in blobs}

    def save(self, state: object, *, blobs: frozenset[str] = frozenset(), **fields: Any) -> Header:
        """Store a checkpoint durably; `blobs` are those that the state names. A passing failure is repeated.

        Raises:
            InvalidInput: this state cannot be saved.
            Conflict: (`lease_lost`) another runner took over. Nothing is stored.
            BackendUnavailable: nothing is stored, and a repeat did not or would not help.
        """
        self._count += 1
        save = self._save_of(
            state,
            state_blobs=blobs,
            blobs=tuple(blob for digest, blob in self._blobs.items() if digest in blobs),
            parents=None if self._parent is None else (self._parent,),
            # The answer to a save may be lost on its way: repeated, it must not count twice.
            idempotency_key=f"run-{self._run}-{self._count}",
            **fields,
        )
        header = persistently(lambda: self._engine.save(save), self._wait)
        self._parent = None
        self._blobs.clear()
        return header

    def submit(self, state: object, **fields: Any) -> Pending:
        """Queue a checkpoint; whoever asks for its result commits it, with all that were queued meanwhile."""
        return self._engine.submit(self._save_of(state, **fields))

    def mark(self, status: Status, error: str | None = None) -> None:
        """Set the status of the session. A passing failure is repeated."""
        persistently(
            lambda: self._engine.finish(self._uid, status, error=error, fence=self._fence), self._wait
        )

    def _save_of(self, state: object, *, metadata: Mapping[str, Any] | None = None, **fields: Any) -> Save:
        return Save(
            session=self._uid,
            state=state,
            branch=self._branch,
            fence=self._fence,
            tags=self._tags,
            metadata={**self._metadata, **(metadata or {})},
            **fields,
        )


COMPLETE: Final = "Execution complete"
STARTED: Final = "Execution started"
QUEUED: Final = "Queued"

_AUTO: Final = Trigger()
_STEP: Final = Trigger(TriggerKind.AUTO, "step_boundary")
_ERROR: Final = Trigger(TriggerKind.ERROR, "error_boundary")
_QUEUE: Final = Trigger(TriggerKind.AUTO, "queued")
_PAUSE: Final = Trigger(TriggerKind.AUTO, "interruption")


class PlanCheckpoints:
    """Saves at the boundaries of a run. Without a saver nothing is saved; without `is_auto` nothing after steps.

    `newest` is the last one saved, or the one the run was resumed from.
    """

    def __init__(
        self,
        saver: RunSaver | None,
        *,
        serializer: Serializer,
        hooks: Hooks,
        is_auto: bool,
        newest: Header | None = None,
        duration_ms: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._saver = saver
        self._serializer = serializer
        self._hooks = hooks
        self._is_auto = is_auto
        self._earlier_ms = duration_ms
        self._monotonic = monotonic
        self._started = monotonic()
        self.newest = newest

    @property
    def duration_ms(self) -> int:
        """How long this run has taken so far."""
        return round((self._monotonic() - self._started) * 1000)

    def begun(self, progress: Progress) -> None:
        """The run begins here: what a run that is killed in its first step goes back to."""
        at = progress.current_step_index
        self._save(progress, STARTED if at == 0 else f"Resumed at step {at}")

    def stepped(self, progress: Progress, index: int) -> None:
        """A step is completed, or was skipped by choice."""
        if self._is_auto:
            self._save(progress, _labelled("Completed", progress, index), trigger=_STEP)

    def failed(self, progress: Progress, index: int, *, is_end: bool) -> None:
        """A step failed for good. Only at the end of the work does that make the session failed."""
        self._save(
            progress,
            _labelled(f"Failed at step {index}", progress, index),
            status=Status.FAILED if is_end else Status.IN_PROGRESS,
            trigger=_ERROR,
        )

    def paused(self, progress: Progress) -> None:
        at = progress.current_step_index
        self._save(
            progress, _labelled(f"Paused at step {at}", progress, at), status=Status.PAUSED, trigger=_PAUSE
        )

    def queued(self, progress: Progress) -> None:
        """The run is left to a worker: what it begins with."""
        self._save(progress, QUEUED, trigger=_QUEUE)

    def completed(self, progress: Progress) -> None:
        self._save(progress, COMPLETE, status=Status.COMPLETED)

    def _save(
        self,
        progress: Progress,
        message: str,
        *,
        status: Status = Status.IN_PROGRESS,
        trigger: Trigger = _AUTO,
    ) -> None:
        if self._saver is None:
            return
        metadata: dict[str, Any] = {"durationMs": self._earlier_ms + self.duration_ms}
        if (tokens := progress.token_usage) is not None:
            metadata["tokenUsage"] = tokens
        self.newest = self._saver.save(
            self._serializer.dump(progress),
            blobs=progress.blobs,
            step=progress.current_step_index,
            message=message,
            status=status,
            trigger=trigger,
            metadata=metadata,
        )
        tell(self._hooks.on_checkpoint, self.newest)


def _labelled(text: str, progress: Progress, index: int) -> str:
    if index >= len(progress.plan):
        return text
    step = progress.plan[index]
    return error_text(f"{text}: {step.description or step.id}")
