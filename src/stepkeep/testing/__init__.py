"""What the author of a backend needs to prove it.

The contract every backend keeps, a state machine that compares a store with a model of plain dicts, a wrapper
that injects faults, and strategies and builders for their input. `docs/design/writing-a-backend.md` shows how.

This package needs pytest and hypothesis. Nothing else in stepkeep imports it.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "stepkeep.testing.contract", "stepkeep.testing.oracle", "stepkeep.testing.stateful"
)

from stepkeep.testing.builders import FakeClock  # noqa: E402
from stepkeep.testing.contract import BackendContract, RawAccess  # noqa: E402
from stepkeep.testing.faults import Fault, Faults, Stopped, delay, fail, stop  # noqa: E402
from stepkeep.testing.stateful import StoreMachine, run_machine  # noqa: E402
from stepkeep.testing.strategies import StateEdit, edits, histories, same, states  # noqa: E402

__all__ = [
    "BackendContract",
    "FakeClock",
    "Fault",
    "Faults",
    "RawAccess",
    "StateEdit",
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
