"""Cleaning up whole sessions: plan which may go, show it, apply it.

Which may go is decided by `policy.cleanup`. The backend looks at each session again in the transaction that removes it,
and one that changed is decided about anew, so an active or leased session is never touched (V7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from itertools import takewhile
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import Conflict, InvalidInput, NotFound, StepkeepError
from stepkeep.logs import Log
from stepkeep.maintenance.space import in_turn, reclaim, sweep
from stepkeep.model import SessionError, SessionInfo, Status, maker_of
from stepkeep.policy.cleanup import CleanupPolicies, SessionCleanup, cleaning_order, decide
from stepkeep.processes import is_running, living_makers
from stepkeep.storage.port import HeaderQuery, LooksOver, SessionQuery

log = Log("stepkeep")

MAX_STEP: Final = 1000
"""How many checkpoints one transaction removes at most, unless they are of one session: savers wait for it."""

ORPHANS_KEPT: Final = timedelta(days=7)
"""How long an annotation waits for its checkpoint."""

A_FEW: Final = 20

Policies: TypeAlias = Callable[[SessionInfo], CleanupPolicies]
"""The cleanup policies of a session."""

Living: TypeAlias = Callable[[], Mapping[str, int]]
"""The processes that run on this machine, by what stands for each in the ids of checkpoints."""


class CleanEntry(NamedTuple):
    """A session and what is to become of it."""

    session: SessionInfo
    decision: SessionCleanup


class CleanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What cleaning would do to each session, in the order in which they would go.

    `errors` are sessions that nothing can be decided about: they stay. `unread` is how many more there are, which stay
    because of their age.
    """

    policies: Policies
    entries: tuple[CleanEntry, ...] = ()
    errors: tuple[SessionError, ...] = ()
    unread: int = 0

    @property
    def going(self) -> tuple[CleanEntry, ...]:
        return tuple(entry for entry in self.entries if entry.decision.goes)


class CleanReport(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions were removed, stayed, and were removed by others meanwhile; which failed, and why.

    Each session counts once: those in `errors` stayed, and are not among the `retained`. `sessions` says why, for each
    in a dry run and otherwise for those that went. `warnings` of a dry run are about the configuration.
    """

    is_dry_run: bool = False
    cleaned: int = 0
    retained: int = 0
    missing: int = 0
    error: int = 0
    stored_bytes: int = 0
    reclaimed_bytes: int = 0
    sessions: tuple[SessionCleanup, ...] = ()
    errors: tuple[SessionError, ...] = ()
    warnings: tuple[str, ...] = ()


def plan_clean(engine: Engine, policies: Policies, *, now_us: int) -> CleanPlan:
    """Decide for each session whether it may go, by its policies. Reads only."""
    return _plan(engine, policies, engine.backend.sessions(SessionQuery()), now_us)


def plan_due(engine: Engine, policies: Policies, *, now_us: int) -> CleanPlan:
    """Like `plan_clean`, without reading those that stay: where one is too young, so are the younger ones of its kind.

    A backend that cannot look over its sessions reads all of them.
    """
    backend = engine.backend
    if not isinstance(backend, LooksOver):
        return plan_clean(engine, policies, now_us=now_us)
    plan = _plan(engine, policies, _old_enough(backend, policies, now_us), now_us)
    unread = backend.session_count() - len(plan.entries) - len(plan.errors)
    return msgspec.structs.replace(plan, unread=max(unread, 0))


def _old_enough(backend: LooksOver, policies: Policies, now_us: int) -> Iterator[SessionInfo]:
    """The sessions that go unless somebody holds them, and those that nothing can be decided about."""

    def may_go(session: SessionInfo) -> bool:
        try:
            return decide(session, policies(session), now_us).goes
        except InvalidInput:
            return True

    for kind, sample in backend.kinds():
        for status in Status:
            # Where not even one that was never touched may go, none may.
            oldest = msgspec.structs.replace(sample, status=status, created_us=0, updated_us=0, finished_us=0)
            if may_go(oldest):
                yield from takewhile(may_go, backend.of_kind(kind, status))


def _plan(engine: Engine, policies: Policies, sessions: Iterable[SessionInfo], now_us: int) -> CleanPlan:
    entries: list[CleanEntry] = []
    errors: list[SessionError] = []
    leased, living = _leased(engine), cache(living_makers)
    for session in sessions:
        try:
            decision = decide_about(engine, session, policies, now_us=now_us, leased=leased, living=living)
            entries.append(CleanEntry(session, decision))
        except NotFound:
            continue
        except StepkeepError as exc:
            errors.append(_failure(session, exc))
    entries.sort(key=lambda entry: cleaning_order(entry.session))
    return CleanPlan(policies=policies, entries=tuple(entries), errors=tuple(errors))


def apply_clean(engine: Engine, plan: CleanPlan, *, now_us: int, limit: int | None = None) -> CleanReport:
    """Remove the sessions that the plan lets go and that may still go, at most `limit` of them.

    Many go in one transaction, each only if nobody changed or leased it since it was looked at. A failure of one is
    reported and does not stop the rest. At the end what nothing needs any more is swept: blobs, and annotations
    of checkpoints that never came. After a kill the next clean finishes the work.
    """
    if limit is not None and limit < 0:
        raise InvalidInput(f"limit must be at least 0, not {limit}", code="invalid_setting")
    cleaned: list[SessionCleanup] = []
    errors = list(plan.errors)
    missing = stored_bytes = 0
    for batch in _batches(plan.going[:limit]):
        for entry, outcome in _clean(engine, batch, plan.policies, now_us):
            match outcome:
                case int():
                    cleaned.append(entry.decision)
                    log.info(
                        "Cleaning up session %s (age: %d days, policy: %d days)",
                        entry.session.key,
                        entry.decision.age_days,
                        entry.decision.limit_days,
                    )
                    stored_bytes += outcome
                case NotFound():
                    missing += 1  # another cleaner was faster
                case Conflict():
                    log.info("Session %s stays: %s", entry.session.key, outcome)
                case _:
                    errors.append(_failure(entry.session, outcome))
    failed = len(errors) - len(plan.errors)
    try:
        stored_bytes += sweep(
            engine, annotations_before_us=now_us - ORPHANS_KEPT // timedelta(microseconds=1)
        )
    except StepkeepError as exc:
        log.warning("Failed to sweep what cleaned sessions left: %s", exc)
        errors.append(SessionError(session=None, code=exc.code, message=str(exc)))
    return CleanReport(
        cleaned=len(cleaned),
        retained=len(plan.entries) + plan.unread - len(cleaned) - missing - failed,
        missing=missing,
        error=len(errors),
        stored_bytes=stored_bytes,
        sessions=tuple(cleaned),
        errors=tuple(errors),
    )


def clean_a_few(engine: Engine, policies: Policies) -> None:
    """Remove some of the sessions whose time has come, at the end of a short process, which no keeper cleans for.

    Where none may go nothing is written. It may fail: others clean too.
    """
    try:
        now_us = engine.clock()
        plan = plan_due(engine, policies, now_us=now_us)
        if plan.going:
            apply_clean(engine, plan, now_us=now_us, limit=A_FEW)
    except (StepkeepError, OSError) as exc:
        log.warning("cleaning failed: %s", exc)


def clean_store(
    engine: Engine,
    policies: Policies,
    *,
    workflows: Iterable[str] = (),
    dry_run: bool = False,
) -> CleanReport:
    """Remove the sessions that policies let go, and give the space back. One that fails stays, and stops no other.

    `policies` are those of a profile, `workflows` the names that the configuration has one for. A dry run removes
    nothing, and says of each session what would become of it, and which of the names no session has.
    """
    now_us = engine.clock()
    if dry_run:
        plan = plan_clean(engine, policies, now_us=now_us)
        warnings = tuple(
            f"the configuration has a policy for workflow {name!r}, which no session belongs to"
            for name in workflows
            if next(engine.backend.sessions(SessionQuery(workflow=name, limit=1)), None) is None
        )
        decisions = sorted((entry.decision for entry in plan.entries), key=lambda each: not each.goes)
        return CleanReport(
            is_dry_run=True,
            cleaned=len(plan.going),
            retained=len(plan.entries) - len(plan.going),
            error=len(plan.errors),
            sessions=tuple(decisions),
            errors=plan.errors,
            warnings=warnings,
        )
    report = apply_clean(engine, plan_due(engine, policies, now_us=now_us), now_us=now_us)
    reclaimed = reclaim(engine)
    return msgspec.structs.replace(report, reclaimed_bytes=reclaimed)


def _batches(entries: Iterable[CleanEntry]) -> Iterator[list[CleanEntry]]:
    """What goes in one transaction each: many small sessions, or a large one."""
    batch: list[CleanEntry] = []
    checkpoints = 0
    for entry in entries:
        own = max(entry.session.stored_count, 1)
        if batch and checkpoints + own > MAX_STEP:
            yield batch
            batch, checkpoints = [], 0
        batch.append(entry)
        checkpoints += own
    if batch:
        yield batch


def _clean(
    engine: Engine, batch: Sequence[CleanEntry], policies: Policies, now_us: int
) -> Iterator[tuple[CleanEntry, int | StepkeepError]]:
    """What becomes of each session: the stored bytes of its bodies, or why it stays."""
    outcomes = _remove(engine, [entry.session for entry in batch])
    for entry, outcome in zip(batch, outcomes, strict=True):
        is_changed = isinstance(outcome, Conflict) and outcome.code == "session_changed"
        again = _looked_at_again(engine, entry.session.uid, policies, now_us) if is_changed else None
        yield entry, outcome if again is None else again


def _looked_at_again(engine: Engine, uid: str, policies: Policies, now_us: int) -> int | StepkeepError | None:
    """What becomes of a session that changed since it was looked at; None when it may no longer go."""
    try:
        session = engine.backend.session(uid)
        decision = decide_about(engine, session, policies, now_us=now_us)
    except StepkeepError as exc:
        return exc
    return _remove(engine, [session])[0] if decision.goes else None


def _remove(engine: Engine, sessions: Sequence[SessionInfo]) -> list[int | StepkeepError]:
    """Remove sessions in one transaction, each only if nobody changed or leased it."""
    try:
        outcomes = in_turn(engine, lambda: engine.backend.delete_sessions(sessions))
    except StepkeepError as exc:
        # None went. One by one, only those fail that cannot go.
        return [exc] if len(sessions) == 1 else [_remove(engine, [each])[0] for each in sessions]
    for session, outcome in zip(sessions, outcomes, strict=True):
        if isinstance(outcome, int):
            engine.forget(session.uid)
    return outcomes


def decide_about(
    engine: Engine,
    session: SessionInfo,
    policies: Policies,
    *,
    now_us: int,
    leased: frozenset[str] | None = None,
    living: Living = living_makers,
) -> SessionCleanup:
    """Whether a session may go. `leased` are the sessions that someone runs, where they were asked for already.

    One that is not finished stays while a process lives that saved it.

    Raises:
        InvalidInput: its profile is unknown, or its own policy makes no sense.
    """
    decision = decide(session, policies(session), now_us)
    if not decision.goes:
        return decision  # only one that would go is kept by its lease
    leased = _leased(engine) if leased is None else leased
    lease = engine.backend.lease(session.uid) if leased is None else None
    has_lease = session.uid in (leased or ()) or (lease is not None and lease.expires_us > now_us)
    is_over = session.status.is_finished
    held = "leased" if has_lease else None if is_over else _living_owner(engine, session, living)
    return decision if held is None else decide(session, policies(session), now_us, held)


def _living_owner(engine: Engine, session: SessionInfo, living: Living) -> str | None:
    """The process on this machine that a session belongs to, in words; None where none of them runs any more.

    The agent whose hooks save it is noted with the session, and the others in the ids of what they saved.
    """
    agent: Any = session.metadata.get("agent")
    if is_running(agent):
        return f"its agent lives (pid {agent['pid']})"
    makers = living()
    for row in engine.backend.headers(HeaderQuery(session=session.uid)):
        if (pid := makers.get(maker_of(row.id))) is not None:
            return f"its process lives (pid {pid})"
    return None


def _leased(engine: Engine) -> frozenset[str] | None:
    """The sessions that someone runs, by the store's own clock; None where the backend is asked one by one."""
    return engine.backend.leased() if isinstance(engine.backend, LooksOver) else None


def _failure(session: SessionInfo, exc: StepkeepError) -> SessionError:
    log.warning("Failed to cleanup session %s: %s", session.key, exc)
    return SessionError(session=session.key, code=exc.code, message=str(exc))
