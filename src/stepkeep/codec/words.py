"""The status of a step in the words of the snapshot lifecycle and in ours, both ways; pure."""

from __future__ import annotations

from typing import Final

from stepkeep.errors import InvalidInput

STEP_WORDS: Final = {
    "pending": "pending",
    "running": "in_progress",
    "completed": "done",
    "failed": "failed",
    "skipped": "skipped",
}
"""Our word for the status of a step, and the snapshot's."""

_OURS: Final = {theirs: ours for ours, theirs in STEP_WORDS.items()}


def step_word(status: str) -> str:
    """The snapshot's word for the status of a step; a word that is not ours stays as it is."""
    return STEP_WORDS.get(status, status)


def step_status(word: str) -> str:
    """Our word for the status of a step, given in either language.

    Raises:
        InvalidInput: it is none.
    """
    status = word if word in STEP_WORDS else _OURS.get(word)
    if status is None:
        raise InvalidInput(
            f"no status of a step {word!r}: choose one of {', '.join(STEP_WORDS)}", code="invalid_status"
        )
    return status
