"""Pruning the history of sessions: what stays and goes, and why."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from stepkeep.api import Store
from stepkeep.config import Settings
from stepkeep.config.rules import retention_of
from stepkeep.errors import InvalidInput, NotFound, StepkeepError
from stepkeep.maintenance.compress import compress_history, count_compressible
from stepkeep.maintenance.prune import PrunePlan, apply_prune, plan_prune
from stepkeep.maintenance.space import reclaim
from stepkeep.model import MAX_SEQ, Session, check_name, from_us
from stepkeep.operations.fixes import FAIL, PASS, fixes_for_codes
from stepkeep.operations.views import DecisionView, Pruned, PrunedSession, SessionError
from stepkeep.policy.profiles import MAX_DAYS, check_count, check_duration, check_size
from stepkeep.policy.retention import Decision, Retention, size_text, span_text
from stepkeep.storage.port import HeaderQuery


class PruneFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Rules as a user gives them, which replace all rules of a session. Texts are checked by `retention_from`."""

    keep_last: int | None = None
    keep_within: str | None = None
    keep_days: int | None = None
    keep_hourly: str | None = None
    keep_daily: str | None = None
    keep_weekly: str | None = None
    keep_tags: tuple[str, ...] = ()
    keep_manual: bool = False
    max_age: str | None = None
    max_bytes: str | None = None
    max_per_run: int | None = None
    max_age_days: int | None = None
    compress_after_hours: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no rule is given for what stays. When to compress is none."""
        return self == PruneFlags(compress_after_hours=self.compress_after_hours)


def retention_from(flags: PruneFlags) -> Retention:
    """The rules that flags stand for.

    Raises:
        InvalidInput: a value makes no sense, or the flags contradict each other; the message names the flag.
    """
    if flags.keep_within is not None and flags.keep_days is not None:
        raise InvalidInput("--keep-within and --keep-days say the same: give one of them", code="usage")
    if flags.keep_last is not None and flags.max_per_run is not None:
        raise InvalidInput("--keep-last and --max-per-run say the same: give one of them", code="usage")
    if flags.max_age is not None and flags.max_age_days is not None:
        raise InvalidInput("--max-age and --max-age-days say the same: give one of them", code="usage")
    retention = Retention(
        keep_last=_checked("--keep-last", flags.keep_last, check_count, least=1, most=MAX_SEQ)
        or _checked("--max-per-run", flags.max_per_run, check_count, least=1, most=MAX_SEQ),
        keep_within=_checked("--keep-within", flags.keep_within, check_duration)
        or _days("--keep-days", flags.keep_days),
        keep_hourly=_checked("--keep-hourly", flags.keep_hourly, check_duration),
        keep_daily=_checked("--keep-daily", flags.keep_daily, check_duration),
        keep_weekly=_checked("--keep-weekly", flags.keep_weekly, check_duration),
        keep_manual=flags.keep_manual,
        keep_tags=tuple(dict.fromkeys(check_name("--keep-tag", tag) for tag in flags.keep_tags)),
        max_age=_checked("--max-age", flags.max_age, check_duration)
        or _days("--max-age-days", flags.max_age_days),
        max_bytes=_checked("--max-bytes", flags.max_bytes, check_size),
    )
    if retention.keeps_all and (retention.keep_manual or retention.keep_tags):
        only = "--keep-tag" if retention.keep_tags else "--keep-manual"
        raise InvalidInput(
            f"{only} only adds to what another rule keeps: give one too, such as --keep-last 10", code="usage"
        )
    return retention


def _checked(flag: str, value: object, check: Callable[..., Any], **limits: int) -> Any:
    return None if value is None else check(flag, value, **limits)


def _days(flag: str, count: int | None) -> timedelta | None:
    days: int | None = _checked(flag, count, check_count, least=1, most=MAX_DAYS)
    return None if days is None else timedelta(days=days)


def prune(store: Store, key: str, flags: PruneFlags | None = None, *, dry_run: bool = False) -> Pruned:
    """Remove the checkpoints of a session that its rules, or the flags instead of them, do not keep.

    What stays and is old enough is compressed, where the store can. In a dry run nothing is removed, and every
    checkpoint is in the result with the reasons for its fate.
    """
    session = store.get(key).info
    rules, hours = _rules(store.settings, flags), _hours(store.settings, flags)
    done = [_prune(store, session, rules(session), dry_run)]
    compressed = _compress(store, hours, session.uid, dry_run=dry_run)
    return _summed(store, done, [], compressed, dry_run=dry_run)


def prune_all(store: Store, flags: PruneFlags | None = None, *, dry_run: bool = False) -> Pruned:
    """The same for every session. One that fails is in `errors` and does not stop the others."""
    rules, hours = _rules(store.settings, flags), _hours(store.settings, flags)
    done: list[PrunedSession] = []
    errors: list[SessionError] = []
    for session in list(store.sessions()):
        try:
            done.append(_prune(store, session, rules(session), dry_run))
        except StepkeepError as exc:
            if not (isinstance(exc, NotFound) and exc.code == "session_not_found"):  # deleted meanwhile
                errors.append(SessionError(session=session.key, code=exc.code, message=exc.message))
    compressed = _compress(store, hours, None, dry_run=dry_run)
    return _summed(store, done, errors, compressed, dry_run=dry_run)


def _hours(settings: Settings, flags: PruneFlags | None) -> int | None:
    """After how many hours history is compressed; None: never."""
    if flags is None or flags.compress_after_hours is None:
        hours: int | None = settings["checkpoint.compress_after_hours"]
        return hours
    return check_count("--compress-after-hours", flags.compress_after_hours, least=0, most=MAX_DAYS * 24)


def _compress(store: Store, hours: int | None, uid: str | None, *, dry_run: bool) -> int:
    if hours is None:
        return 0
    work = count_compressible if dry_run else compress_history
    return work(store.engine, after_hours=hours, now_us=store.engine.clock(), session=uid)


def _rules(settings: Settings, flags: PruneFlags | None) -> Callable[[Session], Retention]:
    if flags is None or flags.is_empty:
        return lambda session: retention_of(settings, session)
    retention = retention_from(flags)
    return lambda _: retention


def _prune(store: Store, session: Session, retention: Retention, dry_run: bool) -> PrunedSession:
    plan = plan_prune(store.engine, session, retention, now_us=store.engine.clock())
    rules = rule_texts(retention)
    if dry_run:
        return _planned(store, session, plan, rules)
    report = apply_prune(store.engine, plan)
    return PrunedSession(
        session=session.key,
        total=report.total,
        kept=report.kept,
        deleted=report.deleted,
        refused=report.refused,
        missing=report.missing,
        stored_bytes=report.stored_bytes,
        rules=rules,
        warnings=plan.warnings,
        decisions=(),
    )


def _planned(store: Store, session: Session, plan: PrunePlan, rules: tuple[str, ...]) -> PrunedSession:
    headers = store.engine.headers(HeaderQuery(session=session.uid))
    steps = {header.id: header.step for header in headers}
    return PrunedSession(
        session=session.key,
        total=len(plan.decisions),
        kept=len(plan.kept),
        deleted=len(plan.going),
        refused=0,
        missing=0,
        stored_bytes=plan.reclaimable_bytes,
        rules=rules,
        warnings=plan.warnings,
        decisions=tuple(_decision_view(decision, steps) for decision in plan.decisions),
    )


def _decision_view(decision: Decision, steps: dict[str, int | None]) -> DecisionView:
    item = decision.item
    return DecisionView(
        checkpoint=item.id,
        seq=item.seq,
        branch=item.branch,
        time=from_us(item.time_us),
        step=steps.get(item.id),
        stored_bytes=item.stored_bytes,
        stays=decision.keep,
        reasons=decision.reasons,
        warning=decision.warning,
    )


def _summed(
    store: Store, done: list[PrunedSession], errors: list[SessionError], compressed: int, *, dry_run: bool
) -> Pruned:
    return Pruned(
        is_dry_run=dry_run,
        total=sum(each.total for each in done),
        kept=sum(each.kept for each in done),
        deleted=sum(each.deleted for each in done),
        refused=sum(each.refused for each in done),
        missing=sum(each.missing for each in done),
        stored_bytes=sum(each.stored_bytes for each in done),
        reclaimed_bytes=0 if dry_run else reclaim(store.engine, max_bytes=MAX_SEQ),
        sessions=tuple(done),
        errors=tuple(errors),
        compressed=compressed,
        result=FAIL if errors else PASS,
        fixes=fixes_for_codes(error.code for error in errors),
    )


def rule_texts(retention: Retention) -> tuple[str, ...]:
    """The rules in words: what they keep, then what the caps remove whatever else keeps it."""
    keeps = [f"the last {retention.keep_last}"] if retention.keep_last is not None else []
    spans = {
        "everything": retention.keep_within,
        "one per hour": retention.keep_hourly,
        "one per day": retention.keep_daily,
        "one per week": retention.keep_weekly,
    }
    keeps += [f"{what} of the last {span_text(span)}" for what, span in spans.items() if span is not None]
    if not keeps:
        keeps = ["everything"]
    else:
        keeps += ["what was saved by hand"] if retention.keep_manual else []
        keeps += [f"tag {tag}" for tag in retention.keep_tags]
    removes = [f"what is older than {span_text(retention.max_age)}"] if retention.max_age is not None else []
    if retention.max_bytes is not None:
        removes.append(f"the oldest beyond {size_text(retention.max_bytes)}")
    return (*(f"keep {text}" for text in keeps), *(f"remove {text}" for text in removes))
