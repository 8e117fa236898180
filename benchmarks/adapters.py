"""Our adapters beside the frameworks' own durable stores, each pair in the environment of its framework.

`./dev interop` makes these environments; a framework without one is left out. One conversation or workflow grows by
about 2 KB a step, and everything is kept. Measured through the framework's interface: a save (median of the last
tenth), the bytes on disk when the store is closed, and reading the latest (median of five, store opened anew).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from benchmarks.cold import ROOT
from benchmarks.parts import Part, Row, Table
from benchmarks.timing import say
from benchmarks.workloads import SEED, text

STEPS: Final = (50, 1000)
READS: Final = 5
OURS: Final = "Stepkeep"


@dataclass
class Subject:
    """One store: what a step saves, and what reads the latest."""

    store: Any
    save: Callable[[int, str], Awaitable[Any]]
    latest: Callable[[], Awaitable[Any]]

    def close(self) -> None:
        if hasattr(self.store, "close"):
            self.store.close()


# --- the frameworks: how a store is opened, ours or the vendor's own


def openai_agents(vendor: bool, place: Path) -> Subject:
    if vendor:
        session: Any = importlib.import_module("agents").SQLiteSession("s", place / "items.db")
    else:
        adapter = importlib.import_module("stepkeep.adapters.openai_agents")
        session = adapter.StepkeepSession("s", f"sqlite:{place}/store.db")

    async def save(_: int, said: str) -> None:
        half = len(said) // 2
        await session.add_items(
            [{"role": "user", "content": said[:half]}, {"role": "assistant", "content": said[half:]}]
        )

    return Subject(session, save, session.get_items)


def adk(vendor: bool, place: Path) -> Subject:
    events = importlib.import_module("google.adk.events")
    types = importlib.import_module("google.genai.types")
    if vendor:
        module = importlib.import_module("google.adk.sessions.sqlite_session_service")
        service: Any = module.SqliteSessionService(str(place / "sessions.db"))
    else:
        adapter = importlib.import_module("stepkeep.adapters.adk")
        service = adapter.StepkeepSessionService(f"sqlite:{place}/store.db")
    key: dict[str, str] = {"app_name": "app", "user_id": "user", "session_id": "s"}
    sessions: list[Any] = []

    async def save(_: int, said: str) -> None:
        if not sessions:
            sessions.append(await service.create_session(**key))
        content = types.Content(role="user", parts=[types.Part(text=said)])
        await service.append_event(sessions[0], events.Event(author="user", content=content))

    return Subject(service, save, lambda: service.get_session(**key))


def agent_framework(vendor: bool, place: Path) -> Subject:
    framework = importlib.import_module("agent_framework")
    if vendor:
        storage: Any = framework.FileCheckpointStorage(place / "checkpoints")
    else:
        adapter = importlib.import_module("stepkeep.adapters.agent_framework")
        storage = adapter.StepkeepCheckpointStorage(f"sqlite:{place}/store.db")
    messages: list[str] = []

    async def save(step: int, said: str) -> None:
        messages.append(said)
        fields = {"workflow_name": "w", "graph_signature_hash": "g", "iteration_count": step}
        await storage.save(framework.WorkflowCheckpoint(**fields, state={"messages": messages}))

    return Subject(storage, save, lambda: storage.get_latest(workflow_name="w"))


def strands(vendor: bool, place: Path) -> Subject:
    if vendor:
        module = importlib.import_module("strands.storage")
        storage: Any = module.LocalFileStorage(str(place / "snapshots"))
    else:
        storage = importlib.import_module("stepkeep.adapters.strands").StepkeepStorage(
            f"sqlite:{place}/store.db"
        )
    folder, messages = "session/s/scopes/agent/a/snapshots", list[str]()

    async def save(step: int, said: str) -> None:
        messages.append(said)
        data = json.dumps({"data": {"messages": messages}}, ensure_ascii=False).encode()
        await storage.write(f"{folder}/immutable_history/snapshot_{step:08}.json", data)
        await storage.write(f"{folder}/snapshot_latest.json", data)

    return Subject(storage, save, lambda: storage.read(f"{folder}/snapshot_latest.json"))


FRAMEWORKS: Final = {
    "openai-agents": (openai_agents, "SQLiteSession"),
    "adk": (adk, "SqliteSessionService"),
    "agent-framework": (agent_framework, "FileCheckpointStorage"),
    "strands": (strands, "LocalFileStorage"),
}


# --- in the environment of a framework


async def _measure(name: str, vendor: bool, steps: int, place: Path) -> dict[str, float]:
    opened, rng = FRAMEWORKS[name][0], random.Random(SEED)
    subject = opened(vendor, place)
    seconds: list[float] = []
    for step in range(steps):
        said = text(rng, 2000)
        started = perf_counter()
        await subject.save(step, said)
        seconds.append(perf_counter() - started)
    subject.close()
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    again, reads = opened(vendor, place), list[float]()
    for _ in range(READS):
        started = perf_counter()
        assert await again.latest() is not None
        reads.append(perf_counter() - started)
    again.close()
    return {"bytes": size, "save": median(seconds[-max(1, steps // 10) :]), "latest": median(reads)}


# --- in ours


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:
    """Measure every framework that has an environment; its own store only with peers."""
    lines: list[list[str]] = []
    rows: list[Row] = []
    for name, (_, vendors) in FRAMEWORKS.items():
        python = ROOT / "build" / "interop" / name / "bin" / "python"
        if not python.exists():
            say(f"benchmarks: without {name}: `./dev interop {name}` makes its environment")
            continue
        for steps in STEPS[: 1 if quick else None]:
            results = dict(_pair(python, name, steps, directory, with_peers))
            for vendor, found in results.items():
                lines.append(_line(name, vendors if vendor else OURS, steps, found))
            rows += _rows(name, vendors, steps, results)
    names = ("framework", "store", "steps", "stored", "save, p50", "latest")
    return Part(tables=[Table("stores of agent frameworks", names, lines)], rows=rows)


def _pair(
    python: Path, name: str, steps: int, directory: Path, with_peers: bool
) -> Iterator[tuple[bool, dict[str, float]]]:
    for vendor in (False, True) if with_peers else (False,):
        place = directory / f"{name}-{steps}-{vendor}"
        place.mkdir(parents=True)
        say(f"adapters: {name}, {steps} steps, {'its own store' if vendor else OURS}")
        done = subprocess.run(
            [python, "-m", "benchmarks.adapters", name, str(int(vendor)), str(steps), place],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
            stdout=subprocess.PIPE,
            check=True,
        )
        yield vendor, json.loads(done.stdout.splitlines()[-1])
        subprocess.run(["rm", "-rf", place], check=True)  # those of the vendors take a gigabyte


def _line(name: str, store: str, steps: int, found: dict[str, float]) -> list[str]:
    figures = (
        f"{found['bytes'] / 1e6:,.1f} MB",
        f"{found['save'] * 1e3:.1f} ms",
        f"{found['latest'] * 1e3:.1f} ms",
    )
    return [name, store, str(steps), *figures]


def _rows(name: str, vendors: str, steps: int, results: dict[bool, dict[str, float]]) -> list[Row]:
    ours, theirs = results[False], results.get(True)
    return [
        Row(
            f"{name}: {what} ÷ {vendors}'s, {steps} steps",
            None if theirs is None else ours[what] / theirs[what],
            1,
        )
        for what in ("bytes", "save", "latest")
    ]


if __name__ == "__main__":
    _, wanted, is_vendor, count, where = sys.argv
    print(json.dumps(asyncio.run(_measure(wanted, is_vendor == "1", int(count), Path(where)))))
