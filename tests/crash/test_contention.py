"""Many processes, threads, forks and cancelled tasks on one session: nothing lost, nothing twice, nothing leaked."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stepkeep
from stepkeep import Store
from stepkeep.storage.sqlite import BUSY_SECONDS
from tests.crash.stores import KINDS, backend_of


def opened(kind: str, root: Path) -> Store:
    """A store that waits for others as long as it does by default."""
    return Store(backend_of(kind, root, busy_seconds=BUSY_SECONDS))


def forked(work: Callable[[], None]) -> int:
    """Start a process of its own; its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def ended_well(children: list[int]) -> bool:
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return not any(codes)


def saver(kind: str, root: Path, name: int, count: int) -> None:
    """Save, and write down outside the store what was acknowledged, after it was."""
    oracle = os.open(root / f"acks-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with opened(kind, root) as store:
        run = store.get("r")
        for n in range(count):
            seq = run.save({"writer": name, "n": n}).seq
            os.write(oracle, f"{seq} {name} {n}\n".encode())


def keeper(kind: str, root: Path, keep: int) -> None:
    """Prune and clean until the savers are done."""
    with opened(kind, root) as store:
        while not (root / "done").exists():
            store.get("r").prune(keep_last=keep)
            store.session("old", profile="workflow", cleanup={"retention_days": 0}).save(
                {"n": 1}, status="completed"
            )
            assert store.clean().errors == ()
            time.sleep(0.01)


def acknowledged(root: Path) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for file in root.glob("acks-*"):
        for line in file.read_text().split("\n")[:-1]:
            seq, writer, n = map(int, line.split())
            assert seq not in found, "a number was given twice"
            found[seq] = writer, n
    return found


def contend(kind: str, root: Path, processes: int, saves: int) -> str:
    keep = 50
    with opened(kind, root) as store:
        store.session("r", profile="archive")
    keeping = [forked(lambda: keeper(kind, root, keep))]
    savers = [forked(lambda name=name: saver(kind, root, name, saves)) for name in range(processes)]  # type: ignore[misc]
    try:
        assert ended_well(savers)
    finally:
        (root / "done").touch()
    assert ended_well(keeping)
    acked = acknowledged(root)
    assert sorted(acked) == list(range(1, processes * saves + 1))
    with opened(kind, root) as store:
        run = store.get("r")
        assert store.verify().findings == ()  # a number that is neither stored nor pruned would be one
        seqs = [header.seq for header in run.history()]
        assert seqs[:keep] == list(range(processes * saves, 0, -1))[:keep]
        for header in run.history():
            state = run.load(header.id).state
            assert (state["writer"], state["n"]) == acked[header.seq]
    return f"{processes} processes on {kind}: {len(acked):,} acknowledged, none lost, none twice, no gap"


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_4_processes_with_a_pruner_and_a_cleaner(
    tmp_path: Path, kind: str, tell: Callable[[str], None]
) -> None:
    """Every number is acknowledged once, and what must stay is there, as its writer saved it."""
    tell(contend(kind, tmp_path, 4, 25))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_16_processes_with_200_saves(tmp_path: Path, kind: str, tell: Callable[[str], None]) -> None:
    """The same with 16 processes."""
    tell(contend(kind, tmp_path, 16, 200))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["sqlite", "files-run"])
def test_threads_forks_and_cancelled_tasks_at_once(tmp_path: Path, kind: str) -> None:
    """Threads save, children are forked amid it, tasks are cancelled: numbers without a hole, all loadable."""
    with opened(kind, tmp_path) as store:
        run = store.session("r", profile="archive")
        threads = [threading.Thread(target=lambda: [run.save({"n": n}) for n in range(20)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        children = [forked(lambda: [run.save({"child": n}) for n in range(3)] and None) for _ in range(4)]
        cancelled = asyncio.run(_cancelled(store))
        for thread in threads:
            thread.join()
        assert ended_well(children)
    with opened(kind, tmp_path) as store:
        run = store.get("r")
        seqs = sorted(header.seq for header in run.history())
        assert seqs == list(range(1, len(seqs) + 1))
        assert 60 + 12 <= len(seqs) <= 60 + 12 + cancelled
        assert store.verify().is_intact


async def _cancelled(store: Store) -> int:
    """Start saves in tasks and give them up; each is stored whole or not at all."""

    loop = asyncio.get_running_loop()

    def save(n: int, begun: asyncio.Event) -> None:
        loop.call_soon_threadsafe(begun.set)
        store.get("r").save({"task": n})

    count = 10
    for n in range(count):
        begun = asyncio.Event()
        task = asyncio.create_task(asyncio.to_thread(save, n, begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    return count


def soak(kind: str, root: Path, saves: int) -> str:
    """Save for long; open files, threads and memory are at the end what they were after the first tenth."""
    with opened(kind, root) as store:
        run = store.session("r", profile="archive")
        measured = []
        for n in range(saves):
            run.save({"n": n, "text": "x" * 600})
            if n % 200 == 199:
                run.prune(keep_last=100)
            if n in (saves // 10, saves - 1):
                gc.collect()
                measured.append(
                    (len(os.listdir("/proc/self/fd")), threading.active_count(), _resident_kib())  # noqa: PTH208
                )
        (files, threads, before), (files_then, threads_then, after) = measured
    assert files_then <= files + 2
    assert threads_then <= threads
    assert after - before < 32 * 1024
    return (
        f"{saves:,} saves on {kind}: files {files} to {files_then}, threads {threads} to {threads_then}, "
        f"memory {before:,} to {after:,} KiB"
    )


def _resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


@pytest.mark.full
@pytest.mark.parametrize("kind", ["sqlite", "files-run"])
def test_600_saves_leak_nothing(tmp_path: Path, kind: str, tell: Callable[[str], None]) -> None:
    """Open files, threads and memory stay flat."""
    tell(soak(kind, tmp_path, 600))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "files-run"])
def test_100000_saves_leak_nothing(tmp_path: Path, kind: str, tell: Callable[[str], None]) -> None:
    """The same for long."""
    tell(soak(kind, tmp_path, 100_000))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_killed_savers_with_an_oracle_outside(tmp_path: Path, kind: str) -> None:
    """Savers killed at odd moments: what they wrote down as acknowledged is there, whole."""
    with opened(kind, tmp_path) as store:
        store.session("r", profile="archive")
    for round_ in range(6):
        enough = len(acknowledged(tmp_path)) + 3 * round_
        child = forked(lambda round_=round_: saver(kind, tmp_path, round_, 10_000))  # type: ignore[misc]
        while len(acknowledged(tmp_path)) < enough:
            time.sleep(0.001)
        os.kill(child, 9)
        os.waitpid(child, 0)
    acked = acknowledged(tmp_path)
    with opened(kind, tmp_path) as store:
        run = store.get("r")
        found = {header.seq: run.load(header.id).state for header in run.history()}
        assert sorted(found) == list(range(1, len(found) + 1))
        for seq, (writer, n) in acked.items():
            assert found[seq] == {"writer": writer, "n": n}
        assert store.verify().is_intact
    assert isinstance(run, stepkeep.Session)
