"""A worker: takes workflows from a queue and runs them, until it is told to stop."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from queue import Empty, SimpleQueue
from typing import Any, Final

import msgspec

from stepkeep.config import Settings
from stepkeep.engine import Engine
from stepkeep.errors import BackendUnavailable, StepkeepError
from stepkeep.model import Status, from_us
from stepkeep.runs import queue as queues
from stepkeep.runs.plan import PlanStep, StepResult, StepStatus
from stepkeep.runs.queue import Ticket, next_attempt, ticket_of
from stepkeep.runs.run_options import Hooks
from stepkeep.runs.signals import Cancellation, SignalHandler, Stop
from stepkeep.runs.workflow.definition import Workflow
from stepkeep.runs.workflows import WorkflowRun
from stepkeep.storage.port import Claimed

log = logging.getLogger("stepkeep")

SHORTEST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 2.0
"""How long an idle worker waits between two looks; longer each time."""

REFUSED_SECONDS: Final = 60.0
"""How long a worker leaves a session alone that it cannot run."""


class WorkerEventKind(StrEnum):
    """WorkerEventKind a worker tells of."""

    READY = "ready"
    STARTED = "started"
    STEP = "step"
    ENDED = "ended"
    REFUSED = "refused"
    """The session cannot be run here; another worker may. That does not count as an attempt."""
    GAVE_UP = "gave_up"
    """The session was tried often enough, and left the queue."""
    LOST = "lost"
    """Another took over, or the store failed: the run stopped, and is gone on with."""
    STOPPED = "stopped"


class WorkerEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to a worker. `steps` of the workflow, of which `done` in earlier runs."""

    event: WorkerEventKind
    time: datetime
    queue: str
    session: str | None = None
    workflow: str | None = None
    attempt: int | None = None
    steps: int | None = None
    done: int | None = None
    step: str | None = None
    status: str | None = None
    error: str | None = None
    counts: dict[str, int] | None = None
    signal: int | None = None


class Worked(msgspec.Struct, frozen=True, kw_only=True):
    """WorkerEventKind a worker did: runs by how they ended, and the signal that stopped it."""

    queue: str
    completed: int = 0
    failed: int = 0
    paused: int = 0
    refused: int = 0
    gave_up: int = 0
    lost: int = 0
    signal: int | None = None


class _Ended(msgspec.Struct, frozen=True):
    """A run is over. `kind` is the field of `Worked` that counts it; the session rests for `rest_seconds` here."""

    uid: str
    kind: str | None
    rest_seconds: float = 0.0


class _TriedEnough(Exception):
    """The attempts of a session are used up."""

    def __init__(self, ticket: Ticket) -> None:
        super().__init__()
        self.ticket = ticket


class QueueWorker:
    """Runs what waits in one queue. `resume` goes on with one session, as `Workflows.resume` does."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        resume: Callable[..., WorkflowRun],
        *,
        queue: str,
        parallel: int,
        is_once: bool,
        idle_exit_seconds: float | None,
        tell: Callable[[WorkerEvent], object],
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._resume = resume
        self._queue = queue
        self._parallel = parallel
        self._is_once = is_once
        self._idle_exit_seconds = idle_exit_seconds
        self._listener = tell
        self._telling = threading.Lock()
        self._label = f"worker of queue {queue}"
        self._cancel = Cancellation()
        self._inbox: SimpleQueue[Stop | _Ended] = SimpleQueue()
        self._running = 0
        self._counts: Counter[str] = Counter()
        self._passed: dict[str, float] = {}
        self._signal: int | None = None
        self._idle_since = time.monotonic()

    # --- the loop, on the main thread

    def run(self) -> Worked:
        self.tell(WorkerEventKind.READY)
        with (
            SignalHandler(self._inbox.put),
            ThreadPoolExecutor(self._parallel, thread_name_prefix="stepkeep-worker") as pool,
        ):
            try:
                self._loop(pool)
            except BaseException:
                self._cancel.cancel()  # what runs is paused before the error goes on
                raise
        worked = Worked(queue=self._queue, signal=self._signal, **self._counts)
        counts = {kind: count for kind, count in sorted(self._counts.items()) if count}
        self.tell(WorkerEventKind.STOPPED, counts=counts, signal=self._signal)
        return worked

    def _loop(self, pool: ThreadPoolExecutor) -> None:
        pause = SHORTEST_PAUSE_SECONDS
        while True:
            is_open = not self._cancel.is_cancelled and self._running < self._parallel
            claimed = self._claimed() if is_open else None
            if claimed is not None:
                self._running += 1
                pool.submit(self._work, claimed)
                pause = SHORTEST_PAUSE_SECONDS
            elif not self._running and self._is_over():
                return
            seconds = None if not is_open else 0.0 if claimed is not None else pause * random.uniform(0.7, 1)
            if self._heard(seconds):
                pause = SHORTEST_PAUSE_SECONDS
            elif claimed is None:
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _is_over(self) -> bool:
        """Whether a worker with nothing to do ends."""
        if self._is_once or self._cancel.is_cancelled:
            return True
        limit = self._idle_exit_seconds
        return limit is not None and time.monotonic() - self._idle_since >= limit

    def _claimed(self) -> Claimed | None:
        now = time.monotonic()
        self._passed = {uid: until for uid, until in self._passed.items() if until > now}
        request = queues.ClaimRequest(
            queue=self._queue,
            retry_seconds=self._settings["worker.retry_seconds"],
            label=self._label,
            passed=self._passed,
        )
        try:
            return queues.claim(self._engine, request)
        except BackendUnavailable as exc:
            if not exc.retryable or self._is_once:
                raise
            log.warning("the store cannot be asked for work, next try soon: %s", exc)
            self._idle_since = time.monotonic()  # nobody knows whether there was nothing to do
            return None

    def _heard(self, seconds: float | None) -> bool:
        """Wait for something to happen, at most so long (None: for ever); whether a run ended."""
        is_over = False
        with suppress(Empty):
            while True:
                event = self._inbox.get(timeout=seconds)
                seconds = 0.0  # and take what else is there
                if isinstance(event, Stop):
                    self._signal = event.signal
                    self._cancel.cancel()
                    continue
                is_over = True
                self._running -= 1
                self._idle_since = time.monotonic()
                if event.kind is not None:
                    self._counts[event.kind] += 1
                if event.rest_seconds:
                    self._passed[event.uid] = time.monotonic() + event.rest_seconds
        return is_over

    # --- one session, on a thread of the pool

    def _work(self, claimed: Claimed) -> None:
        uid = claimed.session.uid
        ended = _Ended(uid, WorkerEventKind.LOST, REFUSED_SECONDS)
        try:
            ended = self._run(claimed)
        except Exception as exc:
            log.exception("the run of session %s ended with an unforeseen error", claimed.session.key)
            self.tell(WorkerEventKind.LOST, session=claimed.session.key, error=str(exc))
        finally:
            if ended.kind not in (Status.COMPLETED, Status.FAILED, Status.PAUSED):
                with suppress(StepkeepError):  # it runs out by itself
                    self._engine.backend.release_lease(uid, claimed.lease.token)
            self._inbox.put(ended)

    def _run(self, claimed: Claimed) -> _Ended:
        session, engine = claimed.session, self._engine
        ticket = ticket_of(session)
        if ticket is None or queues.is_held_back(engine, session):
            return _Ended(session.uid, None, REFUSED_SECONDS)
        watch = _Watch(self, self._engine, self._settings, claimed, ticket)
        try:
            run = self._resume(
                session.key,
                parallel=ticket.parallel,
                watcher=watch,
                lease=claimed.lease,
                cancel=self._cancel,
            )
        except _TriedEnough as exc:
            why = queues.give_up(engine, claimed, exc.ticket)
            self.tell(WorkerEventKind.GAVE_UP, session=session.key, error=why)
            return _Ended(session.uid, WorkerEventKind.GAVE_UP)
        except StepkeepError as exc:
            is_refused = not watch.has_begun and not isinstance(exc, BackendUnavailable)
            kind = (
                WorkerEventKind.REFUSED if is_refused and exc.code != "lease_lost" else WorkerEventKind.LOST
            )
            self.tell(kind, session=session.key, error=exc.message)
            return _Ended(session.uid, kind, REFUSED_SECONDS if kind is WorkerEventKind.REFUSED else 1.0)
        self.tell(
            WorkerEventKind.ENDED,
            session=session.key,
            workflow=run.workflow,
            status=str(run.status),
            error=run.error,
        )
        return _Ended(session.uid, str(run.status))

    def tell(self, what: WorkerEventKind, **fields: Any) -> None:
        time = from_us(self._engine.clock())
        with self._telling:
            self._listener(WorkerEvent(event=what, time=time, queue=self._queue, **fields))

    @property
    def label(self) -> str:
        return self._label


class _Watch:
    """Counts the attempt before the run begins, and tells of its steps."""

    def __init__(
        self, worker: QueueWorker, engine: Engine, settings: Settings, claimed: Claimed, ticket: Ticket
    ) -> None:
        self._worker = worker
        self._engine = engine
        self._settings = settings
        self._claimed = claimed
        self._ticket = ticket
        self.has_begun = False

    def begin(self, session: str, workflow: Workflow, done: frozenset[str]) -> Hooks:
        ticket = next_attempt(self._ticket, self._claimed.session.status, steps=len(done))
        if ticket.is_enough(self._settings["worker.max_attempts"]):
            raise _TriedEnough(msgspec.structs.replace(ticket, attempts=self._ticket.attempts))
        queues.record_attempt(self._engine, self._claimed, ticket, label=self._worker.label)
        self.has_begun = True
        self._worker.tell(
            WorkerEventKind.STARTED,
            session=session,
            workflow=workflow.name,
            attempt=ticket.attempts,
            steps=len(workflow.steps),
            done=len(done),
        )
        return Hooks(on_step_complete=self._completed, on_step_error=self._failed, on_step_skip=self._skipped)

    def _step(self, step: PlanStep, status: str, error: str | None = None) -> None:
        self._worker.tell(
            WorkerEventKind.STEP, session=self._claimed.session.key, step=step.id, status=status, error=error
        )

    def _completed(self, step: PlanStep, result: StepResult) -> None:  # noqa: ARG002
        self._step(step, StepStatus.COMPLETED)

    def _failed(self, step: PlanStep, error: Exception, is_retried: bool) -> None:
        self._step(step, "retried" if is_retried else StepStatus.FAILED, str(error))

    def _skipped(self, step: PlanStep, reason: str) -> None:
        self._step(step, StepStatus.SKIPPED, reason)
