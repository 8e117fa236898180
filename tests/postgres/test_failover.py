"""A primary dies, its standby takes over, and clients whose URL names both go on: nothing acknowledged is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import stepkeep
from stepkeep.engine import Save
from stepkeep.processes import Owner
from tests.memory import memory_folder
from tests.postgres.server import Server

WRITERS = 16
WORKERS = 4
LEASE_SECONDS = 1.0


class Pair:
    """Two servers in fixed places, one of them the primary, the other its synchronous standby."""

    def __init__(self) -> None:
        self.places = [Path(tempfile.mkdtemp(prefix="stepkeep-ha-", dir=memory_folder())) for _ in range(2)]
        self.primary = Server(folder=self.places[0])
        self.standby = self._follow()

    @property
    def url(self) -> str:
        hosts = ",".join(str(place / "data") for place in self.places)
        return f"postgresql://postgres@/postgres?host={quote(hosts, safe='')}&schema=ha"

    def _follow(self) -> Server:
        """A new standby in the place that is free; from now on the primary waits for it at each commit."""
        place = next(place for place in self.places if place != self.primary.folder)
        owner = self.primary.data.stat()
        os.chown(place, owner.st_uid, owner.st_gid)
        as_owner: Any = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
        subprocess.run(
            [
                *(self.primary.programs / "pg_basebackup", "--pgdata", place / "data"),
                *("--host", self.primary.data, "--username", "postgres"),
                *("--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream"),
            ],
            check=True,
            capture_output=True,
            **as_owner,
        )
        for name in (
            ".s.PGSQL.5432.lock",
            ".handle_pids.json",
        ):  # of the primary, which has them among its data
            (place / "data" / name).unlink(missing_ok=True)
        standby = Server(folder=place)
        self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.primary.reload()
        while ("sync",) not in self.primary.execute("SELECT sync_state FROM pg_stat_replication"):
            time.sleep(0.01)
        return standby

    def fail_over(self) -> None:
        """Kill the primary, and let the standby take its place. It waits for nobody."""
        self.primary.kill()
        self.standby.execute(
            "SELECT pg_promote(false)"
        )  # a statement that waited could be in the way of its log
        while self.standby.execute("SELECT pg_is_in_recovery()") != [(False,)]:
            time.sleep(0.005)

    def mend(self) -> None:
        """Make the dead one a standby of the other."""
        self.primary.stop()
        self.primary.folder.mkdir()
        self.primary = self.standby
        self.standby = self._follow()

    def stop(self) -> None:
        for server in (self.primary, self.standby):
            server.stop()
        for place in self.places:
            shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    try:
        yield pair
    finally:
        pair.stop()


class Clients:
    """Writers that count, each in a session of its own, and workers that take turns by leases; all go on until told."""

    def __init__(self, url: str) -> None:
        self.acknowledged = dict.fromkeys(range(WRITERS), 0)
        self.refused = 0
        self.errors: list[BaseException] = []
        self._stores = [stepkeep.open(url) for _ in range(4)]
        self._is_over = threading.Event()
        works: list[Callable[[int], None]] = [self._write] * WRITERS + [self._work] * WORKERS
        numbers = [*range(WRITERS), *range(WORKERS)]
        self._threads = [
            threading.Thread(target=self._guarded, args=(work, number), daemon=True)
            for work, number in zip(works, numbers, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as exc:
            self.errors.append(exc)

    def _write(self, number: int) -> None:
        session = _again(lambda: self._stores[number % 4].session(f"writer-{number}", profile="archive"))
        while not self._is_over.is_set():
            n = self.acknowledged[number] + 1
            options: Any = {"metadata": {"n": n}, "idempotency_key": f"{number}-{n}"}
            _again(lambda n=n, options=options: session.save({"n": n}, **options))  # type: ignore[misc]
            self.acknowledged[number] = n
            time.sleep(0.005)

    def _work(self, number: int) -> None:
        """Take the lease of a shared session, and save by its token; be gone until another has it, and save then."""
        store, n = self._stores[number], 0
        owner = Owner(host=f"machine-{number}", boot_id="b", pid_namespace="n", pid=1, started=0)
        uid = _again(lambda: store.session("shared", profile="archive").uid)
        backend = store.engine.backend
        while not self._is_over.is_set():
            try:
                lease = _again(lambda: backend.acquire_lease(uid, owner, seconds=LEASE_SECONDS))
            except stepkeep.Conflict:
                time.sleep(0.05)
                continue
            for _ in range(5):
                n += 1
                self._fenced(store, uid, lease.token, f"{number}-{n}")
            while not self._is_over.is_set():
                now = _again(lambda: backend.lease(uid))
                if now is not None and now.token > lease.token:
                    n += 1
                    before = self.refused
                    self._fenced(store, uid, lease.token, f"{number}-{n}")
                    assert self.refused > before, "who was replaced is refused"
                    break
                time.sleep(0.05)

    def _fenced(self, store: stepkeep.Store, uid: str, token: int, key: str) -> None:
        save = Save(session=uid, state=key, metadata={"token": token}, fence=token, idempotency_key=key)
        try:
            _again(lambda: store.engine.save(save))
        except stepkeep.Conflict as exc:
            assert exc.code == "lease_lost"  # noqa: PT017
            self.refused += 1

    def wait_for_saves(self) -> float:
        """Wait until every writer saved once more; returns how long the first of them took."""
        before, began, first = dict(self.acknowledged), time.monotonic(), 0.0
        while not self.errors and any(self.acknowledged[each] <= before[each] + 1 for each in before):
            if not first and any(self.acknowledged[each] > before[each] for each in before):
                first = time.monotonic() - began
            time.sleep(0.005)
        return first or time.monotonic() - began

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        for store in self._stores:
            store.close()


def _again(call: Callable[[], Any]) -> Any:
    """Repeat a call for as long as the error says that this may help."""
    while True:
        try:
            return call()
        except stepkeep.StepkeepError as exc:
            if not exc.retryable:
                raise
            time.sleep(0.02)


def rounds(pair: Pair, count: int, tell: Callable[[str], None]) -> None:
    clients, away = Clients(pair.url), []
    try:
        for _ in range(count):
            clients.wait_for_saves()
            began = time.monotonic()
            pair.fail_over()
            promoted = time.monotonic()
            away.append(promoted - began + clients.wait_for_saves())
            pair.mend()
        clients.wait_for_saves()
        while not clients.refused and not clients.errors:
            time.sleep(0.05)
    finally:
        clients.stop()
    assert clients.errors == []
    with stepkeep.open(pair.url) as store:
        for number, last in clients.acknowledged.items():
            stored = [each.metadata["n"] for each in store.get(f"writer-{number}").history()]
            assert stored == list(range(last, 0, -1)), "each acknowledged save is there once, in its order"
        tokens = [each.metadata["token"] for each in store.get("shared").history()]
        assert tokens == sorted(tokens, reverse=True), "nobody saved by a token that was replaced"
        assert store.verify().findings == ()
    saves = sum(clients.acknowledged.values())
    tell(
        f"fail-over: {count} rounds, {saves:,} saves of {WRITERS} writers, {clients.refused} fenced off,"
        f" {max(away):.2f} s at most without service"
    )


@pytest.mark.full
def test_a_fail_over_loses_nothing(pair: Pair, tell: Callable[[str], None]) -> None:
    """Sixteen writers and four workers go on with the standby, by a URL that names both."""
    rounds(pair, 2, tell)


@pytest.mark.slow
def test_twenty_fail_overs_lose_nothing(pair: Pair, tell: Callable[[str], None]) -> None:
    """The same, to and fro."""
    rounds(pair, 20, tell)
