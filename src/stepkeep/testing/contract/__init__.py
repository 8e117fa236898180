"""The contract of a backend: every promise of `stepkeep.storage.port` as a test.

Subclass `BackendContract` in a test module under a name that starts with `Test`, and override the fixtures
`backend`, `reopen` and `raw`. Override no test.
"""

from __future__ import annotations

from stepkeep.testing.contract.adoption import AdoptContract
from stepkeep.testing.contract.annotations import AnnotationContract
from stepkeep.testing.contract.appends import AppendContract
from stepkeep.testing.contract.bodies import BodyContract
from stepkeep.testing.contract.branches import BranchContract
from stepkeep.testing.contract.concurrency import ConcurrencyContract
from stepkeep.testing.contract.events import EventContract
from stepkeep.testing.contract.fixtures import Fixtures, RawAccess
from stepkeep.testing.contract.headers import HeaderContract
from stepkeep.testing.contract.leases import LeaseContract
from stepkeep.testing.contract.refusals import RefusalContract
from stepkeep.testing.contract.removal import RemoveContract
from stepkeep.testing.contract.reopening import ReopenContract
from stepkeep.testing.contract.sessions import SessionContract
from stepkeep.testing.contract.sweeping import SweepContract

__all__ = ["BackendContract", "Fixtures", "RawAccess"]


class BackendContract(
    SessionContract,
    BranchContract,
    AppendContract,
    RefusalContract,
    HeaderContract,
    BodyContract,
    RemoveContract,
    SweepContract,
    AnnotationContract,
    EventContract,
    LeaseContract,
    AdoptContract,
    ReopenContract,
    ConcurrencyContract,
):
    """Everything a backend promises."""
