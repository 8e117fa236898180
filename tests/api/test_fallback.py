"""`latest` returns the newest intact checkpoint, and says so when that is not the newest one."""

from __future__ import annotations

import logging
from pathlib import Path

import apsw
import pytest

import stepkeep
from tests.api import programs


def noise(n: int) -> list[int]:
    """Numbers that differ from one checkpoint to the next, so that no keyframe has a redundant delta."""
    return [(n * 7919 + m * 104_729) ** 3 % 1_000_003 for m in range(40)]


@pytest.fixture
def five(session: stepkeep.Session) -> list[stepkeep.Header]:
    """Five checkpoints that stand alone, so that damage to one is damage to that one only."""
    return [session.save({"n": n, "noise": noise(n)}, status="paused") for n in range(1, 6)]


def damage_body(connection: apsw.Connection, checkpoint: str) -> None:
    """Flip a bit in the stored bytes of a checkpoint, redundant delta included."""
    rows = programs.rows(connection, "SELECT rowid, data FROM bodies WHERE checkpoint = ?", (checkpoint,))
    for row, data in rows:
        changed = programs.flipped(data, len(data) // 2)
        connection.execute("UPDATE bodies SET data = ? WHERE rowid = ?", (changed, row))


def damage_header(connection: apsw.Connection, checkpoint: str) -> None:
    ((header,),) = programs.rows(connection, "SELECT header FROM checkpoints WHERE id = ?", (checkpoint,))
    changed = programs.flipped(header, 20)
    connection.execute("UPDATE checkpoints SET header = ? WHERE id = ?", (changed, checkpoint))


def test_an_intact_latest_is_loaded_without_a_warning(
    session: stepkeep.Session, five: list[stepkeep.Header], caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one line at debug level."""
    caplog.set_level(logging.DEBUG, "stepkeep")
    latest = session.latest()
    assert latest is not None
    assert latest.fallback is None
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("DEBUG", "Loaded latest checkpoint")
    ]


def test_fallback_to_the_newest_intact_one_with_the_texts(
    session: stepkeep.Session, five: list[stepkeep.Header], path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two damaged ones are passed over; every text of the log and the reason codes are as specified."""
    with programs.raw(path) as connection:
        damage_body(connection, five[4].id)
        damage_header(connection, five[3].id)
    caplog.set_level(logging.DEBUG, "stepkeep")
    latest = session.latest()
    assert latest is not None
    assert (latest.seq, latest.state["n"]) == (3, 3)
    assert latest.fallback == stepkeep.Fallback(
        tried=3,
        failures=(
            (five[4].id, "checkpoint_integrity_mismatch"),
            (five[3].id, "checkpoint_integrity_mismatch"),
        ),
    )
    moment = f"{five[2].created_at:%Y-%m-%d %H:%M:%S}"
    damaged = f"stored bytes of body 'state' of {five[4].id} are damaged"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"Latest checkpoint failed to load: {damaged}"),
        ("INFO", "Attempting fallback to 4 history checkpoints"),
        ("DEBUG", f"Trying history checkpoint 1: {five[3].id}"),
        ("WARNING", "History checkpoint 1 failed: header bytes do not match their digest"),
        ("DEBUG", f"Trying history checkpoint 2: {five[2].id}"),
        ("WARNING", f"Recovered from history checkpoint: {moment} ({five[2].id})"),
        ("WARNING", f"Latest checkpoint corrupted, using history checkpoint from {moment}"),
    ]
    assert session.load().seq == 3
    with pytest.raises(stepkeep.Corrupt):
        session.load("latest~0")
    with pytest.raises(stepkeep.Corrupt):
        session.load(5)


def test_all_damaged_is_an_error_with_the_true_count_and_advice(
    session: stepkeep.Session, five: list[stepkeep.Header], path: Path
) -> None:
    """The error counts every checkpoint that was tried and says how to go on."""
    with programs.raw(path) as connection:
        for header in five:
            damage_body(connection, header.id)
    with pytest.raises(
        stepkeep.Corrupt, match=r"^No valid checkpoint found \(tried 5 checkpoints\)"
    ) as caught:
        session.latest()
    assert caught.value.code == "no_valid_checkpoint"
    assert "Start session 'run' afresh" in str(caught.value)
    assert "verify" in str(caught.value)


def test_one_checkpoint_damaged_is_exhaustion_too(session: stepkeep.Session, path: Path) -> None:
    """With nothing to fall back to, the count is one."""
    only = session.save({"n": 1})
    with programs.raw(path) as connection:
        damage_header(connection, only.id)
    with pytest.raises(stepkeep.Corrupt, match=r"tried 1 checkpoints"):
        session.latest()


def test_saving_goes_on_after_damage(
    session: stepkeep.Session, five: list[stepkeep.Header], path: Path, url: str
) -> None:
    """A new process does not build upon damaged bodies: what it saves is latest again."""
    with programs.raw(path) as connection:
        for header in five:
            damage_body(connection, header.id)
    assert programs.run(programs.save_many, url, "run", "w", 2) == [6, 7]
    latest = session.load()
    assert latest.fallback is None
    assert latest.state == programs.state_of("w", 1)


def test_fallback_follows_the_branch_through_its_fork(session: stepkeep.Session, path: Path) -> None:
    """A damaged branch falls back to its fork point, never to what came later on the other branch."""
    ids = [session.save({"n": n}, status="paused").id for n in range(1, 5)]
    side = [
        session.save({"n": 10}, branch="side", parents=[ids[1]], status="paused").id,
        session.save({"n": 11}, branch="side", status="paused").id,
    ]
    session._engine.backend.update_session(session.uid, {"branch": "side"})
    with programs.raw(path) as connection:
        for checkpoint in side:
            damage_body(connection, checkpoint)
    latest = session.latest()
    assert latest is not None
    assert latest.state == {"n": 2}
    assert latest.fallback is not None
    assert [checkpoint for checkpoint, _ in latest.fallback.failures] == [side[1], side[0]]


def test_listing_leaves_a_damaged_header_out_and_says_so(
    session: stepkeep.Session,
    five: list[stepkeep.Header],
    path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """History is the intact headers; the log names the other one with its reason code."""
    with programs.raw(path) as connection:
        damage_header(connection, five[4].id)
    assert [header.seq for header in session.history()] == [4, 3, 2, 1]
    assert five[4].id in caplog.text
    assert "checkpoint_integrity_mismatch" in caplog.text


def test_a_limit_counts_the_headers_that_are_given(
    session: stepkeep.Session, five: list[stepkeep.Header], path: Path
) -> None:
    """A damaged header does not use up the limit."""
    with programs.raw(path) as connection:
        damage_header(connection, five[4].id)
    assert [header.seq for header in session.history(limit=2)] == [4, 3]


def test_newest_of_a_damaged_header_is_an_error(
    session: stepkeep.Session, five: list[stepkeep.Header], path: Path
) -> None:
    """`newest` does not fall back, and does not claim that there is nothing."""
    with programs.raw(path) as connection:
        damage_header(connection, five[4].id)
    with pytest.raises(stepkeep.Corrupt):
        session.newest()


def test_a_lost_newest_row_is_noticed(
    session: stepkeep.Session, five: list[stepkeep.Header], path: Path
) -> None:
    """The branch knows its head: when that row is gone, an older checkpoint is a fallback and says so."""
    with programs.raw(path) as connection:
        connection.execute("DELETE FROM checkpoints WHERE id = ?", (five[4].id,))
    latest = session.latest()
    assert latest is not None
    assert latest.seq == 4
    assert latest.fallback is not None


@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "read"])
def test_what_is_in_memory_is_returned_only_with_its_record_intact(
    store: stepkeep.Store, path: Path, is_saved: bool
) -> None:
    """The newest state may come from memory; damage to its own record is noticed all the same."""
    session = store.session("memory")
    with stepkeep.open(f"sqlite:{path}") as other:
        saver = session if is_saved else other.get("memory")
        for number in range(3):
            saver.save({"n": number, "text": "same words " * 120})
    newest = session.latest()
    assert newest is not None
    assert newest.fallback is None
    with programs.raw(path) as connection:
        connection.execute("UPDATE bodies SET data = X'00' WHERE checkpoint = ?", (newest.id,))
    older = session.latest()
    assert older is not None
    assert older.fallback is not None
    assert older.state["n"] == 1


def test_a_fallback_uses_what_is_in_memory_too(store: stepkeep.Store, path: Path) -> None:
    """What loads by its id is what `latest` falls back to, though another process saved the damaged head."""
    session = store.session("s")
    text = "long enough for a delta " * 60
    first = session.save({"n": 1, "text": text})
    second = session.save({"n": 2, "text": text})
    with stepkeep.open(f"sqlite:{path}") as other:
        head = other.session("s").save({"n": 3, "text": text})
    with programs.raw(path) as connection:
        damage_body(connection, first.id)
        damage_header(connection, head.id)
    assert session.load(second.id).state["n"] == 2
    latest = session.latest()
    assert latest is not None
    assert latest.id == second.id
    assert latest.fallback is not None


@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "read"])
def test_what_latest_returns_is_loaded_by_its_id_too(path: Path, is_saved: bool) -> None:
    """Another store saved upon what this one holds in memory, and the keyframe below both is damaged."""
    text = [f"word {number}" for number in range(200)]
    with stepkeep.open(f"sqlite:{path}") as store, stepkeep.open(f"sqlite:{path}") as other:
        saver = store if is_saved else other
        first = saver.session("shared", profile="archive").save({"text": text, "n": 1})
        saver.get("shared").save({"text": text, "n": 2})
        assert store.get("shared").load().state["n"] == 2
        newest = other.get("shared").save({"text": text, "n": 3})
        with programs.raw(path) as connection:
            damage_body(connection, first.id)
        latest = store.get("shared").latest()
        assert latest is not None
        assert (latest.id, latest.state["n"]) == (newest.id, 3)
        assert store.get("shared").load(newest.id).state["n"] == 3
