"""Resumable scripts: steps that finished are not called again when the script runs again.

```python
with store.run("nightly") as run:
    pages = run.step("fetch", fetch, url)
    report = run.step("summarise", summarise, pages)
```

Every finished step is one checkpoint of the session `nightly`; its state holds the outputs of all steps so far.
A finished step is never called again, an interrupted one is called once more. The script itself, the code between
the steps, runs from its beginning each time, so what it does there should be harmless to repeat.

A script that was completed is finished work: run again, it returns the stored outputs and calls nothing.
`resume=False` begins a new run in the same session.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import wraps
from types import TracebackType
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar, overload

import msgspec

from stepkeep.codec import exact
from stepkeep.engine import Engine, Loaded, Pending
from stepkeep.errors import SCHEMA_INVALID, Conflict, Corrupt, InvalidInput, StepkeepError
from stepkeep.model import DETAILS, SessionInfo, Status, Trigger, TriggerKind, check_name
from stepkeep.runs.lease import Held, RunSaver
from stepkeep.runs.ledger import (
    FinishedStep,
    Ledger,
    ScriptError,
    ScriptRecord,
    Started,
    arguments_of,
    check_same,
    details_of,
    record_from,
    timestamp,
)
from stepkeep.runs.signals import exits_on_sigterm
from stepkeep.text import error_text

log = logging.getLogger("stepkeep")

P = ParamSpec("P")
R = TypeVar("R")

STEP_BOUNDARY: Final = "step_boundary"

MAX_FAILURES: Final = 100
"""How many failures of steps are remembered, to name the step when one of them ends the run."""


class FinishedOutput(NamedTuple):
    """A step that was finished before: what it returned."""

    output: Any


class _Saving(NamedTuple):
    """A checkpoint on its way, and the steps that are safe once it is stored."""

    pending: Pending
    names: frozenset[str]


class Run:
    """One run of a script, entered with `with`. Its steps may be called from several threads.

    Leaving the block completes the session. An exception saves an error checkpoint, marks the session failed and
    goes on; a stop (Ctrl-C, SIGTERM, `sys.exit`) saves a paused one. In either case running the script again
    continues behind the last finished step.
    """

    def __init__(
        self, engine: Engine, session: Callable[[], SessionInfo], *, resume: bool = True, force: bool = False
    ) -> None:
        self._engine = engine
        self._find_session = session
        self._resume = resume
        self._force = force
        self._signals = exits_on_sigterm()
        self._lock = threading.Lock()
        self._pid = 0
        self._is_open = False
        self._has_worked = False
        self._done = Ledger()
        self._seen: dict[str, int] = {}
        self._running: set[str] = set()
        self._unsaved: set[str] = set()
        self._failures: deque[tuple[BaseException, Started]] = deque(maxlen=MAX_FAILURES)

    def __repr__(self) -> str:
        return f"<Run {self._session.key!r}>" if self._is_open else "<Run, not in its block>"

    # --- lifetime

    def __enter__(self) -> Run:
        """Take the lease of the session and load what was done.

        Raises:
            Conflict: another process runs this script (code `lease_held`, the message names it), or the session
                is no script's (code `not_a_script`).
            Corrupt: there are checkpoints, and none of them verifies.
        """
        self.open()
        self._signals.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signals.__exit__(kind, error, trace)
        self.close(error)

    def open(self) -> None:
        """Enter without watching for signals; the asyncio form has its own way."""
        if self._pid:
            raise InvalidInput("a run is entered once: make another with store.run", code="run_entered")
        found = self._find_session()
        with ExitStack() as opened:
            self._held = opened.enter_context(Held(self._engine, found.uid, label=f"script {found.key!r}"))
            # As it is now that nobody else runs it.
            self._session = self._engine.backend.session(found.uid)
            self._saver = RunSaver(self._held)
            self._begin()
            self._lease = opened.pop_all()
        self._pid = os.getpid()
        self._is_open = True

    def _begin(self) -> None:
        if self._resume:
            self._take_up(self._engine.latest(self._session))
        elif self._session.last_seq:
            self._begin_again()

    def _take_up(self, loaded: Loaded | None) -> None:
        if loaded is None:
            return
        record, outputs = _record_of(loaded, self._session), loaded.value()
        if not isinstance(outputs, dict) or outputs.keys() != record.steps.keys():
            raise Corrupt(
                f"{loaded.header.id} does not hold an output for each step: verify {self._session.key!r}",
                code=SCHEMA_INVALID,
                checkpoint=loaded.header.id,
            )
        self._done = Ledger(record=msgspec.structs.replace(record, last_error=None), outputs=outputs)
        if outputs:
            log.info("Resuming from checkpoint at step %d of %r", len(outputs), self._session.key)
            self._engine.resumed(len(outputs))

    def _begin_again(self) -> None:
        """Leave an earlier run behind for good: whoever resumes after a crash must not meet its outputs."""
        try:
            newest = self._engine.latest(self._session)
            earlier = 0 if newest is None else _record_of(newest, self._session).run
        except (Conflict, Corrupt):
            earlier = 0  # no script's, or damaged: beginning afresh is the way out
        self._done = Ledger(record=ScriptRecord(run=earlier + 1))
        self._has_worked = True
        self._save(message="Started afresh", event="run_started").result()

    def close(self, error: BaseException | None) -> None:
        """Say how the run ended, and give the lease back."""
        if not self._is_open or self._is_forked:
            return  # a child that was forked inside the block: the run is its parent's
        with self._lock:
            self._is_open = False
        with self._lease:
            self._engine.flush()
            if error is None:
                self._complete()
            elif self._has_worked or self._session.status is not Status.COMPLETED:
                self._stop(error)

    def _complete(self) -> None:
        if self._unsaved:
            self._save(message="Saved late").result()
        if self._has_worked or self._session.status is not Status.COMPLETED:
            self._saver.mark(Status.COMPLETED)

    def _stop(self, error: BaseException) -> None:
        """Save where and why the run ended. What prevents that is noted on the error, which goes on."""
        try:
            if isinstance(error, Exception):
                self._save_failure(error, self._blamed(error))
            else:
                self._save_pause(self._blamed(error))
        except StepkeepError as exc:
            error.add_note(f"stepkeep could not save that the run stopped: {exc} ({exc.code})")

    def _blamed(self, error: BaseException) -> Started | None:
        """The step that raised this error, also when it was wrapped or grouped."""
        steps = {id(raised): started for raised, started in self._failures}
        return next((steps[id(each)] for each in _related(error) if id(each) in steps), None)

    # --- steps

    @property
    def outputs(self) -> dict[str, Any]:
        """What the finished steps returned, by name; a copy."""
        copy: dict[str, Any] = self._copy(self._done.outputs)
        return copy

    def step(self, name: str, call: Callable[..., R], /, *args: Any, key: object = None, **kwargs: Any) -> R:
        """Call a function once in the life of this run, and return what it returned, as it was stored.

        A step that finished before is not called: its stored output is returned. Names are unique in a run. The
        output comes back as plain data, the first time as well, so that a resumed run sees what the first one
        saw. `key` is compared in place of the arguments, for those that have no exact encoding.

        Raises:
            Conflict: the step finished with other arguments (code `step_changed`), it is running at this moment
                (`step_running`), or another process took the run over (`lease_lost`).
            InvalidInput: an argument or the output has no exact encoding; `.path` names the place. Or this is a
                child that was forked inside the block (`run_forked`).
            BackendUnavailable: the step is done and could not be saved. Calling it again saves it.
        """
        started = self.start(name, call, arguments_of(name, args, kwargs, key))
        if isinstance(started, FinishedOutput):
            known: R = started.output
            return known
        try:
            returned = call(*args, **kwargs)
        except BaseException as exc:
            self.fail(started, exc)
            raise
        saved: R = self.finish(started, returned)
        return saved

    @overload
    def task(self, call: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def task(self, call: None = None, /, *, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def task(self, call: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
        """Make a step of a function: `@run.task`, named like the function, or `@run.task(name="fetch {url}")`.

        The name may mention arguments in braces, so that each call is a step of its own.
        """
        if call is None:
            return lambda function: self._task(function, name)
        return self._task(call, name)

    def _task(self, call: Callable[P, R], name: str | None) -> Callable[P, R]:
        @wraps(call)
        def step(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.step(step_name(call, name, args, kwargs), call, *args, **kwargs)

        return step

    # The parts of a step, for a caller that calls the function in its own way.

    def start(
        self, name: str, call: Callable[..., Any], arguments: dict[str, str]
    ) -> Started | FinishedOutput:
        """Whether a step is to be called. If so, `finish` or `fail` must follow."""
        check_name("a step", name)
        self._check_process()
        with self._lock:
            self._check_open()
            ordinal = self._seen.setdefault(name, len(self._seen) + 1)
            finished = self._done.record.steps.get(name)
            if finished is None or not self._is_known(name, call, finished, arguments):
                return self._started(name, ordinal, arguments)
            saving = self._save_again(name, ordinal)
            output = self._copy(self._done.outputs[name])
        if saving is not None:
            self._settle(saving)
        return FinishedOutput(output)

    def finish(self, started: Started, output: object) -> Any:
        """Store what a step returned. When this returns, the step is never called again."""
        self._check_process()
        with self._lock:
            self._running.discard(started.name)
            self._check_open()
            before = self._done
            try:
                kept = self._copy(output)
                self._done = before.with_step(started, kept, now_us=self._engine.clock())
                self._unsaved.add(started.name)
                saving = self._submit(started.name, started.ordinal)
            except InvalidInput as exc:
                self._done = before
                self._unsaved.discard(started.name)
                raise self._unsaveable(started, exc) from exc
            returned = self._copy(kept)
        self._settle(saving)
        return returned

    def fail(self, started: Started, error: BaseException) -> None:
        """A step raised instead: the next run calls it again."""
        if self._is_forked:
            return
        with self._lock:
            self._running.discard(started.name)
            self._failures.append((error, started))

    @property
    def _is_forked(self) -> bool:
        return bool(self._pid) and os.getpid() != self._pid

    def _check_process(self) -> None:
        """Refuse a step in a forked child: its parent, which holds the lease, would save over it.

        Without the lock, which another thread of the parent may have held when it forked.
        """
        if self._is_forked:
            raise InvalidInput(
                f"the run of {self._session.key!r} is that of process {self._pid}: call its steps there, and let a"
                " forked child only compute what they return",
                code="run_forked",
                session=self._session.key,
            )

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidInput("the run has ended: call its steps inside the with block", code="run_ended")
        self._held.check()

    def _is_known(
        self, name: str, call: Callable[..., Any], finished: FinishedStep, arguments: dict[str, str]
    ) -> bool:
        try:
            check_same(name, call, finished, arguments)
        except Conflict:
            if not self._force:
                raise
            return False
        return True

    def _started(self, name: str, ordinal: int, arguments: dict[str, str]) -> Started:
        if name in self._running:
            raise Conflict(
                f"step {name!r} is running at this moment: give every step a name of its own",
                code="step_running",
                session=self._session.key,
            )
        if not self._has_worked and self._session.status is not Status.IN_PROGRESS:
            self._saver.mark(Status.IN_PROGRESS)
        self._has_worked = True
        self._running.add(name)
        return Started(name=name, ordinal=ordinal, arguments=arguments, started_us=self._engine.clock())

    def _unsaveable(self, started: Started, exc: InvalidInput) -> InvalidInput:
        error = InvalidInput(
            f"step {started.name!r} returned what cannot be saved: {exc.message}",
            code=exc.code,
            path=exc.path,
            session=self._session.key,
        )
        self._failures.append((error, started))
        return error

    def _copy(self, output: object) -> Any:
        """An output as it will be loaded, which nobody else can change."""
        body = self._engine.encode(output)
        return exact.decode(body.encoding, body.content)

    # --- saving

    def _save(
        self,
        *,
        message: str,
        event: str = STEP_BOUNDARY,
        step: int | None = None,
        status: Status = Status.IN_PROGRESS,
        last_error: ScriptError | None = None,
    ) -> Pending:
        """Queue the checkpoint of what is done: the outputs are its state, the record its details."""
        record = msgspec.structs.replace(self._done.record, last_error=last_error)
        kind = TriggerKind.ERROR if status is Status.FAILED else TriggerKind.AUTO
        return self._saver.submit(
            self._done.outputs,
            details=details_of(record),
            step=step,
            status=status,
            trigger=Trigger(kind, event),
            message=message,
        )

    def _save_failure(self, error: Exception, blamed: Started | None) -> None:
        """Store that an error ended the run, and which step raised it."""
        text = error_text(f"{type(error).__name__}: {error}")
        last_error = ScriptError(
            message=text,
            timestamp=timestamp(self._engine.clock()),
            step=None if blamed is None else blamed.name,
            step_index=None if blamed is None else blamed.ordinal,
        )
        self._save(
            message=f"Failed {self._where(blamed)}",
            event="run_stopped" if blamed is None else "step_failed",
            step=None if blamed is None else blamed.ordinal,
            status=Status.FAILED,
            last_error=last_error,
        ).result()
        self._saver.mark(Status.FAILED, text)

    def _save_pause(self, blamed: Started | None) -> None:
        """Store that the run was stopped from outside, and in which step."""
        self._save(
            message=f"Paused {self._where(blamed)}",
            event="run_stopped",
            step=None if blamed is None else blamed.ordinal,
            status=Status.PAUSED,
        ).result()
        self._saver.mark(Status.PAUSED)

    def _where(self, blamed: Started | None) -> str:
        return (
            f"after {self._done.last_step}" if blamed is None else f"at step {blamed.ordinal}: {blamed.name}"
        )

    def _save_again(self, name: str, ordinal: int) -> _Saving | None:
        """Queue a step that is done and whose save failed."""
        return self._submit(name, ordinal) if name in self._unsaved else None

    def _submit(self, name: str, ordinal: int) -> _Saving:
        """Queue a step's checkpoint, under the lock: later ones hold what earlier ones did."""
        return _Saving(self._save(message=name, step=ordinal), frozenset(self._unsaved))

    def _settle(self, saving: _Saving) -> None:
        saving.pending.result()
        with self._lock:
            self._unsaved -= saving.names


def step_name(
    call: Callable[..., Any], name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """The name of the step for one call of a task."""
    if name is None:
        return call.__name__
    bound = inspect.signature(call).bind(*args, **kwargs)
    bound.apply_defaults()
    return name.format(**bound.arguments)


def _record_of(loaded: Loaded, session: SessionInfo) -> ScriptRecord:
    details = loaded.value(DETAILS) if DETAILS in loaded.contents else None
    return record_from(details, session=session.key)


def _related(error: BaseException) -> Iterator[BaseException]:
    """An error, those it was raised from, and those it groups."""
    waiting, met = [error], set()
    while waiting:
        each = waiting.pop(0)
        if id(each) in met:
            continue
        met.add(id(each))
        yield each
        if isinstance(each, BaseExceptionGroup):
            waiting.extend(each.exceptions)
        waiting.extend(link for link in (each.__cause__, each.__context__) if link is not None)
