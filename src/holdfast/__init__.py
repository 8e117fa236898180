"""Durable checkpoints for AI agents and workflows.

What `save` acknowledged is never lost, and what `load` returns is exactly what was saved.
"""

from holdfast.api import Checkpoint, RetentionRules, SaveOptions, Session, Store, open
from holdfast.config import Settings
from holdfast.engine import Fallback, Pending
from holdfast.errors import (
    BackendUnavailable,
    Conflict,
    Corrupt,
    HoldfastError,
    InvalidInput,
    NotFound,
    Unsupported,
)
from holdfast.maintenance.clean import CleanReport
from holdfast.maintenance.prune import PrunePlan, PruneReport
from holdfast.maintenance.verify import VerifyReport
from holdfast.model import Branch, Header, Status, Trigger, TriggerKind
from holdfast.model import Session as SessionInfo

__all__ = [
    "BackendUnavailable",
    "Branch",
    "Checkpoint",
    "CleanReport",
    "Conflict",
    "Corrupt",
    "Fallback",
    "Header",
    "HoldfastError",
    "InvalidInput",
    "NotFound",
    "Pending",
    "PrunePlan",
    "PruneReport",
    "RetentionRules",
    "SaveOptions",
    "Session",
    "SessionInfo",
    "Settings",
    "Status",
    "Store",
    "Trigger",
    "TriggerKind",
    "Unsupported",
    "VerifyReport",
    "open",
]
