"""Stopped at every call to the file system, and refused by it: nothing acknowledged is lost, nothing is half there."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

import stepkeep
from stepkeep.errors import BackendUnavailable
from stepkeep.storage import sqlite
from stepkeep.storage.files import FilesBackend, Layout, sidecar
from stepkeep.testing import FakeClock
from tests.storage_files.test_store import documents, names, opened

CALLS = ("open", "write", "pwrite", "fsync", "link", "rename", "unlink", "mkdir", "rmdir")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


class Stopped(BaseException):
    """The process is gone: nothing after this is done."""


@contextmanager
def acting(act: Callable[[str, int], None]) -> Iterator[list[str]]:
    """Before each call of the file system, `act` gets its name and number."""
    made: list[str] = []
    originals = {name: getattr(os, name) for name in CALLS}

    def wrap(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            made.append(name)
            act(name, len(made))
            return originals[name](*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, wrap(name))
    try:
        yield made
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def in_child(work: Callable[[], None]) -> int:
    """Run it in a process of its own; how that ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def operations(backend: FilesBackend, store: stepkeep.Store, kind: str) -> None:
    run = store.get("r")
    if kind == "save":
        run.save({"n": 100})
    elif kind == "remove":
        backend.remove(run.info.uid, [run.load(1).id, run.load(3).id])
    elif kind == "compress":
        backend.compress(2**60, limit=2)
    else:
        backend.delete_session(store.get("other").info.uid)


@pytest.mark.full
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(
    "kind",
    ["save", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("remove", "compress", "delete"))],
)
@pytest.mark.parametrize(
    "is_alive",
    [pytest.param(True, marks=pytest.mark.slow, id="another process"), pytest.param(False, id="reopened")],
)
def test_killed_at_every_call(tmp_path: Path, layout: Layout, kind: str, is_alive: bool) -> None:
    """Whichever call is the last, what was acknowledged is there, and the next one goes on, in any process."""
    for stop_at in range(1, 100):
        root = tmp_path / str(stop_at)
        with opened(root, layout) as store:
            run = store.session("r", profile="archive")
            for n in range(3):
                run.save({"n": n})
            store.session("other").save({"other": True})
        bystander = FilesBackend(root) if is_alive else None
        code = in_child(lambda root=root, stop_at=stop_at: stopped_at(root, kind, stop_at))  # type: ignore[misc]
        assert code in (0, 9)
        store = stepkeep.Store(bystander or FilesBackend(root))
        with store:
            check(store, layout, kind, is_done=code == 0)
        with opened(root) as store:
            assert store.verify().is_intact
        leftover = [name for name in names(root) if "/.tmp-" in name]
        assert len(leftover) <= 1
        if code == 0:
            return
    pytest.fail("it never came to an end")


def stopped_at(root: Path, kind: str, stop_at: int) -> None:
    backend = FilesBackend(root)
    store = stepkeep.Store(backend)

    def act(_: str, number: int) -> None:
        if number == stop_at:
            os._exit(9)

    with acting(act):
        operations(backend, store, kind)


def check(store: stepkeep.Store, layout: Layout, kind: str, *, is_done: bool) -> None:
    run = store.get("r")
    seqs = [header.seq for header in run.history()]
    if kind == "save":
        new = run.save({"n": 101}).seq
        after = {header.seq: run.load(header.id).state["n"] for header in run.history()}
        assert {seq: after[seq] for seq in (1, 2, 3)} == {1: 0, 2: 1, 3: 2}
        assert new in (4, 5)
        assert after[new] == 101
        assert (100 in after.values()) or not is_done
        assert sorted(after) == list(range(1, new + 1))
        return
    if kind == "remove":
        assert seqs == [2] if is_done else seqs in ([2], [3, 2, 1])
    if kind == "delete" and is_done:
        assert [session.key for session in store.sessions()] == ["r"]
    assert run.save({"n": 101}).seq == 4
    for header in run.history():
        assert run.load(header.id).state["n"] in (header.seq - 1, 101)


@pytest.mark.full
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_refused_at_every_call(tmp_path: Path, layout: Layout, error: int) -> None:
    """A failed call is a failed save: older checkpoints are untouched, the new one is not there, the next works."""
    for fail_at in range(1, 100):
        root = tmp_path / str(fail_at)
        with opened(root, layout) as store:
            run = store.session("r", profile="archive")
            run.save({"n": 0})

            def act(name: str, number: int, fail_at: int = fail_at) -> None:
                if number == fail_at:
                    raise OSError(error, os.strerror(error), name)

            failure = None
            with acting(act) as made:
                try:
                    run.save({"n": 1})
                except BackendUnavailable as exc:
                    failure = exc
            is_over = len(made) < fail_at
            if failure is not None:
                assert failure.code == "checkpoint_atomic_write_failed"
                assert failure.retryable == (error == errno.EIO)
            stored = [run.load(header.id).state["n"] for header in run.history()]
            assert stored == ([0] if failure is not None else [1, 0])
            assert run.save({"n": 2}).seq == len(stored) + 1
        with opened(root) as store:
            assert store.verify().is_intact
            assert store.get("r").latest().state == {"n": 2}
        if is_over:
            return
    pytest.fail("it never came to an end")


@pytest.mark.parametrize("layout", Layout)
def test_a_failed_sync_throws_the_file_away(
    root: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never synced again: the answer would not be true."""
    with opened(root, layout) as store:
        run = store.session("r", profile="archive")
        run.save({"n": 0})
        before = names(root)
        synced: list[int] = []

        def refuse(descriptor: int) -> None:
            synced.append(os.fstat(descriptor).st_ino)
            raise OSError(errno.EIO, "broken")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            with pytest.raises(BackendUnavailable):
                run.save({"n": 1})
        assert len(synced) == len(set(synced))
        assert names(root) == before
        run.save({"n": 1})
        assert run.latest().state == {"n": 1}


@pytest.mark.parametrize("layout", Layout)
def test_a_file_system_without_links(root: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are claimed and copies made instead; the files are the same."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    with opened(root, layout) as store:
        run = store.session("r", profile="archive")
        ids = [run.save({"n": n}).id for n in range(5)]
        run.delete(ids[4])
    with opened(root) as store:
        run = store.get("r")
        assert [run.load(id).state["n"] for id in ids[:4]] == [0, 1, 2, 3]
        assert run.verify().is_intact


@pytest.mark.parametrize("layout", Layout)
def test_short_writes_are_failed_saves(root: Path, layout: Layout) -> None:
    """A file that may not grow as far as it must leaves nothing behind."""
    with opened(root, layout) as store:
        run = store.session("r", profile="archive")
        run.save({"n": 0})
        before = names(root)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            for limit in (4096, 300_000, 1_000_000):
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
                with pytest.raises(BackendUnavailable):
                    run.save({"text": "x" * 1_000_000})
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
                assert names(root) == before
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, old)
        assert run.save({"n": 1}).seq == 2
        assert run.latest().state == {"n": 1}


def test_old_temporary_files_are_cleaned(root: Path) -> None:
    """Those of a crash, after an hour; a young one may be a writer's and stays; readers never see them."""
    clock = FakeClock(round(time.time() * 1_000_000))
    backend = FilesBackend(root, layout=Layout.RUN, clock=clock)
    with stepkeep.Store(backend, clock=clock) as store:
        run = store.session("r", profile="archive")
        run.save({"n": 0})
        folder = root / "checkpoints/r/history"
        for name, age in ((".tmp-old", 2 * 3600), (".tmp-young", 60)):
            (folder / name).write_text("half")
            moment = clock() / 1_000_000 - age
            os.utime(folder / name, (moment, moment))
        backend.sweep()
        assert {file.name for file in folder.iterdir() if file.name.startswith(".tmp")} == {".tmp-young"}
        assert len(list(run.history())) == 1
    assert len(documents(root)) == 3


@pytest.mark.parametrize("layout", Layout)
def test_a_failed_commit_takes_the_documents_back(
    root: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document was durable, the sidecar's commit was not: nothing is stored, and the number is free."""
    with opened(root, layout) as store:
        run = store.session("r", profile="archive")
        run.save({"n": 0})
        before = {file: file.read_bytes() for file in documents(root)}

        def fails_once(connection: Any, work: Callable[[Any], Any]) -> Any:
            monkeypatch.undo()
            connection.run("BEGIN IMMEDIATE")
            work(connection)
            connection.run("ROLLBACK")
            raise apsw.IOError("the commit could not be synced")

        monkeypatch.setattr("stepkeep.storage.sqlite._transaction", fails_once)
        with pytest.raises(BackendUnavailable):
            run.save({"n": 1})
        assert {file: file.read_bytes() for file in documents(root)} == before
        assert [header.seq for header in run.history()] == [1]
        assert run.save({"n": 2}).seq == 2
        assert run.verify().is_intact


def failing(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let that transaction of the index fail, counted from now on."""
    before, calls = sqlite._transaction, itertools.count(1)

    def transaction(connection: Any, work: Callable[[Any], Any]) -> Any:
        if next(calls) != number:
            return before(connection, work)
        monkeypatch.undo()
        connection.run("BEGIN IMMEDIATE")
        work(connection)
        connection.run("ROLLBACK")
        raise apsw.IOError("the commit could not be synced")

    monkeypatch.setattr(sqlite, "_transaction", transaction)


@pytest.mark.parametrize("layout", Layout)
def test_what_a_commit_left_to_remove_fails_no_call(
    root: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoints are gone, which is all that was asked. Their files go with the next write."""
    with opened(root, layout) as store:
        run = store.session("r", profile="archive")
        for number in range(3):
            run.save({"n": number})
        failing(monkeypatch, 2)
        assert run.prune(keep_last=1).deleted == 2
        assert "stay for now" in caplog.text
        assert [header.seq for header in run.history()] == [3]
        run.save({"n": 3})
        held = [document.read_text(encoding="utf-8") for document in documents(root)]
        assert not any('"n":0' in each or '"n":1' in each for each in held)
        assert store.verify().is_intact


def test_a_rebuild_whose_commit_fails_is_undone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It announces nothing: it puts right what it finds. What it wrote goes again, and the next one does it anew."""
    with opened(root, Layout.RUN) as store:
        run = store.session("r", profile="archive")
        run.save({"n": 0})
        newest = run.save({"n": 1}).id
    next((root / "checkpoints/r/history").glob(f"*{newest}*")).unlink()
    before = {file: file.read_bytes() for file in documents(root)}
    failing(monkeypatch, 1)
    with pytest.raises(BackendUnavailable), opened(root, Layout.RUN):
        pass
    assert {file: file.read_bytes() for file in documents(root)} == before
    with opened(root, Layout.RUN) as store:
        assert store.get("r").load(newest).state == {"n": 1}
        assert len(documents(root)) == len(before) + 1
        assert store.verify().is_intact


def test_a_second_name_of_a_document_goes_without_its_bytes(root: Path) -> None:
    """A save that is killed between the link into the history and the rename leaves one.

    The first to write after it may be a deletion, which overwrites what it was asked to remove, and nothing else.
    """
    with opened(root, Layout.WORKFLOW) as store:
        run = store.session("r", profile="archive")
        for number in range(2):
            run.save({"n": number})
        folder = root / "sessions/r"
        secret = next((folder / "history").iterdir())
        copy = root.parent / "copy.json"
        os.link(secret, copy)
        os.link(folder / "checkpoint.json", folder / "history/checkpoint-20990101-000000.json")
        sidecar.announce(root, "99")
        run.delete("seq:1")
        assert not (folder / "history").exists()
        assert not any(copy.read_bytes()), "who deletes a secret wants its bytes gone under every name"
        assert run.load().state == {"n": 1}
        assert store.verify().is_intact
