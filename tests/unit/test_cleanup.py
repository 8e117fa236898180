"""Which whole sessions may go: limits by status and profile, precedence, and what always stays."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepkeep.errors import InvalidInput
from stepkeep.model import SessionInfo, Status, to_us
from stepkeep.policy.cleanup import CleanupPolicies, CleanupRule, cleaning_order, decide, rule_from
from stepkeep.policy.profiles import PROFILES

NOW = to_us(datetime(2026, 11, 15, 14, 30, tzinfo=UTC))
DAY = 86_400_000_000
DEFAULT = CleanupPolicies()
FINISHED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
ACTIVE = (Status.IN_PROGRESS, Status.PAUSED)


def session(
    status: Status = Status.COMPLETED, days: float = 0, profile: str = "workflow", **fields: Any
) -> SessionInfo:
    """A session that began 100 days before it ended, or was last active, `days` ago."""
    end = NOW - int(days * DAY)
    times = {
        "created_us": end - 100 * DAY,
        "updated_us": end,
        "finished_us": end if status.is_finished else None,
    }
    names = {"uid": "u", "key": "k"}
    return SessionInfo(status=status, profile=profile, **(names | times | fields))


def is_cleaned(one: SessionInfo, policies: CleanupPolicies = DEFAULT, **options: Any) -> bool:
    return decide(one, policies, NOW, **options).goes


# --- limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "completed", "failed"),
    [
        ("workflow", 7, 30),
        ("run", 7, 30),
        ("debug", 7, 30),
        ("standard", 30, 30),
        ("phase", 30, 30),
        ("agent", 30, 30),
    ],
)
def test_a_finished_session_goes_when_its_age_reaches_the_limit(profile, completed, failed):
    """Cleaned at exactly the limit, kept a moment before; cancelled is like completed."""
    limits = {Status.COMPLETED: completed, Status.CANCELLED: completed, Status.FAILED: failed}
    for status, limit in limits.items():
        assert is_cleaned(session(status, limit, profile))
        decision = decide(session(status, limit - 0.001, profile), DEFAULT, NOW)
        assert (decision.goes, decision.age_days, decision.limit_days) == (False, limit - 1, limit)


def test_the_reason_names_age_limit_and_source():
    """As a person reads it."""
    workflows = {"nightly": CleanupRule(retention_days=1)}
    cases = [
        (session(days=8), "completed 8 days ago, limit 7 days (profile workflow)"),
        (session(Status.FAILED, 1), "failed 1 day ago, limit 30 days (profile workflow)"),
        (session(workflow="nightly", days=3), "completed 3 days ago, limit 1 day (workflow nightly)"),
        (session(is_test=True), "completed 0 days ago, limit 0 days (test sessions)"),
        (
            session(policy={"cleanup": {"retention_days": 9}}),
            "completed 0 days ago, limit 9 days (the session's policy)",
        ),
        (
            session(Status.IN_PROGRESS, 31, "agent"),
            "no activity for 31 days, limit 30 days (stale sessions)",
        ),
        (session(Status.PAUSED, 3, "agent"), "active (paused)"),
        (session(days=900, profile="archive"), "profile archive keeps every session"),
    ]
    policies = CleanupPolicies(workflows=workflows)
    assert [decide(one, policies, NOW).reason for one, _ in cases] == [reason for _, reason in cases]


def test_age_counts_from_the_end_or_else_from_the_beginning():
    """K2: a finished session without a time of its end counts from its creation."""
    assert decide(session(days=5), DEFAULT, NOW).age_days == 5
    assert decide(session(days=5, finished_us=None), DEFAULT, NOW).age_days == 105


def test_a_time_in_the_future_is_age_zero():
    """A clock that ran ahead keeps a session; only an immediate limit may clean it."""
    decision = decide(session(days=-400), DEFAULT, NOW)
    assert (decision.goes, decision.age_days) == (False, 0)
    assert is_cleaned(session(days=-400, is_test=True))


def test_test_sessions_go_at_once_when_they_end():
    """In whatever profile, except archive; failed ones after a day; never while they run."""
    for profile in set(PROFILES) - {"archive"}:
        for status in FINISHED:
            is_failed = status is Status.FAILED
            assert is_cleaned(session(status, 0, profile, is_test=True)) is not is_failed
            assert is_cleaned(session(status, 1, profile, is_test=True))
        for status in ACTIVE:
            assert not is_cleaned(session(status, 0, profile, is_test=True))


def test_immediate_cleanup_by_configuration():
    """K5: a limit of 0 days is at once."""
    assert is_cleaned(session(), CleanupPolicies(completed=CleanupRule(retention_days=0)))


def test_the_config_replaces_the_profile_for_a_status():
    """An explicit number counts in every profile that is cleaned at all; cancelled follows completed."""
    policies = CleanupPolicies(completed=CleanupRule(retention_days=3), failed=CleanupRule(retention_days=60))
    for profile in set(PROFILES) - {"archive"}:
        assert is_cleaned(session(Status.COMPLETED, 3, profile), policies)
        assert is_cleaned(session(Status.CANCELLED, 3, profile), policies)
        assert not is_cleaned(session(Status.FAILED, 59, profile), policies)
    apart = CleanupPolicies(completed=CleanupRule(retention_days=3), cancelled=CleanupRule(retention_days=5))
    assert not is_cleaned(session(Status.CANCELLED, 4), apart)
    assert not is_cleaned(session(days=900, profile="archive"), policies)


# --- precedence ------------------------------------------------------------------------------------------------


def test_the_first_place_that_names_a_limit_decides():
    """Session, workflow, test, status, profile: each beats those after it."""
    policies = CleanupPolicies(
        workflows={"nightly": CleanupRule(retention_days=20), "silent": CleanupRule()},
        test=CleanupRule(retention_days=2),
        completed=CleanupRule(retention_days=4),
    )
    own = {"cleanup": {"retention_days": 50}}

    def limit(**fields: Any) -> int | None:
        return decide(session(**fields), policies, NOW).limit_days

    assert limit(policy=own, workflow="nightly", is_test=True) == 50
    assert limit(policy={"keep_last": 3}, workflow="nightly", is_test=True) == 20
    assert limit(workflow="silent", is_test=True) == 2
    assert limit(workflow="unknown") == 4
    assert limit(status=Status.FAILED) == 30


@pytest.mark.parametrize(
    ("policies", "fields", "reason"),
    [
        (CleanupPolicies(enabled=False), {}, "cleanup is off"),
        (DEFAULT, {"policy": {"cleanup": {"enabled": False}}}, "cleanup is off (the session's policy)"),
        (
            CleanupPolicies(workflows={"nightly": CleanupRule(enabled=False)}),
            {"workflow": "nightly", "policy": {"cleanup": {"enabled": True, "retention_days": 0}}},
            "cleanup is off (workflow nightly)",
        ),
        (
            CleanupPolicies(test=CleanupRule(enabled=False)),
            {"is_test": True, "policy": {"cleanup": {"retention_days": 0}}},
            "cleanup is off (test sessions)",
        ),
        (CleanupPolicies(completed=CleanupRule(enabled=False)), {}, "cleanup is off (completed sessions)"),
    ],
)
def test_off_in_any_place_wins_over_everything(policies, fields, reason):
    """AC11: kept for ever, whatever another place says."""
    decision = decide(session(days=900, **fields), policies, NOW)
    assert (decision.goes, decision.reason, decision.limit_days) == (False, reason, None)


def test_off_for_others_is_not_off_for_this_one():
    """Only what speaks of this session counts."""
    policies = CleanupPolicies(
        workflows={"other": CleanupRule(enabled=False)},
        test=CleanupRule(enabled=False),
        failed=CleanupRule(enabled=False),
    )
    assert is_cleaned(session(days=7, workflow="nightly"), policies)


# --- active, leased and stale ----------------------------------------------------------------------------------


def test_a_leased_session_stays():
    """V7: whoever holds the lease may still write."""
    for status in Status:
        decision = decide(session(status, 900, "agent"), DEFAULT, NOW, "leased")
        assert (decision.goes, decision.reason) == (False, "leased")


def test_a_paused_session_never_goes():
    """It waits for someone, however long, and whatever the configuration says."""
    for profile in PROFILES:
        paused = session(Status.PAUSED, 900, profile)
        assert not is_cleaned(paused, DEFAULT)
        assert not is_cleaned(paused, CleanupPolicies(stale_days=0))


def test_a_session_saved_today_is_not_stale():
    """Whoever saved it may still be at work."""
    assert not is_cleaned(
        session(Status.IN_PROGRESS, 0.9, "agent", is_test=True), CleanupPolicies(stale_days=0)
    )


def test_an_unfinished_session_goes_only_when_stale():
    """30 days without activity in phase and agent; never in the others unless set."""
    status = Status.IN_PROGRESS
    for profile in PROFILES:
        goes = profile in ("phase", "agent")
        assert is_cleaned(session(status, 30, profile), DEFAULT) == goes
        assert not is_cleaned(session(status, 29.9, profile), DEFAULT)
    assert is_cleaned(session(status, 40, "workflow"), CleanupPolicies(stale_days=40))
    assert not is_cleaned(session(status, 39, "agent"), CleanupPolicies(stale_days=40))
    assert not is_cleaned(session(status, 900, "archive"), CleanupPolicies(stale_days=1))


def test_a_stale_session_is_kept_as_long_as_a_failed_one():
    """The longer of the two limits counts, and a shorter one never cleans a session that may still go on."""
    longer = {"cleanup": {"retention_days": 90}}
    assert not is_cleaned(session(Status.IN_PROGRESS, 89, "agent", policy=longer))
    assert is_cleaned(session(Status.IN_PROGRESS, 90, "agent", policy=longer))
    shorter = {"cleanup": {"retention_days": 1}}
    assert not is_cleaned(session(Status.IN_PROGRESS, 29, "agent", policy=shorter))
    assert not is_cleaned(session(Status.IN_PROGRESS, 29, "agent", is_test=True))
    off = CleanupPolicies(failed=CleanupRule(enabled=False))
    decision = decide(session(Status.IN_PROGRESS, 900, "agent"), off, NOW)
    assert (decision.goes, decision.reason) == (False, "cleanup is off (failed and stale sessions)")


# --- settings --------------------------------------------------------------------------------------------------


def test_a_rule_is_read_from_a_table():
    """Both keys are optional."""
    assert rule_from("x", {}) == CleanupRule()
    assert rule_from("x", {"retention_days": 90}) == CleanupRule(True, 90)
    assert rule_from("x", {"enabled": False, "retention_days": None}) == CleanupRule(False)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "workflows.a must be a table"),
        ({"retention_day": 1}, "unknown key in workflows.a 'retention_day': did you mean 'retention_days'?"),
        ({"retention_days": -1}, "workflows.a.retention_days must be from 0 to 36500, not -1"),
        ({"retention_days": 10**9}, "workflows.a.retention_days must be from 0 to 36500"),
        ({"retention_days": "7"}, "workflows.a.retention_days must be a whole number"),
        ({"retention_days": True}, "workflows.a.retention_days must be a whole number"),
        ({"enabled": "no"}, "workflows.a.enabled must be true or false"),
        ({"enabled": None}, "workflows.a.enabled must be true or false"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(table, message):
    """By the place and the key."""
    with pytest.raises(InvalidInput) as caught:
        rule_from("workflows.a", table)
    assert message in str(caught.value)


def test_a_session_whose_policy_cannot_be_read_is_an_error_and_not_cleaned():
    """Guessing could remove what was meant to stay."""
    with pytest.raises(InvalidInput, match=r"cleanup\.enabled"):
        decide(session(days=900, policy={"cleanup": {"enabled": 0}}), DEFAULT, NOW)


def test_completed_sessions_are_cleaned_first():
    """J6: completed before others, then the oldest first."""
    sessions = [
        session(Status.FAILED, 90, uid="a"),
        session(Status.COMPLETED, 8, uid="b"),
        session(Status.COMPLETED, 9, uid="c"),
    ]
    assert [one.uid for one in sorted(sessions, key=cleaning_order)] == ["c", "b", "a"]


# --- an independent oracle -------------------------------------------------------------------------------------

rules = st.builds(CleanupRule, st.booleans(), st.none() | st.integers(0, 40))


@st.composite
def sessions(draw: st.DrawFn) -> SessionInfo:
    own = draw(st.none() | rules)
    cleanup = None if own is None else {"enabled": own.enabled, "retention_days": own.retention_days}
    return session(
        draw(st.sampled_from(Status)),
        draw(st.integers(-10, 80)),
        draw(st.sampled_from(sorted(PROFILES))),
        workflow=draw(st.sampled_from([None, "a", "b"])),
        is_test=draw(st.booleans()),
        policy=None if cleanup is None else {"cleanup": cleanup},
    )


policies_of_all_kinds = st.builds(
    CleanupPolicies,
    enabled=st.integers(0, 9).map(bool),
    completed=rules,
    failed=rules,
    cancelled=rules,
    test=rules,
    workflows=st.dictionaries(st.sampled_from(["a", "c"]), rules),
    stale_days=st.none() | st.integers(0, 60),
)

MONTHLY = ("standard", "phase", "agent")


def expected(one: SessionInfo, policies: CleanupPolicies, has_lease: bool) -> bool:
    """The decision table read line by line; nothing is shared with the code under test."""
    if has_lease or not policies.enabled or one.profile == "archive":
        return False
    own = CleanupRule(**one.policy["cleanup"]) if one.policy else CleanupRule()
    flow = policies.workflows.get(one.workflow or "", CleanupRule())
    test = policies.test if one.is_test else CleanupRule()
    by_status = {
        "completed": [policies.completed],
        "cancelled": [policies.cancelled, policies.completed],
    }.get(one.status, [policies.failed])
    if not all(rule.enabled for rule in [own, flow, test, *by_status]):
        return False
    days = [own.retention_days, flow.retention_days]
    if one.is_test:
        least = 1 if one.status == "failed" else 0
        days += [
            None if policies.test.retention_days is None else max(policies.test.retention_days, least),
            least,
        ]
    days += [rule.retention_days for rule in by_status]
    days.append(7 if one.status in ("completed", "cancelled") and one.profile not in MONTHLY else 30)
    limit = next(count for count in days if count is not None)
    if one.status in ("completed", "cancelled", "failed"):
        return max(NOW, one.finished_us or 0) >= (one.finished_us or 0) + limit * DAY
    stale = policies.stale_days
    if stale is None:
        stale = 30 if one.profile in ("phase", "agent") else 10**6
    is_stale = max(NOW, one.updated_us) - one.updated_us >= max(stale, limit, 1) * DAY
    return one.status != "paused" and is_stale


@given(sessions(), policies_of_all_kinds, st.booleans())
def test_exactly_what_the_oracle_expects_is_cleaned(one, policies, has_lease):
    """And every decision has a reason and an age that is never negative."""
    decision = decide(one, policies, NOW, "leased" if has_lease else None)
    assert decision.goes == expected(one, policies, has_lease)
    assert decision.reason
    assert decision.age_days >= 0
    if decision.goes:
        assert decision.limit_days is not None
        assert decision.age_days >= decision.limit_days


@given(sessions(), policies_of_all_kinds, st.integers(0, 100))
def test_time_alone_never_brings_a_session_back(one, policies, days):
    """What may go today may go on every later day."""
    if decide(one, policies, NOW).goes:
        assert decide(one, policies, NOW + days * DAY).goes
