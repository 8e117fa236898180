"""The contract of a backend: every promise of `holdfast.storage.port` as a test.

Subclass `BackendContract` in a test module under a name that starts with `Test`, and override the fixtures
`backend`, `reopen` and `raw`. Override no test.
"""

from __future__ import annotations

from holdfast.testing.contract.adoption import AdoptContract
from holdfast.testing.contract.annotations import AnnotationContract
from holdfast.testing.contract.appends import AppendContract
from holdfast.testing.contract.bodies import BodyContract
from holdfast.testing.contract.branches import BranchContract
from holdfast.testing.contract.concurrency import ConcurrencyContract
from holdfast.testing.contract.events import EventContract
from holdfast.testing.contract.fixtures import Fixtures, RawAccess
from holdfast.testing.contract.headers import HeaderContract
from holdfast.testing.contract.leases import LeaseContract
from holdfast.testing.contract.refusals import RefusalContract
from holdfast.testing.contract.removal import RemoveContract
from holdfast.testing.contract.reopening import ReopenContract
from holdfast.testing.contract.sessions import SessionContract
from holdfast.testing.contract.sweeping import SweepContract

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
