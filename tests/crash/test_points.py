"""Stopped at every call, refused by the file system at every call, and without power after every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.crash.operations import OPERATIONS
from tests.crash.report import Depth, combinations, examined, shortened
from tests.crash.stores import FILES, KINDS, SQLITE

pytestmark = pytest.mark.usefixtures("strace")

SAMPLE = Depth(every=70, limit=3, power_every=24, syncs_every=16)
ON_ALL = ("first save", "save", "prune")
"""Sampled on every kind of store, the other operations on SQLite and on one layout of files each, taking turns."""


def sampled() -> Iterator[tuple[str, str]]:
    for turn, operation in enumerate(OPERATIONS.values()):
        files = [kind for kind in operation.kinds if kind in FILES]
        if operation.name not in ON_ALL and files:
            files = [files[turn % len(files)]]
        yield from ((operation.name, kind) for kind in operation.kinds if kind == SQLITE or kind in files)


def named(combination: tuple[str, str]) -> str:
    return f"{combination[0]} on {combination[1]}"


@pytest.mark.full
@pytest.mark.parametrize("combination", list(sampled()), ids=named)
def test_a_sample_of_points(combination: tuple[str, str]) -> None:
    """Nothing acknowledged is lost, nothing is half there, and the operation can be done again."""
    assert examined(*combination, SAMPLE).violations == []


@pytest.mark.slow
@pytest.mark.parametrize("combination", combinations(), ids=named)
def test_every_point(combination: tuple[str, str], tell: Callable[[str], None]) -> None:
    """The same at every call on a file of the store that changes anything."""
    row = examined(*combination)
    counts = ", ".join(f"{method} {found.runs}" for method, found in row.outcomes.items())
    tell(f"{named(combination)}: {counts}")
    assert row.violations == []


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_short_writes(kind: str) -> None:
    """A checkpoint that is cut at some lengths is a failed save, and no more than that."""
    assert shortened(kind, every=499).violations == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_short_writes_at_every_length(kind: str) -> None:
    """The same at every length of a checkpoint of 4 KiB."""
    assert shortened(kind).violations == []
