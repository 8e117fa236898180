"""A debugging session: making a checkpoint of everything, going back to one, and what they take."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import stepkeep
from benchmarks.parts import Part, Row, Table
from benchmarks.timing import percentile, say, seconds_of
from stepkeep import config
from stepkeep.api.investigating import Investigation

ENTRIES: Final = 400
CREATE_TARGET_SECONDS: Final = 0.1
RESTORE_TARGET_SECONDS: Final = 0.2
STORED_TARGET: Final = 0.5
"""What the specification of temporal checkpointing asks for; it has no peer to be measured against."""


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:  # noqa: ARG001
    """Fill an investigation, take checkpoints as it goes on, and restore older ones."""
    say("investigation")
    entries, samples = (40, 5) if quick else (ENTRIES, 100)
    settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
    with stepkeep.open(directory / "investigation.db", config=settings) as store:
        found = store.investigation(store.session("bug", profile="archive"))
        _fill(found, entries)
        found.checkpoint("filled")
        created = [seconds_of(lambda number=number: _go_on(found, number)) for number in range(samples)]  # type: ignore[misc]
        ids = [header.id for header in found.list()][: samples // 2]
        restored = [seconds_of(lambda id=id: found.restore(id)) for id in ids]  # type: ignore[misc]
        opened = [seconds_of(lambda: store.investigation("bug")) for _ in range(5)]
        size, stored = _stored(found)
    lines = [
        (
            f"change and checkpoint, {entries:,} entries of each kind, p95",
            f"{percentile(created, 95) * 1e3:.2f}",
        ),
        ("restore an older checkpoint, p95", f"{percentile(restored, 95) * 1e3:.2f}"),
        ("take up the whole session from its checkpoints, p95", f"{percentile(opened, 95) * 1e3:.2f}"),
    ]
    return Part(
        tables=[Table("Investigation (milliseconds)", ("what", "time"), lines)],
        rows=[
            Row(
                "checkpoint of an investigation, p95 ÷ 100 ms",
                percentile(created, 95) / CREATE_TARGET_SECONDS,
                1.0,
            ),
            Row("restore of one, p95 ÷ 200 ms", percentile(restored, 95) / RESTORE_TARGET_SECONDS, 1.0),
            Row("stored bytes of its later checkpoints ÷ their states", stored / size, STORED_TARGET),
        ],
    )


def _fill(found: Investigation, entries: int) -> None:
    """The same entries in every run."""
    words = random.Random(2)
    for number in range(entries):
        hypothesis = found.hypotheses.add(f"cause {number}: {words.randbytes(20).hex()}")
        found.hypotheses.add_evidence(hypothesis.id, f"seen {words.randbytes(40).hex()}", strength=0.3)
        found.beliefs.add(f"value {number} is {words.randbytes(10).hex()}")
        found.notes.add(f"note {number}: {words.randbytes(60).hex()}")
        found.gaps.add(f"what is {words.randbytes(10).hex()}?")


def _go_on(found: Investigation, number: int) -> None:
    found.notes.add(f"later {number}")
    found.checkpoint(f"checkpoint {number}")


def _stored(found: Investigation) -> tuple[int, int]:
    """Bytes of all states but the first, and what is stored of them."""
    later = [
        body
        for body in found.session._engine.backend.bodies(found.session.uid)
        if body.base is not None or body.position
    ]
    return sum(body.size for body in later), sum(body.stored_size for body in later)
