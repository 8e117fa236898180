"""Durable checkpoints for AI agents and workflows.

What `save` acknowledged is never lost, and what `load` returns is exactly what was saved.
"""

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
    "Answered",
    "AutoTrigger",
    "AwaitingAnswer",
    "BackendUnavailable",
    "BackupRules",
    "Branch",
    "Cancellation",
    "Checkpoint",
    "CheckpointComparison",
    "CleanReport",
    "CommandOutcome",
    "Compression",
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
    "KeyService",
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
    "Question",
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

__version__ = "0.1.0"

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
