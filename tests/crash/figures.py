"""The figures that are not counted point by point: each is a set of tests in its slow size, and what they tell."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import NamedTuple


class Figure(NamedTuple):
    name: str
    command: tuple[str, ...]


def _tests(*arguments: str) -> tuple[str, ...]:
    options = ("-q", "--slow", "-p", "no:cacheprovider", "--disable-warnings")
    return (sys.executable, "-m", "pytest", *options, *arguments)


FIGURES = (
    Figure(
        "every bit and every length of stored forms",
        _tests("tests/api/test_damage.py", "tests/unit/test_documents.py", "tests/crash/test_flips.py"),
    ),
    Figure("16 processes of 200 saves with a pruner", _tests("tests/crash/test_contention.py", "-k", "16")),
    Figure(
        "threads, forks, cancelled tasks, killed savers",
        _tests("tests/crash/test_contention.py", "-k", "threads or oracle"),
    ),
    Figure("100,000 saves", _tests("tests/crash/test_contention.py", "-k", "100000")),
    Figure("a disk filled to the brim", _tests("tests/crash/test_full_disk.py")),
    Figure("state machines", _tests("tests/stateful")),
    Figure("threats", _tests("tests/threats")),
    Figure("fuzzing, 60 s for each target", (sys.executable, "-m", "tests.fuzz", "--seconds", "60")),
)


def report() -> bool:
    """Run them one after the other, and print what they say; whether all held."""
    is_sound = True
    for figure in FIGURES:
        started = time.monotonic()
        done = subprocess.run(figure.command, capture_output=True, text=True, check=False)
        answer = "held" if done.returncode == 0 else "**not held**"
        print(f"\n{figure.name}: {answer}, {time.monotonic() - started:.0f} s")
        print(_told(done.stdout if done.returncode == 0 else done.stdout + done.stderr), flush=True)
        is_sound &= done.returncode == 0
    return is_sound


def _told(output: str) -> str:
    """What the tests tell, without the dots of their progress."""
    lines = [line.lstrip(".sx").strip() for line in output.splitlines()]
    return "\n".join(f"  {line}" for line in lines if line and not line.startswith("["))
