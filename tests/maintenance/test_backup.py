"""Backups of a store in use, and putting one back."""

from __future__ import annotations

import os
import random
import signal
import stat
import time
from pathlib import Path

import pytest

import stepkeep
from stepkeep import api
from stepkeep.api import Store
from stepkeep.errors import BackendUnavailable, Corrupt, InvalidInput, NotFound
from stepkeep.maintenance.backup import PARTIAL, dated_name
from stepkeep.storage.sqlite import SqliteBackend
from tests import interpreter
from tests.api.programs import environment, raw
from tests.maintenance.mixed import contents, fill

SAVER = """
import sys
from stepkeep.api import Store
from stepkeep.storage.sqlite import SqliteBackend
path, key = sys.argv[1:]
with Store(SqliteBackend(path)) as store:
    session = store.session(key, profile="archive")
    for number in range(1_000_000):
        header = session.save({"n": number, "log": ["the same words"] * (number % 50)})
        print(header.id, flush=True)
"""


def test_the_last_backup_is_told_everywhere(tmp_path: Path) -> None:
    """Status, doctor and metrics say when the last backup was made, and where it is; before, that there is none."""
    url = f"sqlite:{tmp_path / 'store.db'}"
    with stepkeep.open(url) as store:
        store.session("s").save({"n": 1})
        assert store.status().last_backup is None
        assert {each.name: each.verdict for each in store.doctor().symptoms}["backup"] == "ok"
        report = store.backup(tmp_path / "copy.db")
    with stepkeep.open(url) as store:
        last = store.status().last_backup
        assert last is not None
        assert (last.path, last.size_bytes, last.checkpoints) == (report.path, report.size_bytes, 1)
        assert store.stats().last_backup == last
        assert f"stepkeep_last_backup_timestamp_seconds {round(last.time.timestamp(), 3)}" in api.prometheus(
            store.stats()
        )
        (symptom,) = (each for each in store.doctor().symptoms if each.name == "backup")
        assert (symptom.verdict, str(tmp_path / "copy.db") in symptom.message) == ("ok", True)
    done = interpreter.stepkeep("status", "--store", url)
    assert "last backup" in done.stdout
    assert str(tmp_path / "copy.db") in done.stdout


def bare(path: Path) -> Store:
    """A store without a keeper."""
    return Store(SqliteBackend(path))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with bare(path) as store:
        fill(store)
    return path


def test_a_backup_equals_the_store(source: Path, tmp_path: Path) -> None:
    """Everything is in one file that only its owner may read, and nothing else is left beside it."""
    target = tmp_path / "backup" / "b.db"
    target.parent.mkdir()
    with bare(source) as store:
        report = store.backup(target)
        before = contents(store)
    assert (report.sessions, report.checkpoints, report.findings) == (3, 14, ())
    assert [path.name for path in target.parent.iterdir()] == ["b.db"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with bare(target) as copy:
        assert contents(copy) == before


def test_a_store_without_a_file_is_backed_up_too(tmp_path: Path) -> None:
    """By copying its sessions into one."""
    with stepkeep.open("memory:") as store:
        fill(store)
        before = contents(store)
        store.backup(tmp_path / "b.db")
    with bare(tmp_path / "b.db") as copy:
        assert contents(copy) == before


def test_an_existing_file_is_replaced_only_by_force(source: Path, tmp_path: Path) -> None:
    """Without it, it stays as it was."""
    target = tmp_path / "b.db"
    target.write_text("precious")
    with bare(source) as store:
        with pytest.raises(InvalidInput) as error:
            store.backup(target)
        assert error.value.code == "file_exists"
        assert target.read_text() == "precious"
        store.backup(target, force=True)
    with bare(target) as copy:
        assert copy.verify().is_intact


def test_a_pipe_or_device_is_never_replaced(source: Path, tmp_path: Path) -> None:
    """Whoever writes to a device such as /dev/null by force would take it away from the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with bare(source) as store:
        info = max(store.sessions(), key=lambda each: each.last_seq)
        for write in (
            lambda: store.backup(pipe, force=True),
            lambda: store.get(info.key).export(output=pipe, force=True),
        ):
            with pytest.raises(InvalidInput, match="a device or a pipe"):
                write()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_keep_rotates_the_backups_in_a_directory(source: Path, tmp_path: Path) -> None:
    """The newest N stay, and files that are no dated backups are not touched."""
    folder = tmp_path / "backups"
    folder.mkdir()
    (folder / "stepkeep-notes.db").write_text("mine")
    with bare(source) as store:
        reports = [store.backup(folder, keep_last=2) for _ in range(4)]
    left = sorted(path.name for path in folder.iterdir())
    assert left == [*(Path(report.path).name for report in reports[-2:]), "stepkeep-notes.db"]
    assert [len(report.removed) for report in reports] == [0, 0, 1, 1]


def test_what_killed_backups_left_goes_with_the_next(source: Path, tmp_path: Path) -> None:
    """Those that nobody wrote to for a day are removed; younger ones may be at work, and others are not ours."""
    names = [f".stepkeep-0123456789abcdef.{PARTIAL}", f".stepkeep-0123456789abcdef.{PARTIAL}-wal"]
    young, other = tmp_path / f".stepkeep-fedcba9876543210.{PARTIAL}", tmp_path / "other.partial"
    for path in [*(tmp_path / name for name in names), young, other]:
        path.write_bytes(b"half")
        if path != young:
            os.utime(path, (1, 1))
    with bare(source) as store:
        store.backup(tmp_path / "b.db")
    assert not any((tmp_path / name).exists() for name in names)
    assert young.exists()
    assert other.exists()


def test_keep_needs_a_directory(source: Path, tmp_path: Path) -> None:
    """A single file cannot be rotated."""
    with bare(source) as store, pytest.raises(InvalidInput):
        store.backup(tmp_path / "b.db", keep_last=3)


def test_names_of_backups_sort_like_their_times() -> None:
    """Which is what the rotation relies on."""
    assert dated_name(0) == "stepkeep-19700101T000000000000"
    assert dated_name(10**15) < dated_name(10**15 + 1)


def test_damage_in_the_store_is_in_the_backup_and_told(source: Path, tmp_path: Path) -> None:
    """A store with damage still gets a backup; older ones are then not rotated away."""
    with raw(source) as connection:
        connection.execute("UPDATE bodies SET data = x'00' WHERE rowid = (SELECT max(rowid) FROM bodies)")
    folder = tmp_path / "backups"
    folder.mkdir()
    (folder / dated_name(0)).write_text("an older one")
    with bare(source) as store:
        report = store.backup(folder, keep_last=1)
    assert len(report.findings) == 1
    assert (folder / dated_name(0)).exists()


def test_a_directory_that_is_not_there_is_an_error(source: Path, tmp_path: Path) -> None:
    """Nothing is made."""
    with bare(source) as store, pytest.raises(BackendUnavailable):
        store.backup(tmp_path / "no" / "b.db")
    assert not (tmp_path / "no").exists()


def test_the_store_itself_is_no_destination(source: Path) -> None:
    """Not even by force: whoever has it open would go on in a file without a name."""
    with bare(source) as store, pytest.raises(InvalidInput) as refusal:
        store.backup(source, force=True)
    assert refusal.value.code == "same_store"


def test_a_store_that_is_open_somewhere_is_no_destination(source: Path, tmp_path: Path) -> None:
    """It is left as it was."""
    with bare(source) as store, bare(tmp_path / "other.db") as other:
        other.session("mine").save({"n": 1})
        with pytest.raises(BackendUnavailable):
            store.backup(tmp_path / "other.db", force=True)
        other.session("mine").save({"n": 2})
        assert other.usage().checkpoints == 2


def test_the_log_of_an_older_store_does_not_come_through(source: Path, tmp_path: Path) -> None:
    """A log that lies beside the destination belongs to what was there; the backup is what the store was."""
    for is_gone in (False, True):
        target = tmp_path / f"killed-{is_gone}.db"
        program = f"""
import os
from stepkeep.api import Store
from stepkeep.storage.sqlite import SqliteBackend
run = Store(SqliteBackend({str(target)!r})).session("old", profile="archive")
for number in range(5):
    run.save({{"n": number}})
os._exit(9)
"""
        interpreter.python("-c", program, env=environment())
        assert Path(f"{target}-wal").stat().st_size > 0
        if is_gone:
            target.unlink()
        with bare(source) as store:
            store.backup(target, force=True)
            before = contents(store)
        with bare(target) as copy:
            assert contents(copy) == before


@pytest.mark.full
def test_a_backup_while_four_processes_save_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    """Every id that was printed before the backup began is in it, and it verifies."""
    path = tmp_path / "store.db"
    bare(path).close()
    logs = [(tmp_path / f"log{number}").open("w+") for number in range(4)]
    savers = [
        interpreter.start(["-c", SAVER, str(path), f"s{n}"], stdout=log, env=environment())
        for n, log in enumerate(logs)
    ]
    try:
        for round in range(3):
            acknowledged = _acknowledged(tmp_path, more_than=20 * round)
            with bare(path) as store:
                report = store.backup(tmp_path / f"b{round}.db")
            assert report.findings == ()
            with bare(tmp_path / f"b{round}.db") as copy:
                assert acknowledged
                assert acknowledged <= {header.id for header in copy.checkpoints()}
    finally:
        for saver in savers:
            saver.kill()
            saver.wait()
        for log in logs:
            log.close()


def _acknowledged(folder: Path, *, more_than: int) -> set[str]:
    """What the four savers have printed, once that is enough."""
    while True:
        found = {line for n in range(4) for line in _whole_lines(folder / f"log{n}")}
        if len(found) > more_than:
            return found
        time.sleep(0.05)


def _whole_lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1]


KILLED_BACKUP = """
import os, signal, sys
from stepkeep.api import Store
from stepkeep.storage.sqlite import SqliteBackend
path, target, last = sys.argv[1:]
done = []
def progress(share):
    done.append(share)
    if len(done) == int(last):
        os.kill(os.getpid(), signal.SIGKILL)
with Store(SqliteBackend(path)) as store:
    store.backup(target, progress=progress)
"""


@pytest.mark.full
def test_a_killed_backup_leaves_no_half_one(tmp_path: Path) -> None:
    """Killed in the middle or after the last page: the name is free, and the store is as it was."""
    path = tmp_path / "store.db"
    with bare(path) as store:
        session = store.session("s", profile="archive")
        for number in range(120):  # more than one step of the copy
            session.save({"n": number, "noise": random.Random(number).randbytes(40_000)})
        before = contents(store)
    target = tmp_path / "b.db"
    for step in (1, 2):
        done = interpreter.python("-c", KILLED_BACKUP, str(path), str(target), str(step), env=environment())
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not target.exists()
    with bare(path) as store:
        assert contents(store) == before
        store.backup(target)
    with bare(target) as copy:
        assert contents(copy) == before
    names = [path.name for path in tmp_path.iterdir()]
    assert all(name.startswith((".stepkeep-", "store.db", "b.db")) for name in names)
    assert all(name.startswith(".stepkeep-") for name in names if PARTIAL in name)


# --- putting one back ------------------------------------------------------------------------------------------


@pytest.fixture
def made(source: Path, tmp_path: Path) -> Path:
    """A backup of the store, which went on since."""
    target = tmp_path / "b.db"
    with bare(source) as store:
        store.backup(target)
        store.get("finished").save({"later": True})
    return target


def test_a_backup_becomes_the_store(source: Path, made: Path) -> None:
    """What was there is kept under another name; the backup stays as it is."""
    with bare(source) as store:
        later = contents(store)
    before = made.read_bytes()
    report = api.restore_backup(made, f"sqlite:{source}", force=True)
    with bare(source) as store:
        assert [header.seq for header in store.get("finished").history()] == [1]
    assert report.replaced is not None
    with bare(Path(report.replaced)) as store:
        assert contents(store) == later
    assert made.read_bytes() == before


def test_a_store_is_replaced_only_by_force(source: Path, made: Path) -> None:
    """Without it nothing changes."""
    with pytest.raises(InvalidInput) as error:
        api.restore_backup(made, f"sqlite:{source}")
    assert error.value.code == "file_exists"
    with bare(source) as store:
        assert len(list(store.get("finished").history())) == 2


def test_a_store_in_use_is_not_replaced(source: Path, made: Path) -> None:
    """Whoever has it open would go on in the old file; the error says so and nothing changes."""
    with bare(source) as store:
        store.get("finished").save({"in": "use"})
        with pytest.raises(BackendUnavailable):
            api.restore_backup(made, f"sqlite:{source}", force=True)
        assert len(list(store.get("finished").history())) == 3


def test_a_backup_is_put_where_nothing_was(made: Path, tmp_path: Path) -> None:
    """The directory is made."""
    api.restore_backup(made, f"sqlite:{tmp_path}/new/store.db")
    with bare(tmp_path / "new" / "store.db") as store:
        assert store.verify().is_intact


def test_a_damaged_backup_is_refused(source: Path, made: Path) -> None:
    """The store stays."""
    with raw(made) as connection:
        connection.execute("UPDATE checkpoints SET header = x'00'")
    with pytest.raises(Corrupt):
        api.restore_backup(made, f"sqlite:{source}", force=True)
    with bare(source) as store:
        assert len(list(store.get("finished").history())) == 2


def test_what_is_no_backup_is_refused(source: Path, tmp_path: Path) -> None:
    """A missing file, a file of another program, the store itself, and a store that is no file."""
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(NotFound):
        api.restore_backup(tmp_path / "nothing.db", f"sqlite:{source}", force=True)
    with pytest.raises(InvalidInput):
        api.restore_backup(tmp_path / "notes.txt", f"sqlite:{source}", force=True)
    with pytest.raises(InvalidInput):
        api.restore_backup(source, f"sqlite:{source}", force=True)
    with pytest.raises(InvalidInput):
        api.restore_backup(source, "memory:", force=True)
    with bare(source) as store:
        assert store.verify().is_intact


def test_the_log_of_a_lost_store_is_not_applied_to_the_backup(made: Path, tmp_path: Path) -> None:
    """A person who removed the broken database and left its log gets the backup, not a mixture."""
    target = tmp_path / "lost.db"
    Path(f"{target}-wal").write_bytes(made.read_bytes())
    api.restore_backup(made, f"sqlite:{target}")
    with bare(target) as store, bare(made) as backup:
        assert contents(store) == contents(backup)
