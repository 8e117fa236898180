"""Many processes on one server, which may be killed in the middle: nothing acknowledged is lost, nothing is doubled."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.api import Store
from stepkeep.errors import BackendUnavailable, StepkeepError
from stepkeep.maintenance.prune import prune_session
from stepkeep.policy.retention import Retention
from stepkeep.storage.postgres import PostgresBackend
from stepkeep.testing.builders import append, draft, item, keyframe, new_blob, new_session
from tests import interpreter
from tests.api import programs
from tests.postgres.access import PostgresAccess
from tests.postgres.server import Server

ROOT = Path(__file__).parents[2]
SOURCE = Path(stepkeep.__file__).parents[1]


# --- in the child ----------------------------------------------------------------------------------------------


def open_store(url: str) -> Store:
    """A store without a keeper: only the test prunes."""
    return Store(PostgresBackend(url))


def open_together(url: str, processes: int) -> None:
    """Fork so many processes that open the store at one moment and save once; all must end well."""
    ready, go = os.pipe()
    children = [os.fork() for _ in range(processes) if os.getpid() == PARENT]
    if os.getpid() != PARENT:
        os.close(go)
        os.read(ready, 1)  # ends when the last one is there
        os._exit(_opened(url))
    os.close(go)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(ready)
    assert ends == [0] * processes, ends


PARENT = os.getpid()


def _opened(url: str) -> int:
    try:
        with open_store(url) as store:
            store.session("run").save({"pid": os.getpid()})
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def save_many(url: str, writer: str, count: int) -> None:
    """Save into a session of its own and into one that all share, in turn."""
    with open_store(url) as store:
        own, shared = (store.session(key, profile="archive") for key in (writer, "shared"))
        for number in range(count):
            session = own if number % 2 else shared
            session.save(programs.state_of(writer, number))


def save_stubbornly(url: str, writer: str, count: int) -> None:
    """Save with keys, again and again while the server is away; `ACK writer n seq` is written when one returned."""
    store = _patiently(lambda: open_store(url))
    session = _patiently(lambda: store.session("run", profile="archive"))
    for number in range(count):
        state, key = programs.state_of(writer, number), f"{writer} {number}"
        header = _patiently(lambda s=state, k=key: session.save(s, idempotency_key=k))
        os.write(1, f"ACK {writer} {number} {header.seq}\n".encode())
        time.sleep(0.01)
    store.close()


def _patiently(work: Any) -> Any:
    for _ in range(600):
        try:
            return work()
        except BackendUnavailable as exc:
            if not exc.retryable:
                raise
            time.sleep(0.1)
    return work()


def prune_for_ever(url: str, until: str) -> None:
    """Prune and sweep until a file appears; how many were removed is printed."""
    removed = 0
    with open_store(url) as store:
        while not Path(until).exists():
            for info in store.sessions():
                done = prune_session(store.engine, info, Retention(keep_last=10))
                removed += done.deleted
            store.engine.backend.sweep()
    print(removed)


# --- in the test -----------------------------------------------------------------------------------------------


def start(call: str) -> subprocess.Popen[str]:
    """Run a function of this module in a process of its own."""
    environment = {**programs.environment(), "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"}
    code = f"from tests.postgres import test_concurrency as t; t.{call}"
    return interpreter.start(["-c", code], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


def finish(*processes: subprocess.Popen[str]) -> list[str]:
    """What they printed; all must have ended well."""
    try:
        outputs = [process.communicate(timeout=180)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes)
    return outputs


@pytest.mark.full
def test_many_open_an_empty_database_at_once(postgres: Server) -> None:
    """8 processes make the tables together, three times over, and none of them fails."""
    for _ in range(3):
        url = postgres.url(database=postgres.fresh_database())
        finish(start(f"open_together({url!r}, 8)"))
        with open_store(url) as store:
            assert store.engine.backend.usage().checkpoints == 8


def check_lines(store: Store, key: str, expected: int) -> dict[str, list[int]]:
    """The session has so many checkpoints without gap, intact, each as its writer saved it, and in its order."""
    session = store.get(key)
    found = list(session.history(newest_first=False))
    assert [header.seq for header in found] == list(range(1, expected + 1))
    assert session.verify().findings == ()
    numbers: dict[str, list[int]] = {}
    for header in found:
        state = store.checkpoint(header.id).state
        assert state == programs.state_of(state["writer"], state["n"])
        numbers.setdefault(state["writer"], []).append(state["n"])
    assert all(order == sorted(order) for order in numbers.values())
    return numbers


@pytest.mark.parametrize(
    ("processes", "saves"),
    [pytest.param(4, 60, marks=pytest.mark.full), pytest.param(16, 100, marks=pytest.mark.slow)],
)
def test_many_processes_save_and_nothing_is_lost(url: str, processes: int, saves: int) -> None:
    """Processes save into a session of their own and a shared one: all there, in order (V3, V9)."""
    open_store(url).close()
    for first in range(0, processes, 4):
        finish(*(start(f"save_many({url!r}, 'w{n}', {saves})") for n in range(first, first + 4)))
    with open_store(url) as store:
        shared = check_lines(store, "shared", processes * saves // 2)
        assert len(shared) == processes
        for n in range(processes):
            own = check_lines(store, f"w{n}", saves // 2)
            assert sorted(own[f"w{n}"] + shared[f"w{n}"]) == list(range(saves))


def wait_for_saves(url: str, count: int) -> None:
    """Return when so many checkpoints are stored."""
    with open_store(url) as store:
        for _ in range(6000):
            if store.engine.backend.usage().checkpoints >= count:
                return
            time.sleep(0.01)
    raise AssertionError("nobody saves")


def kill_in_the_middle(server: Server, *, writers: int, saves: int) -> None:
    """Kill the server while they save and start it again; check what they were told against what is there."""
    url = server.fresh_url()
    open_store(url).close()
    running = [start(f"save_stubbornly({url!r}, 'w{n}', {saves})") for n in range(writers)]
    wait_for_saves(url, random.randint(writers * saves // 10, writers * saves // 2))
    assert any(process.poll() is None for process in running), "they ended before the kill"
    server.kill()
    time.sleep(0.2)
    server.start()
    told = [line.split() for output in finish(*running) for line in output.splitlines()]
    acknowledged = {(writer, int(number)): int(seq) for _, writer, number, seq in told}
    with open_store(url) as store:
        check_lines(store, "run", writers * saves)
        kept = Counter(header.idempotency_key for header in store.get("run").history())
        assert set(kept.values()) == {1}
        for header in store.get("run").history():
            writer, number = str(header.idempotency_key).split()
            assert acknowledged[writer, int(number)] == header.seq


@pytest.mark.full
def test_a_killed_server_loses_nothing_and_doubles_nothing(own_server: Server) -> None:
    """What was acknowledged is there after the restart, and a save that is repeated with its key is there once."""
    kill_in_the_middle(own_server, writers=4, saves=40)


@pytest.mark.slow
def test_a_killed_server_loses_nothing_and_doubles_nothing_for_long(own_server: Server) -> None:
    """The same with 16 writers of 100 saves, ten times."""
    for _ in range(10):
        kill_in_the_middle(own_server, writers=16, saves=100)


@pytest.mark.full
def test_several_prune_while_others_save(postgres: Server, url: str, tmp_path: Path) -> None:
    """Two pruners and two savers on the same sessions: nothing goes twice, and what stays can be loaded (V5)."""
    open_store(url).close()
    over = tmp_path / "over"
    pruners = [start(f"prune_for_ever({url!r}, {str(over)!r})") for _ in range(2)]
    try:
        finish(*(start(f"save_many({url!r}, 'w{n}', 150)") for n in range(2)))
    finally:
        over.touch()
    removed = sum(int(output) for output in finish(*pruners))
    with open_store(url) as store:
        for info in store.sessions():
            session = store.get(info.key)
            assert session.verify().findings == ()
            for header in session.history():
                assert store.checkpoint(header.id).state["n"] >= 0
        left = store.engine.backend.usage().checkpoints
        assert left + removed == 300
    lost = "SELECT count(*) FROM {}.bodies b WHERE b.base IS NOT NULL AND b.is_redundant = 0 AND NOT EXISTS"
    lost += " (SELECT 1 FROM {}.bodies d WHERE d.sid = b.sid AND d.checkpoint = b.base AND d.name = b.name)"
    assert PostgresAccess(postgres, url).run(lost) == [(0,)]


@pytest.mark.full
def test_a_blob_that_a_save_names_is_never_swept(url: str) -> None:
    """Sweepers take the same blob again and again; whoever saved a checkpoint with it finds it (V5)."""
    backend = PostgresBackend(url)
    uids = [backend.create_session(new_session()).uid for _ in range(3)]
    blob = new_blob(b"wanted by all")

    def save_and_remove(uid: str) -> None:
        for number in range(80):
            new = draft(uid)
            sent = [blob] if number % 2 else []
            (answer,) = append(
                backend, item(new, bodies=[keyframe(new.id, blobs=(blob.digest,))], blobs=sent)
            )
            if isinstance(answer, StepkeepError):
                assert answer.code == "blob_gone"
                continue
            assert backend.blob(blob.digest) == blob
            backend.remove(uid, [new.id])

    is_over = threading.Event()

    def sweep() -> None:
        while not is_over.is_set():
            backend.sweep()

    with ThreadPoolExecutor(5) as pool:
        sweepers = [pool.submit(sweep) for _ in range(2)]
        savers = [pool.submit(save_and_remove, uid) for uid in uids]
        try:
            for saver in savers:
                saver.result()
        finally:
            is_over.set()
        for sweeper in sweepers:
            sweeper.result()
    backend.close()


def test_a_crowd_does_not_wait_for_one_commit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one commit is under way another one begins; a session is in one of them only, and keeps its order."""
    under_way: list[set[str]] = []
    met = threading.Event()
    inner = PostgresBackend.append

    def meeting(self: PostgresBackend, batch: Any, seal: Any) -> Any:
        sessions = {item.draft.session for item in batch}
        assert not any(sessions & others for others in under_way)
        under_way.append(sessions)
        if len(under_way) > 1:
            met.set()
        assert met.wait(60)
        try:
            return inner(self, batch, seal)
        finally:
            under_way.remove(sessions)

    with open_store(url) as store:
        sessions = [store.session(str(number)) for number in range(9)]
        monkeypatch.setattr(PostgresBackend, "append", meeting)
        with ThreadPoolExecutor(len(sessions) * 2) as threads:
            for number in range(1, 3):  # each session twice
                for session in sessions:
                    threads.submit(session.save, {"n": number})
        monkeypatch.undo()
        assert met.is_set()
        for session in sessions:
            assert [header.seq for header in session.history()] == [2, 1]
