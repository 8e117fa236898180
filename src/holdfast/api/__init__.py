"""The public face: open a store, save and load the state of a session."""

from holdfast.api.checkpoint import DETAILS, Checkpoint, Restored
from holdfast.api.executing import ExecuteOptions
from holdfast.api.opening import default_url, open
from holdfast.api.options import CleanupRules, RetentionRules, SaveOptions
from holdfast.api.phases import open_phases
from holdfast.api.session import Session
from holdfast.api.store import Store

__all__ = [
    "DETAILS",
    "Checkpoint",
    "CleanupRules",
    "ExecuteOptions",
    "Restored",
    "RetentionRules",
    "SaveOptions",
    "Session",
    "Store",
    "default_url",
    "open",
    "open_phases",
]
