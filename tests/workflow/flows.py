"""A folder with a workflow file and a store, and the commands on them."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stepkeep
from tests import interpreter
from tests.surfaces.test_cli import Cli


class Flows(Cli):
    """Runs workflow files. What steps do outside is seen in the file `log`."""

    def write(self, text: str, name: str = "flow.yaml") -> Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    @property
    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def state(self, key: str, ref: str = "latest") -> dict[str, Any]:
        """A stored state, by a store that was opened anew."""
        with stepkeep.open(self.url) as store:
            state: dict[str, Any] = store.get(key).load(ref).state
        return state

    def step(self, key: str, id: str) -> dict[str, Any]:
        """What is stored of a completed step."""
        found: dict[str, Any] = next(step for step in self.state(key)["completed_steps"] if step["id"] == id)
        return found

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        """Start a command as a process, and do not wait for it."""
        return interpreter.start(
            ["-m", "stepkeep", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=self.environment,
        )

    def stop(self, process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> tuple[int, str, str]:
        """Send a signal and wait for the end: exit code, stdout, stderr."""
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        return process.returncode, out.decode(), err.decode()

    def wait_for(self, line: str) -> None:
        """Wait until a step has written a line into the log."""
        until(lambda: line in self.log)


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so; a minute is taken as never."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
