"""The public face: open a store, save and load the state of a session."""

from holdfast.api.checkpoint import DETAILS, Checkpoint
from holdfast.api.opening import default_url, open
from holdfast.api.options import CleanupRules, RetentionRules, SaveOptions
from holdfast.api.session import Session
from holdfast.api.store import Store

__all__ = [
    "DETAILS",
    "Checkpoint",
    "CleanupRules",
    "RetentionRules",
    "SaveOptions",
    "Session",
    "Store",
    "default_url",
    "open",
]
