"""The command line: what is read from it, which session it means, and how results are shown.

What a command does is not in here but in `stepkeep.api`; `app` has the overview and names the module of each command.

Data goes to stdout; logs and errors go to stderr. With `--json` stdout is one JSON document, a struct of
`stepkeep.api` or a list of them, and an error is one JSON line, the last on stderr:

    {"error": {"code": "session_not_found", "message": "…", "retryable": false, "session": "…", "branch": null,
               "checkpoint": null, "path": null}}

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed: the store cannot be used, a capability is missing |
| 2 | wrong usage or input that is refused |
| 3 | no such store, session, branch or checkpoint |
| 4 | damage: stored bytes are not what was written |
| 5 | conflict: someone wrote first |
| 130 | interrupted |
| 141 | who reads the output has gone; commands that only show something |
"""

from __future__ import annotations

import gc
import sys

from stepkeep import __version__
from stepkeep.cli import standard_streams

TYPE_CHECKING = False  # known to type checkers; `typing` has one too, at the price of its import

if TYPE_CHECKING:
    from collections.abc import Sequence

COLLECT_SELDOM = (50_000, 10, 10)
"""So many new objects between two searches for cycles: most commands end before the first one."""

COLLECT_NORMALLY = gc.get_threshold()


def main(args: Sequence[str] | None = None) -> int:
    """Run one command, that of this process unless given, and return its exit code.

    Nothing heavy is imported before the command is known.
    """
    if args is not None:
        return _run(list(args))
    standard_streams.secure()
    if sys.argv[1:2] == ["hook"]:
        from stepkeep.hooks.answering import run_process

        run_process()  # agents wait for their hooks: no command line is set up for them
    gc.set_threshold(*COLLECT_SELDOM)
    try:
        return _run(sys.argv[1:])
    finally:
        gc.freeze()  # the process ends: nobody needs the cycles among its modules found and taken apart


def _run(args: list[str]) -> int:
    if args == ["--version"]:
        print_version()
        if standard_streams.output_failure() is None:
            return 0
    try:
        from stepkeep.cli.app import run

        return run(args)
    except KeyboardInterrupt:
        return 130


def print_version() -> None:
    print(f"stepkeep {__version__}")
