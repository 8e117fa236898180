"""`stepkeep backup --every`: again and again, until it is told to end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyrage
import pytest

import stepkeep
from stepkeep import api
from stepkeep.errors import Conflict, InvalidInput
from tests.api.programs import environment


@pytest.fixture
def url(tmp_path: Path) -> str:
    with stepkeep.open(tmp_path / "a.db") as store:
        store.session("s").save({"n": 1})
    (tmp_path / "backups").mkdir()
    return f"sqlite:{tmp_path / 'a.db'}"


class End(Exception):
    pass


def attempts(
    url: str, folder: Path, count: int, waits: list[float], every: str = "1h", **options: object
) -> Iterator[api.BackupAttempt]:
    """So many rounds, without waiting: `waits` gets how long would be waited before each."""

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > count:
            raise End

    with suppress(End):
        yield from api.backups_every(
            lambda: stepkeep.open(url, create=False), folder, every=every, wait=wait, **options
        )


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_goes_on_until_it_is_told_to_end(url: str, tmp_path: Path, number: signal.Signals) -> None:
    """Without a terminal, as a service: each backup is told, old ones go, and a signal ends it with 0."""
    folder = tmp_path / "backups"
    words = ["backup", str(folder), "--every", "1s", "--keep-last", "2", "--store", url]
    with subprocess.Popen(
        [sys.executable, "-m", "stepkeep", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment(), "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        told = 0
        while told < 3:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            told += line.startswith("Backed up")
        process.send_signal(number)
        process.stdout.read()
        assert (process.wait(), process.stderr.read()) == (0, "")
    left = sorted(folder.iterdir())
    assert len(left) in (2, 3)
    for path in left:
        assert path.suffix == ".db"  # nothing unfinished
        with stepkeep.open(path) as store:
            assert store.verify().is_intact
    with stepkeep.open(url) as store:
        last = store.status().last_backup
        assert last is not None
        assert last.path in map(str, left)


ENDED = """
import os, signal, sys
from stepkeep.maintenance import backup
verified, number = backup._verified, signal.Signals[sys.argv.pop(1)]
def told(*words):
    os.kill(os.getpid(), number)
    return verified(*words)
backup._verified = told
from stepkeep.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["file", "encrypted", "restored"])
def test_who_is_told_to_end_leaves_nothing_unfinished(
    url: str, tmp_path: Path, number: signal.Signals, how: str
) -> None:
    """In the middle of a backup, or of putting one back: no part of it, in clear or not, stays anywhere."""
    work, folder = tmp_path / "work", tmp_path / "backups"
    work.mkdir()
    public = str(pyrage.x25519.Identity.generate().to_public())
    words = {
        "file": ["backup", str(folder), "--store", url],
        "encrypted": ["backup", str(folder), "--recipient", public, "--store", url],
        "restored": ["restore-backup", str(tmp_path / "a.db"), "--store", f"sqlite:{folder / 'b.db'}"],
    }[how]
    env = {**environment(), "TMPDIR": str(work)}
    done = subprocess.run(
        [sys.executable, "-c", ENDED, number.name, *words],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 128 + number, done.stderr
    assert (list(work.iterdir()), list(folder.iterdir())) == ([], [])
    with stepkeep.open(url) as store:
        assert store.status().last_backup is None


def test_the_first_comes_at_once_and_the_next_after_the_interval(url: str, tmp_path: Path) -> None:
    """A little later than that: machines that were started together do not all send at once."""
    waits: list[float] = []
    made = list(attempts(url, tmp_path / "backups", 3, waits))
    assert [each.code for each in made] == [None, None, None]
    assert waits[0] == 0
    assert all(3590 < seconds <= 3600 * 1.1 for seconds in waits[1:])
    assert len(list((tmp_path / "backups").iterdir())) == 3


def test_who_starts_it_again_does_not_get_a_backup_each_time(url: str, tmp_path: Path) -> None:
    """The last one counts, if it went to the same place."""
    with stepkeep.open(url) as store:
        store.backup(tmp_path / "backups")
    waits: list[float] = []
    list(attempts(url, tmp_path / "backups", 1, waits))
    assert 3500 < waits[0] <= 3600
    (tmp_path / "other").mkdir()
    waits.clear()
    list(attempts(url, tmp_path / "other", 1, waits))
    assert waits[0] == 0


def test_a_failure_is_told_and_tried_again_soon(url: str, tmp_path: Path) -> None:
    """The store may be away for a while, or the place full: the program goes on."""
    folder, waits = tmp_path / "backups", list[float]()
    found = []
    for number, attempt in enumerate(attempts(url, folder, 3, waits)):
        found.append(attempt.code)
        if number == 0:
            (tmp_path / "a.db").rename(tmp_path / "away.db")
        elif number == 1:
            (tmp_path / "away.db").rename(tmp_path / "a.db")
    assert found[0] is None
    assert found[1] is not None
    assert found[2] is None
    assert waits[2] <= 720


def test_what_can_never_work_ends_it(url: str, tmp_path: Path) -> None:
    """A wrong option is an error at once, not every hour."""
    with pytest.raises(InvalidInput):
        list(attempts(url, tmp_path / "backups", 1, [], every="often"))
    with pytest.raises(InvalidInput):
        list(attempts(url, tmp_path / "backups", 1, [], recipients=["nobody"]))


def test_one_writes_to_a_directory_at_a_time(url: str, tmp_path: Path) -> None:
    """The second is refused with a code: a job of cron that takes too long is not joined by the next."""
    folder = tmp_path / "backups"
    codes: list[str] = []

    def second(_: float) -> None:
        if not codes:
            with stepkeep.open(url) as other, pytest.raises(Conflict) as refused:
                other.backup(folder)
            codes.append(refused.value.code)

    with stepkeep.open(url) as store:
        store.backup(folder, progress=second)
        store.backup(folder)
    assert codes == ["backup_running"]
    assert len(list(folder.iterdir())) == 2


def test_a_clock_that_was_set_back_takes_no_backup_away(url: str, tmp_path: Path) -> None:
    """The one that was just made is the newest, and the one that stays."""
    folder = tmp_path / "backups"
    (folder / "stepkeep-29990101T000000000000.db").write_bytes(b"made by a clock that was wrong")
    with stepkeep.open(url) as store:
        made = store.backup(folder, keep_last=1)
    assert [str(path) for path in folder.iterdir()] == [made.path]


def test_the_rules_of_pruning_hold_for_a_directory(url: str, tmp_path: Path) -> None:
    """Everything of the last two hours, and one per day: what none of them names goes."""
    folder = tmp_path / "backups"
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for days, hours in ((3, 1), (3, 2), (2, 1), (2, 2), (60, 1)):
        moment = today - timedelta(days=days) + timedelta(hours=hours)
        (folder / f"stepkeep-{moment:%Y%m%dT%H%M%S%f}.db").write_bytes(b"old")
    with stepkeep.open(url) as store:
        report = store.backup(folder, keep_within="2h", keep_daily="30d")
    assert len(report.removed) == 3
    assert len(list(folder.iterdir())) == 3
