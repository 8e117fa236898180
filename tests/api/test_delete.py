"""Deleting really removes: no byte of it is left in any file, and what stays still loads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from tests.api import programs

# Text that compresses little, so that a keyframe is much larger than the deltas of its group.
TEXT = random.Random(0).randbytes(1500).hex()


class Traces:
    """What a doomed checkpoint left in the database: pieces of every form its bodies ever had."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.pieces: set[bytes] = set()

    def remember(self, checkpoint: str) -> None:
        with programs.raw(self._path) as connection:
            sql = "SELECT data FROM bodies WHERE checkpoint = ?"
            for (data,) in programs.rows(connection, sql, (checkpoint,)):
                # The middle of the bytes: their ends are much the same in every frame.
                middle = len(data) // 2
                self.pieces.add(bytes(data[middle - 12 : middle + 12]))

    def found(self) -> list[str]:
        """The files in which a piece is left. Only when no connection of this process is open."""
        return [
            f"{Path(name).name}: {piece!r}"
            for name, data in programs.stored_bytes(self._path.parent).items()
            for piece in self.pieces
            if piece in data
        ]


def secret(seed: int) -> str:
    """Text that does not compress."""
    return random.Random(seed).randbytes(64).hex()


def test_a_deleted_checkpoint_leaves_no_bytes(url: str, path: Path) -> None:
    """A secret saved by mistake, based on by later checkpoints, is in no file after delete and close."""
    traces = Traces(path)
    with stepkeep.open(url) as store:
        session = store.session("run", profile="archive")
        states: list[Any] = [{"n": n, "text": TEXT} for n in range(6)]
        states[2]["secret"] = secret(1)
        ids = [session.save(state, message=f"m{n}").id for n, state in enumerate(states)]
        bad = session.save({"n": "bad", "text": TEXT, "s": secret(2)}, message=secret(3), tags=[secret(4)]).id
        after = session.save({"n": "after", "text": TEXT})
        with programs.raw(path) as connection:
            assert programs.rows(connection, "SELECT count(*) FROM bodies WHERE base = ?", (bad,)) == [(1,)]
        for doomed in (ids[2], bad):
            traces.remember(doomed)
        session.delete(ids[2], bad)
        assert session.load(after.id).state == {"n": "after", "text": TEXT}
    assert traces.found() == []
    for seed in (1, 2, 3, 4):
        assert all(secret(seed).encode() not in data for data in programs.stored_bytes(path.parent).values())
    found = programs.run(programs.survey, url, "run")
    kept = [state for n, state in enumerate(states) if n != 2]
    assert found["states"] == [*kept, {"n": "after", "text": TEXT}]
    assert found["findings"] == []
    assert found["seqs"] == [1, 2, 4, 5, 6, 8]


def test_a_body_that_was_stored_anew_leaves_no_bytes(url: str, path: Path) -> None:
    """The head became a keyframe when the session paused: its earlier form goes with it too."""
    traces = Traces(path)
    with stepkeep.open(url) as store:
        session = store.session("run", profile="archive")
        for n in range(3):
            session.save({"n": n, "text": TEXT})
        bad = session.save({"n": "bad", "text": TEXT, "s": secret(1)}).id
        traces.remember(bad)
        session.pause()
        traces.remember(bad)
        assert len(traces.pieces) == 2
        session.save({"n": "after", "text": TEXT})
        session.delete(bad)
    assert traces.found() == []
    assert programs.run(programs.survey, url, "run")["findings"] == []


def test_a_cleared_session_leaves_no_bytes(url: str, path: Path) -> None:
    """Clear removes every body, header, tag and event of a session; another session is untouched."""
    traces = Traces(path)
    with stepkeep.open(url) as store:
        session = store.session(secret(1), profile="archive", metadata={"m": secret(2)})
        other = store.session("other")
        for n in range(20):
            session.save({"n": n, "s": secret(n + 10)}, tags=[secret(3)], details={"d": secret(4)})
            traces.remember(session.header("latest").id)
            other.save({"n": n})
        session.fail(secret(5))
        traces.remember(session.header("latest").id)
        session.clear()
    assert traces.found() == []
    texts = [secret(seed).encode() for seed in [*range(1, 6), *range(10, 30)]]
    for name, data in programs.stored_bytes(path.parent).items():
        assert [text for text in texts if text in data] == [], name
    assert programs.run(programs.survey, url, "other")["seqs"] == list(range(1, 21))


def test_session_fields_that_were_replaced_leave_no_bytes(url: str, path: Path) -> None:
    """Metadata and errors that were overwritten before the session was cleared are gone too."""
    with stepkeep.open(url) as store:
        store.session("other").save({"n": 1})
        session = store.session("run", metadata={"m": secret(1)})
        session.save({"n": 1})
        session.fail(secret(2))
        store.session("run", metadata={"m": "short"})
        session.save({"n": 2})
        session.clear()
    for name, data in programs.stored_bytes(path.parent).items():
        assert [seed for seed in (1, 2) if secret(seed).encode() in data] == [], name


def test_deleting_the_head_moves_it_back(session: stepkeep.Session) -> None:
    """The newest that remains is latest; the number is not given again."""
    ids = [session.save({"n": n}).id for n in (1, 2, 3)]
    session.delete(ids[2])
    assert session.load().state == {"n": 2}
    assert session.save({"n": 4}, expect_head=ids[1]).seq == 4
    session.delete(*ids[:2])
    assert [header.seq for header in session.history()] == [4]
    report = session.verify()
    assert report.is_intact
    assert report.pruned == 3


def test_deleting_all_leaves_an_empty_session(session: stepkeep.Session) -> None:
    """A session may become empty, and goes on with the next number."""
    session.delete(session.save({"n": 1}).id)
    assert session.latest() is None
    assert session.save({"n": 2}).seq == 2


def test_what_is_required_cannot_be_deleted(session: stepkeep.Session) -> None:
    """The required checkpoint stays and loads; together with the one that requires it, it may go."""
    first = session.save({"n": 1})
    second = session.save({"n": 2}, requires=[first.id])
    with pytest.raises(stepkeep.Conflict) as caught:
        session.delete(first.id)
    assert caught.value.code == "still_required"
    assert session.load(1).state == {"n": 1}
    session.delete(first.id, second.id)
    assert session.latest() is None


def test_an_unknown_id_deletes_nothing(session: stepkeep.Session, store: stepkeep.Store) -> None:
    """One unknown id, or one of another session, and nothing at all is removed."""
    first = session.save({"n": 1})
    foreign = store.session("other").save({"n": 1})
    for unknown in ("cp_unknown", foreign.id):
        with pytest.raises(stepkeep.NotFound):
            session.delete(first.id, unknown)
    assert session.load().state == {"n": 1}
    assert store.get("other").load().state == {"n": 1}


def test_dependents_load_equal_after_any_deletion(url: str) -> None:
    """Whatever is deleted from groups of deltas, everything else still loads as it was saved."""
    chooser = random.Random(3)
    for round_ in range(6):
        with stepkeep.open(url) as store:
            rules = chooser.choice([{}, {"keep_last": 10, "keep_within": "1d"}])  # groups of 128, or of 5
            session = store.session(f"r{round_}", profile="archive", retention=rules)
            left = {session.save({"n": n, "text": TEXT + "x" * n}).id: n for n in range(30)}
            while len(left) > 4:
                doomed = chooser.sample(sorted(left), min(chooser.randrange(1, 6), len(left) - 2))
                session.delete(*doomed)
                for checkpoint in doomed:
                    del left[checkpoint]
                number = 100 + len(left)
                left[session.save({"n": number, "text": TEXT + "x" * number}).id] = number
                for checkpoint, n in left.items():
                    assert session.load(checkpoint).state == {"n": n, "text": TEXT + "x" * n}
            assert session.verify().is_intact
