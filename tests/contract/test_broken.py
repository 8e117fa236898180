"""The contract and the state machine notice a backend that breaks a promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepkeep.testing import run_machine
from tests.stateful import broken

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]

NOTICED_BY = {
    broken.SyncsInTheWrongOrder: "test_everything_is_there_after_opening_again",
    broken.ReusesSeq: "test_seq_is_never_used_again",
    broken.LosesAnnotations: "test_they_may_come_before_the_checkpoint",
    broken.DropsBases: "test_a_body_others_need_is_hidden",
    broken.IgnoresExpectHead: "test_a_save_upon_a_stale_head_is_a_conflict",
}


@pytest.fixture(scope="module")
def failures() -> set[tuple[str, str]]:
    """(class, test) of what failed when these tests of the contract ran over all of the broken backends."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-rf", "--tb=no", "-p", "no:cacheprovider"),
            *("-k", " or ".join(NOTICED_BY.values()), "tests/stateful/broken.py"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout + run.stderr
    return set(re.findall(r"^FAILED \S+::(\w+)::(\w+)", run.stdout, re.MULTILINE))


@pytest.mark.parametrize("kind", NOTICED_BY, ids=lambda kind: kind.__name__)
def test_the_contract_notices(kind: type[broken.Sound], failures: set[tuple[str, str]]) -> None:
    """The test of the broken promise fails."""
    assert (f"Test{kind.__name__}", NOTICED_BY[kind]) in failures


def test_the_contract_accuses_nobody_else(failures: set[tuple[str, str]]) -> None:
    """A sound backend under the same loss of power passes the same tests."""
    assert not [test for name, test in failures if name == "TestSound"]


@pytest.mark.parametrize("kind", NOTICED_BY, ids=lambda kind: kind.__name__)
def test_the_state_machine_notices(kind: type[broken.Sound]) -> None:
    """Some run differs from the model."""
    with pytest.raises(AssertionError):
        run_machine(broken.machine_of(kind), examples=1000, steps=30, is_fixed=True)


def test_the_state_machine_accuses_nobody_else() -> None:
    """A sound backend under the same loss of power is as modelled."""
    run_machine(broken.machine_of(broken.Sound), examples=5, steps=20)
