"""Our adapters beside the frameworks' own durable stores, each pair in the environment of its framework.

`./dev interop` makes these environments; a framework without one is left out. One conversation or workflow grows by
about 2 KB a step, and everything is kept. Measured through the framework's interface: a save (median of the last
tenth), the bytes on disk when the store is closed, and reading the latest: the first time after opening the store, and
once more (medians of five openings).

A save of ours is on the disk when it returns. So is one of the vendors' databases, which leave SQLite at
`synchronous=FULL`; their files are not. Those are measured a second time with each file and its directory synced, by
the same code of the vendor, and that is what a save of ours is held to.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from benchmarks.cold import ROOT
from benchmarks.growth import bytes_in
from benchmarks.parts import Part, Row, Table
from benchmarks.timing import say
from benchmarks.workloads import SEED, text

STEPS: Final = (50, 1000)
OPENINGS: Final = 5
OURS: Final = "Stepkeep"
OWN: Final = "its own store"
SYNCED: Final = "its own store, synced"


@dataclass
class Subject:
    """One store: what a step saves, and what reads the latest."""

    store: Any
    save: Callable[[int, str], Awaitable[Any]]
    latest: Callable[[], Awaitable[Any]]

    async def close(self) -> None:
        if hasattr(self.store, "close"):
            closing = self.store.close()
            if closing is not None:
                await closing


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


@dataclass(frozen=True)
class Vendor:
    """The name of a vendor's store, how it is opened, and whether what it saved is on the disk when it says so."""

    name: str
    open: Callable[[bool, Path], Subject]
    is_synced: bool

    def stores(self) -> tuple[str, ...]:
        return (OWN,) if self.is_synced else (OWN, SYNCED)

    def called(self, store: str) -> str:
        if store == OURS:
            return OURS
        return (
            self.name if self.is_synced else f"{self.name}, {'synced' if store == SYNCED else 'not synced'}"
        )


FRAMEWORKS: Final = {
    "openai-agents": Vendor("SQLiteSession", openai_agents, is_synced=True),
    "adk": Vendor("SqliteSessionService", adk, is_synced=True),
    "agent-framework": Vendor("FileCheckpointStorage", agent_framework, is_synced=False),
    "strands": Vendor("LocalFileStorage", strands, is_synced=False),
}


def sync_files() -> None:
    """Let every file that takes the place of another be on the disk, with its name, before that returns."""
    replace = os.replace

    def replaced(source: Any, target: Any) -> None:
        _sync(source)
        replace(source, target)
        _sync(Path(target).parent)

    os.replace = replaced  # type: ignore[assignment]


def _sync(path: Any) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


# --- in the environment of a framework


async def _measure(name: str, store: str, steps: int, place: Path) -> dict[str, float]:
    if store == SYNCED:
        sync_files()
    opened, rng = FRAMEWORKS[name].open, random.Random(SEED)
    subject = opened(store != OURS, place)
    seconds: list[float] = []
    for step in range(steps):
        said = text(rng, 2000)
        started = perf_counter()
        await subject.save(step, said)
        seconds.append(perf_counter() - started)
    await subject.close()
    size, reads = bytes_in(place), {"first latest": list[float](), "latest again": list[float]()}
    for _ in range(OPENINGS):
        again = opened(store != OURS, place)
        for taken in reads.values():
            started = perf_counter()
            assert await again.latest() is not None
            taken.append(perf_counter() - started)
        await again.close()
    medians = {name: median(taken) for name, taken in reads.items()}
    return {"bytes": size, "save": median(seconds[-max(1, steps // 10) :]), **medians}


# --- in ours


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:
    """Measure every framework that has an environment; its own store only with peers."""
    lines: list[list[str]] = []
    rows: list[Row] = []
    for name, vendor in FRAMEWORKS.items():
        python = ROOT / "build" / "interop" / name / "bin" / "python"
        if not python.exists():
            say(f"benchmarks: without {name}: `./dev interop {name}` makes its environment")
            continue
        stores = (OURS, *vendor.stores()) if with_peers else (OURS,)
        for steps in STEPS[: 1 if quick else None]:
            results = {store: _measured(python, name, store, steps, directory) for store in stores}
            lines += [_line(name, vendor.called(store), steps, found) for store, found in results.items()]
            rows += _rows(name, vendor, steps, results)
    names = ("framework", "store", "steps", "stored", "save, p50", "first latest", "latest again")
    return Part(tables=[Table("stores of agent frameworks", names, lines)], rows=rows)


def _measured(python: Path, name: str, store: str, steps: int, directory: Path) -> dict[str, float]:
    """One store in a process of the framework's environment."""
    place = directory / f"{name}-{steps}-{store.replace(' ', '-')}"
    place.mkdir(parents=True)
    say(f"adapters: {name}, {steps} steps, {store}")
    done = subprocess.run(
        [python, "-m", "benchmarks.adapters", name, store, str(steps), place],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
        stdout=subprocess.PIPE,
        check=True,
    )
    shutil.rmtree(place)  # those of the vendors take a gigabyte
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _line(name: str, store: str, steps: int, found: dict[str, float]) -> list[str]:
    figures = (
        f"{found['bytes'] / 1e6:,.2f} MB",
        f"{found['save'] * 1e3:.2f} ms",
        f"{found['first latest'] * 1e3:.2f} ms",
        f"{found['latest again'] * 1e3:.2f} ms",
    )
    return [name, store, str(steps), *figures]


def _rows(name: str, vendor: Vendor, steps: int, results: dict[str, dict[str, float]]) -> list[Row]:
    """Ours beside the vendor's; a save beside what is as durable."""
    ours, durable = results[OURS], vendor.stores()[-1]
    return [
        Row(
            f"{name}: {what} ÷ {vendor.called(store)}'s, {steps} steps",
            ours[what] / results[store][what] if store in results else None,
            1,
        )
        for what, store in (("bytes", OWN), ("save", durable), ("first latest", OWN), ("latest again", OWN))
    ]


if __name__ == "__main__":
    _, wanted, kind, count, where = sys.argv
    print(json.dumps(asyncio.run(_measure(wanted, kind, int(count), Path(where)))))
