"""`python -m tests.crash`: every operation by every method, then all other figures of the reliability page, as tables.

`python -m tests.crash save prune/sqlite` looks only at these operations, `--figures` only at the other figures.
`--sample N` takes every N-th point, `--every-call` also all calls of long rows of like calls. With `--results FILE`
each finished row is written down, and a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.crash import figures, tracing
from tests.crash.points import RUN
from tests.crash.report import (
    CATCHES,
    Depth,
    Results,
    Row,
    bug_table,
    caught,
    combinations,
    examined,
    shortened,
    table,
    version,
)
from tests.crash.short import FOUR_KIB
from tests.crash.stores import KINDS

Job = tuple[str, str, Depth]


def _examined(job: Job) -> Row:
    return examined(*job)


def _shortened(job: Job) -> Row:
    return shortened(job[1], job[2].every)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("only", nargs="*", help="an operation, or operation/store; all by default")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="every N-th point only")
    parser.add_argument("--ways", type=int, default=8, help="ways to lose power at a call (default 8)")
    parser.add_argument(
        "--every-call", action="store_true", help=f"not only {RUN} calls of a longer row of like calls"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, help="where to write finished rows, and to go on from")
    parser.add_argument("--figures", action="store_true", help="only what is not run point by point")
    options = parser.parse_args()
    if reason := tracing.why_not():
        print(f"cannot run: {reason}", file=sys.stderr)
        return 1
    is_sound = options.figures or _points(options)
    return 0 if (bool(options.only) or figures.report()) and is_sound else 1


def _points(options: argparse.Namespace) -> bool:
    """Whether all promises held, and every seeded bug was caught."""
    started = time.monotonic()
    sample = options.sample
    depth = Depth(sample, options.ways, sample, sample, None if options.every_call else RUN)
    jobs = [
        (name, kind, depth)
        for name, kind in combinations()
        if not options.only or name in options.only or f"{name}/{kind}" in options.only
    ]
    results = Results(options.results, depth)
    short: list[Row] = []
    bugs = []
    print(f"sources {version()}", file=sys.stderr, flush=True)
    with get_context("fork").Pool(options.processes, maxtasksperchild=1) as pool:
        rows = list(_done(jobs, results, lambda todo: pool.imap_unordered(_examined, todo)))
        if not options.only:
            short_jobs = [(FOUR_KIB.name, kind, depth) for kind in KINDS]
            short = list(_done(short_jobs, results, lambda todo: pool.imap_unordered(_shortened, todo)))
            bugs = list(zip(CATCHES, pool.imap(caught, CATCHES), strict=True))
    order = {job[:2]: number for number, job in enumerate(jobs)}
    print(table(sorted(rows, key=lambda row: order[row.operation, row.kind])))
    for row in short:
        outcome = next(iter(row.outcomes.values()))
        print(
            f"\n{row.operation}, cut at every length, {row.kind}: {outcome.runs} / {len(outcome.violations)}"
        )
    if bugs:
        print(f"\n{bug_table(bugs)}")
    violations = [violation for row in [*rows, *short] for violation in row.violations]
    print(f"\n{time.monotonic() - started:.0f} s", *violations, sep="\n", flush=True)
    return not violations and all(outcome.violations for _, outcome in bugs)


def _done(jobs: list[Job], results: Results, work: Callable[[list[Job]], Iterable[Any]]) -> Iterator[Row]:
    """The rows, those that are known already first."""
    known = [row for name, kind, _ in jobs if (row := results.known(name, kind)) is not None]
    yield from known
    for row in work([job for job in jobs if results.known(job[0], job[1]) is None]):
        results.add(row)
        _progress(row)
        yield row


def _progress(row: Row) -> None:
    runs = sum(outcome.runs for outcome in row.outcomes.values())
    text = (
        f"{row.operation} on {row.kind}: {runs} runs, {len(row.violations)} violations, "
        f"{row.missed} not reached, {row.seconds:.0f} s"
    )
    print("\n".join([text, *(f"  {each[:700]}" for each in row.violations[:5])]), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
