"""Hostile input: every reader of outside bytes answers, or refuses with an error of ours, and takes no time for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.__main__ import plain
from tests.fuzz.targets import SEEDS, TARGETS
from tests.sampling import examples


@pytest.mark.parametrize("name", TARGETS)
def test_seeds(name: str) -> None:
    """The seeds themselves are taken."""
    for data in SEEDS[name]:
        TARGETS[name](data)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in TARGETS if name != "mcp_requests"])
@settings(max_examples=examples(200))
@given(
    data=st.one_of(
        st.binary(max_size=2000), st.text(max_size=500).map(lambda text: text.encode("utf-8", "replace"))
    )
)
def test_any_bytes(name: str, data: bytes) -> None:
    """Nothing but an answer or a refusal."""
    TARGETS[name](data)


@pytest.mark.full
@pytest.mark.parametrize("name", TARGETS)
def test_changed_seeds(name: str) -> None:
    """A second of seeds changed at random."""
    assert "executions" in plain(name, 1, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_a_minute(name: str, tell: Callable[[str], None]) -> None:
    """A minute each, by coverage where atheris is installed; the number of executions is printed."""
    command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", "60"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    tell(done.stdout.strip())
