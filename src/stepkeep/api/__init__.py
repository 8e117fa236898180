"""The public face: open a store, save and load the state of a session."""

from stepkeep.api.checkpoint import DETAILS, Checkpoint, Restored
from stepkeep.api.executing import ExecuteOptions
from stepkeep.api.opening import default_url, open
from stepkeep.api.options import CleanupRules, RetentionRules, SaveOptions
from stepkeep.api.phases import open_phases
from stepkeep.api.session import Session
from stepkeep.api.store import Store

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
