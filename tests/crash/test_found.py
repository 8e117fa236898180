"""What the crash tests found, each as a test of its own, so that it stays mended."""

from __future__ import annotations

import struct
from pathlib import Path

import apsw
import pytest

import stepkeep
from stepkeep import Store
from stepkeep.storage import sqlite
from stepkeep.storage.sqlite import SqliteBackend
from tests.crash.operations import OPERATIONS
from tests.crash.points import KILL, ON, ONCE, Fault, Scene
from tests.crash.stores import FILES


def violations(scene: Scene, method: str, *names: str) -> list[str]:
    """What a method finds at the calls of these names. Every fault must be reached."""
    found: list[str] = []
    for fault in scene.faults(reads=False):
        if fault.method == method and fault.call.name in names:
            problems = scene.inject(fault)
            found += ["not reached"] if problems is None else problems
    return found


@pytest.mark.full
@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("method", [ON, ONCE])
def test_a_commit_that_fails_and_comes_true_after_all_has_its_document(kind: str, method: str) -> None:
    """A failed sync leaves the commit in the log: the checkpoint is wholly there, or wholly not."""
    with Scene(OPERATIONS["save"], kind) as scene:
        assert violations(scene, method, "fdatasync") == []


@pytest.mark.full
@pytest.mark.usefixtures("strace")
def test_one_refused_open_does_not_make_the_store_read_only_for_ever() -> None:
    """SQLite opens its shared memory read-only when it cannot do better: the next attempt starts anew."""
    with Scene(OPERATIONS["save"], "sqlite") as scene:
        for call in scene.calls():
            if call.name == "openat" and call.path.endswith("-shm"):
                inject = f"openat:error=EMFILE:when={call.number}"
                assert scene.inject(Fault(ONCE, call, inject)) == []


@pytest.mark.full
@pytest.mark.usefixtures("strace")
def test_a_restore_of_files_that_partly_failed_is_finished_and_undone_as_one() -> None:
    """What could not be moved is told; a repeat finishes it, and the undo leads back to before the first attempt."""
    with Scene(OPERATIONS["restore of files"], "sqlite") as scene:
        assert violations(scene, ONCE, "renameat", "mkdirat", "fsync") == []


@pytest.mark.full
@pytest.mark.usefixtures("strace")
def test_a_stopped_deletion_of_the_newest_overwrites_no_other() -> None:
    """The one before it is in its place already when the process is killed: it is not taken for the deleted one."""
    with Scene(OPERATIONS["delete newest"], "files-workflow") as scene:
        assert violations(scene, KILL, "renameat", "fsync", "unlinkat") == []


@pytest.mark.full
@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("kind", FILES)
def test_a_document_that_is_taken_up_has_the_files_it_names(kind: str) -> None:
    """The saver was killed between its document and the commit: the checkpoint is there with all of its files."""
    with Scene(OPERATIONS["capture of files"], kind) as scene:
        assert violations(scene, KILL, "linkat", "unlinkat", "renameat", "fdatasync") == []


def test_a_store_whose_first_page_never_came_is_made_anew(tmp_path: Path) -> None:
    """Its size reached the disk and its bytes did not: nothing was acknowledged, and it opens as a new store."""
    path = tmp_path / "h.db"
    path.write_bytes(bytes(4096))
    with Store(SqliteBackend(path)) as store:
        store.session("r").save({"n": 1})
    with Store(SqliteBackend(path)) as store:
        assert store.get("r").load().state == {"n": 1}


def test_a_first_page_that_its_journal_takes_back_is_made_anew(tmp_path: Path) -> None:
    """The journal says that there was no page before: what SQLite then makes has all settings of a store."""
    path = tmp_path / "h.db"
    path.write_bytes(bytes(4096))
    header = bytes.fromhex("d9d505f920a163d7") + struct.pack(">5I", 0, 1, 0, 512, 4096)
    Path(f"{path}-journal").write_bytes(header.ljust(512, b"\0"))
    with Store(SqliteBackend(path)) as store:
        store.session("r").save({"n": 1})
    with Store(SqliteBackend(path)) as store:
        assert store.get("r").load().state == {"n": 1}


@pytest.mark.parametrize("cut", [0, 512, 2048])
def test_a_first_page_that_was_not_written_whole_comes_back_from_its_journal(
    tmp_path: Path, cut: int
) -> None:
    """Leaving or entering the mode of a log writes the first page in place; its journal has it as it was."""
    path = tmp_path / "h.db"
    with Store(SqliteBackend(path)) as store:
        store.session("r").save({"n": 1})
    sqlite.make_single_file(path)
    content = path.read_bytes()
    page, pages = content[:4096], len(content) // 4096
    head = bytes.fromhex("d9d505f920a163d7") + struct.pack(">5I", 1, 0, pages, 512, 4096)
    record = struct.pack(">I", 1) + page + struct.pack(">I", sum(page[4096 - 200 : 0 : -200]))
    Path(f"{path}-journal").write_bytes(head.ljust(512, b"\0") + record)
    path.write_bytes(page[:cut].ljust(4096, b"\0") + content[4096:])
    with Store(SqliteBackend(path)) as store:
        assert store.get("r").load().state == {"n": 1}
        assert store.verify().findings == ()


def test_a_first_page_that_is_only_in_the_log_is_read_from_there(tmp_path: Path) -> None:
    """The log is durable before pages are moved into the database."""
    path = tmp_path / "h.db"
    store = Store(SqliteBackend(path))
    store.session("r").save({"n": 1})
    copied = tmp_path / "copy.db"
    with apsw.Connection(str(path)) as connection:
        connection.execute(
            "PRAGMA application_id = 1398033232"
        ).fetchall()  # brings the first page into the log
    Path(f"{copied}-wal").write_bytes(Path(f"{path}-wal").read_bytes())
    copied.write_bytes(bytes(4096) + path.read_bytes()[4096:])
    store.close()
    with Store(SqliteBackend(copied)) as store:
        assert store.get("r").load().state == {"n": 1}


def test_a_file_of_another_program_that_begins_with_zeros_stays_as_it_is(tmp_path: Path) -> None:
    """Only a file of nothing but zeros is taken for an unfinished store."""
    path = tmp_path / "h.db"
    content = bytes(4096) + b"of somebody else"
    path.write_bytes(content)
    with pytest.raises(stepkeep.InvalidInput):
        SqliteBackend(path)
    assert path.read_bytes() == content


def test_a_close_that_fails_closes_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is left open that would keep the next opening from working."""
    store = Store(SqliteBackend(tmp_path / "h.db"))
    store.session("r").save({"n": 1})
    backend = store.engine.backend
    assert isinstance(backend, SqliteBackend)

    def refuse(_: object) -> bool:
        raise apsw.IOError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(sqlite._SqliteConnection, "truncate_wal", refuse)
        with pytest.raises(stepkeep.BackendUnavailable):
            store.close()
    assert backend._writer is None
    assert backend._idle == []
