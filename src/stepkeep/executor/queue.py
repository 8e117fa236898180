"""Places in a queue: which sessions wait for a worker, and how often they were tried. Decisions only, no I/O.

A session that waits says so in its metadata, as `queue` and `queued`. It leaves the queue when it is completed or
cancelled, or when too many attempts came no further.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.model import Session, Status

DEFAULT: Final = "default"
"""The queue of those who name none."""

MAX_ATTEMPTS: Final = 3
"""How many runs of a session may fail at the same place."""

MAX_DEATHS: Final = 20
"""How many processes may end while they run a session at the same place: after so many it is no accident."""

WAITING: Final = (Status.IN_PROGRESS, Status.PAUSED, Status.FAILED)
"""Where a session can stand that is to be gone on with."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_QUEUE: Final = "queue"
_QUEUED: Final = "queued"
_GIVEN_UP: Final = "given_up"


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """A session's place in a queue. `parallel` is how many of its steps may run at a time.

    `attempts` counts its runs. `failures` and `deaths` are those that failed, or whose process ended, since it last
    came further; `steps` is how many steps were done there.
    """

    queue: str
    parallel: int = 1
    attempts: int = 0
    failures: int = 0
    deaths: int = 0
    steps: int = 0

    def is_enough(self, max_attempts: int) -> bool:
        """Whether it was tried often enough without coming further."""
        return self.failures >= max_attempts or self.deaths >= MAX_DEATHS


def check_queue(name: str) -> str:
    """`name` if it may be that of a queue."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} cannot be the name of a queue: use up to 64 of A-Z a-z 0-9 . _ -",
            code="invalid_name",
        )
    return name


def ticket_of(session: Session) -> Ticket | None:
    """The place of a session in a queue; None when it is in none."""
    metadata = session.metadata
    try:
        return msgspec.convert({**metadata[_QUEUED], "queue": metadata[_QUEUE]}, Ticket)
    except (KeyError, TypeError, msgspec.ValidationError):
        return None


def with_ticket(session: Session, ticket: Ticket) -> dict[str, Any]:
    """The session's metadata when it has this place."""
    fields = msgspec.to_builtins(ticket)
    kept = {name: value for name, value in session.metadata.items() if name != _GIVEN_UP}
    return {**kept, _QUEUE: fields.pop(_QUEUE), _QUEUED: fields}


def without_ticket(session: Session, ticket: Ticket) -> dict[str, Any]:
    """The session's metadata when it left its queue unfinished; what was tried stays on record."""
    kept = {name: value for name, value in session.metadata.items() if name not in (_QUEUE, _QUEUED)}
    return {**kept, _GIVEN_UP: msgspec.to_builtins(ticket)}


def mark_of(queue: str) -> str:
    """What the stored metadata of every session in a queue contain; others may contain it too."""
    return f'"{_QUEUE}":"{queue}"'


def may_claim(session: Session, queue: str, *, now_us: int, retry_seconds: float) -> bool:
    """Whether a worker of a queue may go on with a session that nobody runs. A failed one rests first."""
    ticket = ticket_of(session)
    if ticket is None or ticket.queue != queue or session.status not in WAITING:
        return False
    if session.status is not Status.FAILED:
        return True
    return now_us >= (session.finished_us or 0) + round(retry_seconds * 1_000_000)


def next_attempt(ticket: Ticket, status: Status, *, steps: int) -> Ticket:
    """The place of a session with that status that is run once more, now that so many steps are done.

    One that was interrupted in good order did nothing wrong, so that counts for nothing.
    """
    is_further = steps > ticket.steps
    return msgspec.structs.replace(
        ticket,
        attempts=ticket.attempts + 1,
        failures=(0 if is_further else ticket.failures) + (status is Status.FAILED),
        deaths=(0 if is_further else ticket.deaths) + (status is Status.IN_PROGRESS and ticket.attempts > 0),
        steps=steps,
    )
