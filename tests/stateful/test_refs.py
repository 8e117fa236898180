"""Random refs against random histories: what the store finds is what a plain list says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepkeep
from stepkeep.api import Store
from stepkeep.model import from_us
from stepkeep.storage.urls import open_backend
from tests.sampling import examples

START_US = 1_700_000_000_000_000
SECOND = 1_000_000
BRANCHES = ("main", "side", "deep")
TAGS = ("a", "b")


class Point(NamedTuple):
    """What the oracle knows of a checkpoint."""

    seq: int
    id: str
    branch: str
    step: int | None
    tags: tuple[str, ...]
    time_us: int


class Saving(NamedTuple):
    branch: str
    origin: int
    """Which of the checkpoints so far a new branch begins at."""
    step: int | None
    tags: tuple[str, ...]
    seconds: int


class Removing(NamedTuple):
    which: int


class Switching(NamedTuple):
    branch: str


class Restoring(NamedTuple):
    which: int


ACTIONS = st.one_of(
    st.builds(
        Saving,
        st.sampled_from(BRANCHES),
        st.integers(0, 30),
        st.none() | st.integers(0, 3),
        st.lists(st.sampled_from(TAGS), unique=True).map(tuple),
        st.integers(-3, 9),
    ),
    st.builds(Removing, st.integers(0, 30)),
    st.builds(Switching, st.sampled_from(BRANCHES)),
    st.builds(Restoring, st.integers(0, 30)),
)

REFS = st.one_of(
    st.sampled_from(["latest", "newest", "latest@before", "now"]),
    st.integers(0, 12).map(lambda count: f"latest~{count}"),
    st.integers(0, 30).map(lambda seq: f"#{seq}"),
    st.integers(0, 30).map(lambda seq: f"seq:{seq}"),
    st.integers(0, 30).map(str),
    st.integers(0, 4).map(lambda step: f"step-{step}"),
    st.sampled_from([*TAGS, "c"]).map(lambda tag: f"tag:{tag}"),
    st.sampled_from([*BRANCHES, "again-1", "none"]).map(lambda branch: f"branch:{branch}"),
    st.integers(-5, 60).map(lambda at: str(from_us(START_US + at * SECOND))),
    st.integers(0, 60).map(lambda seconds: f"{seconds} seconds ago"),
    st.tuples(st.integers(0, 30), st.integers(3, 36)),
)


class Oracle:
    """The same history as a plain list."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.forks: dict[str, tuple[str, int]] = {}
        self.names = {"main"}
        self.current = "main"
        self.before: str | None = None
        self.switches: list[tuple[int, str]] = []  # when, and which branch was left

    def line(self, branch: str) -> Iterator[Point]:
        """Newest first, through the forks."""
        limit = 10**9
        while branch in self.names:
            yield from (p for p in reversed(self.points) if p.branch == branch and p.seq <= limit)
            branch, limit = self.forks.get(branch, ("", 0))

    def is_gone(self, branch: str) -> bool:
        """Whether a branch that began at a checkpoint has neither that one nor any other left."""
        return branch in self.forks and next(self.line(branch), None) is None

    def leave(self, entered: str, now_us: int) -> None:
        self.switches.append((now_us, self.current))
        self.before = next((point.id for point in self.line(self.current)), None)
        self.current = entered

    def current_at(self, time_us: int) -> str:
        """The branch that was current at a time: going back, each later switch is undone."""
        current = self.current
        for switched_us, left in reversed(self.switches):
            if switched_us <= time_us:
                break
            current = left
        return current

    def until(self, time_us: int) -> list[Point]:
        return [point for point in self.line(self.current_at(time_us)) if point.time_us <= time_us][:1]

    def find(self, ref: str, now_us: int) -> list[Point]:
        """All that a ref may mean, what is taken first; several only for a beginning of ids."""
        line = list(self.line(self.current))
        if ref == "newest":
            return self.points[-1:]
        if ref == "latest@before":
            return [point for point in self.points if point.id == self.before]
        if ref == "now":
            return self.until(now_us)
        if ref.startswith("latest"):
            back = int(ref.partition("~")[2] or 0)
            return line[back : back + 1]
        if ref.startswith(("#", "seq:")) or ref.isdecimal():
            number = int(ref.removeprefix("seq:").removeprefix("#"))
            return [point for point in self.points if point.seq == number]
        if ref.startswith("step-"):
            return [point for point in line if point.step == int(ref[5:])][:1]
        if ref.startswith("tag:"):
            return [point for point in line if ref[4:] in point.tags][:1]
        if ref.startswith("branch:"):
            return list(self.line(ref[7:]))[:1]
        if ref.startswith("cp_"):
            return [point for point in self.points if point.id.startswith(ref)]
        if ref.endswith(" ago"):
            return self.until(now_us - int(ref.partition(" ")[0]) * SECOND)
        return self.until(START_US + self._offset(ref))

    @staticmethod
    def _offset(ref: str) -> int:
        return next(at * SECOND for at in range(-5, 61) if str(from_us(START_US + at * SECOND)) == ref)


class World:
    """A store and the oracle, driven by the same actions."""

    def __init__(self, url: str) -> None:
        self.now_us = START_US
        self.store = Store(open_backend(url), clock=lambda: self.now_us)
        self.session = self.store.session("run", profile="archive")
        self.oracle = Oracle()
        self.restores = 0

    def act(self, action: Any) -> None:
        points = self.oracle.points
        match action:
            case Saving():
                self._save(action)
            case Removing(which) if points:
                point = points.pop(which % len(points))
                self.session.delete(point.id)
            case Switching(branch) if points and self.oracle.is_gone(branch):
                with pytest.raises(stepkeep.Conflict, match="nothing is left"):
                    self.session.branches.switch(branch)
            case Switching(branch) if branch in self.oracle.names:
                if branch != self.oracle.current:
                    self.oracle.leave(branch, self.now_us)
                self.session.branches.switch(branch)
            case Restoring(which) if points:
                self.restores += 1
                point, name = points[which % len(points)], f"again-{self.restores}"
                self.oracle.leave(name, self.now_us)
                self.oracle.names.add(name)
                self.oracle.forks[name] = (point.branch, point.seq)
                self.session.restore(point.id, branch=name)

    def _save(self, saving: Saving) -> None:
        self.now_us += saving.seconds * SECOND
        oracle = self.oracle
        options: dict[str, Any] = {}
        if saving.branch not in oracle.names and oracle.points:
            origin = oracle.points[saving.origin % len(oracle.points)]
            oracle.forks[saving.branch] = (origin.branch, origin.seq)
            options["parents"] = [origin.id]
        oracle.names.add(saving.branch)
        header = self.session.save(
            {"n": self.now_us}, branch=saving.branch, step=saving.step, tags=saving.tags, **options
        )
        oracle.points.append(
            Point(header.seq, header.id, saving.branch, saving.step, saving.tags, header.time_us)
        )

    def resolved(self, ref: str) -> int | str:
        """The seq a ref leads to, or the class of the error."""
        try:
            return self.session.header(ref).seq
        except stepkeep.StepkeepError as exc:
            return type(exc).__name__

    def expected(self, ref: str) -> int | str:
        found = self.oracle.find(ref, self.now_us)
        if ref.startswith("cp_") and len(found) > 1:
            return "InvalidInput"
        return found[0].seq if found else "NotFound"


def check(url: str, actions: list[Any], refs: list[Any]) -> None:
    world = World(url)
    try:
        for action in actions:
            world.act(action)
        ids = [point.id for point in world.oracle.points] or ["cp_"]
        texts = [ref if isinstance(ref, str) else ids[ref[0] % len(ids)][: ref[1]] for ref in refs]
        assert {ref: world.resolved(ref) for ref in texts} == {ref: world.expected(ref) for ref in texts}
    finally:
        world.store.close()


@given(st.lists(ACTIONS, max_size=20), st.lists(REFS, min_size=1, max_size=12))
def test_refs_in_memory(actions: list[Any], refs: list[Any]) -> None:
    """Saves, branches, switches, restores and removals in any order: every ref leads where the list says."""
    check("memory:", actions, refs)


@pytest.mark.full
@settings(max_examples=examples(50))
@given(st.lists(ACTIONS, max_size=20), st.lists(REFS, min_size=1, max_size=12))
def test_refs_in_a_database(actions: list[Any], refs: list[Any]) -> None:
    """The same in a database file, where tags, steps and times are found by their columns."""
    with TemporaryDirectory() as folder:
        check(f"sqlite:{Path(folder) / 'store.db'}", actions, refs)
