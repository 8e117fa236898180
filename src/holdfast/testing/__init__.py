"""What the author of a backend needs to prove it: builders of records, and the contract every backend keeps.

This package needs pytest. Nothing else in holdfast imports it.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("holdfast.testing.contract")

from holdfast.testing.clock import FakeClock  # noqa: E402
from holdfast.testing.contract import BackendContract, RawAccess  # noqa: E402

__all__ = ["BackendContract", "FakeClock", "RawAccess"]
