"""Time travel: finding one checkpoint among many, comparing large states, going back to one."""

from __future__ import annotations

import copy
from pathlib import Path
from statistics import median
from typing import Any, Final

import stepkeep
from benchmarks.parts import Part, Row, Table
from benchmarks.timing import say, seconds_of
from benchmarks.workloads import W
from stepkeep import config

MANY: Final = 10_000
LARGE_STEPS: Final = 1000
RESTORE_TARGET_SECONDS: Final = 0.2
"""What the specification of time travel asks for; it has no peer to be measured against."""


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:  # noqa: ARG001
    """Look-ups in a long session, and a compare and a restore of a state of 2 MB."""
    say("time travel")
    many, repeats = (500, 3) if quick else (MANY, 15)
    settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
    found = _look_ups(directory, settings, many, repeats)
    compared, restored = _large(directory, settings, 50 if quick else LARGE_STEPS, repeats)
    lines = [
        *((f"find {ref} among {many:,}", f"{seconds * 1e3:.2f}") for ref, seconds in found.items()),
        ("compare two states of 2 MB that differ in three places", f"{compared * 1e3:.2f}"),
        ("restore a state of 2 MB", f"{restored * 1e3:.2f}"),
    ]
    return Part(
        tables=[Table("Time travel (milliseconds)", ("what", "median"), lines)],
        rows=[Row("restore of a 2 MB state ÷ 200 ms", restored / RESTORE_TARGET_SECONDS, 1.0)],
    )


def _look_ups(directory: Path, settings: stepkeep.Settings, many: int, repeats: int) -> dict[str, float]:
    times_us = [1_700_000_000_000_000]

    def clock() -> int:
        times_us[0] += 1_000_000
        return times_us[0]

    with stepkeep.open(directory / "many.db", config=settings, clock=clock) as store:
        session = store.session("many", profile="archive")
        for number in range(many):
            tags = ["middle"] if number == many // 2 else []
            session.save({"number": number}, step=number, tags=tags, wait=False)
        store.flush()
        middle = session.header(many // 2)
        refs = {
            "`latest`": "latest",
            "a step": f"step-{many // 2}",
            "a tag": "tag:middle",
            "an id": middle.id,
            "a time in the middle (`at`)": middle.created_at,
            "`latest~100`": "latest~100",
        }
        return {
            name: median(seconds_of(lambda ref=ref: session.at(ref)) for _ in range(repeats))  # type: ignore[misc]
            for name, ref in refs.items()
        }


def _large(directory: Path, settings: stepkeep.Settings, steps: int, repeats: int) -> tuple[float, float]:
    """Medians of comparing and of restoring, in a session whose states grow to 2 MB."""
    with stepkeep.open(directory / "large.db", config=settings) as store:
        session = store.session("large", profile="archive")
        state: Any = None
        for state in W.take(steps):
            session.save(state, wait=False)
        store.flush()
        other = copy.deepcopy(state)
        other["context"] = {"three": 3}
        other["messages"][len(other["messages"]) // 2] = {"role": "user", "content": "changed"}
        other["messages"].append({"role": "user", "content": "added"})
        session.save(other)
        compared = median(seconds_of(lambda: session.diff("latest~1", "latest")) for _ in range(repeats))
        restored = median(seconds_of(lambda: session.restore("latest~2")) for _ in range(repeats))
    return compared, restored
