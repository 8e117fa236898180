"""Refs name the same checkpoint as a plain list does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepkeep
from stepkeep.model import from_us

BASE_US = 1_700_000_000_000_000


class Point(NamedTuple):
    """What the oracle knows of a checkpoint."""

    seq: int
    id: str
    branch: str
    step: int | None
    tags: tuple[str, ...]
    time_us: int


class World(NamedTuple):
    """A store with branches and deletions, and the same as a plain list."""

    store: stepkeep.Store
    session: stepkeep.Session
    points: list[Point]
    forks: dict[str, tuple[str, int]]

    def line(self, branch: str) -> Iterator[Point]:
        """Newest first, through the forks."""
        limit = 10**9
        while branch:
            yield from (p for p in reversed(self.points) if p.branch == branch and p.seq <= limit)
            branch, limit = self.forks.get(branch, ("", 0))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    clock = iter(BASE_US + offset * 1_000_000 for offset in (*range(9), 3, 4, *range(20, 60)))
    now = [BASE_US]

    def tick() -> int:
        return now[0]

    store = stepkeep.open("memory:", clock=tick)
    session = store.session("run", profile="archive")
    points: list[Point] = []

    def save(branch: str, step: int | None = None, tags: tuple[str, ...] = (), **options: Any) -> None:
        now[0] = next(clock)
        state = {"n": len(points) + 1}
        header = session.save(state, branch=branch, step=step, tags=tags, **options)
        points.append(Point(header.seq, header.id, branch, step, tags, header.time_us))

    for n in range(12):
        save("main", step=n // 2 - 1, tags=("even", "x:y") if n % 2 == 0 else ())
    save("side", step=3, tags=("odd",), parents=[points[5].id])
    for n in range(5):
        save("side", step=n, tags=("even",) if n == 2 else ())
    save("main", step=99)
    save("deep", parents=[points[14].id], tags=("deep",))
    save("main", step=2)
    for seq in (3, 9, 15):
        session.delete(points[seq - 1].id)
    left = [point for point in points if point.seq not in (3, 9, 15)]
    forks = {"side": ("main", 6), "deep": ("side", 15)}
    yield World(store, session, left, forks)
    store.close()


BRANCHES = st.sampled_from(["main", "side", "deep"])


def resolved(world: World, branch: str, ref: Any) -> int | str:
    """The seq a ref leads to, or the class of the error."""
    world.store.engine.backend.update_session(world.session.uid, {"branch": branch})
    try:
        header = world.session.header(ref)
    except stepkeep.StepkeepError as exc:
        return type(exc).__name__
    assert world.session.at(ref).header == header
    return header.seq


def first(points: Iterator[Point] | list[Point]) -> int | str:
    return next((point.seq for point in points), "NotFound")


@given(BRANCHES, st.integers(0, 20))
def test_latest_and_so_many_back(world: World, branch: str, count: int) -> None:
    """`latest~n` counts along the line of the current branch."""
    assert resolved(world, branch, f"latest~{count}") == first(list(world.line(branch))[count:])
    assert resolved(world, branch, "latest") == first(world.line(branch))


@given(BRANCHES)
def test_newest(world: World, branch: str) -> None:
    """`newest` is the highest seq wherever the session is."""
    assert resolved(world, branch, "newest") == world.points[-1].seq


@given(BRANCHES, st.integers(-2, 30))
def test_seq(world: World, branch: str, seq: int) -> None:
    """A number names the checkpoint with that seq on whichever branch."""
    expected = first([point for point in world.points if point.seq == seq])
    assert resolved(world, branch, seq) == expected
    if seq >= 0:
        assert resolved(world, branch, f"#{seq}") == expected
        assert resolved(world, branch, f"seq:{seq}") == expected


@given(BRANCHES, st.integers(-2, 7) | st.just(99))
def test_step(world: World, branch: str, step: int) -> None:
    """`step-n` is the newest with that step on the current line, fork included."""
    expected = first(point for point in world.line(branch) if point.step == step)
    assert resolved(world, branch, f"step-{step}") == expected


@given(BRANCHES, st.sampled_from(["even", "odd", "deep", "x:y", "none"]))
def test_tag(world: World, branch: str, tag: str) -> None:
    """`tag:t` is the newest with that tag on the current line."""
    assert resolved(world, branch, f"tag:{tag}") == first(p for p in world.line(branch) if tag in p.tags)


@given(BRANCHES, BRANCHES | st.just("none"))
def test_branch(world: World, branch: str, name: str) -> None:
    """`branch:b` is the head of that branch."""
    assert resolved(world, branch, f"branch:{name}") == first(
        p for p in world.points[::-1] if p.branch == name
    )


@given(BRANCHES, st.data())
def test_id_and_prefix(world: World, branch: str, data: st.DataObject) -> None:
    """An id, or a beginning that only one id has; a shared beginning is refused."""
    point = data.draw(st.sampled_from(world.points))
    prefix = point.id[: data.draw(st.integers(3, len(point.id)))]
    matches = [p for p in world.points if p.id.startswith(prefix)]
    assert resolved(world, branch, prefix) == (matches[0].seq if len(matches) == 1 else "InvalidInput")
    assert resolved(world, branch, point.id) == point.seq


ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))])


@given(BRANCHES, st.integers(-5_000_000, 70_000_000), ZONES)
def test_moment(world: World, branch: str, offset_us: int, zone: timezone | None) -> None:
    """A time is the newest on the line at or before it; without zone it is UTC."""
    moment = from_us(BASE_US + offset_us)
    local = moment.astimezone(zone) if zone else moment.replace(tzinfo=None)
    expected = first(p for p in world.line(branch) if p.time_us <= BASE_US + offset_us)
    assert resolved(world, branch, local) == expected
    assert resolved(world, branch, local.isoformat()) == expected
    assert resolved(world, branch, str(local)) == expected


NO_REFS = [
    "",
    "Latest",
    "latest~",
    "latest~-1",
    "latest~x",
    " latest",
    "latest\n",
    "#",
    "#x",
    "seq:",
    "seq:-1",
]
NO_REFS += [
    "step-",
    "step-x",
    "tag:",
    "branch:",
    "12x",
    "-12",
    "1_2",
    "１２",
    "yesterday-ish",
    "2025-13-01",
    "cp-1",
    "\0",
    "a\ud800",
]
NO_REFS += ["x" * 2000]


@pytest.mark.parametrize("ref", NO_REFS)
def test_what_is_no_ref_is_refused(world: World, ref: str) -> None:
    """Text of no known form is `InvalidInput`, not an empty answer."""
    with pytest.raises(stepkeep.InvalidInput):
        world.session.load(ref)


@pytest.mark.parametrize("ref", [2**63, 2**70, -(2**70), "#999999999999999999", "step-999999999999999999"])
def test_huge_numbers_are_not_found(session: stepkeep.Session, ref: int | str) -> None:
    """A number beyond what is stored is just not there."""
    session.save({"n": 1})
    with pytest.raises(stepkeep.NotFound):
        session.load(ref)


def test_refs_work_on_sqlite_as_well(session: stepkeep.Session) -> None:
    """The same forms against a database file."""
    one = session.save({"n": 1}, step=1, tags=["a"])
    two = session.save({"n": 2}, step=1)
    side = session.save({"n": 3}, branch="side", parents=[one.id])
    found = {
        "latest": 2,
        "latest~1": 1,
        "newest": 3,
        "#1": 1,
        "2": 2,
        "seq:3": 3,
        "step-1": 2,
        "tag:a": 1,
        "branch:side": 3,
        side.id: 3,
        two.id[:-1]: 2,
        str(two.created_at): 2,
    }
    assert {ref: session.load(ref).seq for ref in found} == found
    assert session.load(one.created_at).seq == 1
    with pytest.raises(stepkeep.NotFound):
        session.load(datetime(1999, 1, 1, tzinfo=UTC))
