"""Backups in object storage: on a real S3 server, whole or not there, nothing sent twice."""

from __future__ import annotations

import json
import os
import random
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import obstore
import pyrage
import pytest
from obstore.store import S3Store

import stepkeep
from stepkeep import api
from stepkeep.codec.compression import decompress
from stepkeep.errors import BackendUnavailable, Conflict, Corrupt, InvalidInput, NotFound, Unsupported
from stepkeep.maintenance import object_backup
from stepkeep.maintenance.object_backup import ObjectBackups
from stepkeep.storage.sqlite import SqliteBackend
from tests import interpreter
from tests.maintenance.cut_connections import CuttingProxy
from tests.maintenance.objects import ObjectServer, program
from tests.needed import missing

pytestmark = pytest.mark.full


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    if program() is None:
        missing("backups in object storage are tested on SeaweedFS, and weed is not here")
    found = ObjectServer(tmp_path_factory.mktemp("objects"))
    try:
        found.wait()
        yield found
    finally:
        found.stop()


@pytest.fixture
def place(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address that nobody used yet."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{uuid.uuid4().hex}"


def objects(place: str) -> S3Store:
    return S3Store("bucket", prefix=place.removeprefix("s3://bucket/"))


def listed(place: str, folder: str) -> list[str]:
    return sorted(each["path"] for each in obstore.list(objects(place), folder).collect())


def fill(path: Path, count: int = 40) -> None:
    with stepkeep.open(path) as store:
        run = store.session("s", profile="archive")
        for number in range(count):
            run.save(
                {"n": number, "noise": random.Random(number).randbytes(40_000).hex()}, message=f"{number}"
            )


def command(*words: str, **environment: str) -> Any:
    return interpreter.stepkeep(*words, "--json", env={**os.environ, **environment})


def test_a_backup_comes_back_as_it_was(place: str, tmp_path: Path) -> None:
    """By the commands: everything that was saved is in the restored store, with its states and messages."""
    fill(tmp_path / "a.db")
    done = command("backup", place, "--store", f"sqlite:{tmp_path / 'a.db'}")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["checkpoints"], report["sent_bytes"] > 0) == (40, True)
    assert report["path"].startswith(f"{place}/backups/stepkeep-")
    for source in (place, report["path"]):
        target = tmp_path / f"{uuid.uuid4().hex}.db"
        assert command("restore-backup", source, "--store", f"sqlite:{target}").returncode == 0
        with stepkeep.open(tmp_path / "a.db") as before, stepkeep.open(target) as after:
            for header in before.get("s").history():
                assert after.get("s").load(header.id).state == before.get("s").load(header.id).state
            assert after.verify().is_intact


def test_what_is_there_is_not_sent_again(place: str, tmp_path: Path) -> None:
    """The next backup sends what changed; --keep removes old ones and the pieces that only they had."""
    fill(tmp_path / "a.db", 150)
    with stepkeep.open(tmp_path / "a.db") as store:
        first = store.backup(place)
        again = store.backup(place)
        store.get("s").save({"little": 1})
        third = store.backup(place)
        assert again.sent_bytes < first.sent_bytes / 4
        assert third.sent_bytes < first.sent_bytes / 2
        pieces = listed(place, "pieces")
        last = store.backup(place, keep_last=1)
        assert len(last.removed) == 3
    assert [f"{place}/{path}" for path in listed(place, "backups")] == [last.path]
    assert len(listed(place, "pieces")) <= len(pieces)
    api.restore_backup(place, f"sqlite:{tmp_path / 'b.db'}")
    with stepkeep.open(tmp_path / "b.db") as store:
        latest = store.get("s").latest()
        assert latest is not None
        assert latest.state == {"little": 1}
    assert listed(place, "lock") == []
    assert [name for name in listed(place, "") if "probe" in name] == []


KILLED = """
import os, signal, sys, threading
import stepkeep
from stepkeep.maintenance.object_backup import ObjectBackups

path, place, last, kinds = sys.argv[1:]
asked, lock, count = ObjectBackups._ask, threading.Lock(), 0
def dying(self, what, *words, **options):
    global count
    answer = asked(self, what, *words, **options)
    with lock:
        count += what in kinds and str(words[0]).startswith("pieces") if kinds else 1
        if count == int(last):
            os.kill(os.getpid(), signal.SIGKILL)
    return answer
ObjectBackups._ask = dying
with stepkeep.open(path) as store:
    store.backup(place, keep_last=2)
"""


def test_a_killed_backup_is_none_and_the_next_one_goes_on(place: str, tmp_path: Path) -> None:
    """What was killed left pieces and its lock, and no backup; the next one uses the pieces, and needs no waiting."""
    fill(tmp_path / "a.db", 80)
    done = interpreter.python("-c", KILLED, str(tmp_path / "a.db"), place, "3", "put", env=dict(os.environ))
    assert done.returncode == -9
    assert listed(place, "backups") == []
    left = listed(place, "pieces")
    assert left
    with pytest.raises(NotFound, match="no backup"):
        api.restore_backup(place, f"sqlite:{tmp_path / 'b.db'}")
    before = {
        each["path"]: each["last_modified"] for each in obstore.list(objects(place), "pieces").collect()
    }
    with stepkeep.open(tmp_path / "a.db") as store:
        store.backup(place)
    after = {each["path"]: each["last_modified"] for each in obstore.list(objects(place), "pieces").collect()}
    assert set(left) < set(after)
    assert {path: after[path] for path in before} == before  # not sent again
    assert len(whole_backups(place, tmp_path)) == 1


def test_one_writes_at_a_time(place: str, tmp_path: Path) -> None:
    """While somebody who lives writes a backup, another is refused, and harms nothing."""
    fill(tmp_path / "a.db", 2)
    with stepkeep.open(tmp_path / "a.db") as store, ObjectBackups(place)._locked(0):
        with pytest.raises(Conflict) as refused:
            store.backup(place)
        assert (refused.value.code, refused.value.retryable) == ("backup_running", True)
    assert listed(place, "") == []


def whole_backups(place: str, folder: Path) -> list[str]:
    """The names of all backups that are called so, each after it was restored and verified."""
    names = ObjectBackups(place).names()
    for name in names:
        target = folder / f"{uuid.uuid4().hex}.db"
        api.restore_backup(f"{place}/backups/{name}.json", f"sqlite:{target}")
        with stepkeep.open(target) as store:
            assert store.verify().is_intact
    return names


def test_killed_after_every_request_it_is_a_backup_or_none(place: str, tmp_path: Path) -> None:
    """A backup that removes older ones is stopped after its first request, its second, and so on, until it is not.

    What is called a backup can be restored each time, and the next one is made without waiting.
    """
    fill(tmp_path / "a.db", 6)
    with stepkeep.open(tmp_path / "a.db") as store:
        store.backup(place)
        for number in count(1):
            store.get("s").save({"n": number, "noise": random.Random(number).randbytes(100_000).hex()})
            before = whole_backups(place, tmp_path)
            done = interpreter.python(
                "-c", KILLED, str(tmp_path / "a.db"), place, str(number), "", env=dict(os.environ)
            )
            after = whole_backups(place, tmp_path)
            assert after[-1] >= before[-1]
            if done.returncode == 0:
                break
            assert done.returncode == -9, done.stderr
            store.backup(place, keep_last=3)
    assert number > 20
    assert listed(place, "lock") == []


def faults() -> list[dict[str, int]]:
    requests = [{"every_request": each} for each in (2, 3, 5, 8)]
    return requests + [{"every_bytes": each} for each in (1_000, 30_011, 200_003, 900_001)]


@pytest.mark.parametrize("fault", faults(), ids=str)
def test_a_network_that_cuts_connections_makes_no_half_backup(
    server: ObjectServer, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: dict[str, int]
) -> None:
    """Requests are cut in the middle, or arrive and their answers are lost: what is acknowledged can be restored."""
    fill(tmp_path / "a.db", 12)
    monkeypatch.setattr(object_backup, "PAUSE_SECONDS", 0.001)
    acknowledged = set()
    with stepkeep.open(tmp_path / "a.db") as store:
        with CuttingProxy(server.port, **fault) as proxy, monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
            for number in range(3):
                store.get("s").save({"n": number})
                with suppress(BackendUnavailable, Conflict):
                    acknowledged.add(store.backup(place, keep_last=2).path)
            assert proxy.cuts
        names = whole_backups(place, tmp_path)
        assert {f"{place}/backups/{name}.json" for name in names[-2:]} >= set(sorted(acknowledged)[-1:])
        assert acknowledged or fault.get("every_bytes", 0) < 300_000  # what can be had by trying again is had
        last = store.backup(place, keep_last=2)  # whatever was left there, it is no obstacle
    assert f"{place}/backups/{whole_backups(place, tmp_path)[-1]}.json" == last.path
    assert listed(place, "lock") == []


@pytest.mark.parametrize("last", [6, 9, 12, 15])
def test_a_network_that_goes_away_does_not_bar_the_next_backup(
    server: ObjectServer, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Not even the lock could be given back: the same program makes the next one without waiting for it to end."""
    fill(tmp_path / "a.db", 12)
    monkeypatch.setattr(object_backup, "PAUSE_SECONDS", 0.001)
    with stepkeep.open(tmp_path / "a.db") as store:
        with CuttingProxy(server.port, last_request=last) as proxy, monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
            with pytest.raises(BackendUnavailable) as refused:
                store.backup(place)
            assert refused.value.retryable
        assert "lock" in listed(place, "")
        assert whole_backups(place, tmp_path) == []
        store.backup(place)
    assert len(whole_backups(place, tmp_path)) == 1


TWO = """
import sys
import stepkeep
from stepkeep.errors import Conflict
with stepkeep.open(sys.argv[1]) as store:
    for number in range(6):
        try:
            print(store.backup(sys.argv[2], keep_last=2).path, flush=True)
        except Conflict as exc:
            print(exc.code, flush=True)
"""


def test_two_writers_at_once_destroy_nothing(place: str, tmp_path: Path) -> None:
    """Each backup is whole or refused, although both remove old ones; one at least is made in each round."""
    fill(tmp_path / "a.db", 4)
    fill(tmp_path / "b.db", 5)
    words = [("-c", TWO, str(tmp_path / name), place) for name in ("a.db", "b.db")]
    with ThreadPoolExecutor() as pool:
        ended = list(pool.map(lambda each: interpreter.python(*each, env=dict(os.environ)), words))
    told = [line for done in ended for line in done.stdout.decode().split()]
    assert [done.returncode for done in ended] == [0, 0], [done.stderr for done in ended]
    assert {each for each in told if not each.startswith("s3://")} <= {
        "backup_running",
        "backup_overtaken",
    }
    made = [each for each in told if each.startswith("s3://")]
    assert f"{place}/backups/{whole_backups(place, tmp_path)[-1]}.json" in made


@pytest.mark.parametrize("method", ["_commit", "_create"])
def test_who_was_overtaken_writes_no_backup_any_more(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A writer that was quiet for too long lost its place. Its backup is refused when it wakes up: pieces may be gone.

    Also when that happens in the last moment, after it was sure that it still has its place.
    """
    fill(tmp_path / "a.db", 4)
    fill(tmp_path / "b.db", 5)
    before = getattr(ObjectBackups, method)

    def late(self: ObjectBackups, *words: Any) -> Any:
        if words[0] == "lock":
            return before(self, *words)
        monkeypatch.setattr(ObjectBackups, method, before)
        monkeypatch.setattr(object_backup, "LOCK_SECONDS", -1)
        monkeypatch.setattr(object_backup, "_held", set())
        with stepkeep.open(tmp_path / "b.db") as store:
            store.backup(place, keep_last=1)
        return before(self, *words)

    monkeypatch.setattr(ObjectBackups, method, late)
    with stepkeep.open(tmp_path / "a.db") as store, pytest.raises(Conflict) as refused:
        store.backup(place)
    assert refused.value.code == "backup_overtaken"
    assert len(whole_backups(place, tmp_path)) == 1


def test_a_damaged_piece_is_sent_again_by_the_next_backup(place: str, tmp_path: Path) -> None:
    """What an earlier backup brought is used only as long as it is the object that was read back then."""
    fill(tmp_path / "a.db", 10)
    with stepkeep.open(tmp_path / "a.db") as store:
        store.backup(place)
        pieces = listed(place, "pieces")
        obstore.put(objects(place), pieces[0], b"half of it")
        obstore.delete(objects(place), pieces[-1])
        store.backup(place, keep_last=1)
    assert len(whole_backups(place, tmp_path)) == 1


def test_the_rules_for_backups_are_those_of_pruning(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One per day and the last two stay. Where a clock was set back, the newest is still the one that was made last."""
    hours = 3_600_000_000
    fill(tmp_path / "a.db", 2)
    for at in (1, 2, 26, 27, 50, 51):
        with api.Store(
            SqliteBackend(tmp_path / "a.db"), clock=lambda at=at: 20_000 * 24 * hours + at * hours
        ) as store:
            store.backup(place, keep_last=2, keep_daily="30d")
    days = [name[9:17] for name in whole_backups(place, tmp_path)]
    assert [days.count(day) for day in sorted(set(days))] == [1, 1, 2]
    with api.Store(SqliteBackend(tmp_path / "a.db"), clock=lambda: 20_000 * 24 * hours) as store:
        made = store.backup(place, keep_last=1)
    assert f"{place}/backups/{whole_backups(place, tmp_path)[0]}.json" == made.path


def test_an_encrypted_backup_is_read_with_its_key_only(place: str, tmp_path: Path) -> None:
    """No object there holds a byte in clear; it is restored with the key, and `copy` refuses it with a code."""
    identity = pyrage.x25519.Identity.generate()
    (tmp_path / "key").write_text(str(identity))
    with stepkeep.open(tmp_path / "a.db") as store:
        store.session("s").save({"text": "a text that nobody else may read"})
    done = command(
        "backup", place, "--recipient", str(identity.to_public()), "--store", f"sqlite:{tmp_path / 'a.db'}"
    )
    assert done.returncode == 0, done.stderr
    for path in listed(place, "pieces"):
        piece = decompress(bytes(obstore.get(objects(place), path).bytes()), limit=object_backup.PIECE_BYTES)
        assert b"SQLite" not in piece
        assert b"nobody else" not in piece
    words = ("restore-backup", place, "--store", f"sqlite:{tmp_path / 'b.db'}")
    refused = command(*words)
    assert (refused.returncode, "identity_needed" in refused.stderr) == (2, True)
    assert command(*words, "--identity", str(tmp_path / "key")).returncode == 0
    with stepkeep.open(tmp_path / "b.db") as store:
        latest = store.get("s").latest()
        assert latest is not None
        assert latest.state == {"text": "a text that nobody else may read"}
    refused = command("copy", place, f"sqlite:{tmp_path / 'c.db'}")
    assert (refused.returncode, "identity_needed" in refused.stderr) == (2, True)


def test_copies_at_once_lose_no_session(place: str, tmp_path: Path) -> None:
    """Two copies into one place: who comes second is refused, and repeats it; both sessions are there then."""
    for name in ("a", "b"):
        with stepkeep.open(tmp_path / f"{name}.db") as store:
            store.session(name).save({"n": 1})
    command("copy", f"sqlite:{tmp_path / 'a.db'}", place)
    fetch = ObjectBackups.fetch

    def meanwhile(self: ObjectBackups, *words: Any, **options: Any) -> Any:
        found = fetch(self, *words, **options)
        if not started:
            started.append(1)
            with stepkeep.open(tmp_path / "b.db") as store:
                store.copy(place)
        return found

    started: list[int] = []
    with stepkeep.open(tmp_path / "a.db") as store:
        store.session("later").save({"n": 2})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ObjectBackups, "fetch", meanwhile)
            with pytest.raises(Conflict) as refused:
                store.copy(place)
        assert (refused.value.code, refused.value.retryable) == ("backup_overtaken", True)
        store.copy(place)
    api.restore_backup(place, f"sqlite:{tmp_path / 'all.db'}")
    with stepkeep.open(tmp_path / "all.db") as store:
        assert sorted(info.key for info in store.sessions()) == ["a", "b", "later"]


@pytest.mark.parametrize("harm", ["missing", "changed"])
def test_a_damaged_piece_is_told_before_anything_changes(place: str, tmp_path: Path, harm: str) -> None:
    """A piece that is gone or is another one is found, and the store at the destination stays as it was."""
    fill(tmp_path / "a.db", 20)
    with stepkeep.open(tmp_path / "a.db") as store:
        store.backup(place)
    pieces = listed(place, "pieces")
    if harm == "missing":
        obstore.delete(objects(place), pieces[0])
    else:
        other = bytes(obstore.get(objects(place), pieces[1]).bytes())
        obstore.put(objects(place), pieces[0], other)
    with stepkeep.open(tmp_path / "b.db") as store:
        store.session("mine").save({"n": 1})
    with pytest.raises(Corrupt) as found:
        api.restore_backup(place, f"sqlite:{tmp_path / 'b.db'}", force=True)
    assert found.value.code == "backup_damaged"
    with stepkeep.open(tmp_path / "b.db") as store:
        assert [info.key for info in store.sessions()] == ["mine"]


def test_sessions_are_copied_there_and_back(place: str, tmp_path: Path) -> None:
    """`copy` adds to the newest backup, and takes sessions out of it, into any store."""
    fill(tmp_path / "a.db", 3)
    with stepkeep.open(tmp_path / "c.db") as store:
        store.session("other").save({"n": 2})
    for source in ("a.db", "c.db"):
        done = command("copy", f"sqlite:{tmp_path / source}", place)
        assert done.returncode == 0, done.stderr
    back = f"files:{tmp_path / 'readable'}"
    assert command("copy", place, back).returncode == 0
    with stepkeep.open(back) as store:
        assert {info.key: info.last_seq for info in store.sessions()} == {"s": 3, "other": 1}


def test_a_wrong_key_and_a_wrong_address_are_told(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be reached says so, and is not tried again where that cannot help."""
    with stepkeep.open(tmp_path / "a.db") as store:
        store.session("s").save({"n": 1})
        with pytest.raises(InvalidInput):
            store.backup("s3://")
        with pytest.raises(InvalidInput):
            store.backup(f"{place}/backups/one.json")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        with pytest.raises(BackendUnavailable) as refused:
            store.backup(place)
        assert not refused.value.retryable


class Answering(BaseHTTPRequestHandler):
    """A service that has one answer for everything, as Amazon's words it."""

    status, code, message = 404, "NoSuchBucket", "The specified bucket does not exist"
    asked: ClassVar[list[str]] = []

    def do_PUT(self) -> None:
        self.asked.append(self.path)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = f"<Error><Code>{self.code}</Code><Message>{self.message}</Message></Error>".encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_DELETE = do_POST = do_PUT

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def answered_by(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a service on loopback."""
    service = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{service.server_port}"
    finally:
        service.shutdown()
        service.server_close()


def test_what_an_operator_gets_wrong_is_said_in_a_line(place: str, tmp_path: Path) -> None:
    """No bucket, no credentials, a wrong key, an address without TLS: exit codes and words, without XML."""
    fill(tmp_path / "a.db", 1)
    with answered_by(Answering) as address, answered_by(type("No", (Answering,), {"status": 403})) as closed:
        own = {"AWS_METADATA_ENDPOINT": closed, "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
        for environment, exit_code, words in (
            ({"AWS_ENDPOINT_URL": address}, 3, ["no bucket bucket", "does not exist"]),
            (own, 1, ["no credentials", "AWS_ACCESS_KEY_ID"]),
            ({"AWS_SECRET_ACCESS_KEY": "wrong"}, 1, ["SignatureDoesNotMatch"]),
            ({"AWS_ALLOW_HTTP": "false"}, 1, ["AWS_ALLOW_HTTP=true"]),
        ):
            given = {name: value for name, value in {**os.environ, **environment}.items() if value}
            done = interpreter.stepkeep("backup", place, "--store", f"sqlite:{tmp_path / 'a.db'}", env=given)
            assert done.returncode == exit_code, done.stderr
            assert all(word in done.stderr for word in words), done.stderr
            assert "<" not in done.stderr
            assert done.stderr.count("\n") == 1
    assert "/latest/api/token" in Answering.asked  # credentials were looked for here, and nowhere else


class Careless(BaseHTTPRequestHandler):
    """A service that accepts every write, whatever its conditions."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_DELETE = do_POST = do_PUT

    def log_message(self, *_: Any) -> None:
        pass


def test_a_service_without_conditional_writes_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening writes one object twice: a service that lets that happen is not used."""
    with answered_by(Careless) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with stepkeep.open(tmp_path / "a.db") as store, pytest.raises(Unsupported) as refused:
            store.backup(place)
        assert refused.value.code == "conditional_writes_missing"
