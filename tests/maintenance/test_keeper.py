"""The keeper: history stays within its rules by itself, and no save ever feels it."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import config
from stepkeep.config import Settings
from stepkeep.engine import Saved
from stepkeep.errors import PRUNE_FAILED, BackendUnavailable
from stepkeep.maintenance import keeper as keeping
from stepkeep.maintenance.keeper import Keeper

HOUR_US = 3_600_000_000


def settings(**flags: object) -> Settings:
    """Settings of no file; `a__b` stands for the key `a.b`."""
    given = {name.replace("__", "."): value for name, value in flags.items()}
    return config.load(cwd=None, environ={}, flags=given)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'store' / 'stepkeep.db'}"


@pytest.fixture
def store(url: str) -> Iterator[stepkeep.Store]:
    with stepkeep.open(url, config=settings()) as store:
        yield store


def keeper_of(store: stepkeep.Store) -> Keeper:
    assert store._upkeep.keeper is not None
    return store._upkeep.keeper


def fill(session: stepkeep.Session, count: int) -> None:
    for number in range(count):
        session.save({"number": number}, step=number)


def count(session: stepkeep.Session) -> int:
    return session.usage().checkpoints


def seqs(session: stepkeep.Session) -> list[int]:
    return [header.seq for header in session.history(newest_first=False)]


def eventually(is_so: Callable[[], bool]) -> bool:
    """Whether something becomes true; a thread has a generous time for it."""
    end = time.monotonic() + 20
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "stepkeep-keeper"]


def broken(*_: object, **__: object) -> Any:
    raise BackendUnavailable("the disk is gone", code="store_busy")


# --- pruning


def test_fifteen_saves_leave_ten(url: str) -> None:
    """A session of profile `agent` has at most 10 checkpoints and the slack while open, and 10 after closing."""
    with stepkeep.open(url, config=settings()) as store:
        session = store.session("run", profile="agent")
        fill(session, 15)
        assert count(session) <= 10 + keeping.MIN_SLACK
    with stepkeep.open(url, config=settings()) as store:
        session = store.get("run")
        assert seqs(session) == list(range(6, 16))
        assert session.load().state == {"number": 14}
        assert session.verify().is_intact


def test_the_thread_prunes_while_the_store_is_open(store: stepkeep.Store) -> None:
    """A session that outgrew its rules is pruned soon, without closing and without waiting for the interval."""
    session = store.session("run", profile="agent")
    fill(session, 200)
    assert eventually(lambda: count(session) < 10 + keeping.MIN_SLACK)
    assert session.load().state == {"number": 199}


def test_a_pass_that_is_not_thorough_prunes_in_large_steps(store: stepkeep.Store) -> None:
    """Up to the slack nothing is removed early; a thorough pass removes it."""
    session, keeper = store.session("run", profile="agent"), keeper_of(store)
    fill(session, 19)
    keeper.make_pass(is_thorough=False)
    assert count(session) == 19
    assert keeper.make_pass() is False
    assert count(session) == 10


def test_rules_of_the_session_come_first(url: str) -> None:
    """A session's own rules are the keeper's, and then those of the configuration."""
    with stepkeep.open(url, config=settings(retention__keep_last=4)) as store:
        fill(store.session("own", retention={"keep_last": 2}), 6)
        fill(store.session("config"), 6)
        fill(store.session("all", profile="archive", retention={"keep_last": None}), 6)
    with stepkeep.open(url) as store:
        assert [count(store.get(key)) for key in ("own", "config", "all")] == [2, 4, 6]


def test_a_session_is_pruned_when_it_ends(store: stepkeep.Store) -> None:
    """At the end of a session its history is brought down to its rules at once."""
    session = store.session("run", profile="agent")
    fill(session, 15)
    session.complete()
    assert eventually(lambda: count(session) == 10)


def test_only_sessions_that_were_saved_into_are_looked_at(store: stepkeep.Store) -> None:
    """Reading does not start the thread, and the keeper leaves other sessions alone."""
    store.session("idle")
    assert not keeper_of(store).is_running
    store.session("busy").save({})
    assert keeper_of(store).is_running


def test_a_deleted_session_is_no_error(store: stepkeep.Store, caplog: pytest.LogCaptureFixture) -> None:
    """A session that is gone by the time of the pass is forgotten calmly."""
    session = store.session("run", profile="agent")
    fill(session, 5)
    session.clear()
    assert keeper_of(store).make_pass() is False
    assert not caplog.records


# --- failures


def test_a_failed_prune_never_fails_a_save(
    store: stepkeep.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and recorded with its reason code, and tried again; saves go on."""
    session, keeper = store.session("run", profile="agent"), keeper_of(store)
    fill(session, 12)
    with monkeypatch.context() as delta, caplog.at_level(logging.ERROR, "stepkeep"):
        delta.setattr(keeping, "plan_prune", broken)
        keeper.make_pass()
        keeper.make_pass()
    assert session.save({"number": 12}).seq == 13
    (event,) = [event for event in session.events() if event.type == "prune_failed"]
    assert event.data["code"] == PRUNE_FAILED
    assert len(caplog.records) == 1
    assert "the disk is gone" in caplog.text
    keeper.make_pass()
    assert count(session) == 10


def test_a_bug_does_not_end_the_thread(
    store: stepkeep.Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong in a pass is logged; the other sessions are pruned."""
    keeper = keeper_of(store)
    fill(store.session("bad", profile="agent"), 12)
    fill(store.session("good", profile="agent"), 12)
    bad, real = store.get("bad").uid, keeping.plan_prune

    def plan(engine: Any, session: Any, *rest: Any, **options: Any) -> Any:
        if session.uid == bad:
            raise RuntimeError("a bug")
        return real(engine, session, *rest, **options)

    with monkeypatch.context() as delta:
        delta.setattr(keeping, "plan_prune", plan)
        keeper.make_pass()
    assert (count(store.get("bad")), count(store.get("good"))) == (12, 10)
    assert "a bug" in caplog.text


def test_a_pass_stops_between_batches(store: stepkeep.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that does not fit into a pass is left for the next one."""
    session, keeper = store.session("run", profile="agent"), keeper_of(store)
    fill(session, 14)
    with monkeypatch.context() as delta:
        delta.setattr(keeper, "_apply", lambda *_: (_ for _ in ()).throw(keeping._Stopped))
        delta.setattr(keeping, "PASS_SECONDS", 0)
        assert keeper.make_pass(0.05) is True
    assert count(session) == 14
    assert keeper.make_pass() is False
    assert count(session) == 10


# --- cleaning


def test_a_test_session_goes_when_it_ends(store: stepkeep.Store) -> None:
    """A completed test session is removed at once, another stays for its days."""
    for key, is_test in (("test", True), ("other", False)):
        session = store.session(key, test=is_test)
        session.save({})
        session.complete()
    assert eventually(lambda: [info.key for info in store.sessions()] == ["other"])


def test_a_last_save_can_end_a_test_session(url: str) -> None:
    """A save with a final status ends the session too; closing does what the thread did not get to."""
    with stepkeep.open(url, config=settings()) as store:
        store.session("test", test=True).save({}, status="completed")
    with stepkeep.open(url) as store:
        assert list(store.sessions()) == []


def test_cleanup_can_be_switched_off(url: str) -> None:
    """`enabled: false` keeps even finished test sessions."""
    with stepkeep.open(url, config=settings(checkpoint__cleanup__enabled=False)) as store:
        store.session("test", test=True).save({}, status="completed")
    with stepkeep.open(url) as store:
        assert [info.key for info in store.sessions()] == ["test"]


def test_old_sessions_are_cleaned_now_and_then(url: str) -> None:
    """The whole store is looked through, also for sessions that this process never touched."""
    with stepkeep.open(url, clock=lambda: HOUR_US) as store:
        store.session("old").save({}, status="completed")
    with stepkeep.open(url, clock=lambda: 24 * 31 * HOUR_US, config=settings()) as store:
        keeper = keeper_of(store)
        store.session("new").save({})
        keeper.clean_now_and_then()
        assert len(list(store.sessions())) == 2
        keeper._clean_at = 0
        keeper.clean_now_and_then()
        assert [info.key for info in store.sessions()] == ["new"]


# --- history off


def test_history_off_keeps_what_was_there(url: str) -> None:
    """Of the checkpoints saved with history off only the newest stays, over processes too; older ones all stay."""
    off = settings(checkpoint__history__enabled=False)
    with stepkeep.open(url, config=settings()) as store:
        fill(store.session("run"), 3)
    for number in range(3):
        with stepkeep.open(url, config=off) as store:
            fill(store.get("run"), 2)
            assert store.get("run").load().state == {"number": 1}
        with stepkeep.open(url, config=off) as store:
            assert seqs(store.get("run")) == [1, 2, 3, 5 + 2 * number]
    with stepkeep.open(url, config=settings()) as store:
        fill(store.get("run"), 2)
    with stepkeep.open(url, config=off) as store:
        fill(store.get("run"), 2)
    with stepkeep.open(url, config=off) as store:
        session = store.get("run")
        assert seqs(session) == [1, 2, 3, 10, 11, 13]
        assert session.verify().is_intact


# --- lifetime


def test_no_thread_is_left_after_closing(url: str) -> None:
    """Closing ends the thread, repeating it is harmless, and later notes start none."""
    store = stepkeep.open(url, config=settings())
    store.session("run").save({})
    header = store.session("run").save({})  # the thread begins with the second save
    assert len(threads()) == 1
    store.close()
    store.close()
    keeper_of(store).saved(Saved(header, is_new=True, stored_bytes=1, seconds=0.0))
    assert threads() == []


def test_a_dropped_store_takes_its_thread_along(url: str) -> None:
    """A store that nobody closes does not keep its thread for ever."""
    store = stepkeep.open(url, config=settings())
    session = store.session("run")
    session.save({})
    session.save({})
    assert len(threads()) == 1
    del store, session
    gc.collect()
    assert eventually(lambda: threads() == [])


def test_the_keeper_can_be_switched_off(url: str) -> None:
    """`keeper.enabled: false` means no thread and no pruning."""
    with stepkeep.open(url, config=settings(keeper__enabled=False)) as store:
        session = store.session("run", profile="agent")
        fill(session, 30)
        assert threads() == []
        session.complete()
    with stepkeep.open(url) as store:
        assert count(store.get("run")) == 30


def test_closing_stops_a_long_pass(store: stepkeep.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass under way ends after its batch; closing does not wait for the rest."""
    real, batches = keeping.apply_prune, []

    def slowly(engine: Any, plan: Any, *, progress: Callable[[int], None], **options: Any) -> Any:
        for _ in range(200):
            batches.append(1)
            time.sleep(0.05)
            progress(1)
        return real(engine, plan, progress=progress, **options)

    monkeypatch.setattr(keeping, "apply_prune", slowly)
    fill(store.session("run", profile="agent"), 25)
    assert eventually(lambda: bool(batches))
    store.close()
    assert len(batches) < 100
    assert threads() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_has_no_thread_until_it_saves(store: stepkeep.Store) -> None:
    """After a fork the parent's thread goes on, and the child starts its own with its first save."""
    session = store.session("run", profile="agent")
    fill(session, 12)
    child = os.fork()
    if child == 0:
        try:
            is_quiet = not keeper_of(store).is_running
            session.save({"from": "child"})
            is_watched = keeper_of(store).is_running
            store.close()
            os._exit(0 if is_quiet and is_watched and not threads() else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert keeper_of(store).is_running
    assert session.load().state == {"from": "child"}
    fill(session, 20)
    assert eventually(lambda: count(session) < 20)
    assert session.verify().is_intact


def test_history_off_does_not_touch_an_archive_and_shows_in_the_rules(url: str) -> None:
    """Status, dry run and keeper go by the same rules."""
    off = settings(checkpoint__history__enabled=False)
    with stepkeep.open(url, config=off) as store:
        for key, profile in (("kept", "archive"), ("plain", "standard")):
            fill(store.session(key, profile=profile), 3)
    with stepkeep.open(url, config=off) as store:
        kept, plain = store.session("kept"), store.session("plain")
        assert (seqs(kept), seqs(plain)) == ([1, 2, 3], [3])
        assert not any("history.enabled" in rule for rule in kept.status().rules)
        assert any("history.enabled" in rule for rule in plain.status().rules)
        assert plain.prune(dry_run=True).rules == plain.status().rules
