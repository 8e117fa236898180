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
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Nothing heavy is imported before the command is known."""
    if args is None and sys.argv[1:2] == ["hook"]:
        from stepkeep.hooks.answering import run_process

        run_process()  # agents wait for their hooks: no command line is set up for them
    try:
        from stepkeep.cli.app import run

        return run(list(sys.argv[1:] if args is None else args))
    except KeyboardInterrupt:
        return 130
