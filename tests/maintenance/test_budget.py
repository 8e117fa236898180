"""The byte budget and the free-disk floor: history gives way first, and then a save says so."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import stepkeep
from stepkeep import config
from stepkeep.config import Settings
from stepkeep.maintenance import budget as budgets
from stepkeep.maintenance.budget import Limits, Room

KIB, MIB = 1024, 1024 * 1024
random.seed(7)


def settings(**flags: object) -> Settings:
    given = {name.replace("__", "."): value for name, value in flags.items()}
    return config.load(cwd=None, environ={}, flags=given)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store" / "stepkeep.db"


def fill(session: stepkeep.Session, count: int, size: int = 100 * KIB) -> None:
    """Checkpoints that share nothing and do not compress."""
    for number in range(count):
        session.save({"number": number, "noise": random.randbytes(size)})


def size_of(file: Path) -> int:
    return sum(path.stat().st_size for path in file.parent.iterdir() if not path.name.endswith("-shm"))


def test_levels() -> None:
    """The level is the larger share of the two limits; the excess is what must go to be at a level."""
    limits = Limits(max_bytes=1000, min_free_bytes=100)
    assert Room(500, 1000).level(limits) == 0.5
    assert Room(500, 125).level(limits) == 0.8
    assert Room(1100, None).level(limits) == 1.1
    assert Room(900, 10_000).excess(limits, 0.8) == 100
    assert Room(100, 100).excess(limits, 0.8) == 25
    assert Room(100, 10_000).excess(limits, 0.8) == 0
    assert Room(100, 10_000).level(Limits()) == 0.0


def test_history_gives_way_before_the_budget_is_hit(file: Path) -> None:
    """Saving much more than the budget never fails while older history can go, and the file stays within it."""
    limit = 12 * MIB
    with stepkeep.open(file, config=settings(limits__max_bytes=limit)) as store:
        for number in range(4):
            session = store.session(f"run-{number}")
            fill(session, 60)
            session.complete()
            assert size_of(file) <= limit
        assert all(store.get(f"run-{number}").load().state["number"] == 59 for number in range(4))
        assert store.verify().is_intact
    assert size_of(file) <= limit


@contextmanager
def watched(file: Path) -> Iterator[list[int]]:
    """What the files of a store take, looked at all the time in the block."""
    sizes, is_over = [0], threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            with suppress(FileNotFoundError):
                sizes.append(size_of(file))
            time.sleep(0)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield sizes
    finally:
        is_over.set()
        thread.join()


def test_the_log_counts_for_the_limit(file: Path) -> None:
    """At no moment, neither while a save is written nor while history is overwritten, do database and log exceed it."""
    limit = 4 * MIB
    with watched(file) as sizes, stepkeep.open(file, config=settings(limits__max_bytes=limit)) as store:
        for number in range(150):
            store.session(f"run-{number % 2}").save({"number": number, "noise": random.randbytes(50_000)})
            sizes.append(size_of(file))
    assert max(sizes) <= limit
    with stepkeep.open(file, config=settings()) as store:
        assert [store.get(f"run-{each}").load().state["number"] for each in (0, 1)] == [148, 149]


def test_finished_sessions_are_squeezed_first_and_the_oldest_of_them(file: Path) -> None:
    """No more is given up than needed: the oldest finished history goes, the active one and the newer stay."""
    with stepkeep.open(file, config=settings()) as store:
        for key in ("old", "new", "active"):
            fill(store.session(key), 30)
            if key != "active":
                store.get(key).complete()
    with stepkeep.open(file, config=settings(limits__max_bytes=10 * MIB)) as store:
        store.session("other").save({})
        assert store._upkeep.keeper is not None
        store._upkeep.keeper.make_pass()
        assert [store.get(key).usage().checkpoints for key in ("old", "new", "active")] == [1, 30, 30]
        assert size_of(file) <= 8 * MIB


def test_a_save_that_cannot_fit_is_refused_before_it_is_written(file: Path) -> None:
    """When nothing may be pruned any more the save says so; what is stored stays whole, and small saves go on."""
    with stepkeep.open(file, config=settings(limits__max_bytes=3 * MIB)) as store:
        session = store.session("run")
        session.save({"number": 0})
        with pytest.raises(stepkeep.BackendUnavailable, match=r"limits\.max_bytes") as caught:
            session.save({"noise": random.randbytes(4 * MIB)})
        assert (caught.value.code, caught.value.retryable) == ("store_budget_exceeded", False)
        assert session.load().state == {"number": 0}
        assert session.save({"number": 1}).seq == 2
        assert session.load().state == {"number": 1}
        assert session.verify().is_intact


def test_an_archive_is_never_squeezed(file: Path) -> None:
    """Profile `archive` keeps all: the limit refuses saves instead."""
    with stepkeep.open(file, config=settings(limits__max_bytes=4 * MIB)) as store:
        session = store.session("run", profile="archive")
        with pytest.raises(stepkeep.BackendUnavailable, match="no more history may be pruned"):
            fill(session, 60)
        saved = session.usage().checkpoints
        assert saved > 10
        assert session.info.last_seq == saved


def test_without_a_keeper_the_limit_still_holds(file: Path) -> None:
    """With the keeper off nothing is pruned, and the refusal says how to change that."""
    with stepkeep.open(file, config=settings(limits__max_bytes=4 * MIB, keeper__enabled=False)) as store:
        with pytest.raises(stepkeep.BackendUnavailable, match=r"keeper\.enabled"):
            fill(store.session("run"), 60)
        assert size_of(file) <= 5 * MIB


def disk_with(free: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "store_free_bytes", lambda _: free())


def test_the_disk_floor(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """History goes when the disk gets full; when that does not help, the save is refused."""
    disk = 14 * MIB
    disk_with(lambda: disk - size_of(file), monkeypatch)
    with stepkeep.open(file, config=settings(limits__min_free_bytes=2 * MIB)) as store:
        session = store.session("run")
        fill(session, 150)
        assert session.usage().checkpoints < 150
        with pytest.raises(stepkeep.BackendUnavailable) as caught:
            session.save({"noise": random.randbytes(13 * MIB)})
        assert (caught.value.code, caught.value.retryable) == ("disk_floor_reached", False)
    assert (
        disk - size_of(file) >= 2 * MIB
    )  # the log, which grows for a while as others read, is in the database


def test_a_squeeze_that_did_not_help_is_not_the_last_word(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was saved after it may go: no save is refused only because it is early to try again."""
    monkeypatch.setattr(budgets, "RETRY_SECONDS", 3600.0)
    monkeypatch.setattr(budgets, "SQUEEZE_AT", 0.0)  # so that no squeeze is ever enough
    with stepkeep.open(file, config=settings(limits__max_bytes=8 * MIB)) as store:
        session = store.session("run")
        fill(session, 120)
        assert session.usage().checkpoints < 120
    assert size_of(file) <= 8 * MIB  # closed: what is in the log takes room twice until it is in the database


def test_nothing_is_given_up_in_vain(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When others filled the disk so far that even an empty store would not help, history stays."""
    with stepkeep.open(file, config=settings(limits__min_free_bytes=100 * MIB)) as store:
        session = store.session("run")
        fill(session, 20)
        disk_with(lambda: MIB, monkeypatch)
        assert store._upkeep.keeper is not None
        store._upkeep.keeper.budget.measure()
        with pytest.raises(stepkeep.BackendUnavailable, match="free some space"):
            session.save({})
        assert session.usage().checkpoints == 20


def test_free_space_is_that_of_the_disk(file: Path) -> None:
    """The floor looks at the file system of the store."""
    with stepkeep.open(file, config=settings(limits__min_free_bytes=1)) as store:
        assert store._upkeep.keeper is not None
        room = store._upkeep.keeper.budget.measure()
        disk = os.statvfs(file.parent)
        assert room.free_bytes is not None
        assert room.free_bytes <= disk.f_blocks * disk.f_frsize
        assert room.store_bytes == size_of(file)


def test_a_store_of_files_has_both_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is that of documents and index, and the floor looks at the file system of its directory."""
    url = f"files:{tmp_path}/store?layout=run"
    with stepkeep.open(url, config=settings(limits__min_free_bytes=MIB)) as store:
        session = store.session("run")
        session.save({"noise": "x" * 100_000})
        assert store._upkeep.keeper is not None
        room = store._upkeep.keeper.budget.measure()
        assert room.free_bytes is not None
        assert room.store_bytes > 100_000
        disk_with(lambda: 1000, monkeypatch)
        store._upkeep.keeper.budget.measure()
        with pytest.raises(stepkeep.BackendUnavailable) as caught:
            session.save({})
        assert caught.value.code == "disk_floor_reached"


def test_a_store_in_memory_has_a_budget_too() -> None:
    """Without a file the backend's own count is used, and there is no floor."""
    limits = settings(limits__max_bytes=MIB, limits__min_free_bytes="999TB")
    with stepkeep.open("memory:", config=limits) as store:
        store.session("run").save({})


def test_a_save_that_can_never_fit_costs_no_history(file: Path) -> None:
    """Where not even an empty store would have room, nothing is pruned in vain."""
    with stepkeep.open(file, config=settings(limits__max_bytes=4 * MIB)) as store:
        session = store.session("run")
        fill(session, 6)
        with pytest.raises(stepkeep.BackendUnavailable) as refusal:
            session.save({"noise": random.randbytes(5 * MIB)})
        assert refusal.value.code == "store_budget_exceeded"
        assert len(list(session.history())) == 6


# --- the budget that refuses nothing ---------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite:{}/a.db", "files:{}/a?layout=run"])
def test_a_full_budget_thins_history_and_says_so_once(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest go, of finished sessions first; every save is accepted, and each session tells it the first time."""
    url = url.format(tmp_path)
    small = settings(limits__budget_bytes=3 * MIB)
    for round in range(3):
        for key in ("old", "new"):
            with stepkeep.open(url, config=small) as store:
                fill(store.session(key), 10)
                if key == "old":
                    store.get(key).complete()
        with stepkeep.open(url, config=small) as store:
            assert store.get("new").info.last_seq == 10 * (round + 1)
            assert store.usage().store_bytes < 4 * MIB
    told = [
        record.getMessage() for record in caplog.records if "has reached its budget" in record.getMessage()
    ]
    assert len(told) == len(set(told)) <= 2
    assert told[0] == (
        "the store has reached its budget of 3.1MB (limits.budget_bytes): "
        "the oldest checkpoints of 'old' go from now on"
    )
    with stepkeep.open(url, config=small) as store:
        assert [header.seq for header in store.get("old").history()] == [30]
        assert store.verify().is_intact


def test_a_budget_that_cannot_be_kept_is_told_and_refuses_nothing(file: Path) -> None:
    """What V7 keeps may take more: saves go on, and `status` and `doctor` tell."""
    small = settings(limits__budget_bytes=256 * KIB, retention__max_bytes=50 * KIB)
    with stepkeep.open(file, config=small) as store:
        for number in range(5):
            fill(store.session(f"run-{number}"), 1)
    with stepkeep.open(file, config=small) as store:
        status = store.status()
        assert (status.budget_bytes, status.is_over_budget) == (256 * KIB, True)
        one = store.get("run-0").status()
        assert (one.budget_bytes, one.is_over_budget) == (50 * KIB, True)
        assert store.session("run-0").save({"more": random.randbytes(KIB)}).seq == 2
        assert len(list(store.sessions())) == 5


def test_the_budget_of_a_session_is_told_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also where every save is a process of its own."""
    for _ in range(12):
        with stepkeep.open(file, config=settings(retention__max_bytes=300 * KIB)) as store:
            fill(store.session("run"), 1)
    told = [record.getMessage() for record in caplog.records if "budget" in record.getMessage()]
    assert told == [
        "session 'run' has reached its budget of 307KB (retention.max_bytes): the oldest checkpoints of 'run' go from"
        " now on"
    ]


def test_a_session_that_is_kept_is_not_thinned(file: Path) -> None:
    """Its own word counts as much as the profile `archive`."""
    with stepkeep.open(file, config=settings(limits__budget_bytes=2 * MIB)) as store:
        store.session("kept").keep(forever=True)
        fill(store.session("kept"), 15)
        fill(store.session("other"), 15)
    with stepkeep.open(file, config=settings()) as store:
        assert store.get("kept").usage().checkpoints == 15
        assert store.get("other").usage().checkpoints < 15
