"""A backend that fails, hesitates or stops at any call: nothing acknowledged is lost, nothing is half stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepkeep import Session, Store
from stepkeep.errors import BackendUnavailable, NotFound, StepkeepError
from stepkeep.storage.memory import MemoryBackend
from stepkeep.storage.port import Backend
from stepkeep.storage.sqlite import SqliteBackend
from stepkeep.testing import Fault, Faults, Stopped, delay, fail, histories, same, stop

pytestmark = pytest.mark.full

LAST = {"text": " ".join(str(number * number) for number in range(300)), "step": 3}
STATES = [{**LAST, "step": step} for step in range(3)]
MAX_CALLS = 60

Opener = Callable[[], Backend]


@pytest.fixture(params=["memory", "sqlite"])
def open_inner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens an empty backend, another one at every call."""
    opened: list[Backend] = []

    def again() -> Backend:
        path = tmp_path / f"{len(opened)}.db"
        opened.append(MemoryBackend() if request.param == "memory" else SqliteBackend(path))
        return opened[-1]

    yield again
    for backend in opened:
        backend.close()


def prepared(inner: Backend) -> None:
    """A session with three checkpoints, the later ones based on the first."""
    session = Store(inner).session("run", profile="archive")
    for state in STATES:
        session.save(state)


def faulty_session(inner: Backend, faults: Faults) -> Session:
    return Store(faults.wrap(inner)).get("run")


def states_of(session: Session) -> list[Any]:
    return [session.load(header.id).state for header in session.history(newest_first=False)]


def every_fault(
    open_inner: Opener, action: Callable[[], Any], act: Callable[[Session], object]
) -> Iterator[Backend]:
    """Do `act` with a fault at its first call of the backend, its second and so on, until none is hit."""
    for is_after in (False, True):
        for number in range(1, MAX_CALLS):
            inner = open_inner()
            prepared(inner)
            faults = Faults()
            session = faulty_session(inner, faults)
            before = len(faults.calls)
            faults.add(Fault(action, call=number, is_after=is_after))
            try:
                act(session)
            except (StepkeepError, Stopped):
                pass
            finally:
                calls = len(faults.calls) - before
            yield inner
            if calls < number:
                break
        else:
            pytest.fail("the operation never got through")


def save_last(session: Session) -> object:
    return session.save(LAST, idempotency_key="last")


@pytest.mark.parametrize("action", [fail, stop])
def test_a_save_is_stored_whole_or_not_at_all(open_inner: Opener, action: Callable[[], Any]) -> None:
    """Wherever it fails, the older ones are untouched and the new one is there exactly or absent (R2)."""
    outcomes = set()
    for inner in every_fault(open_inner, action, save_last):
        session = Store(inner).get("run")
        found = states_of(session)
        assert found in (STATES, [*STATES, LAST])
        assert session.verify().is_intact
        outcomes.add(len(found))
    assert outcomes == {3, 4}


def test_a_save_that_raised_can_be_repeated(open_inner: Opener) -> None:
    """With the same idempotency key a repeat gives one checkpoint, also when only the answer was lost."""
    for inner in every_fault(open_inner, fail, save_last):
        session = Store(inner).get("run")
        header = session.save(LAST, idempotency_key="last")
        assert header.seq == 4
        assert states_of(session) == [*STATES, LAST]


@pytest.mark.parametrize("action", [fail, stop])
def test_finishing_can_fail_anywhere(open_inner: Opener, action: Callable[[], Any]) -> None:
    """Making the newest checkpoint stand alone puts no other at risk, and can be repeated."""
    for inner in every_fault(open_inner, action, lambda session: session.complete()):
        session = Store(inner).get("run")
        assert states_of(session) == STATES
        assert session.verify().is_intact
        assert session.complete().status == "completed"
        assert states_of(session) == STATES


@pytest.mark.parametrize("action", [fail, stop])
def test_deleting_can_fail_anywhere(open_inner: Opener, action: Callable[[], Any]) -> None:
    """What was not named stays exactly as it is; the named one is there or gone, and a repeat removes it."""
    for inner in every_fault(open_inner, action, lambda session: session.delete(session.header(1).id)):
        session = Store(inner).get("run")
        assert states_of(session) in (STATES, STATES[1:])
        assert session.verify().is_intact
        if len(list(session.history())) == len(STATES):
            session.delete(session.header(1).id)
        assert states_of(session) == STATES[1:]


def test_clearing_can_fail_anywhere(open_inner: Opener) -> None:
    """The session is whole or gone."""
    for inner in every_fault(open_inner, fail, lambda session: session.clear()):
        store = Store(inner)
        try:
            assert states_of(store.get("run")) == STATES
        except NotFound:
            assert store.usage().bodies == 0


def test_later_saves_do_not_build_on_a_failed_one(open_inner: Opener) -> None:
    """The writer forgets what was not stored: the next save is complete in itself."""
    inner, faults = open_inner(), Faults()
    prepared(inner)
    session = faulty_session(inner, faults)
    session.save({**LAST, "step": 10})
    faults.add(Fault(fail, "append"))
    with pytest.raises(BackendUnavailable):
        session.save({**LAST, "step": 11})
    session.save({**LAST, "step": 12})
    assert [state["step"] for state in states_of(session)] == [0, 1, 2, 10, 12]
    assert session.verify().is_intact


@pytest.mark.parametrize("is_after", [False, True])
def test_background_saves_fail_alone(open_inner: Opener, is_after: bool) -> None:
    """Whoever asks for the result of a failed commit is told; repeats with their keys bring all, once and in order."""
    inner = open_inner()
    faults = Faults(Fault(fail, "append", call=2, is_after=is_after))
    store = Store(faults.wrap(inner))
    session = store.session("run")
    states = [{**LAST, "step": step} for step in range(12)]
    handles = [
        session.save(state, wait=False, idempotency_key=f"k{number}") for number, state in enumerate(states)
    ]
    store.flush()
    for number, (state, handle) in enumerate(zip(states, handles, strict=True)):
        try:
            handle.result()
        except BackendUnavailable:
            session.save(state, idempotency_key=f"k{number}")
    found = states_of(session)
    assert sorted(state["step"] for state in found) == list(range(12))
    assert session.verify().is_intact
    if is_after:
        assert found == states
    store.close()


def test_savers_that_come_during_a_commit_share_the_next(open_inner: Opener) -> None:
    """While one commit hangs, others queue; then they go together."""
    entered, go_on = threading.Event(), threading.Event()
    faults = Faults(Fault(lambda: (entered.set(), go_on.wait(10)), "append"))
    store = Store(faults.wrap(open_inner()))
    session = store.session("run")
    leader = threading.Thread(target=session.save, args=({"n": 0},))
    leader.start()
    assert entered.wait(10)
    handles = [store.engine.submit(session._save_of({"n": number})) for number in range(1, 6)]
    go_on.set()
    leader.join()
    assert [handle.result().seq for handle in handles] == [2, 3, 4, 5, 6]
    assert faults.calls.count("append") == 2


def test_a_slow_backend_changes_nothing(open_inner: Opener) -> None:
    """A delay before and after the work is only a delay."""
    inner = open_inner()
    faults = Faults(Fault(delay(0.001), "append"), Fault(delay(0.001), "append", is_after=True))
    session = Store(faults.wrap(inner)).session("run")
    session.save(LAST)
    assert states_of(session) == [LAST]


def test_a_stopped_backend_stays_stopped() -> None:
    """After `stop` no call gets through, not even one that was not planned for."""
    faults = Faults(Fault(stop, "session_by_key"))
    store = Store(faults.wrap(MemoryBackend()))
    for _ in range(2):
        with pytest.raises(Stopped):
            store.session("run")
    with pytest.raises(Stopped):
        store.usage()


@given(
    history=histories(max_size=8),
    places=st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=6),
    keyframe_every=st.sampled_from([None, 3]),
)
def test_a_run_that_repeats_what_failed_loses_nothing(
    history: list[dict[str, Any]], places: list[tuple[int, bool]], keyframe_every: int | None
) -> None:
    """A writer that repeats each failed save with its key gets its whole history, once and in order."""
    inner = MemoryBackend()
    Store(inner).session("run")
    faults = Faults(*(Fault(fail, call=call, is_after=is_after) for call, is_after in places))
    store = Store(faults.wrap(inner), keyframe_every=keyframe_every)
    for number, state in enumerate(history):
        persist(lambda number=number, state=state: store.get("run").save(state, idempotency_key=f"k{number}"))
    session = Store(inner).get("run")
    assert len(states_of(session)) == len(history)
    assert all(map(same, states_of(session), history))
    assert session.verify().is_intact


def persist(act: Callable[[], object]) -> None:
    """Repeat until it works: every fault strikes once."""
    while True:
        try:
            act()
        except BackendUnavailable:
            continue
        return
