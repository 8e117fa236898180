"""One runner per session: who holds the lease, what becomes of it, and what a runner that lost it can do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import stepkeep
from stepkeep import Conflict, PlanStep, StepContext
from stepkeep.engine import Save
from stepkeep.processes import is_dead, this_process
from stepkeep.runs.lease import Held
from stepkeep.storage.memory import MemoryBackend
from stepkeep.testing.builders import FakeClock
from stepkeep.testing.faults import Fault, Faults, fail
from tests.runs import programs

SOON = 20.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'store.db'}"


@pytest.fixture
def store() -> Iterator[stepkeep.Store]:
    with stepkeep.Store(MemoryBackend()) as store:
        yield store


def done(context: StepContext) -> str:
    return context.step.id


# --- who runs


def test_this_process_is_not_dead() -> None:
    """And one with its id but another start time is: the id was used again."""
    me = this_process("me")
    assert me.pid == os.getpid()
    assert not is_dead(me)
    if me.started:
        assert is_dead(msgspec.structs.replace(me, started=me.started - 1))


def test_a_process_that_ended_is_dead() -> None:
    """Also before its parent has taken note."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = msgspec.structs.replace(this_process(), pid=child.pid, started=started_of(child.pid))
    assert not is_dead(owner)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(owner)  # a zombie
    child.communicate()
    assert is_dead(owner)


def started_of(pid: int) -> int:
    from stepkeep.processes import process_stat

    found = process_stat(pid)
    return 0 if found is None else found.started


@pytest.mark.parametrize("field", ["host", "boot_id", "pid_namespace"])
def test_a_process_elsewhere_is_never_called_dead(field: str) -> None:
    """Nobody can see from here."""
    other = msgspec.structs.replace(this_process(), pid=2**22 + 1, **{field: "elsewhere"})
    assert not is_dead(other)


# --- holding


def test_a_held_lease_names_its_holder(store: stepkeep.Store) -> None:
    """The refusal says who, where, and until when; at the end the lease is free."""
    session = store.session("s")
    with Held(store.engine, session.uid, label="nightly"):
        with pytest.raises(Conflict) as caught, Held(store.engine, session.uid):
            pytest.fail("two hold it")
        assert caught.value.code == "lease_held"
        for text in ("'s'", "nightly", f"pid {os.getpid()}", this_process().host, "until 20"):
            assert text in caught.value.message
    assert store.engine.backend.lease(session.uid) is None
    with Held(store.engine, session.uid) as held:
        assert held.token > 1


def test_a_second_run_of_a_session_is_refused(store: stepkeep.Store) -> None:
    """Even of the same process; nothing of it runs."""
    codes: list[str] = []

    def handle(_: StepContext) -> None:
        try:
            store.execute("s", [PlanStep("inner")], done)
        except Conflict as exc:
            codes.append(exc.code)

    assert store.execute("s", [PlanStep("outer")], handle).success
    assert codes == ["lease_held"]


def test_the_token_needs_the_lease(store: stepkeep.Store) -> None:
    """Before `with` there is none."""
    with pytest.raises(RuntimeError):
        _ = Held(store.engine, store.session("s").uid).token


def test_a_lease_is_renewed_while_it_is_held() -> None:
    """Its end moves on, and so it does when the store could not be reached for a moment."""
    faults = Faults(Fault(fail, "renew_lease", 1))
    backend = faults.wrap(MemoryBackend())
    with stepkeep.Store(backend) as store:
        session = store.session("s")
        with Held(store.engine, session.uid, seconds=0.15) as held:
            first = backend.lease(session.uid)
            assert first is not None
            deadline = threading.Event()
            for _ in range(400):
                now = backend.lease(session.uid)
                if now is not None and now.expires_us > first.expires_us:
                    break
                deadline.wait(0.05)
            assert now is not None
            assert now.expires_us > first.expires_us
            assert not held.lost.is_set()


def test_a_lost_lease_is_noticed() -> None:
    """The heartbeat sees that another took over, tells once, and stops."""
    clock = FakeClock()
    backend = MemoryBackend(clock=lambda: clock.now_us)
    told = threading.Event()
    with stepkeep.Store(backend) as store:
        session = store.session("s")
        with Held(store.engine, session.uid, seconds=0.03, on_lost=told.set) as held:
            held.check()
            clock.advance(100)
            taken = backend.acquire_lease(session.uid, this_process("other"), seconds=1000)
            assert told.wait(SOON)
            with pytest.raises(Conflict) as caught:
                held.check()
            assert caught.value.code == "lease_lost"
        assert backend.lease(session.uid) == taken


def test_a_runner_that_lost_its_lease_saves_nothing_more() -> None:
    """The run ends with `lease_lost`; the step that just ended is not saved."""
    backend = MemoryBackend()
    with stepkeep.Store(backend) as store:

        def handle(context: StepContext) -> str:
            if context.step.id == "b":
                lease = backend.lease(store.get("s").uid)
                assert lease is not None
                backend.acquire_lease(
                    store.get("s").uid, this_process("thief"), seconds=100, replacing=lease.token
                )
            return context.step.id

        with pytest.raises(Conflict) as caught:
            store.execute("s", [PlanStep("a"), PlanStep("b"), PlanStep("c")], handle)
        assert caught.value.code == "lease_lost"
        state = store.get("s").load().state
        assert [step["status"] for step in state["plan"]] == ["completed", "pending", "pending"]
        assert store.get("s").info.status == "in_progress"


def test_a_process_is_not_locked_out_by_itself() -> None:
    """A lease that could not be given back is taken again at once by the same process."""
    faults = Faults()
    with stepkeep.Store(faults.wrap(MemoryBackend())) as store:
        faults.add(Fault(fail, "append"), Fault(fail, "release_lease"))
        with pytest.raises(stepkeep.BackendUnavailable), store.run("nightly") as run:
            run.step("one", lambda: 1)
        assert store.engine.backend.lease(store.get("nightly").uid) is not None
        with store.run("nightly") as run:
            assert run.step("one", lambda: 2) == 1  # saved by the error checkpoint of the first run
        assert store.get("nightly").info.status == "completed"


def test_a_run_of_this_process_is_called_so(store: stepkeep.Store) -> None:
    """Who is refused by a run of its own process need not look for another one."""
    session = store.session("s")
    with Held(store.engine, session.uid), pytest.raises(Conflict) as refused:
        Held(store.engine, session.uid).__enter__()
    assert refused.value.code == "lease_held"
    assert "a run in this very process" in refused.value.message


def test_a_forked_child_does_not_hold_the_lease(url: str) -> None:
    """Leaving the block there gives nothing back."""
    with stepkeep.open(url) as store:
        session = store.session("s")
        with Held(store.engine, session.uid) as held:
            child = os.fork()
            if child == 0:
                held.__exit__(None, None, None)
                os._exit(0)
            os.waitpid(child, 0)
            lease = store.engine.backend.lease(session.uid)
            assert lease is not None
            assert lease.token == held.token


# --- processes


@pytest.mark.full
def test_two_runners_started_together(url: str, tmp_path: Path) -> None:
    """One works, the other says who holds the lease."""
    log = tmp_path / "log"
    with stepkeep.open(url) as store:
        store.session("shared", profile="archive")
    pair = [
        programs.start(programs.run_slowly, url, str(log), 1.0, False, 15.0, label)
        for label in ("one", "two")
    ]
    answers = [json.loads(programs.end(process)[1]) for process in pair]
    answers.sort(key=lambda answer: "code" in answer)
    winner, loser = answers
    assert winner["status"] == "completed"
    assert loser["code"] == "lease_held"
    label = winner["outputs"][0]
    assert f"run by {label} (pid " in loser["message"]
    assert programs.lines(log) == [
        f"{word} {step} by {label}" for step in ("first", "second") for word in ("begin", "ran")
    ]


@pytest.mark.full
def test_after_a_kill_the_next_runner_takes_over_at_once(url: str, tmp_path: Path) -> None:
    """On the same host nobody waits for the lease of a dead process to run out."""
    log = tmp_path / "log"
    first = programs.start(programs.run_slowly, url, str(log), 60.0, False, 3600.0, "one")
    programs.wait_for(log, "begin first by one")
    first.send_signal(signal.SIGKILL)
    programs.end(first)
    code, output, errors = programs.end(
        programs.start(programs.run_slowly, url, str(log), 0.01, True, 15.0, "two")
    )
    assert code == 0, errors
    assert json.loads(output) == {"status": "completed", "outputs": ["two", "two"]}


@pytest.mark.full
def test_a_stopped_runner_that_was_taken_over_cannot_save(url: str, tmp_path: Path) -> None:
    """SIGSTOP until a second runner took over, then SIGCONT: fencing refuses what the first still saves."""
    log = tmp_path / "log"
    first = programs.start(programs.run_slowly, url, str(log), 0.2, False, 0.5, "one")
    programs.wait_for(log, "begin second by one")
    first.send_signal(signal.SIGSTOP)
    try:
        while True:
            code, output, errors = programs.end(
                programs.start(programs.run_slowly, url, str(log), 0.01, True, 15.0, "two")
            )
            assert code == 0, errors
            second = json.loads(output)
            if second.get("code") != "lease_held":
                break
    finally:
        first.send_signal(signal.SIGCONT)
    answer = json.loads(programs.end(first)[1])
    assert second == {"status": "completed", "outputs": ["one", "two"]}
    assert answer["code"] == "lease_lost"
    with stepkeep.open(url) as store:
        session = store.get("shared")
        assert session.info.status == "completed"
        assert [found["output"] for found in session.load().state["results"]] == ["one", "two"]


def test_a_save_with_a_stale_token_is_refused(store: stepkeep.Store) -> None:
    """Whatever the runner believes, the store decides."""
    session = store.session("s")
    with Held(store.engine, session.uid) as held:
        token = held.token
    body = store.engine.encode({})
    with pytest.raises(Conflict) as caught:
        store.engine.save(Save(session=session.uid, state=body, fence=token))
    assert caught.value.code == "lease_lost"


# --- what the end of a lease sets free


@pytest.mark.parametrize("how", ["plan", "script"])
def test_the_keeper_looks_again_when_the_lease_is_given_back(url: str, how: str) -> None:
    """A finished test session goes, although the keeper came first while its runner still held the lease."""
    with stepkeep.open(url) as store:
        assert store._upkeep.keeper is not None
        keeper = store._upkeep.keeper

        def finished(session: stepkeep.SessionInfo) -> None:
            is_early = store.engine.backend.lease(session.uid) is not None
            keeper.finished(session)
            if is_early:
                keeper.make_pass()

        store.engine.on_finished.append(finished)
        store.session("s", test=True)
        if how == "plan":
            assert store.execute("s", [PlanStep("1")], done).success
        else:
            with store.run("s") as run:
                run.step("1", str)
    with stepkeep.open(url) as store:
        assert list(store.sessions()) == []


def test_a_session_that_is_gone_has_no_lease_to_give_back(
    store: stepkeep.Store, caplog: pytest.LogCaptureFixture
) -> None:
    """That is nothing to complain about."""
    session = store.session("s")
    with Held(store.engine, session.uid):
        session.clear()
    assert not caplog.records
