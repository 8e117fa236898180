"""Cleaning up whole sessions: which go, which never do, and what is left of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from stepkeep.api import Session, Store
from stepkeep.engine import NewBody, Save
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.maintenance import clean as cleaning
from stepkeep.maintenance.clean import CleanPlan, CleanReport, apply_clean, plan_clean, plan_due
from stepkeep.policy.cleanup import CleanupPolicies, CleanupRule
from stepkeep.storage.memory import MemoryBackend
from stepkeep.storage.port import Backend, LooksOver, Usage
from stepkeep.storage.sqlite import SqliteBackend
from stepkeep.testing.builders import FakeClock, new_owner
from stepkeep.testing.faults import Fault, Faults, Stopped, fail, stop

DAY = 86_400
DEFAULTS = CleanupPolicies()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture(params=["memory", "sqlite"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock, faults: Faults
) -> Iterator[Store]:
    backend: Backend = MemoryBackend(clock=clock)
    if request.param == "sqlite":
        backend = SqliteBackend(tmp_path / "h.db", clock=clock)
    with Store(faults.wrap(backend), clock=clock) as store:
        yield store


def ended(store: Store, key: str, status: str = "completed", **fields: Any) -> Session:
    """A session with two checkpoints that ended now."""
    session = store.session(key, **({"profile": "workflow"} | fields))
    session.save({"n": 1})
    session.save({"n": 2}, status=status)
    return session


def clean(store: Store, policies: CleanupPolicies = DEFAULTS, **options: Any) -> CleanReport:
    now_us = store.engine.clock()
    return apply_clean(
        store.engine, plan_due(store.engine, lambda _: policies, now_us=now_us), now_us=now_us, **options
    )


def keys(store: Store) -> set[str]:
    return {session.key for session in store.sessions()}


def going(plan: CleanPlan) -> list[str]:
    return [entry.session.key for entry in plan.going]


@pytest.mark.usefixtures("of_an_ended_process")
def test_what_is_due_is_found_without_the_others(store: Store, clock: FakeClock) -> None:
    """Of many kinds of sessions the same ones go as when all are read, and most of the others are not read."""
    kinds: list[dict[str, Any]] = [
        {"profile": "workflow"},
        {"profile": "workflow", "test": True},
        {"profile": "agent"},
        {"profile": "archive"},
        {"profile": "workflow", "workflow": "nightly"},
        {"profile": "workflow", "cleanup": {"retention_days": 3}},
        {"profile": "workflow", "cleanup": {"enabled": False}},
    ]
    policies = CleanupPolicies(workflows={"nightly": CleanupRule(retention_days=12)})
    for day in range(40):
        for number, fields in enumerate(kinds):
            ended(
                store, f"{day}-{number}", ("completed", "failed", "in_progress", "paused")[day % 4], **fields
            )
        clock.advance(DAY)
    backend = store.engine.backend
    backend.acquire_lease(ended(store, "held").uid, new_owner(), seconds=1000 * DAY)
    uid = ended(store, "no sense").uid
    backend.update_session(uid, {"policy": {"cleanup": {"retention_days": -1}}})
    for _ in range(30):
        every = plan_clean(store.engine, lambda _: policies, now_us=clock())
        due = plan_due(store.engine, lambda _: policies, now_us=clock())
        assert due.going == every.going
        assert due.errors == every.errors
        assert len(due.entries) + due.unread == len(every.entries)
        if isinstance(backend, LooksOver):
            assert {entry.session.key for entry in due.entries if not entry.decision.goes} <= {"held"}
        clock.advance(2 * DAY)
    assert {entry.decision.goes for entry in every.entries} == {True, False}


def test_sessions_go_at_their_age(store: Store, clock: FakeClock) -> None:
    """Completed ones after 7 days, failed ones after 30, running ones never; each goes with all it had."""
    ended(store, "done")
    ended(store, "failed", "failed")
    ended(store, "running", "in_progress")
    clock.advance(7 * DAY - 1)
    assert clean(store).cleaned == 0
    clock.advance(1)
    before = store.usage().body_bytes
    report = clean(store)
    assert (report.cleaned, report.retained, report.errors) == (1, 2, ())
    assert report.stored_bytes == before - store.usage().body_bytes > 0
    assert keys(store) == {"failed", "running"}
    clock.advance(23 * DAY)
    assert clean(store).cleaned == 1
    assert keys(store) == {"running"}
    assert store.usage().checkpoints == 2
    assert store.verify().is_intact


def test_test_sessions_go_at_once(store: Store) -> None:
    """A test that ended is removed by the next pass."""
    ended(store, "test", test=True)
    ended(store, "other")
    assert clean(store).cleaned == 1
    assert keys(store) == {"other"}


def test_what_is_logged(store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    """Age and policy in whole days."""
    ended(store, "done")
    clock.advance(9.5 * DAY)
    with caplog.at_level(logging.INFO, "stepkeep"):
        clean(store)
    assert "Cleaning up session done (age: 9 days, policy: 7 days)" in caplog.messages


def test_switched_off_is_kept_for_ever(store: Store, clock: FakeClock) -> None:
    """By the workflow, by the session itself, or for all."""
    ended(store, "by workflow", workflow="precious")
    session = ended(store, "by itself")
    store.engine.backend.update_session(session.uid, {"policy": {"cleanup": {"enabled": False}}})
    ended(store, "by none")
    clock.advance(10_000 * DAY)
    policies = CleanupPolicies(workflows={"precious": CleanupRule(enabled=False)})
    assert going(plan_clean(store.engine, lambda _: CleanupPolicies(enabled=False), now_us=clock())) == []
    assert clean(store, policies).cleaned == 1
    assert keys(store) == {"by workflow", "by itself"}


def test_completed_ones_go_first_then_the_oldest(store: Store, clock: FakeClock) -> None:
    """So a bounded pass does most good; the rest waits for the next one."""
    for key, status in [("f1", "failed"), ("c1", "completed"), ("f2", "failed"), ("c2", "completed")]:
        ended(store, key, status)
        clock.advance(DAY)
    clock.advance(40 * DAY)
    plan = plan_clean(store.engine, lambda _: DEFAULTS, now_us=clock())
    assert going(plan) == ["c1", "c2", "f1", "f2"]
    report = clean(store, limit=3)
    assert (report.cleaned, report.retained) == (3, 1)
    assert [each.session for each in report.sessions] == ["c1", "c2", "f1"]
    assert keys(store) == {"f2"}
    assert clean(store, limit=0).cleaned == 0
    with pytest.raises(InvalidInput):
        clean(store, limit=-1)


def test_a_leased_session_is_not_touched(store: Store, clock: FakeClock) -> None:
    """Neither when the lease is seen by the plan, nor when it is taken right before."""
    session = ended(store, "leased")
    clock.advance(100 * DAY)
    backend = store.engine.backend
    early = plan_clean(store.engine, lambda _: DEFAULTS, now_us=clock())
    lease = backend.acquire_lease(session.uid, new_owner(), seconds=15)
    plan = plan_clean(store.engine, lambda _: DEFAULTS, now_us=clock())
    assert [(entry.decision.goes, entry.decision.reason) for entry in plan.entries] == [(False, "leased")]
    assert apply_clean(store.engine, early, now_us=clock()).retained == 1
    backend.release_lease(session.uid, lease.token)
    assert clean(store).cleaned == 1


def test_a_session_that_goes_on_is_not_touched(store: Store, clock: FakeClock) -> None:
    """A save after the plan was made reopens it, and keeps all of it."""
    session = ended(store, "again")
    clock.advance(100 * DAY)
    plan = plan_clean(store.engine, lambda _: DEFAULTS, now_us=clock())
    session.save({"n": 3})
    report = apply_clean(store.engine, plan, now_us=clock())
    assert (report.cleaned, report.retained, report.errors) == (0, 1, ())
    assert session.usage().checkpoints == 3


@pytest.mark.parametrize("what", ["save", "lease"])
def test_a_session_that_goes_on_at_the_last_moment_is_not_touched(
    store: Store, clock: FakeClock, faults: Faults, what: str
) -> None:
    """Between the last look and the removal somebody saves, or takes the lease: the transaction sees it."""
    session = ended(store, "again")
    clock.advance(100 * DAY)

    def go_on() -> None:
        if what == "save":
            session.save({"n": 3})
        else:
            store.engine.backend.acquire_lease(session.uid, new_owner(), seconds=15)

    faults.add(Fault(go_on, method="delete_sessions"))
    report = clean(store)
    assert (report.cleaned, report.retained, report.errors) == (0, 1, ())
    assert session.usage().checkpoints == (3 if what == "save" else 2)


def test_a_pruned_session_still_goes(store: Store, clock: FakeClock) -> None:
    """Pruning between plan and removal changes the session, and nothing about whether it may go."""
    session, empty = ended(store, "pruned"), store.session("empty", profile="workflow")
    empty.complete()
    clock.advance(100 * DAY)
    plan = plan_clean(store.engine, lambda _: DEFAULTS, now_us=clock())
    store.engine.backend.remove(session.uid, [session.header(1).id])
    store.engine.backend.update_session(empty.uid, {})
    assert apply_clean(store.engine, plan, now_us=clock()).cleaned == 2


def test_a_session_that_is_gone_is_not_missed(store: Store, clock: FakeClock) -> None:
    """Removed by others, and even begun again under the same key: the new one stays."""
    session = ended(store, "gone")
    clock.advance(100 * DAY)
    plan = plan_clean(store.engine, lambda _: DEFAULTS, now_us=clock())
    session.clear()
    again = ended(store, "gone")
    report = apply_clean(store.engine, plan, now_us=clock())
    assert (report.cleaned, report.retained, report.missing, report.errors) == (0, 0, 1, ())
    assert again.usage().checkpoints == 2


def test_a_session_with_a_senseless_policy_stays(
    store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is an error of its own; the others are cleaned."""
    session = ended(store, "odd")
    store.engine.backend.update_session(session.uid, {"policy": {"cleanup": {"retention_days": -5}}})
    ended(store, "fine")
    clock.advance(100 * DAY)
    report = clean(store)
    assert (report.cleaned, report.retained) == (1, 0)
    assert [error.session for error in report.errors] == ["odd"]
    assert "retention_days" in report.errors[0].message
    assert [
        each.levelname for each in caplog.records if "Failed to cleanup session odd: " in each.message
    ] == ["WARNING"]
    assert keys(store) == {"odd"}


def test_a_failure_of_one_does_not_stop_the_rest(store: Store, clock: FakeClock, faults: Faults) -> None:
    """Where many cannot go at once they go one by one. The one that fails is reported, and goes with the next pass."""
    for key in ("a", "b", "c"):
        ended(store, key)
        clock.advance(1)
    clock.advance(100 * DAY)
    faults.add(*(Fault(fail, method="delete_sessions", call=call) for call in (1, 3)))
    report = clean(store)
    assert (report.cleaned, report.retained) == (2, 0)
    assert [(error.session, error.message) for error in report.errors] == [("b", "a fault was injected")]
    assert keys(store) == {"b"}
    assert clean(store).cleaned == 1


def test_of_many_only_those_that_go_on_stay(
    store: Store, clock: FakeClock, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each transaction somebody else runs one, and another is saved into: the others go, whatever their number."""
    monkeypatch.setattr(cleaning, "MAX_STEP", 8)  # four sessions
    sessions: list[Session] = []
    for number in range(12):
        sessions.append(ended(store, f"s{number}"))
        clock.advance(1)
    clock.advance(100 * DAY)

    def go_on(leased: Session, saved: Session) -> None:
        store.engine.backend.acquire_lease(leased.uid, new_owner(), seconds=15)
        saved.save({"n": 3})

    for call, (leased, saved) in enumerate(zip(sessions[::4], sessions[3::4], strict=True), 1):
        faults.add(Fault(partial(go_on, leased, saved), method="delete_sessions", call=call))
    report = clean(store)
    assert (report.cleaned, report.retained, report.errors) == (6, 6, ())
    assert keys(store) == {f"s{number}" for number in (0, 3, 4, 7, 8, 11)}
    assert store.usage().checkpoints == 3 * 2 + 3 * 3
    assert store.verify().is_intact


def test_a_clean_that_was_stopped_is_finished_by_the_next(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What went before the kill is gone, nothing is half removed, and opened again the store lets the rest go."""
    monkeypatch.setattr(cleaning, "MAX_STEP", 4)  # two sessions
    path, faults = tmp_path / "h.db", Faults()
    with Store(SqliteBackend(path, clock=clock), clock=clock) as store:
        for number in range(5):
            ended(store, f"s{number}")
            clock.advance(1)
        clock.advance(100 * DAY)
        faults.add(Fault(stop, method="delete_sessions", call=2))
        stopping = Store(faults.wrap(store.engine.backend), clock=clock)
        with pytest.raises(Stopped):
            clean(stopping)
    with Store(SqliteBackend(path, clock=clock), clock=clock) as store:
        assert keys(store) == {"s2", "s3", "s4"}
        assert store.usage().checkpoints == 6
        assert store.verify().is_intact
        assert clean(store).cleaned == 3
        assert store.usage() == Usage(store_bytes=store.usage().store_bytes)


def test_what_was_cleaned_is_in_no_file(tmp_path: Path, clock: FakeClock) -> None:
    """Neither in the database nor in its log, while the store is open: free pages are given back."""
    path = tmp_path / "h.db"
    with Store(SqliteBackend(path, clock=clock), clock=clock) as store:
        for number in range(50):
            session = store.session(f"s{number}", profile="workflow")
            session.save({"n": number}, message="xyzzy", tags=["xyzzy"], status="completed")
        ended(store, "stays", "in_progress")
        clock.advance(100 * DAY)
        assert b"xyzzy" in path.read_bytes() + path.with_name("h.db-wal").read_bytes()
        assert store.clean().cleaned == 50
        assert b"xyzzy" not in path.read_bytes() + path.with_name("h.db-wal").read_bytes()
        assert store.get("stays").usage().checkpoints == 2


@pytest.mark.parametrize("damage", ["x'ff'", "CAST(x'ff' AS TEXT)"])
def test_a_session_with_damaged_sizes_still_goes(tmp_path: Path, clock: FakeClock, damage: str) -> None:
    """Whatever a flipped bit made of the size of a body, it keeps nothing from being pruned and cleaned."""
    path = tmp_path / "h.db"
    with Store(SqliteBackend(path, clock=clock), clock=clock) as store:
        ended(store, "damaged")
    database = apsw.Connection(str(path))
    database.execute(f"UPDATE bodies SET stored_size = {damage}")
    database.close()
    clock.advance(100 * DAY)
    with Store(SqliteBackend(path, clock=clock), clock=clock) as store:
        session = store.get("damaged")
        assert store.engine.backend.remove(session.uid, [session.header(1).id]).removed
        assert clean(store).cleaned == 1
        assert store.usage().bodies == 0


def test_a_failed_sweep_is_reported(store: Store, clock: FakeClock, faults: Faults) -> None:
    """The sessions that went are still counted."""
    ended(store, "a")
    clock.advance(100 * DAY)
    faults.add(Fault(fail, method="sweep"))
    report = clean(store)
    assert report.cleaned == 1
    assert [(error.session, error.message) for error in report.errors] == [(None, "a fault was injected")]


@pytest.mark.usefixtures("of_an_ended_process")
def test_stale_sessions_go_like_failed_ones(store: Store, clock: FakeClock) -> None:
    """In profiles that know staleness, after no activity for that long."""
    ended(store, "stale", "in_progress", profile="agent")
    ended(store, "active", "in_progress", profile="workflow")
    clock.advance(30 * DAY)
    assert clean(store).cleaned == 1
    assert keys(store) == {"active"}


def test_a_session_from_the_future_stays(store: Store, clock: FakeClock) -> None:
    """Its age counts as 0."""
    ended(store, "future")
    report = apply_clean(store.engine, plan_clean(store.engine, lambda _: DEFAULTS, now_us=1), now_us=1)
    assert (report.cleaned, report.retained) == (0, 1)


def test_blobs_and_late_annotations_are_swept(store: Store, clock: FakeClock) -> None:
    """Blobs that no session names any more, and annotations whose checkpoint never came within 7 days."""
    engine = store.engine
    own, shared = engine.make_blob(b"own"), engine.make_blob(b"shared")
    session = ended(store, "goes")
    stays = ended(store, "stays", "in_progress")
    for uid, blobs in ((session.uid, (own, shared)), (stays.uid, (shared,))):
        body = NewBody(b"{}", "json", frozenset(blob.digest for blob in blobs))
        status = engine.backend.session(uid).status
        engine.save(Save(session=uid, state=body, blobs=blobs, status=status))
    backend = engine.backend
    backend.annotate(stays.uid, "cp_never", "kind", "old", b"", time_us=clock())
    clock.advance(6 * DAY)
    backend.annotate(stays.uid, "cp_late", "kind", "new", b"", time_us=clock())
    clock.advance(DAY + 1)
    report = clean(store)
    assert (report.cleaned, report.retained) == (1, 1)
    assert backend.has_blobs([own.digest, shared.digest]) == {shared.digest}
    assert [note.name for note in backend.annotations(stays.uid)] == ["new"]


def test_two_cleaners_at_once(tmp_path: Path, clock: FakeClock) -> None:
    """Each session is removed by one of them, and neither sees an error."""
    url = tmp_path / "h.db"
    with Store(SqliteBackend(url, clock=clock), clock=clock) as store:
        for number in range(40):
            ended(store, f"s{number}")
        clock.advance(100 * DAY)
        plan = plan_clean(store.engine, lambda _: DEFAULTS, now_us=clock())
    reports: list[CleanReport] = []

    def work() -> None:
        with Store(SqliteBackend(url, clock=clock), clock=clock) as store:
            reports.append(apply_clean(store.engine, plan, now_us=clock()))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(report.cleaned for report in reports) == 40
    assert [report.cleaned + report.missing for report in reports] == [40, 40]
    assert [report.errors for report in reports] == [(), ()]
    with Store(SqliteBackend(url, clock=clock), clock=clock) as store:
        assert keys(store) == set()
        assert store.usage().bodies == 0


def test_a_handle_of_a_cleaned_session_says_so(store: Store, clock: FakeClock) -> None:
    """Saving into it is NotFound; a new session with its key starts afresh."""
    session = ended(store, "done")
    clock.advance(100 * DAY)
    clean(store)
    with pytest.raises(NotFound):
        session.save({"n": 3})
    assert store.session("done").save({"n": 1}).seq == 1
