"""What a hook costs an agent that waits for it, and how fast unfinished work is found among many sessions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Final

import holdfast
from benchmarks.cold import environment
from benchmarks.startup import NOTHING
from benchmarks.timing import interleaved, say

RATIO: Final = 6.0
"""How many times as long as a Python that does nothing a hook may take."""

DETECT_SECONDS: Final = 0.1

# As the console script does it, without depending on where that is installed.
_COMMAND: Final = "import sys; sys.argv[0] = 'holdfast'; from holdfast.cli import main; sys.exit(main())"


@dataclass
class HookTimes:
    """Wall time of each event and its ratio to a Python that does nothing; and the time to find unfinished work."""

    seconds: dict[str, float]
    sessions: int
    detect_seconds: float

    @property
    def ratios(self) -> dict[str, float]:
        return {name: time / self.seconds[NOTHING] for name, time in self.seconds.items() if name != NOTHING}


def run(directory: Path, *, repeats: int, sessions: int) -> HookTimes:
    """Measure the events that agents wait for most, and the detection among so many sessions."""
    say("hooks")
    directory.mkdir(parents=True, exist_ok=True)
    seconds = interleaved(_works(directory), repeats=repeats)
    return HookTimes(seconds, sessions, _detect(directory, sessions))


def _works(directory: Path) -> dict[str, Callable[[], None]]:
    env = {
        **environment(),
        "HOME": str(directory),
        "HOLDFAST_STORE": f"sqlite:{directory / 'hooks.db'}",
        "HOLDFAST_HOOK_LOG": str(directory / "hooks.log"),
    }

    def starting(*arguments: str, content: bytes = b"") -> None:
        subprocess.run(
            [sys.executable, *arguments], env=env, input=content, stdout=subprocess.DEVNULL, check=True
        )

    def hook(event: str, **fields: object) -> Callable[[], None]:
        told = {"session_id": "bench", "cwd": str(directory), "hook_event_name": event, **fields}
        content = json.dumps(told).encode()
        return lambda: starting("-c", _COMMAND, "hook", event, content=content)

    works: dict[str, Callable[[], None]] = {
        NOTHING: lambda: starting("-c", "pass"),
        "hook PostToolUse": hook("PostToolUse", tool_name="Bash", tool_input={"command": "ls"}),
        "hook Stop": hook("Stop", last_assistant_message="It works."),
        "hook SessionStart": hook("SessionStart", source="startup"),
    }
    for work in works.values():
        work()  # compiles what was not compiled yet, and makes the store
    return works


def _detect(directory: Path, sessions: int) -> float:
    """The best of three: one unfinished task behind so many finished ones."""
    with holdfast.open(f"sqlite:{directory / 'phases.db'}") as store:
        phases = store.phases
        for number in range(sessions):
            made = phases.create_checkpoint("build", session_id=f"s-{number}", task_summary="A task")
            if number and made.checkpoint_id:
                store.get(f"s-{number}").complete()
        times = []
        for _ in range(3):
            began = perf_counter()
            assert phases.detect_incomplete_checkpoint() is not None
            times.append(perf_counter() - began)
    return min(times)


def as_text(found: HookTimes) -> str:
    """The figures, one a line, with what they should be."""
    lines = [
        f"  {name:<20} {ratio:5.2f} x {NOTHING} (at most {RATIO:g})" for name, ratio in found.ratios.items()
    ]
    detect = f"  detection among {found.sessions:,} sessions: {found.detect_seconds * 1000:.1f} ms"
    return "\n".join(["hooks", *lines, f"{detect} (at most {DETECT_SECONDS * 1000:g})"])
