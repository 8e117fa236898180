"""The first checkpoint at whose files a command fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepkeep
from tests.surfaces.test_cli import Cli
from tests.workspace.trees import tree_of, write

FAILS_FROM_6 = 'test "$(cat number)" -lt 6'


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Ten captures of a project, in which a number grows; other checkpoints have no files."""
    work = tmp_path / "work"
    work.mkdir()
    cli = Cli(tmp_path)
    for number in range(10):
        write(work, {"number": f"{number}\n", "src/deep/name.txt": "same\n", "run.sh": "exit 3\n"})
        (work / "run.sh").chmod(0o755)
        save = ("save", "k", "--state", str(number), "--profile", "archive", "--message", f"made {number}")
        assert cli.here(*save, "--workspace", str(work)).code == 0
        assert cli.here(*save).code == 0
    return cli


@pytest.fixture
def work(cli: Cli) -> Path:
    return cli.folder / "work"


def steps(found: Any) -> list[tuple[int, str]]:
    return [(step["checkpoint"]["seq"], step["outcome"]) for step in found["steps"]]


def test_the_first_that_fails_is_found_by_halves(cli: Cli, work: Path) -> None:
    """Few tries find it; the project and the store stay exactly as they were."""
    write(work, {"number": "unsaved\n", "mine": "not captured"})
    before, stored = tree_of(work), cli("list", "k", "--json").json
    done = cli("bisect", "k", "--", FAILS_FROM_6)
    assert done.code == 0, done.err
    assert "First to fail: checkpoint 13 " in done.out
    assert "Last to pass:  checkpoint 11 " in done.out
    assert "M number (2B -> 2B)" in done.out
    found = cli("bisect", "k", "--json", "--", FAILS_FROM_6).json
    assert (found["first_failed"]["seq"], found["last_passed"]["seq"]) == (13, 11)
    assert [change["path"] for change in found["changes"]] == ["number"]
    assert len(found["steps"]) <= 6
    assert found["total"] == 10
    assert tree_of(work) == before
    assert cli("list", "k", "--json").json == stored


def test_the_command_gets_the_whole_tree_and_cannot_reach_the_next_try(cli: Cli) -> None:
    """Permissions and folders are there, and what one try writes is gone at the next."""
    command = "test ! -e left && touch left number && test -f src/deep/name.txt && ! ./run.sh"
    done = cli("bisect", "k", "--json", "--", "sh", "-c", command)
    assert done.code == 1
    assert done.json["first_failed"] is None
    assert steps(done.json) == [(19, "passed")]


def test_what_the_command_knows(cli: Cli, work: Path) -> None:
    """Session, checkpoint and the project's own folder are in its environment, and its output is shown."""
    command = 'echo "$STEPKEEP_SESSION $STEPKEEP_CHECKPOINT $STEPKEEP_WORKSPACE"; false'
    found = cli("bisect", "k", "--json", "--", command).json
    first = found["first_failed"]
    assert first["seq"] == 1
    assert found["last_passed"] is None
    assert found["output"].split() == ["k", first["id"], str(work)]
    shown = cli("bisect", "k", "--", command).out
    assert "It fails from the first files on." in shown
    assert f"  k {first['id']} {work}" in shown


def test_between_two_checkpoints(cli: Cli) -> None:
    found = cli("bisect", "k", "--good", "#5", "--bad", "#15", "--json", "--", FAILS_FROM_6).json
    assert found["first_failed"]["seq"] == 13
    assert found["total"] == 6
    assert steps(found)[:2] == [(15, "failed"), (5, "passed")]


def test_what_is_skipped_is_told(cli: Cli) -> None:
    """125 leaves the question open, and the answer says between which two it is."""
    command = 'n=$(cat number); case $n in 5|6) exit 125;; esac; test "$n" -lt 6'
    done = cli("bisect", "k", "--json", "--", command)
    assert (done.json["first_failed"]["seq"], done.json["last_passed"]["seq"]) == (15, 9)
    assert [each["seq"] for each in done.json["unsure"]] == [11, 13]
    assert "Skipped, and may have been the first: 11, 13" in cli("bisect", "k", "--", command).out


def test_a_command_that_hangs_fails(cli: Cli) -> None:
    """The time is up for it and what it started."""
    command = f'test "$(cat number)" -lt 9 || {sys.executable} -c "import time; time.sleep(600)"'
    found = cli("bisect", "k", "--timeout", "3", "--json", "--", command).json
    assert found["first_failed"]["seq"] == 19
    assert (19, "timed_out") in steps(found)


@pytest.mark.parametrize("words", [("no-such-command",), ("sh", "-c", "no-such-command"), ("./number",)])
def test_a_command_that_cannot_be_run_is_no_checkpoints_fault(cli: Cli, words: tuple[str, ...]) -> None:
    done = cli("bisect", "k", "--json", "--", *words)
    assert done.code == 2
    assert done.error["code"] == "command_not_found"


def test_without_a_command_nothing_is_run(cli: Cli) -> None:
    assert cli("bisect", "k").code == 2
    assert cli("bisect", "k", "--").code == 2
    assert cli("bisect", "k", "--good", "#17", "--bad", "#3", "--", "true").code == 3


def test_a_damaged_file_is_skipped(cli: Cli) -> None:
    """A capture that cannot be read whole is not tried; the others still answer."""
    found = cli("bisect", "k", "--json", "--", FAILS_FROM_6).json
    connection = apsw.Connection(str(cli.file))
    digests = cli_digests(cli, "#13")
    connection.execute("UPDATE blobs SET data = x'00' WHERE digest = ?", (digests["number"],))
    connection.close()
    again = cli("bisect", "k", "--json", "--", FAILS_FROM_6).json
    assert found["first_failed"]["seq"] == 13
    assert again["first_failed"]["seq"] == 15
    assert [each["seq"] for each in again["unsure"]] == [13]


def cli_digests(cli: Cli, ref: str) -> dict[str, str]:
    with stepkeep.open(cli.file) as store:
        return {entry.path: entry.digest for entry in store.get("k").files.at(ref)}


def test_a_link_is_no_way_out_of_the_scratch_folder(tmp_path: Path) -> None:
    """A link that was captured is a link in the copy, and nothing is written through it."""
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.mkdir()
    (work / "way").symlink_to(outside)
    with stepkeep.open(tmp_path / "s.db") as store:
        run = store.session("k")
        run.save(1, workspace=work)
        found = run.files.bisect(["sh", "-c", "test -L way"], environment=os.environ)
    assert found.first_failed is None
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_who_is_told_to_end_leaves_nothing(cli: Cli, sent: signal.Signals) -> None:
    """The command that is being tried ends too, and its scratch folder goes."""
    scratch, told = cli.folder / "scratch", cli.folder / "told"
    scratch.mkdir()
    code = (
        f"import os, pathlib, time; pathlib.Path({str(told)!r}).write_text(str(os.getpid())); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "stepkeep", "bisect", "k", "--", sys.executable, "-c", code],
        env={**cli.environment, "TMPDIR": str(scratch)},
        cwd=cli.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not told.exists() or not told.read_text():
        time.sleep(0.01)
    process.send_signal(sent)
    assert process.wait() == 128 + sent
    assert list(scratch.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


@given(st.lists(st.sampled_from("psf"), min_size=1, max_size=24))
def test_what_is_found_is_where_it_changes(kinds: list[str]) -> None:
    """Whatever passes, fails and is skipped: what was found failed, what came last before it passed, and between the
    two nothing was left untried."""
    from stepkeep.workspace import bisection

    class Told(bisection._Trial):
        def __init__(self) -> None:
            self.tried: list[int] = []

        def at(self, header: Any) -> Any:
            self.tried.append(header)
            outcome: Any = {"p": "passed", "s": "skipped", "f": "failed"}[kinds[header]]
            return bisection.BisectStep(checkpoint=header, outcome=outcome)

    trial = Told()
    search = bisection._Search(trial, list(range(len(kinds))))  # type: ignore[arg-type]
    passed, failed = search.bounds()
    assert len(trial.tried) == len(set(trial.tried))
    if failed is None:
        assert all(kind == "s" for kind in kinds[(len(kinds) if passed is None else passed + 1) :])
        return
    assert kinds[failed] == "f"
    assert set(kinds[(0 if passed is None else passed + 1) : failed]) <= {"s"}
    assert passed is None or kinds[passed] == "p"
