"""The profiles are the table of the decisions, and each rule can be replaced by its key."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stepkeep.errors import InvalidInput
from stepkeep.policy.profiles import MAX_DAYS, PROFILES, check_key, profile_named, retention_for
from stepkeep.policy.retention import Retention

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def test_the_profiles_are_those_of_the_decision_table():
    """Count, thinning, age, and the days after which a completed, failed or stale session may go."""
    assert {
        name: (p.retention.keep_last, p.retention.max_age, p.completed_days, p.failed_days, p.stale_days)
        for name, p in PROFILES.items()
    } == {
        "standard": (None, None, 30, 30, None),
        "workflow": (10, None, 7, 30, None),
        "run": (50, 14 * DAY, 7, 30, None),
        "debug": (100, None, 7, 30, None),
        "phase": (None, None, 30, 30, 30),
        "agent": (10, None, 30, 30, 30),
        "archive": (None, None, None, None, None),
    }
    thinned = {n for n, p in PROFILES.items() if p.retention.keep_hourly == 7 * DAY}
    assert thinned == {"debug"}
    assert {n for n, p in PROFILES.items() if p.retention.keep_daily == 90 * DAY} == thinned
    assert {n for n, p in PROFILES.items() if p.retention.keeps_all} == {"standard", "phase", "archive"}
    assert {n: p.retention.max_bytes for n, p in PROFILES.items() if p.retention.max_bytes} == {
        "standard": 1024**3
    }
    assert {n for n, p in PROFILES.items() if not p.is_cleaned} == {"archive"}


def test_debug_thins_and_keeps_what_is_recent_manual_or_significant():
    """J5 adds to thinning; it replaces nothing."""
    assert profile_named("debug").retention == Retention(
        keep_last=100,
        keep_hourly=7 * DAY,
        keep_daily=90 * DAY,
        keep_within=HOUR,
        keep_manual=True,
        keep_tags=("hypothesis_confirmed", "hypothesis_rejected", "contradiction_detected", "branch_merged"),
    )


def test_an_unknown_profile_is_refused_with_the_choice():
    """By its own code."""
    with pytest.raises(
        InvalidInput, match=r"no profile 'standrad': choose one of standard, workflow"
    ) as caught:
        profile_named("standrad")
    assert caught.value.code == "unknown_profile"


def test_without_overrides_the_profile_speaks():
    """An empty table and none at all are the same."""
    assert retention_for("run") == retention_for("run", {}) == profile_named("run").retention


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("keep_last", 7, 7),
        ("keep_within", "90m", 90 * HOUR / 60),
        ("keep_hourly", "12h", 12 * HOUR),
        ("keep_daily", "14 d", 14 * DAY),
        ("keep_weekly", "2w", 14 * DAY),
        ("keep_manual", True, True),
        ("keep_tags", ["gold", "b", "gold"], ("gold", "b")),
        ("keep_terminal", False, False),
        ("max_age", 3 * DAY, 3 * DAY),
        ("max_age", "45s", timedelta(seconds=45)),
        ("max_bytes", 5, 5),
        ("max_bytes", "500", 500),
        ("max_bytes", "1.5GB", 1_500_000_000),
        ("max_bytes", "2 MiB", 2 * 1024**2),
        ("max_bytes", "3kb", 3000),
    ],
)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_rule_can_be_replaced_by_its_key(profile, key, value, stored):
    """One key changes one rule, in every profile."""
    changed = retention_for(profile, {key: value})
    before = profile_named(profile).retention
    assert getattr(changed, key) == stored
    others = set(Retention.__struct_fields__) - {key}
    assert all(getattr(changed, other) == getattr(before, other) for other in others)


@pytest.mark.parametrize("key", sorted(set(Retention.__struct_fields__) - {"keep_last", "is_off"}))
def test_none_switches_a_rule_off(key):
    """Whatever the profile says."""
    off = {"keep_manual": False, "keep_tags": (), "keep_terminal": False}
    assert getattr(retention_for("debug", {key: None}), key) == off.get(key)


def test_no_limit_of_the_count_means_no_thinning_either():
    """Thinning is about what is older than the last N; without N nothing is, unless it is asked for."""
    assert retention_for("standard", {"keep_last": None}).keeps_all
    kept = retention_for("debug", {"keep_last": None, "keep_daily": "7d"})
    assert (kept.keep_last, kept.keep_within, kept.keep_hourly, kept.keep_daily) == (
        None,
        None,
        None,
        7 * DAY,
    )


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("keep_lsat", "did you mean 'keep_last'?"),
        ("maxbytes", "did you mean 'max_bytes'?"),
        ("keep_tag", "did you mean 'keep_tags'?"),
        ("zzz", "choose one of keep_last, "),
        (5, "choose one of keep_last, "),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(key, hint):
    """A slip of the pen never passes in silence."""
    with pytest.raises(InvalidInput) as caught:
        retention_for("standard", {key: 1})
    assert repr(key) in str(caught.value)
    assert hint in str(caught.value)
    assert caught.value.code == "unknown_key"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("keep_last", 0),
        ("keep_last", -1),
        ("keep_last", 2**63),
        ("keep_last", True),
        ("keep_last", 2.0),
        ("keep_last", "10"),
        ("keep_within", 7),
        ("keep_within", "7"),
        ("keep_within", "-7d"),
        ("keep_within", "0d"),
        ("keep_hourly", f"{MAX_DAYS + 1}d"),
        ("keep_daily", "999999999999w"),
        ("keep_weekly", "soon"),
        ("max_age", timedelta(0)),
        ("max_age", -DAY),
        ("max_age", True),
        ("keep_manual", "yes"),
        ("keep_manual", 1),
        ("keep_terminal", "no"),
        ("keep_tags", "gold"),
        ("keep_tags", 3),
        ("keep_tags", [3]),
        ("keep_tags", [""]),
        ("max_bytes", 0),
        ("max_bytes", -5),
        ("max_bytes", True),
        ("max_bytes", 1.5),
        ("max_bytes", "much"),
        ("max_bytes", "5iB"),
        ("max_bytes", "999999999999999999TB"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_key(key, value):
    """Negative, absurd, of the wrong kind, or without a unit."""
    with pytest.raises(InvalidInput, match=key):
        retention_for("standard", {key: value})


def test_check_key_serves_other_tables_too():
    """The words say which table is meant."""
    assert check_key("setting", "enabled", ["enabled"]) == "enabled"
    with pytest.raises(InvalidInput, match=r"unknown setting 'enable': did you mean 'enabled'\?"):
        check_key("setting", "enable", ["enabled"])
