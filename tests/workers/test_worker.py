"""`stepkeep run --detach` and `stepkeep worker`."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepkeep
from stepkeep import config
from stepkeep.api import Store, WorkerEvent, WorkerEventKind
from stepkeep.model import Status, utc_now_us
from stepkeep.runs.queue import entry_of
from stepkeep.storage.port import Claimed
from stepkeep.storage.postgres import PostgresBackend
from stepkeep.storage.sqlite import SqliteBackend
from tests.postgres.server import Server
from tests.workers.crew import Crew, told
from tests.workflow.flows import until

SHORT = """\
name: short
vars: {word: w}
steps:
  - {id: a, shell: 'echo a >>log; echo from-a', capture: got}
  - {id: b, shell: 'echo b ${vars.got} ${vars.word} >>log'}
"""

WAITS = """\
name: waits
steps:
  - {id: a, shell: echo a >>log}
  - {id: b, shell: 'echo b >>log; test -e go || sleep 600; echo b-end >>log'}
"""

FAILS = """\
name: fails
steps:
  - {id: a, shell: echo a >>log}
  - {id: b, shell: 'echo b >>log; exit 3'}
"""


def test_a_worker_runs_what_waits(crew: Crew) -> None:
    """With its variables, oldest first; then nothing is left, and the sessions are completed."""
    crew.write(SHORT)
    first = crew.queue("--var", "word=one")
    second = crew.queue("--var", "word=two", "--session", "second")
    assert crew.log == []
    assert {info.status for info in crew.sessions().values()} == {Status.IN_PROGRESS}
    found = crew.work()
    assert [each["session"] for each in told(found, "ended")] == [first, second]
    assert crew.log == ["a", "b from-a one", "a", "b from-a two"]
    assert {info.status for info in crew.sessions().values()} == {Status.COMPLETED}
    assert crew.events(first)[:2] == ["queued", "attempt_started"]
    assert told(crew.work(), "started") == []


def test_what_detach_prints(crew: Crew) -> None:
    """The session alone, or what was stored; and what the session is waiting for."""
    crew.write(SHORT)
    assert crew.queue("--session", "s") == "s"
    done = crew.here("run", "flow.yaml", "--detach", "--queue", "q", "--json").json
    assert (done["workflow"], done["queue"], done["steps"]) == ("short", "q", 2)
    waiting = {each["session"]: each["why"] for each in crew.here("resume", "--json").json}
    assert waiting == {
        "s": "waits for a worker of queue 'default'",
        done["session"]: "waits for a worker of queue 'q'",
    }


def test_the_file_is_not_needed(crew: Crew) -> None:
    """Its text is stored with the session."""
    path = crew.write(SHORT)
    crew.queue("--session", "s")
    path.unlink()
    assert [each["status"] for each in told(crew.work(), "ended")] == ["completed"]


def test_a_queue_name_separates(crew: Crew) -> None:
    """A worker leaves other queues, and what a person runs, alone."""
    crew.write(SHORT)
    crew.queue("--session", "theirs", "--queue", "other")
    crew.write(FAILS, "own.yaml")
    assert crew.here("run", "own.yaml", "--session", "own").code == 1
    assert told(crew.work(), "started") == []
    assert [each["session"] for each in told(crew.work("--queue", "other"), "ended")] == ["theirs"]


def test_bad_input(crew: Crew) -> None:
    """Refused before anything is stored."""
    crew.write(SHORT)
    for args in (
        ["run", "flow.yaml", "--queue", "q"],
        ["run", "flow.yaml", "--detach", "--queue", "a b"],
        ["worker", "--queue", "a b"],
        ["worker", "--parallel", "0"],
        ["worker", "--idle-exit", "-1"],
        ["run", "flow.yaml", "--detach", "--var", "nothing=1"],
        ["run", "missing.yaml", "--detach"],
    ):
        assert crew.here(*args).code == 2, args
    crew.queue("--session", "s")
    again = crew.here("run", "flow.yaml", "--detach", "--session", "s", "--json")
    assert (again.code, again.error["code"]) == (5, "unfinished_work")
    assert list(crew.sessions()) == ["s"]


def test_a_secret_comes_from_the_environment(crew: Crew) -> None:
    """It is not stored, so one that is given on the command line is refused."""
    crew.write(
        """\
        name: secret
        vars: {key: {env: THE_KEY, secret: true}}
        steps:
          - {id: a, shell: 'printf %s "${vars.key}" | wc -c >>log'}
        """
    )
    done = crew.here("run", "flow.yaml", "--detach", "--var", "key=hush-hush", "--json")
    assert (done.code, done.error["code"]) == (2, "invalid_variable")
    assert "hush" not in done.err
    queued = crew.here("run", "flow.yaml", "--detach", THE_KEY="hush-hush")
    assert queued.code == 0, queued.err
    assert b"hush" not in crew.file.read_bytes()
    refused = crew.work()
    assert "THE_KEY" in told(refused, "refused")[0]["error"]
    assert crew.here("worker", "--once", THE_KEY="hush-hush").code == 0
    assert crew.log == ["9"]


def test_what_cannot_be_run_here_stays_and_costs_no_attempt(crew: Crew, tmp_path: Path) -> None:
    """Its folder is missing: another machine may have it."""
    crew.write(SHORT)
    crew.queue("--session", "s")
    moved = crew.folder.rename(tmp_path / "moved")
    crew.folder.mkdir()
    (moved / "store.db").rename(crew.folder / "store.db")
    (moved / "flow.yaml").rename(crew.folder / "flow.yaml")
    crew.write(SHORT.replace("echo a", "echo other"))
    refused = told(crew.work(), "refused")
    assert "changed" in refused[0]["error"]
    assert "`stepkeep resume s --force` goes on" in refused[0]["error"]  # a worker has no such option
    info = crew.sessions()["s"]
    entry = entry_of(info)
    assert entry is not None
    assert (entry.attempts, info.status) == (0, Status.IN_PROGRESS)
    crew.write(SHORT)
    assert told(crew.work(), "ended")[0]["status"] == "completed"


def test_a_session_that_was_paused_by_hand_waits(crew: Crew) -> None:
    """Workers hold back until a person goes on with it; cancelling takes it out."""
    crew.write(SHORT)
    for key in ("paused", "cancelled"):
        crew.queue("--session", key)
    assert crew.here("pause", "paused").code == 0
    assert crew.here("cancel", "cancelled").code == 0
    assert told(crew.work(), "started") == []
    assert crew.here("resume", "paused").code == 0
    assert crew.sessions()["paused"].status is Status.COMPLETED


class Clock:
    def __init__(self) -> None:
        self.ahead_us = 0

    def __call__(self) -> int:
        return utc_now_us() + self.ahead_us


def test_a_session_that_fails_is_not_tried_for_ever(crew: Crew) -> None:
    """Three runs that fail at the same step, with a rest between; then it leaves the queue, and the record says so."""
    crew.write(FAILS)
    crew.queue("--session", "s")
    clock = Clock()
    settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False, "metrics.enabled": False})
    found: list[WorkerEvent] = []
    with Store(SqliteBackend(crew.file, clock=clock), settings=settings, clock=clock) as store:
        for _ in range(5):
            store.workflows.work(once=True, tell=found.append)
            store.workflows.work(once=True, tell=found.append)
            clock.ahead_us += 30_000_000
        info = store.get("s").info
    started = [(each.attempt, each.done) for each in found if each.event is WorkerEventKind.STARTED]
    assert started == [(1, 0), (2, 1), (3, 1)]
    (gave_up,) = (each for each in found if each.event is WorkerEventKind.GAVE_UP)
    assert gave_up.error == "attempt limit reached (3): ended with exit code 3"
    assert (info.status, info.error) == (Status.FAILED, gave_up.error)
    assert entry_of(info) is None
    assert info.metadata["given_up"]["attempts"] == 3
    assert crew.events("s").count("attempt_started") == 3
    assert crew.events("s").count("attempts_used_up") == 1
    assert crew.log == ["a", "b", "b", "b"]


def test_an_idle_worker_ends_when_told_so(crew: Crew) -> None:
    """After so long without work; what comes meanwhile is done."""
    crew.write(SHORT)
    crew.queue("--session", "s")
    done = crew.here("worker", "--idle-exit", "0.3")
    assert done.code == 0
    assert done.out.splitlines() == [
        "s: started, short, 2 steps",
        "s: a completed",
        "s: b completed",
        "s: completed",
    ]
    assert "ended: 1 completed" in done.err


class Asked(SqliteBackend):
    """A store that calls back once when a worker asked it in vain."""

    in_vain: Callable[[], object] | None = None

    def claim(self, *args: Any, **options: Any) -> Claimed | None:
        claimed = super().claim(*args, **options)
        if claimed is None and self.in_vain is not None:
            call, self.in_vain = self.in_vain, None
            call()
        return claimed


@pytest.mark.full
def test_idle_time_begins_when_the_last_run_ended(crew: Crew) -> None:
    """A run that took longer than the idle time does not count: what comes after it is still done."""
    crew.write(SHORT.replace("echo a >>log", "sleep 1.2"))
    crew.queue("--session", "long")
    backend = Asked(crew.file)
    backend.in_vain = lambda: crew.queue("--session", "late")
    with Store(backend) as store:
        worked = store.workflows.work(idle_exit_seconds=1)
    assert worked.completed == 2


class Repair(logging.Handler):
    """Starts a server again when a worker missed it for so long, and queues a session before it asks again."""

    def __init__(self, server: Server, crew: Crew, after_seconds: float) -> None:
        super().__init__(logging.WARNING)
        self._server = server
        self._crew = crew
        self._after_seconds = after_seconds
        self._missed_since: float | None = None
        self.is_done = False

    def emit(self, record: logging.LogRecord) -> None:
        if self.is_done or "cannot be asked for work" not in record.getMessage():
            return
        self._missed_since = self._missed_since or time.monotonic()
        if time.monotonic() - self._missed_since > self._after_seconds:
            self._server.start()
            self._crew.queue("--session", "late")
            self.is_done = True


@pytest.mark.full
def test_time_without_a_store_is_no_idle_time(crew: Crew) -> None:
    """A worker that could not ask does not end because there was nothing to do: it waits, and does what comes."""
    crew.write(SHORT)
    server = Server()
    crew.url = server.fresh_url()
    repair = Repair(server, crew, after_seconds=1.2)

    def kill_when_ready(event: WorkerEvent) -> None:
        if event.event is WorkerEventKind.READY:
            server.kill()

    log = logging.getLogger("stepkeep")
    log.addHandler(repair)
    try:
        with Store(PostgresBackend(crew.url)) as store:
            worked = store.workflows.work(idle_exit_seconds=1, tell=kill_when_ready)
    finally:
        log.removeHandler(repair)
        server.stop()
    assert repair.is_done
    assert worked.completed == 1


@pytest.mark.full
def test_sigterm_pauses_and_another_goes_on(crew: Crew) -> None:
    """The worker ends well and at once; completed steps are not run again."""
    crew.write(WAITS)
    crew.queue("--session", "s")
    with crew.worker() as process:
        crew.wait_for("b")
        found = crew.stopped(process)
    assert [each["status"] for each in told(found, "ended")] == ["paused"]
    assert told(found, "stopped")[0]["signal"] == signal.SIGTERM
    assert crew.sessions()["s"].status is Status.PAUSED
    (crew.folder / "go").touch()
    assert told(crew.work(), "started")[0]["done"] == 1
    assert crew.log == ["a", "b", "b", "b-end"]
    assert crew.sessions()["s"].status is Status.COMPLETED


@pytest.mark.full
def test_another_goes_on_at_once_when_a_worker_is_killed(crew: Crew) -> None:
    """On the same machine the lease of a dead worker counts no more."""
    crew.write(WAITS)
    crew.queue("--session", "s")
    with crew.worker() as first:
        crew.wait_for("b")
        (crew.folder / "go").touch()
        with crew.worker("--idle-exit", "1") as second:
            crew.stopped(first, signal.SIGKILL)
            out, _ = second.communicate(timeout=60)
    assert b'"done":1' in out
    assert crew.log == ["a", "b", "b", "b-end"]
    assert crew.sessions()["s"].status is Status.COMPLETED


@pytest.mark.full
def test_several_sessions_at_a_time(crew: Crew) -> None:
    """With --parallel a worker runs as many as it may, and pauses all of them."""
    crew.write(WAITS.replace("echo b >>log", 'echo "b $STEPKEEP_RUN" >>log'))
    keys = [crew.queue("--session", f"s{number}") for number in range(3)]
    with crew.worker("--parallel", "2") as process:
        until(lambda: sum(line.startswith("b ") for line in crew.log) == 2)
        found = crew.stopped(process)
    assert sorted(each["session"] for each in told(found, "ended")) == keys[:2]
    assert not any(line == f"b {keys[2]}" for line in crew.log)
    (crew.folder / "go").touch()
    assert len(told(crew.work("--parallel", "3"), "ended")) == 3


@pytest.mark.full
def test_a_lease_that_was_taken_over_stops_the_run(crew: Crew) -> None:
    """A worker that hung too long notices it at its next heartbeat, and stores nothing more."""
    crew.write(WAITS)
    key = crew.queue("--session", "s")
    with crew.worker() as process:
        crew.wait_for("b")
        with stepkeep.open(crew.url) as store:
            backend, uid = store.engine.backend, store.get(key).uid
            lease = backend.lease(uid)
            assert lease is not None
            backend.acquire_lease(uid, lease.owner, seconds=60, replacing=lease.token)
            before = store.get(key).info.last_seq
        assert process.stdout is not None
        assert any(b'"event":"lost"' in line for line in process.stdout)
    with stepkeep.open(crew.url) as store:
        assert store.get(key).info.last_seq == before
