"""Group commit: whoever waits first commits for all who queued meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from typing import Final, TypeAlias

from stepkeep.codec.integrity import seal
from stepkeep.errors import BackendUnavailable, StepkeepError
from stepkeep.storage.port import Append, Appended, Backend

Outcome: TypeAlias = Appended | StepkeepError

MAX_BATCH: Final = 128
MAX_BATCH_BYTES: Final = 32 * 1024 * 1024
MAX_AT_ONCE: Final = 4
CROWD: Final = 3
"""How many commits are under way at once, where they can be, and how many appends wait before another one begins."""
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
    """A first-in first-out queue of appends that any waiting thread empties.

    One thread alone commits its own append at once: nothing is handed to another thread. Of several, those whose
    appends were committed go on at once, and one of the others is told to lead next. If all had to take the
    leader's lock in turn, the next commit would begin before the first of them comes back with another append.

    One commit is under way at a time. Where savers of all sessions do not wait for one lock anyway, another one begins
    beside it when a crowd waits; a session is in one of them only, so its appends keep their order.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.queue: deque[Queued] = deque()  # what is to be committed is appended here
        at_once = 1 if backend.capabilities.has_one_writer else MAX_AT_ONCE
        self._leaders = [threading.Lock() for _ in range(at_once)]
        self._leader = self._leaders[0]
        self._waiting: deque[Queued] = deque()
        self._taking = threading.Lock()  # one at a time takes from the queue
        self._busy: set[str] = set()  # the sessions in commits that are under way

    def settle(self, queued: Queued) -> Outcome:
        """What became of an append; lead a commit if nobody else does."""
        while queued.outcome is None:
            leader = self._free_leader()
            if leader is None or not self._lead(leader, queued):
                self._wait(queued)
        return queued.outcome

    def flush(self) -> None:
        """Return when everything queued so far is settled."""
        try:
            while self.queue:
                with ExitStack() as alone:
                    for leader in self._leaders:
                        alone.enter_context(leader)
                    self._commit_batch()
        finally:
            self._call_next()

    def _free_leader(self) -> threading.Lock | None:
        """The lock of a commit that may begin now."""
        if not self._leader.locked():
            return self._leader
        if len(self.queue) < CROWD:
            return None
        return next((leader for leader in self._leaders if not leader.locked()), None)

    def _lead(self, leader: threading.Lock, queued: Queued) -> bool:
        """Commit what is queued, unless this one was settled meanwhile, and tell the next one to lead.

        False if there was nothing that may be committed now: then whoever commits what it waits for tells the next one.
        """
        is_led = True
        try:
            with leader:
                is_led = queued.outcome is not None or self._commit_batch()
                return is_led
        finally:
            if is_led and self._waiting:
                self._call_next()

    def _wait(self, queued: Queued) -> None:
        """Wait until an append is settled, or it may be its turn to lead."""
        if queued.event is None:
            queued.event = threading.Event()
        queued.event.clear()
        self._waiting.append(queued)
        # Who led may have settled it, or left, before the event was there.
        is_busy = queued.item.draft.session in self._busy
        if queued.outcome is None and (is_busy or self._free_leader() is None):
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

    def _commit_batch(self) -> bool:
        """Commit what may be committed now; False if there is nothing."""
        taken = batch = self._take_batch()
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
        finally:
            with self._taking:  # else one of two appends of a session could be left, and the later one taken
                self._busy.difference_update(queued.item.draft.session for queued in taken)
        return bool(taken)

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
        """What may be committed now, in its order; what is of a session in another commit stays."""
        batch: list[Queued] = []
        size = 0
        taken: set[str] = set()
        left: list[Queued] = []
        with self._taking:
            while self.queue and len(batch) < MAX_BATCH and size < MAX_BATCH_BYTES:
                queued = self.queue.popleft()
                session = queued.item.draft.session
                if session in self._busy:
                    left.append(queued)
                    continue
                taken.add(session)
                for body in queued.item.bodies:
                    size += body.stored_size
                batch.append(queued)
            self.queue.extendleft(reversed(left))
            self._busy |= taken
        return batch

    def before_fork(self) -> None:
        for leader in self._leaders:
            leader.acquire()

    def after_fork(self, *, is_child: bool) -> None:
        if is_child:
            forked = BackendUnavailable(
                "this save was queued before a fork: the parent commits it", code="forked", retryable=False
            )
            for queued in self.queue:
                # Who waits for it is in the parent, and may have held the lock of its event, which stays held here.
                queued.outcome, queued.event = forked, None
            self.queue.clear()
            self._waiting.clear()
        for leader in self._leaders:
            leader.release()
        self._call_next()


def _settle_rest(batch: list[Queued], outcome: StepkeepError) -> None:
    for queued in batch:
        if queued.outcome is None:
            queued.settle(outcome)
