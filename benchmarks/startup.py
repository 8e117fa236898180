"""What it takes to start: the CPU time of each command beside a Python that does nothing.

CPU time, because other work on the machine hardly touches it, and most of starting is importing. Both sides of a ratio
run from bytecode. The first run of each compiles what was not compiled yet, and is not counted.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import stepkeep
from benchmarks.cold import environment
from benchmarks.parts import Part, Row, Table
from benchmarks.timing import say

NOTHING: Final = "python -c pass"

REACH: Final = {
    "stepkeep.open(…).close()": 5.0,
    "stepkeep --version": 2.0,
    "stepkeep --help": 5.0,
    "stepkeep list": 7.0,
    "stepkeep save": 7.0,
    "stepkeep status": 7.0,
    "stepkeep timeline": 7.0,
    "stepkeep list, on a terminal": 10.0,
    "stepkeep status, on a terminal": 10.0,
    "stepkeep hook Stop": 5.0,
}
"""How many times the CPU time of a Python that does nothing each may take."""

# What installers write as the console script, without depending on where that is.
_COMMAND: Final = (
    "import re, sys; from stepkeep.cli import main; sys.argv[0] = re.sub('-c', 'stepkeep', sys.argv[0]);"
    " sys.exit(main())"
)


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:  # noqa: ARG001  (it has no peers)
    """The median CPU time of each command, and its ratio to the Python that does nothing."""
    say("start-up")
    url = f"sqlite:{directory / 'startup.db'}"
    with stepkeep.open(url) as store:
        for number in range(20):
            store.session(f"session-{number}").save({"step": number})
    starts = _starts(directory, url)
    for start in starts.values():
        start()
    samples: dict[str, list[float]] = {name: [] for name in starts}
    for _ in range(1 if quick else 21):
        for name, start in starts.items():
            samples[name].append(start())
    seconds = {name: median(taken) for name, taken in samples.items()}
    ratios = {name: taken / seconds[NOTHING] for name, taken in seconds.items()}
    lines = [(name, f"{seconds[name] * 1e3:.1f}", f"{ratios[name]:.2f}") for name in starts]
    return Part(
        tables=[Table("Start-up (milliseconds of CPU)", ("command", "time", "ratio"), lines)],
        rows=[Row(f"{name} ÷ {NOTHING}, CPU", ratios[name], reach) for name, reach in REACH.items()],
    )


def _starts(directory: Path, url: str) -> dict[str, Callable[[], float]]:
    env = {**environment(), "STEPKEEP_STORE": url, "HOME": str(directory)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    # Outside of every repository, whose files a hook captures after it has answered.
    event = {"session_id": "s", "cwd": "/", "hook_event_name": "Stop", "last_assistant_message": "It works."}

    def python(*arguments: str, content: bytes = b"") -> Callable[[], float]:
        return lambda: cpu_seconds(arguments, env, directory, content=content)

    def command(*arguments: str) -> Callable[[], float]:
        return python("-c", _COMMAND, *arguments)

    def on_terminal(*arguments: str) -> Callable[[], float]:
        return lambda: _seconds_on_terminal(("-c", _COMMAND, *arguments), env, directory)

    return {
        NOTHING: python("-c", "pass"),
        "import stepkeep": python("-c", "import stepkeep"),
        "stepkeep.open(…).close()": python("-c", f"import stepkeep; stepkeep.open({url!r}).close()"),
        "stepkeep --version": command("--version"),
        "stepkeep --help": command("--help"),
        "stepkeep list": command("list"),
        "stepkeep save": command("save", "session-1", "--state", '{"step": 2}'),
        "stepkeep status": command("status"),
        "stepkeep timeline": command("timeline", "session-1"),
        "stepkeep list, on a terminal": on_terminal("list"),
        "stepkeep status, on a terminal": on_terminal("status"),
        "stepkeep hook Stop": python("-c", _COMMAND, "hook", "Stop", content=json.dumps(event).encode()),
    }


def cpu_seconds(
    arguments: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    *,
    content: bytes = b"",
    stdout: int = subprocess.DEVNULL,
    talk: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> float:
    """The CPU seconds of a Python with these arguments, until it ends, or is ended after a talk with it."""
    command = [sys.executable, *arguments]
    child = subprocess.Popen(command, env=env, cwd=cwd, stdin=subprocess.PIPE, stdout=stdout)
    with child:
        assert child.stdin is not None
        if talk is None:
            child.stdin.write(content)
            child.stdin.close()
        else:
            talk(child)
            child.kill()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode and talk is None:
        raise RuntimeError(f"{' '.join(arguments)} ended with {child.returncode}")
    return used.ru_utime + used.ru_stime


def _seconds_on_terminal(arguments: Sequence[str], env: Mapping[str, str], cwd: Path) -> float:
    """The same on a terminal: what a command shows fits into its buffer, so nobody needs to read it."""
    reader, terminal = pty.openpty()
    try:
        return cpu_seconds(arguments, {**env, "TERM": "xterm", "COLUMNS": "100"}, cwd, stdout=terminal)
    finally:
        os.close(terminal)
        os.close(reader)
