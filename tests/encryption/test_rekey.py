"""Another data key: everything is encrypted anew while the store is in use, and who kept the old key reads nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import stepkeep
from stepkeep import api
from stepkeep.cli.app import stepkeep as command
from stepkeep.codec.encryption import Cipher, KeySet
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound, Unsupported
from stepkeep.maintenance import rekey as rekeying
from stepkeep.storage.encrypted import EncryptedBackend
from stepkeep.storage.port import RENEWED_PARTS, HeaderQuery, SessionQuery
from stepkeep.storage.sql import renewing
from tests.encryption.stores_of_encryption import KEY, MARK, marked_files, opened, rows
from tests.encryption.test_store import fill
from tests.postgres.server import Server


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STEPKEEP_KEY", "STEPKEEP_KEY_FILE", "STEPKEEP_KEY_COMMAND"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / f"{MARK}.txt").write_text(f"{MARK}\n" * 2000)
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stores" / "agent.db"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{path}"
    server: Server = request.getfixturevalue("postgres")
    return server.fresh_url()


def at(url: str, **options: Any) -> stepkeep.Store:
    return stepkeep.open(url, config=stepkeep.Settings({}), **{"key": KEY, **options})


def told(store: stepkeep.Store) -> dict[str, Any]:
    """Everything a user can see of a store, with the chain values."""
    backend = store.engine.backend
    seen: dict[str, Any] = {}
    for info in backend.sessions(SessionQuery()):
        run = store.get(info.key)
        headers = [row.opened for row in backend.headers(HeaderQuery(session=info.uid))]
        seen[info.key] = {
            "info": info,
            "headers": headers,
            "states": [run.at(each.id).state for each in run.history(limit=None, branch=None)],
            "details": [run.at(each.id).details for each in run.history(limit=None, branch=None)],
            "branches": backend.branches(info.uid),
            "events": backend.events(info.uid),
            "notes": backend.annotations(info.uid),
            "blobs": backend.blob_sizes(info.uid),
        }
    return seen


def keys_of(store: stepkeep.Store) -> KeySet:
    backend = store.engine.backend
    assert isinstance(backend, EncryptedBackend)
    return backend.keyring.keys


def stored_records(store: stepkeep.Store) -> Iterator[tuple[bytes, bytes]]:
    """The stored bytes of all bodies, and what each is bound to."""
    from stepkeep.storage.encrypted import _body_place

    backend = store.engine.backend
    assert isinstance(backend, EncryptedBackend)
    for info in backend.inner.sessions(SessionQuery()):
        for each in backend.inner.bodies(info.uid):
            body = backend.inner.body(info.uid, each.checkpoint, each.name)
            assert body is not None
            yield body.data, _body_place(info.uid, body)


class Stop(Exception):
    pass


class StopAt:
    """Stops a change of the key in the middle, as if its process had been killed between two transactions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
        self.left = pages
        before = rekeying._renewed

        def renewed(*given: Any) -> Any:
            if self.left == 0:
                raise Stop
            self.left -= 1
            return before(*given)

        monkeypatch.setattr(rekeying, "_renewed", renewed)


def begun(store: stepkeep.Store, pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        StopAt(patched, pages)
        with pytest.raises(Stop):
            store.keys.rekey()


# --- all of it --------------------------------------------------------------------------------------------------


def test_everything_is_encrypted_anew_and_nothing_else_changes(url: str, project: Path) -> None:
    """States, details, files, words, errors, events, annotations, branches; and every chain value."""
    with at(url, encrypt=True) as store:
        run = fill(store, project)
        store.session("other").save({"text": MARK})
        before, old, digests = told(store), keys_of(store), [data for data, _ in stored_records(store)]
        report = store.keys.rekey()
        assert (report.key, report.left, report.damaged, report.is_done) == (2, 0, 0, True)
        assert report.renewed > 30
        assert told(store) == before
        assert not {data for data, _ in stored_records(store)} & set(digests)
        assert store.verify().is_intact
        content = run.files.at(run.latest().header.id).read(f"{MARK}.txt")
        assert content.startswith(MARK.encode())
        assert keys_of(store).names == old.names
    with at(url) as store:
        assert told(store) == before
        assert list(keys_of(store).keys) == [2]
        shut_out = Cipher(old)
        for data, place in stored_records(store):
            with pytest.raises(Corrupt, match="data key 2"):
                shut_out.decrypt(data, place)
        assert store.keys.rekey().key == 3  # and again, with the next one


def test_nothing_is_encrypted_with_the_old_key_any_more(path: Path, project: Path) -> None:
    """In no table; and the bytes that were are in no file, neither in free pages nor in the log."""
    with opened(path, encrypt=True) as store:
        fill(store, project)
        for _ in range(5):
            store.session("noise").save({"noise": os.urandom(30_000).hex()})
        cipher_texts = [data for data, _ in stored_records(store)]
        assert store.get("noise").prune(keep_last=2).deleted  # which leaves free pages with what was in them
        ((old_record,),) = rows(path, "SELECT value FROM meta WHERE name = 'encryption'")
        store.keys.rekey()
        files = [file.read_bytes() for file in path.parent.iterdir() if file.name != "agent.db-shm"]
        for data in cipher_texts:
            for start in (18, len(data) // 2, len(data) - 16):
                assert not any(data[start : start + 16] in content for content in files)
        (slot,) = json.loads(old_record)["slots"]
        assert not any(slot["wrapped"][:60].encode() in content for content in files)
        assert marked_files(path.parent) == []
    for table, column in (("bodies", "data"), ("blobs", "data"), ("annotations", "data")):
        sql = f"SELECT DISTINCT hex(substr({column}, 1, 2)) FROM {table} WHERE length({column}) < 100000"
        found = {mark for (mark,) in rows(path, sql)} - {b'{"'.hex().upper()}  # the copy of the key record
        assert found == {"0102"}
    from base64 import b64decode

    for (raw,) in rows(path, "SELECT header FROM checkpoints"):
        assert b64decode(json.loads(raw)["cipher"]).startswith(b"\x01\x02")
    for metadata, error in rows(path, "SELECT metadata, error FROM sessions WHERE key = 'run'"):
        assert b64decode(json.loads(metadata)["cipher"]).startswith(b"\x01\x02")
        assert b64decode(error).startswith(b"\x01\x02")
    told = [json.loads(data) for (data,) in rows(path, "SELECT data FROM events")]
    assert all(b64decode(each["cipher"]).startswith(b"\x01\x02") for each in told if "cipher" in each)


@pytest.mark.parametrize("pages", [0, 1, 3, 5, 8, 12])
def test_stopped_anywhere_it_goes_on(
    url: str, pages: int, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In between all can be read, saved, verified, backed up, pruned and copied, and it is told how much is left."""
    monkeypatch.setattr(renewing, "MAX_ROWS", 4)
    with at(url, encrypt=True) as store:
        fill(store, project)
        before = told(store)
        begun(store, pages, monkeypatch)
        assert told(store) == before
    with at(url) as store:
        left = store.keys.rekey(dry_run=True)
        assert (left.key, left.is_done) == (2, False)
        assert left.left > 0
        assert told(store) == before
        assert store.verify().is_intact
        assert store.keys.add(b"2" * 32).kind == "secret"
        store.session("new").save({"of": "the new key"})
        store.backup(project.parent / "backup.db")
        copy = project.parent / "copy.db"
        assert store.copy(f"sqlite:{copy}").is_whole
        done = store.keys.rekey()
        assert (done.key, done.is_done) == (2, True)
        assert {key: value for key, value in told(store).items() if key != "new"} == before
        assert store.copy(f"sqlite:{copy}").is_whole
        assert store.prune(keep_last=2).deleted > 0
    for key in (KEY, b"2" * 32):
        with at(url, key=key) as store:
            assert list(keys_of(store).keys) == [2]
            assert store.get("new").latest().state == {"of": "the new key"}
    for other in (project.parent / "backup.db", copy):
        with opened(other) as store:
            assert store.get("run").latest().state["step"] == 11
            assert store.keys.rekey(drop_slots=True).is_done
            assert store.verify().is_intact


def test_a_copy_from_before_takes_what_is_new_since(path: Path, tmp_path: Path) -> None:
    """Both had the same keys; then one got another data key, and then the other one too. Chains stay the same."""
    copy = f"sqlite:{tmp_path}/copy.db"
    with opened(path, encrypt=True) as store:
        run = store.session("run")
        run.save({"n": 1}, message=MARK)
        assert store.copy(copy).is_whole
        store.keys.rekey()
        run.save({"n": 2}, message=MARK)
        assert store.copy(copy).copied == 1
        with at(copy) as other:
            other.keys.rekey()
        run.save({"n": 3}, message=MARK)
        assert store.copy(copy).copied == 1
        chains = [header.chain for header in run.history()]
    with at(copy) as other:
        assert [header.chain for header in other.get("run").history()] == chains
        assert other.get("run").latest().state == {"n": 3}
        assert other.verify().is_intact
    assert marked_files(tmp_path) == []


# --- beside others ----------------------------------------------------------------------------------------------


def test_who_had_it_open_saves_with_the_new_key_and_reads_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it does next: save, read, annotate, note an event, change or create a session, fork a branch."""
    with at(url, encrypt=True) as store:
        for number in range(7):
            store.session(f"run {number}").save({"n": 0})
    others = [at(url) for _ in range(7)]
    runs = [other.get(f"run {number}") for number, other in enumerate(others)]
    for run in runs:
        run.save({"n": 1})
    with at(url) as store:
        begun(store, 0, monkeypatch)
        acts = (
            lambda run, other: run.save({"n": 2}),
            lambda run, other: other.engine.annotate(run.uid, run.latest().header.id, "note", "n", b"new"),
            lambda run, other: other.engine.backend.record_event(run.uid, "told", {"a": 1}, time_us=1),
            lambda run, other: other.engine.backend.update_session(run.uid, {"metadata": {"a": 1}}),
            lambda run, other: other.session("created", metadata={"a": 1}).save({"n": 2}),
            lambda run, other: run.branches.fork(name="side", metadata={"a": 1}),
            lambda run, other: run.save({"n": 2}, metadata={"a": 1}),
        )
        for act, run, other in zip(acts, runs, others, strict=True):
            act(run, other)
        assert store.keys.rekey().is_done
        for number in range(7):
            assert store.get(f"run {number}").latest().state["n"] in (1, 2)
        assert store.verify().is_intact
    for run, other in zip(runs, others, strict=True):
        assert run.save({"n": 3}).seq == run.latest().header.seq
        assert run.latest().state == {"n": 3}
        assert other.verify().is_intact
        other.close()
    with at(url) as store:
        assert store.verify().is_intact


def test_a_save_that_comes_between_two_pages_is_found(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that saved before and knows the head of its branch does not look anything up; what it still stores with
    the old key is encrypted anew, or it is told to use the new one."""
    with at(url, encrypt=True) as store, at(url) as other:
        run = other.session("run")
        run.save({"n": 0})
        before = rekeying._renewed

        saved = [0]

        def renewed(*given: Any) -> Any:
            saved.append(run.save({"n": len(saved)}).seq)
            return before(*given)

        monkeypatch.setattr(rekeying, "_renewed", renewed)
        assert store.keys.rekey().is_done
        count = saved[-1]
    assert count > len(RENEWED_PARTS)
    with at(url) as store:
        assert [header.seq for header in store.get("run").history(limit=None)] == list(range(count, 0, -1))
        assert store.verify().is_intact


SAVER = """
import sys, stepkeep
with stepkeep.open(sys.argv[1], key=sys.argv[2].encode()) as store:
    run = store.session("saver")
    print("ready", flush=True)
    for n in range(100_000):
        run.save({"n": n, "text": "words " * 50}, message="said")
        print(n, flush=True)
"""

READER = """
import sys, stepkeep
with stepkeep.open(sys.argv[1], key=sys.argv[2].encode()) as store:
    print("ready", flush=True)
    while True:
        headers = list(store.get("run").history(limit=None))
        for header in headers:
            assert store.get("run").at(header.id).state["step"] == header.step
        print(len(headers), flush=True)
"""


def reached(child: subprocess.Popen[str], number: int) -> int:
    """Wait until a child has said a number as high as this one."""
    assert child.stdout is not None
    assert child.stderr is not None
    for line in child.stdout:
        if line.strip().isdigit() and int(line) >= number:
            return int(line)
    raise AssertionError(child.stderr.read())


@pytest.mark.full
def test_beside_a_saver_and_a_reader(url: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes go on; nothing that was acknowledged is lost, and nothing is unreadable at any time."""
    monkeypatch.setattr(renewing, "MAX_ROWS", 3)
    with at(url, encrypt=True) as store:
        run = fill(store, project)
        saver, reader = (
            subprocess.Popen(
                [sys.executable, "-c", code, url, KEY.decode()],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for code in (SAVER, READER)
        )
        try:
            reached(saver, 3)
            reached(reader, 12)
            for key in (2, 3):
                report = store.keys.rekey()
                assert (report.key, report.is_done, report.damaged) == (key, True, 0)
            run.save({"step": 12}, step=12)
            # Both go on with the newest key.
            last = reached(saver, store.get("saver").latest().header.seq + 3)
            reached(reader, 13)
        finally:
            for child in (saver, reader):
                child.kill()
                child.communicate()
    with at(url) as store:
        found = [header.seq for header in store.get("saver").history(limit=None)]
        assert len(found) >= last + 1
        assert found == list(range(len(found), 0, -1))
        assert store.verify().is_intact


# --- slots ------------------------------------------------------------------------------------------------------


def test_other_slots_are_refused_or_dropped(path: Path) -> None:
    """What opens them is not at hand, so the new key cannot be put into them; nothing happens before it is decided."""
    with opened(path, encrypt=True) as store:
        store.session("run").save({"a": 1})
        store.keys.add("a passphrase", label="in the safe")
        with pytest.raises(Conflict, match="in the safe") as error:
            store.keys.rekey()
        assert error.value.code == "other_slots"
        assert list(keys_of(store).keys) == [1]
        other = opened(path, key="a passphrase")
        assert store.keys.rekey(drop_slots=True).is_done
        (slot,) = store.keys.list()
        assert (slot.label, slot.is_yours) == ("first", True)
        with pytest.raises(InvalidInput) as wrong:
            other.get("run").save({"a": 2})
        assert wrong.value.code == "key_wrong"
        with pytest.raises(InvalidInput) as unread:
            opened(path, key="a passphrase")
        assert unread.value.code == "key_wrong"
        other.close()
        store.keys.add("a passphrase")
    with opened(path, key="a passphrase") as store:
        assert store.get("run").latest().state == {"a": 1}
        assert store.keys.rekey(drop_slots=True).is_done
    with opened(path, key="a passphrase") as store:
        assert store.get("run").latest().state == {"a": 1}


def test_a_service_gets_the_new_key_too(path: Path) -> None:
    class Service:
        def wrap(self, key: bytes) -> bytes:
            return key[::-1]

        unwrap = wrap

    with opened(path, key=Service(), encrypt=True) as store:
        store.session("run").save({"a": 1})
        assert store.keys.rekey().is_done
    with opened(path, key=Service()) as store:
        assert store.get("run").latest().state == {"a": 1}


def test_a_damaged_record_keeps_the_old_key(path: Path) -> None:
    """It may come back from a backup or by a repair; everything else has the new key."""
    with opened(path, encrypt=True, keyframe_every=1) as store:
        run = store.session("run")
        for n in range(3):
            run.save({"n": n})
        hurt = run.latest().header.id
    sql = "UPDATE bodies SET data = substr(data, 1, length(data) - 1) || x'00' WHERE checkpoint = ?"
    ((whole,),) = rows(path, "SELECT data FROM bodies WHERE checkpoint = ?", hurt)
    rows(path, sql, hurt)
    with opened(path) as store:
        report = store.keys.rekey()
        assert (report.is_done, report.damaged, report.left) == (False, 1, 1)
        rows(path, "UPDATE bodies SET data = ? WHERE checkpoint = ?", whole, hurt)
        assert store.keys.rekey().is_done
        assert store.get("run").latest().state == {"n": 2}


def test_bad_calls_are_refused(path: Path, tmp_path: Path) -> None:
    """A store that is not encrypted, one opened without its key, one in memory, and one that has had too many keys."""
    with opened(tmp_path / "plain.db", key=None) as plain, pytest.raises(NotFound) as error:
        plain.keys.rekey()
    assert error.value.code == "not_encrypted"
    opened(path, encrypt=True).close()
    with opened(path, key=None, locked=True) as locked:
        with pytest.raises(InvalidInput) as missing:
            locked.keys.rekey()
        assert missing.value.code == "key_missing"
        assert locked.keys.rekey(dry_run=True).is_done
    with stepkeep.open("memory:", key=KEY, encrypt=True) as memory, pytest.raises(Unsupported):
        memory.keys.rekey()
    with opened(path) as store:
        ring = store.engine.backend.keyring
        record = ring.record()
        last = KeySet(ring.keys.names, {255: ring.keys.keys[1]})
        used_up = record.rekeyed(last, ring.slot, KEY).without_old()
        store.engine.backend.inner.set_key_record(used_up.text(), expect=record.text())
        with pytest.raises(Unsupported) as refused:
            store.keys.rekey()
        assert refused.value.code == "keys_used_up"


# --- the command ------------------------------------------------------------------------------------------------


def ran(path: Path, *words: str, **environment: str) -> str:
    done = CliRunner(env=environment).invoke(
        command, ["--store", f"sqlite:{path}", *words], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.output


def test_by_the_command(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`key rekey` does it, `key list` and `--dry-run` tell how much is left, without the key."""
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY)
    mine = {"STEPKEEP_KEY_FILE": str(key_file)}
    with opened(path, encrypt=True) as store:
        for n in range(3):
            store.session("run").save({"n": n})
        begun(store, 1, monkeypatch)
    assert "3 records left" in ran(path, "key", "list")
    left = json.loads(ran(path, "key", "rekey", "--dry-run", "--json"))
    assert left == {"key": 2, "renewed": 0, "left": 3, "damaged": 0, "is_done": False}
    assert "the old key is gone" in ran(path, "key", "rekey", **mine)
    assert "left" not in ran(path, "key", "list")
    assert "data key 2" in ran(path, "key", "rekey", "--dry-run")
    opened(tmp_path / "plain.db", key=None).close()
    for place, key, code in ((path, b"x" * 32, "key_wrong"), (tmp_path / "plain.db", KEY, "not_encrypted")):
        key_file.write_bytes(key)
        with pytest.raises(stepkeep.StepkeepError) as refused:
            ran(place, "key", "rekey", **mine)
        assert refused.value.code == code


INTERRUPTED = """
import os, signal, sys
from stepkeep.cli import main
from stepkeep.maintenance import rekey

before, pages = rekey._renewed, []
def renewed(*given):
    pages.append(1)
    if len(pages) == 5:
        os.kill(os.getpid(), signal.SIGINT)
    return before(*given)
rekey._renewed = renewed
sys.exit(main())
"""


@pytest.mark.full
def test_ctrl_c_leaves_it_to_the_next_call(path: Path, tmp_path: Path) -> None:
    with opened(path, encrypt=True) as store:
        fill(store)
        before = told(store)
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY)
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "--store", f"sqlite:{path}", "key", "rekey"],
        env={**os.environ, "STEPKEEP_KEY_FILE": str(key_file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    with opened(path) as store:
        assert not store.keys.rekey(dry_run=True).is_done
        assert store.keys.rekey().is_done
        assert told(store) == before


# --- the second copy of the key record ---------------------------------------------------------------------------

DAMAGE = {
    "a changed byte": "UPDATE meta SET value = replace(value, 'wrapped\":\"', 'wrapped\":\"AAAA')",
    "no text": "UPDATE meta SET value = x'00ff' WHERE name = 'encryption'",
    "the row is gone": "DELETE FROM meta WHERE name = 'encryption'",
    "the copy is damaged": "UPDATE annotations SET data = x'00' WHERE sid = 0",
    "the copy is gone": "DELETE FROM annotations WHERE sid = 0",
}


@pytest.mark.parametrize("sql", DAMAGE.values(), ids=DAMAGE)
def test_one_damaged_copy_of_the_key_record_is_no_loss(path: Path, tmp_path: Path, sql: str) -> None:
    """The other one opens the store, also to `recover`; whoever changes the slots writes both anew."""
    with opened(path, encrypt=True) as store:
        store.session("run").save({"a": 1})
    rows(path, sql)
    with opened(path) as store:
        assert store.get("run").latest().state == {"a": 1}
    with pytest.raises(InvalidInput):
        opened(path, key=b"x" * 32)
    copy = tmp_path / "recovered.db"
    api.recover(f"sqlite:{path}", f"sqlite:{copy}", key=KEY)
    with opened(copy) as store:
        assert store.get("run").latest().state == {"a": 1}
    with opened(path) as store:
        store.keys.add(b"2" * 32)
    ((first, second),) = rows(
        path,
        "SELECT (SELECT value FROM meta WHERE name = 'encryption'), (SELECT data FROM annotations WHERE sid = 0)",
    )
    assert first.encode() == second
