"""Durable checkpoints for AI agents and workflows.

What `save` acknowledged is never lost, and what `load` returns is exactly what was saved.
"""

from holdfast.api import Checkpoint, SaveOptions, Session, Store, open
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
from holdfast.maintenance.verify import VerifyReport
from holdfast.model import Branch, Header, Status, Trigger, TriggerKind
from holdfast.model import Session as SessionInfo

__all__ = [
    "BackendUnavailable",
    "Branch",
    "Checkpoint",
    "Conflict",
    "Corrupt",
    "Fallback",
    "Header",
    "HoldfastError",
    "InvalidInput",
    "NotFound",
    "Pending",
    "SaveOptions",
    "Session",
    "SessionInfo",
    "Status",
    "Store",
    "Trigger",
    "TriggerKind",
    "Unsupported",
    "VerifyReport",
    "open",
]
