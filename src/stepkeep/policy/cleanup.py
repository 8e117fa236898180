"""Which whole sessions may go, and the reason. Pure: the caller passes `now_us` and who holds the session.

Cleanup never touches an active, paused or held session (V7); one that is in progress without a sign of life for as
long as its profile says is not active. `enabled: false` in any place that speaks of the session
wins over everything. Then the first place that names a number of days decides: the session's own policy, the
config's workflow of that name, the test setting for test sessions, the config's setting for the status, and at
last the session's profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.model import SessionInfo, Status
from stepkeep.policy.profiles import (
    CLEANUP,
    MAX_DAYS,
    Profile,
    check_count,
    check_flag,
    check_key,
    profile_named,
)

TEST_DAYS: Final = 0
FAILED_TEST_DAYS: Final = 1
"""How long a test that failed stays at least, so that it can be looked at and resumed."""

_DAY_US: Final = 86_400_000_000


class CleanupRule(msgspec.Struct, frozen=True):
    """What one place says: whether to clean at all, and after how many whole days (None: another place decides)."""

    enabled: bool = True
    retention_days: int | None = None


class CleanupPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """What the config says about cleaning. Whatever it leaves open, the profile of each session decides.

    `cancelled` left open is like `completed`. `stale_days` replaces that of every profile.
    """

    enabled: bool = True
    completed: CleanupRule = CleanupRule()
    failed: CleanupRule = CleanupRule()
    cancelled: CleanupRule = CleanupRule()
    test: CleanupRule = CleanupRule()
    workflows: Mapping[str, CleanupRule] = {}
    stale_days: int | None = None


class SessionCleanup(msgspec.Struct, frozen=True, kw_only=True):
    """Whether cleaning removes a session, and why. `limit_days` is None where no age could make it go."""

    session: str
    age_days: int
    limit_days: int | None
    goes: bool
    reason: str


def decide(
    session: SessionInfo, policies: CleanupPolicies, now_us: int, held: str | None = None
) -> SessionCleanup:
    """Whether this session may be removed as a whole. A time in the future counts as age 0.

    `held` says who holds it, in words: then it stays.

    Raises:
        InvalidInput: the session's profile is unknown, or its own policy makes no sense; nothing may be removed.
    """
    profile = profile_named(session.profile)
    rules = list(_rules(session, policies))
    active_us = max(session.created_us, session.updated_us)
    since_us = _ended_us(session) if session.status.is_finished else active_us
    age = max(0, now_us - since_us) // _DAY_US
    kept = _never(policies, rules, profile) or held
    if kept is not None:
        goes, reason, limit = False, kept, None
    elif session.status.is_finished:
        what = f"{session.status} {_days(age)} ago"
        goes, reason, limit = _by_age(what, age, *_limit(rules, profile, session.status))
    else:
        goes, reason, limit = _if_stale(session, policies, rules, profile, age)
    return SessionCleanup(session=session.key, goes=goes, reason=reason, age_days=age, limit_days=limit)


def rule_from(what: str, settings: object) -> CleanupRule:
    """The rule written as `{enabled: …, retention_days: …}`; `what` names the place in an error.

    Raises:
        InvalidInput: an unknown key, or a value that makes no sense.
    """
    if not isinstance(settings, Mapping):
        raise InvalidInput(f"{what} must be a table of settings, not {settings!r}", code="invalid_setting")
    for key in settings:
        check_key(f"key in {what}", key, CleanupRule.__struct_fields__)
    days = settings.get("retention_days")
    return CleanupRule(
        check_flag(f"{what}.enabled", settings.get("enabled", True)),
        None if days is None else check_count(f"{what}.retention_days", days, least=0, most=MAX_DAYS),
    )


def is_kept(session: SessionInfo) -> bool:
    """Whether a session stays for ever, by its profile or by its own policy.

    Raises:
        InvalidInput: its profile is unknown, or its own policy makes no sense.
    """
    own = (session.policy or {}).get(CLEANUP)
    is_own = own is not None and not rule_from(CLEANUP, own).enabled
    return is_own or not profile_named(session.profile).is_cleaned


def cleaning_order(session: SessionInfo) -> tuple[bool, int, str]:
    """Sorts sessions that may go: completed ones first, then the oldest, so that a bounded pass does most good."""
    return session.status is not Status.COMPLETED, _ended_us(session), session.uid


# --- the places that speak of a session ------------------------------------------------------------------------


class _RuleSource(msgspec.Struct, frozen=True):
    name: str
    rule: CleanupRule


def _rules(session: SessionInfo, policies: CleanupPolicies) -> Iterator[_RuleSource]:
    """All places that speak of this session, the strongest first."""
    own = (session.policy or {}).get(CLEANUP)
    if own is not None:
        yield _RuleSource("the session's policy", rule_from(CLEANUP, own))
    if session.workflow is not None and session.workflow in policies.workflows:
        yield _RuleSource(f"workflow {session.workflow}", policies.workflows[session.workflow])
    if session.is_test:
        days = TEST_DAYS if policies.test.retention_days is None else policies.test.retention_days
        days = max(days, FAILED_TEST_DAYS) if session.status is Status.FAILED else days
        yield _RuleSource("test sessions", CleanupRule(policies.test.enabled, days))
    if session.status is Status.COMPLETED:
        yield _RuleSource("completed sessions", policies.completed)
    elif session.status is Status.CANCELLED:
        yield _RuleSource("cancelled sessions", policies.cancelled)
        yield _RuleSource("completed sessions", policies.completed)
    else:
        # What never ended is treated like what failed, once it is stale.
        is_failed = session.status is Status.FAILED
        yield _RuleSource("failed sessions" if is_failed else "failed and stale sessions", policies.failed)


def _never(policies: CleanupPolicies, rules: list[_RuleSource], profile: Profile) -> str | None:
    """Why nothing may ever remove it; None if something may."""
    if not policies.enabled:
        return "cleanup is off"
    for place in rules:
        if not place.rule.enabled:
            return f"cleanup is off ({place.name})"
    if not profile.is_cleaned:
        return f"profile {profile.name} keeps every session"
    return None


def _limit(rules: list[_RuleSource], profile: Profile, status: Status) -> tuple[int | None, str]:
    for place in rules:
        if place.rule.retention_days is not None:
            return place.rule.retention_days, place.name
    is_good_end = status in (Status.COMPLETED, Status.CANCELLED)
    return profile.completed_days if is_good_end else profile.failed_days, f"profile {profile.name}"


def _if_stale(
    session: SessionInfo,
    policies: CleanupPolicies,
    rules: list[_RuleSource],
    profile: Profile,
    idle_days: int,
) -> tuple[bool, str, int | None]:
    """An unfinished session stays until it is stale; then it counts as failed at its last activity."""
    stale_days = profile.stale_days if policies.stale_days is None else policies.stale_days
    if session.status is Status.PAUSED:
        return False, f"active ({session.status})", None
    # Whoever saved today may still be at work, also without a lease.
    if stale_days is None or idle_days < max(stale_days, 1):
        return False, f"active ({session.status})", stale_days
    limit, source = _limit(rules, profile, session.status)
    if limit is not None and limit <= stale_days:
        limit, source = stale_days, "stale sessions"
    return _by_age(f"no activity for {_days(idle_days)}", idle_days, limit, source)


def _by_age(what: str, age: int, limit: int | None, source: str) -> tuple[bool, str, int | None]:
    if limit is None:
        return False, f"{what}, no limit ({source})", None
    return age >= limit, f"{what}, limit {_days(limit)} ({source})", limit


def _ended_us(session: SessionInfo) -> int:
    """When a session ended here: one that was adopted ended earlier elsewhere."""
    return max(session.created_us, session.finished_us or 0)


def _days(count: int) -> str:
    return f"{count} day" if count == 1 else f"{count} days"
