"""What the author of a backend needs to prove it.

The contract every backend keeps, a state machine that compares a store with a model of plain dicts, a wrapper
that injects faults, and strategies and builders for their input. `docs/design/writing-a-backend.md` shows how.

This package needs pytest and hypothesis. Nothing else in holdfast imports it.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "holdfast.testing.contract", "holdfast.testing.oracle", "holdfast.testing.stateful"
)

from holdfast.testing.clock import FakeClock  # noqa: E402
from holdfast.testing.contract import BackendContract, RawAccess  # noqa: E402
from holdfast.testing.faults import Fault, Faults, Stopped, delay, fail, stop  # noqa: E402
from holdfast.testing.stateful import StoreMachine, run_machine  # noqa: E402
from holdfast.testing.strategies import Edit, edits, histories, same, states  # noqa: E402

__all__ = [
    "BackendContract",
    "Edit",
    "FakeClock",
    "Fault",
    "Faults",
    "RawAccess",
    "Stopped",
    "StoreMachine",
    "delay",
    "edits",
    "fail",
    "histories",
    "run_machine",
    "same",
    "states",
    "stop",
]
