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

The outputs are the state of a checkpoint; its details have the record of the finished steps. Arguments are kept there
as digests of their exact encoding: enough to see that one changed, too little to leak it.
"""

from __future__ import annotations

import inspect
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import wraps
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar, overload

import msgspec

from stepkeep import typed
from stepkeep.codec import exact
from stepkeep.codec.integrity import digest
from stepkeep.config.store_names import store_option
from stepkeep.engine import Engine, Loaded, NewBody, Pending
from stepkeep.errors import SCHEMA_INVALID, Conflict, Corrupt, InvalidInput, StepkeepError
from stepkeep.logs import Log
from stepkeep.model import DETAILS, SessionInfo, Status, Trigger, TriggerKind, check_name, from_us
from stepkeep.runs import kinds
from stepkeep.runs.json_pieces import NotPlain, plain_json
from stepkeep.runs.lease import Held, RunSaver
from stepkeep.runs.plan import SCRIPT, Question, iso, place_in, question_state
from stepkeep.runs.questions import Waiting, answer_to, as_of, new_question
from stepkeep.runs.signals import exits_on_sigterm
from stepkeep.text import error_text

log = Log("stepkeep")

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MAX_FAILURES: Final = 100
"""How many failures of steps are remembered, to name the step when one of them ends the run."""

_KEY: Final = "key"
_PLACE: Final = "#"


class FinishedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One finished step: its place in the run, what it was called with, and when it was done."""

    ordinal: int
    arguments: dict[str, str]
    completed_at: str
    duration_ms: int


class ScriptError(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ended a run. `step` is None when no step is to blame."""

    message: str
    timestamp: str
    step: str | None = None
    step_index: int | None = None


class ScriptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the details of a script's checkpoint hold. `run` counts the fresh starts in one session."""

    run: int = 1
    steps: dict[str, FinishedStep] = {}
    last_error: ScriptError | None = msgspec.field(default=None, name="lastError")
    questions: tuple[Question, ...] = ()

    def state(self) -> dict[str, Any]:
        """The plain data that is stored; answers are kept as they are."""
        state: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, questions=()))
        asked = [question_state(question) for question in self.questions]
        return {**state, "questions": asked} if asked else state


class AwaitingAnswer(SystemExit):
    """A script waits for a person: what it asks is saved. Where nobody catches it, the program ends with a message.

    Once the question is answered, running the script again goes on.
    """

    def __init__(self, session: str, question: Question, *, store: str = "") -> None:
        """`store` is the option that names the store to a command."""
        command = kinds.approve_command(session, store)
        super().__init__(
            f"{session} waits for a person: {question.text} Answer with `{command}`, then run it again."
        )
        self.session = session
        self.question = question


class Started(NamedTuple):
    """A step that is to be called now."""

    name: str
    ordinal: int
    arguments: dict[str, str]
    time_us: int


class FinishedOutput(NamedTuple):
    """A step that was finished before: what it returned."""

    output: Any


class _Pieces(msgspec.Struct, frozen=True):
    """The plain JSON of the outputs and of the record of the steps, by step, each encoded once.

    Outputs were proven to come back equal. The record is of this module's own making, and JSON as it is.
    """

    outputs: dict[str, bytes] = {}
    steps: dict[str, bytes] = {}

    def with_step(self, name: str, output: bytes, finished: FinishedStep) -> _Pieces:
        lead, step = exact.to_json(name) + b":", exact.to_json(finished)
        return _Pieces(
            {**self.outputs, name: lead + output}, {**_without(name, self.steps), name: lead + step}
        )

    def bodies(self, record: ScriptRecord) -> tuple[NewBody, NewBody]:
        """The state, and the details with a record, but for its steps, which are these."""
        rest = plain_json(msgspec.structs.replace(record, steps={}).state(), levels=1)
        lead = rest[:-1] + (b"," if len(rest) > len(b"{}") else b"")
        steps = b",".join(self.steps.values())
        details = b'{"%s":%s"steps":{%s}}}' % (SCRIPT.encode(), lead, steps)
        state = b"{%s}" % b",".join(self.outputs.values())
        return NewBody(state, exact.JSON), NewBody(details, exact.JSON)


class Run:
    """One run of a script, entered with `with`. Its steps may be called from several threads.

    Leaving the block completes the session. An exception saves an error checkpoint, marks the session failed and
    goes on; a stop (Ctrl-C, SIGTERM, `sys.exit`) or a question to a person saves a paused one. In either case running
    the script again continues behind the last finished step.
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
        self._record = ScriptRecord()
        self._outputs: dict[str, Any] = {}
        self._pieces: _Pieces | None = _Pieces()
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
                does not belong to a script (code `not_a_script`).
            Corrupt: there are checkpoints, and none of them verifies.
        """
        self.open()
        self._signals.__enter__()
        return self

    def __exit__(self, _: object, error: BaseException | None, *rest: object) -> None:
        self._signals.__exit__()
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
            self._saver = RunSaver(self._held, metadata={kinds.RUNNER: kinds.SCRIPT})
            if self._resume:
                self._continue(self._engine.latest(self._session))
            elif self._session.last_seq:
                self._begin_again()
            self._lease = opened.pop_all()
        self._pid = os.getpid()
        self._is_open = True

    def _continue(self, loaded: Loaded | None) -> None:
        if loaded is None:
            return
        record, outputs = _record_of(loaded, self._session.key), loaded.value()
        if not isinstance(outputs, dict) or outputs.keys() != record.steps.keys():
            raise Corrupt(
                f"{loaded.header.id} does not hold an output for each step: verify {self._session.key!r}",
                code=SCHEMA_INVALID,
                checkpoint=loaded.header.id,
            )
        questions = as_of(record.questions, self._engine.clock())
        self._record = msgspec.structs.replace(record, last_error=None, steps={}, questions=questions)
        for name, finished in record.steps.items():
            self._add(name, finished, *self._encoded(outputs[name]))
        if outputs:
            log.info("Resuming from checkpoint at step %d of %r", len(outputs), self._session.key)
            self._engine.resumed(len(outputs))

    def _begin_again(self) -> None:
        """Leave an earlier run behind for good: whoever resumes after a crash must not meet its outputs."""
        try:
            newest = self._engine.latest(self._session)
            earlier = 0 if newest is None else _record_of(newest, self._session.key).run
        except (Conflict, Corrupt):
            earlier = 0  # of something else, or damaged: beginning afresh is the way out
        self._record = ScriptRecord(run=earlier + 1)
        self._has_worked = True
        self._settled(self._save("Started afresh", event="run_started"))

    def close(self, error: BaseException | None) -> None:
        """Say how the run ended, and give the lease back."""
        if not self._is_open or self._is_forked:
            return  # a child that was forked inside the block: the run is its parent's
        with self._lock:
            self._is_open = False
        with self._lease:
            self._engine.flush()
            if error is None and self._unsaved:
                self._settled(self._save("Saved late"))
            if not self._has_worked and self._session.status is Status.COMPLETED:
                return
            if error is None:
                is_asking = any(each.is_approved is None for each in self._record.questions)
                self._saver.mark(Status.PAUSED if is_asking else Status.COMPLETED)
            else:
                self._stop(error)

    def _stop(self, error: BaseException) -> None:
        """Save where and why the run ended. What prevents that is noted on the error, which goes on."""
        blamed, status, text, last_error = self._blamed(error), Status.PAUSED, None, None
        step, name = (None, None) if blamed is None else (blamed.ordinal, blamed.name)
        if isinstance(error, Exception):
            status, text = Status.FAILED, f"{type(error).__name__}: {error_text(error)}"
            last_error = ScriptError(
                message=text, timestamp=_time(self._engine.clock()), step=name, step_index=step
            )
        try:
            if any(isinstance(each, AwaitingAnswer) for each in related(error)):
                return self._saver.mark(Status.PAUSED)  # what it waits for is saved
            saving = self._save(
                f"{status.capitalize()} {self._last_step if blamed is None else f'at step {step}: {name}'}",
                event="step_failed" if last_error is not None and blamed is not None else "run_stopped",
                step=step,
                status=status,
                last_error=last_error,
            )
            self._settled(saving)
            self._saver.mark(status, text)
        except StepkeepError as exc:
            error.add_note(f"stepkeep could not save that the run stopped: {exc} ({exc.code})")

    def _blamed(self, error: BaseException) -> Started | None:
        """The step that raised this error, also when it was wrapped or grouped."""
        steps = {id(raised): started for raised, started in self._failures}
        return next((steps[id(each)] for each in related(error) if id(each) in steps), None)

    @property
    def _last_step(self) -> str:
        name = next(reversed(self._record.steps), None)
        return "after no step" if name is None else f"after step {self._record.steps[name].ordinal}: {name}"

    # --- steps

    @property
    def outputs(self) -> dict[str, Any]:
        """What the finished steps returned, by name; a copy."""
        copy: dict[str, Any] = self._copy(self._outputs)
        return copy

    def step(self, name: str, call: Callable[..., R], /, *args: Any, key: object = None, **kwargs: Any) -> R:
        """Call a function once in the life of this run, and return what it returned, as it was stored.

        A step that an earlier run finished is not called: its stored output is returned. A name that comes again, as
        in a loop, is the next step of that name: `llm`, `llm #2`, … in the order of the calls. The output comes back as
        plain data, the first time as well, so that a resumed run sees what the first one saw. `key` is compared in
        place of the arguments, for those that have no exact encoding.

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

    def ask(self, name: str, text: str, *, timeout: float | None = None) -> Any:
        """What a person answered, as a step of this run; until somebody does, the run pauses here, durably.

        `stepkeep approve`, `Store.approve` or a tool of the server answers; when the script is run again, this
        returns the answer. After `timeout` seconds nobody can answer any more.

        Raises:
            AwaitingAnswer: nobody answered yet. Not caught, it ends the program with a message.
            Conflict: the person said no (`refused`), nobody answered in time (`question_expired`), or as `step`.
        """
        started = self.start(name, self.ask, arguments_of(name, (), {"text": text}, None))
        if isinstance(started, FinishedOutput):
            return started.output
        try:
            answer = self._answer(started, text, timeout)
        except BaseException as exc:
            self.fail(started, exc)
            raise
        return self.finish(started, answer)

    def _answer(self, started: Started, text: str, timeout: float | None) -> Any:
        asked = [each for each in self._record.questions if each.step_id == started.name]
        try:
            return answer_to(asked, text, timeout)
        except Waiting:
            raise self._wait(started, text, timeout) from None

    def _wait(self, started: Started, text: str, timeout: float | None) -> AwaitingAnswer:
        """Save what a person is asked; one that was asked before keeps its time."""
        with self._lock:
            questions = {each.step_id: each for each in self._record.questions}
            known = questions.get(started.name)
            if known is None or known.text != text:
                known = new_question(started.name, text, timeout, now_us=self._engine.clock())
            asked = tuple({**questions, started.name: known}.values())
            self._record = msgspec.structs.replace(self._record, questions=asked)
            message = error_text(f"Waiting for a person: {text}")
            saving = self._save(message, event="run_stopped", step=started.ordinal, status=Status.PAUSED)
        self._settled(saving)
        return AwaitingAnswer(self._session.key, known, store=store_option(self._engine.backend.url))

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
        """Whether a step is to be called. If so, `finish` or `fail` must follow.

        Finished with other arguments it is refused, or with `force` called again.
        """
        check_name("a step", name)
        self._check_process()
        with self._lock:
            self._check_open()
            name = self._numbered(name)
            ordinal = self._seen.setdefault(name, len(self._seen) + 1)
            finished = self._record.steps.get(name)
            if finished is not None and finished.arguments != arguments:
                if not self._force:
                    raise _step_changed(name, call, finished.arguments, arguments)
                finished = None
            if finished is None:
                return self._started(name, ordinal, arguments)
            saving = self._submit(name, ordinal) if name in self._unsaved else None
            output = self._copy(self._outputs[name])
        if saving is not None:
            self._settle(*saving)
        return FinishedOutput(output)

    def _numbered(self, name: str) -> str:
        """The name of the step: with a number where that name was finished, and saved, in this very run already."""
        for number in itertools.count(1):
            numbered = name if number == 1 else f"{name} #{number}"
            is_done = numbered in self._record.steps and numbered not in self._unsaved
            if numbered not in self._seen or not is_done:
                return numbered
        raise AssertionError("there is always a next number")

    def finish(self, started: Started, output: object) -> Any:
        """Store what a step returned. When this returns, the step is never called again."""
        self._check_process()
        with self._lock:
            self._running.discard(started.name)
            self._check_open()
            before = self._record, self._outputs, self._pieces
            try:
                encoding, content = self._encoded(output)
                self._add(started.name, self._finished(started), encoding, content)
                self._unsaved.add(started.name)
                saving = self._submit(started.name, started.ordinal)
            except InvalidInput as exc:
                self._record, self._outputs, self._pieces = before
                self._unsaved.discard(started.name)
                error = InvalidInput(
                    f"step {started.name!r} returned what cannot be saved: {exc.message}",
                    code=exc.code,
                    path=exc.path,
                    session=self._session.key,
                )
                self._failures.append((error, started))
                raise error from exc
        self._settle(*saving)
        return exact.decode(encoding, content)

    def _finished(self, started: Started) -> FinishedStep:
        now_us = self._engine.clock()
        return FinishedStep(
            ordinal=started.ordinal,
            arguments=started.arguments,
            completed_at=_time(now_us),
            duration_ms=max(0, now_us - started.time_us) // 1000,
        )

    def _encoded(self, output: object) -> tuple[str, bytes]:
        """An output as it is stored, one level deep in the state."""
        return exact.encode(output, max_depth=exact.MAX_DEPTH - 1, max_bytes=self._engine.max_state_bytes)

    def _add(self, name: str, finished: FinishedStep, encoding: str, content: bytes) -> None:
        """Count a step as finished. A copy of its output is kept, which nobody else can change."""
        steps = {**_without(name, self._record.steps), name: finished}  # the newest is the last
        others = tuple(each for each in self._record.questions if each.step_id != name)
        self._record = msgspec.structs.replace(self._record, steps=steps, questions=others)
        self._outputs = {**self._outputs, name: exact.decode(encoding, content)}
        if self._pieces is not None:
            is_plain = encoding == exact.JSON
            self._pieces = self._pieces.with_step(name, content, finished) if is_plain else None

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
        return Started(name, ordinal, arguments, self._engine.clock())

    def _copy(self, output: object) -> Any:
        """An output as it will be loaded, which nobody else can change."""
        return self._engine.encode(output).value()

    # --- saving

    def _save(
        self,
        message: str,
        *,
        event: str = "step_boundary",
        step: int | None = None,
        status: Status = Status.IN_PROGRESS,
        last_error: ScriptError | None = None,
    ) -> Pending:
        """Queue the checkpoint of what is done."""
        kind = TriggerKind.ERROR if status is Status.FAILED else TriggerKind.AUTO
        state, details = self._bodies(msgspec.structs.replace(self._record, last_error=last_error))
        return self._saver.submit(
            state,
            details=details,
            step=step,
            status=status,
            trigger=Trigger(kind, event),
            message=message,
        )

    def _bodies(self, record: ScriptRecord) -> tuple[Any, Any]:
        """State and details: put together from what is encoded already, where that is plain and not too large."""
        if self._pieces is not None:
            with suppress(NotPlain):
                bodies = self._pieces.bodies(record)
                if all(len(body.content) <= self._engine.max_state_bytes for body in bodies):
                    return bodies
        return self._outputs, {SCRIPT: record.state()}

    def _submit(self, name: str, ordinal: int) -> tuple[Pending, frozenset[str]]:
        """Queue a step's checkpoint, under the lock: later ones hold what earlier ones did.

        With it, the steps that are safe once it is stored.
        """
        return self._save(name, step=ordinal), frozenset(self._unsaved)

    def _settled(self, saving: Pending) -> None:
        with self._held.naming():
            saving.result()

    def _settle(self, saving: Pending, names: frozenset[str]) -> None:
        self._settled(saving)
        with self._lock:
            self._unsaved -= names


def _without(name: str, steps: dict[str, T]) -> dict[str, T]:
    return {other: step for other, step in steps.items() if other != name} if name in steps else steps


def step_name(
    call: Callable[..., Any], name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """The name of the step for one call of a task."""
    if name is None:
        return call.__name__
    bound = inspect.signature(call).bind(*args, **kwargs)
    bound.apply_defaults()
    return name.format(**bound.arguments)


def _record_of(loaded: Loaded, key: str) -> ScriptRecord:
    """The record in the details of a checkpoint.

    Raises:
        Conflict: the checkpoint was not saved by a script (code `not_a_script`).
        Corrupt: the record does not have the form of one.
    """
    details = loaded.value(DETAILS) if DETAILS in loaded.contents else None
    if not isinstance(details, Mapping) or SCRIPT not in details:
        raise Conflict(
            f"the newest checkpoint of {key!r} was not saved by a script: name the run otherwise, or "
            "begin it afresh with resume=False",
            code="not_a_script",
            retryable=False,
            session=key,
        )
    try:
        return typed.convert(details[SCRIPT], ScriptRecord)
    except msgspec.ValidationError as exc:
        raise Corrupt(f"the steps of script {key!r}: {exc}", code=SCHEMA_INVALID) from exc


def _time(time_us: int) -> str:
    return str(iso(from_us(time_us), "microseconds"))


def related(error: BaseException) -> Iterator[BaseException]:
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


# --- arguments -------------------------------------------------------------------------------------------------


def arguments_of(step: str, args: Sequence[Any], kwargs: Mapping[str, Any], key: object) -> dict[str, str]:
    """A digest for every argument, by `#place` or name; with a `key`, that alone is compared.

    Raises:
        InvalidInput: one has no exact encoding; `.path` names the place in it.
    """
    if key is not None:
        return {_KEY: _digest(step, _KEY, key)}
    placed = {f"{_PLACE}{place}": value for place, value in enumerate(args, 1)}
    return {name: _digest(step, name, value) for name, value in {**placed, **kwargs}.items()}


def _digest(step: str, name: str, value: object) -> str:
    try:
        encoding, content = exact.encode(value)
    except InvalidInput as exc:
        path = place_in(name, exc.path)
        raise InvalidInput(
            f"step {step!r}: argument {path} cannot be compared with that of a later run ({exc.message}): "
            "pass plain data, or key= to say what the step depends on",
            code=exc.code,
            path=path,
        ) from exc
    return digest(encoding.encode() + b"\0" + content)


def _step_changed(
    step: str, call: Callable[..., Any], was: Mapping[str, str], now: Mapping[str, str]
) -> Conflict:
    """A finished step was called with other arguments: which ones differ."""
    names = _parameter_names(call)
    listed = ", ".join(
        _shown(name, names, was, now) for name in {**was, **now} if was.get(name) != now.get(name)
    )
    return Conflict(
        f"step {step!r} was finished with other arguments: {listed}. Give the step another name, run it again "
        "with force=True, or begin afresh with resume=False",
        code="step_changed",
        retryable=False,
    )


def _parameter_names(call: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(call).parameters)
    except (TypeError, ValueError):  # some built-ins tell nothing
        return []


def _shown(name: str, names: Sequence[str], was: Mapping[str, str], now: Mapping[str, str]) -> str:
    """`argument 1 (url) changed`, `argument depth is new`, `the key changed`."""
    change = "changed" if name in was and name in now else "is new" if name in now else "is gone"
    if name == _KEY:
        return f"the key {change}"
    if not name.startswith(_PLACE):
        return f"argument {name} {change}"
    place = int(name.removeprefix(_PLACE))
    label = f" ({names[place - 1]})" if place <= len(names) else ""
    return f"argument {place}{label} {change}"
