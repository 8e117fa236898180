"""Cleaning: removing whole sessions that are old enough."""

from __future__ import annotations

from collections.abc import Iterable

from stepkeep.api import Store
from stepkeep.config import Settings
from stepkeep.maintenance.clean import CleanEntry, CleanPlan, CleanReport, apply_clean
from stepkeep.maintenance.keeper import plans_to_clean
from stepkeep.maintenance.space import reclaim
from stepkeep.model import MAX_SEQ, Session
from stepkeep.operations.views import Cleaned, CleanupView, SessionError


def clean(store: Store, *, dry_run: bool = False) -> Cleaned:
    """Remove the sessions that policies let go. One that fails stays, and does not stop the others.

    In a dry run nothing is removed, and every session is in the result with the reason for its fate.
    """
    sessions = list(store.sessions())
    plans = clean_plans(store)
    warnings = tuple(_unknown_workflows(store.settings, sessions))
    if dry_run:
        return _planned(plans, warnings)
    reports = [apply_clean(store.engine, plan, now_us=store.engine.clock()) for plan in plans]
    left = {session.uid for session in store.sessions()}
    gone = [entry for plan in plans for entry in plan.going if entry.session.uid not in left]
    return Cleaned(
        is_dry_run=False,
        cleaned=sum(report.cleaned for report in reports),
        retained=sum(report.retained for report in reports),
        error=sum(len(report.errors) for report in reports),
        stored_bytes=sum(report.stored_bytes for report in reports),
        reclaimed_bytes=reclaim(store.engine, max_bytes=MAX_SEQ),
        sessions=tuple(cleanup_view(entry) for entry in gone),
        errors=_errors(reports),
        warnings=warnings,
    )


def clean_plans(store: Store) -> list[CleanPlan]:
    """What cleaning would do now. Several plans, because policies may differ between profiles."""
    return list(plans_to_clean(store.engine, store.settings.cleanup_policies, now_us=store.engine.clock()))


def _planned(plans: list[CleanPlan], warnings: tuple[str, ...]) -> Cleaned:
    entries = [entry for plan in plans for entry in plan.going] + [
        entry for plan in plans for entry in plan.retained
    ]
    going = sum(entry.decision.clean for entry in entries)
    errors = _errors(plans)
    return Cleaned(
        is_dry_run=True,
        cleaned=going,
        retained=len(entries) - going,
        error=len(errors),
        stored_bytes=0,
        reclaimed_bytes=0,
        sessions=tuple(cleanup_view(entry) for entry in entries),
        errors=errors,
        warnings=warnings,
    )


def cleanup_view(entry: CleanEntry) -> CleanupView:
    decision = entry.decision
    return CleanupView(
        session=entry.session.key,
        goes=decision.clean,
        reason=decision.reason,
        age_days=decision.age_days,
        limit_days=decision.limit_days,
    )


def _errors(found: Iterable[CleanPlan | CleanReport]) -> tuple[SessionError, ...]:
    return tuple(
        SessionError(session=error.session, code=None, message=error.message)
        for each in found
        for error in each.errors
    )


def _unknown_workflows(settings: Settings, sessions: Iterable[Session]) -> Iterable[str]:
    known = {session.workflow for session in sessions}
    for name in settings.workflows():
        if name not in known:
            yield f"the configuration has a policy for workflow {name!r}, which no session belongs to"
