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
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial, wraps
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, Unpack

from stepkeep import api
from stepkeep.api import Branches, ExecuteOptions, Files, SaveOptions, Session, Store
from stepkeep.codec import exact
from stepkeep.config import Settings
from stepkeep.errors import BackendUnavailable, InvalidInput
from stepkeep.model import Header, SessionInfo, utc_now_us
from stepkeep.recording.parts import Parts
from stepkeep.recording.phases import Phases
from stepkeep.recording.recorder import Recorder
from stepkeep.runs.agents import AgentStore
from stepkeep.runs.async_scripts import AsyncRun
from stepkeep.runs.plan import PlanStep
from stepkeep.runs.progress import ExecutionResult
from stepkeep.runs.run_options import Handler
from stepkeep.runs.signals import Cancellation
from stepkeep.runs.workflows import Workflows

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
    "AsyncRun",
    "AsyncSession",
    "AsyncStore",
    "AsyncWorkflows",
    "Opening",
    "open",
]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

THREADS: Final = 16
"""How many calls of one store run at a time; as many saves can share one commit."""

PAGE: Final = 200
"""How many entries of a list are fetched at a time."""


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    config: Settings | None = None,
    keyframe_every: int | None = None,
    max_state_bytes: int = exact.MAX_BYTES,
    clock: Callable[[], int] = utc_now_us,
    create: bool = True,
    threads: int = THREADS,
) -> Opening:
    """Open a store as `stepkeep.open` does: `async with open(…) as store`, or `store = await open(…)`.

    Up to `threads` calls run at a time, others wait for their turn.
    """
    if threads < 1:
        raise InvalidInput("threads counts the calls that run at a time: 1 or more", code="invalid_option")
    opener = partial(
        api.open,
        url,
        config=config,
        keyframe_every=keyframe_every,
        max_state_bytes=max_state_bytes,
        clock=clock,
        create=create,
    )
    return Opening(opener, threads)


class Opening:
    """A store about to be opened: await it, or enter it with `async with`."""

    def __init__(self, opener: Callable[[], Store], threads: int) -> None:
        self._opener = opener
        self._threads = threads
        self._store: AsyncStore | None = None

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.aclose()


class _Workers:
    """The threads of one store, and the writes there that nobody waits for any more."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stepkeep-aio")
        self._closer = ThreadPoolExecutor(1, thread_name_prefix="stepkeep-aio-close")
        self._closing: Future[None] | None = None
        self._abandoned: dict[Future[None], str | None] = {}

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
                self._abandon(session, future)
            raise

    def _abandon(self, session: str | None, future: Future[Any]) -> None:
        # Waiting for this one cannot raise: what the call itself raises is nobody's business any more.
        settled: Future[None] = Future()

        def settle(_: object) -> None:
            self._abandoned.pop(settled)
            settled.set_result(None)

        self._abandoned[settled] = session
        future.add_done_callback(settle)

    async def settle(self, session: str | None = None) -> None:
        """Return when the abandoned writes of that session, or of all, have come to their end."""
        abandoned = list(self._abandoned.items())  # a copy in one step: threads take entries away
        waiting = [settled for settled, owner in abandoned if session in (None, owner)]
        if waiting:
            # Unlike `gather` this leaves them alone when it is cancelled itself.
            await asyncio.wait([asyncio.wrap_future(settled) for settled in waiting])

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


def _reading(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[_Facade[S], P], Coroutine[Any, Any, R]]:
    """The awaitable form of a method."""

    @wraps(method)
    async def call(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._workers.run(self._owner, partial(method, self._sync, *args, **kwargs))

    return call


def _writing(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[_Facade[S], P], Coroutine[Any, Any, R]]:
    """The awaitable form of a method that later calls on its session must not overtake."""

    @wraps(method)
    async def call(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        work = partial(method, self._sync, *args, **kwargs)
        return await self._workers.run(self._owner, work, is_write=True)

    return call


def _listing(
    method: Callable[Concatenate[S, P], Iterator[R]],
) -> Callable[Concatenate[_Facade[S], P], AsyncIterator[R]]:
    """The form for `async for` of a method that lists: each page is fetched on a thread."""

    @wraps(method)
    async def pages(self: _Facade[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[R]:
        entries = await self._workers.run(self._owner, partial(method, self._sync, *args, **kwargs))
        while page := await self._workers.run(self._owner, lambda: list(islice(entries, PAGE))):
            for entry in page:
                yield entry

    return pages


def _finding(
    method: Callable[Concatenate[Store, P], Session],
) -> Callable[Concatenate[_Facade[Store], P], Coroutine[Any, Any, AsyncSession]]:
    """The awaitable form of a method that finds or makes a session."""
    find = _reading(method)

    @wraps(method)
    async def call(self: _Facade[Store], /, *args: P.args, **kwargs: P.kwargs) -> AsyncSession:
        found = await find(self, *args, **kwargs)
        return AsyncSession(found, self._workers, found.uid)

    return call


class AsyncRecorder(_Facade[Recorder]):
    """`Recorder` for asyncio, entered with `async with`. The state it is given is called on a thread."""

    async def __aenter__(self) -> AsyncRecorder:
        self._sync.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave = partial(self._sync.__exit__, kind, error, trace)
        await self._workers.run(self._owner, leave, is_write=True)

    update = _writing(Recorder.update)
    command = _writing(Recorder.command)
    context = _writing(Recorder.context)
    todo_compliance = _writing(Recorder.todo_compliance)
    step_started = _writing(Recorder.step_started)
    step_finished = _writing(Recorder.step_finished)
    recoverable_error = _writing(Recorder.recoverable_error)
    before_forced_stop = _writing(Recorder.before_forced_stop)
    manual = _writing(Recorder.manual)
    compaction_warning = _writing(Recorder.compaction_warning)
    pause = _writing(Recorder.pause)
    complete = _writing(Recorder.complete)
    may_resume = _reading(Recorder.may_resume)
    try_resume = _writing(Recorder.try_resume)
    heartbeat = _writing(Recorder.heartbeat)
    start = _writing(Recorder.start)
    stop = _writing(Recorder.stop)


class AsyncSession(_Facade[Session]):
    """`stepkeep.Session` for asyncio: the same methods, awaited; lists are read with `async for`."""

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
        return await self._workers.run(self._owner, lambda: self._sync.info)

    async def save(self, state: object, **options: Unpack[SaveOptions]) -> Header:
        """Save a state as the next checkpoint. When this returns, it survives a crash and a loss of power.

        The state is encoded before anything is awaited, on the event loop: what is stored is the state as it was
        then, and it may change at once. The rest happens on a thread. Otherwise as `Session.save`.

        When this is cancelled the outcome is unknown, but never half a checkpoint; the next call on this
        session waits until it is known.
        """
        engine = self._sync._engine
        save = engine.encoded(self._sync._save_of(state, **options))
        return await self._workers.run(self._owner, partial(engine.save, save), is_write=True)

    @property
    def branches(self) -> AsyncBranches:
        """The branches of this session: list, fork, switch, merge and close them."""
        return AsyncBranches(self._sync.branches, self._workers, self._owner)

    @property
    def files(self) -> AsyncFiles:
        """The project files that saves of this session captured."""
        return AsyncFiles(self._sync.files, self._workers, self._owner)

    @property
    def parts(self) -> AsyncParts:
        """The parts that are saved and restored with this handle."""
        return AsyncParts(self._sync.parts, self._workers, self._owner)

    async def recorder(self, **options: Any) -> AsyncRecorder:
        """A recorder whose methods are awaited, with the options of `Session.recorder`."""
        make = partial(self._sync.recorder, **options)
        return AsyncRecorder(await self._workers.run(self._owner, make), self._workers, self._owner)

    save_again = _writing(Session.save_again)
    latest = _reading(Session.latest)
    newest = _reading(Session.newest)
    load = _reading(Session.load)
    at = _reading(Session.at)
    header = _reading(Session.header)
    query = _reading(Session.query)
    diff = _reading(Session.diff)
    log = _reading(Session.log)
    history = _listing(Session.history)
    show = _reading(Session.show)
    show_value = _reading(Session.show_value)
    output = _reading(Session.output)
    show_at = _reading(Session.show_at)
    refs = _reading(Session.refs)
    describe = _reading(Session.describe)
    summary = _reading(Session.summary)
    timeline = _reading(Session.timeline)
    events = _reading(Session.events)
    usage = _reading(Session.usage)
    status = _reading(Session.status)
    export = _reading(Session.export)
    run_document = _reading(Session.run_document)
    verify = _reading(Session.verify)
    recovery_point = _reading(Session.recovery_point)
    restore = _writing(Session.restore)
    complete = _writing(Session.complete)
    fail = _writing(Session.fail)
    cancel = _writing(Session.cancel)
    pause = _writing(Session.pause)
    prune = _writing(Session.prune)
    delete = _writing(Session.delete)
    clear = _writing(Session.clear)


class AsyncBranches(_Facade[Branches]):
    """`run.branches` for asyncio: the same methods, awaited."""

    list = _reading(Branches.list)
    log = _reading(Branches.log)
    fork = _writing(Branches.fork)
    switch = _writing(Branches.switch)
    merge = _writing(Branches.merge)
    abandon = _writing(Branches.abandon)
    archive = _writing(Branches.archive)
    reopen = _writing(Branches.reopen)


class AsyncFiles(_Facade[Files]):
    """`run.files` for asyncio: the same methods, awaited."""

    at = _reading(Files.at)
    diff = _reading(Files.diff)
    restore = _writing(Files.restore)
    undo = _writing(Files.undo)
    changed = _reading(Files.changed)
    patches = _reading(Files.patches)
    export = _reading(Files.export)


class AsyncParts(_Facade[Parts]):
    """`run.parts` for asyncio: the same methods, awaited."""

    connect = _reading(Parts.connect)
    disconnect = _reading(Parts.disconnect)
    checkpoint = _writing(Parts.checkpoint)
    auto_checkpoint = _writing(Parts.auto_checkpoint)


class AsyncInvestigation(_Facade["Investigation"]):
    """An investigation for asyncio: what is done with it runs on a thread."""

    async def do(self, work: Callable[[Investigation], R]) -> R:
        """Call `work` with the investigation: `await found.do(lambda found: found.hypotheses.add("…"))`."""
        return await self._workers.run(self._owner, partial(work, self._sync), is_write=True)

    async def __aenter__(self) -> AsyncInvestigation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.do(lambda found: found.save())


class AsyncAgentStore(_Facade[AgentStore]):
    """`stepkeep.AgentStore` for asyncio: the same methods, awaited."""

    save = _writing(AgentStore.save)
    load_latest = _reading(AgentStore.load_latest)
    load = _reading(AgentStore.load)
    list = _reading(AgentStore.list)
    delete = _writing(AgentStore.delete)
    clear_session = _writing(AgentStore.clear_session)
    save_document = _writing(AgentStore.save_document)
    page = _reading(AgentStore.page)


class AsyncWorkflows(_Facade[Workflows]):
    """`stepkeep.api.Workflows` for asyncio: the same methods, awaited.

    They run on threads, where no signal can be handled: stop a run with the `cancel` of `resume`.
    """

    plan = staticmethod(Workflows.plan)
    run = _writing(Workflows.run)
    queue = _writing(Workflows.queue)
    resume = _writing(Workflows.resume)
    work = _writing(Workflows.work)
    resumable = _reading(Workflows.resumable)


class AsyncPhases(_Facade[Phases]):
    """`stepkeep.Phases` for asyncio: the same methods, awaited."""

    create_checkpoint = _writing(Phases.create_checkpoint)
    load_checkpoint = _reading(Phases.load_checkpoint)
    list_checkpoints = _reading(Phases.list_checkpoints)
    detect_incomplete_checkpoint = _reading(Phases.detect_incomplete_checkpoint)
    complete_checkpoint = _writing(Phases.complete_checkpoint)
    cleanup_checkpoints = _writing(Phases.cleanup_checkpoints)


class AsyncStore(_Facade[Store]):
    """`stepkeep.Store` for asyncio. Use it as an async context manager, or await `aclose`."""

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

    session = _finding(Store.session)
    get = _finding(Store.get)
    sessions = _listing(Store.sessions)
    save = _writing(Store.save)
    summaries = _reading(Store.summaries)
    checkpoint = _reading(Store.checkpoint)
    checkpoints = _listing(Store.checkpoints)
    describe = _reading(Store.describe)
    diff = _reading(Store.diff)
    timelines = _reading(Store.timelines)
    verify = _reading(Store.verify)
    usage = _reading(Store.usage)
    metrics = _reading(Store.metrics)
    prune = _writing(Store.prune)
    clean = _writing(Store.clean)
    status = _reading(Store.status)
    stats = _reading(Store.stats)
    doctor = _reading(Store.doctor)
    backup = _reading(Store.backup)
    copy = _reading(Store.copy)
    import_files = _writing(Store.import_files)

    def run(
        self,
        key: str,
        *,
        resume: bool = True,
        force: bool = False,
        profile: str | None = None,
        project: str | None = None,
    ) -> AsyncRun:
        """A resumable script: `async with store.run("nightly") as run: await run.step("fetch", fetch, url)`.

        Steps are coroutine functions, or plain functions that are called on a thread. Otherwise as `Store.run`.
        """
        script = self._sync.run(key, resume=resume, force=force, profile=profile, project=project)
        return AsyncRun(script, partial(self._workers.run, None, is_write=True))

    async def investigation(self, session: str | AsyncSession) -> AsyncInvestigation:
        """The debugging session of that key, see `Store.investigation`."""
        named = session._sync if isinstance(session, AsyncSession) else session
        found = await self._workers.run(None, partial(self._sync.investigation, named))
        return AsyncInvestigation(found, self._workers, found.session.uid)

    @property
    def workflows(self) -> AsyncWorkflows:
        """Workflow files: check, run, queue and resume them, work on a queue, and list what can be resumed."""
        return AsyncWorkflows(self._sync.workflows, self._workers)

    @property
    def agents(self) -> AsyncAgentStore:
        """Checkpoints of agents by session and project, with typed states."""
        return AsyncAgentStore(self._sync.agents, self._workers)

    @property
    def phases(self) -> AsyncPhases:
        """Checkpoints at the phases of a task, and what is not finished."""
        return AsyncPhases(self._sync.phases, self._workers)

    async def execute(
        self,
        key: str,
        plan: Iterable[PlanStep | Mapping[str, Any]],
        handler: Handler | None = None,
        **options: Unpack[ExecuteOptions],
    ) -> ExecutionResult:
        """Work through a plan as `Store.execute` does. Coroutine functions are awaited on this event loop.

        When this is cancelled the run stops, and the cancellation goes on once the `paused` checkpoint is saved.
        Signals are the business of the event loop's owner: `asyncio.run` turns Ctrl-C into such a cancellation.
        Hooks are called on the thread of the run.
        """
        given = options.pop("cancel", None)
        cancellation = Cancellation()
        work = partial(
            self._sync._execute,
            key,
            plan,
            handler,
            **options,
            cancel=cancellation,
            loop=asyncio.get_running_loop(),
        )
        if given is not None:
            given.subscribe(cancellation.cancel)
        run = asyncio.ensure_future(self._workers.run(None, work, is_write=True))
        try:
            return await asyncio.shield(run)
        except asyncio.CancelledError:
            cancellation.cancel()
            await asyncio.wait([run])
            if not run.cancelled() and (error := run.exception()) is not None:
                raise error from None
            raise
        finally:
            if given is not None:
                given.unsubscribe(cancellation.cancel)

    async def flush(self) -> None:
        """Return when every write whose wait was cancelled is settled."""
        await self._workers.settle()
        await self._workers.run(None, self._sync.flush)

    async def aclose(self) -> None:
        """Finish every call under way, cancelled ones too, end the threads and release everything.

        Repeating it is harmless. When it is cancelled, the closing goes on; awaiting it again waits for the end.
        """
        await self._workers.close(self._sync.close)

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
