"""`python -m tests.crash`: every operation by every method on two processes, and the figures as a table.

`python -m tests.crash save prune/sqlite` looks only at these. `--sample N` takes every N-th point.
"""

from __future__ import annotations

import argparse
import sys
import time
from multiprocessing import get_context

from tests.crash import tracing
from tests.crash.operations import KINDS
from tests.crash.report import (
    CATCHES,
    Depth,
    Row,
    bug_table,
    caught,
    combinations,
    examined,
    shortened,
    table,
)


def _examined(job: tuple[str, str, Depth]) -> Row:
    return examined(*job)


def _shortened(job: tuple[str, int]) -> Row:
    return shortened(*job)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("only", nargs="*", help="an operation, or operation/store; all by default")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="every N-th point only")
    parser.add_argument("--ways", type=int, default=8, help="ways to lose power at a call (default 8)")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if reason := tracing.why_not():
        print(f"cannot run: {reason}", file=sys.stderr)
        return 1
    sample = options.sample
    depth = Depth(every=sample, limit=options.ways, power_every=sample, syncs_every=sample)
    jobs = [
        (name, kind, depth)
        for name, kind in combinations()
        if not options.only or name in options.only or f"{name}/{kind}" in options.only
    ]
    started = time.monotonic()
    rows: list[Row] = []
    short: list[Row] = []
    bugs = []
    with get_context("fork").Pool(options.processes) as pool:
        for row in pool.imap(_examined, jobs):
            rows.append(row)
            _progress(row)
        if not options.only:
            for row in pool.imap(_shortened, [(kind, sample) for kind in KINDS]):
                short.append(row)
                _progress(row)
            bugs = list(zip(CATCHES, pool.imap(caught, CATCHES), strict=True))
    print(table(rows))
    for row in short:
        outcome = next(iter(row.outcomes.values()))
        print(
            f"\n{row.operation}, cut at every length, {row.kind}: {outcome.runs} / {len(outcome.violations)}"
        )
    if bugs:
        print(f"\n{bug_table(bugs)}")
    violations = [violation for row in [*rows, *short] for violation in row.violations]
    print(f"\n{time.monotonic() - started:.0f} s", *violations, sep="\n")
    return 1 if violations or not all(outcome.violations for _, outcome in bugs) else 0


def _progress(row: Row) -> None:
    runs = sum(outcome.runs for outcome in row.outcomes.values())
    text = (
        f"{row.operation} on {row.kind}: {runs} runs, {len(row.violations)} violations, {row.seconds:.0f} s"
    )
    print("\n".join([text, *(f"  {each[:700]}" for each in row.violations[:5])]), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
