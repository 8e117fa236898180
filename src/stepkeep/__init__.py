"""Durable checkpoints for AI agents and workflows.

What `save` acknowledged is never lost, and what `load` returns is exactly what was saved.
"""

import sys

TYPE_CHECKING = (
    False  # known to type checkers; importing `typing` for it would cost more than all the rest here
)

if TYPE_CHECKING:
    from stepkeep.api import *

__all__ = [
    "AgentCheckpoint",
    "AgentState",
    "AgentStore",
    "AgentSummary",
    "AutoTrigger",
    "BackendUnavailable",
    "Branch",
    "Cancellation",
    "Checkpoint",
    "CheckpointComparison",
    "CleanReport",
    "CommandOutcome",
    "Conflict",
    "ContextDigest",
    "Corrupt",
    "Criterion",
    "ExecuteOptions",
    "ExecutionResult",
    "Fallback",
    "Header",
    "Hooks",
    "Interrupted",
    "InvalidInput",
    "LastError",
    "MergeConflict",
    "Merged",
    "NotFound",
    "Outcome",
    "Part",
    "PartFailed",
    "Pending",
    "PhaseCheckpoint",
    "PhaseResult",
    "Phases",
    "PlanStep",
    "PruneReport",
    "Pruned",
    "Recorder",
    "RecoveryPoint",
    "Restored",
    "RetentionRules",
    "RetryPolicy",
    "Run",
    "SaveOptions",
    "Session",
    "SessionInfo",
    "Settings",
    "Status",
    "StepContext",
    "StepResult",
    "StepStatus",
    "StepkeepError",
    "Store",
    "StoreStatus",
    "Timeline",
    "Trigger",
    "TriggerKind",
    "Unsupported",
    "ValueChange",
    "VerifyReport",
    "open",
    "open_phases",
    "resolve_checkpoints_dir",
]


def _import_msgspec() -> None:
    """Import it without `typing_extensions`, which it looks for and does not need: that takes half of its time.

    Only in a process without threads: another one could miss the module at that moment.
    """
    threading = sys.modules.get("threading")
    has_threads = threading is not None and threading.active_count() > 1
    if has_threads or "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]


_import_msgspec()

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """A public name, loaded on first use: a hook of an agent needs few of them, and is waited for."""
        if name not in __all__:
            raise AttributeError(f"module 'stepkeep' has no attribute {name!r}")
        from stepkeep import api

        value = getattr(api, name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
