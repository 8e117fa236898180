"""Pruning the history of a session: what stays, what goes, and what is left of it on disk."""

from __future__ import annotations

import logging
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import stepkeep
from stepkeep import config
from stepkeep.api import Session, Store
from stepkeep.errors import PRUNE_FAILED, BackendUnavailable, InvalidInput, NotFound
from stepkeep.maintenance.prune import PruneReport, apply_prune, plan_prune, prune_session
from stepkeep.maintenance.space import reclaim
from stepkeep.model import Branch, BranchState, Header, Status
from stepkeep.policy.profiles import PROFILES
from stepkeep.policy.retention import Retention
from stepkeep.storage.memory import MemoryBackend
from stepkeep.storage.port import Backend
from stepkeep.storage.sqlite import SqliteBackend
from stepkeep.testing.builders import FakeClock
from stepkeep.testing.faults import Fault, Faults, Stopped, fail, stop
from tests.sampling import examples

random.seed(1)
FILLER = random.randbytes(2000).hex()
LAST_ONE = Retention(keep_last=1)


def state(number: int) -> dict[str, Any]:
    """A state large enough that its successor is stored as a delta."""
    return {"number": number, "text": FILLER}


def open_store(path: Path, clock: FakeClock, **options: Any) -> Store:
    return Store(SqliteBackend(path, clock=clock), clock=clock, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "stepkeep.db"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(path: Path, clock: FakeClock) -> Iterator[Store]:
    with open_store(path, clock) as store:
        yield store


@pytest.fixture
def session(store: Store) -> Session:
    return store.session("run", profile="archive")


@pytest.fixture
def reopened(store: Store, path: Path, clock: FakeClock) -> Iterator[Callable[[], Session]]:
    """A function that closes the store and finds the session in the one it opens again."""
    opened: list[Store] = []

    def reopen() -> Session:
        store.close()
        opened.append(open_store(path, clock))
        return opened[-1].get("run")

    yield reopen
    for each in opened:
        each.close()


def save(session: Session, count: int = 1, **options: Any) -> list[Header]:
    """Save states a minute apart."""
    headers = []
    for _ in range(count):
        clock = session._engine.clock
        assert isinstance(clock, FakeClock)
        clock.advance(60)
        headers.append(session.save(state(clock()), **options))
    return headers


def save_one(session: Session, **options: Any) -> Header:
    return save(session, **options)[0]


def prune(session: Session, retention: Retention = LAST_ONE) -> PruneReport:
    engine = session._engine
    return replace(prune_session(engine, session.info, retention), rules=(), warnings=())


def ids(session: Session) -> list[str]:
    """What is there, oldest first."""
    return [header.id for header in session.history(newest_first=False)]


def assert_sound(session: Session) -> None:
    """Everything verifies, and every checkpoint loads from what is stored."""
    assert session.verify().findings == ()
    for header in session.history():
        assert session.load(header.id).state == state(header.time_us)


@contextmanager
def raw(path: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(10_000)
        yield connection
    finally:
        connection.close()


def damage_body(path: Path, checkpoint: str) -> None:
    with raw(path) as connection:
        connection.execute("UPDATE bodies SET data = zeroblob(9) WHERE checkpoint = ?", (checkpoint,))


def damage_header(path: Path, checkpoint: str) -> None:
    with raw(path) as connection:
        connection.execute("UPDATE checkpoints SET header = zeroblob(9) WHERE id = ?", (checkpoint,))


# --- plan, apply, report ---------------------------------------------------------------------------------------


def test_the_oldest_go_and_the_report_says_so(
    session: Session, reopened: Callable[[], Session], caplog: pytest.LogCaptureFixture
) -> None:
    """Total, kept and deleted add up; each removal is logged and their sum, the whole is an event."""
    headers = save(session, 10)
    with caplog.at_level(logging.INFO, "stepkeep"):
        report = prune(session, Retention(keep_last=4))
    assert (report.session, report.total, report.kept, report.deleted) == ("run", 10, 4, 6)
    logged = [each.message for each in caplog.records if each.message.startswith("Pruning old")]
    assert logged == [f"Pruning old checkpoint from history: {header.id}" for header in headers[:6]]
    (total,) = [each.message for each in caplog.records if each.name == "stepkeep"]
    assert re.fullmatch(r"Pruned session 'run': 6 of 10 checkpoints, [0-9.]+K?B", total)
    event = session.events()[-1]
    assert (event.type, event.data["deleted"], event.data["kept"]) == ("pruned", 6, 4)
    session = reopened()
    assert ids(session) == [header.id for header in headers[6:]]
    assert_sound(session)


def test_a_plan_changes_nothing_and_gives_each_a_reason(session: Session) -> None:
    """Decisions come newest first, what goes is named oldest first."""
    headers = save(session, 5)
    plan = plan_prune(session._engine, session.info, Retention(keep_last=2), now_us=headers[-1].time_us)
    newest_first = [header.id for header in reversed(headers)]
    assert [each.checkpoint for each in plan.decisions] == newest_first
    assert all(each.reasons for each in plan.decisions)
    assert plan.going == tuple(header.id for header in headers[:3])
    assert [each.checkpoint for each in plan.decisions if each.stays] == newest_first[:2]
    assert (plan.session, plan.warnings) == (session.info, ())
    assert len(ids(session)) == 5


def test_nothing_to_do_is_a_calm_success(session: Session) -> None:
    """An empty session, and one of which all stays; no event is recorded."""
    assert prune(session) == PruneReport(session="run")
    save(session, 2)
    assert prune(session, Retention()) == PruneReport(session="run", total=2, kept=2)
    assert session.events() == []


def test_progress_counts_all_that_goes_in_batches(session: Session) -> None:
    """It is called after each batch."""
    save(session, 8)
    engine = session._engine
    plan = plan_prune(engine, session.info, LAST_ONE, now_us=engine.clock())
    steps: list[int] = []
    assert apply_prune(engine, plan, batch=3, progress=steps.append).deleted == 7
    assert steps == [3, 3, 1]


@pytest.mark.parametrize("batch", [0, -1])
def test_an_absurd_batch_is_refused(session: Session, batch: int) -> None:
    """Before anything is removed."""
    save(session, 2)
    plan = plan_prune(session._engine, session.info, LAST_ONE, now_us=0)
    with pytest.raises(InvalidInput):
        apply_prune(session._engine, plan, batch=batch)
    assert len(ids(session)) == 2


def test_a_time_in_the_future_is_warned_of(session: Session) -> None:
    """It counts as new, and is never a reason to go."""
    header = save_one(session)
    plan = plan_prune(session._engine, session.info, Retention(max_age=timedelta(hours=1)), now_us=0)
    assert plan.going == ()
    assert len(plan.warnings) == 1
    assert header.id in plan.warnings[0]


# --- V7: what always stays -------------------------------------------------------------------------------------


def fork(session: Session, name: str, at: Header, *, is_pinned: bool = True) -> None:
    """Begin a branch at a checkpoint, as a restore does, without going there."""
    branch = Branch(name=name, created_us=at.time_us, head=at.id, fork=at.id, is_pinned=is_pinned)
    session._engine.backend.set_branch(session.uid, branch)


def head_of_a_pinned_branch(session: Session) -> list[Header]:
    first = save_one(session)
    return [first, *save(session, 2, branch="side", parents=[first.id])[1:]]


def fork_point(session: Session) -> list[Header]:
    headers = save(session, 3)
    fork(session, "other", headers[1])
    return [headers[1]]


def newest_failed_and_completed(session: Session) -> list[Header]:
    save(session, 2, status="failed")
    failed = save_one(session, status="failed")
    save(session, 2, status="completed")
    return [failed, save_one(session, status="completed")]


def last_three_safety_checkpoints(session: Session) -> list[Header]:
    save(session, 2, tags=["safety"])
    return save(session, 3, tags=["safety"])


def what_a_kept_one_requires(session: Session) -> list[Header]:
    first = save_one(session)
    second = save_one(session, requires=[first.id])
    save_one(session)
    return [first, second, save_one(session, requires=[second.id], status="failed")]


@pytest.mark.parametrize(
    "guarded",
    [
        head_of_a_pinned_branch,
        fork_point,
        newest_failed_and_completed,
        last_three_safety_checkpoints,
        what_a_kept_one_requires,
    ],
)
def test_the_guards_hold(
    session: Session, reopened: Callable[[], Session], guarded: Callable[[Session], list[Header]]
) -> None:
    """V7 beats rules and caps: exactly the guarded ones and the newest stay."""
    staying = guarded(session)
    newest = save(session, 5)[-1]
    prune(session, Retention(keep_last=1, max_age=timedelta(seconds=1), max_bytes=1))
    session = reopened()
    assert ids(session) == [header.id for header in [*staying, newest]]
    assert_sound(session)


def test_the_current_branch_is_guarded_although_it_is_not_pinned(session: Session) -> None:
    """Its head and its fork point stay."""
    headers = save(session, 3)
    fork(session, "now", headers[0], is_pinned=False)
    session._engine.backend.update_session(session.uid, {"branch": "now"})
    own = save(session, 2)
    prune(session)
    # The head of main stays as well: main is pinned.
    assert ids(session) == [headers[0].id, headers[2].id, own[1].id]
    assert_sound(session)


@pytest.mark.parametrize("change", [{"is_pinned": False}, {"state": BranchState.ABANDONED}])
def test_a_branch_left_behind_goes(session: Session, change: dict[str, Any]) -> None:
    """One that is not pinned, or no longer open, guards nothing."""
    first = save_one(session)
    save(session, 3, branch="left", parents=[first.id])
    branch = session._engine.backend.branch(session.uid, "left")
    assert branch is not None
    session._engine.backend.set_branch(session.uid, replace(branch, **change))
    newest = save(session, 2)[-1]
    prune(session)
    assert ids(session) == [newest.id]
    assert_sound(session)


def test_all_back_to_the_newest_that_verifies_stays(
    path: Path, session: Session, reopened: Callable[[], Session]
) -> None:
    """Although the writer still has the damaged states in memory: what is stored decides."""
    save(session, 3)
    intact, keyframe = save(session, 2, status="paused")
    damaged = [keyframe, *save(session, 2)]  # based on the keyframe
    damage_body(path, keyframe.id)
    report = prune(session)
    assert report.kept == 4
    session = reopened()
    assert ids(session) == [header.id for header in [intact, *damaged]]
    latest = session.latest()
    assert latest is not None
    assert latest.id == intact.id


def test_a_line_on_which_nothing_verifies_stays(path: Path, session: Session) -> None:
    """Somebody may still recover something from it, so it is only warned of."""
    headers = save(session, 3, status="paused")
    for header in headers:
        damage_body(path, header.id)
    plan = plan_prune(session._engine, session.info, LAST_ONE, now_us=headers[-1].time_us)
    assert plan.going == ()
    assert "run verify" in plan.warnings[-1]


def test_a_damaged_header_is_left_alone(path: Path, session: Session) -> None:
    """It is warned of, and what is based on its body still loads."""
    headers = save(session, 6)
    damage_header(path, headers[1].id)
    plan = plan_prune(session._engine, session.info, LAST_ONE, now_us=headers[-1].time_us)
    assert [headers[1].id in warning for warning in plan.warnings] == [True]
    assert headers[1].id not in plan.going
    report = apply_prune(session._engine, plan)
    assert (report.total, report.deleted) == (5, 4)
    with raw(path) as connection:
        stored = connection.execute("SELECT id FROM checkpoints ORDER BY seq").fetchall()
    assert stored == [(headers[1].id,), (headers[5].id,)]
    assert session.load(headers[5].id).state == state(headers[5].time_us)


# --- V5: bodies, blobs, space ----------------------------------------------------------------------------------


def test_a_hidden_base_stays_until_its_group_goes(path: Path, clock: FakeClock) -> None:
    """The keyframe of a group is kept for the last of its deltas, and no longer."""
    with open_store(path, clock, keyframe_every=4) as store:
        session = store.session("run", profile="archive")
        save(session, 4)
        plan = plan_prune(store.engine, session.info, LAST_ONE, now_us=clock())
        assert apply_prune(store.engine, plan).stored_bytes == plan.reclaimable_bytes
        assert session.usage().hidden_bodies == 3  # each is based on the one before
        assert_sound(session)
        save(session, 1)
        plan = plan_prune(store.engine, session.info, LAST_ONE, now_us=clock())
        assert apply_prune(store.engine, plan).stored_bytes == plan.reclaimable_bytes > 0
        assert (session.usage().hidden_bodies, session.usage().bodies) == (0, 1)
    with open_store(path, clock) as store:
        assert_sound(store.get("run"))


def test_blobs_go_with_the_last_that_names_them(store: Store, session: Session) -> None:
    """One that a kept checkpoint names stays."""
    from stepkeep.engine import NewBody, Save

    engine = store.engine
    blobs = [engine.make_blob(bytes([number]) * 100) for number in range(3)]
    for old, new in ((0, 1), (1, 2)):
        named = frozenset({blobs[old].digest, blobs[new].digest})
        body = NewBody(f"{old}".encode(), "json", named)
        engine.save(Save(session=session.uid, state=body, blobs=(blobs[old], blobs[new])))
    prune(session)
    assert engine.backend.has_blobs([blob.digest for blob in blobs]) == {blobs[1].digest, blobs[2].digest}


def test_disk_space_returns(path: Path, store: Store, session: Session) -> None:
    """The file on disk shrinks, step by step and never by more than was asked for."""
    random.seed(2)
    for _ in range(40):
        session.save({"noise": random.randbytes(100_000).hex()}, status="paused")
    prune(session)
    store.engine.backend.reclaim(1)  # moves the log into the file
    before = path.stat().st_size
    page = 4096
    assert 0 < reclaim(store.engine, max_bytes=10 * page, step_bytes=4 * page) <= 10 * page
    assert before - path.stat().st_size == 10 * page
    assert reclaim(store.engine) > 1_000_000
    assert reclaim(store.engine) == 0
    store.close()
    assert path.stat().st_size < before / 8
    with open_store(path, FakeClock()) as again:
        assert again.verify().is_intact


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"step_bytes": -1}])
def test_absurd_limits_of_reclaim_are_refused(store: Store, limits: dict[str, int]) -> None:
    """With the name of the limit."""
    with pytest.raises(InvalidInput, match=next(iter(limits))):
        reclaim(store.engine, **limits)


# --- what others do meanwhile ----------------------------------------------------------------------------------


def test_what_became_a_head_since_the_plan_stays(session: Session) -> None:
    """A restore between plan and apply makes an old checkpoint a head and a fork point."""
    headers = save(session, 5)
    engine = session._engine
    plan = plan_prune(engine, session.info, LAST_ONE, now_us=engine.clock())
    fork(session, "restored", headers[1])
    engine.backend.update_session(session.uid, {"branch": "restored"})
    report = apply_prune(engine, plan, batch=2)
    assert (report.deleted, report.refused, report.kept, report.missing) == (3, 1, 2, 0)
    assert ids(session) == [headers[1].id, headers[4].id]
    latest = session.latest()
    assert latest is not None
    assert latest.id == headers[1].id


def test_what_became_required_since_the_plan_stays(session: Session) -> None:
    """A new checkpoint may name an old one."""
    headers = save(session, 4)
    engine = session._engine
    plan = plan_prune(engine, session.info, LAST_ONE, now_us=engine.clock())
    newest = save_one(session, requires=[headers[0].id])
    assert apply_prune(engine, plan).refused == 1
    assert ids(session) == [headers[0].id, headers[3].id, newest.id]


def test_what_others_removed_is_not_missed(session: Session) -> None:
    """Two may prune the same session: the second finds nothing to do."""
    save(session, 6)
    engine = session._engine
    plan = plan_prune(engine, session.info, LAST_ONE, now_us=engine.clock())
    assert apply_prune(engine, plan).deleted == 5
    again = apply_prune(engine, plan)
    assert (again.total, again.kept, again.deleted, again.missing, again.stored_bytes) == (6, 1, 0, 5, 0)


@pytest.mark.parametrize("when", ["planning", "before", "between"])
def test_a_session_deleted_while_it_is_pruned(session: Session, when: str) -> None:
    """Before there is a plan it is not found; later it is calm success, at whichever moment it goes."""
    save(session, 6)
    engine, info = session._engine, session.info
    if when == "planning":
        session.clear()
        with pytest.raises(NotFound):
            prune_session(engine, info, LAST_ONE)
        return
    plan = plan_prune(engine, info, LAST_ONE, now_us=engine.clock())
    if when == "before":
        session.clear()
    report = apply_prune(engine, plan, batch=2, progress=lambda _: session.clear())
    gone = 0 if when == "before" else 2
    assert (report.total, report.kept, report.deleted, report.missing) == (6, 0, gone, 6 - gone)


def test_a_long_chain_of_requirements_goes_at_once(session: Session) -> None:
    """What requires another goes before it, however small the batches are."""
    last: list[str] = []
    for _ in range(60):
        last = [save_one(session, requires=last).id]
    newest = save_one(session)
    engine = session._engine
    plan = plan_prune(engine, session.info, LAST_ONE, now_us=engine.clock())
    report = apply_prune(engine, plan, batch=7)
    assert (report.deleted, report.refused) == (60, 0)
    assert ids(session) == [newest.id]


# --- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bodies", "remove", "sweep"])
def test_a_failure_has_its_code_and_leaves_a_valid_history(
    path: Path, clock: FakeClock, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged and recorded, nothing is half removed, and the next prune does the work."""
    faults = Faults()
    with Store(faults.wrap(SqliteBackend(path, clock=clock)), clock=clock) as store:
        session = store.session("run", profile="archive")
        newest = save(session, 5)[-1]
        faults.add(Fault(fail, method=method))
        with pytest.raises(BackendUnavailable) as failure:
            prune(session)
        assert (failure.value.code, failure.value.session) == (PRUNE_FAILED, "run")
        assert failure.value.retryable
        event = session.events()[-1]
        assert (event.type, event.data["code"]) == ("prune_failed", "checkpoint_retention_prune_failed")
        assert [each.levelname for each in caplog.records if "Pruning session 'run' failed" in each.message]
        assert_sound(session)
        prune(session)
        assert ids(session) == [newest.id]
        assert_sound(session)


def test_a_failure_that_cannot_be_recorded_is_still_told(path: Path, clock: FakeClock) -> None:
    """The error is about the prune, not about the record of it."""
    faults = Faults()
    with Store(faults.wrap(SqliteBackend(path, clock=clock)), clock=clock) as store:
        session = store.session("run", profile="archive")
        save(session, 2)
        faults.add(Fault(fail, method="remove"), Fault(fail, method="record_event"))
        with pytest.raises(BackendUnavailable) as failure:
            prune(session)
        assert failure.value.code == PRUNE_FAILED


def test_stopped_at_any_call_the_next_prune_finishes(path: Path, clock: FakeClock) -> None:
    """After each call of the backend: the store is valid, and nothing is left of what should go."""
    stopped = True
    call = 0
    while stopped:
        call += 1
        file = path.with_name(f"{call}.db")
        with open_store(file, clock, keyframe_every=3) as store:
            newest = save(store.session("run", profile="archive"), 9)[-1]
        faults = Faults(Fault(stop, call=call, is_after=True))
        backend = SqliteBackend(file, clock=clock)
        store = Store(faults.wrap(backend), clock=clock)
        try:
            info = store.engine.find_session("run")
            plan = plan_prune(store.engine, info, LAST_ONE, now_us=clock())
            apply_prune(store.engine, plan, batch=2)
            stopped = False
        except Stopped:
            pass
        backend.close()
        with open_store(file, clock) as store:
            session = store.get("run")
            assert_sound(session)
            prune(session)
            assert ids(session) == [newest.id]
            # The newest is the last of three: only its own group is still there.
            assert session.usage().bodies <= 3
            assert_sound(session)
    assert call > 10


# --- anything, in any order ------------------------------------------------------------------------------------


class Saving:
    """One save of a random history; the numbers choose among what is there."""

    def __init__(self, branch: str | None, requires: list[int], tags: list[str], status: Status) -> None:
        self.branch, self.requires, self.tags, self.status = branch, requires, tags, status

    def __repr__(self) -> str:
        return f"Saving({self.branch}, {self.requires}, {self.tags}, {self.status})"

    def apply(self, history: History) -> None:
        there = history.headers()
        requires = {there[number % len(there)].id for number in self.requires} if there else set()
        save_one(
            history.session, branch=self.branch, requires=sorted(requires), tags=self.tags, status=self.status
        )


class Restoring:
    """Go back to a checkpoint on a new branch, and perhaps let go of the one that is left."""

    def __init__(self, number: int, pins: bool) -> None:
        self.number, self.pins = number, pins

    def __repr__(self) -> str:
        return f"Restoring({self.number}, {self.pins})"

    def apply(self, history: History) -> None:
        session, there = history.session, history.headers()
        if not there:
            return
        backend = session._engine.backend
        left = backend.branch(session.uid, session.info.branch)
        assert left is not None
        backend.set_branch(session.uid, replace(left, is_pinned=self.pins))
        name = f"restored {len(session.branches)}"
        fork(session, name, there[self.number % len(there)])
        backend.update_session(session.uid, {"branch": name})


class Pruning:
    """Prune by some rules; what is left is compared with what the oracle says."""

    def __init__(self, keep_last: int, tags: tuple[str, ...], minutes: int | None, batch: int) -> None:
        max_age = None if minutes is None else timedelta(minutes=minutes)
        self.retention = Retention(keep_last=keep_last, keep_tags=tags, max_age=max_age)
        self.batch = batch

    def __repr__(self) -> str:
        return f"Pruning({self.retention}, {self.batch})"

    def apply(self, history: History) -> None:
        session = history.session
        engine = session._engine
        expected = staying(
            history.headers(), session.branches, session.info.branch, self.retention, engine.clock()
        )
        plan = plan_prune(engine, session.info, self.retention, now_us=engine.clock())
        before = session.usage().body_bytes
        report = apply_prune(engine, plan, batch=self.batch)
        assert set(ids(session)) == expected
        assert (report.kept, report.refused, report.missing) == (len(expected), 0, 0)
        assert report.stored_bytes == plan.reclaimable_bytes == before - session.usage().body_bytes
        history.check()


class History:
    """A session whose every save can be told from its time."""

    def __init__(self, store: Store) -> None:
        self.session = store.session("run", profile="archive")

    def headers(self) -> list[Header]:
        return list(self.session.history(newest_first=False))

    def check(self) -> None:
        assert_sound(self.session)
        there = {header.id for header in self.headers()}
        for header in self.headers():
            assert set(header.requires) <= there
        assert {body.checkpoint for body in self.session._engine.backend.bodies(self.session.uid)} == needed(
            self.session, there
        )


def staying(
    headers: list[Header], branches: list[Branch], current: str, rules: Retention, now_us: int
) -> set[str]:
    """The oracle: what must stay, written from the text of V7 and of the rules."""
    by_id = {header.id: header for header in headers}
    kept: set[str | None] = {headers[-1].id} if headers else set()
    for branch in branches:
        if branch.name == current or (branch.is_pinned and branch.state is BranchState.OPEN):
            kept |= {branch.head, branch.fork}
    for status in (Status.FAILED, Status.COMPLETED):
        kept |= {header.id for header in [each for each in headers if each.status is status][-1:]}
    kept |= {header.id for header in [each for each in headers if "safety" in each.tags][-3:]}
    assert rules.keep_last is not None
    wanted = [
        *headers[-rules.keep_last :],
        *(each for each in headers if set(each.tags) & set(rules.keep_tags)),
    ]
    wanted += [each for each in headers if each.status is Status.CANCELLED][-1:]
    for header in wanted:
        age = timedelta(microseconds=now_us - header.time_us)
        if rules.max_age is None or age <= rules.max_age:
            kept.add(header.id)
    while more := {id for each in kept if each in by_id for id in by_id[each].requires} - kept:
        kept |= more
    return {id for id in kept if id in by_id}


def needed(session: Session, there: set[str]) -> set[str]:
    """The checkpoints whose bodies are there, or that one of these is based on, through any steps."""
    bases = {
        body.checkpoint: body.base
        for body in session._engine.backend.bodies(session.uid)
        if not body.is_redundant
    }
    found: set[str] = set()
    for each in there:
        at: str | None = each
        while at is not None:
            found.add(at)
            at = bases[at]
    return found


savings = st.builds(
    Saving,
    st.sampled_from([None, None, None, "main", "side"]),
    st.lists(st.integers(0, 50), max_size=2),
    st.lists(st.sampled_from(["safety", "x"]), max_size=2, unique=True),
    st.sampled_from([Status.IN_PROGRESS] * 4 + [Status.FAILED, Status.COMPLETED, Status.CANCELLED]),
)
plain_savings = st.builds(Saving, st.none(), st.just([]), st.just([]), st.just(Status.IN_PROGRESS))
prunings = st.builds(
    Pruning,
    st.integers(1, 5),
    st.sampled_from([(), ("x",)]),
    st.none() | st.integers(1, 20),
    st.integers(1, 6),
)
restorings = st.builds(Restoring, st.integers(0, 50), st.booleans())
histories = st.lists(savings | plain_savings | plain_savings | restorings | prunings, min_size=3, max_size=30)


def live(backend: Backend, clock: FakeClock, steps: list[Any], keyframe_every: int) -> None:
    """Do the steps, prune to one, and check all of it again through another engine."""
    store = Store(backend, clock=clock, keyframe_every=keyframe_every)
    history = History(store)
    for step in steps:
        step.apply(history)
    history.check()
    History(Store(backend, clock=clock)).check()


@settings(max_examples=examples(60))
@given(histories, prunings, st.integers(2, 9))
def test_pruning_anything_in_any_order(steps: list[Any], last: Pruning, keyframe_every: int) -> None:
    """Exactly what must stay stays, loads and verifies, and no body is left that nothing needs."""
    clock = FakeClock()
    live(MemoryBackend(clock=clock), clock, [*steps, last], keyframe_every)


@settings(max_examples=examples(25))
@given(histories, prunings, st.integers(2, 9))
def test_pruning_anything_on_disk(steps: list[Any], last: Pruning, keyframe_every: int) -> None:
    """The same in a database, also after it was opened again."""
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "h.db"
        backend = SqliteBackend(path, clock=clock)
        live(backend, clock, [*steps, last], keyframe_every)
        backend.close()
        with open_store(path, clock) as store:
            History(store).check()


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "archive"])
def test_a_count_bounds_the_history_of_every_profile(tmp_path: Path, profile: str) -> None:
    """`checkpoint.history.max_count` is a cap: thinning and what is always kept do not lift it."""
    (tmp_path / "stepkeep.yaml").write_text("checkpoint: {history: {max_count: 3}}")
    with stepkeep.open(tmp_path / "a.db", config=config.load(cwd=tmp_path, environ={})) as store:
        run = store.session("run", profile=profile)
        for number in range(11):
            run.save(number, trigger="manual")
        assert run.prune().kept == 3
