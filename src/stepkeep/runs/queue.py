"""Queues: which sessions wait for a worker, how often they were tried, and taking them from the queue.

A session that waits says so in its metadata, as `queue` and `queued`. It leaves the queue when it is completed or
cancelled, or when too many attempts came no further. Of any number of workers that ask at once, each gets another
session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import Conflict, InvalidInput, NotFound
from stepkeep.model import SessionInfo, Status
from stepkeep.processes import is_dead, this_process
from stepkeep.runs.lease import LEASE_SECONDS, acquire, is_abandoned
from stepkeep.storage.port import Claimed, ClaimQuery, ClaimsSessions, HeaderQuery, Lease, SessionQuery

DEFAULT_QUEUE: Final = "default"
"""The queue of those who name none."""

MAX_ATTEMPTS: Final = 3
"""How many runs of a session may fail at the same place."""

MAX_DEATHS: Final = 20
"""How many processes may end while they run a session at the same place: more than that is not an accident."""

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


def ticket_of(session: SessionInfo) -> Ticket | None:
    """The place of a session in a queue; None when it is in none."""
    metadata = session.metadata
    try:
        return msgspec.convert({**metadata[_QUEUED], "queue": metadata[_QUEUE]}, Ticket)
    except (KeyError, TypeError, msgspec.ValidationError):
        return None


def with_ticket(session: SessionInfo, ticket: Ticket) -> dict[str, Any]:
    """The session's metadata when it has this place."""
    fields = msgspec.to_builtins(ticket)
    kept = {name: value for name, value in session.metadata.items() if name != _GIVEN_UP}
    return {**kept, _QUEUE: fields.pop(_QUEUE), _QUEUED: fields}


def without_ticket(session: SessionInfo, ticket: Ticket) -> dict[str, Any]:
    """The session's metadata when it left its queue unfinished; what was tried stays on record."""
    kept = {name: value for name, value in session.metadata.items() if name not in (_QUEUE, _QUEUED)}
    return {**kept, _GIVEN_UP: msgspec.to_builtins(ticket)}


def mark_of(queue: str) -> str:
    """What the stored metadata of every session in a queue contain; others may contain it too."""
    return f'"{_QUEUE}":"{queue}"'


def may_claim(session: SessionInfo, queue: str, *, now_us: int, retry_seconds: float) -> bool:
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


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for: any session of a queue but the `passed` ones, failed ones after a rest."""

    queue: str
    retry_seconds: float
    label: str = ""
    passed: Collection[str] = ()
    lease_seconds: float = LEASE_SECONDS


def claim(engine: Engine, request: ClaimRequest) -> Claimed | None:
    """The session that waits longest and that nobody runs, with its lease; None when there is none.

    One whose runner is dead on this machine is taken at once, and so is one that this process was done with but
    could not give back; another when its lease ran out.
    """
    if isinstance(engine.backend, ClaimsSessions):
        return engine.backend.claim(
            ClaimQuery(statuses=WAITING, metadata_part=mark_of(request.queue)),
            this_process(request.label),
            seconds=request.lease_seconds,
            may_take=_rule(engine, request),
        )
    return _claim_by_looking(engine, request)


def _rule(engine: Engine, request: ClaimRequest) -> Callable[[SessionInfo, Lease | None], bool]:
    now_us = engine.clock()

    def may_take(session: SessionInfo, lease: Lease | None) -> bool:
        is_wanted = session.uid not in request.passed and may_claim(
            session, request.queue, now_us=now_us, retry_seconds=request.retry_seconds
        )
        return is_wanted and (
            lease is None or is_dead(lease.owner) or is_abandoned(engine, session.uid, lease)
        )

    return may_take


def _claim_by_looking(engine: Engine, request: ClaimRequest) -> Claimed | None:
    """The same on a backend that cannot: try the lease of each, and look again once it is held."""
    backend, may_take = engine.backend, _rule(engine, request)
    waiting = [
        session for session in backend.sessions(SessionQuery(statuses=WAITING)) if may_take(session, None)
    ]
    for session in reversed(waiting):
        try:
            lease = acquire(engine, session.uid, label=request.label, seconds=request.lease_seconds)
            current = backend.session(session.uid)
        except (Conflict, NotFound):
            continue
        if may_take(current, None):
            return Claimed(session=current, lease=lease)
        backend.release_lease(session.uid, lease.token)
    return None


def is_held_back(engine: Engine, session: SessionInfo) -> bool:
    """Whether a person paused the session: a run that is interrupted saves a checkpoint that says so."""
    if session.status is not Status.PAUSED:
        return False
    newest = next(
        iter(engine.headers(HeaderQuery(session=session.uid, branch=session.branch, limit=1))), None
    )
    return newest is None or newest.status is not Status.PAUSED


def record_attempt(engine: Engine, claimed: Claimed, ticket: Ticket, *, label: str) -> None:
    """Store that a run begins, before it does: one that kills its worker counts too."""
    uid, fence = claimed.session.uid, claimed.lease.token
    metadata = with_ticket(claimed.session, ticket)
    engine.backend.update_session(uid, {"metadata": metadata}, fence=fence)
    owner = claimed.lease.owner
    data = {"attempt": ticket.attempts, "worker": label, "host": owner.host, "pid": owner.pid}
    engine.backend.record_event(uid, "attempt_started", data, time_us=engine.clock())


def give_up(engine: Engine, claimed: Claimed, ticket: Ticket) -> str:
    """Take a session out of its queue as failed; why it did. `ticket` is its last place."""
    session, fence = claimed.session, claimed.lease.token
    if session.status is Status.FAILED:
        why = f"attempt limit reached ({ticket.failures}): {session.error or 'it failed each time'}"
    else:
        why = f"attempt limit reached ({ticket.deaths}): each time the process that ran it ended"
    metadata = without_ticket(session, ticket)
    engine.backend.update_session(session.uid, {"metadata": metadata}, fence=fence)
    engine.backend.record_event(
        session.uid, "attempts_used_up", {"attempts": ticket.attempts}, time_us=engine.clock()
    )
    engine.finish(session.uid, Status.FAILED, error=why, fence=fence)
    return why
