"""The same store for asyncio programs: every call runs on a thread of a small pool, the event loop stays free.

```python
async with stepkeep.aio.open("sqlite:runs.db") as store:
    run = await store.session("research-42")
    await run.save({"results": []}, step=1)
    print((await run.latest()).state)
```

There is no second implementation here: each method calls the one of `stepkeep.api` and awaits it. Results and
exceptions are the same objects.

Cancelling a call that a thread has begun ends the wait, not the work: whether a cancelled save is stored is
unknown at that moment, but it is stored whole or not at all. The next call on that session waits until it is
settled, so a cancelled save never lands after a later one, and `latest()` tells what became of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from contextvars import copy_context
from functools import partial, wraps
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
)

from stepkeep import api
from stepkeep.api import Branches, ExecuteOptions, Files, Rewind, SaveOptions, Session, Store
from stepkeep.api.keys import Keys
from stepkeep.api.options import count_usage
from stepkeep.codec.compression import Compression
from stepkeep.config import Settings
from stepkeep.errors import BackendUnavailable, InvalidInput
from stepkeep.model import Header, SessionInfo
from stepkeep.recording.connected_parts import Parts
from stepkeep.recording.phase_checkpoints import Phases
from stepkeep.recording.recorder import Recorder
from stepkeep.runs.agents import AgentStore
from stepkeep.runs.async_scripts import AsyncRun
from stepkeep.runs.plan import ExecutionResult, PlanStep
from stepkeep.runs.run_options import Handler
from stepkeep.runs.scripts import Run
from stepkeep.runs.signals import Cancellation, cancellation
from stepkeep.runs.workflows import Workflows
from stepkeep.storage.port import Key

if TYPE_CHECKING:
    from stepkeep.api.investigating import Investigation

__all__ = [
    "THREADS",
    "AsyncAgentStore",
    "AsyncBranches",
    "AsyncFiles",
    "AsyncInvestigation",
    "AsyncParts",
    "AsyncPhases",
    "AsyncRecorder",
    "AsyncRewind",
    "AsyncRun",
    "AsyncSession",
    "AsyncStore",
    "AsyncWorkflows",
    "OpenOptions",
    "Opening",
    "open",
]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
F = TypeVar("F", bound="_Facade[Any]")

THREADS: Final = 16
"""How many calls of one store run at a time; as many saves can share one commit."""

PAGE: Final = 200
"""How many entries of a list are fetched at a time."""


class OpenOptions(TypedDict, total=False):
    """The options of `stepkeep.open`."""

    config: Settings | None
    keyframe_every: int | None
    max_state_bytes: int
    compression: str | Compression | None
    clock: Callable[[], int]
    busy_seconds: float | None
    create: bool
    key: Key | os.PathLike[str] | None
    encrypt: bool
    locked: bool


def open(
    url: str | os.PathLike[str] | None = None, *, threads: int = THREADS, **options: Unpack[OpenOptions]
) -> Opening:
    """Open a store as `stepkeep.open` does: `async with open(…) as store`, or `store = await open(…)`.

    Up to `threads` calls run at a time, others wait for their turn.
    """
    if threads < 1:
        raise InvalidInput("threads counts the calls that run at a time: 1 or more", code="invalid_option")
    return Opening(partial(api.open, url, **options), threads)


class Opening:
    """A store about to be opened: await it, or enter it with `async with`."""

    _store: AsyncStore

    def __init__(self, opener: Callable[[], Store], threads: int) -> None:
        self._opener = opener
        self._threads = threads

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def _open(self) -> AsyncStore:
        workers = _Workers(self._threads)
        opened = ExitStack()
        try:
            store = await workers.run(None, lambda: opened.enter_context(self._opener()))
        except BaseException:
            await workers.close(opened.close)  # cancelled or failed: nobody else could
            raise
        return AsyncStore(store, workers)

    async def __aenter__(self) -> AsyncStore:
        self._store = await self
        return self._store

    async def __aexit__(self, *_: object) -> None:
        await self._store.aclose()


class _Workers:
    """The threads of one store, and the writes there that nobody waits for any more."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stepkeep-aio")
        self._closer = ThreadPoolExecutor(1, thread_name_prefix="stepkeep-aio-close")
        self._closing: Future[None] | None = None
        self._abandoned: dict[Future[Any], str | None] = {}

    async def run(self, session: str | None, call: Callable[[], R], *, is_write: bool = False) -> R:
        """Run a call on a thread, after the abandoned writes of that session.

        A cancelled call that has not begun never runs; one that has runs to its end.
        """
        if session is not None:
            await self.settle(session)
        if self._closing is not None:
            raise BackendUnavailable("this store is closed", code="store_closed", retryable=False)
        future = self._pool.submit(copy_context().run, call)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if is_write and not future.cancel():
                self._abandoned[future] = session
                future.add_done_callback(self._abandoned.pop)
            raise

    async def settle(self, session: str | None = None) -> None:
        """Return when the abandoned writes of that session, or of all, have come to their end."""
        abandoned = list(self._abandoned.items())  # a copy in one step: threads take entries away
        for future in [future for future, owner in abandoned if session in (None, owner)]:
            with suppress(Exception):  # what the call itself raises is nobody's business any more
                await asyncio.shield(asyncio.wrap_future(future))

    async def close(self, release: Callable[[], None]) -> None:
        """Let every call under way finish, end the threads, then call `release`: once, however often repeated.

        Cancelling it ends the wait, not the closing.
        """
        if self._closing is None:
            self._closing = self._closer.submit(self._finish, release)
        await asyncio.wait([ended := asyncio.wrap_future(self._closing)])
        self._closer.shutdown()
        ended.result()

    def _finish(self, release: Callable[[], None]) -> None:
        self._pool.shutdown()
        release()


class _Facade(Generic[S]):
    """A synchronous object and the threads its methods run on."""

    def __init__(self, sync: S, workers: _Workers, owner: str | None = None) -> None:
        self._sync = sync
        self._workers = workers
        self._owner = owner  # the session whose abandoned writes a call waits for

    async def _read(self, call: Callable[[], R]) -> R:
        return await self._workers.run(self._owner, call)

    async def _write(self, call: Callable[[], R]) -> R:
        """Later calls on the session do not overtake this one, even when it is cancelled."""
        return await self._workers.run(self._owner, call, is_write=True)


# --- a method of a synchronous class, with its own signature, as one that is awaited

_Method: TypeAlias = Callable[Concatenate[S, P], R]
_Awaited: TypeAlias = Callable[Concatenate[_Facade[S], P], Coroutine[Any, Any, R]]


def _reads(method: _Method[S, P, R]) -> _Awaited[S, P, R]:
    @wraps(method)
    async def call(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._read(partial(method, self._sync, *args, **kwargs))

    return call


def _writes(method: _Method[S, P, R]) -> _Awaited[S, P, R]:
    @wraps(method)
    async def call(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._write(partial(method, self._sync, *args, **kwargs))

    return call


def _lists(method: _Method[S, P, Iterator[R]]) -> Callable[Concatenate[_Facade[S], P], AsyncIterator[R]]:
    """Read with `async for`; each page is fetched on a thread."""

    @wraps(method)
    async def pages(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[R]:
        entries = await self._read(partial(method, self._sync, *args, **kwargs))
        while page := await self._read(lambda: list(islice(entries, PAGE))):
            for entry in page:
                yield entry

    return pages


def _finds(method: _Method[S, P, R], kind: Callable[[R, _Workers, str | None], F]) -> _Awaited[S, P, F]:
    """What it returns is wrapped too; a session waits for its own writes."""

    @wraps(method)
    async def call(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> F:
        found = await self._read(partial(method, self._sync, *args, **kwargs))
        return kind(found, self._workers, getattr(found, "uid", self._owner))

    return call


class _Has(Generic[F]):
    """A property of the synchronous object, wrapped."""

    def __init__(self, kind: type[F]) -> None:
        self._kind = kind

    def __set_name__(self, owner: object, name: str) -> None:
        self._name = name

    def __get__(self, of: _Facade[Any], owner: object = None) -> F:
        return self._kind(getattr(of._sync, self._name), of._workers, of._owner)


# --- the wrapped classes


class AsyncRecorder(_Facade[Recorder]):
    """`Recorder` for asyncio, entered with `async with`. The state it is given is called on a thread."""

    async def __aenter__(self) -> AsyncRecorder:
        self._sync.start()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._write(partial(self._sync.__exit__, *error))

    update = _writes(Recorder.update)
    command = _writes(Recorder.command)
    context = _writes(Recorder.context)
    todo_compliance = _writes(Recorder.todo_compliance)
    step_started = _writes(Recorder.step_started)
    step_finished = _writes(Recorder.step_finished)
    recoverable_error = _writes(Recorder.recoverable_error)
    before_forced_stop = _writes(Recorder.before_forced_stop)
    manual = _writes(Recorder.manual)
    compaction_warning = _writes(Recorder.compaction_warning)
    pause = _writes(Recorder.pause)
    complete = _writes(Recorder.complete)
    may_resume = _reads(Recorder.may_resume)
    try_resume = _writes(Recorder.try_resume)
    heartbeat = _writes(Recorder.heartbeat)
    start = _writes(Recorder.start)
    stop = _writes(Recorder.stop)


class AsyncBranches(_Facade[Branches]):
    """`run.branches`: list, fork, switch, merge and close them."""

    list = _reads(Branches.list)
    log = _reads(Branches.log)
    fork = _writes(Branches.fork)
    switch = _writes(Branches.switch)
    merge = _writes(Branches.merge)
    abandon = _writes(Branches.abandon)
    archive = _writes(Branches.archive)
    reopen = _writes(Branches.reopen)


class AsyncFiles(_Facade[Files]):
    """`run.files`: the project files that saves of this session captured."""

    at = _reads(Files.at)
    list = _reads(Files.list)
    read = _reads(Files.read)
    log = _reads(Files.log)
    diff = _reads(Files.diff)
    restore = _writes(Files.restore)
    undo = _writes(Files.undo)
    changed = _reads(Files.changed)
    patches = _reads(Files.patches)
    export = _reads(Files.export)


class AsyncRewind(_Facade[Rewind]):
    """`run.rewind`: the turns of a coding agent, and the way back before each."""

    turns = _reads(Rewind.turns)
    plan = _reads(Rewind.plan)
    to = _writes(Rewind.to)
    undo = _writes(Rewind.undo)

    async def is_interrupted(self) -> bool:
        """Whether the last restore of files was stopped in the middle."""
        return await self._read(lambda: self._sync.is_interrupted)


class AsyncParts(_Facade[Parts]):
    """`run.parts`: what is saved and restored with this handle."""

    connect = _reads(Parts.connect)
    disconnect = _reads(Parts.disconnect)
    checkpoint = _writes(Parts.checkpoint)
    auto_checkpoint = _writes(Parts.auto_checkpoint)


class AsyncSession(_Facade[Session]):
    """`stepkeep.Session` for asyncio: the same methods, awaited; lists are read with `async for`."""

    branches = _Has(AsyncBranches)
    files = _Has(AsyncFiles)
    parts = _Has(AsyncParts)
    rewind = _Has(AsyncRewind)

    @property
    def key(self) -> str:
        return self._sync.key

    @property
    def uid(self) -> str:
        return self._sync.uid

    def __repr__(self) -> str:
        return f"<AsyncSession {self.key!r}>"

    async def info(self) -> SessionInfo:
        """The session as it is stored now: status, profile, current branch, times."""
        return await self._read(lambda: self._sync.info)

    async def save(self, state: object, **options: Unpack[SaveOptions]) -> Header:
        """Save a state as the next checkpoint. When this returns, it survives a crash and a loss of power.

        The state is encoded before anything is awaited, on the event loop: what is stored is the state as it was
        then, and it may change at once. The rest happens on a thread. Otherwise as `Session.save`.

        When this is cancelled the outcome is unknown, but never half a checkpoint; the next call on this
        session waits until it is known.
        """
        engine = self._sync._engine
        save = engine.encoded(self._sync._save_of(state, **options))

        def store() -> Header:
            header = engine.save(save)
            count_usage(engine, header.session, options)
            return header

        return await self._write(store)

    recorder = _finds(Session.recorder, AsyncRecorder)
    save_again = _writes(Session.save_again)
    latest = _reads(Session.latest)
    newest = _reads(Session.newest)
    load = _reads(Session.load)
    at = _reads(Session.at)
    header = _reads(Session.header)
    query = _reads(Session.query)
    diff = _reads(Session.diff)
    log = _reads(Session.log)
    history = _lists(Session.history)
    show = _reads(Session.show)
    find = _reads(Session.find)
    matches = _lists(Session.matches)
    overview = _reads(Session.overview)
    run_view = _reads(Session.run_view)
    show_value = _reads(Session.show_value)
    output = _reads(Session.output)
    show_at = _reads(Session.show_at)
    refs = _reads(Session.refs)
    describe = _reads(Session.describe)
    summary = _reads(Session.summary)
    timeline = _reads(Session.timeline)
    timeline_pages = _reads(Session.timeline_pages)
    events = _reads(Session.events)
    usage = _reads(Session.usage)
    status = _reads(Session.status)
    export = _reads(Session.export)
    export_transcript = _reads(Session.export_transcript)
    run_document = _reads(Session.run_document)
    verify = _reads(Session.verify)
    recovery_point = _reads(Session.recovery_point)
    restore = _writes(Session.restore)
    undo = _writes(Session.undo)
    complete = _writes(Session.complete)
    fail = _writes(Session.fail)
    cancel = _writes(Session.cancel)
    pause = _writes(Session.pause)
    prune = _writes(Session.prune)
    keep = _writes(Session.keep)
    delete = _writes(Session.delete)
    clear = _writes(Session.clear)


class AsyncInvestigation(_Facade["Investigation"]):
    """An investigation for asyncio: what is done with it runs on a thread."""

    async def do(self, work: Callable[[Investigation], R]) -> R:
        """Call `work` with the investigation: `await found.do(lambda found: found.hypotheses.add("…"))`."""
        return await self._write(partial(work, self._sync))

    async def __aenter__(self) -> AsyncInvestigation:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._write(self._sync.save)


class AsyncAgentStore(_Facade[AgentStore]):
    """`store.agents`: checkpoints of agents by session and project, with typed states."""

    save = _writes(AgentStore.save)
    load_latest = _reads(AgentStore.load_latest)
    load = _reads(AgentStore.load)
    list = _reads(AgentStore.list)
    delete = _writes(AgentStore.delete)
    clear_session = _writes(AgentStore.clear_session)
    save_document = _writes(AgentStore.save_document)
    page = _reads(AgentStore.page)


class AsyncKeys(_Facade[Keys]):
    """`store.keys`: what opens an encrypted store."""

    list = _reads(Keys.list)
    add = _writes(Keys.add)
    remove = _writes(Keys.remove)
    rotate = _writes(Keys.rotate)
    rekey = _writes(Keys.rekey)


class AsyncWorkflows(_Facade[Workflows]):
    """`store.workflows`: check, run, queue and resume workflow files, work on a queue, list what can be resumed.

    They run on threads, where no signal can be handled: stop a run with the `cancel` of `resume`.
    """

    plan = staticmethod(Workflows.plan)
    run = _writes(Workflows.run)
    queue = _writes(Workflows.queue)
    resume = _writes(Workflows.resume)
    work = _writes(Workflows.work)
    resumable = _reads(Workflows.resumable)


class AsyncPhases(_Facade[Phases]):
    """`store.phases`: checkpoints at the phases of a task, and what is not finished."""

    create_checkpoint = _writes(Phases.create_checkpoint)
    load_checkpoint = _reads(Phases.load_checkpoint)
    list_checkpoints = _reads(Phases.list_checkpoints)
    detect_incomplete_checkpoint = _reads(Phases.detect_incomplete_checkpoint)
    complete_checkpoint = _writes(Phases.complete_checkpoint)
    cleanup_checkpoints = _writes(Phases.cleanup_checkpoints)


def _runs(method: _Method[Store, P, Run]) -> Callable[Concatenate[_Facade[Store], P], AsyncRun]:
    """Steps are coroutine functions, or plain functions that are called on a thread."""

    @wraps(method)
    def call(self: _Facade[Store], /, *args: P.args, **kwargs: P.kwargs) -> AsyncRun:
        return AsyncRun(method(self._sync, *args, **kwargs), self._write)

    return call


class AsyncStore(_Facade[Store]):
    """`stepkeep.Store` for asyncio. Use it as an async context manager, or await `aclose`."""

    workflows = _Has(AsyncWorkflows)
    agents = _Has(AsyncAgentStore)
    keys = _Has(AsyncKeys)
    phases = _Has(AsyncPhases)

    @property
    def url(self) -> str:
        return self._sync.url

    @property
    def sync(self) -> Store:
        """The store underneath, for what must run outside the event loop. Leave closing it to `aclose`."""
        return self._sync

    @property
    def settings(self) -> Settings:
        return self._sync.settings

    session = _finds(Store.session, AsyncSession)
    get = _finds(Store.get, AsyncSession)
    sessions = _lists(Store.sessions)
    save = _writes(Store.save)
    overview = _reads(Store.overview)
    summaries = _reads(Store.summaries)
    unfinished = _reads(Store.unfinished)
    checkpoint = _reads(Store.checkpoint)
    checkpoints = _lists(Store.checkpoints)
    describe = _reads(Store.describe)
    diff = _reads(Store.diff)
    timelines = _reads(Store.timelines)
    verify = _reads(Store.verify)
    usage = _reads(Store.usage)
    metrics = _reads(Store.metrics)
    prune = _writes(Store.prune)
    clean = _writes(Store.clean)
    status = _reads(Store.status)
    stats = _reads(Store.stats)
    doctor = _reads(Store.doctor)
    backup = _reads(Store.backup)
    copy = _reads(Store.copy)
    import_files = _writes(Store.import_files)
    approve = _writes(Store.approve)
    refuse = _writes(Store.refuse)
    import_agents = _writes(Store.import_agents)
    run = _runs(Store.run)

    async def investigation(self, session: str | AsyncSession) -> AsyncInvestigation:
        """The debugging session of that key, see `Store.investigation`."""
        named = session._sync if isinstance(session, AsyncSession) else session
        found = await self._read(partial(self._sync.investigation, named))
        return AsyncInvestigation(found, self._workers, found.session.uid)

    async def execute(
        self,
        key: str,
        plan: Iterable[PlanStep | Mapping[str, Any]] | None,
        handler: Handler | Mapping[str, Handler] | str | None = None,
        **options: Unpack[ExecuteOptions],
    ) -> ExecutionResult:
        """Work through a plan as `Store.execute` does. Coroutine functions are awaited on this event loop.

        When this is cancelled the run stops, and the cancellation goes on once the `paused` checkpoint is saved.
        Signals are the business of the event loop's owner: `asyncio.run` turns Ctrl-C into such a cancellation.
        Hooks are called on the thread of the run.
        """
        given = cancellation(options.pop("cancel", None))
        stop = Cancellation()
        loop = asyncio.get_running_loop()
        execute = partial(self._sync._execute, **options, cancel=stop, loop=loop)
        given.subscribe(stop.cancel)
        run = asyncio.ensure_future(self._write(partial(execute, key, plan, handler)))
        try:
            return await asyncio.shield(run)
        except asyncio.CancelledError:
            stop.cancel()
            await asyncio.wait([run])
            if not run.cancelled() and (error := run.exception()) is not None:
                raise error from None
            raise
        finally:
            given.unsubscribe(stop.cancel)

    async def flush(self) -> None:
        """Return when every write whose wait was cancelled is settled."""
        await self._workers.settle()
        await self._read(self._sync.flush)

    async def aclose(self) -> None:
        """Finish every call under way, cancelled ones too, end the threads and release everything.

        Repeating it is harmless. When it is cancelled, the closing goes on; awaiting it again waits for the end.
        """
        await self._workers.close(self._sync.close)

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
