"""The recorder an agent loop drives: it decides when a snapshot is due, and what goes into it.

```python
with session.recorder(state=lambda: agent.state) as recorder:
    for ordinal, step in enumerate(plan, 1):
        recorder.step_started(step.id, ordinal)
        outcome = run(step)
        recorder.command(outcome)
        recorder.step_finished(step.id, "completed")
    recorder.complete()
```

A save that fails raises where it was asked for, and what was to be saved is in the next snapshot. Only the
heartbeat keeps its failures to itself: they are logged, and an event of the session.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final

import msgspec

from stepkeep.codec import readable
from stepkeep.codec.integrity import digest
from stepkeep.codec.readable import CommandOutcome, ContextDigest, ResumeHints, TodoCompliance, timestamp
from stepkeep.engine import Engine, NewBody, Save
from stepkeep.errors import InvalidInput, StepkeepError
from stepkeep.logs import Log
from stepkeep.model import Header, SessionInfo, Status, Trigger, TriggerKind, check_name, check_text
from stepkeep.processes import Worker
from stepkeep.recording import resumption, triggers
from stepkeep.recording.details import RunDetails, Step, check_seconds, check_step, checked_context
from stepkeep.recording.resumption import HasArtifact, Interruption, classified
from stepkeep.recording.triggers import Material, Recorded, TriggerPath, Wait, listed
from stepkeep.text import error_text

log = Log("stepkeep")

COMPLETED: Final = "completed"
MAX_VIOLATIONS: Final = 100
RESULTS: Final = ("PASS", "FAIL", "WARN")
"""How a check of the to-do list may end, in the words of the outcomes of commands."""


class Recorder:
    """Records the life of one run. Safe for threads; entered with `with`, it beats while work is in progress.

    `state` is called for every snapshot, on whichever thread takes it, the heartbeat's included: it should return
    a copy of what others may change meanwhile. Instead of it, `update` sets the state. Without either, the latest
    state of the session is saved again, or an empty dict when there is none.
    """

    def __init__(
        self,
        engine: Engine,
        session: SessionInfo,
        *,
        state: Callable[[], object] | None = None,
        plan_path: str | None = None,
        heartbeat_seconds: float = triggers.HEARTBEAT_SECONDS,
        coalesce_seconds: float = triggers.COALESCE_SECONDS,
        fence: int | None = None,
        has_artifact: HasArtifact = os.path.exists,
        wait: Wait | None = None,
    ) -> None:
        if state is not None and not callable(state):
            raise InvalidInput(
                f"state is a function that returns what to save, not {type(state).__name__}: "
                "give a lambda, or set the state with update",
                code="invalid_option",
            )
        check_seconds("heartbeat_seconds", heartbeat_seconds, may_be_zero=False)
        check_seconds("coalesce_seconds", coalesce_seconds, may_be_zero=True)
        if plan_path is not None:
            check_text("a plan_path", plan_path)
        self._engine = engine
        self._uid = session.uid
        self._profile = session.profile
        self._state = state
        self._body: NewBody | None = None
        self._every_seconds = heartbeat_seconds
        self._fence = fence
        self._path = TriggerPath(engine, session.uid, coalesce_seconds=coalesce_seconds, fence=fence)
        self._has_artifact = has_artifact
        self._lock = threading.RLock()
        # Held strongly: a recorder that was started goes on though nobody keeps it.
        self._heartbeat = Worker("stepkeep-heartbeat", lambda: self._beat(), wait=wait)
        self._now = RunDetails(plan_path=plan_path)
        self._steps: dict[str, Step] = {}
        self._attempts: dict[str | None, int] = {}
        self._is_taken_up = False
        self._newest: tuple[Header, Material] | None = None
        self._began_us = engine.clock()
        self._pid = os.getpid()

    # --- lifetime

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the heartbeat. What ends the block early is a forced stop: an error, Ctrl-C, an exit, a cancelled task.

        It goes on as it came; what prevents the last snapshot is noted on it.
        """
        self.stop()
        is_forked = os.getpid() != self._pid
        if error is not None and not self._now.status.is_finished and not is_forked:
            try:
                self.before_forced_stop(error)
            except Exception as exc:  # the state is foreign code
                error.add_note(f"stepkeep could not save the stop: {exc} ({_code(exc)})")

    def start(self) -> None:
        """Begin to beat, once, however often this is called. After `stop` it begins anew."""
        self._heartbeat.start(self._seconds_left())

    def stop(self) -> None:
        """Stop beating; no beat comes after this returned."""
        self._heartbeat.stop()

    # --- what is true now

    def update(self, state: object) -> None:
        """Set the state that the next snapshot saves. It may be changed afterwards.

        Raises:
            InvalidInput: it would not come back equal; `.path` names the place.
        """
        body = self._engine.encode(state, self._uid)
        with self._lock:
            self._state, self._body = None, body

    def command(self, outcome: CommandOutcome) -> None:
        """Note what a command or tool did; the next snapshot holds it. The newest ones are kept."""
        with self._lock:
            self._now.add_outcome(outcome)

    def context(self, digest: ContextDigest) -> None:
        """Note how the context window stands; every snapshot from now on says so.

        Raises:
            InvalidInput: it is not a digest, or a text of it would not come back equal; `.path` names the place.
        """
        checked = checked_context(digest, self._profile)
        self._engine.encode(msgspec.to_builtins(checked))  # refused here, not by every snapshot from now on
        with self._lock:
            self._now.context = checked

    def todo_compliance(self, result: str, violations: Iterable[str] = ()) -> None:
        """Note the result of a check of the to-do list, PASS, FAIL or WARN, and what it found; with the time."""
        if result not in RESULTS:
            raise InvalidInput(
                f"a check of the to-do list has no result {result!r}: choose one of {', '.join(RESULTS)}",
                code="invalid_outcome",
            )
        found = list(listed("violations", violations, code="invalid_outcome")[:MAX_VIOLATIONS])
        for each in found:
            if not isinstance(each, str):
                raise InvalidInput(f"a violation is a text, not {each!r}", code="invalid_outcome")
        self._engine.encode(found)  # refused here, by its caller, rather than by the next snapshot
        with self._lock:
            checked_at = timestamp(self._engine.clock())
            self._now.todo = TodoCompliance(result=result, violations=found, checked_at=checked_at)

    # --- boundaries

    def step_started(
        self,
        id: str,
        ordinal: int | None = None,
        *,
        is_idempotent: bool = True,
        artifacts: Iterable[str] = (),
    ) -> Recorded:
        """A step begins. `is_idempotent` False: it must not simply be repeated; `artifacts` is what it needs."""
        check_step(ordinal, is_idempotent)
        step = Step(
            id=check_name("a step", id),
            ordinal=ordinal,
            is_idempotent=is_idempotent,
            artifacts=tuple(check_name("an artifact", name) for name in listed("artifacts", artifacts)),
        )
        with self._lock:
            self._steps[step.id] = step
            return self._progress(step)

    def step_finished(self, id: str, status: str = "completed") -> Recorded:
        """A step reached its end: `completed`, `failed` or `skipped`.

        Raises:
            InvalidInput: the step was not started, or the status does not end a step.
        """
        ours = readable.step_status(status)
        if ours in ("pending", "running"):
            raise InvalidInput(
                f"a step does not end as {status!r}: say completed, failed or skipped", code="invalid_status"
            )
        with self._lock:
            started = self._steps.get(id)
            if started is None and ours != "skipped":
                raise InvalidInput(
                    f"step {id!r} was not started: call step_started first", code="unknown_step"
                )
            step = Step(id=check_name("a step", id)) if started is None else started
            recorded = self._progress(msgspec.structs.replace(step, status=ours))
            if ours == COMPLETED:
                self._attempts.clear()
                resumption.note_success(self._engine, self._uid, step.id)
            self._steps.pop(id, None)
            return recorded

    def _progress(self, step: Step) -> Recorded:
        self._now.at_step(step)
        boundary = Trigger(TriggerKind.AUTO, triggers.STEP_BOUNDARY)
        return self._trigger(boundary, Status.IN_PROGRESS, message=f"Step {step.id}: {step.status}")

    def recoverable_error(
        self, error: BaseException | str, classification: Interruption | str | None = None
    ) -> Recorded:
        """An error was classified, and the work may go on: as tool_failure, timeout, context_reset, process_crash."""
        interruption = classified(classification)
        with self._lock:
            return self._interrupt(error, interruption, triggers.RECOVERABLE_ERROR)

    def before_forced_stop(
        self, reason: BaseException | str, classification: Interruption | str | None = None
    ) -> Recorded:
        """The work is about to be stopped by what it cannot recover from: the run is failed.

        That is stored also when the snapshot cannot be taken, because `state` raises for example.
        """
        interruption = classified(classification)
        with self._lock:
            self._now.status = Status.FAILED
            try:
                return self._interrupt(reason, interruption, triggers.FORCED_STOP, Status.FAILED)
            finally:
                self._engine.finish(self._uid, Status.FAILED, error=_text(reason), fence=self._fence)

    def _interrupt(
        self,
        error: BaseException | str,
        interruption: Interruption | None,
        event: str,
        status: Status | None = None,
    ) -> Recorded:
        self._take_up()
        self._now.resuming = msgspec.structs.replace(
            self._now.resuming,
            is_interrupted=True,
            interruption=interruption,
            interrupted_us=self._engine.clock(),
            message=_text(error),
        )
        return self._trigger(Trigger(TriggerKind.ERROR, event), status, message=_text(error))

    def manual(self, message: str = "", tags: Iterable[str] = ()) -> Recorded:
        """Someone asks for a snapshot. One with tags, by which it is to be found, is never merged into another."""
        found = listed("tags", tags)
        with self._lock:
            return self._trigger(Trigger(TriggerKind.MANUAL), message=message, tags=found)

    def compaction_warning(self, message: str = "") -> Recorded:
        """The context is about to be compacted: saved at once, whatever came before."""
        with self._lock:
            return self._trigger(Trigger(TriggerKind.AUTO, triggers.COMPACTION_WARNING), message=message)

    def pause(self, message: str = "") -> Recorded:
        """The work rests: no heartbeat until a step goes on."""
        return self._end(Status.PAUSED, message)

    def complete(self, message: str = "") -> Recorded:
        """The work is done."""
        return self._end(Status.COMPLETED, message)

    def _end(self, status: Status, message: str) -> Recorded:
        with self._lock:
            recorded = self._trigger(Trigger(TriggerKind.AUTO, f"run_{status}"), status, message=message)
            self._now.status = status
            self._engine.finish(self._uid, status, fence=self._fence)
            return recorded

    # --- resuming

    def may_resume(self) -> ResumeHints:
        """Whether the work of this session may be resumed at this moment, why not, and what to do."""
        return resumption.may_resume(self._engine, self._uid, has_artifact=self._has_artifact)

    def try_resume(self) -> ResumeHints:
        """The same, and the attempt counts, unless it is refused."""
        with self._lock:
            self._attempts.clear()
            return resumption.try_resume(self._engine, self._uid, has_artifact=self._has_artifact)

    # --- the heartbeat

    def heartbeat(self) -> Recorded | None:
        """Take a snapshot if work is in progress and the last one is long enough ago. The thread calls this."""
        with self._lock:
            is_working = self._now.status is Status.IN_PROGRESS
            is_due = is_working and triggers.heartbeat_due(
                now_us=self._engine.clock(),
                last_us=self._last_us,
                status=self._stored_status(),
                every_seconds=self._every_seconds,
            )
            return self._trigger(Trigger(TriggerKind.TIMER, triggers.HEARTBEAT)) if is_due else None

    def _stored_status(self) -> Status:
        """The status of the run, whoever gave it: another handle or process may have paused or ended it."""
        return self._engine.backend.session(self._uid).status

    @property
    def _last_us(self) -> int:
        return self._began_us if self._newest is None else self._newest[0].time_us

    def _seconds_left(self) -> float:
        with self._lock:
            return triggers.seconds_to_heartbeat(
                now_us=self._engine.clock(), last_us=self._last_us, every_seconds=self._every_seconds
            )

    def _beat(self) -> float:
        """Save if it is time; how many seconds later the next heartbeat may be due."""
        try:
            self.heartbeat()
        except Exception as exc:  # the state is foreign code; nothing may end the thread
            code = _code(exc)
            log.error("a heartbeat of session %s failed: %s (%s)", self._uid, exc, code)
            data, now_us = {"code": code, "message": str(exc)[:1000]}, self._engine.clock()
            try:
                self._engine.backend.record_event(self._uid, "heartbeat_failed", data, time_us=now_us)
            except StepkeepError as worse:
                log.error("that could not be recorded either: %s", worse)
        return self._seconds_left()

    # --- snapshots

    def _trigger(
        self, trigger: Trigger, status: Status | None = None, *, message: str = "", tags: tuple[str, ...] = ()
    ) -> Recorded:
        """Take a snapshot, or merge into the last one. Without a status the run stays what it is stored as."""
        check_text("a message", message)  # here, since a merged trigger is not saved
        self._take_up()
        body, now_us = self._state_body(), self._engine.clock()
        if status is None:
            status = self._stored_status()  # after the state, which is foreign code and may take its time
        material = Material(digest(body.content), status, self._now.step_key, tags)
        if self._newest is not None:
            newest, was = self._newest
            if self._path.is_repeated(trigger.event, material, newest=newest, was=was, now_us=now_us):
                interruption = self._now.resuming.interruption if trigger.kind is TriggerKind.ERROR else None
                return self._path.note(
                    newest, trigger, time_us=now_us, message=message, interruption=interruption
                )
        step = self._now.step
        header = self._engine.save(
            Save(
                session=self._uid,
                state=body,
                details=self._now.details(self._hints(status, now_us)),
                fence=self._fence,
                step=None if step is None else step.ordinal,
                status=status,
                trigger=trigger,
                message=message,
                tags=tuple(dict.fromkeys(tags)),
            )
        )
        self._newest = header, material
        self._now.clear_outcomes()
        return Recorded(header=header)

    def _take_up(self) -> None:
        """Before a step begins, what is known of the work to resume is what the latest snapshot says."""
        if self._is_taken_up or self._now.step is not None:
            return
        loaded = self._engine.latest(self._engine.backend.session(self._uid))
        if loaded is not None:
            self._now.resuming = resumption.resume_info_at(self._engine, loaded)
        self._is_taken_up = True

    def _state_body(self) -> NewBody:
        if self._state is not None:
            return self._engine.encode(self._state(), self._uid)
        return self._latest_body() if self._body is None else self._body

    def _latest_body(self) -> NewBody:
        """The state where the session stands: who gives none does not want it to be lost."""
        loaded = self._engine.latest(self._engine.backend.session(self._uid))
        body = None if loaded is None else loaded.body()
        return self._engine.encode({}) if body is None else body

    def _hints(self, status: Status, now_us: int) -> ResumeHints | None:
        """What the one who finds a snapshot of this moment may do."""
        step = self._now.step
        if step is None or status in resumption.NOTHING_TO_RESUME:
            return None
        return resumption.resume_hints(
            self._now.resuming,
            status,
            now_us=now_us,
            attempts=0 if step.status == COMPLETED else self._attempts_at(step.id),
            has_artifact=self._has_artifact,
        )

    def _attempts_at(self, step: str) -> int:
        if step not in self._attempts:
            self._attempts = {step: len(resumption.attempts_at(self._engine, self._uid, step))}
        return self._attempts[step]


def _code(error: Exception) -> str:
    return error.code if isinstance(error, StepkeepError) else type(error).__name__


def _text(error: BaseException | str) -> str:
    return error_text(error if isinstance(error, str) else f"{type(error).__name__}: {error}")
