"""Taking sessions from a queue: of any number of workers that ask at once, each gets another one."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import Conflict, NotFound
from stepkeep.executor.lease import LEASE_SECONDS, acquire, is_abandoned
from stepkeep.executor.owner import is_dead, this_process
from stepkeep.executor.queue import (
    WAITING,
    Ticket,
    mark_of,
    may_claim,
    with_ticket,
    without_ticket,
)
from stepkeep.model import Session, Status
from stepkeep.storage.port import Claimed, ClaimQuery, ClaimsSessions, HeaderQuery, Lease, SessionQuery


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for: any session of a queue but the `passed` ones, failed ones after a rest."""

    queue: str
    retry_seconds: float
    label: str = ""
    passed: Collection[str] = ()
    lease_seconds: float = LEASE_SECONDS


def claim(engine: Engine, wish: Wish) -> Claimed | None:
    """The session that waits longest and that nobody runs, with its lease; None when there is none.

    One whose runner is dead on this machine is taken at once, and so is one that this process was done with but
    could not give back; another when its lease ran out.
    """
    if isinstance(engine.backend, ClaimsSessions):
        return engine.backend.claim(
            ClaimQuery(statuses=WAITING, metadata_part=mark_of(wish.queue)),
            this_process(wish.label),
            seconds=wish.lease_seconds,
            may_take=_rule(engine, wish),
        )
    return _claim_by_looking(engine, wish)


def _rule(engine: Engine, wish: Wish) -> Callable[[Session, Lease | None], bool]:
    now_us = engine.clock()

    def may_take(session: Session, lease: Lease | None) -> bool:
        is_wanted = session.uid not in wish.passed and may_claim(
            session, wish.queue, now_us=now_us, retry_seconds=wish.retry_seconds
        )
        return is_wanted and (
            lease is None or is_dead(lease.owner) or is_abandoned(engine, session.uid, lease)
        )

    return may_take


def _claim_by_looking(engine: Engine, wish: Wish) -> Claimed | None:
    """The same on a backend that cannot: try the lease of each, and look again once it is held."""
    backend, may_take = engine.backend, _rule(engine, wish)
    waiting = [
        session for session in backend.sessions(SessionQuery(statuses=WAITING)) if may_take(session, None)
    ]
    for session in reversed(waiting):
        try:
            lease = acquire(engine, session.uid, label=wish.label, seconds=wish.lease_seconds)
            current = backend.session(session.uid)
        except (Conflict, NotFound):
            continue
        if may_take(current, None):
            return Claimed(session=current, lease=lease)
        backend.release_lease(session.uid, lease.token)
    return None


def is_held_back(engine: Engine, session: Session) -> bool:
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
