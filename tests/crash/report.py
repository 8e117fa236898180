"""The whole of it, operation by operation, as a table: what was run, and what was violated."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.crash import power, short
from tests.crash.catching import CATCHES, Catch, caught
from tests.crash.operations import OPERATIONS
from tests.crash.points import KILL, ON, ONCE, Outcome, Scene, combinations, explore

METHODS = (KILL, ONCE, ON, power.METHOD, power.SYNCS)
READ_FAULTS = ("save", "prune")
"""The operations whose reading calls fail as well."""


@dataclass
class Row:
    operation: str
    kind: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def violations(self) -> list[str]:
        return [
            f"{self.operation} on {self.kind}, {method}: {violation}"
            for method, outcome in self.outcomes.items()
            for violation in outcome.violations
        ]


@dataclass(frozen=True)
class Depth:
    """How much of everything: each `every`-th fault, and `limit` ways to lose power at a call."""

    every: int = 1
    limit: int = 8
    power_every: int = 1
    syncs_every: int = 1


WHOLE = Depth()


def examined(operation: str, kind: str, depth: Depth = WHOLE) -> Row:
    """One operation on one kind of store, by all methods."""
    started = time.monotonic()
    row = Row(operation, kind)
    with Scene(OPERATIONS[operation], kind) as scene:
        assert power.as_replayed(scene) == scene.recorded, "the model of the disk is not what happened"
        row.outcomes = explore(scene, every=depth.every, reads=operation in READ_FAULTS)
        calls = scene.recording.calls
        row.outcomes[power.METHOD] = power.replay(scene, calls, limit=depth.limit, every=depth.power_every)
        row.outcomes[power.SYNCS] = power.replay_failed_syncs(scene, limit=4, every=depth.syncs_every)
    row.seconds = time.monotonic() - started
    return row


def shortened(kind: str, every: int = 1) -> Row:
    """Every length of a checkpoint of 4 KiB."""
    started = time.monotonic()
    with Scene(short.FOUR_KIB, kind) as scene:
        outcome = short.shorten(scene, range(0, short.longest(scene) + 1, every))
    return Row(short.FOUR_KIB.name, kind, {short.METHOD: outcome}, time.monotonic() - started)


def table(rows: Iterable[Row]) -> str:
    """A line per operation and kind: runs / violations by method."""
    lines = ["| operation | store | " + " | ".join(METHODS) + " |", "|---" * (2 + len(METHODS)) + "|"]
    totals = {method: Outcome() for method in METHODS}
    for row in rows:
        cells = []
        for method in METHODS:
            outcome = row.outcomes.get(method, Outcome())
            totals[method].runs += outcome.runs
            totals[method].violations += outcome.violations
            cells.append(_cell(outcome))
        lines.append(f"| {row.operation} | {row.kind} | " + " | ".join(cells) + " |")
    lines.append("| **all** | | " + " | ".join(_cell(totals[method]) for method in METHODS) + " |")
    return "\n".join(lines)


def _cell(outcome: Outcome) -> str:
    return f"{outcome.runs} / {len(outcome.violations)}"


def bug_table(found: Iterable[tuple[Catch, Outcome]]) -> str:
    lines = ["| seeded bug | operation | store | method | caught |", "|---|---|---|---|---|"]
    for catch, outcome in found:
        answer = "yes" if outcome.violations else "**no**"
        bug = catch.bug.replace("_", " ")
        lines.append(f"| {bug} | {catch.operation} | {catch.kind} | {catch.method} | {answer} |")
    return "\n".join(lines)


__all__ = [
    "CATCHES",
    "Depth",
    "Row",
    "bug_table",
    "caught",
    "combinations",
    "examined",
    "shortened",
    "table",
]
