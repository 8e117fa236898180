"""The frameworks' own tests pass on our adapters, but for those that cannot, each with its reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.interop.frameworks import FRAMEWORKS, ROOT, Framework


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_the_tests_of_a_framework_pass(framework: Framework, tell: Callable[[str], None]) -> None:
    """`./dev interop` succeeds: nothing fails for a reason that is not written down."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.interop", framework.name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith(f"{framework.name}: "):
            tell(line)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_a_framework_has_everything_that_belongs_to_it(framework: Framework) -> None:
    """Requirements, an extra for its adapter, tests of ours, a how-to page, and a line in the README."""
    assert (ROOT / "requirements" / "interop" / f"{framework.name}.txt").exists()
    assert framework.has_adapter == (f"\n{framework.name} = [" in (ROOT / "pyproject.toml").read_text())
    assert framework.tests
    assert (ROOT / "docs" / "how-to" / framework.page).exists()
    assert f"docs/how-to/{framework.page})" in (ROOT / "README.md").read_text()
