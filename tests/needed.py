"""Programs that some tests need."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI, where all programs must be."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
