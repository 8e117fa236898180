"""What happens to history when nobody says anything about it."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import stepkeep
from stepkeep import config
from stepkeep.errors import NotFound
from stepkeep.model import utc_now_us
from stepkeep.testing.builders import FakeClock

DAY = 86400
QUIET = config.load(cwd=None, environ={})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'a.db'}"


def seqs(url: str, key: str) -> list[int]:
    with stepkeep.open(url, config=QUIET) as store:
        return [header.seq for header in store.session(key).history(newest_first=False)]


def test_nothing_is_deleted_by_default(url: str) -> None:
    """As long as it fits the budget, a session keeps each of its saves."""
    with stepkeep.open(url, config=QUIET) as store:
        for number in range(130):
            store.session("a").save({"n": number})
    assert seqs(url, "a") == list(range(1, 131))


def test_a_script_keeps_its_first_step(url: str) -> None:
    """However many steps follow."""
    with stepkeep.open(url, config=QUIET) as store, store.run("script") as run:
        for number in range(25):
            run.step(f"step {number}", lambda number=number: number)
    assert seqs(url, "script")[0] == 1


def test_beyond_its_budget_the_oldest_of_a_session_go(url: str) -> None:
    """The budget of the profile is one of the rules that the configuration can replace."""
    small = config.load(cwd=None, environ={}, flags={"retention.max_bytes": "20kB"})
    for number in range(40):
        with stepkeep.open(url, config=small) as store:
            store.session("a").save({"n": [hash((number, each)) for each in range(100)]})
    kept = seqs(url, "a")
    assert kept == list(range(41 - len(kept), 41))
    assert 3 < len(kept) < 40


def test_idle_sessions_stay_unless_they_are_of_agents_or_phases(tmp_path: Path) -> None:
    """What is not finished may go on; paused work waits however long."""
    clock = FakeClock()
    with stepkeep.open(f"sqlite:{tmp_path / 'a.db'}", config=QUIET, clock=clock) as store:
        for profile in ("standard", "workflow", "run", "debug", "phase", "agent"):
            store.session(profile, profile=profile).save(1)
        store.session("paused", profile="agent").save(1)
        store.session("paused").pause()
        clock.advance(400 * DAY)
        assert {each.session for each in store.clean().sessions} == {"phase", "agent"}


WORKING = """
import sys, stepkeep
with stepkeep.open(sys.argv[1]) as store:
    session = store.session("work", profile="agent")
    session.save(1)
    session.save(2)
    store._upkeep.keeper.make_pass()  # as it does by itself after a few minutes
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_a_session_whose_process_lives_stays(tmp_path: Path) -> None:
    """However long it is idle, and without a lease; when the process has ended, it goes."""
    url, clock = f"sqlite:{tmp_path / 'a.db'}", FakeClock(utc_now_us())
    with subprocess.Popen(
        [sys.executable, "-c", WORKING, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as working:
        assert working.stdout is not None
        assert working.stdout.readline() == "ready\n"
        clock.advance(400 * DAY)
        with stepkeep.open(url, config=QUIET, clock=clock) as store:
            (decision,) = store.clean(dry_run=True).sessions
            assert (decision.goes, decision.reason) == (False, f"its process lives (pid {working.pid})")
            assert store.clean().cleaned == 0
        working.communicate("\n", timeout=60)
    with stepkeep.open(url, config=QUIET, clock=clock) as store:
        assert store.clean().cleaned == 1


def test_a_ref_to_something_pruned_tells_when_and_why(url: str) -> None:
    """By its number and by its id."""
    with stepkeep.open(url, config=QUIET) as store:
        session = store.session("a")
        ids = [session.save({"n": number}).id for number in range(6)]
        session.prune(keep_last=2)
        for ref in (2, ids[1]):
            with pytest.raises(NotFound, match=r"pruned at 2.* \(beyond the last 2\)"):
                session.load(ref)
        session.prune(max_age=timedelta(microseconds=1))
        with pytest.raises(NotFound, match=r"pruned at 2.* \(older than"):
            session.load(5)


def test_a_failed_test_run_can_be_resumed_for_a_day(url: str) -> None:
    """One that went well goes at once."""
    clock = FakeClock()
    with stepkeep.open(url, config=QUIET, clock=clock) as store:
        for key, status in (("good", "completed"), ("bad", "failed")):
            store.session(key, test=True).save(1, status=status)
    with stepkeep.open(url, config=QUIET, clock=clock) as store:
        assert [session.key for session in store.sessions()] == ["bad"]
        clock.advance(DAY)
        assert [each.session for each in store.clean().sessions] == ["bad"]


def test_saying_again_that_a_session_is_complete_does_not_make_it_younger(url: str) -> None:
    """Its age counts from its end."""
    clock = FakeClock()
    with stepkeep.open(url, config=QUIET, clock=clock) as store:
        session = store.session("a")
        session.save(1)
        session.complete()
        ended = session.info.finished_us
        clock.advance(20 * DAY)
        session.complete()
        assert session.info.finished_us == ended
        clock.advance(10 * DAY)
        store.clean()  # unless the keeper was faster
        assert list(store.sessions()) == []


def test_short_processes_clean_other_sessions_once_a_day(url: str) -> None:
    """The first that ends a session on a day does so for all."""
    clock = FakeClock()

    def run(key: str) -> set[str]:
        with stepkeep.open(url, config=QUIET, clock=clock) as store:
            store.session(key, profile="workflow").save(1, status="completed")
        with stepkeep.open(url, config=QUIET, clock=clock) as store:
            return {session.key for session in store.sessions()}

    assert run("a") == {"a"}
    clock.advance(10 * DAY)
    assert run("b") == {"b"}
    clock.advance(10 * DAY)
    assert run("c") == {"c"}


@pytest.mark.parametrize(("layout", "kept"), [("run", 50), ("workflow", 10), ("phase", 60)])
def test_a_layout_brings_the_rules_of_its_specification(tmp_path: Path, layout: str, kept: int) -> None:
    """Unless the user names another profile, in the configuration or in the call."""
    url = f"files:{tmp_path}/files?layout={layout}"
    archive = config.load(cwd=None, environ={"STEPKEEP_PROFILE": "archive"})
    for key, settings, profile in (("a", QUIET, None), ("b", archive, None), ("c", QUIET, "standard")):
        with stepkeep.open(url, config=settings) as store:
            for number in range(60):
                store.session(key, profile=profile).save(number)
    assert [len(seqs(url, key)) for key in "abc"] == [kept, 60, 60]
    with stepkeep.open(url, config=QUIET) as store:
        store.save("d", 1)
        wanted = "standard" if layout == "phase" else layout
        assert [store.get(key).info.profile for key in "abcd"] == [wanted, "archive", "standard", wanted]
