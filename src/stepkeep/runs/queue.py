"""Queues: which sessions wait for a worker, how often they were tried, taking them from the queue, and the worker.

A session that waits says so in its metadata, as `queue` and `queued`. It leaves the queue when it is completed or
cancelled, or when too many attempts came no further. Of any number of workers that ask at once, each gets another
session.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepkeep import typed
from stepkeep.config import Settings
from stepkeep.engine import Engine
from stepkeep.errors import BackendUnavailable, Conflict, InvalidInput, NotFound, StepkeepError
from stepkeep.logs import Log
from stepkeep.model import SessionInfo, Status, from_us, to_us
from stepkeep.processes import is_dead, this_process
from stepkeep.runs.lease import LEASE_SECONDS, acquire, is_abandoned
from stepkeep.runs.plan import PlanStep, Question, StepStatus
from stepkeep.runs.run_options import Hooks
from stepkeep.runs.signals import LONGEST_WAIT_SECONDS, Cancellation, SignalHandler, Stop
from stepkeep.storage.port import Claimed, ClaimQuery, ClaimsSessions, HeaderQuery, Lease, SessionQuery

if TYPE_CHECKING:
    from stepkeep.runs.workflow.definition import Workflow
    from stepkeep.runs.workflows import WorkflowRun

log = Log("stepkeep")

DEFAULT_QUEUE: Final = "default"
"""The queue of those who name none."""

FOREVER_US: Final = 1 << 53

MAX_DEATHS: Final = 20
"""How many processes may end while they run a session at the same place: more than that is not an accident."""

WAITING: Final = (Status.IN_PROGRESS, Status.PAUSED, Status.FAILED)
"""The statuses of sessions that can be resumed."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_QUEUE: Final = "queue"
_QUEUED: Final = "queued"
_GIVEN_UP: Final = "given_up"


class QueueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A session's place in a queue. `parallel` is how many of its steps may run at a time.

    `attempts` counts its runs. `failures` and `deaths` are those that failed, or whose process ended, since it last
    came further; `steps` is how many steps were done there. Until `waits_until_us` it waits for a person.
    """

    queue: str
    parallel: int = 1
    attempts: int = 0
    failures: int = 0
    deaths: int = 0
    steps: int = 0
    waits_until_us: int | None = None

    def is_enough(self, max_attempts: int) -> bool:
        """Whether it was tried often enough without coming further."""
        return self.failures >= max_attempts or self.deaths >= MAX_DEATHS


def check_queue(name: str) -> str:
    """`name` if it may be that of a queue."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} cannot be the name of a queue: use up to 64 of A-Z a-z 0-9 . _ -",
            code="invalid_name",
        )
    return name


def entry_of(session: SessionInfo) -> QueueEntry | None:
    """The place of a session in a queue; None when it is in none."""
    metadata = session.metadata
    try:
        return typed.convert({**metadata[_QUEUED], "queue": metadata[_QUEUE]}, QueueEntry)
    except (KeyError, TypeError, msgspec.ValidationError):
        return None


def with_entry(session: SessionInfo, entry: QueueEntry) -> dict[str, Any]:
    """The session's metadata when it has this place."""
    fields = msgspec.to_builtins(entry)
    kept = {name: value for name, value in session.metadata.items() if name != _GIVEN_UP}
    return {**kept, _QUEUE: fields.pop(_QUEUE), _QUEUED: fields}


def without_entry(session: SessionInfo, entry: QueueEntry) -> dict[str, Any]:
    """The session's metadata when it left its queue unfinished; what was tried stays on record."""
    kept = {name: value for name, value in session.metadata.items() if name not in (_QUEUE, _QUEUED)}
    return {**kept, _GIVEN_UP: msgspec.to_builtins(entry)}


def mark_of(queue: str) -> str:
    """What the stored metadata of every session in a queue contain; others may contain it too."""
    return f'"{_QUEUE}":"{queue}"'


def may_claim(session: SessionInfo, queue: str, *, now_us: int, retry_seconds: float) -> bool:
    """Whether a worker of a queue may go on with a session that nobody runs. A failed one rests first."""
    entry = entry_of(session)
    if entry is None or entry.queue != queue or session.status not in WAITING:
        return False
    if entry.waits_until_us is not None and now_us < entry.waits_until_us:
        return False
    if session.status is not Status.FAILED:
        return True
    return now_us >= (session.finished_us or 0) + round(retry_seconds * 1_000_000)


def next_attempt(entry: QueueEntry, status: Status, *, steps: int) -> QueueEntry:
    """The place of a session with that status that is run once more, now that so many steps are done.

    One that was interrupted in good order did nothing wrong, so that counts for nothing.
    """
    is_further = steps > entry.steps
    return msgspec.structs.replace(
        entry,
        attempts=entry.attempts + 1,
        failures=(0 if is_further else entry.failures) + (status is Status.FAILED),
        deaths=(0 if is_further else entry.deaths) + (status is Status.IN_PROGRESS and entry.attempts > 0),
        steps=steps,
        waits_until_us=None,
    )


def leave_to_person(engine: Engine, uid: str, questions: Iterable[Question], *, fence: int) -> None:
    """Keep workers from a session in a queue while all it can do is wait for the answers to these questions."""
    session = engine.backend.session(uid)
    entry = entry_of(session)
    moments = [FOREVER_US if each.expires_at is None else to_us(each.expires_at) for each in questions]
    until = min(moments, default=None)
    if entry is not None and entry.waits_until_us != until:
        changed = msgspec.structs.replace(entry, waits_until_us=until)
        engine.backend.update_session(uid, {"metadata": with_entry(session, changed)}, fence=fence)


def claim(
    engine: Engine, queue: str, *, retry_seconds: float, label: str = "", passed: Collection[str] = ()
) -> Claimed | None:
    """The session of a queue that waits longest and that nobody runs, with its lease; None when there is none.

    A failed one rests first, and those whose uid is in `passed` are left out. One whose runner is dead on this machine
    is taken at once, and so is one that this process was done with but could not give back; another when its lease ran
    out.
    """
    now_us, backend = engine.clock(), engine.backend

    def may_take(session: SessionInfo, lease: Lease | None) -> bool:
        is_wanted = session.uid not in passed and may_claim(
            session, queue, now_us=now_us, retry_seconds=retry_seconds
        )
        return is_wanted and (
            lease is None or is_dead(lease.owner) or is_abandoned(engine, session.uid, lease)
        )

    if isinstance(backend, ClaimsSessions):
        query = ClaimQuery(statuses=WAITING, metadata_part=mark_of(queue))
        return backend.claim(query, this_process(label), seconds=LEASE_SECONDS, may_take=may_take)
    # A backend that cannot: try the lease of each, and look again once it is held.
    found = [
        session for session in backend.sessions(SessionQuery(statuses=WAITING)) if may_take(session, None)
    ]
    for session in reversed(found):
        try:
            lease = acquire(engine, session.uid, label=label)
            current = backend.session(session.uid)
        except (Conflict, NotFound):
            continue
        if may_take(current, None):
            return Claimed(session=current, lease=lease)
        backend.release_lease(session.uid, lease.token)
    return None


def is_held_back(engine: Engine, session: SessionInfo) -> bool:
    """Whether a person paused the session: a run that is interrupted saves a checkpoint that says so."""
    if session.status is not Status.PAUSED:
        return False
    newest = next(
        iter(engine.headers(HeaderQuery(session=session.uid, branch=session.branch, limit=1))), None
    )
    return newest is None or newest.status is not Status.PAUSED


def give_up(engine: Engine, claimed: Claimed, entry: QueueEntry) -> str:
    """Take a session out of its queue as failed; why it did. `entry` is its last place."""
    session, fence = claimed.session, claimed.lease.token
    if session.status is Status.FAILED:
        why = f"attempt limit reached ({entry.failures}): {session.error or 'it failed each time'}"
    else:
        why = f"attempt limit reached ({entry.deaths}): each time the process that ran it ended"
    metadata = without_entry(session, entry)
    engine.backend.update_session(session.uid, {"metadata": metadata}, fence=fence)
    engine.backend.record_event(
        session.uid, "attempts_used_up", {"attempts": entry.attempts}, time_us=engine.clock()
    )
    engine.finish(session.uid, Status.FAILED, error=why, fence=fence)
    return why


# --- the worker ------------------------------------------------------------------------------------------------

SHORTEST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 2.0
"""How long an idle worker waits between two looks; longer each time."""

REFUSED_SECONDS: Final = 60.0
"""How long a worker leaves a session alone that it cannot run."""


class WorkerEventKind(StrEnum):
    """What a worker tells of."""

    READY = "ready"
    STARTED = "started"
    STEP = "step"
    ENDED = "ended"
    REFUSED = "refused"
    """The session cannot be run here; another worker may. That does not count as an attempt."""
    GAVE_UP = "gave_up"
    """The session was tried often enough, and left the queue."""
    LOST = "lost"
    """Another took over, or the store failed: the run stopped, and will be resumed."""
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
    """What a worker did: runs by how they ended, and the signal that stopped it."""

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

    def __init__(self, entry: QueueEntry) -> None:
        super().__init__()
        self.entry = entry


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
        self.engine = engine
        self.settings = settings
        self._resume = resume
        self._queue = queue
        self._parallel = parallel
        self._is_once = is_once
        self._idle_exit_seconds = idle_exit_seconds
        self._listener = tell
        self._telling = threading.Lock()
        self.label = f"worker of queue {queue}"
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
            seconds = 0.0 if claimed is not None else pause * random.uniform(0.7, 1)
            if self._heard(seconds if is_open else LONGEST_WAIT_SECONDS):
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
        try:
            return claim(
                self.engine,
                self._queue,
                retry_seconds=self.settings["worker.retry_seconds"],
                label=self.label,
                passed=self._passed,
            )
        except BackendUnavailable as exc:
            if not exc.retryable or self._is_once:
                raise
            log.warning("the store cannot be asked for work, next try soon: %s", exc)
            self._idle_since = time.monotonic()  # nobody knows whether there was nothing to do
            return None

    def _heard(self, seconds: float) -> bool:
        """Wait for something to happen, at most so long; whether a run ended."""
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
            log.exception("the run of session %s ended with an unexpected error", claimed.session.key)
            self.tell(WorkerEventKind.LOST, session=claimed.session.key, error=str(exc))
        finally:
            if ended.kind not in (Status.COMPLETED, Status.FAILED, Status.PAUSED):
                with suppress(StepkeepError):  # it runs out by itself
                    self.engine.backend.release_lease(uid, claimed.lease.token)
            self._inbox.put(ended)

    def _run(self, claimed: Claimed) -> _Ended:
        session, engine = claimed.session, self.engine
        entry = entry_of(session)
        if entry is None or is_held_back(engine, session):
            return _Ended(session.uid, None, REFUSED_SECONDS)
        watch = _Watch(self, claimed, entry)
        try:
            run = self._resume(
                session.key,
                from_store=True,  # whoever starts a worker runs what is in its queue
                parallel=entry.parallel,
                watcher=watch,
                lease=claimed.lease,
                cancel=self._cancel,
            )
        except _TriedEnough as exc:
            why = give_up(engine, claimed, exc.entry)
            self.tell(WorkerEventKind.GAVE_UP, session=session.key, error=why)
            return _Ended(session.uid, WorkerEventKind.GAVE_UP)
        except StepkeepError as exc:
            is_lost = watch.has_begun or isinstance(exc, BackendUnavailable) or exc.code == "lease_lost"
            kind = WorkerEventKind.LOST if is_lost else WorkerEventKind.REFUSED
            self.tell(kind, session=session.key, error=exc.message)
            return _Ended(session.uid, kind, 1.0 if is_lost else REFUSED_SECONDS)
        self.tell(
            WorkerEventKind.ENDED,
            session=session.key,
            workflow=run.workflow,
            status=str(run.status),
            error=run.error,
        )
        return _Ended(session.uid, str(run.status))

    def tell(self, what: WorkerEventKind, **fields: Any) -> None:
        time = from_us(self.engine.clock())
        with self._telling:
            self._listener(WorkerEvent(event=what, time=time, queue=self._queue, **fields))


class _Watch(msgspec.Struct):
    """Counts the attempt before the run begins, and tells of its steps."""

    worker: QueueWorker
    claimed: Claimed
    entry: QueueEntry
    has_begun: bool = False

    def begin(self, session: str, workflow: Workflow, done: frozenset[str]) -> Hooks:
        worker = self.worker
        entry = next_attempt(self.entry, self.claimed.session.status, steps=len(done))
        if entry.is_enough(worker.settings["worker.max_attempts"]):
            raise _TriedEnough(msgspec.structs.replace(entry, attempts=self.entry.attempts))
        self._record(entry)
        self.has_begun = True
        worker.tell(
            WorkerEventKind.STARTED,
            session=session,
            workflow=workflow.name,
            attempt=entry.attempts,
            steps=len(workflow.steps),
            done=len(done),
        )

        def tell(step: PlanStep, status: str, error: str | None = None) -> None:
            worker.tell(WorkerEventKind.STEP, session=session, step=step.id, status=status, error=error)

        return Hooks(
            on_step_complete=lambda step, _: tell(step, StepStatus.COMPLETED),
            on_step_error=lambda step, error, is_retried: tell(
                step, "retried" if is_retried else StepStatus.FAILED, str(error)
            ),
            on_step_skip=lambda step, reason: tell(step, StepStatus.SKIPPED, reason),
            on_question=lambda step, question: tell(step, "asks", question.text),
        )

    def _record(self, entry: QueueEntry) -> None:
        """Store that a run begins, before it does: one that kills its worker counts too."""
        session, lease, engine = self.claimed.session, self.claimed.lease, self.worker.engine
        metadata = with_entry(session, entry)
        engine.backend.update_session(session.uid, {"metadata": metadata}, fence=lease.token)
        owner = lease.owner
        data = {"attempt": entry.attempts, "worker": self.worker.label, "host": owner.host, "pid": owner.pid}
        engine.backend.record_event(session.uid, "attempt_started", data, time_us=engine.clock())
