"""Stores of every version of the format that was ever settled are opened, verified and read.

`python -m tests.api.test_formats DIR` makes the stores of the present version; those in `tests/data` are never changed.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import stepkeep

DATA = Path(__file__).parents[1] / "data"
LAYOUTS = ("workflow", "run", "phase")


def states() -> Iterator[Any]:
    """Small and large, plain and with tags, growing and changing wholly."""
    noise = random.Random(1)
    said: list[dict[str, Any]] = []
    for step in range(24):
        said.append({"role": "user", "text": f"{step}: {noise.random()} " + "word " * 400})
        yield {"step": step, "messages": list(said), "cost": step / 7}
    yield {
        "when": datetime(2026, 11, 18, 6, 28, tzinfo=UTC),
        "price": Decimal("1.10"),
        "pair": (1, {2, 3}),
        "big": 2**70,
    }
    yield {"query": "tides", "results": []}


def make(store: stepkeep.Store) -> None:
    run = store.session("research-42", profile="archive", project="tides")
    for step, state in enumerate(states()):
        run.save(state, step=step, message=f"step {step}", tags=["even"] if step % 2 == 0 else [])
    run.restore("step-3")
    run.save({"on": "a branch"}, details={"why": "tried again"})
    run.delete("seq:6")
    store.session("done").save({"n": 1})
    store.session("done").complete()


def check(store: stepkeep.Store) -> None:
    assert store.verify().is_intact
    run = store.get("research-42")
    for step, state in enumerate(states()):
        if step == 5:
            continue
        found = run.load(f"seq:{step + 1}")
        assert found.state == state
        assert repr(found.state) == repr(state) or step == 24  # a set has no order
        assert (found.step, found.header.message) == (step, f"step {step}")
    latest = run.latest()
    assert latest is not None
    assert (latest.state, latest.details) == ({"on": "a branch"}, {"why": "tried again"})
    assert len(list(run.branches)) == 2
    assert store.get("done").info.status == "completed"
    run.save({"goes": "on"})
    assert run.load().state == {"goes": "on"}


@pytest.mark.parametrize(
    "packed", sorted(DATA.glob("format-*/*.zip")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_a_store_of_every_format_is_read(packed: Path, tmp_path: Path) -> None:
    """Each checkpoint is what was saved then, the store is intact, and the next save works."""
    shutil.unpack_archive(packed, tmp_path)
    url = (
        f"sqlite:{tmp_path}/store.db"
        if packed.stem == "sqlite"
        else f"files:{tmp_path}/store?layout={packed.stem}"
    )
    with stepkeep.open(url) as store:
        check(store)


def test_the_present_format_is_the_newest_in_the_data(tmp_path: Path) -> None:
    """A store that is made now reads the same way as those that were kept."""
    with stepkeep.open(f"sqlite:{tmp_path}/store.db") as store:
        make(store)
    with stepkeep.open(f"sqlite:{tmp_path}/store.db") as store:
        check(store)


def main(target: Path) -> None:
    for name in ("sqlite", *LAYOUTS):
        place = target / name
        place.mkdir(parents=True)
        url = f"sqlite:{place}/store.db" if name == "sqlite" else f"files:{place}/store?layout={name}"
        with stepkeep.open(url) as store:
            make(store)
        for beside in (
            *place.glob("*.metrics"),
            *place.glob("*-ballast"),
            *place.glob("*-shm"),
            *place.glob("*-wal"),
        ):
            beside.unlink()
        shutil.make_archive(str(target / name), "zip", place)
        shutil.rmtree(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
