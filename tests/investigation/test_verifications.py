"""Running verifications: time-outs, floods, commands that are not there."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

import stepkeep
from stepkeep.investigation.worklog import CommandHistory, VerificationRunner
from stepkeep.testing import FakeClock


@pytest.fixture
def runner() -> VerificationRunner:
    clock = FakeClock()
    return VerificationRunner(clock, CommandHistory(clock))


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return (Path("/proc") / str(pid) / "stat").read_text(encoding="utf-8").split()[2] != "Z"
    return False


def test_the_exit_code_decides(runner: VerificationRunner, tmp_path: Path) -> None:
    """0 is passed, anything else failed; output, plan and hypothesis are kept."""
    passed = runner.run("echo out; echo err >&2", plan="it speaks", hypothesis="h_1", folder=tmp_path)
    assert (passed.status, passed.output, passed.plan, passed.hypothesis) == (
        "passed",
        "out\nerr\n",
        "it speaks",
        "h_1",
    )
    failed = runner.run(["sh", "-c", "exit 3"])
    assert (failed.status, failed.exit_code, failed.plan) == ("failed", 3, "sh -c 'exit 3'")
    assert runner.all() == (passed, failed)


def test_what_was_run_is_among_the_commands(tmp_path: Path) -> None:
    """With its folder, how it ended and what it printed."""
    clock = FakeClock()
    commands = CommandHistory(clock)
    VerificationRunner(clock, commands).run("echo out; exit 3", folder=tmp_path)
    (command,) = commands.all()
    assert (command.command, command.exit_code) == ("echo out; exit 3", 3)
    assert (command.working_dir, command.stdout_preview) == (str(tmp_path), "out\n")


def test_words_are_not_given_to_a_shell(runner: VerificationRunner) -> None:
    """What looks like shell is an argument."""
    assert runner.run(["echo", "$(id); ls"]).output == "$(id); ls\n"


@pytest.mark.full
def test_a_command_that_hangs_is_ended_with_its_group(runner: VerificationRunner, tmp_path: Path) -> None:
    """Also what it started in the background, and what ignores the polite signal."""
    pids = tmp_path / "pids"
    script = f"trap '' TERM; (trap '' TERM; sleep 60) & echo $! $$ > {pids}; echo begun; sleep 60; sleep 60"
    result = runner.run(script, timeout_seconds=0.5)
    assert (result.status, result.output, result.exit_code) == ("timed_out", "begun\n", -signal.SIGKILL)
    deadline = time.monotonic() + 10
    left = [int(pid) for pid in pids.read_text(encoding="utf-8").split()]
    while any(map(is_alive, left)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_alive, left))


def test_what_a_command_leaves_behind_ends_with_it(runner: VerificationRunner, tmp_path: Path) -> None:
    """A server in the background does not outlive its verification."""
    pid = tmp_path / "pid"
    assert runner.run(f"sleep 60 & echo $! > {pid}").status == "passed"
    deadline = time.monotonic() + 10
    left = int(pid.read_text(encoding="utf-8"))
    while is_alive(left) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(left)


def test_a_flood_is_cut(runner: VerificationRunner) -> None:
    """The beginning and the end are kept, however much was printed."""
    result = runner.run("echo first; yes | head -c 5000000; echo last", max_output=1000)
    assert result.status == "passed"
    assert result.is_cut
    assert result.output.startswith("first\ny\n")
    assert result.output.endswith("y\nlast\n")
    assert "bytes left out" in result.output
    assert len(result.output) < 1200


def test_bytes_that_are_no_text_are_replaced(runner: VerificationRunner) -> None:
    """The output can be saved whatever it was."""
    result = runner.run(r"printf 'a\377\000b'")
    assert result.output == "a\ufffd\ufffdb"


def test_what_cannot_be_started_is_an_error(runner: VerificationRunner, tmp_path: Path) -> None:
    """No such program, no such folder: a result, not an exception."""
    for result in (runner.run(["/no/such/program"]), runner.run("true", folder=tmp_path / "gone")):
        assert (result.status, result.exit_code) == ("error", None)
        assert "No such file" in result.output


def test_nonsense_is_refused_before_anything_runs(runner: VerificationRunner) -> None:
    """An empty command, a time-out that is none."""
    for call in (
        lambda: runner.run(""),
        lambda: runner.run([]),
        lambda: runner.run("true\0"),
        lambda: runner.run("true", timeout_seconds=0),
        lambda: runner.run("true", timeout_seconds=float("nan")),
        lambda: runner.run("true", max_output=0),
    ):
        with pytest.raises(stepkeep.InvalidInput):
            call()
    assert runner.all() == ()


def test_a_verification_can_be_skipped(runner: VerificationRunner) -> None:
    """It is kept, with the reason, and does not count as run."""
    assert runner.skip("on the old machine", "it is gone").status == "skipped"
