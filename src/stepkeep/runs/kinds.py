"""The kinds of runs, and what goes on with each."""

from __future__ import annotations

import shlex
from typing import Final

RUNNER: Final = "runner"
"""In the metadata of the checkpoints of a run: what saved them."""

PLAN: Final = "plan"
SCRIPT: Final = "script"
WORKFLOW: Final = "workflow"


def approve_command(key: str, store: str) -> str:
    """What to type to answer what a session asks; `store` is the option that names its store, or empty."""
    return f"stepkeep approve {shlex.quote(key)}{store}"


def resume_command(key: str, store: str) -> str:
    """What to type to resume a session."""
    return f"stepkeep resume {shlex.quote(key)}{store}"


def how_to_go_on(key: str, runner: object, store: str) -> str:
    """What resumes a run of that kind."""
    if runner == SCRIPT:
        return "run the script again"
    return resume_command(key, store) + (" --handler MODULE:FUNCTION" if runner == PLAN else "")
