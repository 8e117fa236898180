"""Which checkpoints of one session stay, and the reason for each. Pure: the caller passes `now_us`.

Four voices decide, the strongest first:

1. The guards of V7: what pruning never removes.
2. The caps, `max_count`, `max_age` and `max_bytes`: what they reach goes, whatever a rule says.
3. What is always kept: saved by hand, tagged, the newest of each finished status.
4. The keep counts: they unite, and what none of them names goes. Rules for one prune replace only these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import msgspec

from stepkeep.model import (
    MAIN_BRANCH,
    Branch,
    BranchState,
    Header,
    Status,
    TriggerKind,
    from_us,
    within_calendar,
)
from stepkeep.text import size

SAFETY_TAG: Final = "safety"
"""Marks a checkpoint taken before something risky, so that it can be undone."""

SAFETY_KEPT: Final = 3

NOTHING_VERIFIES: Final = ""
"""The `verified_id` of a line on which no checkpoint verifies: the whole line stays."""

PRUNED: Final = "pruned"
"""The event that tells which checkpoints a prune removed, and by which rule."""

OVER_BUDGET: Final = "over the budget"
"""How the reason begins for which a checkpoint goes that the budget has no room for."""

IMPORTED: Final = "imported"
"""The member of a checkpoint's metadata that tells where it came from."""

FROM_THE_FUTURE: Final = "its time lies in the future: counted as age 0"

Reasons: TypeAlias = Mapping[str, Sequence[str]]


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for one history. None switches a rule off.

    `keep_last`, `keep_within` and the three `keep_hourly`, `keep_daily`, `keep_weekly` select: as soon as one is
    set, what none of them names may go; with none set, everything stays. A period keeps its newest checkpoint, for
    as long as the span says. `keep_manual`, `keep_tags` and `keep_terminal` (the newest of each finished status)
    only add to that. `max_count`, `max_age` and `max_bytes` are caps and beat every rule above. With `is_off` only the
    newest of what is saved from now on stays, which is for the keeper to see to.
    """

    keep_last: int | None = None
    keep_within: timedelta | None = None
    keep_hourly: timedelta | None = None
    keep_daily: timedelta | None = None
    keep_weekly: timedelta | None = None
    keep_manual: bool = False
    keep_tags: tuple[str, ...] = ()
    keep_terminal: bool = True
    max_count: int | None = None
    max_age: timedelta | None = None
    max_bytes: int | None = None
    is_off: bool = False

    @property
    def keeps_all(self) -> bool:
        """Whether no rule selects, so that only a cap can remove anything."""
        spans = self.keep_within, self.keep_hourly, self.keep_daily, self.keep_weekly
        return self.keep_last is None and not any(spans)

    @property
    def count_limit(self) -> int | None:
        """Up to so many checkpoints no rule about their number removes any; None where there is no such rule."""
        return min((each for each in (self.keep_last, self.max_count) if each is not None), default=None)

    def keeps_all_of(self, count: int, most_bytes: int) -> bool:
        """Whether none of so many checkpoints, which take no more than that, can go, so that none has to be read."""
        is_over = (self.max_count is not None and count > self.max_count) or (
            self.max_bytes is not None and most_bytes > self.max_bytes
        )
        has_cap = is_over or self.max_age is not None
        return not has_cap and (count <= self.keep_last if self.keep_last is not None else self.keeps_all)


def rule_texts(
    retention: Retention, profile: str = "", sources: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The rules in words: what they keep, then what the caps remove whatever else keeps it.

    Where a profile is named, each also tells where it comes from: from that profile unless `sources` has another place.
    """
    told = list(_keep_texts(retention))
    told += [("is_off", "keep only the newest of what is saved from now on")] if retention.is_off else []
    told += _cap_texts(retention)
    places = sources or {}
    return tuple(
        f"{text} ({places.get(rule, f'profile {profile}')})" if profile else text for rule, text in told
    )


def _keep_texts(retention: Retention) -> Iterator[tuple[str, str]]:
    """(the rule, what it keeps)"""
    if retention.keeps_all:
        yield "keep_last", "keep everything"
        return
    if retention.keep_last is not None:
        yield "keep_last", f"keep the last {retention.keep_last}"
    whats = {
        "keep_within": "everything",
        "keep_hourly": "one per hour",
        "keep_daily": "one per day",
        "keep_weekly": "one per week",
    }
    for (rule, what), span in zip(whats.items(), _spans(retention), strict=True):
        if span is not None:
            yield rule, f"keep {what} of the last {span_text(span)}"
    if retention.keep_manual:
        yield "keep_manual", "keep what was saved by hand"
    yield from (("keep_tags", f"keep tag {tag}") for tag in retention.keep_tags)


def _cap_texts(retention: Retention) -> Iterator[tuple[str, str]]:
    """(the cap, what it removes)"""
    if retention.max_count is not None:
        yield "max_count", f"remove the oldest beyond {retention.max_count}"
    if retention.max_age is not None:
        yield "max_age", f"remove what is older than {span_text(retention.max_age)}"
    if retention.max_bytes is not None:
        yield "max_bytes", f"remove the oldest beyond {size(retention.max_bytes)}"


class CheckpointDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one checkpoint stays, and why. There is always a reason."""

    checkpoint: str
    seq: int
    branch: str
    time: datetime
    step: int | None
    stored_bytes: int
    stays: bool
    reasons: tuple[str, ...]
    warning: str | None


def decide(
    headers: Sequence[Header],
    stored: Mapping[str, int],
    policy: Retention,
    now_us: int,
    *,
    branches: Sequence[Branch] = (),
    current: str = MAIN_BRANCH,
    verified_id: str | None = None,
) -> list[CheckpointDecision]:
    """One decision for each checkpoint of a session, in the order given. `stored` is what each takes, in bytes.

    `verified_id` is the newest checkpoint of the current line known to verify: it and what follows it on that line
    stay (V7). None sets no such guard; an id that is not among them keeps the whole line.

    "Newest" is always by `seq`. A time in the future counts as now and is warned of. An unchanged heartbeat is the
    last to be chosen by a rule and the first to go for a budget.
    """
    idle = _unchanged_heartbeats(headers)
    ranked = sorted(headers, key=lambda header: (header.id not in idle, header.seq), reverse=True)
    guarded = _guarded(headers, branches, current, verified_id)
    aged = _over_age(headers, policy, now_us)
    chosen = _chosen(ranked, policy, now_us, aged)
    crowded = _over_budget(
        ranked, dict.fromkeys((each.id for each in headers), 1), guarded, chosen, policy.max_count
    )
    chosen = {id: reasons for id, reasons in chosen.items() if id not in crowded}
    squeezed = _over_budget(ranked, stored, guarded, chosen, policy.max_bytes)
    chosen = {id: reasons for id, reasons in chosen.items() if id not in squeezed}
    kept = _with_required(headers, guarded.keys() | chosen.keys())
    required = _required(headers, kept)

    def reasons_of(header: Header) -> Iterator[str]:
        if header.id in kept:
            for voice in (guarded, required, chosen):
                yield from voice.get(header.id, ())
        elif header.id in aged and policy.max_age is not None:
            yield f"older than {span_text(policy.max_age)}"
        elif header.id in crowded and policy.max_count is not None:
            yield f"beyond the limit of {policy.max_count}"
        elif header.id in squeezed and policy.max_bytes is not None:
            yield f"{OVER_BUDGET} of {size(policy.max_bytes)}"
        elif header.id in idle:
            yield "unchanged heartbeat"
        else:
            yield from _missed(header, policy, now_us)

    return [
        CheckpointDecision(
            checkpoint=header.id,
            seq=header.seq,
            branch=header.branch,
            time=from_us(within_calendar(header.time_us)),
            step=header.step,
            stored_bytes=stored.get(header.id, 0),
            stays=header.id in kept,
            reasons=tuple(reasons_of(header)),
            warning=FROM_THE_FUTURE if header.time_us > now_us else None,
        )
        for header in headers
    ]


# --- guards: V7 ------------------------------------------------------------------------------------------------


def _guarded(
    headers: Sequence[Header], branches: Sequence[Branch], current: str, verified_id: str | None
) -> Reasons:
    """What stays against every rule and cap, except for what is required: that depends on what else stays."""
    newest_first = sorted(headers, key=lambda header: header.seq, reverse=True)
    known = {header.id for header in headers}
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    if newest_first:
        reasons[newest_first[0].id].append("newest")
    for branch in branches:
        if branch.name != current and not (branch.is_pinned and branch.state is BranchState.OPEN):
            continue
        if branch.head in known:
            reasons[str(branch.head)].append(f"head of {branch.name}")
        if branch.fork in known:
            reasons[str(branch.fork)].append(f"fork point of {branch.name}")
    for status in (Status.FAILED, Status.COMPLETED):
        for header in _newest_with(status, newest_first):
            reasons[header.id].append(f"newest {status}")
    for header in [header for header in newest_first if SAFETY_TAG in header.tags][:SAFETY_KEPT]:
        reasons[header.id].append(f"last {SAFETY_KEPT} safety checkpoints")
    if verified_id is not None:
        line = list(_line(newest_first, branches, current))
        since = next((header.seq for header in line if header.id == verified_id), 0)
        for header in line:
            if header.seq >= since:
                is_it = header.id == verified_id
                reasons[header.id].append(
                    "newest that verifies" if is_it else "after the newest that verifies"
                )
    return reasons


def _line(headers: Iterable[Header], branches: Sequence[Branch], current: str) -> Iterator[Header]:
    """The checkpoints that `latest` may fall back to: the current branch, and what it was forked from."""
    by_name = {branch.name: branch for branch in branches}
    limits: dict[str, int | None] = {current: None}
    branch = by_name.get(current)
    while branch is not None and branch.fork_branch is not None and branch.fork_branch not in limits:
        limits[branch.fork_branch] = branch.fork_seq
        branch = by_name.get(branch.fork_branch)
    for header in headers:
        if header.branch in limits:
            limit = limits[header.branch]
            if limit is None or header.seq <= limit:
                yield header


def _newest_with(status: Status, newest_first: Iterable[Header]) -> Iterator[Header]:
    found = next((header for header in newest_first if header.status is status), None)
    if found is not None:
        yield found


def _with_required(headers: Iterable[Header], roots: Set[str]) -> set[str]:
    """The roots and all they require, through any number of steps. What is already gone is not missed."""
    by_id = {header.id: header for header in headers}
    kept: set[str] = set()
    waiting = list(roots)
    while waiting:
        id = waiting.pop()
        if id in by_id and id not in kept:
            kept.add(id)
            waiting.extend(by_id[id].requires)
    return kept


def _required(headers: Iterable[Header], kept: Set[str]) -> Reasons:
    """For each checkpoint that another kept one requires, by which: the newest is named, the rest counted."""
    by: defaultdict[str, list[Header]] = defaultdict(list)
    for header in headers:
        if header.id in kept:
            for id in set(header.requires) - {header.id}:
                by[id].append(header)
    reasons: dict[str, list[str]] = {}
    for id, requirers in by.items():
        newest = max(requirers, key=lambda header: header.seq)
        more = f" and {len(requirers) - 1} more" if len(requirers) > 1 else ""
        reasons[id] = [f"required by {newest.id}{more}"]
    return reasons


# --- keep rules ------------------------------------------------------------------------------------------------


class _Period(msgspec.Struct, frozen=True):
    name: str
    rule: str
    label: str


_PERIODS: Final = (
    _Period("hour", "hourly", "%Y-%m-%d %H:00"),
    _Period("day", "daily", "%Y-%m-%d"),
    _Period("week", "weekly", "%G-W%V"),
)


def _spans(policy: Retention) -> tuple[timedelta | None, ...]:
    return policy.keep_within, policy.keep_hourly, policy.keep_daily, policy.keep_weekly


def _chosen(ranked: Sequence[Header], policy: Retention, now_us: int, aged: Set[str]) -> Reasons:
    """What the keep rules name, with their names, except for what is too old for any of them."""
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for id, reason in _named(ranked, policy, now_us):
        if id not in aged:
            reasons[id].append(reason)
    return reasons


def _named(ranked: Sequence[Header], policy: Retention, now_us: int) -> Iterator[tuple[str, str]]:
    if policy.keeps_all:
        yield from ((header.id, "no limit") for header in ranked)
    if policy.keep_last is not None:
        yield from ((header.id, f"last {policy.keep_last}") for header in ranked[: policy.keep_last])
    within, *periods = _spans(policy)
    if within is not None:
        reason = f"within {span_text(within)}"
        yield from ((header.id, reason) for header in ranked if _is_within(header, within, now_us))
    for period, span in zip(_PERIODS, periods, strict=True):
        if span is not None:
            yield from _newest_of_each(period, span, ranked, now_us)
    for header in ranked:
        if policy.keep_manual and header.trigger.kind is TriggerKind.MANUAL:
            yield header.id, "manual"
        yield from ((header.id, f"tag {tag}") for tag in policy.keep_tags if tag in header.tags)
    if policy.keep_terminal:
        newest_first = sorted(ranked, key=lambda header: header.seq, reverse=True)
        # The newest failed and completed one are guarded anyway.
        yield from (
            (header.id, "newest cancelled") for header in _newest_with(Status.CANCELLED, newest_first)
        )


def _newest_of_each(
    period: _Period, span: timedelta, ranked: Iterable[Header], now_us: int
) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for header in ranked:
        if not _is_within(header, span, now_us):
            continue
        label = from_us(min(header.time_us, now_us)).strftime(period.label)
        if label not in seen:
            seen.add(label)
            yield header.id, f"{period.rule} {label}"


def _missed(header: Header, policy: Retention, now_us: int) -> Iterator[str]:
    """Why no rule named it."""
    if policy.keep_last is not None:
        yield f"beyond the last {policy.keep_last}"
    spans = _spans(policy)
    for period, span in zip(_PERIODS, spans[1:], strict=True):
        if span is not None and _is_within(header, span, now_us):
            yield f"not the newest of its {period.name}"
            return
    longest = max((span for span in spans if span is not None), default=None)
    if longest is not None:
        yield f"older than {span_text(longest)}"


def _unchanged_heartbeats(headers: Sequence[Header]) -> set[str]:
    """Saved by a timer, with the same contents as the checkpoint before: they tell nothing that it does not."""
    digests = {
        header.id: {name: content.digest for name, content in header.contents.items()} for header in headers
    }
    return {
        header.id
        for header in headers
        if header.trigger.kind is TriggerKind.TIMER
        and header.contents
        and header.parents
        and digests.get(header.parents[0]) == digests[header.id]
    }


# --- caps ------------------------------------------------------------------------------------------------------


def _over_age(headers: Iterable[Header], policy: Retention, now_us: int) -> set[str]:
    if policy.max_age is None:
        return set()
    limit_us = _us(policy.max_age)
    return {header.id for header in headers if now_us - _since_us(header) > limit_us}


def _over_budget(
    ranked: Sequence[Header], costs: Mapping[str, int], guarded: Reasons, chosen: Reasons, budget: int | None
) -> Set[str]:
    """The chosen ones that must go for the budget, be it of bytes or a number: as few as needed, the lowest rank first.

    What a kept one requires stays, so giving up a checkpoint may free nothing, or more than itself.
    """
    if budget is None:
        return set()
    from bisect import bisect_left  # whoever opens a store imports this module; few have a budget

    first_to_go = [
        header.id for header in reversed(ranked) if header.id in chosen and header.id not in guarded
    ]

    def fits(given_up: int) -> bool:
        kept = _with_required(ranked, guarded.keys() | set(first_to_go[given_up:]))
        return sum(costs.get(id, 0) for id in kept) <= budget

    return set(first_to_go[: bisect_left(range(len(first_to_go)), True, key=fits)])


# --- times and texts -------------------------------------------------------------------------------------------


def _us(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def _is_within(header: Header, span: timedelta, now_us: int) -> bool:
    return now_us - min(_since_us(header), now_us) < _us(span)


def _since_us(header: Header) -> int:
    """When a checkpoint came into the store: what was adopted today is not too old today."""
    origin = header.metadata.get(IMPORTED)
    adopted_us = origin.get("adopted_us") if isinstance(origin, dict) else None
    return max(header.time_us, adopted_us) if isinstance(adopted_us, int) else header.time_us


_UNITS: Final = (
    ("day", timedelta(days=1)),
    ("hour", timedelta(hours=1)),
    ("minute", timedelta(minutes=1)),
    ("second", timedelta(seconds=1)),
)


def span_text(span: timedelta) -> str:
    """`14 days`, `1 hour`, `36 hours`, `1.5 seconds`: the largest unit that needs no fraction."""
    for name, unit in _UNITS:
        if span % unit == timedelta(0):
            count = span // unit
            return f"{count} {name}" if count == 1 else f"{count} {name}s"
    return f"{span.total_seconds():g} seconds"
