"""Where the time of a save goes. Functions of the package are wrapped while it runs; each part counts its own
time only, without that of the parts it calls.

A part whose function has another name by now is reported as not found, and its time shows in the part around it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any, Final, TypeAlias

import stepkeep
from benchmarks.timing import say
from benchmarks.workloads import near

SIZES: Final = (20_000, 93_000, 2_000_000)

REST: Final = "rest"

Name: TypeAlias = Callable[..., str] | str


def _statement(_: object, sql: str, *__: object) -> str:
    return "commit: write and sync" if sql == "COMMIT" else "commit: statements"


# What each function is part of. The last item of a path is the attribute to wrap, the first ones its module.
_PARTS: Final[tuple[tuple[str, str, Name], ...]] = (
    ("stepkeep.codec.exact", "encode", "check: compare"),
    ("stepkeep.codec.exact", "_is_plain", "check: walk the types"),
    ("stepkeep.codec.exact", "to_json", "encode"),
    ("stepkeep.codec.exact", "from_json", "check: decode"),
    ("stepkeep.engine.state_encoder", "NewBody.described", "hash the content"),
    ("stepkeep.engine.engine", "plain_metadata", "draft: metadata"),
    ("stepkeep.engine.engine", "_draft", "draft"),
    ("stepkeep.engine.engine", "Engine._send", "patch: choose and queue"),
    ("stepkeep.engine.engine", "seal", "commit: seal"),
    ("stepkeep.engine.chains", "digest", "hash the stored bytes"),
    ("stepkeep.codec.delta", "find_edits", "patch: find edits"),
    ("stepkeep.codec.delta", "pack", "patch: pack"),
    ("stepkeep.codec.delta", "compress", "patch: zstd prefix or keyframe"),
    ("stepkeep.engine.reader", "verified", "commit: verify the header"),
    ("stepkeep.storage.sqlite", "SqliteBackend.session", "read the session"),
    ("stepkeep.storage.sqlite", "SqliteBackend.append", "commit: rows and checks"),
    ("stepkeep.storage.sqlite", "_SqliteConnection.one", _statement),
    ("stepkeep.storage.sqlite", "_SqliteConnection.all", _statement),
    ("stepkeep.storage.sqlite", "_SqliteConnection.run", _statement),
    ("stepkeep.storage.sqlite", "_SqliteConnection.put", _statement),
    ("stepkeep.storage.sqlite", "_SqliteConnection.run_many", _statement),
)


class Stopwatch:
    """Own seconds of named parts that call each other, on one thread."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = defaultdict(float)
        self._inner: list[float] = []  # for each part that is running, what the parts inside it took

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._inner.append(0.0)
        start = perf_counter()
        try:
            yield
        finally:
            took = perf_counter() - start
            self.parts[name] += took - self._inner.pop()
            if self._inner:
                self._inner[-1] += took

    def wrapping(self, function: Callable[..., Any], name: Name) -> Callable[..., Any]:
        """The function, timed. Written out, not with `part`: a context manager costs a microsecond a call."""
        inner, parts = self._inner, self.parts

        def timed(*args: Any, **kwargs: Any) -> Any:
            inner.append(0.0)
            start = perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = perf_counter() - start
                parts[name if isinstance(name, str) else name(*args)] += took - inner.pop()
                if inner:
                    inner[-1] += took

        return timed


@contextmanager
def _wrapped(stopwatch: Stopwatch) -> Iterator[list[str]]:
    """Wrap all parts, and undo it; yields the names of functions that were not found."""
    undo: list[tuple[Any, str, Any]] = []
    missing: list[str] = []
    for module, path, name in _PARTS:
        *owners, attribute = path.split(".")
        owner: Any = import_module(module)
        for step in owners:
            owner = getattr(owner, step, None)
        found = getattr(owner, attribute, None)
        if found is None:
            missing.append(f"{module}.{path}")
            continue
        undo.append((owner, attribute, vars(owner).get(attribute)))
        setattr(owner, attribute, stopwatch.wrapping(found, name))
    try:
        yield missing
    finally:
        for owner, attribute, original in reversed(undo):
            if original is None:
                delattr(owner, attribute)  # it was inherited
            else:
                setattr(owner, attribute, original)


@dataclass
class Profile:
    """Mean own seconds of the parts of a save, those of the slowest tenth left out; `p50` is of whole saves."""

    size_bytes: int
    samples: int
    p50: float
    parts: dict[str, float]
    missing: list[str]


def run(size_bytes: int, directory: Path, *, samples: int) -> Profile:
    """Profile saves of workload W near a size."""
    say(f"profile, {size_bytes // 1000} KB")
    stopwatch = Stopwatch()
    saves: list[tuple[float, dict[str, float]]] = []
    with (
        _wrapped(stopwatch) as missing,
        stepkeep.open(f"sqlite:{directory / f'profile-{size_bytes}.db'}") as store,
    ):
        session = store.session("profile")
        for scene in near(size_bytes, samples):
            if scene.is_first:
                session = store.session(f"profile-{scene.conversation}", profile="archive")
            stopwatch.parts.clear()
            start = perf_counter()
            with stopwatch.part(REST):
                session.save(scene.state, step=scene.step)
            took = perf_counter() - start
            if not scene.is_first:
                saves.append((took, dict(stopwatch.parts)))
    return Profile(size_bytes, len(saves), median(took for took, _ in saves), _typical(saves), missing)


def _typical(saves: list[tuple[float, dict[str, float]]]) -> dict[str, float]:
    """The parts of an ordinary save, largest first. A mean, so that the parts add up to a save."""
    ordinary = sorted(saves, key=lambda save: save[0])[: max(1, len(saves) * 9 // 10)]
    names = {name for _, parts in ordinary for name in parts}
    means = {name: mean(parts.get(name, 0.0) for _, parts in ordinary) for name in names}
    return dict(sorted(means.items(), key=lambda item: -item[1]))
