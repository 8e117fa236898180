"""Every call on a file of the store: the last one, or refused by the file system."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from tests.crash import tracing
from tests.crash.operations import OPERATIONS
from tests.crash.stores import Operation, opened
from tests.crash.survey import Expected, expected_of, judge
from tests.crash.tracing import CHANGING, Call, Run
from tests.memory import memory_folder

KILL, ONCE, ON = "kill", "errno once", "errno from then on"

ATTEMPTS = 5

RUN = 6
"""Of more consecutive calls of one name on one file, only these many are looked at."""

_SYNCS = ("fsync", "fdatasync")
_READS = ("read", "pread64", "fstat", "newfstatat", "getdents64", "lseek")


@dataclass
class Outcome:
    """What one method found for one operation."""

    runs: int = 0
    violations: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    """Faults that did not fire in any attempt: neither passed nor violated."""

    def note(self, what: str, problems: list[str] | None) -> None:
        """Count a run; None is a fault that was not reached."""
        if problems is None:
            self.missed.append(what)
            return
        self.runs += 1
        if problems:
            self.violations.append(f"{what}: {'; '.join(problems)}")

    def add(self, other: Outcome, prefix: str = "") -> None:
        self.runs += other.runs
        self.violations += [prefix + each for each in other.violations]
        self.missed += [prefix + each for each in other.missed]


@dataclass(frozen=True)
class Fault:
    method: str
    call: Call
    inject: str

    def __str__(self) -> str:
        return f"{self.inject} ({Path(self.call.path).name})"


def digest_of(root: Path, said: list[str]) -> bytes:
    """Of everything below a directory, and of what was said."""
    sha = hashlib.sha256(repr(said).encode())
    for folder, folders, files in os.walk(root):
        folders.sort()
        sha.update(repr((folder, folders, sorted(files))).encode())
        for name in sorted(files):
            path = Path(folder, name)
            sha.update(repr((path.stat().st_mode, path.stat().st_nlink)).encode())
            sha.update(hashlib.sha256(path.read_bytes()).digest())
    return sha.digest()


class Scene:
    """An operation on one kind of store: the store before it, its calls, and what it leads to."""

    def __init__(self, operation: Operation, kind: str, *, bug: str | None = None) -> None:
        self.operation = operation
        self.kind = kind
        self.bug = bug
        self._folder = tempfile.TemporaryDirectory(prefix="stepkeep-crash-", dir=memory_folder())
        self.folder = Path(self._folder.name)
        self.seed = self.folder / "seed"
        self.root = self.folder / "root"
        self._sound: set[bytes] = set()
        self._prepare()
        self._warm_up()
        gc.collect()
        gc.freeze()  # what is here now stays: no child and no judge needs to look through it
        self.recording = self._record()
        self.expected = self._expect()

    def _prepare(self) -> None:
        """Make the store where it will be used: captures of files know the path of their tree."""
        self.root.mkdir()
        if not self.operation.is_new:
            with opened(self.kind, self.root) as store:
                self.operation.prepare(store, self.root)
        self.root.rename(self.seed)

    def _warm_up(self) -> None:
        """Do it once in this process: what is imported late is then there in every child, and opens no files."""
        self.fresh()
        with opened(self.kind, self.root) as store:
            self.operation.act(store, self.root, lambda line: None)

    def _record(self) -> Run:
        """The calls, recorded twice: only what repeats can be stopped at a given call.

        Names have seconds in them, and a second may end in between; and a library may open a file of its own now and
        then, after which all numbers are others. Then both are recorded again.
        """
        for _ in range(ATTEMPTS):
            self.fresh()
            first = tracing.run(self.operation, self.kind, self.root, record=True, bug=self.bug)
            self.recorded = {
                str(path.relative_to(self.root)): path.read_bytes()
                for path in self.root.rglob("*")
                if path.is_file() and not path.name.endswith("-shm")
            }
            self.fresh()
            second = tracing.run(self.operation, self.kind, self.root, bug=self.bug)
            assert "OK" in first.said, first.said
            one, two = tracing.shapes(first.calls, self.root), tracing.shapes(second.calls, self.root)
            if one == two and first.said == second.said:
                return first
        raise AssertionError(f"the calls are not the same each time: {_difference(one, two)}")

    def _expect(self) -> Expected:
        """From a run without any fault, and without a seeded bug."""
        self.fresh()
        run = tracing.run(self.operation, self.kind, self.root, trace=False)
        assert "OK" in run.said, run.said
        before = None
        if not self.operation.is_new:
            before = self.folder / "before"
            shutil.copytree(self.seed, before)
        return expected_of(self.operation, self.kind, before, self.root)

    def fresh(self) -> Path:
        """A copy of the store as it was before."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.seed, self.root)
        return self.root

    def judge(self, said: list[str]) -> list[str]:
        """What is wrong with the store as it is now; the same files after the same words are judged once."""
        digest = digest_of(self.root, said)
        if digest in self._sound:
            return []
        problems = judge(self.operation, self.kind, self.root, self.expected, said)
        if not problems:
            self._sound.add(digest)
        return problems

    def close(self) -> None:
        self._folder.cleanup()

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the points

    def calls(self) -> list[Call]:
        return tracing.on_store(self.recording.calls, self.root)

    def faults(self, *, reads: bool, run: int | None = None) -> Iterator[Fault]:
        """Every fault: at each call that changes something, and with `reads` at those that only look.

        With `run`, only so many of a longer row of like calls.
        """
        calls = self.calls()
        for call in representative([call for call in calls if changes(call)], run):
            yield Fault(KILL, call, f"{call.name}:signal=KILL:when={call.number}")
            for error in _errors(call):
                yield Fault(ONCE, call, f"{call.name}:error={error}:when={call.number}")
            yield Fault(ON, call, f"{call.name}:error={_lasting(call)}:when={call.number}+")
        if reads:
            looking = [call for call in calls if not changes(call) and call.name in (*_READS, "openat")]
            for call in representative(looking, run):
                yield Fault(ONCE, call, f"{call.name}:error=EIO:when={call.number}")

    def inject(self, fault: Fault) -> list[str] | None:
        """Run it with the fault, and judge what is left; None when the fault is not reached.

        Where threads share connections a call may come under another number; then it is tried again.
        """
        for _ in range(ATTEMPTS):
            self.fresh()
            run = tracing.run(
                self.operation,
                self.kind,
                self.root,
                inject=fault.inject,
                bug=self.bug,
                again=fault.method == ONCE,
            )
            if run.has_fired:
                return self.judge(run.said)
        return None


def representative(calls: Iterable[Call], run: int | None) -> list[Call]:
    """The calls, without the most of long rows of one name on one file.

    Of a row longer than `run` a third each from its beginning, its middle and its end is left. Frames of a log are
    two calls each, so a third should be two or more.
    """
    chosen: list[Call] = []
    for _, row in groupby(calls, key=lambda call: (call.name, call.path)):
        alike = list(row)
        if run is None or len(alike) <= run:
            chosen += alike
        else:
            third, middle = run // 3, len(alike) // 2
            chosen += [*alike[:third], *alike[middle : middle + third], *alike[-third:]]
    return chosen


def _difference(one: list[tuple[str, str, int]], two: list[tuple[str, str, int]]) -> str:
    return str(next(((a, b) for a, b in zip(one, two, strict=False) if a != b), (len(one), len(two))))


def changes(call: Call) -> bool:
    if call.name == "openat":
        return "O_CREAT" in call.args[2] or "O_TRUNC" in call.args[2]
    return call.name in CHANGING and not call.path.endswith("-shm")


def _errors(call: Call) -> tuple[str, ...]:
    if call.name in _SYNCS:
        return ("EIO", "ENOSPC")
    if call.name in ("ftruncate", "unlink", "unlinkat", "rmdir"):
        return ("EIO", "EACCES")
    if call.name == "openat":
        return ("ENOSPC", "EMFILE")
    return ("ENOSPC", "EIO")


def _lasting(call: Call) -> str:
    return "EIO" if call.name in (*_SYNCS, "ftruncate", "unlink", "unlinkat") else "ENOSPC"


def explore(
    scene: Scene,
    *,
    every: int = 1,
    reads: bool = False,
    run: int | None = None,
    methods: tuple[str, ...] = (KILL, ONCE, ON),
) -> dict[str, Outcome]:
    """All faults of a scene, or each `every`-th of every method."""
    outcomes = {method: Outcome() for method in methods}
    faults = list(scene.faults(reads=reads, run=run))
    for method, outcome in outcomes.items():
        chosen = [fault for fault in faults if fault.method == method]
        for fault in chosen[:: max(1, every)]:
            outcome.note(str(fault), scene.inject(fault))
    return outcomes


def combinations() -> list[tuple[str, str]]:
    """Every operation with every kind of store it makes sense on."""
    return [(operation.name, kind) for operation in OPERATIONS.values() for kind in operation.kinds]
