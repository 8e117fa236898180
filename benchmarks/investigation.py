"""A debugging session: making a checkpoint of everything, going back to one, and what they take.

Times are those of the clock and of the processor: other work on the machine hardly touches the latter, and a commit
that waits for the disk has no part in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Final, NamedTuple

import stepkeep
from benchmarks.cold import environment
from benchmarks.parts import Part, Row, Table
from benchmarks.startup import cpu_seconds
from benchmarks.timing import percentile, say
from stepkeep import config
from stepkeep.api.investigating import Investigation

CREATE_SECONDS: Final = 0.1
RESTORE_SECONDS: Final = {"200 KB": 0.1, "1 MB": 0.2}
COMMAND_SECONDS: Final = 0.15
STORED_TARGET: Final = 0.5
"""What the specification of temporal checkpointing asks for; it has no peer to be measured against."""

SIZES: Final = {"200 KB": 200_000, "1 MB": 1_000_000}

_COMMAND: Final = "import sys; from stepkeep.cli import main; sys.exit(main())"


class Taken(NamedTuple):
    """The 95th percentiles of what something took: by the clock, and of the processor."""

    clock: float
    processor: float


def run(directory: Path, *, quick: bool, with_peers: bool) -> Part:  # noqa: ARG001
    """Fill investigations of two sizes, take checkpoints as they go on, and restore older ones."""
    say("investigation")
    settings = config.load(cwd=None, environ={}, flags={"keeper.enabled": False})
    lines: list[tuple[str, str, str]] = []
    rows: list[Row] = []
    for name, wanted in SIZES.items():
        path = directory / f"{wanted}.db"
        with stepkeep.open(path, config=settings) as store:
            found = store.investigation(store.session("bug", profile="archive"))
            _fill(found, wanted // 20 if quick else wanted)
            samples = 5 if quick else 100
            created = _p95([partial(_go_on, found, number) for number in range(samples)])
            ids = [header.id for header in found.list()][: samples // 2]
            restored = _p95([partial(found.restore, id) for id in ids])
            opened = _p95([partial(store.investigation, "bug") for _ in range(5)])
            size, stored = _stored(found)
        by_command = median([_create(path, directory) for _ in range(2 if quick else 11)])
        lines += [
            _line(f"change and checkpoint, {name} of state, p95", created),
            _line(f"restore an older checkpoint, {name}, p95", restored),
            _line(f"take up the whole session, {name}, p95", opened),
            (f"`stepkeep create`, {name}, median", "", f"{by_command * 1e3:.1f}"),
        ]
        limit = RESTORE_SECONDS[name]
        rows += [
            Row(f"checkpoint at {name} of state, p95 CPU ÷ 100 ms", created.processor / CREATE_SECONDS, 1.0),
            Row(f"restore at {name}, p95 CPU ÷ {limit * 1e3:g} ms", restored.processor / limit, 1.0),
            Row(f"`create` by command at {name}, CPU ÷ 150 ms", by_command / COMMAND_SECONDS, 1.0),
        ]
    rows.append(Row("stored bytes of its later checkpoints ÷ their states", stored / size, STORED_TARGET))
    return Part(
        tables=[Table("Investigation (milliseconds)", ("what", "clock", "CPU"), lines)],
        rows=rows,
    )


def _p95(works: list[Callable[[], object]]) -> Taken:
    clock, processor = [], []
    for work in works:
        began, began_cpu = perf_counter(), process_time()
        work()
        clock.append(perf_counter() - began)
        processor.append(process_time() - began_cpu)
    return Taken(percentile(clock, 95), percentile(processor, 95))


def _line(what: str, taken: Taken) -> tuple[str, str, str]:
    return what, f"{taken.clock * 1e3:.2f}", f"{taken.processor * 1e3:.2f}"


def _create(path: Path, directory: Path) -> float:
    env = {**environment(), "STEPKEEP_STORE": f"sqlite:{path}", "HOME": str(directory)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    arguments = ("-c", _COMMAND, "create", "by hand", "--session", "bug", "--tags", "mark")
    return cpu_seconds(arguments, env, directory)


def _fill(found: Investigation, wanted: int) -> None:
    """The same entries in every run, until the state has so many bytes."""
    words = random.Random(2)
    number = 0
    while number == 0 or found.checkpoint("filling").contents["state"].size < wanted:
        for _ in range(50):
            number += 1
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
