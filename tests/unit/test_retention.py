"""Which checkpoints stay, and why: each rule alone, their order of strength, and an independent oracle."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepkeep.model import Branch, BranchState, Content, Header, Status, Trigger, TriggerKind, to_us
from stepkeep.policy import retention
from stepkeep.policy.profiles import retention_for
from stepkeep.policy.retention import FROM_THE_FUTURE, NOTHING_VERIFIES, Retention, span_text

NOW = to_us(datetime(2026, 11, 15, 14, 30, tzinfo=UTC))
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def us(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint, with all that a decision depends on."""

    id: str
    seq: int
    time_us: int
    branch: str = "main"
    status: Status = Status.IN_PROGRESS
    trigger: TriggerKind = TriggerKind.AUTO
    tags: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    digests: tuple[tuple[str, str], ...] = ()
    stored_bytes: int = 0

    @property
    def header(self) -> Header:
        return Header(
            v=1,
            id=self.id,
            session="s",
            seq=self.seq,
            branch=self.branch,
            time_us=self.time_us,
            contents={name: Content(digest, 2, "json") for name, digest in self.digests},
            parents=self.parents,
            status=self.status,
            trigger=Trigger(self.trigger, "event"),
            tags=self.tags,
            requires=self.requires,
        )


class Decision(NamedTuple):
    item: Item
    keep: bool
    reasons: tuple[str, ...]
    warning: str | None


def decide(items: Sequence[Item], policy: Retention, now_us: int, **guards: Any) -> list[Decision]:
    stored = {one.id: one.stored_bytes for one in items}
    decisions = retention.decide([one.header for one in items], stored, policy, now_us, **guards)
    assert [each.checkpoint for each in decisions] == [one.id for one in items]
    return [
        Decision(one, each.stays, each.reasons, each.warning)
        for one, each in zip(items, decisions, strict=True)
    ]


def item(seq: int, age: timedelta = timedelta(0), **fields: Any) -> Item:
    return Item(id=f"cp_{seq}", seq=seq, time_us=NOW - us(age), **fields)


def series(count: int, every: timedelta = MINUTE, **fields: Any) -> list[Item]:
    """`count` checkpoints, the newest (the highest seq) saved now."""
    return [item(seq, (count - seq) * every, **fields) for seq in range(1, count + 1)]


def kept(decisions: Sequence[Decision]) -> list[int]:
    return [decision.item.seq for decision in decisions if decision.keep]


def told(decisions: Sequence[Decision]) -> list[str]:
    return [
        f"{decision.item.seq} {'stays' if decision.keep else 'goes'}: {', '.join(decision.reasons)}"
        for decision in decisions
    ]


# --- keep rules ------------------------------------------------------------------------------------------------


def test_the_last_n_stay_and_the_newest_counts():
    """Eleven checkpoints and a limit of ten: the oldest one goes."""
    decisions = decide(series(11), Retention(keep_last=10), NOW)
    assert kept(decisions) == list(range(2, 12))
    assert told(decisions)[0] == "1 goes: beyond the last 10"
    assert told(decisions)[1] == "2 stays: last 10"
    assert told(decisions)[10] == "11 stays: newest, last 10"


def test_order_is_by_seq_and_never_by_clock():
    """After the clock was set back the newest checkpoints have the oldest times, and stay."""
    items = [item(1), item(2), item(3, 5 * DAY), item(4, 6 * DAY)]
    assert kept(decide(items, Retention(keep_last=2), NOW)) == [3, 4]


def test_without_a_selecting_rule_everything_stays():
    """Manual, tags and terminal only add: alone they make nothing go."""
    policy = Retention(keep_manual=True, keep_tags=("gold",))
    decisions = decide([item(1, 900 * DAY), item(2, tags=("gold",))], policy, NOW)
    assert told(decisions) == ["1 stays: no limit", "2 stays: newest, no limit, tag gold"]


def test_keep_within_ends_at_its_span():
    """Younger than the span stays; exactly as old does not."""
    items = [item(1, 7 * DAY), item(2, 7 * DAY - MINUTE), item(3)]
    assert told(decide(items, Retention(keep_within=7 * DAY), NOW)) == [
        "1 goes: older than 7 days",
        "2 stays: within 7 days",
        "3 stays: newest, within 7 days",
    ]


def test_keep_rules_unite():
    """What any one rule names stays, with every reason."""
    items = [
        item(1, 3 * DAY, trigger=TriggerKind.MANUAL, tags=("gold",)),
        item(2, 3 * DAY),
        item(3, HOUR),
        item(4),
    ]
    policy = Retention(keep_last=1, keep_within=DAY, keep_manual=True, keep_tags=("gold",))
    assert told(decide(items, policy, NOW)) == [
        "1 stays: manual, tag gold",
        "2 goes: beyond the last 1, older than 1 day",
        "3 stays: within 1 day",
        "4 stays: newest, last 1, within 1 day",
    ]


def test_a_period_keeps_its_newest_checkpoint():
    """One for each hour for a while, one for each day for longer, one for each week for longest."""
    items = [
        item(1, 40 * DAY),
        item(2, 20 * DAY + HOUR),
        item(3, 20 * DAY),
        item(4, 3 * DAY + 2 * HOUR),
        item(5, 3 * DAY),
        item(6, 2 * HOUR + 20 * MINUTE),
        item(7, 2 * HOUR + 10 * MINUTE),
        item(8),
    ]
    policy = Retention(keep_hourly=2 * DAY, keep_daily=7 * DAY, keep_weekly=30 * DAY)
    assert told(decide(items, policy, NOW)) == [
        "1 goes: older than 30 days",
        "2 goes: not the newest of its week",
        "3 stays: weekly 2026-W44",
        "4 goes: not the newest of its day",
        "5 stays: daily 2026-11-12",
        "6 goes: not the newest of its hour",
        "7 stays: hourly 2026-11-15 12:00",
        "8 stays: newest, hourly 2026-11-15 14:00, daily 2026-11-15, weekly 2026-W46",
    ]


def test_thinning_of_a_long_history():
    """Debug: the last 100, then one per hour for 7 days, one per day for 90, none after."""
    items = series(24 * 4 * 120, 15 * MINUTE)
    decisions = decide(items, retention_for("debug"), NOW)
    ages = [timedelta(microseconds=NOW - d.item.time_us) for d in decisions if d.keep]
    assert sum(age <= 24 * HOUR for age in ages) == 97
    assert sum(25 * HOUR < age <= 6 * DAY for age in ages) == 5 * 24 - 1
    assert sum(8 * DAY < age <= 80 * DAY for age in ages) == 72
    assert max(ages) < 90 * DAY


def test_the_newest_of_each_finished_status_stays():
    """Failed and completed are guarded against all; cancelled is a rule that can be switched off."""
    items = [
        item(1, status=Status.FAILED),
        item(2, status=Status.FAILED),
        item(3, status=Status.COMPLETED),
        item(4, status=Status.CANCELLED),
        item(5),
    ]
    assert told(decide(items, Retention(keep_last=1), NOW)) == [
        "1 goes: beyond the last 1",
        "2 stays: newest failed",
        "3 stays: newest completed",
        "4 stays: newest cancelled",
        "5 stays: newest, last 1",
    ]
    assert kept(decide(items, Retention(keep_last=1, keep_terminal=False), NOW)) == [2, 3, 5]


def test_debug_keeps_what_is_recent_manual_or_significant():
    """J5: younger than an hour, manual, and the four significant tags stay in the debug profile."""
    tags = ["hypothesis_confirmed", "hypothesis_rejected", "contradiction_detected", "branch_merged"]
    old = [item(seq, 200 * DAY, tags=(tag,)) for seq, tag in enumerate(tags, 1)]
    manual = item(5, 200 * DAY, trigger=TriggerKind.MANUAL)
    plain = item(6, 200 * DAY)
    recent = [item(seq, 59 * MINUTE) for seq in range(7, 207)]
    decisions = decide([*old, manual, plain, *recent], retention_for("debug"), NOW)
    assert kept(decisions) == [seq for seq in range(1, 207) if seq != 6]
    assert told(decisions)[0] == "1 stays: tag hypothesis_confirmed"
    assert told(decisions)[5] == "6 goes: beyond the last 100, older than 90 days"


# --- heartbeats ------------------------------------------------------------------------------------------------


def beat(seq: int, parent: int, state: str, age: timedelta = timedelta(0)) -> Item:
    return item(seq, age, trigger=TriggerKind.TIMER, parents=(f"cp_{parent}",), digests=(("state", state),))


def test_an_unchanged_heartbeat_goes_before_older_checkpoints():
    """Heartbeats that repeat the state before them do not push real steps out of the count."""
    items = [
        item(1, digests=(("state", "a"),)),
        beat(2, 1, "a"),
        beat(3, 2, "b"),
        beat(4, 3, "b"),
        item(5, parents=("cp_4",), digests=(("state", "b"),)),
    ]
    assert told(decide(items, Retention(keep_last=3), NOW)) == [
        "1 stays: last 3",
        "2 goes: unchanged heartbeat",
        "3 stays: last 3",
        "4 goes: unchanged heartbeat",
        "5 stays: newest, last 3",
    ]
    assert kept(decide(items, Retention(keep_last=4), NOW)) == [1, 3, 4, 5]


def test_an_unchanged_heartbeat_stays_where_nothing_has_to_go():
    """Going first is not going always: with room, or without limits, it stays."""
    items = [item(1, digests=(("state", "a"),)), beat(2, 1, "a"), item(3)]
    for policy in (Retention(), Retention(keep_last=3), Retention(keep_within=DAY)):
        assert kept(decide(items, policy, NOW)) == [1, 2, 3]


def test_an_hour_prefers_a_real_checkpoint_to_a_heartbeat():
    """The newest of an hour is the newest that says something; an hour of heartbeats keeps its newest."""
    items = [
        item(1, 2 * HOUR + 9 * MINUTE, digests=(("state", "a"),)),
        beat(2, 1, "a", 2 * HOUR + 5 * MINUTE),
        beat(3, 2, "a", HOUR + 9 * MINUTE),
        beat(4, 3, "a", HOUR + 5 * MINUTE),
        item(5),
    ]
    assert kept(decide(items, Retention(keep_hourly=DAY), NOW)) == [1, 4, 5]


# --- guards ----------------------------------------------------------------------------------------------------


def branch(name: str, **fields: Any) -> Branch:
    return Branch(name=name, created_us=NOW, **fields)


def test_pinned_open_branches_keep_head_and_fork_point():
    """V7: head and fork point stay against rules and caps; of unpinned or closed branches they do not."""
    items = series(6, 30 * DAY)
    branches = [
        branch("main", head="cp_6"),
        branch("retry", head="cp_2", fork="cp_1"),
        branch("left", head="cp_3", is_pinned=False),
        branch("done", head="cp_4", state=BranchState.MERGED),
    ]
    policy = Retention(keep_last=1, max_age=DAY)
    assert told(decide(items, policy, NOW, branches=branches)) == [
        "1 stays: fork point of retry",
        "2 stays: head of retry",
        "3 goes: older than 1 day",
        "4 goes: older than 1 day",
        "5 goes: older than 1 day",
        "6 stays: newest, head of main, last 1",
    ]


def test_the_current_branch_is_always_pinned():
    """Whatever its own record says."""
    branches = [branch("left", head="cp_1", is_pinned=False, state=BranchState.ABANDONED)]
    decisions = decide(series(3), Retention(keep_last=1), NOW, branches=branches, current="left")
    assert kept(decisions) == [1, 3]


def test_heads_that_are_gone_are_not_missed():
    """A branch may name checkpoints that were removed before."""
    branches = [branch("main", head="cp_9", fork="cp_8"), branch("empty")]
    assert kept(decide(series(2), Retention(keep_last=1), NOW, branches=branches)) == [2]


def test_the_newest_three_safety_checkpoints_stay():
    """V7: also when they are older than every cap."""
    items = [*(item(seq, 90 * DAY, tags=("safety",)) for seq in range(1, 6)), item(6)]
    decisions = decide(items, Retention(keep_last=1, max_age=DAY), NOW)
    assert kept(decisions) == [3, 4, 5, 6]
    assert told(decisions)[2] == "3 stays: last 3 safety checkpoints"


def test_what_a_kept_checkpoint_requires_stays():
    """V7: transitively, against caps, and only while the one that requires it stays."""
    items = [
        item(1, 90 * DAY),
        item(2, 90 * DAY, requires=("cp_1", "cp_gone")),
        item(3, 90 * DAY, requires=("cp_2",)),
        item(4, requires=("cp_2",)),
        item(5, requires=("cp_2",)),
    ]
    assert told(decide(items, Retention(keep_last=2, max_age=DAY), NOW)) == [
        "1 stays: required by cp_2",
        "2 stays: required by cp_5 and 1 more",
        "3 goes: older than 1 day",
        "4 stays: last 2",
        "5 stays: newest, last 2",
    ]


def test_checkpoints_that_require_each_other_are_no_endless_loop():
    """A circle stays as a whole or goes as a whole."""
    items = [item(1, requires=("cp_2",)), item(2, requires=("cp_1", "cp_2")), item(3), item(4)]
    assert kept(decide(items, Retention(keep_last=2), NOW)) == [3, 4]
    assert kept(decide(items, Retention(keep_last=3), NOW)) == [1, 2, 3, 4]


def test_everything_back_to_the_newest_that_verifies_stays():
    """V7: damaged checkpoints after the last good one are evidence, and what is good must not go."""
    branches = [
        branch("main", head="cp_5"),
        branch("retry", head="cp_7", fork="cp_3", fork_branch="main", fork_seq=3),
    ]
    main = [item(seq, 9 * DAY) for seq in (1, 2, 3, 4, 5)]
    retry = [item(seq, 9 * DAY, branch="retry") for seq in (6, 7)]
    decisions = decide(
        [*main, *retry],
        Retention(keep_last=1, max_age=DAY),
        NOW,
        branches=branches,
        current="retry",
        verified_id="cp_2",
    )
    assert told(decisions) == [
        "1 goes: older than 1 day",
        "2 stays: newest that verifies",
        "3 stays: fork point of retry, after the newest that verifies",
        "4 goes: older than 1 day",
        "5 stays: head of main",
        "6 stays: after the newest that verifies",
        "7 stays: newest, head of retry, after the newest that verifies",
    ]


def test_if_nothing_verifies_the_whole_line_stays():
    """Nothing is thrown away while nothing is known to be good."""
    decisions = decide(series(4), Retention(keep_last=1), NOW, verified_id=NOTHING_VERIFIES)
    assert kept(decisions) == [1, 2, 3, 4]


def test_a_circle_of_forks_is_no_endless_loop():
    """Damaged branch records may name each other."""
    branches = [
        branch("main", fork_branch="retry", fork_seq=2),
        branch("retry", fork_branch="main", fork_seq=1),
    ]
    decisions = decide(
        series(3), Retention(keep_last=1), NOW, branches=branches, verified_id=NOTHING_VERIFIES
    )
    assert kept(decisions) == [1, 2, 3]


# --- caps ------------------------------------------------------------------------------------------------------


def test_the_age_cap_beats_keep_rules():
    """Exactly at the limit stays; older goes, manual or not."""
    items = [
        item(1, 14 * DAY + timedelta(microseconds=1), trigger=TriggerKind.MANUAL),
        item(2, 14 * DAY),
        item(3),
    ]
    policy = Retention(keep_last=10, keep_manual=True, max_age=14 * DAY)
    assert told(decide(items, policy, NOW)) == [
        "1 goes: older than 14 days",
        "2 stays: last 10",
        "3 stays: newest, last 10",
    ]


def test_the_budget_takes_the_oldest_first_and_no_more_than_needed():
    """The byte cap beats keep rules, and leaves what fits."""
    items = series(5, stored_bytes=300_000_000)
    decisions = decide(items, Retention(keep_last=10, max_bytes=1_000_000_000), NOW)
    assert kept(decisions) == [3, 4, 5]
    assert told(decisions)[:2] == [
        "1 goes: over the budget of 1.0GB",
        "2 goes: over the budget of 1.0GB",
    ]


def test_the_budget_takes_unchanged_heartbeats_before_anything_else():
    """Even newer ones."""
    items = [
        item(1, digests=(("state", "a"),), stored_bytes=10),
        msgspec.structs.replace(beat(2, 1, "a"), stored_bytes=10),
        item(3, stored_bytes=10),
    ]
    assert told(decide(items, Retention(max_bytes=20), NOW)) == [
        "1 stays: no limit",
        "2 goes: over the budget of 20B",
        "3 stays: newest, no limit",
    ]


def test_the_budget_spares_what_is_guarded_even_if_it_is_exceeded():
    """V7 beats caps: the rest goes, the guarded stay."""
    items = [
        item(1, status=Status.FAILED, stored_bytes=50),
        item(2, stored_bytes=1),
        item(3, stored_bytes=50),
    ]
    assert kept(decide(items, Retention(max_bytes=10), NOW)) == [1, 3]


def test_a_count_is_a_cap_that_no_rule_beats():
    """What was saved by hand or tagged goes too; V7 beats it."""
    items = [item(1, status=Status.FAILED), *(item(seq, trigger=TriggerKind.MANUAL) for seq in range(2, 7))]
    policy = Retention(keep_last=4, keep_hourly=DAY, keep_manual=True, max_count=3)
    assert kept(decide(items, policy, NOW)) == [1, 5, 6]
    assert told(decide(items, policy, NOW))[3] == "4 goes: beyond the limit of 3"


def test_giving_up_a_checkpoint_gives_up_what_only_it_required():
    """What is required counts against the budget, and goes with the one that needs it."""
    items = [
        item(1, stored_bytes=10),
        item(2, stored_bytes=10, requires=("cp_1",)),
        item(3, stored_bytes=10),
        item(4, stored_bytes=10),
    ]
    assert kept(decide(items, Retention(max_bytes=30), NOW)) == [3, 4]
    assert kept(decide(items, Retention(keep_last=3, max_bytes=40), NOW)) == [1, 2, 3, 4]
    assert told(decide(items, Retention(keep_last=3, max_bytes=39), NOW)) == [
        "1 goes: beyond the last 3",
        "2 goes: over the budget of 39B",
        "3 stays: last 3",
        "4 stays: newest, last 3",
    ]


# --- edges -----------------------------------------------------------------------------------------------------


def test_an_empty_history_needs_no_decision():
    """Also with every rule set."""
    assert decide([], retention_for("debug", {"max_bytes": 1, "max_age": "1d"}), NOW, verified_id="x") == []


def test_a_time_in_the_future_counts_as_age_zero_and_is_warned_of():
    """A clock that ran ahead neither protects from the count nor breaks a rule."""
    items = [item(1, -400 * DAY), item(2, -9_000_000 * DAY), item(3)]
    decisions = decide(items, Retention(keep_last=1, keep_hourly=DAY, max_age=DAY), NOW)
    assert [decision.warning for decision in decisions] == [FROM_THE_FUTURE, FROM_THE_FUTURE, None]
    assert told(decisions)[0] == "1 goes: beyond the last 1, not the newest of its hour"
    assert told(decisions)[2] == "3 stays: newest, last 1, hourly 2026-11-15 14:00"


def test_a_decision_describes_its_checkpoint():
    """What is shown beside the reason comes from the header, except for the stored size."""
    header = msgspec.structs.replace(item(4, branch="retry").header, step=7)
    (found,) = retention.decide([header], {"cp_4": 9}, Retention(), NOW)
    assert (found.checkpoint, found.seq, found.branch, found.step) == ("cp_4", 4, "retry", 7)
    assert (found.time, found.stored_bytes, found.stays) == (header.created_at, 9, True)


def test_a_time_that_no_calendar_has_is_decided_about_too():
    """A damaged clock must not stop pruning."""
    (found,) = decide([msgspec.structs.replace(item(1), time_us=1 << 62)], Retention(), NOW)
    assert (found.keep, found.warning) == (True, FROM_THE_FUTURE)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (14 * DAY, "14 days"),
        (DAY, "1 day"),
        (36 * HOUR, "36 hours"),
        (90 * MINUTE, "90 minutes"),
        (timedelta(seconds=1), "1 second"),
        (timedelta(milliseconds=1500), "1.5 seconds"),
    ],
)
def test_spans_read_in_the_largest_whole_unit(span, text):
    """As a person would write them."""
    assert span_text(span) == text


# --- an independent oracle -------------------------------------------------------------------------------------

TAGS = ("gold", "safety", "plain")
spans = st.none() | st.sampled_from([10 * MINUTE, HOUR, 5 * HOUR, DAY, 3 * DAY, 21 * DAY])


@st.composite
def histories(draw: st.DrawFn, triggers: Sequence[TriggerKind] = tuple(TriggerKind)) -> dict[str, Any]:
    """A session with branches, requirements, equal states, clocks that jump, and any policy."""
    count = draw(st.integers(0, 14))
    names = ("main", "retry", "left")
    items: list[Item] = []
    for seq in range(1, count + 1):
        older = [known.id for known in items]
        items.append(
            item(
                seq,
                draw(st.integers(-60, 60 * 24 * 30)) * MINUTE,
                branch=draw(st.sampled_from(names)),
                status=draw(st.sampled_from(Status)),
                trigger=draw(st.sampled_from(triggers)),
                tags=tuple(draw(st.sets(st.sampled_from(TAGS), max_size=1))),
                requires=tuple(draw(st.sets(st.sampled_from([*older, "cp_gone"]), max_size=2))),
                parents=tuple(older[-1:]),
                digests=(("state", draw(st.sampled_from("ab"))),),
                stored_bytes=draw(st.integers(0, 9)),
            )
        )
    ids = st.none() | st.sampled_from([*(known.id for known in items), "cp_gone"])
    branches = [
        branch(
            name,
            head=draw(ids),
            fork=draw(ids),
            fork_branch=draw(st.none() | st.sampled_from(names)),
            fork_seq=draw(st.integers(0, count)),
            state=draw(st.sampled_from(BranchState)),
            is_pinned=draw(st.booleans()),
        )
        for name in draw(st.sets(st.sampled_from(names)))
    ]
    policy = Retention(
        keep_last=draw(st.none() | st.integers(1, 9)),
        keep_within=draw(spans),
        keep_hourly=draw(spans),
        keep_daily=draw(spans),
        keep_weekly=draw(spans),
        keep_manual=draw(st.booleans()),
        keep_tags=draw(st.sampled_from([(), ("gold",), ("gold", "plain")])),
        keep_terminal=draw(st.booleans()),
        max_count=draw(st.none() | st.integers(1, 9)),
        max_age=draw(spans),
        max_bytes=draw(st.none() | st.integers(1, 60)),
    )
    return {
        "items": draw(st.permutations(items)),
        "policy": policy,
        "branches": branches,
        "current": draw(st.sampled_from(names)),
        "verified_id": draw(ids),
    }


def decided(case: dict[str, Any]) -> list[Decision]:
    return decide(
        case["items"], case["policy"], NOW, **{k: case[k] for k in ("branches", "current", "verified_id")}
    )


def is_on_line(one: Item, case: dict[str, Any]) -> bool:
    """Whether walking back from the current branch, fork by fork, meets this checkpoint."""
    name, bound, walked = case["current"], 10**9, []
    while name is not None and name not in walked:
        if one.branch == name and one.seq <= bound:
            return True
        walked.append(name)
        found = [b for b in case["branches"] if b.name == name]
        name, bound = (found[0].fork_branch, found[0].fork_seq) if found else (None, 0)
    return False


def is_guarded(one: Item, case: dict[str, Any]) -> bool:
    """V7 for one checkpoint by itself, without what others require."""
    newer = [other for other in case["items"] if other.seq > one.seq]
    if not newer:
        return True
    if one.status in ("failed", "completed") and all(other.status != one.status for other in newer):
        return True
    if "safety" in one.tags and sum("safety" in other.tags for other in newer) < 3:
        return True
    for b in case["branches"]:
        if one.id in (b.head, b.fork) and (b.name == case["current"] or (b.is_pinned and b.state == "open")):
            return True
    if case["verified_id"] is None or not is_on_line(one, case):
        return False
    return not any(other.id == case["verified_id"] and is_on_line(other, case) for other in newer)


def is_idle(one: Item, items: Sequence[Item]) -> bool:
    return one.trigger == "timer" and any(
        other.id in one.parents[:1] and other.digests == one.digests for other in items
    )


def outranks(one: Item, other: Item, items: Sequence[Item]) -> bool:
    if is_idle(one, items) != is_idle(other, items):
        return is_idle(other, items)
    return one.seq > other.seq


def age_of(one: Item) -> timedelta:
    return max(timedelta(0), timedelta(microseconds=NOW - one.time_us))


def is_named(one: Item, case: dict[str, Any]) -> bool:
    """Whether a keep rule names this checkpoint and it is not too old."""
    items, policy = case["items"], case["policy"]
    if policy.max_age is not None and age_of(one) > policy.max_age:
        return False
    rules = [policy.keep_last, policy.keep_within, policy.keep_hourly, policy.keep_daily, policy.keep_weekly]
    if rules == [None] * 5:
        return True
    better = [other for other in items if outranks(other, one, items)]
    if policy.keep_last is not None and len(better) < policy.keep_last:
        return True
    if policy.keep_within is not None and age_of(one) < policy.keep_within:
        return True

    def moment(of: Item) -> datetime:
        return datetime(1970, 1, 1) + timedelta(microseconds=NOW) - age_of(of)

    for span, period in (
        (policy.keep_hourly, lambda of: (moment(of).date(), moment(of).hour)),
        (policy.keep_daily, lambda of: moment(of).date()),
        (policy.keep_weekly, lambda of: moment(of).date().isocalendar()[:2]),
    ):
        if span is not None and age_of(one) < span:
            rivals = [o for o in better if age_of(o) < span and period(o) == period(one)]
            if not rivals:
                return True
    if policy.keep_manual and one.trigger == "manual":
        return True
    cancelled = [other.seq for other in items if other.status == "cancelled"]
    if policy.keep_terminal and one.seq == max(cancelled, default=0):
        return True
    return bool(set(one.tags) & set(policy.keep_tags))


def grown(roots: list[Item], items: Sequence[Item]) -> list[Item]:
    """The roots and what they require, found by looking again until nothing is added."""
    stays = list(roots)
    while True:
        more = [o for o in items if o not in stays and any(o.id in keeper.requires for keeper in stays)]
        if not more:
            return stays
        stays += more


def expected(case: dict[str, Any]) -> set[str]:
    """What must stay, found checkpoint by checkpoint: nothing is shared with the code under test."""
    items = case["items"]
    guarded = [one for one in items if is_guarded(one, case)]
    named = [one for one in items if one not in guarded and is_named(one, case)]
    named.sort(key=lambda one: (not is_idle(one, items), one.seq))
    budget, most = case["policy"].max_bytes, case["policy"].max_count
    stays = grown(guarded + named, items)
    while named and most is not None and len(stays) > most:
        named.pop(0)
        stays = grown(guarded + named, items)
    while named and budget is not None and sum(one.stored_bytes for one in stays) > budget:
        named.pop(0)
        stays = grown(guarded + named, items)
    return {one.id for one in stays}


@given(histories())
def test_exactly_what_the_oracle_expects_stays(case):
    """The rules, read one checkpoint at a time, give the same answer."""
    assert {d.item.id for d in decided(case) if d.keep} == expected(case)


@given(histories())
def test_every_checkpoint_gets_one_decision_with_a_reason(case):
    """In the order given, never twice, never without a reason."""
    decisions = decided(case)
    assert [decision.item for decision in decisions] == list(case["items"])
    assert all(decision.reasons and all(decision.reasons) for decision in decisions)
    assert all((d.warning is not None) == (d.item.time_us > NOW) for d in decisions)


@given(histories(), st.randoms())
def test_the_order_of_the_input_does_not_matter(case, random):
    """Deciding is a function of the history: repeated or shuffled it gives the same."""
    first = {d.item.id: d for d in decided(case)}
    shuffled = list(case["items"])
    random.shuffle(shuffled)
    assert {d.item.id: d for d in decided(case | {"items": shuffled})} == first


@given(histories(triggers=(TriggerKind.AUTO, TriggerKind.MANUAL)))
def test_deciding_again_after_pruning_removes_nothing_more(case):
    """Without heartbeats, whose worth depends on their neighbours, pruning is finished in one pass."""
    stays = [decision.item for decision in decided(case) if decision.keep]
    assert all(decision.keep for decision in decided(case | {"items": stays}))


@given(histories())
def test_pruning_again_and_again_never_loses_what_is_guarded(case):
    """Repeated until nothing goes, each pass leaves every checkpoint that V7 names."""
    items = list(case["items"])
    must_stay = {one.id for one in grown([one for one in items if is_guarded(one, case)], items)}
    while True:
        stays = [decision.item for decision in decided(case | {"items": items}) if decision.keep]
        assert must_stay <= {one.id for one in stays}
        if len(stays) == len(items):
            break
        items = stays
