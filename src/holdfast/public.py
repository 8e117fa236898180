"""Every public name, from where it lives. `holdfast` itself loads this on first use."""

from holdfast.api import (
    Checkpoint as Checkpoint,
    ExecuteOptions as ExecuteOptions,
    Restored as Restored,
    RetentionRules as RetentionRules,
    SaveOptions as SaveOptions,
    Session as Session,
    Store as Store,
    open as open,
    open_phases as open_phases,
)
from holdfast.codec.readable import (
    CommandOutcome as CommandOutcome,
    ContextDigest as ContextDigest,
    Criterion as Criterion,
)
from holdfast.config import Settings as Settings
from holdfast.engine import Fallback as Fallback, Pending as Pending
from holdfast.errors import (
    BackendUnavailable as BackendUnavailable,
    Conflict as Conflict,
    Corrupt as Corrupt,
    HoldfastError as HoldfastError,
    InvalidInput as InvalidInput,
    NotFound as NotFound,
    Unsupported as Unsupported,
)
from holdfast.executor.agents import (
    AgentCheckpoint as AgentCheckpoint,
    AgentStore as AgentStore,
    AgentSummary as AgentSummary,
)
from holdfast.executor.interrupts import Cancellation as Cancellation
from holdfast.executor.plan import (
    AgentState as AgentState,
    LastError as LastError,
    PlanStep as PlanStep,
    StepResult as StepResult,
    StepStatus as StepStatus,
)
from holdfast.executor.result import ExecutionResult as ExecutionResult, Interrupted as Interrupted
from holdfast.executor.retrying import RetryPolicy as RetryPolicy
from holdfast.executor.scripts import Run as Run
from holdfast.executor.steps import Hooks as Hooks, Outcome as Outcome, StepContext as StepContext
from holdfast.history.between import CheckpointComparison as CheckpointComparison
from holdfast.history.merge import MergeConflict as MergeConflict
from holdfast.history.merging import Merged as Merged
from holdfast.history.timeline import Timeline as Timeline
from holdfast.history.tracing import ValueChange as ValueChange
from holdfast.lifecycle.phase_record import PhaseCheckpoint as PhaseCheckpoint
from holdfast.lifecycle.phases import (
    PhaseResult as PhaseResult,
    Phases as Phases,
    resolve_checkpoints_dir as resolve_checkpoints_dir,
)
from holdfast.lifecycle.recorder import Recorder as Recorder
from holdfast.maintenance.clean import CleanReport as CleanReport
from holdfast.maintenance.prune import PrunePlan as PrunePlan, PruneReport as PruneReport
from holdfast.maintenance.verify import VerifyReport as VerifyReport
from holdfast.model import (
    Branch as Branch,
    Header as Header,
    Status as Status,
    Trigger as Trigger,
    TriggerKind as TriggerKind,
)
from holdfast.model import Session as SessionInfo
from holdfast.parts.automatic import AutoTrigger as AutoTrigger
from holdfast.parts.port import Part as Part, PartFailed as PartFailed
from holdfast.parts.recovery import RecoveryPoint as RecoveryPoint
