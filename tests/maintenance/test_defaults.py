"""What happens to history when nobody says anything about it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@pytest.mark.usefixtures("of_an_ended_process")
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
store = stepkeep.open(sys.argv[1])
store.session("work", profile="agent").save(1)
if "closed" in sys.argv:
    store.close()
print("ready", flush=True)
sys.stdin.readline()
"""


@contextmanager
def working(url: str, *words: str) -> Iterator[int]:
    """A process that saved once, and lives as long as the block; its id."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKING, url, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.communicate("\n", timeout=60)


STORES = (
    "sqlite:{}/a.db",
    "files:{}/st?layout=run",
    "files:{}/st?layout=workflow",
    "files:{}/st?layout=phase",
)


@pytest.mark.parametrize("words", [(), ("closed",)], ids=["open", "closed"])
@pytest.mark.parametrize("store_url", STORES)
def test_a_session_whose_process_lives_stays(tmp_path: Path, store_url: str, words: tuple[str, ...]) -> None:
    """However long it is idle, without a lease, and after a single save; when the process has ended, it goes."""
    url, clock = store_url.format(tmp_path), FakeClock(utc_now_us())
    with working(url, *words) as pid:
        clock.advance(400 * DAY)
        with stepkeep.open(url, config=QUIET, clock=clock) as store:
            (decision,) = store.clean(dry_run=True).sessions
            assert (decision.goes, decision.reason) == (False, f"its process lives (pid {pid})")
            assert store.clean().cleaned == 0
            assert store.get("work").latest().state == 1
    with stepkeep.open(url, config=QUIET, clock=clock) as store:
        assert store.clean().cleaned == 1


def test_a_process_that_was_not_the_last_to_save_still_owns(url: str) -> None:
    """Another one that saved after it, and has ended, does not make its work abandoned."""
    clock = FakeClock(utc_now_us())
    with working(url) as pid:
        with working(url):
            pass
        clock.advance(400 * DAY)
        with stepkeep.open(url, config=QUIET, clock=clock) as store:
            (decision,) = store.clean(dry_run=True).sessions
            assert (decision.goes, decision.reason) == (False, f"its process lives (pid {pid})")


def test_a_child_owns_what_it_saved_and_not_what_its_parent_did(url: str) -> None:
    """After a fork both have ids of their own."""
    clock = FakeClock(utc_now_us())
    with stepkeep.open(url, config=QUIET, clock=clock) as store:
        store.session("parent", profile="agent").save(1)
        child = os.fork()
        if child == 0:
            store.session("child", profile="agent").save(1)
            os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
        clock.advance(400 * DAY)
        assert [each.session for each in store.clean().sessions] == ["child"]


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
