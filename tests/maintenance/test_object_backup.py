"""Backups in object storage: on a real S3 server, whole or not there, nothing sent twice."""

from __future__ import annotations

import json
import os
import random
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

import stepkeep
from stepkeep import api
from stepkeep.errors import BackendUnavailable, Conflict, Corrupt, InvalidInput, NotFound, Unsupported
from stepkeep.maintenance.object_backup import ObjectBackups
from tests import interpreter
from tests.maintenance.objects import ObjectServer, program

pytestmark = pytest.mark.full


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    if program() is None:
        reason = "backups in object storage are tested on SeaweedFS, and weed is not here"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
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
        last = store.backup(place, keep=1)
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
import os, signal, sys
import stepkeep
from stepkeep.maintenance.object_backup import ObjectBackups

sent = ObjectBackups._send_piece
def dying(self, name, piece, count=[0]):
    size = sent(self, name, piece)
    count[0] += 1
    if count[0] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return size
ObjectBackups._send_piece = dying
with stepkeep.open(sys.argv[1]) as store:
    store.backup(sys.argv[2])
"""


def test_a_killed_backup_is_none_and_the_next_one_goes_on(place: str, tmp_path: Path) -> None:
    """What was killed left pieces and its lock, and no backup; the next one uses the pieces, and needs no waiting."""
    fill(tmp_path / "a.db", 80)
    done = interpreter.python("-c", KILLED, str(tmp_path / "a.db"), place, env=dict(os.environ))
    assert done.returncode == -9
    assert listed(place, "backups") == []
    left = listed(place, "pieces")
    assert left
    with pytest.raises(NotFound, match="no backup"):
        api.restore_backup(place, f"sqlite:{tmp_path / 'b.db'}")
    with stepkeep.open(tmp_path / "a.db") as store:
        store.backup(place)
    assert set(left) < set(listed(place, "pieces"))
    assert len(listed(place, "backups")) == 1
    api.restore_backup(place, f"sqlite:{tmp_path / 'b.db'}")


def test_one_writes_at_a_time(place: str, tmp_path: Path) -> None:
    """While somebody who lives writes a backup, another is refused, and harms nothing."""
    fill(tmp_path / "a.db", 2)
    with stepkeep.open(tmp_path / "a.db") as store, ObjectBackups(place)._locked():
        with pytest.raises(Conflict) as refused:
            store.backup(place)
        assert (refused.value.code, refused.value.retryable) == ("backup_running", True)
    assert listed(place, "") == []


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
    careless = ThreadingHTTPServer(("127.0.0.1", 0), Careless)
    threading.Thread(target=careless.serve_forever, daemon=True).start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{careless.server_port}")
        with stepkeep.open(tmp_path / "a.db") as store, pytest.raises(Unsupported) as refused:
            store.backup(place)
        assert refused.value.code == "conditional_writes_missing"
    finally:
        careless.shutdown()
        careless.server_close()
