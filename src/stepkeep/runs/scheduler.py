"""The steps of one run: start what is ready, take what ends, try again, give up, stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput
from stepkeep.model import from_us
from stepkeep.runs.attempts import Attempt, AttemptEnded, Attempts, Outputs, WorkingMemory, copy_of
from stepkeep.runs.plan import LastError, Progress, StepProgress, StepResult, StepStatus
from stepkeep.runs.run_options import Hooks, Outcome, RunOptions, StepContext, tell
from stepkeep.runs.run_saver import PlanCheckpoints
from stepkeep.runs.signals import Stop
from stepkeep.storage.port import Blob
from stepkeep.text import error_text

_PASSED = (StepStatus.COMPLETED, StepStatus.SKIPPED)


class StepTable:
    """The steps of one run by index. Its owner's thread alone changes it."""

    def __init__(self, progress: Progress) -> None:
        self._entries = list(progress.steps)
        self._query = progress.query
        self._index = {entry.step.id: index for index, entry in enumerate(self._entries)}
        self.last_error = progress.last_error

    def __getitem__(self, index: int) -> StepProgress:
        return self._entries[index]

    def __setitem__(self, index: int, entry: StepProgress) -> None:
        """Put an entry back as it was."""
        self._entries[index] = entry

    def progress(self, context: dict[str, object]) -> Progress:
        """Everything as it stands now."""
        return Progress(
            steps=tuple(self._entries), context=context, query=self._query, last_error=self.last_error
        )

    def ready(self) -> Iterator[int]:
        """Pending steps with nothing left to wait for, in the plan's order.

        A step skipped by choice stands in nobody's way. What a failure stands in the way of is skipped itself.
        """
        for index, entry in enumerate(self._entries):
            if entry.status is StepStatus.PENDING and all(
                self._entries[self._index[name]].status in _PASSED for name in entry.step.dependencies
            ):
                yield index

    def count(self, *statuses: StepStatus) -> int:
        return sum(entry.status in statuses for entry in self._entries)

    def outputs(self) -> dict[str, object]:
        """The outputs of the completed steps."""
        return {entry.step.id: entry.result.output for entry in self._entries if entry.result is not None}

    def start(self, index: int) -> None:
        entry = self._entries[index]
        self._set(index, StepStatus.RUNNING, attempts=entry.attempts + 1)

    def release(self, index: int) -> None:
        """A step that was interrupted has to be done again."""
        self._set(index, StepStatus.PENDING)

    def complete(self, index: int, result: StepResult) -> None:
        self._set(index, StepStatus.COMPLETED, result=result, error=None)
        if self.last_error is not None and self.last_error.step_index == index:
            self.last_error = None

    def skip(self, index: int, reason: str) -> None:
        self._set(index, StepStatus.SKIPPED, error=reason)

    def fail(self, index: int, error: LastError) -> list[int]:
        """A step failed for good; the steps that depend on it, directly or not, are skipped and returned."""
        self._set(index, StepStatus.FAILED, error=error.message)
        self.last_error = error
        return self._skip_dependents(index)

    def _skip_dependents(self, index: int) -> list[int]:
        blocked, skipped = {self._entries[index].step.id}, list[int]()
        grows = True
        while grows:
            grows = False
            for other, entry in enumerate(self._entries):
                if entry.status is StepStatus.PENDING and blocked.intersection(entry.step.dependencies):
                    self.skip(other, f"depends on {self._entries[index].step.id!r}, which failed")
                    blocked.add(entry.step.id)
                    skipped.append(other)
                    grows = True
        return skipped

    def _set(self, index: int, status: StepStatus, **changes: object) -> None:
        entry = self._entries[index]
        step = msgspec.structs.replace(entry.step, status=status)
        self._entries[index] = msgspec.structs.replace(entry, step=step, **changes)


log = logging.getLogger("stepkeep")

Inbox: TypeAlias = SimpleQueue[AttemptEnded | Stop]
"""What the runner's thread waits for. Its `put` is safe in a signal handler."""


class Scheduler:
    """Does the steps that a progress leaves to do. All of it happens on the thread that calls `go`."""

    def __init__(
        self,
        engine: Engine,
        progress: Progress,
        *,
        attempts: Attempts,
        inbox: Inbox,
        checkpoints: PlanCheckpoints,
        add_blobs: Callable[[Iterable[Blob]], None],
        options: RunOptions,
        hooks: Hooks,
    ) -> None:
        self._engine = engine
        self._attempts = attempts
        self._inbox = inbox
        self._checkpoints = checkpoints
        self._add_blobs = add_blobs
        self._options = options
        self._hooks = hooks
        self._table = StepTable(progress)
        self._memory = WorkingMemory(engine, progress.context)
        self._running: dict[int, Attempt] = {}
        self._retries: dict[int, float] = {}
        self._tries: dict[int, int] = {}
        self.failures: list[tuple[int, Exception]] = []

    @property
    def progress(self) -> Progress:
        return self._table.progress(self._memory.values)

    # --- going on and stopping

    def go(self) -> Stop | None:
        """Work until nothing can be done any more, or until a stop arrives."""
        stop = self._take_event(0)
        while stop is None:
            self._end_overdue()
            self._start_what_is_ready()
            if not self._running and not self._retries:
                return None
            stop = self._take_event(self._seconds_to_wait())
        return stop

    def abandon(self) -> None:
        """Want no result any more of what runs; nothing is saved."""
        for attempt in self._running.values():
            attempt.cancel()
        self._running.clear()
        self._retries.clear()

    def pause(self) -> None:
        """Save as `paused`, with what runs to be done again; then save what still ends within the grace."""
        running = dict(self._running)
        for index in running:
            self._table.release(index)
        self._drop_retries()
        self.abandon()
        self._checkpoints.paused(self.progress)
        if completed := self._finish(running):
            self._checkpoints.paused(self.progress)
            for index in completed:
                self._tell_end(index)

    def _finish(self, running: dict[int, Attempt]) -> list[int]:
        """Wait a little for attempts that were told to stop; those that were completed all the same."""
        deadline, completed = time.monotonic() + self._options.grace_seconds, list[int]()
        while running and (left := deadline - time.monotonic()) > 0:
            try:
                event = self._inbox.get(timeout=left)
            except Empty:
                break
            if isinstance(event, Stop):
                break  # told twice: at once
            if running.get(event.attempt.index) is not event.attempt:
                continue
            del running[event.attempt.index]
            if event.error is None:
                try:
                    self._accept(event.attempt, event.value)
                except Exception as exc:  # as when it ends undisturbed; it is done again
                    log.warning("the result of an interrupted step is left out: %s", exc)
                else:
                    completed.append(event.attempt.index)
        return completed

    # --- starting

    @property
    def _is_stopping(self) -> bool:
        return bool(self.failures) and self._options.on_failure == "stop"

    def _start_what_is_ready(self) -> None:
        if self._is_stopping:
            return
        now = time.monotonic()
        for index in [index for index, when in self._retries.items() if when <= now]:
            del self._retries[index]
            self._begin(index)
        for index in self._table.ready():
            # A step that waits for its next try keeps its place: one at a time means in the plan's order.
            if len(self._running) + len(self._retries) >= self._options.parallel:
                return
            self._begin(index)

    def _begin(self, index: int) -> None:
        step, number = self._table[index].step, self._tries.get(index, 0) + 1
        self._tries[index] = number
        lent, memory = self._memory.lend()
        parameters = copy_of(self._engine, step.parameters, what="parameters")
        context = StepContext(
            step=msgspec.structs.replace(step, parameters=parameters),
            index=index,
            attempt=number,
            outputs=Outputs(self._table.outputs(), self._copy),
            context=lent,
            parameters=parameters,
            make_blob=self._engine.make_blob,
        )
        self._table.start(index)
        tell(self._hooks.on_step_start, step, number)
        attempt = Attempt(context, memory=memory, timeout_seconds=self._options.timeout_of(step.id))
        self._running[index] = attempt
        try:
            self._attempts.start(attempt)
        except RuntimeError as exc:  # no thread can be started, or the loop is closed
            self._inbox.put(AttemptEnded(attempt, error=exc))

    def _drop_retries(self) -> None:
        for index in self._retries:
            self._table.release(index)
        self._retries.clear()

    def _copy(self, value: object) -> Any:
        return copy_of(self._engine, value, what="output")

    # --- ending

    def _seconds_to_wait(self) -> float | None:
        moments = [attempt.deadline for attempt in self._running.values() if attempt.deadline is not None]
        moments += self._retries.values()
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _take_event(self, seconds: float | None) -> Stop | None:
        """Wait for the next event and deal with it; a stop is returned."""
        try:
            event = self._inbox.get(timeout=seconds)
        except Empty:
            return None
        if isinstance(event, Stop):
            return event
        if self._running.get(event.attempt.index) is not event.attempt:
            log.info("a late result of step %r is ignored", event.attempt.context.step.id)
            return None
        del self._running[event.attempt.index]
        if event.error is None:
            self._complete(event.attempt, event.value)
        else:
            self._retry_or_fail(event.attempt.index, event.error)
        return None

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for index, attempt in list(self._running.items()):
            if attempt.deadline is None or attempt.deadline > now:
                continue
            del self._running[index]
            attempt.cancel()
            name = attempt.context.step.id
            if attempt.future is None:
                log.warning(
                    "step %r ran out of time; its thread cannot be stopped, its result is ignored", name
                )
            self._retry_or_fail(
                index, TimeoutError(f"step {name!r} took longer than {attempt.timeout_seconds:g} s")
            )

    def _complete(self, attempt: Attempt, value: object) -> None:
        index = attempt.index
        before = self._table[index], self._memory, self._table.last_error
        problem: Exception | None = None
        try:
            self._accept(attempt, value)
        except Exception as exc:  # encoding asks foreign objects, which raise anything
            problem = exc
        else:
            try:
                self._checkpoints.stepped(self.progress, index)
            except InvalidInput as exc:  # alone it could be saved, but not with all the rest
                problem = exc
        if problem is not None:
            self._table[index], self._memory, self._table.last_error = before
            self._fail(index, problem)
            return
        self._tell_end(index)

    def _tell_end(self, index: int) -> None:
        entry = self._table[index]
        if entry.result is None:
            tell(self._hooks.on_step_skip, entry.step, entry.error or "")
        else:
            tell(self._hooks.on_step_complete, entry.step, entry.result)

    def _accept(self, attempt: Attempt, value: object) -> None:
        """Take the outcome of a step over, if it can be saved."""
        outcome = value if isinstance(value, Outcome) else Outcome(output=value)
        outcome.check()
        if outcome.is_skipped:
            reason = outcome.output if isinstance(outcome.output, str) else "by choice"
            self._table.skip(attempt.index, reason)
            return
        output = self._copy(outcome.output)
        changes = self._memory.changes(attempt.memory, attempt.context.context)
        result = StepResult(
            step_id=attempt.context.step.id,
            output=output,
            completed_at=from_us(self._engine.clock()),
            duration_ms=attempt.duration_ms,
            token_usage=outcome.token_usage,
            blobs=tuple(blob.digest for blob in outcome.blobs),
        )
        self._add_blobs(outcome.blobs)
        self._memory = self._memory.with_changes(changes)
        self._table.complete(attempt.index, result)

    def _retry_or_fail(self, index: int, error: Exception) -> None:
        step, number = self._table[index].step, self._tries[index]
        delay = None if self._is_stopping else self._options.retry_of(step.id).delay_after(number)
        if delay is None:
            self._fail(index, error)
            return
        log.info("step %r failed and is tried again in %.3g s: %s", step.id, delay, error)
        tell(self._hooks.on_step_error, step, error, True)
        self._retries[index] = time.monotonic() + delay

    def _fail(self, index: int, error: Exception) -> None:
        message = error_text(str(error)) or type(error).__name__
        self.failures.append((index, error))
        if self._is_stopping:
            self._drop_retries()
        skipped = self._table.fail(
            index, LastError(step_index=index, message=message, timestamp=from_us(self._engine.clock()))
        )
        tell(self._hooks.on_step_error, self._table[index].step, error, False)
        for other in skipped:
            self._tell_end(other)
        self._checkpoints.failed(self.progress, index, is_end=self._is_end)

    @property
    def _is_end(self) -> bool:
        """Whether nothing is going on and nothing will be started."""
        if self._running or self._retries:
            return False
        return self._is_stopping or next(self._table.ready(), None) is None

    def count(self, status: StepStatus) -> int:
        return self._table.count(status)
