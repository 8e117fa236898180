"""What encryption costs: workload W in an encrypted store beside one in clear, step by step in turns."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final

import stepkeep
from benchmarks.parts import Part, Row, Table
from benchmarks.timing import seconds_of
from benchmarks.workloads import conversation

KEY: Final = b"k" * 32
SIZES: Final = {"94 KB": (30, 60, 1.15), "2 MB": (850, 1000, 1.25)}
"""The size of the state, from which step to which it is about that, and what a save may cost at most."""

QUICK_STEPS: Final = 40
MAX_BYTES_RATIO: Final = 1.05


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:  # noqa: ARG001  (no peer does the same)
    steps = QUICK_STEPS if quick else max(last for _, last, _ in SIZES.values())
    stores = {name: _opened(directory, name) for name in ("in clear", "encrypted")}
    samples: dict[str, list[float]] = {name: [] for name in stores}
    try:
        for step, state in enumerate(islice(conversation(), steps), start=1):
            # In turns, and each first every second time: a slow moment of the machine hits both.
            for name in list(stores)[:: 1 if step % 2 else -1]:
                session = stores[name].session("w", profile="archive")
                samples[name].append(seconds_of(lambda: session.save(state, step=step)))  # noqa: B023
    finally:
        for store in stores.values():
            store.close()
    return _part(samples, {name: (directory / f"{name}.db").stat().st_size for name in stores})


def _opened(directory: Path, name: str) -> stepkeep.Store:
    is_encrypted = name == "encrypted"
    return stepkeep.open(
        f"sqlite:{directory}/{name}.db",
        config=stepkeep.Settings({}),
        key=KEY if is_encrypted else None,
        encrypt=is_encrypted,
    )


def _part(samples: dict[str, list[float]], sizes: dict[str, int]) -> Part:
    part, lines = Part(), []
    for size, (first, last, target) in SIZES.items():
        taken = {name: median(each[first:last]) for name, each in samples.items() if each[first:last]}
        ratio = taken["encrypted"] / taken["in clear"] if taken else None
        part.rows.append(Row(f"sealed: save p50 at {size} ÷ in clear", ratio, target))
        lines += [[size, name, f"{seconds * 1e6:,.0f} µs"] for name, seconds in taken.items()]
    part.rows.append(
        Row("sealed: stored bytes ÷ in clear", sizes["encrypted"] / sizes["in clear"], MAX_BYTES_RATIO)
    )
    lines += [["all steps", name, f"{size:,} bytes"] for name, size in sizes.items()]
    part.tables.append(Table("encryption", ("state", "store", "save p50, stored"), lines))
    return part
