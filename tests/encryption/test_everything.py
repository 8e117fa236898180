"""What holds for stores in clear holds for encrypted ones: tests of the api once more, on encrypted stores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SUITES = (
    "tests/api/test_conflicts.py",
    "tests/api/test_fallback.py",
    "tests/api/test_save_load.py",
)


@pytest.mark.full
@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_on_encrypted_stores(suite: str, tmp_path: Path) -> None:
    """In a process whose environment names a key: every new database is encrypted, there and in its children."""
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    environ = {**os.environ, "STEPKEEP_KEY_FILE": str(key)}
    environ.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", suite],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
