"""strace is needed here. Where it is missing these tests say so and skip, but not in CI."""

from __future__ import annotations

import pytest

from tests.crash import tracing
from tests.needed import missing


@pytest.fixture(scope="session")
def strace() -> None:
    """Skip, with the reason, where calls cannot be traced; fail in CI, where they must be."""
    reason = tracing.why_not()
    if reason is not None:
        missing(reason)
