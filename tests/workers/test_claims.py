"""Claiming, on every kind of store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

import stepkeep
from stepkeep.api import Store
from stepkeep.errors import BackendUnavailable
from stepkeep.model import Status
from stepkeep.processes import this_process
from stepkeep.runs.lease import Held
from stepkeep.runs.queue import QueueEntry, claim, with_entry
from stepkeep.storage.port import Claimed, ClaimsSessions, LooksOver
from stepkeep.storage.urls import open_backend
from stepkeep.testing.builders import draft, item, new_owner

WISH: dict[str, Any] = {"queue": "default", "retry_seconds": 30}


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    with stepkeep.open(store_url) as store:
        yield store


def queued(store: Store, key: str, queue: str = "default") -> str:
    session = store.session(key, workflow="w")
    session.save({"key": key})
    metadata = with_entry(session.info, QueueEntry(queue=queue))
    store.engine.backend.update_session(session.uid, {"metadata": metadata})
    return session.uid


def key_of(claimed: Claimed | None) -> str | None:
    return None if claimed is None else claimed.session.key


def test_the_one_that_waits_longest_comes_first(store: Store) -> None:
    """Each is handed out once, with its lease; then there is nothing more."""
    uids = {key: queued(store, key) for key in ("a", "b", "c")}
    store.get("a").save({"again": 1})
    queued(store, "elsewhere", "other")
    store.session("no queue", workflow="w").save({})
    found = [claim(store.engine, **WISH) for _ in range(4)]
    assert [key_of(each) for each in found] == ["b", "c", "a", None]
    for claimed in found[:3]:
        assert claimed is not None
        assert store.engine.backend.lease(uids[claimed.session.key]) == claimed.lease
        assert claimed.lease.owner.pid == this_process().pid


def test_released_it_is_handed_out_again(store: Store) -> None:
    """With a higher token; while the lease is held nobody gets it."""
    queued(store, "a")
    first = claim(store.engine, **WISH)
    assert first is not None
    assert claim(store.engine, **WISH) is None
    store.engine.backend.release_lease(first.session.uid, first.lease.token)
    second = claim(store.engine, **WISH)
    assert second is not None
    assert second.lease.token > first.lease.token


def test_a_dead_runner_is_replaced_at_once_and_one_elsewhere_when_its_lease_ran_out(store: Store) -> None:
    """A process of another machine cannot be seen, so its lease is waited for."""
    backend = store.engine.backend
    here = this_process()
    dead = msgspec.structs.replace(here, started=here.started + 1)
    backend.acquire_lease(queued(store, "dead here"), dead, seconds=60)
    backend.acquire_lease(queued(store, "elsewhere"), new_owner("other machine"), seconds=60)
    backend.acquire_lease(queued(store, "expired"), new_owner("other machine"), seconds=1e-6)
    found = {key_of(claim(store.engine, **WISH)) for _ in range(3)}
    assert found == {"dead here", "expired", None}


def test_what_is_passed_over_or_over_stays(store: Store) -> None:
    """What this worker cannot run, what rests, and what is completed."""
    passed = queued(store, "passed")
    for key, status in (("failed", Status.FAILED), ("done", Status.COMPLETED)):
        store.engine.finish(queued(store, key), status)
    assert claim(store.engine, **WISH | {"passed": {passed}}) is None
    assert key_of(claim(store.engine, **WISH | {"retry_seconds": 0})) == "passed"
    assert key_of(claim(store.engine, **WISH | {"retry_seconds": 0})) == "failed"


def test_many_at_once_get_different_ones(store: Store) -> None:
    """Eight that ask together share twenty sessions without one being handed out twice."""
    keys = {f"s{number}" for number in range(20)}
    for key in sorted(keys):
        queued(store, key)
    together = threading.Barrier(8)

    def take() -> list[str]:
        together.wait()
        taken = []
        while (claimed := claim(store.engine, **WISH)) is not None:
            taken.append(claimed.session.key)
        return taken

    with ThreadPoolExecutor(8) as pool:
        taken = [key for future in [pool.submit(take) for _ in range(8)] for key in future.result()]
    assert sorted(taken) == sorted(keys)


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_session_that_someone_writes_is_passed_over(store: Store) -> None:
    """A claim does not wait for a transaction on one session when another can be had."""
    backend = open_backend(store.engine.backend.url)  # who did not save before asks under the lock
    assert isinstance(backend, ClaimsSessions)
    first, _ = queued(store, "a"), queued(store, "b")
    inside, over = threading.Event(), threading.Event()

    def hold(*_: object) -> bytes:
        inside.set()
        assert over.wait(30)
        raise RuntimeError("nothing is to be stored")

    def write() -> None:
        with pytest.raises(RuntimeError):
            backend.append([item(draft(first))], hold)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert inside.wait(30)
        assert key_of(claim(store.engine, **WISH)) == "b"
    finally:
        over.set()
        writer.join()
        backend.close()


def test_what_this_process_could_not_give_back_is_handed_out_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a run that finds no connection leaves a lease that nobody uses: it is not waited for."""
    uid = queued(store, "a")
    backend = store.engine.backend

    def away(*_: object) -> None:
        raise BackendUnavailable("away", code="server_unreachable")

    first = claim(store.engine, **WISH)
    assert first is not None
    with monkeypatch.context() as patch, Held(store.engine, uid, lease=first.lease):
        assert claim(store.engine, **WISH) is None
        patch.setattr(backend, "release_lease", away)
    second = claim(store.engine, **WISH)
    assert second is not None
    assert second.lease.token > first.lease.token
    assert claim(store.engine, **WISH) is None


@pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True)
def test_looking_over_all_sessions(store: Store) -> None:
    """The sizes are those that usage tells, and leases count until they run out."""
    backend = store.engine.backend
    assert isinstance(backend, LooksOver)
    uids = [queued(store, key) for key in ("a", "b")]
    empty = store.session("empty").uid
    assert backend.session_bytes() == {uid: backend.usage(uid).body_bytes for uid in uids}
    backend.acquire_lease(uids[0], new_owner(), seconds=60)
    backend.acquire_lease(uids[1], new_owner(), seconds=1e-6)
    released = backend.acquire_lease(empty, new_owner(), seconds=60)
    backend.release_lease(empty, released.token)
    assert backend.leased() == {uids[0]}
