"""`verify` reads everything and names whatever is not as it was written."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import stepkeep
from stepkeep.engine import NewBody, Save
from tests.api import programs


@pytest.fixture
def filled(store: stepkeep.Store) -> stepkeep.Session:
    session = store.session("run", profile="agent")
    for n in range(12):
        session.save({"n": n, "text": "same words " * 120}, details={"n": n})
    return session


def flip(connection: apsw.Connection, sql: str, column: str, table: str) -> None:
    """Flip one bit in the middle of a column of the one row that `sql` names."""
    ((row, data),) = programs.rows(connection, f"SELECT rowid, {column} FROM {table} WHERE {sql}")
    connection.execute(
        f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (programs.flipped(data, len(data) // 2), row)
    )


def test_an_intact_store_has_no_findings(store: stepkeep.Store, filled: stepkeep.Session) -> None:
    """The report counts what was looked at; progress is told per checkpoint."""
    store.session("other").save({"n": 1})
    steps: list[int] = []
    report = store.verify(progress=steps.append)
    assert report.is_intact
    assert (report.sessions, report.checkpoints, report.bodies) == (2, 13, 25)
    assert sum(steps) == 13


def test_a_damaged_body_is_named(filled: stepkeep.Session, path: Path) -> None:
    """The finding has session, checkpoint, seq and code; the checkpoints that depend on it are found too."""
    victim = filled.header(12)
    with programs.raw(path) as connection:
        flip(connection, f"checkpoint = '{victim.id}' AND name = 'state'", "data", "bodies")
    (finding,) = filled.verify().findings
    assert (finding.session, finding.checkpoint, finding.seq) == ("run", victim.id, 12)
    assert finding.code == "checkpoint_integrity_mismatch"


def test_a_damaged_header_is_named(filled: stepkeep.Session, path: Path) -> None:
    """A header that does not match its chain value is a finding."""
    victim = filled.header(5)
    with programs.raw(path) as connection:
        ((header,),) = programs.rows(connection, "SELECT header FROM checkpoints WHERE seq = 5")
        changed = programs.flipped(header, 30)
        connection.execute("UPDATE checkpoints SET header = ? WHERE seq = 5", (changed,))
    report = filled.verify()
    assert [finding.checkpoint for finding in report.findings] == [victim.id]
    assert report.checkpoints == 12


def test_a_damaged_keyframe_is_found_although_its_redundant_delta_serves(
    filled: stepkeep.Session, path: Path
) -> None:
    """The checkpoint loads, and `verify` says all the same that its keyframe must be replaced."""
    keyframe = filled.header(6)
    with programs.raw(path) as connection:
        flip(
            connection,
            f"checkpoint = '{keyframe.id}' AND name = 'state' AND is_redundant = 0",
            "data",
            "bodies",
        )
    assert filled.load(6).state["n"] == 5
    assert keyframe.id in {finding.checkpoint for finding in filled.verify().findings}


def test_a_damaged_spare_is_found(filled: stepkeep.Session, path: Path) -> None:
    """Stored bytes that nobody reads today are checked too."""
    with programs.raw(path) as connection:
        flip(
            connection,
            f"checkpoint = '{filled.header(6).id}' AND name = 'state' AND is_redundant = 1",
            "data",
            "bodies",
        )
    assert not filled.verify().is_intact


def test_a_damaged_hidden_body_is_found(filled: stepkeep.Session, path: Path) -> None:
    """A pruned body that others are based on is checked with them."""
    second = filled.header(2)
    filled._engine.backend.remove(filled.uid, [second.id])
    with programs.raw(path) as connection:
        flip(connection, f"checkpoint = '{second.id}' AND name = 'state'", "data", "bodies")
    assert {finding.seq for finding in filled.verify().findings} >= {3}


def test_a_damaged_blob_is_found(store: stepkeep.Store, path: Path) -> None:
    """Blobs belong to what is verified."""
    session = store.session("run")
    blob = store.engine.make_blob(b"long output " * 100)
    body = NewBody(b"{}", "json", frozenset({blob.digest}))
    store.engine.save(Save(session=session.uid, state=body, blobs=(blob,)))
    assert store.verify().is_intact
    with programs.raw(path) as connection:
        flip(connection, "1 = 1", "data", "blobs")
    assert not store.verify().is_intact


def test_a_missing_blob_is_found(store: stepkeep.Store, path: Path) -> None:
    """A blob that a body names and nobody stores is a finding."""
    session = store.session("run")
    blob = store.engine.make_blob(b"long output " * 100)
    body = NewBody(b"{}", "json", frozenset({blob.digest}))
    store.engine.save(Save(session=session.uid, state=body, blobs=(blob,)))
    with programs.raw(path) as connection:
        connection.execute("DELETE FROM blobs")
    assert not store.verify().is_intact


def test_a_lost_row_is_told_from_a_removed_one(filled: stepkeep.Session, path: Path) -> None:
    """A number that was deleted is a gap; one that vanished is missing."""
    filled.delete(filled.header(3).id)
    assert filled.verify().is_intact
    assert filled.verify().pruned == 1
    with programs.raw(path) as connection:
        connection.execute("DELETE FROM checkpoints WHERE seq = 12")
    findings = filled.verify().findings
    assert [(finding.code, finding.seq) for finding in findings] == [("checkpoint_missing", 12)]


def test_an_exchanged_parent_breaks_the_chain(filled: stepkeep.Session, path: Path) -> None:
    """A checkpoint re-sealed with other content is intact in itself; its child's chain value tells."""
    from stepkeep.codec import integrity

    with programs.raw(path) as connection:
        ((raw,),) = programs.rows(connection, "SELECT header FROM checkpoints WHERE seq = 11")
        forged = raw[: -len(b',"chain":""}') - 64] + b',"message":"forged"}'
        sealed = forged[:-1] + b',"chain":"' + integrity.digest(forged).encode() + b'"}'
        connection.execute("UPDATE checkpoints SET header = ? WHERE seq = 11", (sealed,))
    findings = filled.verify().findings
    assert [finding.seq for finding in findings] == [12]
    assert "chain" in findings[0].message


def test_a_damaged_branch_row_is_seen(filled: stepkeep.Session, store: stepkeep.Store, path: Path) -> None:
    """`verify` finds it, or rebuilds it and leaves an event."""
    with programs.raw(path) as connection:
        connection.execute("UPDATE branches SET head = 'cp_other'")
    findings = store.verify().findings
    assert findings or "branch_repaired" in [event.type for event in filled.events()]


def test_a_session_row_that_cannot_be_rebuilt_is_a_finding(
    filled: stepkeep.Session, store: stepkeep.Store, path: Path
) -> None:
    """A session whose key cannot be proven is left out of lists, but not out of the report."""
    with programs.raw(path) as connection:
        connection.execute("UPDATE sessions SET key = 'other', key_digest = 'zz', description = 'yy'")
    assert not store.verify().is_intact


def test_verify_changes_nothing(filled: stepkeep.Session, store: stepkeep.Store, path: Path) -> None:
    """Findings stay findings: a second run reports the same."""
    with programs.raw(path) as connection:
        flip(connection, f"checkpoint = '{filled.header(3).id}' AND name = 'details'", "data", "bodies")
    first = store.verify()
    assert first.findings
    assert store.verify() == first
