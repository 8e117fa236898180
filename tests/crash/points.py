"""Every call on a file of the store: the last one, or refused by the file system."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash import tracing
from tests.crash.operations import OPERATIONS, Operation, opened
from tests.crash.survey import Expected, expected_of, judge
from tests.crash.tracing import CHANGING, Call, Run

KILL, ONCE, ON = "kill", "errno once", "errno from then on"

ATTEMPTS = 3

_SYNCS = ("fsync", "fdatasync")
_READS = ("read", "pread64", "fstat", "newfstatat", "getdents64", "lseek")


@dataclass
class Outcome:
    """What one method found for one operation."""

    runs: int = 0
    violations: list[str] = field(default_factory=list)

    def note(self, what: str, problems: list[str]) -> None:
        self.runs += 1
        if problems:
            self.violations.append(f"{what}: {'; '.join(problems)}")


@dataclass(frozen=True)
class Fault:
    method: str
    call: Call
    inject: str

    def __str__(self) -> str:
        return f"{self.inject} ({Path(self.call.path).name})"


def working_directory() -> Path | None:
    """Memory, where it is a file system: nothing here depends on a disk that really syncs."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > 2**28 else None


class Scene:
    """An operation on one kind of store: the store before it, its calls, and what it leads to."""

    def __init__(self, operation: Operation, kind: str, *, bug: str | None = None) -> None:
        self.operation = operation
        self.kind = kind
        self.bug = bug
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-crash-", dir=working_directory())
        self.folder = Path(self._folder.name)
        self.seed = self.folder / "seed"
        self.root = self.folder / "root"
        self.seed.mkdir()
        if not operation.is_new:
            with opened(kind, self.seed) as store:
                operation.prepare(store)
        self._warm_up()
        self.recording = self._record()
        self.expected = self._expect()

    def _warm_up(self) -> None:
        """Do it once in this process: what is imported late is then there in every child, and opens no files."""
        self.fresh()
        with opened(self.kind, self.root) as store:
            self.operation.act(store, self.root, lambda line: None)

    def _record(self) -> Run:
        """The calls, recorded twice: only what repeats can be stopped at a given call.

        Names have seconds in them, and a second may end in between: then both are recorded again.
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

    def judge(self, said: list[str], root: Path | None = None) -> list[str]:
        return judge(self.operation, self.kind, root or self.root, self.expected, said)

    def close(self) -> None:
        self._folder.cleanup()

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the points

    def calls(self) -> list[Call]:
        return tracing.on_store(self.recording.calls, self.root)

    def faults(self, *, reads: bool) -> Iterator[Fault]:
        """Every fault: at each call that changes something, and with `reads` at those that only look."""
        for call in self.calls():
            if changes(call):
                yield Fault(KILL, call, f"{call.name}:signal=KILL:when={call.number}")
                for error in _errors(call):
                    yield Fault(ONCE, call, f"{call.name}:error={error}:when={call.number}")
                yield Fault(ON, call, f"{call.name}:error={_lasting(call)}:when={call.number}+")
            elif reads and call.name in (*_READS, "openat"):
                yield Fault(ONCE, call, f"{call.name}:error=EIO:when={call.number}")

    def inject(self, fault: Fault) -> list[str]:
        """Run it with the fault, and judge what is left.

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
            if fired(run, fault):
                return self.judge(run.said)
        return [f"the fault did not fire: {run.said}"]


def _difference(one: list[tuple[str, str]], two: list[tuple[str, str]]) -> str:
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


def fired(run: Run, fault: Fault) -> bool:
    if fault.method == KILL:
        return run.code == -9
    return any(call.is_injected and call.name == fault.call.name for call in run.calls)


def explore(
    scene: Scene, *, every: int = 1, reads: bool = False, methods: tuple[str, ...] = (KILL, ONCE, ON)
) -> dict[str, Outcome]:
    """All faults of a scene, or each `every`-th of every method."""
    outcomes = {method: Outcome() for method in methods}
    faults = list(scene.faults(reads=reads))
    for method, outcome in outcomes.items():
        chosen = [fault for fault in faults if fault.method == method]
        for fault in chosen[:: max(1, every)]:
            outcome.note(str(fault), scene.inject(fault))
    return outcomes


def combinations() -> list[tuple[str, str]]:
    """Every operation with every kind of store it makes sense on."""
    return [(operation.name, kind) for operation in OPERATIONS.values() for kind in operation.kinds]
