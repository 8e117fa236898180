"""Copying sessions between stores."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stepkeep
from stepkeep import api
from stepkeep.api import Store
from stepkeep.errors import Conflict, InvalidInput, NotFound
from stepkeep.maintenance.copying import copy
from stepkeep.storage.urls import open_backend
from tests import interpreter
from tests.api.programs import environment, raw
from tests.maintenance.mixed import contents, fill

KINDS = ["sqlite", "memory", "run", "workflow", "phase"]
Open = Callable[[str, str], Store]


@pytest.fixture
def open_kind(tmp_path: Path) -> Iterator[Open]:
    """Opens a store of a kind, without a keeper, under a name; the same name is the same store."""
    stores: list[Store] = []

    def open(kind: str, name: str) -> Store:
        stores.append(Store(open_backend(url_of(tmp_path, kind, name))))
        return stores[-1]

    yield open
    for store in stores:
        store.close()


def url_of(folder: Path, kind: str, name: str) -> str:
    if kind == "memory":
        return "memory:"
    return f"sqlite:{folder}/{name}.db" if kind == "sqlite" else f"files:{folder}/{name}?layout={kind}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_equals_its_source(open_kind: Open, kind: str) -> None:
    """Ids, numbers, branches, annotations, events, blobs, gaps and every byte are the same, and it verifies."""
    source, target = open_kind("sqlite", "source"), open_kind(kind, "target")
    fill(source)
    report = copy(source.engine, target.engine)
    assert report.is_whole
    assert (report.sessions, report.copied) == (3, source.usage().checkpoints)
    assert contents(target) == contents(source)
    assert target.verify().is_intact


def test_a_copy_goes_round_through_all_kinds_of_store(open_kind: Open) -> None:
    """From SQLite through all layouts of files back to SQLite: nothing changes on the way."""
    first = open_kind("sqlite", "first")
    fill(first)
    before = contents(first)
    source = first
    for kind in ("run", "workflow", "phase", "memory", "sqlite"):
        target = open_kind(kind, f"round-{kind}")
        assert copy(source.engine, target.engine).is_whole
        source = target
    assert contents(source) == before
    assert source.verify().is_intact


def test_a_copy_is_repeated_without_effect(open_kind: Open) -> None:
    """The second time everything is there."""
    source, target = open_kind("sqlite", "source"), open_kind("sqlite", "target")
    fill(source)
    copy(source.engine, target.engine)
    before = contents(target)
    report = copy(source.engine, target.engine)
    assert (report.copied, report.present, report.is_whole) == (0, source.usage().checkpoints, True)
    assert contents(target) == before


def test_a_copy_brings_what_is_new(open_kind: Open) -> None:
    """A session that went on at its source goes on in the copy."""
    source, target = open_kind("sqlite", "source"), open_kind("sqlite", "target")
    fill(source)
    copy(source.engine, target.engine)
    source.get("mixed").save({"more": True})
    source.get("mixed").complete()
    assert copy(source.engine, target.engine).copied == 1
    assert contents(target) == contents(source)


def test_a_copy_that_went_on_is_not_set_back(open_kind: Open) -> None:
    """What was saved at the destination since stays its newest; the others are copied."""
    source, target = open_kind("sqlite", "source"), open_kind("sqlite", "target")
    fill(source)
    copy(source.engine, target.engine)
    target.get("mixed").save({"own": "work"})
    report = copy(source.engine, target.engine)
    assert [(each.session, each.code) for each in report.refused] == [("mixed", "destination_ahead")]
    latest = target.get("mixed").latest()
    assert latest is not None
    assert latest.state == {"own": "work"}


def test_a_key_that_is_taken_is_refused_alone(open_kind: Open) -> None:
    """Another session with the same key stays as it is, and the rest is copied."""
    source, target = open_kind("sqlite", "source"), open_kind("sqlite", "target")
    fill(source)
    target.session("mixed").save({"other": 1})
    report = copy(source.engine, target.engine)
    assert [each.code for each in report.refused] == ["session_exists"]
    assert report.sessions == 2
    assert [header.seq for header in target.get("mixed").history()] == [1]


def test_a_long_history_stays_small(open_kind: Open) -> None:
    """From full copies into a store of deltas, the bodies are stored as a delta again."""
    source, target = open_kind("run", "source"), open_kind("sqlite", "target")
    run = source.session("long", profile="archive")
    state: dict[str, list[str]] = {"log": []}
    for number in range(40):
        state["log"] += [f"{number} {random.Random(number).random()}" for _ in range(20)]
        run.save(state)
    copy(source.engine, target.engine)
    assert target.usage().body_bytes < source.usage().body_bytes / 5


def test_damage_is_reported_and_the_rest_copied(open_kind: Open, tmp_path: Path) -> None:
    """A damaged checkpoint is lost, named with its number, and no other."""
    source, target = open_kind("sqlite", "source"), open_kind("sqlite", "target")
    fill(source)
    total = source.usage().checkpoints
    victim = source.get("finished").header("latest")
    with raw(tmp_path / "source.db") as connection:
        connection.execute("UPDATE bodies SET data = x'00' WHERE checkpoint = ?", (victim.id,))
    report = copy(source.engine, target.engine)
    assert [(each.session, each.seq, each.checkpoint) for each in report.lost] == [("finished", 1, victim.id)]
    assert report.copied == total - 1


KILLED_COPY = """
import os, signal, sys
import stepkeep
source, target, last = sys.argv[1:]
done = []
def progress(count):
    done.append(count)
    if len(done) == int(last):
        os.kill(os.getpid(), signal.SIGKILL)
with stepkeep.open(source) as store:
    store.copy(target, progress=progress)
"""


@pytest.mark.full
def test_a_killed_copy_is_taken_up_again(tmp_path: Path) -> None:
    """Killed after the first checkpoint and in the middle, and repeated: in the end the copy equals its source."""
    source_url, target_url = f"sqlite:{tmp_path}/source.db", f"sqlite:{tmp_path}/target.db"
    with Store(open_backend(source_url)) as source:
        for number in range(4):
            run = source.session(f"s{number}", profile="archive")
            for step in range(20):
                run.save({"n": number, "log": [f"{step} {line}" for line in range(step * 5)]}, step=step)
        before = contents(source)
    for last in (1, 30, 50):
        done = interpreter.python("-c", KILLED_COPY, source_url, target_url, str(last), env=environment())
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert api.copy_store(source_url, target_url).lost == ()
    with Store(open_backend(target_url)) as target:
        assert contents(target) == before
        assert target.verify().is_intact


# --- the operation ---------------------------------------------------------------------------------------------


def test_one_session_is_copied_by_its_key(tmp_path: Path) -> None:
    """Others stay behind; a key that does not exist is not found."""
    with stepkeep.open(f"sqlite:{tmp_path}/a.db") as store:
        fill(store)
    report = api.copy_store(f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/b.db", keys=["finished"])
    assert (report.sessions, report.copied) == (1, 1)
    with pytest.raises(NotFound):
        api.copy_store(f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/b.db", keys=["nobody"])


def test_a_store_is_not_copied_into_itself(tmp_path: Path) -> None:
    """Also under another spelling of its name."""
    stepkeep.open(f"sqlite:{tmp_path}/a.db").close()
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    for same in (f"sqlite:{tmp_path}/a.db", f"{tmp_path}/./a.db", f"sqlite:{tmp_path}/link.db"):
        with pytest.raises(InvalidInput) as error:
            api.copy_store(f"sqlite:{tmp_path}/a.db", same)
        assert error.value.code == "same_store"


def test_a_source_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """Neither it nor the destination appears."""
    with pytest.raises(NotFound):
        api.copy_store(f"sqlite:{tmp_path}/nothing.db", f"sqlite:{tmp_path}/b.db")
    assert list(tmp_path.iterdir()) == []


def test_a_destination_of_another_program_is_refused(tmp_path: Path) -> None:
    """And is left as it was."""
    stepkeep.open(f"sqlite:{tmp_path}/a.db").close()
    (tmp_path / "b.db").write_text("not a database")
    with pytest.raises(InvalidInput):
        api.copy_store(f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/b.db")
    assert (tmp_path / "b.db").read_text() == "not a database"


def test_copying_while_others_save_gives_a_whole_copy(open_kind: Open) -> None:
    """What is saved during the copy comes with the next one; what was there before it is there."""
    source, target = open_kind("sqlite", "source"), open_kind("sqlite", "target")
    run = source.session("busy", profile="archive")
    for number in range(40):
        run.save({"n": number})

    def save_more(_: int) -> None:
        run.save({"more": True})

    report = copy(source.engine, target.engine, progress=save_more)
    assert report.is_whole
    assert target.get("busy").info.last_seq == 40
    assert target.verify().is_intact
    with pytest.raises(Conflict):
        target.get("busy").save({"late": 1}, expect_head=None)
