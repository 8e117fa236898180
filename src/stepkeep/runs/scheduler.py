"""The steps of one run: start what is ready, take what ends, try again, give up, stop; and save at each boundary."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

import msgspec

from stepkeep.codec.integrity import digest
from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput
from stepkeep.logs import Log
from stepkeep.model import Header, Status, Trigger, TriggerKind, from_us
from stepkeep.runs.attempts import Attempt, AttemptEnded, Attempts, Outputs, WorkingMemory, copy_of
from stepkeep.runs.lease import RunSaver
from stepkeep.runs.plan import (
    PASSED,
    LastError,
    PlanStep,
    Progress,
    Question,
    Serializer,
    StepProgress,
    StepResult,
    StepStatus,
)
from stepkeep.runs.questions import Waiting, new_question, refusal
from stepkeep.runs.run_options import Outcome, RunOptions, StepContext, tell
from stepkeep.runs.signals import LONGEST_WAIT_SECONDS, Stop
from stepkeep.storage.port import Blob
from stepkeep.text import error_text

log = Log("stepkeep")

Inbox: TypeAlias = SimpleQueue[AttemptEnded | Stop]
"""What the runner's thread waits for. Its `put` is safe in a signal handler."""

_AUTO: Final = Trigger()
_STEP: Final = Trigger(TriggerKind.AUTO, "step_boundary")
_ERROR: Final = Trigger(TriggerKind.ERROR, "error_boundary")
_QUEUE: Final = Trigger(TriggerKind.AUTO, "queued")
_PAUSE: Final = Trigger(TriggerKind.AUTO, "interruption")

INTERRUPTED: Final = "it was interrupted"
AGAIN: Final = "It was interrupted: do it again?"
"""What a person is asked about a step in whose middle an earlier run ended."""


class PlanCheckpoints:
    """Saves at the boundaries of a run. Without a saver nothing is saved.

    `newest` is the last one saved, or the one the run was resumed from.
    """

    def __init__(
        self,
        saver: RunSaver | None,
        *,
        serializer: Serializer,
        options: RunOptions,
        newest: Header | None = None,
    ) -> None:
        self._saver = saver
        self._serializer = serializer
        self._options = options
        self._started = time.monotonic()
        self._blobs: dict[str, Blob] = {}
        self.newest = newest
        earlier = 0 if newest is None else newest.metadata.get("durationMs", 0)
        self._earlier_ms = int(earlier) if isinstance(earlier, int | float) else 0

    @property
    def duration_ms(self) -> int:
        """How long this run has taken so far."""
        return round((time.monotonic() - self._started) * 1000)

    def add_blobs(self, blobs: Iterable[Blob]) -> None:
        """Blobs that the next save names."""
        if self._saver is not None:
            self._blobs |= {blob.digest: blob for blob in blobs}

    def begun(self, progress: Progress) -> None:
        """The run begins here: what a run that is killed in its first step goes back to."""
        at = progress.current_step_index
        self._save(progress, "Execution started" if at == 0 else f"Resumed at step {at}")

    def started(self, progress: Progress, index: int) -> None:
        """A step begins that must not simply be done again after an interruption."""
        self._save(progress, _labelled("Started", progress, index))

    def waiting(self, progress: Progress, questions: Sequence[Question]) -> None:
        """Nothing can be done until a person answers."""
        texts = "; ".join(question.text for question in questions)
        self._save(
            progress, error_text(f"Waiting for a person: {texts}"), status=Status.PAUSED, trigger=_PAUSE
        )

    def stepped(self, progress: Progress, index: int) -> None:
        """A step is completed, or was skipped by choice."""
        if self._options.auto_checkpoint:
            self._save(progress, _labelled("Completed", progress, index), trigger=_STEP)

    def failed(self, progress: Progress, index: int, *, is_end: bool) -> None:
        """A step failed for good. Only at the end of the work does that make the session failed."""
        status = Status.FAILED if is_end else Status.IN_PROGRESS
        message = _labelled(f"Failed at step {index}", progress, index)
        self._save(progress, message, status=status, trigger=_ERROR)

    def paused(self, progress: Progress) -> None:
        at = progress.current_step_index
        message = _labelled(f"Paused at step {at}", progress, at)
        self._save(progress, message, status=Status.PAUSED, trigger=_PAUSE)

    def queued(self, progress: Progress) -> None:
        """The run is left to a worker: what it begins with."""
        self._save(progress, "Queued", trigger=_QUEUE)

    def completed(self, progress: Progress) -> None:
        self._save(progress, "Execution complete", status=Status.COMPLETED)

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
        named = progress.blobs
        self.newest = self._saver.save(
            self._serializer.dump(progress),
            state_blobs=named,
            blobs=tuple(blob for digest, blob in self._blobs.items() if digest in named),
            step=progress.current_step_index,
            message=message,
            status=status,
            trigger=trigger,
            metadata=metadata,
        )
        self._blobs.clear()
        tell(self._options.hooks.on_checkpoint, self.newest)


def _labelled(text: str, progress: Progress, index: int) -> str:
    if index >= len(progress.steps):
        return text
    step = progress.steps[index].step
    return error_text(f"{text}: {step.description or step.id}")


class ReadySteps:
    """Pending steps with nothing left to wait for, taken in the plan's order.

    A step skipped by choice stands in nobody's way.
    """

    def __init__(self, progress: Progress) -> None:
        passed = {entry.step.id for entry in progress.steps if entry.status in PASSED}
        self._needs: dict[int, set[str]] = {}
        self._needed_by: dict[str, list[int]] = {}
        self._heap: list[int] = []
        for index, entry in enumerate(progress.steps):
            if entry.status is not StepStatus.PENDING:
                continue
            if needs := set(entry.step.dependencies) - passed:
                self._needs[index] = needs
                for name in needs:
                    self._needed_by.setdefault(name, []).append(index)
            else:
                self._heap.append(index)  # in order, so that it is a heap

    def __bool__(self) -> bool:
        return bool(self._heap)

    def take(self) -> int:
        return heappop(self._heap)

    def passed(self, step: str) -> None:
        """A step was completed or skipped by choice: who waited for it alone is ready."""
        for index in self._needed_by.pop(step, ()):
            self._needs[index].discard(step)
            if not self._needs[index]:
                heappush(self._heap, index)


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
        options: RunOptions,
        run: str = "",
    ) -> None:
        """`run` names the run, also when it is resumed."""
        self._engine = engine
        self._run = run
        self._attempts = attempts
        self._inbox = inbox
        self._checkpoints = checkpoints
        self._options = options
        self._hooks = options.hooks
        self._memory = WorkingMemory(engine, progress.context)
        self.progress = msgspec.structs.replace(progress, context=self._memory.values)
        self._outputs = {result.step_id: result.output for result in progress.results}
        self._ready = ReadySteps(progress)
        self._running: dict[int, Attempt] = {}
        self._retries: dict[int, float] = {}
        self._tries: dict[int, int] = {}
        self.failures: list[tuple[int, Exception]] = []
        self.waiting: list[Question] = []

    def _set(self, index: int, status: StepStatus, **changes: Any) -> None:
        self.progress = self.progress.with_step(index, status, **changes)

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
            if self.progress.steps[index].step.on_interrupted == "retry":
                self._set(index, StepStatus.PENDING)  # to be done again
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
            event = self._next_event(left, running)
            if isinstance(event, Stop):
                break  # told twice: at once
            if event is not None and event.error is None and event.waiting is None:
                try:
                    self._accept(event.attempt, event.value)
                except Exception as exc:  # as when it ends undisturbed; it is done again
                    log.warning("the result of an interrupted step is left out: %s", error_text(exc))
                else:
                    completed.append(event.attempt.index)
        return completed

    # --- starting

    @property
    def _is_stopping(self) -> bool:
        return bool(self.failures) and self._options.on_failure == "stop"

    def _start_what_is_ready(self) -> None:
        now = time.monotonic()
        for index in [index for index, when in self._retries.items() if when <= now]:
            del self._retries[index]
            self._start(index)
        while self._has_room():
            self._begin(self._ready.take())

    def _has_room(self) -> bool:
        """Whether a step may begin. One that waits for its next try keeps its place: one at a time means in order."""
        is_free = len(self._running) + len(self._retries) < self._options.parallel
        return bool(self._ready) and is_free and not self._is_stopping

    def _begin(self, index: int) -> None:
        """Start a step, unless a person has to be asked before."""
        entry = self.progress.steps[index]
        step, question = entry.step, self._question_before(entry)
        if question is not None and question.is_approved is None:
            self._wait(step, question)
        elif question is not None and not question.is_approved:
            self._put_off(index, question)
        elif entry.is_interrupted and step.on_interrupted == "skip":
            self._skip(index, INTERRUPTED)
        else:
            self._start(index)

    def _question_before(self, entry: StepProgress) -> Question | None:
        """What a person has to approve before a step is done."""
        step = entry.step
        is_interrupted = entry.is_interrupted or self.progress.question(step.id, AGAIN) is not None
        text = AGAIN if is_interrupted and step.on_interrupted == "ask" else step.ask
        if text is None:
            return None
        timeout = step.ask_timeout if text == step.ask else None
        return self.progress.question(step.id, text) or new_question(
            step.id, text, timeout, now_us=self._engine.clock()
        )

    def _wait(self, step: PlanStep, question: Question) -> None:
        """Leave a step until a person answered."""
        self.waiting.append(question)
        self.progress = self.progress.with_question(question)
        tell(self._hooks.on_question, step, question)

    def _put_off(self, index: int, question: Question) -> None:
        """A person said no: a step that was interrupted is skipped, any other fails."""
        if question.text == AGAIN:
            self._skip(index, str(refusal(question)))
        else:
            self._fail(index, refusal(question))

    def _skip(self, index: int, reason: str) -> None:
        self._set(index, StepStatus.SKIPPED, error=reason)
        self._checkpoints.stepped(self.progress, index)
        self._ready.passed(self.progress.steps[index].step.id)
        self._tell_end(index)

    def _start(self, index: int) -> None:
        name = self.progress.steps[index].step.id
        self.progress = self.progress.without_question(name, AGAIN)  # the next interruption is another one
        step, number = self.progress.steps[index].step, self._tries.get(index, 0) + 1
        self._tries[index] = number
        lent, memory = self._memory.lend()
        parameters = copy_of(self._engine, step.parameters, what="parameters")
        context = StepContext(
            step=msgspec.structs.replace(step, parameters=parameters),
            index=index,
            attempt=number,
            outputs=Outputs(self._outputs.copy(), self._copy),
            context=lent,
            parameters=parameters,
            blob=self._engine.make_blob,
            idempotency_key=digest(f"{self._run}\0{step.id}".encode())[:32],
            questions=tuple(each for each in self.progress.questions if each.step_id == step.id),
        )
        self._set(index, StepStatus.RUNNING, attempts=self.progress.steps[index].attempts + 1)
        if step.on_interrupted != "retry" and number == 1:
            self._checkpoints.started(self.progress, index)
        tell(self._hooks.on_step_start, step, number)
        attempt = Attempt(
            context=context, memory=memory, timeout_seconds=step.timeout or self._options.timeout
        )
        self._running[index] = attempt
        try:
            self._attempts.start(attempt)
        except RuntimeError as exc:  # no thread can be started, or the loop is closed
            self._inbox.put(AttemptEnded(attempt, error=exc))

    def _drop_retries(self) -> None:
        for index in self._retries:
            self._set(index, StepStatus.PENDING)  # to be done again
        self._retries.clear()

    def _copy(self, value: object) -> Any:
        return copy_of(self._engine, value, what="output")

    # --- ending

    def _seconds_to_wait(self) -> float:
        moments = [attempt.deadline for attempt in self._running.values() if attempt.deadline is not None]
        moments += self._retries.values()
        now = time.monotonic()
        return max(0.0, min([now + LONGEST_WAIT_SECONDS, *moments]) - now)

    def _take_event(self, seconds: float) -> Stop | None:
        """Wait so long for the next event and deal with it; a stop is returned."""
        event = self._next_event(seconds, self._running)
        if isinstance(event, Stop):
            return event
        if event is not None and event.waiting is not None:
            self._asked(event.attempt, event.waiting)
        elif event is not None and event.error is not None:
            self._retry_or_fail(event.attempt.index, event.error)
        elif event is not None:
            self._complete(event.attempt, event.value)
        return None

    def _asked(self, attempt: Attempt, waiting: Waiting) -> None:
        """A step put a question to a person; one that was put before keeps its time."""
        step = attempt.context.step
        known = self.progress.question(step.id, waiting.text)
        self._set(attempt.index, StepStatus.PENDING)
        now_us = self._engine.clock()
        self._wait(step, known or new_question(step.id, waiting.text, waiting.timeout, now_us=now_us))

    def _next_event(self, seconds: float, running: dict[int, Attempt]) -> Stop | AttemptEnded | None:
        """What happens within a time, None if nothing does. An attempt that ended runs no more."""
        try:
            event = self._inbox.get(timeout=seconds)
        except Empty:
            return None
        if isinstance(event, Stop):
            return event
        if running.get(event.attempt.index) is not event.attempt:
            log.info("a late result of step %r is ignored", event.attempt.context.step.id)
            return None
        del running[event.attempt.index]
        return event

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
        before = self.progress, self._memory
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
            self.progress, self._memory = before
            self._fail(index, problem)
            return
        entry = self.progress.steps[index]
        if entry.result is not None:
            self._outputs[entry.step.id] = entry.result.output
        self._ready.passed(entry.step.id)
        self._tell_end(index)

    def _tell_end(self, index: int) -> None:
        entry = self.progress.steps[index]
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
            self._set(attempt.index, StepStatus.SKIPPED, error=reason)
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
            attempts=self.progress.steps[attempt.index].attempts,
        )
        self._checkpoints.add_blobs(outcome.blobs)
        self._memory = self._memory.with_changes(changes)
        self._set(attempt.index, StepStatus.COMPLETED, result=result, error=None)
        self.progress = msgspec.structs.replace(self.progress, context=self._memory.values)

    def _retry_or_fail(self, index: int, error: Exception) -> None:
        step, number = self.progress.steps[index].step, self._tries[index]
        is_final = self._is_stopping or getattr(error, "code", None) in ("refused", "question_expired")
        delay = None if is_final else (step.retry or self._options.retry).delay_after(number)
        if delay is None:
            self._fail(index, error)
            return
        log.info("step %r failed and is tried again in %.3g s: %s", step.id, delay, error_text(error))
        tell(self._hooks.on_step_error, step, error, True)
        self._retries[index] = time.monotonic() + delay

    def _fail(self, index: int, error: Exception) -> None:
        message = error_text(error) or type(error).__name__
        self.failures.append((index, error))
        if self._is_stopping:
            self._drop_retries()
        before = self.progress
        self.progress = before.with_failure(
            LastError(step_index=index, message=message, timestamp=from_us(self._engine.clock()))
        )
        tell(self._hooks.on_step_error, self.progress.steps[index].step, error, False)
        for other, entry in enumerate(before.steps):
            if other != index and entry.status is not self.progress.steps[other].status:
                self._tell_end(other)
        self._checkpoints.failed(self.progress, index, is_end=self._is_end)

    @property
    def _is_end(self) -> bool:
        """Whether nothing is going on and nothing will be started."""
        if self._running or self._retries:
            return False
        return self._is_stopping or not self._ready
