"""Group commit: whoever waits first commits for all who queued meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, TypeAlias

from stepkeep.codec.integrity import seal
from stepkeep.errors import BackendUnavailable, StepkeepError
from stepkeep.storage.port import Append, Appended, Backend

Outcome: TypeAlias = Appended | StepkeepError

MAX_BATCH: Final = 128
MAX_BATCH_BYTES: Final = 32 * 1024 * 1024
LOOK_AGAIN_SECONDS: Final = 0.5
"""How long to wait before looking whether somebody still leads: a thread that was told to may have been interrupted."""


class Queued:
    """An append in the queue, and what became of it."""

    def __init__(self, item: Append) -> None:
        self.item = item
        self.outcome: Outcome | None = None
        self.event: threading.Event | None = None

    def _instead(self, refusal: StepkeepError) -> Append | None:  # noqa: ARG002
        """What to send instead after a refusal; None when the refusal stands."""
        return None

    def settle(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.event is not None:
            self.event.set()


class Committer:
    """A first-in first-out queue of appends that any waiting thread empties, one commit at a time.

    One thread alone commits its own append at once: nothing is handed to another thread. Of several, those whose
    appends were committed go on at once, and one of the others is told to lead next. If all had to take the
    leader's lock in turn, the next commit would begin before the first of them comes back with another append.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.queue: deque[Queued] = deque()  # what is to be committed is appended here
        self._leader = threading.Lock()
        self._waiting: deque[Queued] = deque()

    def settle(self, queued: Queued) -> Outcome:
        """What became of an append; lead a commit if nobody else does."""
        while queued.outcome is None:
            if self._leader.locked():
                self._wait(queued)
            else:
                self.lead(queued)
        return queued.outcome

    def lead(self, queued: Queued | None = None) -> None:
        """Commit what is queued, unless this one was settled meanwhile, and tell the next one to lead."""
        try:
            with self._leader:
                if queued is None or queued.outcome is None:
                    self._commit_batch()
        finally:
            if self._waiting:
                self._call_next()

    def _wait(self, queued: Queued) -> None:
        """Wait until an append is settled, or it may be its turn to lead."""
        if queued.event is None:
            queued.event = threading.Event()
        queued.event.clear()
        self._waiting.append(queued)
        # Who led may have settled it, or left, before the event was there.
        if queued.outcome is None and self._leader.locked():
            queued.event.wait(LOOK_AGAIN_SECONDS)

    def _call_next(self) -> None:
        while self._waiting:
            try:
                queued = self._waiting.popleft()
            except IndexError:
                return  # another thread was quicker
            if queued.outcome is None:
                assert queued.event is not None
                queued.event.set()
                return

    def _commit_batch(self) -> None:
        batch = self._take_batch()
        try:
            while batch:
                batch = self._attempt(batch)
        except StepkeepError as exc:
            _settle_rest(batch, exc)
        except BaseException:
            # Interrupted between "sent" and "heard": those who wait must not wait for ever. A repeat is safe,
            # because the checkpoint's own id is an idempotency key.
            _settle_rest(
                batch, BackendUnavailable("the commit was interrupted: its outcome is unknown, save again")
            )
            raise

    def _attempt(self, batch: list[Queued]) -> list[Queued]:
        """Commit a batch; those that are to be sent again, in their order and before anything that came later."""
        outcomes = self._backend.append([queued.item for queued in batch], seal)
        repeats = []
        for queued, outcome in zip(batch, outcomes, strict=True):
            instead = None
            if isinstance(outcome, StepkeepError):
                try:
                    instead = queued._instead(outcome)
                except StepkeepError as exc:
                    outcome = exc
            if instead is None:
                queued.settle(outcome)
            else:
                queued.item = instead
                repeats.append(queued)
        return repeats

    def _take_batch(self) -> list[Queued]:
        batch: list[Queued] = []
        size = 0
        while self.queue and len(batch) < MAX_BATCH and size < MAX_BATCH_BYTES:
            queued = self.queue.popleft()
            for body in queued.item.bodies:
                size += body.stored_size
            batch.append(queued)
        return batch

    def before_fork(self) -> None:
        self._leader.acquire()

    def after_fork(self, *, is_child: bool) -> None:
        if is_child:
            _settle_rest(
                list(self.queue),
                BackendUnavailable(
                    "this save was queued before a fork: the parent commits it",
                    code="forked",
                    retryable=False,
                ),
            )
            self.queue.clear()
            self._waiting.clear()
        self._leader.release()
        self._call_next()


def _settle_rest(batch: list[Queued], outcome: StepkeepError) -> None:
    for queued in batch:
        if queued.outcome is None:
            queued.settle(outcome)
