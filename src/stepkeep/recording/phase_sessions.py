"""What is known of sessions with phases: which checkpoint tells the phase, whether it may be offered, and how.

Hooks of agents import this, who wait for it: it imports no more than they do.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stepkeep.engine import Engine, Loaded
from stepkeep.engine.reader import line_of, verified
from stepkeep.errors import Corrupt, NotFound
from stepkeep.model import Header, SessionInfo
from stepkeep.policy.cleanup import decide
from stepkeep.storage.port import HeaderQuery
from stepkeep.text import age, clean

if TYPE_CHECKING:
    from stepkeep.maintenance.clean import Policies

PROFILE: Final = "phase"
"""The profile by which sessions with phases are known."""


def is_phase(header: Header) -> bool:
    """Whether a checkpoint says which phase it is of: one that was saved by hand in between need not."""
    return "phase_number" in header.metadata


def newest_phase(engine: Engine, session: SessionInfo) -> Loaded | None:
    """The newest intact checkpoint of the current branch that says which phase it is of.

    Raises:
        Corrupt: there are checkpoints, and none of them verifies.
    """
    loaded = engine.latest(session)
    if loaded is None or is_phase(loaded.header):
        return loaded
    before = HeaderQuery(max_seq=loaded.header.seq - 1)
    for row in line_of(engine.backend, session, session.branch, matching=before):
        with suppress(Corrupt, NotFound):
            header = verified(row)
            if is_phase(header):
                return engine.load(header)
    return None


def is_to_go(engine: Engine, session: SessionInfo, policies: Policies) -> bool:
    """Whether cleaning would remove a session now."""
    return decide(session, policies(session), engine.clock()).goes


def offer_line(number: int, task: str, age_seconds: float | None = None) -> str:
    """The question that a person is asked about unfinished work."""
    ago = "" if age_seconds is None else f", {age(age_seconds)} ago"
    return f"Checkpoint: Resume from Phase {number}? ({clean(task)}{ago})"
