"""Many writers at once: processes, threads and forks lose nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep.engine import NewBody, Save
from stepkeep.storage.port import Append, Appended, Seal
from tests import interpreter
from tests.api import programs


def check_complete(url: str, expected: int) -> dict[str, Any]:
    """Another process finds exactly so many checkpoints, numbered without gap or repeat, all intact."""
    found: dict[str, Any] = programs.run(programs.survey, url, "run")
    assert found["seqs"] == list(range(1, expected + 1))
    assert len(set(found["ids"])) == expected
    assert found["findings"] == []
    assert found["checkpoints"] == expected
    return found


def check_order_of_each_writer(found: dict[str, Any]) -> None:
    """The saves of one writer appear in the order it made them, and each holds the state it was given."""
    numbers: dict[str, list[int]] = {}
    for state in found["states"]:
        assert state == programs.state_of(state["writer"], state["n"])
        numbers.setdefault(state["writer"], []).append(state["n"])
    for writer, order in numbers.items():
        assert order == list(range(len(order))), writer


def processes_save(url: str, processes: int, saves: int) -> None:
    running = [programs.start(programs.save_many, url, "run", f"w{n}", saves) for n in range(processes)]
    numbers = [seq for process in running for seq in programs.finish(process)]
    assert sorted(numbers) == list(range(1, processes * saves + 1))
    check_order_of_each_writer(check_complete(url, processes * saves))


def threads_save(url: str, threads: int, saves: int) -> None:
    errors: list[BaseException] = []
    with stepkeep.open(url) as store:
        session = store.session("run", profile="archive")

        def work(writer: int) -> None:
            try:
                for number in range(saves):
                    session.save(programs.state_of(f"w{writer}", number))
            except BaseException as exc:
                errors.append(exc)

        running = [threading.Thread(target=work, args=(writer,)) for writer in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    assert errors == []
    check_order_of_each_writer(check_complete(url, threads * saves))


def test_processes_save_into_one_session(url: str) -> None:
    """Processes that create the store and save at once lose nothing; none sees a lock."""
    processes_save(url, processes=4, saves=15)


@pytest.mark.full
def test_8_processes_with_100_saves(url: str) -> None:
    """8 processes with 100 saves each: 800 checkpoints, numbered 1 to 800, no lock error."""
    processes_save(url, processes=8, saves=100)


def test_threads_save_into_one_session(url: str) -> None:
    """Threads that share a store lose nothing."""
    threads_save(url, threads=16, saves=10)


@pytest.mark.full
def test_16_threads_with_100_saves(url: str) -> None:
    """16 threads with 100 saves each: 1,600 checkpoints, numbered 1 to 1,600."""
    threads_save(url, threads=16, saves=100)


def test_threads_on_stores_of_their_own(url: str) -> None:
    """Several stores on one file in one process are as safe as several processes."""
    errors: list[BaseException] = []

    def work(writer: int) -> None:
        try:
            with stepkeep.open(url) as store:
                session = store.session("run", profile="archive")
                for number in range(15):
                    session.save(programs.state_of(f"w{writer}", number))
        except BaseException as exc:
            errors.append(exc)

    running = [threading.Thread(target=work, args=(writer,)) for writer in range(6)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert errors == []
    check_order_of_each_writer(check_complete(url, 90))


def test_many_openers_create_one_store(tmp_path: Path) -> None:
    """Whoever opens first creates the store; the others find it whole."""
    for attempt in range(3):
        url = f"sqlite:{tmp_path / str(attempt) / 'h.db'}"
        running = [programs.start(programs.outcome, url, f"k{n}") for n in range(5)]
        assert [programs.finish(process) for process in running] == [{"seq": 1}] * 5


def test_two_creators_of_one_session_share_it(url: str) -> None:
    """A session that someone else creates between the look and the write is the session."""
    with stepkeep.open(url) as store, stepkeep.open(url) as other:
        backend = store.engine.backend
        look = backend.session_by_key

        def late(key: str) -> Any:
            backend.session_by_key = look  # type: ignore[method-assign]
            found = look(key)
            other.session(key)
            return found

        backend.session_by_key = late  # type: ignore[method-assign]
        assert store.session("run").uid == other.session("run").uid


# --- forks -----------------------------------------------------------------------------------------------------


def test_forked_children_save_through_the_parents_store(url: str) -> None:
    """A child goes on with the `Store` it inherited; parent and children lose nothing."""
    result = programs.run(programs.fork_savers, url, "run", 3, 10, False)
    assert result["failed"] == 0
    check_order_of_each_writer(check_complete(url, result["saved"]))


@pytest.mark.full
def test_forks_while_threads_save(url: str) -> None:
    """Forking in the middle of other threads' saves neither hangs nor loses anything."""
    result = programs.run(programs.fork_savers, url, "run", 8, 20, True)
    assert result["failed"] == 0
    check_order_of_each_writer(check_complete(url, result["saved"]))


def test_a_fork_while_threads_save(url: str) -> None:
    """One fork in the middle of other threads' saves."""
    result = programs.run(programs.fork_savers, url, "run", 2, 5, True)
    assert result["failed"] == 0
    check_order_of_each_writer(check_complete(url, result["saved"]))


def test_multiprocessing_children_save_through_the_parents_store(url: str) -> None:
    """The same with `multiprocessing` and its fork method."""
    result = programs.run(programs.multiprocessing_savers, url, "run", 3, 10)
    assert result["failed"] == 0
    check_order_of_each_writer(check_complete(url, result["saved"]))


def test_a_child_outlives_its_parent(url: str, tmp_path: Path) -> None:
    """The parent ends first, another process opens and saves meanwhile, the child goes on: nothing is lost."""
    gate = tmp_path / "gate"
    pid = programs.run(programs.daemon, url, "run", str(gate), 20)
    try:
        for number in range(3):
            assert programs.run(programs.save_many, url, "run", f"other {number}", 4)
        gate.touch()
        wait_until(gate.with_suffix(".done").exists)
    finally:
        kill(pid)
    check_order_of_each_writer(check_complete(url, 1 + 20 + 12))


def test_a_child_does_not_wait_for_a_save_of_its_parent(url: str) -> None:
    """A save that was queued before a fork is the parent's: the child gets an error, and does not hang."""
    assert programs.run(programs.fork_with_a_queued_save, url, "run") == {"child": 0, "seq": 1}


def test_a_fork_during_an_open_keeps_nobody_out(url: str) -> None:
    """A child forked while a thread opens the store must not keep the creation lock for as long as it lives."""
    pid = programs.run(programs.fork_while_opening, url, "run")
    opener = programs.start(programs.outcome, url, "run")
    try:
        assert opener.wait(timeout=8) == 0
    except subprocess.TimeoutExpired:
        pytest.fail("the store cannot be opened while the forked child lives")
    finally:
        kill(pid)
        programs.finish(opener)


FORK_AMID_AN_IMPORT = """
import importlib.abc, os, signal, sys, threading, time
import stepkeep

NAME = "stepkeep.maintenance.metering"
begun = threading.Event()

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == NAME:
            begun.set()
            time.sleep(0.3)

with stepkeep.open(sys.argv[1]) as store:
    run = store.session("run")
    sys.modules.pop(NAME, None)
    sys.meta_path.insert(0, Slow())
    thread = threading.Thread(target=run.save, args=({"by": "parent"},))
    thread.start()
    begun.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        run.save({"by": "child"})
        os._exit(0)
    thread.join()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), run.info.last_seq)
"""


def test_a_fork_while_a_first_save_imports(url: str) -> None:
    """What a first save needs is imported by its thread; a child forked amid it does not wait for that thread."""
    done = interpreter.python("-c", FORK_AMID_AN_IMPORT, url)
    assert done.stdout == b"0 2\n", done.stderr


def test_a_failed_connection_does_not_hang_close(url: str) -> None:
    """A reader that gets no connection gives its place back, so that `close` and forks need not wait for it."""
    assert programs.run(programs.close_after_failed_connection, url, "run") == "store_not_writable"


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


# --- a saver and a sweeper, step by step -----------------------------------------------------------------------


class Interleaved:
    """Runs something between the moment a save is encoded and the moment it is committed."""

    def __init__(self, store: stepkeep.Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[list[Append]] = []
        self._before: list[Callable[[], object]] = []
        self._append = store.engine.backend.append
        monkeypatch.setattr(store.engine.backend, "append", self._late)

    def before_next_commit(self, work: Callable[[], object]) -> None:
        self._before.append(work)

    def _late(self, batch: Sequence[Append], seal: Any) -> Any:
        while self._before:
            self._before.pop()()
        self.batches.append(list(batch))
        return self._append(batch, seal)


@pytest.fixture
def interleaved(store: stepkeep.Store, monkeypatch: pytest.MonkeyPatch) -> Interleaved:
    return Interleaved(store, monkeypatch)


def fill(session: stepkeep.Session, count: int) -> list[str]:
    return [session.save({"n": n, "text": "same words " * 120}).id for n in range(count)]


def test_a_base_that_is_swept_before_the_commit_is_answered_with_a_keyframe(
    store: stepkeep.Store, session: stepkeep.Session, url: str, interleaved: Interleaved
) -> None:
    """The saver encoded a delta, a sweeper took its base: the save arrives whole, and so does the next one."""
    ids = fill(session, 3)

    def sweep() -> None:
        with stepkeep.open(url) as other:
            removed = other.engine.backend.remove(session.uid, ids)
            assert set(removed.removed) == set(ids)
            other.engine.backend.sweep(session=session.uid)
            assert other.engine.backend.bodies(session.uid) == []

    interleaved.before_next_commit(sweep)
    fourth = session.save({"n": 3, "text": "same words " * 120})
    fifth = session.save({"n": 4, "text": "same words " * 120})
    assert [batch[0].bodies[0].base for batch in interleaved.batches[3:]] == [ids[2], None, fourth.id]
    assert (fourth.seq, fifth.seq) == (4, 5)
    assert session.load(4).state["n"] == 3
    assert programs.run(programs.survey, url, "run")["findings"] == []


def test_a_base_that_is_only_hidden_still_serves(
    session: stepkeep.Session, url: str, interleaved: Interleaved
) -> None:
    """A pruned base whose bytes others need may be based on."""
    ids = fill(session, 3)

    def remove() -> None:
        with stepkeep.open(url) as other:
            other.engine.backend.remove(session.uid, ids[:2])
            other.engine.backend.sweep(session=session.uid)

    interleaved.before_next_commit(remove)
    session.save({"n": 3, "text": "same words " * 120})
    assert interleaved.batches[-1][0].bodies[0].base == ids[2]
    assert session.load(3).state["n"] == 2
    assert session.load(4).state["n"] == 3
    assert session.verify().is_intact


def test_a_whole_group_whose_base_is_swept_is_sent_again(
    session: stepkeep.Session, url: str, interleaved: Interleaved
) -> None:
    """Several saves of one commit hang on the lost base: all arrive, in order."""
    ids = fill(session, 3)

    def sweep() -> None:
        with stepkeep.open(url) as other:
            other.engine.backend.remove(session.uid, ids)
            other.engine.backend.sweep(session=session.uid)

    interleaved.before_next_commit(sweep)
    with session._engine._committer._leader:
        pending = [session.save({"n": n, "text": "same words " * 120}, wait=False) for n in range(3, 9)]
    assert [each.result().seq for each in pending] == [4, 5, 6, 7, 8, 9]
    assert [session.load(seq).state["n"] for seq in range(4, 10)] == [3, 4, 5, 6, 7, 8]
    assert session.verify().is_intact


def test_a_blob_that_is_swept_before_the_commit_is_sent_again(
    store: stepkeep.Store, session: stepkeep.Session, url: str, interleaved: Interleaved
) -> None:
    """The saver saw that a blob is stored and did not send it; a sweeper took it: the save brings it back."""
    engine = store.engine
    blob = engine.make_blob(b"long output " * 100)
    body = NewBody(b'{"n":1}', "json", frozenset({blob.digest}))
    first = engine.save(Save(session=session.uid, state=body, blobs=(blob,)))

    def sweep() -> None:
        with stepkeep.open(url) as other:
            other.engine.backend.remove(session.uid, [first.id])
            other.engine.backend.sweep()
            assert other.engine.backend.has_blobs([blob.digest]) == set()

    interleaved.before_next_commit(sweep)
    second = engine.save(Save(session=session.uid, state=body, blobs=(blob,)))
    assert [len(batch[0].blobs) for batch in interleaved.batches] == [1, 0, 1]
    assert second.seq == 2
    with stepkeep.open(url) as other:
        other.engine.backend.sweep()
        assert other.engine.load_blob(blob.digest) == b"long output " * 100


def test_savers_that_wait_are_not_forgotten(store: stepkeep.Store, session: stepkeep.Session) -> None:
    """Two wait for one save and others for their own while somebody leads who then calls nobody: all get theirs."""
    committer = store.engine._committer
    with ThreadPoolExecutor(5) as pool:
        with committer._leader:  # as a leader that is interrupted before it calls the next one
            shared = session.save({"n": 0}, wait=False)
            both = [pool.submit(shared.result) for _ in range(2)]
            own = [pool.submit(session.save, {"n": n}) for n in (1, 2, 3)]
            while (
                len(committer._waiting) < 6
            ):  # the two, the three, and the thread that saves in the background
                time.sleep(0.01)
        headers = [waiting.result(timeout=60) for waiting in (*both, *own)]
    assert headers[0].id == headers[1].id == shared.id
    assert len({header.id for header in headers}) == 4
    assert sorted(header.seq for header in session.history()) == [1, 2, 3, 4]


@pytest.mark.full
def test_saves_of_many_threads_share_commits(
    store: stepkeep.Store, session: stepkeep.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one commits, the others queue, and one commit takes them all."""
    batches: list[int] = []
    backend = store.engine.backend
    append = backend.append

    def counted(batch: Sequence[Append], seal: Seal) -> list[Appended | stepkeep.StepkeepError]:
        batches.append(len(batch))
        return append(batch, seal)

    monkeypatch.setattr(backend, "append", counted)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: session.save({"n": n}), range(400)))
    assert sum(batches) == 400
    assert max(batches) > 1
    assert sorted(header.seq for header in session.history()) == list(range(1, 401))


def test_a_blob_is_kept_by_every_member_that_names_it(
    store: stepkeep.Store, session: stepkeep.Session
) -> None:
    """A delta lists only the blobs its base does not keep; when the base is pruned the blob stays (V5)."""
    engine = store.engine
    blob = engine.make_blob(b"kept " * 50)
    noise = random.Random(7).randbytes(800).hex().encode()
    ids = []
    for n in range(3):
        body = NewBody(b'{"text":"' + noise + b'%d"}' % n, "json", frozenset({blob.digest}))
        ids.append(engine.save(Save(session=session.uid, state=body, blobs=(blob,))).id)
    assert [len(info.blobs) for info in engine.backend.bodies(session.uid)] == [1, 0, 0]
    engine.backend.remove(session.uid, ids[:2])
    engine.backend.sweep()
    assert engine.load_blob(blob.digest) == b"kept " * 50
    session.delete(ids[2])
    with pytest.raises(stepkeep.NotFound):
        engine.load_blob(blob.digest)


def test_a_deleted_base_is_not_brought_back_by_a_late_saver(
    session: stepkeep.Session, url: str, path: Path
) -> None:
    """Someone deltas against a checkpoint between its re-encoding and its removal: the bytes still go."""
    secret = session.save({"n": 0, "text": "same words " * 120, "secret": os.urandom(40).hex()})
    with stepkeep.open(url) as deleter:
        backend = deleter.engine.backend
        remove = backend.remove

        def late(*arguments: Any, **options: Any) -> Any:
            session.save({"n": 1, "text": "same words " * 120})
            return remove(*arguments, **options)

        backend.remove = late  # type: ignore[method-assign]
        deleter.get("run").delete(secret.id)
    with programs.raw(path) as connection:
        left = programs.rows(connection, "SELECT count(*) FROM bodies WHERE checkpoint = ?", (secret.id,))
    assert left == [(0,)], "the deleted bytes live on as the base of a later checkpoint"
    assert session.load(2).state["n"] == 1


def test_a_load_that_races_with_a_delete_is_not_called_damage(session: stepkeep.Session, url: str) -> None:
    """A checkpoint deleted while it is being loaded is `NotFound`, not `Corrupt`."""
    ids = fill(session, 2)
    session._engine.forget(session.uid)  # nothing comes from memory
    backend = session._engine.backend
    chain = backend.body_chain

    def late(*arguments: Any) -> Any:
        with stepkeep.open(url) as other:
            other.get("run").delete(ids[1])
        setattr(backend, "body_chain", chain)  # noqa: B010
        return chain(*arguments)

    setattr(backend, "body_chain", late)  # noqa: B010
    with pytest.raises(stepkeep.NotFound):
        session.load(ids[1])


def locks_on(path: Path) -> list[str]:
    """The locks that this process has on a file."""
    inode = f":{path.stat().st_ino}"
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return [words[3] for words in lines if words[4] == str(os.getpid()) and words[5].endswith(inode)]


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the kernel does not tell its locks here")
def test_opening_a_store_twice_keeps_its_locks(tmp_path: Path) -> None:
    """A process that closes any file of its own drops all its locks on it; without them another process would take the
    log away when it closes."""
    path = tmp_path / "store.db"
    with stepkeep.open(path) as store:
        store.session("run").save({"n": 1})
        held = locks_on(path)
        if not held:
            pytest.skip("the kernel tells locks by other process ids here")
        with stepkeep.open(path) as again:
            again.session("run").save({"n": 2})
            assert set(locks_on(path)) == set(held)
        assert set(locks_on(path)) == set(held)
        store.session("run").save({"n": 3})
    assert locks_on(path) == []
