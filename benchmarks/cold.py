"""The first load in a fresh process: `python -m benchmarks.cold SUBJECT DIRECTORY` prints its seconds.

Imports are not counted, opening is. The files are in the memory of the operating system, for every subject.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks import peers
from benchmarks.timing import seconds_of

ROOT: Final = Path(__file__).resolve().parents[1]


def load_seconds(name: str, directory: Path) -> float:
    """Start a process that opens a subject and loads its newest state; the seconds that took inside it."""
    command = [sys.executable, "-m", "benchmarks.cold", name, str(directory)]
    run = subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    return float(run.stdout)


def environment() -> dict[str, str]:
    """The environment for a Python that finds what this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _main(name: str, directory: Path) -> None:
    _import_all(name)
    print(seconds_of(lambda: peers.reopen(name, directory).reads(1)[peers.LATEST]()))


def _import_all(name: str) -> None:
    """Use another, empty store once: some modules are imported only then, and imports are measured elsewhere."""
    with tempfile.TemporaryDirectory() as directory:
        other = peers.reopen(name, Path(directory))
        other.saver(1, {"step": 1})()
        other.reads(1)[peers.LATEST]()
        other.close()


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
