"""Commands that flood, hang, leave others behind or are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepkeep.processes import child
from stepkeep.processes.child import ChildCommand, Finished, SupervisorPipe
from stepkeep.secrets import HIDDEN, Redactor
from tests.workflow.flows import is_alive, until


@pytest.fixture
def supervisor() -> Iterator[SupervisorPipe]:
    with SupervisorPipe() as supervisor:
        yield supervisor


def shell(
    text: str, folder: Path, supervisor: SupervisorPipe, *, stdin: bytes = b"", **options: object
) -> Finished:
    command = ChildCommand(words=("/bin/sh", "-c", text), env=dict(os.environ), folder=folder, stdin=stdin)
    return child.run(command, supervisor=supervisor, **options)  # type: ignore[arg-type]


def test_both_streams_and_the_exit_code(tmp_path: Path, supervisor: SupervisorPipe) -> None:
    """What a command prints and how it ends is returned."""
    done = shell("cat; echo err >&2; exit 3", tmp_path, supervisor, stdin=b"in\n" * 100_000)
    assert (done.exit_code, done.stdout.head, done.stderr.head) == (3, b"in\n" * 100_000, b"err\n")
    assert done.signal_name is None


def test_input_that_is_not_read_is_no_error(tmp_path: Path, supervisor: SupervisorPipe) -> None:
    """A command may end without reading what it is given."""
    assert shell("exit 0", tmp_path, supervisor, stdin=b"x" * 1_000_000).exit_code == 0


def test_a_flood_is_cut_and_counted(tmp_path: Path, supervisor: SupervisorPipe) -> None:
    """Of much output the beginning and the end are kept, and all of it is counted."""
    done = shell("yes 12345678 | head -c 9000000; echo the end", tmp_path, supervisor, max_capture=1_000_000)
    assert (len(done.stdout.head), done.stdout.size, done.stdout.is_cut) == (1_000_000, 9_000_008, True)
    assert done.stdout.tail.endswith(b"the end\n")
    assert len(done.stdout.tail) == child.TAIL_BYTES


@pytest.mark.full
def test_a_flood_takes_no_memory(tmp_path: Path) -> None:
    """100 MB of output raise the memory of the process by little more than the limit of the capture."""
    program = """
import os, resource, sys
from pathlib import Path
from stepkeep.processes import child
with child.SupervisorPipe() as supervisor:
    command = child.ChildCommand(words=("/bin/sh", "-c", "head -c 100000000 /dev/zero"), env=dict(os.environ),
                                folder=Path("."))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = child.run(command, supervisor=supervisor, max_capture=4_000_000)
    print(done.stdout.size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, check=True
    ).stdout
    size, kilobytes = map(int, out.split())
    assert size == 100_000_000
    assert kilobytes < 30_000


@pytest.mark.full
def test_a_hanging_command_is_killed_with_all_it_started(tmp_path: Path, supervisor: SupervisorPipe) -> None:
    """When the time is up the whole group ends, also what ignores SIGTERM."""
    text = "trap '' TERM; sleep 600 & echo $! >child; echo started; wait"
    done = shell(text, tmp_path, supervisor, timeout_seconds=0.5)
    assert done.is_timed_out
    assert done.signal_name == "SIGKILL"
    assert done.stdout.head == b"started\n"
    assert not is_alive(int((tmp_path / "child").read_text()))


def test_cancelling_ends_it_at_once(tmp_path: Path, supervisor: SupervisorPipe) -> None:
    """A command that is no longer wanted gets SIGTERM."""
    cancelled = threading.Event()
    threading.Timer(0.2, cancelled.set).start()
    done = shell("sleep 600", tmp_path, supervisor, cancelled=cancelled)
    assert (done.is_cancelled, done.signal_name) == (True, "SIGTERM")


def test_what_stays_in_the_background_does_not_hold_it_up(tmp_path: Path, supervisor: SupervisorPipe) -> None:
    """A process left behind with open pipes does not keep a step from ending."""
    done = shell("sleep 600 & echo $!", tmp_path, supervisor)
    assert done.exit_code == 0
    os.kill(int(done.stdout.head), signal.SIGKILL)


def test_a_killed_command_names_its_signal(tmp_path: Path, supervisor: SupervisorPipe) -> None:
    """A negative exit code is a signal with a name."""
    assert shell("kill -SEGV $$", tmp_path, supervisor).signal_name == "SIGSEGV"


def test_a_program_that_is_not_there(tmp_path: Path, supervisor: SupervisorPipe) -> None:
    """What cannot be started is explained, and leaves nothing open."""
    command = ChildCommand(words=("no-such-program",), env={}, folder=tmp_path, has_reply=True)
    with pytest.raises(OSError, match="no-such-program") as caught:
        child.run(command, supervisor=supervisor)
    assert child.start_error(command, caught.value) == "there is no program 'no-such-program'"


def test_no_command_outlives_a_killed_runner(tmp_path: Path) -> None:
    """When the process that runs commands is killed, they are killed too."""
    program = """
import os
from pathlib import Path
from stepkeep.processes import child
with child.SupervisorPipe() as supervisor:
    ended = child.ChildCommand(words=("true",), env=dict(os.environ), folder=Path("."))
    child.run(ended, supervisor=supervisor)
    text = "sleep 600 & echo $! >child; mv child pid; wait"
    command = child.ChildCommand(words=("sh", "-c", text), env=dict(os.environ), folder=Path("."))
    child.run(command, supervisor=supervisor)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    runner = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environment)
    until((tmp_path / "pid").exists)
    child = int((tmp_path / "pid").read_text())
    assert is_alive(child)
    time.sleep(0.1)
    runner.kill()
    runner.wait()
    until(lambda: not is_alive(child))


# --- secrets in what is printed


def test_secrets_are_hidden_also_at_a_cut() -> None:
    """A secret is hidden whole, in each of its lines, and where half of it was cut off."""
    redactor = Redactor(["hunter2", "first line\nsecond", "ab"])
    assert redactor.text("hunter2 first line second ab") == f"{HIDDEN} {HIDDEN} {HIDDEN} ab"
    assert redactor.data(b"x hunt", ends_inside=True) == f"x {HIDDEN}".encode()
    assert redactor.data(b"er2 x", starts_inside=True) == f"{HIDDEN} x".encode()
    assert redactor.data(b"hunt x er2") == b"hunt x er2"
    assert redactor.value({"k": ["hunter2", 1, ("hunter2",)]}) == {"k": [HIDDEN, 1, (HIDDEN,)]}
