"""How long it takes to start: a Python that does nothing, beside one that imports or runs Holdfast."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import holdfast
from benchmarks.cold import environment
from benchmarks.timing import interleaved, say

NOTHING: Final = "python -c pass"

# As the console script does it, without depending on where that is installed.
_COMMAND: Final = (
    "import sys; from holdfast.cli import main; sys.argv = ['holdfast', *sys.argv[1:]]; sys.exit(main())"
)


@dataclass
class Start:
    command: str
    seconds: float
    ratio: float


def run(directory: Path, *, repeats: int) -> list[Start]:
    """The median wall time of each command, and its ratio to the Python that does nothing."""
    say("start-up")
    url = f"sqlite:{directory / 'startup.db'}"
    with holdfast.open(url) as store:
        for number in range(20):
            store.session(f"session-{number}").save({"step": number})
    env = {**environment(), "HOLDFAST_STORE": url}

    def starting(*arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], env=env, stdout=subprocess.DEVNULL, check=True)

    works: dict[str, Callable[[], None]] = {
        NOTHING: lambda: starting("-c", "pass"),
        "import holdfast": lambda: starting("-c", "import holdfast"),
    }
    if importlib.util.find_spec("holdfast.cli") is not None:
        works["holdfast --version"] = lambda: starting("-c", _COMMAND, "--version")
        works["holdfast list"] = lambda: starting("-c", _COMMAND, "list")
    for work in works.values():
        work()  # compiles what was not compiled yet
    times = interleaved(works, repeats=repeats)
    return [Start(command, seconds, seconds / times[NOTHING]) for command, seconds in times.items()]
