"""How long it takes to start: a Python that does nothing, beside one that imports or runs Stepkeep."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import stepkeep
from benchmarks.cold import environment
from benchmarks.timing import interleaved, say

NOTHING: Final = "python -c pass"
OPENING: Final = "stepkeep.open(…).close()"

# As the console script does it, without depending on where that is installed.
_COMMAND: Final = (
    "import sys; from stepkeep.cli import main; sys.argv = ['stepkeep', *sys.argv[1:]]; sys.exit(main())"
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
    with stepkeep.open(url) as store:
        for number in range(20):
            store.session(f"session-{number}").save({"step": number})
    env = {**environment(), "STEPKEEP_STORE": url}

    def starting(*arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], env=env, stdout=subprocess.DEVNULL, check=True)

    works: dict[str, Callable[[], None]] = {
        NOTHING: lambda: starting("-c", "pass"),
        "import stepkeep": lambda: starting("-c", "import stepkeep"),
        OPENING: lambda: starting("-c", f"import stepkeep; stepkeep.open({url!r}).close()"),
    }
    if importlib.util.find_spec("stepkeep.cli") is not None:
        works["stepkeep --version"] = lambda: starting("-c", _COMMAND, "--version")
        works["stepkeep list"] = lambda: starting("-c", _COMMAND, "list")
    for work in works.values():
        work()  # compiles what was not compiled yet
    times = interleaved(works, repeats=repeats)
    return [Start(command, seconds, seconds / times[NOTHING]) for command, seconds in times.items()]
