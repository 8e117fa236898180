"""Group commit: whoever waits first commits for all who queued meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from stepkeep.errors import BackendUnavailable, StepkeepError
from stepkeep.storage.port import Append, Appended

Outcome: TypeAlias = Appended | StepkeepError

MAX_BATCH: Final = 128
MAX_BATCH_BYTES: Final = 32 * 1024 * 1024
PATIENCE_SECONDS: Final = 0.5
"""How long to wait before looking whether somebody still leads: a thread that was told to may have been interrupted."""


Again: TypeAlias = Callable[[StepkeepError], Append | None]
"""What to send instead after a refusal; None when the refusal stands."""


class Ticket:
    """One queued append, and what became of it."""

    __slots__ = ("_bell", "_committer", "_outcome", "again", "item")

    def __init__(self, committer: Committer, item: Append, again: Again) -> None:
        self._committer = committer
        self._outcome: Outcome | None = None
        self._bell: threading.Lock | None = None
        self.item = item
        self.again = again

    @property
    def is_done(self) -> bool:
        return self._outcome is not None

    def settle(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self.wake()

    def hang_bell(self) -> None:
        """From now on `wake` rings, by releasing a lock."""
        if self._bell is None:
            bell = threading.Lock()
            bell.acquire()
            self._bell = bell

    def listen(self, seconds: float) -> None:
        """Wait for the bell. If it rang because the ticket is settled, it rings on for others who wait."""
        assert self._bell is not None
        self._bell.acquire(timeout=seconds)
        if self.is_done:
            self.wake()

    def wake(self) -> None:
        """Let who waits for it look again."""
        if self._bell is not None:
            with suppress(RuntimeError):  # it rang already
                self._bell.release()

    def result(self) -> Appended:
        """Wait until the checkpoint is durable; raise what kept it from being stored."""
        self._committer.settle(self)
        if isinstance(self._outcome, Appended):
            return self._outcome
        assert self._outcome is not None
        raise self._outcome


class Committer:
    """A first-in first-out queue of appends that any waiting thread empties, one commit at a time.

    One thread alone commits its own append at once: nothing is handed to another thread. Of several, those whose
    appends were committed go on at once, and one of the others is told to lead next. If all had to take the
    leader's lock in turn, the next commit would begin before the first of them comes back with another append.
    """

    def __init__(self, append: Callable[[Sequence[Append]], list[Outcome]]) -> None:
        self._append = append
        self._queue: deque[Ticket] = deque()
        self._leader = threading.Lock()
        self._waiting: deque[Ticket] = deque()

    def enqueue(self, item: Append, again: Again) -> Ticket:
        ticket = Ticket(self, item, again)
        self._queue.append(ticket)
        return ticket

    def settle(self, ticket: Ticket) -> None:
        """Return when the ticket's outcome is known; lead a commit if nobody else does."""
        while not ticket.is_done:
            if self._leader.locked():
                self._wait(ticket)
            else:
                self._lead(ticket)

    def flush(self) -> None:
        """Return when everything queued so far is settled."""
        while self._queue:
            self._lead()

    def _lead(self, ticket: Ticket | None = None) -> None:
        """Commit what is queued, unless the ticket was settled meanwhile, and tell the next one to lead."""
        try:
            with self._leader:
                if ticket is None or not ticket.is_done:
                    self._commit_batch()
        finally:
            self._call_next()

    def _wait(self, ticket: Ticket) -> None:
        """Wait until the ticket is settled, or it may be its turn to lead."""
        ticket.hang_bell()
        self._waiting.append(ticket)
        # Who led may have settled it, or left, before the bell hung.
        if not ticket.is_done and self._leader.locked():
            ticket.listen(PATIENCE_SECONDS)

    def _call_next(self) -> None:
        while self._waiting:
            try:
                ticket = self._waiting.popleft()
            except IndexError:
                return  # another thread was quicker
            if not ticket.is_done:
                ticket.wake()
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

    def _attempt(self, batch: list[Ticket]) -> list[Ticket]:
        """Commit a batch; those that are to be sent again, in their order and before anything that came later."""
        outcomes = self._append([ticket.item for ticket in batch])
        repeats = []
        for ticket, outcome in zip(batch, outcomes, strict=True):
            instead = _instead(ticket, outcome)
            if isinstance(instead, Append):
                ticket.item = instead
                repeats.append(ticket)
            else:
                ticket.settle(instead)
        return repeats

    def _take_batch(self) -> list[Ticket]:
        batch: list[Ticket] = []
        size = 0
        while self._queue and len(batch) < MAX_BATCH and size < MAX_BATCH_BYTES:
            ticket = self._queue.popleft()
            size += sum(body.stored_size for body in ticket.item.bodies)
            batch.append(ticket)
        return batch

    def before_fork(self) -> None:
        self._leader.acquire()

    def after_fork(self, *, is_child: bool) -> None:
        if is_child:
            _settle_rest(
                list(self._queue),
                BackendUnavailable(
                    "this save was queued before a fork: the parent commits it",
                    code="forked",
                    retryable=False,
                ),
            )
            self._queue.clear()
            self._waiting.clear()
        self._leader.release()
        self._call_next()


def _instead(ticket: Ticket, outcome: Outcome) -> Outcome | Append:
    """The outcome of an attempt, or what to send instead of it."""
    if isinstance(outcome, Appended):
        return outcome
    try:
        return ticket.again(outcome) or outcome
    except StepkeepError as exc:
        return exc


def _settle_rest(tickets: list[Ticket], outcome: StepkeepError) -> None:
    for ticket in tickets:
        if not ticket.is_done:
            ticket.settle(outcome)
