"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks import care, floor, growth, hook, parts, peers, profile, report, throughput
from benchmarks.cold import ROOT
from benchmarks.plot import write_svg
from benchmarks.report import Report
from benchmarks.timing import say
from benchmarks.workloads import WORKLOADS, W

_BUILD: Final = ROOT / "build" / "bench"
_STEPS: Final = (50, 200, 1000)
PARTS: Final = (
    *(workload.name for workload in WORKLOADS),
    "floor",
    "throughput",
    "care",
    "hook",
    "profile",
    *parts.MODULES,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks that were asked for, print the tables, write the files."""
    options = _parser().parse_args(arguments)
    if options.peers:
        try:
            peers.langgraph_modules()
        except peers.PeersMissing as exc:
            say(f"benchmarks: {exc}")
            return 2
    options.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="run-") as directory:
        found = _run(options, Path(directory))
    print(report.as_text(found))
    report.write_json(found, options.json)
    say(f"written: {options.json}")
    _draw(found, options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peers", action="store_true", help="also measure LangGraph's savers")
    parser.add_argument("--quick", action="store_true", help="50 steps and few repeats: does it run at all?")
    parser.add_argument("--only", action="append", choices=PARTS, metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--steps", type=_numbers, metavar="N,N", help="numbers of steps (50,200,1000)")
    parser.add_argument("--json", type=Path, default=_BUILD / "latest.json", metavar="FILE")
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="draw workload W at its largest number of steps"
    )
    parser.add_argument(
        "--dir", type=Path, default=_BUILD, help="where stores are made: on the disk to measure (build/bench)"
    )
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(sorted(int(part) for part in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None
    if numbers[0] < 10:
        raise argparse.ArgumentTypeError("fewer than 10 steps say nothing")
    return numbers


def _run(options: argparse.Namespace, directory: Path) -> Report:
    found = Report(machine=report.machine(directory))
    wanted = set(options.only or PARTS) - (set() if options.only else parts.ONLY_IF_NAMED)
    quick = options.quick
    for workload in WORKLOADS:
        for steps in options.steps or ((50,) if quick else _STEPS):
            if workload.name in wanted:
                # Each store is gone before the next begins: those of the peers take gigabytes.
                with tempfile.TemporaryDirectory(dir=directory) as place:
                    found.growth += growth.run(
                        workload, steps, Path(place), with_peers=options.peers, repeats=1 if quick else 7
                    )
    if "floor" in wanted:
        for size in profile.SIZES[: 1 if quick else None]:
            found.floors.append(floor.run(size, directory / f"floor-{size}", samples=20 if quick else 200))
    if "throughput" in wanted:
        found.rates = (
            throughput.run(directory, rounds=1, seconds=0.2, max_processes=1, with_peers=options.peers)
            if quick
            else throughput.run(directory, rounds=5, seconds=1.0, with_peers=options.peers)
        )
    if "care" in wanted:
        sizes = (300, 50, 50) if quick else (10_000, 10_000, 500)
        checkpoints, sessions, samples = sizes
        found.care = care.run(directory / "care", checkpoints=checkpoints, sessions=sessions, samples=samples)
    if "hook" in wanted:
        sizes = (1, 20) if quick else (15, 1000)
        print(hook.as_text(hook.run(directory / "hook", repeats=sizes[0], sessions=sizes[1])))
    if "profile" in wanted:
        for size in profile.SIZES[: 1 if quick else None]:
            found.profiles.append(profile.run(size, directory, samples=20 if quick else 200))
    for name in parts.MODULES:
        if name in wanted:
            found.parts[name] = parts.run(name, directory, quick=quick, with_peers=options.peers)
    return found


def _draw(found: Report, options: argparse.Namespace) -> None:
    if options.svg is None:
        return
    results = [result for result in found.growth if result.workload == W.name]
    most = max((result.steps for result in results), default=0)
    if not most:
        say(f"benchmarks: nothing to draw: workload {W.name!r} did not run")
        return
    write_svg([result for result in results if result.steps == most], found.machine, options.svg)
    say(f"written: {options.svg}")


if __name__ == "__main__":
    sys.exit(main())
