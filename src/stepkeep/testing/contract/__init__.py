"""The contract of a backend: every promise of `stepkeep.storage.port` as a test.

Subclass `BackendContract` in a test module under a name that starts with `Test`, and override the fixtures
`backend`, `reopen` and `raw`. Override no test.
"""

from __future__ import annotations

from stepkeep.testing.contract.adoption_contract import AdoptContract
from stepkeep.testing.contract.append_contract import AppendContract, RefusalContract
from stepkeep.testing.contract.attachment_contract import AnnotationContract, EventContract, LeaseContract
from stepkeep.testing.contract.contract_fixtures import Fixtures, RawAccess
from stepkeep.testing.contract.lifetime_contract import ConcurrencyContract, ReopenContract
from stepkeep.testing.contract.record_contract import BodyContract, HeaderContract, TextContract
from stepkeep.testing.contract.removal_contract import RemoveContract, SweepContract
from stepkeep.testing.contract.session_contract import BranchContract, SessionContract

__all__ = ["BackendContract", "Fixtures", "RawAccess"]


class BackendContract(
    SessionContract,
    BranchContract,
    AppendContract,
    RefusalContract,
    TextContract,
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
