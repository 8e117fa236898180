"""How faults are set and chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import notices, tracing
from tests.crash.operations import OPERATIONS
from tests.crash.points import ONCE, Fault, Outcome, Scene, representative
from tests.crash.report import Depth, Results, Row
from tests.crash.tracing import Call


def call(name: str, number: int, path: str) -> Call:
    return Call(name, number, [f"3<{path}>"], "0", False, 1)


def test_of_a_long_row_of_like_calls_its_ends_and_its_middle_are_left() -> None:
    """Rows that are short, or interrupted, stay as they are."""
    row = [call("pwrite64", number, "/wal") for number in range(20)]
    alone = [call("fsync", 1, "/wal"), call("pwrite64", 20, "/db")]
    assert [each.number for each in representative(row, 6)] == [0, 1, 10, 11, 18, 19]
    assert representative([*row[:6], *alone], 6) == [*row[:6], *alone]
    assert representative(row, None) == row


def test_a_fault_that_is_not_reached_neither_passes_nor_fails() -> None:
    """It is counted apart."""
    outcome = Outcome()
    outcome.note("a", [])
    outcome.note("b", ["lost"])
    outcome.note("c", None)
    assert (outcome.runs, outcome.violations, outcome.missed) == (2, ["b: lost"], ["c"])


def test_finished_rows_are_known_to_the_next_run(tmp_path: Path) -> None:
    """As long as sources and depth are the same."""
    file = tmp_path / "rows"
    row = Row("save", "sqlite", {"kill": Outcome(3, ["bad"], ["far"])}, 1.5)
    Results(file, Depth()).add(row)
    assert Results(file, Depth()).known("save", "sqlite") == row
    assert Results(file, Depth(every=2)).known("save", "sqlite") is None


@pytest.mark.full
@pytest.mark.usefixtures("strace")
def test_the_kernel_and_strace_set_the_same_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the child says, and how it ends, is the same both ways."""
    if not notices.can_inject("fsync"):
        pytest.skip("this kernel or processor cannot ask")
    with Scene(OPERATIONS["save"], "files-run") as scene:
        faults = list(scene.faults(reads=False))[::11]
        asked = [_run(scene, fault) for fault in faults]
        monkeypatch.setattr(notices, "can_inject", lambda name: False)
        traced = [_run(scene, fault) for fault in faults]
    assert asked == traced
    assert all(has_fired for _, _, has_fired in asked)


def _run(scene: Scene, fault: Fault) -> tuple[list[str], int, bool]:
    scene.fresh()
    run = tracing.run(
        scene.operation, scene.kind, scene.root, inject=fault.inject, again=fault.method == ONCE
    )
    return run.said, run.code, run.has_fired
