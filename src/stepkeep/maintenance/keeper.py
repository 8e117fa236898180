"""The keeper: a daemon thread of an open store that prunes and cleans, away from the saves.

It begins with the second save. It looks after the sessions that were saved into or finished through this store, soon
when one has outgrown its rules and otherwise once per interval; now and then it cleans the whole store. A pass is
bounded, stops between two batches when it is asked to, and never raises: what fails is logged, recorded as an event
of the session, and tried again later. Closing ends the thread and makes one short pass more, so that processes
which only save once keep the limits too; the first process that ends a session on a day also cleans the store.

Where the backend can, it also compresses history that is old enough: now and then, when a session ends, and at the
end.

With history switched off, checkpoints saved from then on are marked by an annotation, and of those that are marked
only the newest stays. What was saved before is not touched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from stepkeep.engine import Engine, Saved
from stepkeep.errors import PRUNE_FAILED, NotFound, StepkeepError
from stepkeep.logs import Log
from stepkeep.maintenance.budget import Budget, Limits
from stepkeep.maintenance.clean import (
    CleanEntry,
    CleanPlan,
    Policies,
    apply_clean,
    plan_due,
)
from stepkeep.maintenance.prune import MARK, PrunePlan, PruneReport, apply_prune, marked, plan_prune
from stepkeep.maintenance.space import compress_history, hold_ballast, most_bytes
from stepkeep.model import SessionInfo, Status
from stepkeep.policy.cleanup import decide
from stepkeep.policy.retention import Retention
from stepkeep.processes import Worker, tell_of_forks
from stepkeep.storage.port import SessionQuery
from stepkeep.text import size

log = Log("stepkeep")

INTERVAL_SECONDS: Final = 300.0
CLEAN_SECONDS: Final = 3600.0
"""How often the whole store is looked through for sessions that may go, and for history to compress."""

MIN_SLACK: Final = 10
BATCH: Final = 25
SHARE: Final = 0.04
"""How much of the time the thread works during a long prune, unless sessions outgrow their rules meanwhile. It needs
the store's write lock and the interpreter's, so about that many saves meet it; the others are as fast as ever."""

MAX_WAIT_SECONDS: Final = 0.5
PASS_SECONDS: Final = 30.0
LAST_PASS_SECONDS: Final = 0.5
PAUSE_SECONDS: Final = 0.25
"""The least time between two passes: a burst of saves is pruned in a few large steps, not in many small ones."""

SESSIONS_PER_CLEANING: Final = 100
RECLAIM_AT_BYTES: Final = 4 * 1024 * 1024
RECLAIM_BYTES: Final = 32 * 1024 * 1024
MAX_KNOWN: Final = 10_000
DAY_US: Final = 86_400_000_000
BUDGET_REACHED: Final = "budget_reached"
"""The event that tells from when on a session gives up history for a budget: that of the key it names."""


class Keeper:
    """Looks after one open store. `saved` and `finished` may be called from any thread and cost next to nothing.

    `retention_of` gives the rules of a session, `policies` its cleanup policies.
    `keeps_history` is False where some sessions have none. Decisions by age go by
    the engine's clock; pauses and time limits by the machine's own.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        retention_of: Callable[[SessionInfo], Retention],
        policies: Policies,
        limits: Limits | None = None,
        keeps_history: bool = True,
        compress_after_hours: int | None = None,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._engine = engine
        self._retention_of = retention_of
        self._policies = policies
        self._keeps_history = keeps_history
        self._compress_after_hours = compress_after_hours
        self._interval_seconds = interval_seconds
        self.budget = Budget(engine, limits or Limits(), prune=self._prune_for_room, on_pressure=self.wake)
        self._clean_at = time.monotonic() + min(interval_seconds, CLEAN_SECONDS)
        self._compress_at = self._clean_at
        self._thorough_at = 0.0
        self._freed_bytes = 0
        self._deadline = 0.0
        self._is_closed = False
        self._start_afresh()
        tell_of_forks(self)

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()  # guards those below
        self._is_behind = False
        self._jobs: dict[str, _Job] = {}
        self._allowances: dict[str, float] = {}
        self._failures: dict[str, str] = {}
        self._ended: set[str] = set()
        self._worker = Worker("stepkeep-keeper", self._work)

    @property
    def is_running(self) -> bool:
        """Whether the thread was started and has not ended."""
        return self._worker.is_alive

    # --- what happens in the store

    def saved(self, save: Saved) -> None:
        """Note a save; the thread wakes up early when the session has outgrown its rules."""
        header = save.header
        with self._lock:
            job = self._job(header.session)
            job.saves += 1
            if not self._keeps_history:
                job.ids.append(header.id)
            is_due = job.saves >= self._allowances.get(header.session, MIN_SLACK)
            self._is_behind |= is_due
            if header.status.is_finished:
                self._ended.add(header.session)
                self._compress_at = 0.0
        if is_due or header.status.is_finished:
            self.wake()

    def finished(self, session: SessionInfo) -> None:
        """Note that a session ended: it is looked at soon."""
        with self._lock:
            self._job(session.uid)
            self._ended.add(session.uid)
            self._compress_at = 0.0
        self.wake()

    def _job(self, uid: str) -> _Job:
        if not self._is_closed and not self._worker.is_alive:
            self._thorough_at = time.monotonic() + self._interval_seconds
            self._worker.start(self._interval_seconds)
        return self._jobs.get(uid) or self._jobs.setdefault(uid, _Job())

    def wake(self) -> None:
        self._worker.wake()

    # --- passes

    def make_pass(self, seconds: float = PASS_SECONDS, *, is_thorough: bool = True) -> bool:
        """Do what is due, for about that long; whether something is left. Never raises.

        A pass that is not thorough leaves sessions that have not outgrown their rules by much for later.
        """
        self._deadline = time.monotonic() + seconds
        later: list[tuple[str, _Job]] = []
        while not self._should_stop() and (due := self._next()) is not None:
            try:
                if not self._look_after(*due, is_thorough):
                    later.append(due)
            except _Stopped:
                self._put_back(*due)
        is_left = bool(self._jobs)
        for uid, job in later:
            job.saves = 0  # after some more saves, or the interval
            self._put_back(uid, job)
        self._try("holding some space", lambda: hold_ballast(self._engine.backend.url))
        self._try("squeezing the store", self._squeeze)
        self._try("compressing old history", self._compress)
        return is_left

    def _should_stop(self) -> bool:
        return self._worker.is_stopping or time.monotonic() > self._deadline

    def _work(self) -> float:
        """A pass on the thread; how many seconds later the next one is due."""
        is_thorough = time.monotonic() >= self._thorough_at
        is_left = self.make_pass(is_thorough=is_thorough)
        if is_thorough and not is_left:
            self.clean_now_and_then()
            self._thorough_at = time.monotonic() + self._interval_seconds
        self._worker.pause(PAUSE_SECONDS)
        return 0.0 if is_left else max(0.0, self._thorough_at - time.monotonic())

    def _put_back(self, uid: str, job: _Job) -> None:
        with self._lock:
            newer = self._jobs.pop(uid, None)
            if newer is not None:
                job.saves += newer.saves
                job.ids += newer.ids
            self._jobs[uid] = job

    def _next(self) -> tuple[str, _Job] | None:
        with self._lock:
            self._is_behind = False
            uid = next(iter(self._jobs), None)
            return None if uid is None else (uid, self._jobs.pop(uid))

    def _look_after(self, uid: str, job: _Job, is_thorough: bool) -> bool:
        """Clean or prune one session; False when it is to be looked at again."""
        try:
            session = self._engine.backend.session(uid)
            if not self._clean(session) and not self._prune(session, job, is_thorough):
                return False
        except NotFound:
            pass  # it was deleted
        except _Stopped:
            raise
        except Exception as exc:  # a save must not feel it, and the other sessions neither
            self._note_failure(uid, exc)
            return False
        self._failures.pop(uid, None)
        return True

    def _note_failure(self, uid: str, exc: Exception) -> None:
        """Log and record it. What apply_prune raises is recorded already; the same again is not news."""
        is_news, self._failures[uid] = self._failures.get(uid) != str(exc), str(exc)
        if not is_news or getattr(exc, "code", None) == PRUNE_FAILED:
            return
        log.error("Pruning session %s failed: %s (%s)", uid, exc, PRUNE_FAILED, exc_info=_unexpected(exc))
        with suppress(StepkeepError):
            self._engine.backend.record_event(
                uid, "prune_failed", {"error": str(exc), "code": PRUNE_FAILED}, time_us=self._engine.clock()
            )

    def _try(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as exc:  # a thread that dies would leave the store to grow
            log.error("%s failed: %s", what.capitalize(), exc, exc_info=_unexpected(exc))

    # --- pruning

    def _prune(self, session: SessionInfo, job: _Job, is_thorough: bool) -> bool:
        """Prune one session; False when that can wait."""
        retention, count = self._retention_of(session), session.stored_count
        if retention.is_off:
            self._prune_unkept(session, job, retention)
            self._allow(session.uid, MIN_SLACK)
            return True
        keep_last = retention.count_limit
        can_wait = not is_thorough and not session.status.is_finished
        if can_wait and keep_last is not None and count < keep_last + _slack(keep_last):
            self._allow(session.uid, keep_last + _slack(keep_last) - count)
            return False
        if not retention.keeps_all_of(count, most_bytes(self._engine, session.uid, retention.max_bytes)):
            plan = self._plan(session, retention)
            if retention.max_bytes is not None and plan.is_over_budget:
                about = f"session {session.key!r} has reached its budget of {size(retention.max_bytes)}"
                self._tell_once(session, about, "retention.max_bytes")
            count = self._apply(plan, self._should_stop).kept
        if keep_last is None:
            self._allow(session.uid, float("inf"))
        else:
            # What rules keep beyond the last ones does not count against the session.
            self._allow(session.uid, keep_last + _slack(keep_last) - min(count, keep_last))
        return True

    def _plan(self, session: SessionInfo, retention: Retention) -> PrunePlan:
        return plan_prune(self._engine, session, retention, now_us=self._engine.clock())

    def _apply(self, plan: PrunePlan, should_stop: Callable[[], bool]) -> PruneReport:
        resumed, left, worker = time.monotonic(), len(plan.going), self._worker

        def rest(done: int) -> None:
            nonlocal resumed, left
            left -= done
            if left <= 0:
                return
            if worker.is_current and not self._is_behind:
                worked = time.monotonic() - resumed
                worker.pause(min(worked * (1 / SHARE - 1), MAX_WAIT_SECONDS))
            if should_stop():
                raise _Stopped
            resumed = time.monotonic()

        batch = self.budget.batch(plan.reclaimable_bytes, len(plan.going), BATCH)
        report = apply_prune(self._engine, plan, batch=batch, progress=rest)
        self._freed_bytes += report.stored_bytes
        return report

    def _allow(self, uid: str, saves: float) -> None:
        """Let the session have that many saves before it is looked at again."""
        with self._lock:
            if len(self._allowances) >= MAX_KNOWN:
                self._allowances.clear()
            self._allowances[uid] = saves

    def _prune_unkept(self, session: SessionInfo, job: _Job, retention: Retention) -> None:
        """Of the checkpoints saved with history off keep only the newest, and mark those that stay."""
        engine, uid = self._engine, session.uid
        plan = plan_prune(engine, session, retention, now_us=engine.clock(), saved_with_history_off=job.ids)
        staying = {each.checkpoint for each in plan.decisions if each.stays}
        for id in (staying & set(job.ids)) - marked(engine, uid):
            engine.annotate(uid, id, *MARK, b"off")
        if plan.going:
            self._apply(plan, self._should_stop)

    def _tell_once(self, session: SessionInfo, about: str, key: str) -> None:
        """Say that a budget is full, the first time that a session gives up history for it."""
        backend = self._engine.backend
        told = {each.data.get("key") for each in backend.events(session.uid) if each.type == BUDGET_REACHED}
        if key not in told:
            log.warning("%s (%s): the oldest checkpoints of %r go from now on", about, key, session.key)
            backend.record_event(session.uid, BUDGET_REACHED, {"key": key}, time_us=self._engine.clock())

    def _prune_for_room(self, session: SessionInfo, retention: Retention) -> int:
        try:
            plan = self._plan(session, retention)
            if plan.going and (reached := self.budget.reached()) is not None:
                self._tell_once(session, *reached)
            return self._apply(plan, lambda: self._worker.is_stopping).stored_bytes
        except (NotFound, _Stopped):
            return 0
        except Exception as exc:
            self._note_failure(session.uid, exc)
            return 0

    def _squeeze(self) -> None:
        if self.budget.is_pressed:
            self.budget.squeeze(should_stop=self._should_stop)
        elif self._freed_bytes >= RECLAIM_AT_BYTES and not self._should_stop():
            # Less than that is soon used again, and giving it back would only cost writes.
            self._freed_bytes = 0
            self.budget.reclaim(RECLAIM_BYTES)

    # --- compressing

    def _compress(self) -> None:
        """Compress what is old enough, when it is time to look for it. What is left over comes with the next pass."""
        hours, now_us, should_stop = self._compress_after_hours, self._engine.clock(), self._should_stop
        if hours is None or should_stop() or time.monotonic() < self._compress_at:
            return
        self._compress_at = time.monotonic() + CLEAN_SECONDS
        compress_history(self._engine, after_hours=hours, now_us=now_us, should_stop=should_stop)
        if should_stop():
            self._compress_at = 0.0

    # --- cleaning

    def _clean(self, session: SessionInfo) -> bool:
        """Remove a finished session whose time has come."""
        if not session.status.is_finished:
            return False
        now_us = self._engine.clock()
        decision = decide(session, self._policies(session), now_us)
        if not decision.goes:
            return False
        plan = CleanPlan(policies=self._policies, entries=(CleanEntry(session, decision),))
        report = apply_clean(self._engine, plan, now_us=now_us)
        self._freed_bytes += report.stored_bytes
        return bool(report.cleaned)

    def clean_now_and_then(self) -> None:
        """Look through the whole store, once per `CLEAN_SECONDS`."""
        if time.monotonic() >= self._clean_at:
            self._clean_at = time.monotonic() + CLEAN_SECONDS
            self._try("cleaning the store", self._clean_all)

    def _clean_all(self) -> None:
        now_us = self._engine.clock()
        plan = plan_due(self._engine, self._policies, now_us=now_us)
        if plan.going and not self._worker.is_stopping:
            report = apply_clean(self._engine, plan, now_us=now_us, limit=SESSIONS_PER_CLEANING)
            self._freed_bytes += report.stored_bytes

    # --- lifetime

    def close(self) -> None:
        """End the thread after its current batch, then do what is due, for a moment. Repeating it is harmless."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._compress_at = 0.0
        was_used = self._worker.is_alive
        self._worker.stop()
        self._worker = Worker("stepkeep-keeper", self._work)
        if self._jobs or was_used:
            self.make_pass(LAST_PASS_SECONDS)
        if self._ended:
            self._try("cleaning the store", self._clean_once_a_day)

    def _clean_once_a_day(self) -> None:
        """Clean for processes that live too short to do so now and then: the first that ends a session on a day."""
        now_us = self._engine.clock()
        finished = tuple(status for status in Status if status.is_finished)
        query = SessionQuery(statuses=finished, limit=len(self._ended) + 1)
        others = [each for each in self._engine.backend.sessions(query) if each.uid not in self._ended]
        if all((each.finished_us or 0) // DAY_US != now_us // DAY_US for each in others):
            self._clean_all()
            self._deadline = time.monotonic() + LAST_PASS_SECONDS
            self.budget.squeeze(should_stop=self._should_stop)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, is_child: bool) -> None:
        self._lock.release()
        if is_child:
            self._start_afresh()  # the thread, and what it had to do, stay with the parent


class _Stopped(Exception):
    """A pass was asked to stop between two batches."""


class _Job(msgspec.Struct):
    """What is to be done for one session. `ids` are its checkpoints that were saved with history off."""

    saves: int = 0
    ids: list[str] = []


def _slack(keep_last: int) -> int:
    """How many checkpoints more than that a session may have before the thread is woken for it."""
    return max(MIN_SLACK, keep_last // 5)


def _unexpected(exc: Exception) -> Exception | None:
    """The exception if its trace tells more than its message."""
    return None if isinstance(exc, StepkeepError) else exc
