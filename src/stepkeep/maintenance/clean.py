"""Cleaning up whole sessions: plan which may go, show it, apply it.

Which may go is decided by `policy.cleanup`. Applying looks at each session again right before it goes, and the
backend once more in the transaction that removes it, so an active or leased session is never touched (V7).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeAlias

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import Conflict, InvalidInput, NotFound, StepkeepError
from stepkeep.maintenance.space import in_turn, sweep
from stepkeep.model import Session
from stepkeep.policy.cleanup import CleanupDecision, CleanupPolicies, cleaning_order, decide
from stepkeep.storage.port import LooksOver, SessionQuery

log = logging.getLogger("stepkeep")

ORPHANS_KEPT: Final = timedelta(days=7)
"""How long an annotation waits for its checkpoint."""

Progress: TypeAlias = Callable[[int], None]
"""Called after each session, outside any transaction."""


class CleanEntry(msgspec.Struct, frozen=True):
    """A session and what is to become of it."""

    session: Session
    decision: CleanupDecision


class CleanError(msgspec.Struct, frozen=True):
    """A session that could not be judged or removed, and why. `session` is None for the sweep at the end."""

    session: str | None
    message: str


class CleanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What cleaning would do to each session, in the order in which they would go.

    `errors` are sessions that nothing can be decided about: they stay.
    """

    policies: CleanupPolicies
    entries: tuple[CleanEntry, ...] = ()
    errors: tuple[CleanError, ...] = ()

    @property
    def going(self) -> tuple[CleanEntry, ...]:
        return tuple(entry for entry in self.entries if entry.decision.clean)

    @property
    def retained(self) -> tuple[CleanEntry, ...]:
        return tuple(entry for entry in self.entries if not entry.decision.clean)


class CleanReport(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions were removed, stayed, and were removed by others meanwhile; which failed, and why.

    Each session counts once: those in `errors` stayed, and are not among the `retained`.
    """

    cleaned: int = 0
    retained: int = 0
    missing: int = 0
    errors: tuple[CleanError, ...] = ()
    stored_bytes: int = 0


def plan_clean(engine: Engine, policies: CleanupPolicies, *, now_us: int) -> CleanPlan:
    """Decide for each session whether it may go. Reads only."""
    entries: list[CleanEntry] = []
    errors: list[CleanError] = []
    leases = _Leases(engine)
    for session in engine.backend.sessions(SessionQuery()):
        try:
            entries.append(CleanEntry(session, _decide(leases, session, policies, now_us)))
        except NotFound:
            continue
        except StepkeepError as exc:
            errors.append(_failure(session, exc))
    entries.sort(key=lambda entry: cleaning_order(entry.session))
    return CleanPlan(policies=policies, entries=tuple(entries), errors=tuple(errors))


def apply_clean(
    engine: Engine,
    plan: CleanPlan,
    *,
    now_us: int,
    limit: int | None = None,
    progress: Progress | None = None,
) -> CleanReport:
    """Remove the sessions that the plan lets go and that may still go, at most `limit` of them.

    Each goes in one transaction, only if nobody changed or leased it since it was looked at. A failure of one is
    reported and does not stop the rest. At the end what nothing needs any more is swept: blobs, and annotations
    of checkpoints that never came.
    """
    if limit is not None and limit < 0:
        raise InvalidInput(f"limit must be at least 0, not {limit}", code="invalid_setting")
    going = plan.going[:limit]
    errors = list(plan.errors)
    cleaned = missing = stored_bytes = 0
    for entry in going:
        try:
            freed = _clean(engine, entry.session, plan.policies, now_us)
        except NotFound:
            missing += 1  # another cleaner was faster
        except StepkeepError as exc:
            errors.append(_failure(entry.session, exc))
        else:
            cleaned += freed is not None
            stored_bytes += freed or 0
        if progress is not None:
            progress(1)
    failed = len(errors) - len(plan.errors)
    try:
        stored_bytes += sweep(
            engine, annotations_before_us=now_us - ORPHANS_KEPT // timedelta(microseconds=1)
        )
    except StepkeepError as exc:
        log.warning("Failed to sweep what cleaned sessions left: %s", exc)
        errors.append(CleanError(None, str(exc)))
    return CleanReport(
        cleaned=cleaned,
        retained=len(plan.entries) - cleaned - missing - failed,
        missing=missing,
        errors=tuple(errors),
        stored_bytes=stored_bytes,
    )


def _clean(engine: Engine, planned: Session, policies: CleanupPolicies, now_us: int) -> int | None:
    """Remove a session if it may still go; the stored bytes of its bodies, None when it stays."""
    session = engine.backend.session(planned.uid)
    decision = _decide(_Leases(engine), session, policies, now_us)
    if not decision.clean:
        return None
    stored_bytes = engine.backend.usage(session.uid).body_bytes
    log.info(
        "Cleaning up session %s (age: %d days, policy: %d days)",
        session.key,
        decision.age_days,
        decision.limit_days,
    )
    try:
        in_turn(engine, lambda: engine.backend.delete_session(session.uid, expect=session))
    except Conflict as exc:
        log.info("Session %s stays: %s", session.key, exc)
        return None
    engine.forget(session.uid)
    return stored_bytes


class _Leases:
    """Which sessions someone runs: all of them asked for at once, where the backend can, when the first is needed."""

    def __init__(self, engine: Engine) -> None:
        self._backend = engine.backend
        self._leased: frozenset[str] | None = None

    def has(self, uid: str, now_us: int) -> bool:
        if isinstance(self._backend, LooksOver):
            self._leased = self._backend.leased() if self._leased is None else self._leased
            return uid in self._leased
        lease = self._backend.lease(uid)
        return lease is not None and lease.expires_us > now_us


def _decide(leases: _Leases, session: Session, policies: CleanupPolicies, now_us: int) -> CleanupDecision:
    """The lease is looked up only where it matters."""
    decision = decide(session, policies, now_us)
    if not decision.clean or not leases.has(session.uid, now_us):
        return decision
    return decide(session, policies, now_us, has_lease=True)


def _failure(session: Session, exc: StepkeepError) -> CleanError:
    log.warning("Failed to cleanup session %s: %s", session.key, exc)
    return CleanError(session.key, str(exc))
