"""The whole of it, operation by operation, as a table: what was run, and what was violated."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import stepkeep
from tests.crash import power, short
from tests.crash.catching import CATCHES, Catch, caught
from tests.crash.operations import OPERATIONS
from tests.crash.points import KILL, ON, ONCE, RUN, Outcome, Scene, combinations, explore

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

    @property
    def missed(self) -> int:
        return sum(len(outcome.missed) for outcome in self.outcomes.values())


@dataclass(frozen=True)
class Depth:
    """How much of everything: each `every`-th fault, and `limit` ways to lose power at a call."""

    every: int = 1
    limit: int = 8
    power_every: int = 1
    syncs_every: int = 1
    run: int | None = RUN
    """How many calls of a longer row of like calls; None for all."""


WHOLE = Depth()


def examined(operation: str, kind: str, depth: Depth = WHOLE) -> Row:
    """One operation on one kind of store, by all methods."""
    started = time.monotonic()
    row = Row(operation, kind)
    with Scene(OPERATIONS[operation], kind) as scene:
        assert power.as_replayed(scene) == scene.recorded, "the model of the disk is not what happened"
        row.outcomes = explore(scene, every=depth.every, reads=operation in READ_FAULTS, run=depth.run)
        calls = scene.recording.calls
        row.outcomes[power.METHOD] = power.replay(
            scene, calls, limit=depth.limit, every=depth.power_every, run=depth.run
        )
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
    """A line per operation and kind: runs / violations by method, and the faults that were not reached."""
    heads = ("operation", "store", *METHODS, "not reached")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    totals = Row("**all**", "", {method: Outcome() for method in METHODS})
    for row in rows:
        for method in METHODS:
            totals.outcomes[method].add(row.outcomes.get(method, Outcome()))
        lines.append(_line(row))
    return "\n".join([*lines, _line(totals)])


def _line(row: Row) -> str:
    cells = [row.operation, row.kind]
    cells += [_cell(row.outcomes.get(method, Outcome())) for method in METHODS]
    return f"| {' | '.join([*cells, str(row.missed)])} |"


def _cell(outcome: Outcome) -> str:
    return f"{outcome.runs} / {len(outcome.violations)}"


class Results:
    """What was found so far, a line per row in a file: an interrupted run goes on where it was.

    Rows of other sources or of another depth do not count.
    """

    def __init__(self, path: Path | None, depth: Depth) -> None:
        self._path = path
        self._version = f"{version()} {depth}"
        self._rows: dict[tuple[str, str], Row] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                self._take(json.loads(line))

    def _take(self, line: dict[str, Any]) -> None:
        if line.pop("version") == self._version:
            outcomes = {method: Outcome(**outcome) for method, outcome in line.pop("outcomes").items()}
            row = Row(**line, outcomes=outcomes)
            self._rows[row.operation, row.kind] = row

    def known(self, operation: str, kind: str) -> Row | None:
        return self._rows.get((operation, kind))

    def add(self, row: Row) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"version": self._version, **asdict(row)}) + "\n")


def version() -> str:
    """The sources that are looked at, and those that look."""
    sha = hashlib.sha256()
    for folder in (Path(stepkeep.__file__).parent, Path(__file__).parent):
        for file in sorted(folder.rglob("*.py")):
            sha.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return sha.hexdigest()[:16]


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
    "Results",
    "Row",
    "bug_table",
    "caught",
    "combinations",
    "examined",
    "shortened",
    "table",
    "version",
]
