"""What a user can do, one function per action. Every surface calls these and nothing below.

The results are the frozen structs of `views`.
"""

from __future__ import annotations

from holdfast.operations.cleaning import clean
from holdfast.operations.comparing import diff, diff_ids
from holdfast.operations.configuring import inspect_config
from holdfast.operations.deleting import delete
from holdfast.operations.exporting import EXPORT_VERSION, export
from holdfast.operations.finishing import finish
from holdfast.operations.looking import (
    complete_refs,
    complete_sessions,
    count_checkpoints,
    history,
    list_checkpoints,
    list_sessions,
    session_named,
    show,
    verify,
)
from holdfast.operations.opening import open_store
from holdfast.operations.pruning import PruneFlags, prune, prune_all
from holdfast.operations.saving import save
from holdfast.operations.status import MAX_NAMED, session_status, store_status
from holdfast.operations.views import (
    ChangeView,
    CheckpointView,
    Cleaned,
    CleanupView,
    Config,
    ConfigFile,
    DecisionView,
    Deleted,
    Diff,
    Export,
    Exported,
    Failure,
    FallbackView,
    History,
    NextClean,
    ProblemView,
    Pruned,
    PrunedSession,
    SessionError,
    SessionStatus,
    SessionUsage,
    SessionView,
    SettingView,
    Shown,
    StoreStatus,
    Verified,
)

__all__ = [
    "EXPORT_VERSION",
    "MAX_NAMED",
    "ChangeView",
    "CheckpointView",
    "Cleaned",
    "CleanupView",
    "Config",
    "ConfigFile",
    "DecisionView",
    "Deleted",
    "Diff",
    "Export",
    "Exported",
    "Failure",
    "FallbackView",
    "History",
    "NextClean",
    "ProblemView",
    "PruneFlags",
    "Pruned",
    "PrunedSession",
    "SessionError",
    "SessionStatus",
    "SessionUsage",
    "SessionView",
    "SettingView",
    "Shown",
    "StoreStatus",
    "Verified",
    "clean",
    "complete_refs",
    "complete_sessions",
    "count_checkpoints",
    "delete",
    "diff",
    "diff_ids",
    "export",
    "finish",
    "history",
    "inspect_config",
    "list_checkpoints",
    "list_sessions",
    "open_store",
    "prune",
    "prune_all",
    "save",
    "session_named",
    "session_status",
    "show",
    "store_status",
    "verify",
]
