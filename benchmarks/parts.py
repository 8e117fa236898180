"""What a part of the benchmarks gives: tables to read, and figures with what they should reach.

A part is a module with `run(directory, *, quick, with_peers) -> Part`. Its line in `MODULES` makes it run with
`./dev bench`, and alone with `--only NAME`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final

MODULES: Final = {
    "adapters": "benchmarks.adapters",
    "executor": "benchmarks.executor",
    "investigation": "benchmarks.investigation",
    "langgraph": "benchmarks.langgraph",
    "mcp": "benchmarks.mcp",
    "files": "benchmarks.files",
    "postgres": "benchmarks.postgres",
    "scale": "benchmarks.scale",
    "sealed": "benchmarks.sealed",
    "startup": "benchmarks.startup",
    "travel": "benchmarks.travel",
    "walk": "benchmarks.walk",
    "web": "benchmarks.web",
    "workspace": "benchmarks.workspace",
}
"""Name -> module; imported when it runs, because some need packages that only peers bring."""

ONLY_IF_NAMED: Final = {"scale"}
"""Parts that take many minutes, and run only when they are named."""


@dataclass(frozen=True)
class Row:
    """One figure: a ratio within this run, None where its parts did not run, and what it should reach."""

    what: str
    ratio: float | None
    target: float
    is_ceiling: bool = True

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return "not run"
        reached = self.ratio <= self.target if self.is_ceiling else self.ratio >= self.target
        return "ok" if reached else "short"

    @property
    def reach(self) -> str:
        return f"{'≤' if self.is_ceiling else '≥'} {self.target:g}"


@dataclass
class Table:
    """Text in columns, as the report prints it."""

    title: str
    names: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass
class Part:
    tables: list[Table] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


def run(name: str, directory: Path, *, quick: bool, with_peers: bool) -> Part:
    """Run one part in a directory of its own."""
    place = directory / name
    place.mkdir(parents=True, exist_ok=True)
    found: Part = import_module(MODULES[name]).run(place, quick=quick, with_peers=with_peers)
    return found
