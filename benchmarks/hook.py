"""What a hook costs an agent that waits for it, and how fast phases are saved and unfinished ones found among many.

Both sides of a ratio run from bytecode, as installed packages do, whatever the environment says about writing it. The
agent works in a repository: what captures its files, after the hook has answered, is waited for between the samples.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import stepkeep
from benchmarks.cold import environment
from benchmarks.startup import NOTHING
from benchmarks.timing import say, seconds_of

RATIO: Final = 6.0
"""How many times as long as a Python that does nothing a hook may take."""

DETECT_SECONDS: Final = 0.1
CREATE_SECONDS: Final = 0.05

# As the console script does it, without depending on where that is installed.
_COMMAND: Final = "import sys; sys.argv[0] = 'stepkeep'; from stepkeep.cli import main; sys.exit(main())"
_STORES: Final = {"sqlite": "sqlite:{}/phases.db", "phase files": "files:{}/phases?layout=phase"}
_ANSWERS: Final = 20


@dataclass
class Limited:
    """A time beside the one it may take."""

    what: str
    seconds: float
    limit_seconds: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.limit_seconds


@dataclass
class HookTimes:
    """Wall time of each event and its ratio to a Python that does nothing; and the times of phases."""

    seconds: dict[str, float]
    limited: list[Limited]

    @property
    def ratios(self) -> dict[str, float]:
        return {name: time / self.seconds[NOTHING] for name, time in self.seconds.items() if name != NOTHING}


def run(directory: Path, *, repeats: int, sessions: int) -> HookTimes:
    """Measure the events that agents wait for most, and phases among so many sessions."""
    say("hooks")
    directory.mkdir(parents=True, exist_ok=True)
    limited = [
        found
        for name, url in _STORES.items()
        for found in _phases(f"{name}, {sessions:,} sessions", url.format(directory), sessions)
    ]
    return HookTimes(_seconds(_works(directory, sessions), repeats), limited)


# --- hooks as the processes that agents start ------------------------------------------------------------------


class _Process:
    """A process to start, and to be timed until it ends; what it leaves behind is waited for apart."""

    def __init__(self, arguments: Sequence[str], env: dict[str, str], content: bytes, cwd: Path) -> None:
        self._arguments = arguments
        self._env = env
        self._content = content
        self._cwd = cwd

    def seconds(self) -> float:
        # Whoever is left has the writing end as well, and lets go of it when it ends.
        reading, writing = os.pipe()
        try:
            return seconds_of(lambda: self._run(writing))
        finally:
            os.close(writing)
            os.read(reading, 1)
            os.close(reading)

    def _run(self, descriptor: int) -> None:
        subprocess.run(
            [sys.executable, *self._arguments],
            env=self._env,
            cwd=self._cwd,
            input=self._content,
            stdout=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            check=True,
        )


def _seconds(works: dict[str, _Process], repeats: int) -> dict[str, float]:
    """The median seconds of each. They take turns, so that a slow moment of the machine hits all of them."""
    samples: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            samples[name].append(work.seconds())
    return {name: median(taken) for name, taken in samples.items()}


def _project(directory: Path) -> Path:
    """A repository with a few files."""
    project = directory / "project"
    for number in range(50):
        file = project / f"package_{number % 5}" / f"module_{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"value = {number}\n" * 100, encoding="utf-8")
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    return project


def _works(directory: Path, sessions: int) -> dict[str, _Process]:
    project = _project(directory)
    env = {
        **{name: value for name, value in environment().items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPYCACHEPREFIX": str(directory / "bytecode"),
        "HOME": str(directory),
        "STEPKEEP_STORE": f"sqlite:{directory / 'hooks.db'}",
        "STEPKEEP_HOOK_LOG": str(directory / "hooks.log"),
    }

    def hook(event: str, *options: str, **fields: object) -> _Process:
        told = {"session_id": "bench", "cwd": str(project), "hook_event_name": event, **fields}
        return _Process(["-c", _COMMAND, "hook", event, *options], env, json.dumps(told).encode(), project)

    many = _STORES["sqlite"].format(directory)
    works = {
        NOTHING: _Process(["-c", "pass"], env, b"", project),
        "hook UserPromptSubmit": hook("UserPromptSubmit", prompt="Repair the login form"),
        "hook PreToolUse, harmless": hook("PreToolUse", tool_name="Bash", tool_input={"command": "ls"}),
        "hook PostToolUse": hook("PostToolUse", tool_name="Bash", tool_input={"command": "ls"}),
        "hook Stop": hook("Stop", last_assistant_message="It works."),
        "hook PreCompact": hook("PreCompact", trigger="auto"),
        "hook SessionStart": hook("SessionStart", source="startup"),
        f"hook SessionStart, 1 unfinished of {sessions:,}": hook(
            "SessionStart", "--store", many, source="startup"
        ),
    }
    for work in works.values():
        work.seconds()  # compiles what was not compiled yet, and makes the store
    return works


# --- phases in a process that is there -------------------------------------------------------------------------


def _phases(where: str, url: str, sessions: int) -> list[Limited]:
    """One unfinished task behind so many finished ones: the medians of creating a checkpoint and of finding it."""
    with stepkeep.open(url) as store:
        phases = store.phases

        def create(key: str, phase: str = "build") -> None:
            made = phases.create_checkpoint(
                phase, {"notes": "n" * 200}, session_id=key, task_summary="A task"
            )
            assert made.ok, made.error

        create("s-0")
        for number in range(1, sessions):
            create(f"s-{number}")
            store.get(f"s-{number}").complete()
        created = median(seconds_of(lambda: create("s-0", "verify")) for _ in range(_ANSWERS))
        found = median(seconds_of(phases.detect_incomplete_checkpoint) for _ in range(_ANSWERS))
        assert phases.detect_incomplete_checkpoint() is not None
    return [
        Limited(f"detect_incomplete_checkpoint ({where})", found, DETECT_SECONDS),
        Limited(f"create_checkpoint ({where})", created, CREATE_SECONDS),
    ]


def as_text(found: HookTimes) -> str:
    """The figures, one a line, with what they should be."""
    lines = [
        f"  {name:<62} {ratio:5.2f} x {NOTHING} (at most {RATIO:g})" for name, ratio in found.ratios.items()
    ]
    lines += [
        f"  {each.what:<62} {each.ratio:5.2f} x {each.limit_seconds * 1000:g} ms (at most 1;"
        f" {each.seconds * 1000:.1f} ms)"
        for each in found.limited
    ]
    return "\n".join(["hooks", *lines])
