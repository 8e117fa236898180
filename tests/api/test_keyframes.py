"""How bodies are stored: groups of deltas, keyframes with redundant deltas, and what damage to one costs."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import pytest

import stepkeep
from stepkeep.storage.port import BodyInfo
from tests.api import programs

# Lines that compress little, so that a keyframe is much larger than the deltas of its group.
TEXT = [f"line {n}: {random.Random(n).randbytes(12).hex()}" for n in range(400)]


def grown(n: int) -> dict[str, Any]:
    return {"n": n, "log": TEXT[: 200 + n]}


def fill(session: stepkeep.Session, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        session.save(grown(n))


def bodies(session: stepkeep.Session) -> list[BodyInfo]:
    return [info for info in session._engine.backend.bodies(session.uid) if not info.is_redundant]


def keyframes(session: stepkeep.Session) -> list[int]:
    """The seq of every checkpoint that is stored as a keyframe."""
    standing = {info.checkpoint for info in bodies(session) if info.base is None}
    return [header.seq for header in session.history(newest_first=False) if header.id in standing]


def flip(connection: apsw.Connection, checkpoint: str, *, is_redundant: int = 0) -> None:
    sql = "SELECT data FROM bodies WHERE checkpoint = ? AND is_redundant = ?"
    ((data,),) = programs.rows(connection, sql, (checkpoint, is_redundant))
    connection.execute(
        "UPDATE bodies SET data = ? WHERE checkpoint = ? AND is_redundant = ?",
        (programs.flipped(data, len(data) // 2, 3), checkpoint, is_redundant),
    )


def loadable(session: stepkeep.Session) -> list[int]:
    found = []
    for header in session.history(newest_first=False):
        try:
            assert session.load(header.id).state == grown(header.seq - 1)
        except stepkeep.Corrupt:
            continue
        found.append(header.seq)
    return found


def test_groups_are_half_of_what_is_kept(store: stepkeep.Store) -> None:
    """Profile `agent` keeps 10, so every fifth one is a keyframe; `archive` has one in 1,024 after the first 128."""
    agent, archive = store.session("a", profile="agent"), store.session("b", profile="archive")
    fill(agent, 17)
    large = [random.Random(n).randbytes(100).hex() for n in range(200)]
    for n in range(1154):
        archive.save({"n": n, "log": large})
    assert keyframes(agent) == [1, 6, 11, 16]
    assert keyframes(archive) == [1, 129, 1153]


def test_a_new_process_knows_how_long_a_group_may_be(url: str) -> None:
    """The first group ends after 128, the next goes on: its keyframe has a redundant delta, and a reader sees that."""
    large = [random.Random(n).randbytes(100).hex() for n in range(200)]
    numbers = iter(range(1000))
    for count in (126, 1, 1, 1, 125, 1, 1, 1, 1, 1):
        with stepkeep.open(url) as store:
            session = store.session("run", profile="archive")
            for n in islice(numbers, count):
                session.save({"n": n, "log": large})
    with stepkeep.open(url) as store:
        assert keyframes(store.session("run")) == [1, 129]


def test_deltas_that_are_no_edits_make_smaller_groups(store: stepkeep.Store) -> None:
    """Each of them is applied to the whole content: a load would take too long after more than 128."""
    session = store.session("b", profile="archive")
    words = [random.Random(n).randbytes(200).hex() for n in range(200)]
    for n in range(130):
        session.save([f"{word} {n}" for word in words])  # more places than a list of edits may have
    assert keyframes(session) == [1, 129]


def test_bases_form_two_levels(store: stepkeep.Store) -> None:
    """Member k is based on k-16 when 16 divides it, else against its neighbour."""
    session = store.session("b", profile="archive")
    fill(session, 50)
    seq = {header.id: header.seq for header in session.history()}
    bases = {seq[info.checkpoint] - 1: seq[info.base] - 1 for info in bodies(session) if info.base}
    assert bases == {k: k - 16 if k % 16 == 0 else k - 1 for k in range(1, 50)}


def test_a_cold_writer_continues_the_group(url: str) -> None:
    """A new process deltas against what is stored, on both levels, and keeps the place in the group."""
    for n in range(20):
        with stepkeep.open(url) as store:
            fill(store.session("run", profile="archive"), 1, start=n)
    with stepkeep.open(url) as store:
        session = store.session("run")
        assert keyframes(session) == [1]
        seq = {header.id: header.seq for header in session.history()}
        bases = {seq[info.checkpoint] - 1: seq[info.base] - 1 for info in bodies(session) if info.base}
        assert bases == {k: k - 16 if k % 16 == 0 else k - 1 for k in range(1, 20)}
        assert loadable(session) == list(range(1, 21))


def test_full_copies_where_asked_for(url: str) -> None:
    """`keyframe_every=1` stores no delta and no redundant delta."""
    with stepkeep.open(url, keyframe_every=1) as store:
        session = store.session("run")
        fill(session, 5)
        assert keyframes(session) == [1, 2, 3, 4, 5]
        assert len(session._engine.backend.bodies(session.uid)) == 5


@pytest.mark.parametrize("status", ["paused", "completed", "failed", "cancelled"])
def test_a_checkpoint_that_ends_the_work_stands_alone(store: stepkeep.Store, status: str) -> None:
    """A save with such a status is a keyframe; so is the head after the verb."""
    session = store.session("run", profile="archive")
    fill(session, 3)
    session.save(grown(3), status=status)
    assert keyframes(session) == [1, 4]
    fill(session, 2, start=4)
    verb = {"paused": session.pause, "completed": session.complete, "cancelled": session.cancel}
    verb.get(status, session.fail)()
    assert keyframes(session) == [1, 4, 6]
    assert loadable(session) == list(range(1, 7))
    fill(session, 2, start=6)
    assert loadable(session) == list(range(1, 9))
    assert session.verify().is_intact


def test_a_damaged_keyframe_with_a_redundant_delta_loses_nothing(store: stepkeep.Store, path: Path) -> None:
    """Each keyframe but the first has a redundant delta: damage to one, or to all in a row, costs no checkpoint."""
    session = store.session("run", profile="agent")
    fill(session, 18)
    with programs.raw(path) as connection:
        flip(connection, session.header("#11").id)
        assert loadable(session) == list(range(1, 19))
        latest = session.latest()
        assert latest is not None
        assert latest.fallback is None
        for seq in (6, 16):
            flip(connection, session.header(seq).id)
        assert loadable(session) == list(range(1, 19))


def test_a_missing_keyframe_with_a_redundant_delta_loses_nothing(store: stepkeep.Store, path: Path) -> None:
    """The redundant delta serves as well when the row of the keyframe is gone altogether."""
    session = store.session("run", profile="agent")
    fill(session, 13)
    with programs.raw(path) as connection:
        sql = "DELETE FROM bodies WHERE checkpoint = ? AND is_redundant = 0"
        connection.execute(sql, (session.header(11).id,))
    assert loadable(session) == list(range(1, 14))


def test_one_damaged_keyframe_leaves_older_checkpoints(store: stepkeep.Store, path: Path) -> None:
    """With 10 kept and no redundant delta to help, one damaged keyframe never takes all of them."""
    session = store.session("run", profile="agent")
    fill(session, 30)
    kept = [header.id for header in session.history(limit=10)]
    gone = [header.id for header in session.history() if header.id not in kept]
    session._engine.backend.remove(session.uid, gone)
    session._engine.backend.sweep(session=session.uid)
    with programs.raw(path) as connection:
        connection.execute("DELETE FROM bodies WHERE is_redundant = 1")
        for seq in (21, 26):
            flip(connection, session.header(seq).id)
            session._engine.forget(session.uid)  # the writer still has the newest content in memory
            left = loadable(session)
            assert left == [n for n in range(21, 31) if not seq <= n < seq + 5]
            latest = session.latest()
            assert latest is not None
            assert latest.seq == max(left)
            flip(connection, session.header(seq).id)  # the same bit again: whole


def test_one_damaged_delta_costs_at_most_the_rest_of_its_group(store: stepkeep.Store, path: Path) -> None:
    """What lies before the delta, and the next groups, still load."""
    session = store.session("run", profile="agent")
    fill(session, 15)
    with programs.raw(path) as connection:
        connection.execute("DELETE FROM bodies WHERE is_redundant = 1")
        flip(connection, session.header(8).id)
    left = loadable(session)
    assert set(left) >= {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15}
    assert 8 not in left


@pytest.mark.parametrize("is_gone", [False, True])
def test_one_damaged_record_of_a_long_group_costs_fifteen_checkpoints_at_most(
    store: stepkeep.Store, path: Path, is_gone: bool
) -> None:
    """Whichever it is: of those that many are based on there is a redundant delta against the neighbour."""
    session = store.session("run", profile="archive")
    fill(session, 80)
    assert keyframes(session) == [1]
    headers = list(session.history(newest_first=False))
    with programs.raw(path) as connection:
        for header in headers[1:]:
            where = f"checkpoint = '{header.id}' AND is_redundant = 0"
            ((data, rowid),) = programs.rows(connection, f"SELECT data, rowid FROM bodies WHERE {where}")
            sql = "UPDATE bodies SET data = ?, is_redundant = ? WHERE rowid = ?"
            changed = (data, 2, rowid) if is_gone else (programs.flipped(data, len(data) // 2, 3), 0, rowid)
            connection.execute(sql, changed)
            session._engine.forget(session.uid)  # the writer still has the newest content in memory
            number = header.seq - 1
            lost = range(number, number + 16 - number % 16) if number % 16 else range(0)
            assert loadable(session) == [n + 1 for n in range(80) if n not in lost]
            connection.execute(sql, (data, 0, rowid))


def test_several_damaged_records_in_a_row_are_bridged(store: stepkeep.Store, path: Path) -> None:
    """Each by its own redundant delta, as long as those between them hold."""
    session = store.session("run", profile="archive")
    fill(session, 80)
    with programs.raw(path) as connection:
        for seq in (17, 33, 65):
            flip(connection, session.header(seq).id)
        assert loadable(session) == list(range(1, 81))
        flip(connection, session.header(33).id, is_redundant=1)
    session._engine.forget(session.uid)
    assert loadable(session) == list(range(1, 33))
    assert not session.verify().is_intact


def test_a_redundant_delta_goes_with_its_base(store: stepkeep.Store) -> None:
    """Removing the checkpoint a redundant delta is based on removes the redundant delta, and nothing else."""
    session = store.session("run", profile="agent")
    fill(session, 7)
    assert sum(info.is_redundant for info in session._engine.backend.bodies(session.uid)) == 1
    session.delete(session.header(5).id)
    assert sum(info.is_redundant for info in session._engine.backend.bodies(session.uid)) == 0
    assert loadable(session) == [1, 2, 3, 4, 6, 7]


def test_a_damaged_place_in_the_group_does_not_stop_saving(url: str, path: Path) -> None:
    """The number of a position is only a hint: with a wrong one a new process still saves."""
    with stepkeep.open(url) as store:
        fill(store.session("run", profile="archive"), 3)
    with programs.raw(path) as connection:
        connection.execute("UPDATE bodies SET position = position + 1")
    with stepkeep.open(url) as store:
        session = store.session("run")
        fill(session, 10, start=3)
        assert loadable(session) == list(range(1, 14))


def test_branches_have_groups_of_their_own(store: stepkeep.Store) -> None:
    """Saving on two branches in turn keeps each one's deltas together."""
    session = store.session("run", profile="archive")
    session.save(grown(0))
    for n in range(1, 9):
        session.save(grown(n), branch="side" if n % 2 else "main")
    assert loadable(session) == list(range(1, 10))
    assert sum(info.base is not None for info in bodies(session)) >= 6


def test_history_stays_small(store: stepkeep.Store) -> None:
    """A growing conversation takes a few times one state, not the sum of all of them."""
    session = store.session("run", profile="archive")
    states = [
        {"log": [f"message {n}: {n * 7919 % 10007}" for n in range(count)]} for count in range(100, 400)
    ]
    for state in states:
        session.save(state)
    total = sum(header.size_bytes for header in session.history())
    assert session.usage().body_bytes < total / 50


def test_a_large_state_gets_a_keyframe_whenever_it_grew_by_half(store: stepkeep.Store, path: Path) -> None:
    """Most of it is always in one frame; of its keyframes but the first each may be damaged, and nothing is lost."""
    session = store.session("run", profile="archive")
    texts = [random.Random(n).randbytes(20_000).hex() for n in range(26)]
    for count in range(10, 27):
        session.save({"log": texts[:count]})
    assert keyframes(session) == [1, 7, 16]  # 10, 16 and 25 texts
    with programs.raw(path) as connection:
        for seq in (7, 16):
            flip(connection, session.header(seq).id)
    assert [len(session.load(seq).state["log"]) for seq in range(1, 18)] == list(range(10, 27))
