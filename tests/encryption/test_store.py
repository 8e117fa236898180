"""What an encrypted store shows to whom: everything to who has the key, and nothing to anybody else."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path

import pytest

import stepkeep
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound, Unsupported
from stepkeep.storage import port
from tests.encryption.stores_of_encryption import KEY, MARK, cells, marked_files, opened, rows


def fill(store: stepkeep.Store, folder: Path | None = None) -> stepkeep.Session:
    """A session with the mark in everything a user can say."""
    run = store.session("run", metadata={MARK: MARK})
    for step in range(12):
        run.save(
            {"text": f"{MARK} " * 300, "grown": list(range(step * 50)), "step": step},
            details={"why": MARK},
            step=step,
            message=f"{MARK} {step}",
            tags=[MARK],
            metadata={"note": MARK},
            idempotency_key=f"{MARK}-{step}",
            external_id=f"{MARK}/{step}",
            trigger=stepkeep.Trigger(stepkeep.TriggerKind.MANUAL, MARK),
            workspace=folder,
        )
    run.branches.fork(name="side", switch=False, metadata={"about": MARK})
    run.fail(MARK)
    store.engine.annotate(run.info.uid, run.latest().header.id, "note", MARK, MARK.encode())
    store.engine.backend.record_event(run.info.uid, "told", {"what": MARK}, time_us=1)
    return run


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / f"{MARK}.txt").write_text(f"{MARK}\n" * 2000)
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stores" / "agent.db"


@pytest.mark.parametrize(
    "ability", ["TellsFacts", "TakesSnapshots", "ClaimsSessions", "BoundsLog", "LooksOver"]
)
def test_what_a_backend_can_do_it_can_do_encrypted(path: Path, ability: str) -> None:
    """Who asks looks for the methods: an ability that the layer does not hand on would silently be missing."""
    wanted = getattr(port, ability)
    with opened(path, encrypt=True) as store, opened(path.with_name("clear.db"), key=None) as clear:
        assert isinstance(store.engine.backend, wanted) == isinstance(clear.engine.backend, wanted)
        assert isinstance(clear.engine.backend, wanted)


def test_a_key_is_never_given_in_vain(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names a key believes that the store is encrypted: a new one is, and for another the key is refused."""
    plain = path.with_name("plain.db")
    with opened(plain, key=None) as store:
        store.session("run").save({"text": MARK})
    with pytest.raises(NotFound, match="not encrypted") as caught:
        opened(plain)
    assert caught.value.code == "not_encrypted"
    monkeypatch.setenv("STEPKEEP_KEY", "correct horse battery staple")
    with opened(plain, key=None) as store:
        assert store.get("run").latest().state == {"text": MARK}
    with opened(path, key=None) as store:
        store.session("run").save({"text": MARK})
    monkeypatch.delenv("STEPKEEP_KEY")
    with pytest.raises(InvalidInput) as missing:
        opened(path, key=None)
    assert missing.value.code == "key_missing"
    assert all(MARK not in str(value) for _, value in cells(path))


def test_everything_comes_back_to_who_has_the_key(path: Path, project: Path) -> None:
    """In another process: states, details, files, messages, tags, metadata, events, annotations."""
    with opened(path, encrypt=True) as store:
        fill(store, project)
    code = f"""
import stepkeep
with stepkeep.open("sqlite:{path}") as store:
    run = store.get("run")
    newest = run.latest()
    header = newest.header
    mark = {MARK!r}
    assert newest.state["text"] == mark + " " + (mark + " ") * 299 and newest.details["why"] == mark
    assert header.message == mark + " 11" and header.tags == (mark,) and header.metadata == {{"note": mark}}
    assert header.external_id == mark + "/11" and header.idempotency_key == mark + "-11"
    assert header.trigger.event == mark
    assert run.files.at(header.id).read(mark + ".txt").startswith(mark.encode())
    assert [each.seq for each in run.history(tag=mark)] == list(range(12, 0, -1))
    assert run.at("tag:" + mark).header.seq == 12
    assert run.info.metadata == {{mark: mark}} and run.info.error == mark
    (event,) = [each for each in run.events() if each.type == "told"]
    assert event.data == {{"what": mark}}
    (note,) = [each for each in store.engine.backend.annotations(run.info.uid) if each.kind == "note"]
    assert (note.name, note.data) == (mark, mark.encode())
    assert store.verify().is_intact
"""
    file = path.parent / "key"
    file.write_bytes(KEY + b"\n")
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "STEPKEEP_KEY_FILE": str(file)}
    )


def test_nothing_a_user_said_is_in_any_file_or_table(path: Path, project: Path, tmp_path: Path) -> None:
    """While it is open, with its log and its index, after it was closed, in a backup and in a recovered copy."""
    with opened(path, encrypt=True) as store:
        fill(store, project)
        assert marked_files(path.parent) == []
        store.backup(path.parent / "backup.db")
        store.prune(keep_last=2)
    assert marked_files(path.parent) == []
    stepkeep.api.recover(f"sqlite:{path}", f"sqlite:{path.parent}/recovered.db", key=KEY)
    assert marked_files(path.parent) == []
    for name in ("agent.db", "backup.db", "recovered.db"):
        assert [table for table, value in cells(path.parent / name) if MARK in str(value)] == []
    assert marked_files(project) != []  # the search finds what there is
    with opened(path.parent / "plain.db", key=None) as store:
        fill(store, project)
    assert "plain.db" in marked_files(path.parent)


def test_equal_contents_cannot_be_told_from_outside(path: Path) -> None:
    """No stored digest is one that somebody could compute who guesses a content, and sessions share none."""
    with opened(path, encrypt=True) as store:
        for key in ("one", "two"):
            store.session(key).save({"guess": "me"})
    from hashlib import sha256

    guess = sha256(b'{"guess":"me"}').hexdigest()
    headers = [bytes(raw).decode() for (raw,) in rows(path, "SELECT header FROM checkpoints")]
    assert all(guess not in raw for raw in headers)
    digests = [raw.partition('"digest":"')[2][:64] for raw in headers]
    assert len(set(digests)) == 2


@pytest.mark.parametrize(
    ("key", "code"), [(None, "key_missing"), (b"x" * 32, "key_wrong"), ("a passphrase", "key_wrong")]
)
def test_a_missing_or_wrong_key_is_one_clear_error(
    path: Path, key: str | bytes | None, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never an empty store."""
    for name in ("STEPKEEP_KEY", "STEPKEEP_KEY_FILE", "STEPKEEP_KEY_COMMAND"):
        monkeypatch.delenv(name, raising=False)
    with opened(path, encrypt=True) as store:
        store.session("run").save({"a": 1})
    with pytest.raises(InvalidInput) as error:
        opened(path, key=key)
    assert error.value.code == code


def test_a_store_is_encrypted_from_its_creation_or_never(path: Path) -> None:
    """One with sessions is refused; a plain handle to an empty one that became encrypted can store nothing."""
    with opened(path, key=None) as store:
        store.session("run").save({"a": 1})
    with pytest.raises(Conflict) as error:
        opened(path, encrypt=True)
    assert error.value.code == "store_not_empty"
    other = path.with_name("other.db")
    with opened(other, key=None) as plain:
        with opened(other, encrypt=True) as store:
            store.session("run").save({"a": 1})
        with pytest.raises(InvalidInput) as refused:
            plain.session("mine").save({"a": 2})
        assert refused.value.code == "key_missing"


def test_readable_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="documents that people"):
        stepkeep.open(f"files:{tmp_path}/files", key=KEY, encrypt=True)


def test_plain_text_in_an_encrypted_store_is_damage(path: Path) -> None:
    """Somebody who may write to the file cannot make a checkpoint up."""
    with opened(path, encrypt=True) as store:
        store.session("run").save({"a": 1})
    with opened(path.with_name("plain.db"), key=None) as plain:
        plain.session("run").save({"a": 2})
    ((raw,),) = rows(path.with_name("plain.db"), "SELECT header FROM checkpoints")
    rows(path, "UPDATE checkpoints SET header = ?", raw)
    with opened(path) as store:
        with pytest.raises(Corrupt):
            store.get("run").latest()
        assert not store.verify().is_intact


EXCHANGES = {
    "a body of another checkpoint": """UPDATE bodies SET (data, digest) =
        (SELECT data, digest FROM bodies b WHERE b.sid = 1 AND b.checkpoint != bodies.checkpoint
         ORDER BY checkpoint LIMIT 1) WHERE sid = 1""",
    "a body of another session": """UPDATE bodies SET (data, digest, codec, size, base) =
        (SELECT data, digest, codec, size, base FROM bodies b WHERE b.sid = 2 LIMIT 1) WHERE sid = 1""",
    "a body cut": """UPDATE bodies SET data = substr(data, 1, length(data) - 1)""",
    "a body cut to nothing": """UPDATE bodies SET data = x''""",
    "another step": """UPDATE checkpoints SET
        header = CAST(replace(CAST(header AS TEXT), '"step":', '"step":1') AS BLOB)""",
    "an event of another session": """UPDATE events SET data = (SELECT data FROM events e WHERE e.sid = 2)""",
    "metadata of another session": """UPDATE sessions SET metadata =
        (SELECT metadata FROM sessions s WHERE s.sid = 2)""",
}


@pytest.mark.parametrize("sql", EXCHANGES.values(), ids=EXCHANGES)
def test_what_was_moved_exchanged_or_cut_is_damage(path: Path, sql: str) -> None:
    """Also by someone who makes every digest right that can be made right without the key."""
    with opened(path, encrypt=True) as store:
        for key in ("one", "two"):
            run = store.session(key, metadata={"of": key})
            for step in range(2):
                run.save({"of": key, "text": f"{key} {step} " * 40}, step=step, message=key)
            store.engine.backend.record_event(run.info.uid, "told", {"of": key}, time_us=1)
    rows(path, sql)
    with_right_digests(path)
    with opened(path) as store, pytest.raises((Corrupt, NotFound)):
        read_everything(store)


def read_everything(store: stepkeep.Store) -> None:
    """What a user sees of the first session is what was saved there, or an error."""
    run = store.get("one")
    run.latest()
    for header in run.history(limit=None):
        assert run.at(header.id).state["of"] == "one"
    assert [each.data for each in run.events() if each.type == "told"] == [{"of": "one"}]
    for finding in store.verify().findings:
        raise Corrupt(finding.message)


def with_right_digests(path: Path) -> None:
    """Compute the digests of stored bytes anew, as anybody can."""
    import apsw

    from stepkeep.codec.integrity import digest, row_digest

    connection = apsw.Connection(str(path))
    for rowid, data in list(connection.execute("SELECT rowid, data FROM bodies")):
        connection.execute("UPDATE bodies SET digest = ? WHERE rowid = ?", (digest(data), rowid))
    for seq, sid, raw in list(connection.execute("SELECT seq, sid, header FROM checkpoints")):
        connection.execute(
            "UPDATE checkpoints SET header = ? WHERE sid = ? AND seq = ?", (resealed(bytes(raw)), sid, seq)
        )
    from stepkeep.storage.sql.row_mapping import SESSION_COLUMNS

    for sid, *row in list(connection.execute(f"SELECT sid, {SESSION_COLUMNS} FROM sessions")):
        connection.execute("UPDATE sessions SET digest = ? WHERE sid = ?", (row_digest(*row[:-1]), sid))
    connection.close()


def resealed(raw: bytes) -> bytes:
    from hashlib import sha256

    clear, _, rest = raw.partition(b',"cipher":"')
    record = b64decode(rest.partition(b'"')[0])[:-5]
    cipher = b64encode(record + sha256(clear + record).digest()[:5])
    chain = sha256(clear + b"}").hexdigest().encode()
    return clear + b',"cipher":"' + cipher + b'","chain":"' + chain + b'"}'


def test_an_older_version_of_a_body_put_back_is_damage(path: Path) -> None:
    """The header names the content; a record of the same place with another content does not fit."""
    with opened(path, encrypt=True, keyframe_every=1) as store:
        run = store.session("run")
        first = run.save({"text": "first " * 50})
        second = run.save({"text": "second " * 50})
    rows(path, "UPDATE bodies SET checkpoint = 'x' WHERE checkpoint = ?", second.id)
    rows(path, "UPDATE bodies SET checkpoint = ? WHERE checkpoint = ?", second.id, first.id)
    with opened(path) as store, pytest.raises(Corrupt):
        store.get("run").at(second.id)


# --- without the key -------------------------------------------------------------------------------------------


def test_without_the_key_a_store_is_verified_backed_up_and_pruned(path: Path) -> None:
    """And nothing in it can be read or written."""
    with opened(path, encrypt=True) as store:
        run = store.session("run")
        for step in range(20):
            run.save({"text": "words " * step * 20, "step": step}, step=step, tags=["t"])
    with opened(path, key=None, locked=True) as store:
        assert store.verify().is_intact
        assert store.backup(path.with_name("backup.db")).findings == ()
        assert store.prune(keep_last=5).deleted > 10
        with pytest.raises(InvalidInput) as refused:
            store.prune("run", keep_tags=["t"])
        assert refused.value.code == "key_missing"
        with pytest.raises(InvalidInput):
            store.session("run").save({"a": 1})
        with pytest.raises((Corrupt, InvalidInput)):
            store.get("run").latest()
    rows(path, "UPDATE bodies SET data = x'00' WHERE rowid = (SELECT max(rowid) FROM bodies)")
    with opened(path, key=None, locked=True) as store:
        assert not store.verify().is_intact
    with opened(path.with_name("backup.db")) as store:
        assert store.get("run").latest().state["step"] == 19


def test_what_needs_the_key_for_pruning_stays_in_clear(path: Path) -> None:
    """Safety checkpoints are kept by who cannot read that they are some."""
    with opened(path, encrypt=True) as store:
        run = store.session("run")
        kept = run.save({"n": 0}, tags=["safety", "secret"]).id
        for number in range(1, 20):
            run.save({"n": number})
    with opened(path, key=None, locked=True) as store:
        store.prune(keep_last=2)
    with opened(path) as store:
        assert store.get("run").at(kept).header.tags == ("safety", "secret")
