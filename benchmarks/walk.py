"""The walk of an operation through the house: Python calls, modules, depth, SQL statements, transactions, encodings.

Counts, not times: they are the same on every machine. A call is a frame of a function in our own files, seen by
`sys.setprofile` in every thread; comprehensions and lambdas count, module bodies do not. Each operation runs twice
before it is counted, so that imports and first uses are over.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import apsw

import stepkeep
from benchmarks.parts import Part, Row, Table

OURS: Final = str(Path(stepkeep.__file__).parent)
STATE: Final = {"query": "tides", "results": [{"page": n, "text": "x" * 40} for n in range(5)], "done": False}
WARM_RUNS: Final = 2

REACH: Final = {
    "Session.save": {"calls": 130, "statements": 8, "transactions": 1},
    "latest().state": {"calls": 70, "statements": 3, "transactions": 1},
    "command save, new session": {"calls": 350},
    "command save, known session": {"calls": 250},
    "MCP save": {"calls": 200},
}

LOADS: Final = "latest().state"
"""The one operation that saves nothing; every other one encodes its state once."""


@dataclass
class Walk:
    """What one operation did."""

    calls: int = 0
    functions: set[tuple[str, str]] = field(default_factory=set)
    depth: int = 0
    statements: int = 0
    transactions: int = 0
    encoded: list[bytes] = field(default_factory=list)
    encodings: int = 0
    _open: int = 0

    @property
    def modules(self) -> int:
        return len({module for module, _ in self.functions})

    def enter(self, frame: FrameType) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(OURS) or code.co_name == "<module>":
            return
        self.calls += 1
        self.functions.add((code.co_filename, code.co_qualname))
        self.depth = max(self.depth, _depth(frame))

    def leave(self, frame: FrameType, returned: Any) -> None:
        """Keep what the codec wrote: which of it was the state is known once the state is stored."""
        code = frame.f_code
        if code.co_name == "plain" and code.co_filename.endswith("codec/exact.py") and returned is not None:
            self.encoded.append(returned[0])

    def executed(self, sql: str) -> None:
        self.statements += 1
        word = sql.split(None, 1)[0].upper()
        if word == "BEGIN":
            self._open += 1
            self.transactions += 1
        elif word in ("COMMIT", "ROLLBACK"):
            self._open -= 1
        elif not self._open:
            self.transactions += 1


def _depth(frame: FrameType) -> int:
    depth, at = 0, frame
    while at is not None:
        depth += at.f_code.co_filename.startswith(OURS)
        at = at.f_back  # type: ignore[assignment]
    return depth


class _Tracer:
    """Counts while it is on. Connections are traced from their beginning, so it is made before the store is opened."""

    def __init__(self) -> None:
        self.walk: Walk | None = None
        apsw.connection_hooks.append(self._hook)

    def _hook(self, connection: apsw.Connection) -> None:
        connection.exec_trace = self._executed

    def _executed(self, _cursor: apsw.Cursor, sql: str, _bindings: object) -> bool:
        if self.walk is not None:
            self.walk.executed(sql)
        return True

    def close(self) -> None:
        apsw.connection_hooks.remove(self._hook)

    @contextlib.contextmanager
    def counting(self) -> Iterator[Walk]:
        walk = self.walk = Walk()

        def profile(frame: FrameType, event: str, arg: object) -> None:
            if event == "call":
                walk.enter(frame)
            elif event == "return":
                walk.leave(frame, arg)

        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            yield walk
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            self.walk = None


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:  # noqa: ARG001  (counts need neither)
    """Count every operation once, on SQLite stores in the directory."""
    tracer = _Tracer()
    walks: dict[str, Walk] = {}
    try:
        for name, operation in _operations(directory, tracer):
            walks[name] = operation
    finally:
        tracer.close()
    names = ("operation", "calls", "functions", "modules", "depth", "statements", "transactions", "encodings")
    lines = [
        (
            name,
            *map(str, (walk.calls, len(walk.functions), walk.modules, walk.depth)),
            *map(str, (walk.statements, walk.transactions)),
            "–" if name == LOADS else str(walk.encodings),
        )
        for name, walk in walks.items()
    ]
    rows = [
        Row(f"{name}: {what}", getattr(walks[name], what), reach)
        for name, figures in REACH.items()
        if name in walks
        for what, reach in figures.items()
    ]
    rows += [
        Row(f"{name}: encodings of the state", walk.encodings, 1)
        for name, walk in walks.items()
        if name != LOADS
    ]
    return Part(tables=[Table("the walk", names, lines)], rows=rows)


def _operations(directory: Path, tracer: _Tracer) -> Iterator[tuple[str, Walk]]:
    url = f"sqlite:{directory / 'walk.db'}"
    with stepkeep.open(url) as store:
        session = store.session("walk")
        step = iter(range(1000))
        yield "Session.save", _counted(tracer, url, lambda: session.save(STATE, step=next(step)))
        yield LOADS, _counted(tracer, url, lambda: session.latest().state)  # type: ignore[union-attr]
    yield from _commands(directory, tracer)
    yield from _surfaces(directory, tracer)


def _counted(tracer: _Tracer, url: str, operation: Callable[[], Any]) -> Walk:
    """Count an operation, and how often it encoded the state that is the newest in its store then."""
    for _ in range(WARM_RUNS):
        operation()
    with tracer.counting() as walk:
        operation()
    with stepkeep.open(url) as store:
        newest = max(store.checkpoints(), key=lambda header: header.time_us)
        digest = newest.contents["state"].digest
    walk.encodings = sum(hashlib.sha256(content).hexdigest() == digest for content in walk.encoded)
    return walk


def _commands(directory: Path, tracer: _Tracer) -> Iterator[tuple[str, Walk]]:
    import msgspec

    from stepkeep.cli.app import run as command

    document = msgspec.json.encode(STATE).decode()
    url = f"sqlite:{directory / 'commands.db'}"

    def save(key: str) -> None:
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):
            code = command(["save", key, "--state", document, "--store", url])
        assert code == 0, code

    keys = iter(f"new-{number}" for number in range(100))
    yield "command save, new session", _counted(tracer, url, lambda: save(next(keys)))
    yield "command save, known session", _counted(tracer, url, lambda: save("known"))


def _surfaces(directory: Path, tracer: _Tracer) -> Iterator[tuple[str, Walk]]:
    with contextlib.suppress(ImportError):
        yield "MCP save", _mcp_save(directory, tracer)
    yield "hook Stop", _hook_stop(directory, tracer)
    with contextlib.suppress(ImportError):
        yield "LangGraph put", _langgraph_put(directory, tracer)


def _mcp_save(directory: Path, tracer: _Tracer) -> Walk:
    import asyncio

    from stepkeep.mcp.server import build_server
    from stepkeep.mcp.tools import OpenedStore

    url = f"sqlite:{directory / 'mcp.db'}"
    server = build_server(OpenedStore(url))
    arguments = {"sessionId": "walk", "state": STATE}

    async def call() -> None:
        await server.call_tool("checkpoint_save", arguments)

    return _counted(tracer, url, lambda: asyncio.run(call()))


def _hook_stop(directory: Path, tracer: _Tracer) -> Walk:
    import json
    import os

    from stepkeep.api import answer_hook

    place = directory / "hook"
    place.mkdir()
    url = f"sqlite:{directory / 'hook.db'}"
    environ = {**os.environ, "HOME": str(place)}
    turn = iter(range(100))

    def stop() -> None:
        content = {
            "session_id": "walk",
            "cwd": str(place),
            "hook_event_name": "Stop",
            "last_assistant_message": f"turn {next(turn)}",
        }
        answer_hook("claude-code", "Stop", json.dumps(content).encode(), store=url, environ=environ)

    return _counted(tracer, url, stop)


def _langgraph_put(directory: Path, tracer: _Tracer) -> Walk:
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.base.id import uuid6

    from stepkeep.adapters.langgraph import StepkeepSaver

    values = {"messages": [{"role": "user", "content": "x" * 40}]}
    url = f"sqlite:{directory / 'langgraph.db'}"
    with StepkeepSaver(url) as saver:
        config: Any = {"configurable": {"thread_id": "walk", "checkpoint_ns": ""}}

        def put() -> None:
            nonlocal config
            checkpoint = {
                **empty_checkpoint(),
                "id": str(uuid6()),
                "channel_values": values,
                "channel_versions": {"messages": "1"},
            }
            config = saver.put(config, checkpoint, {"source": "loop", "step": 1}, {"messages": "1"})  # type: ignore[typeddict-item]

        return _counted(tracer, url, put)
