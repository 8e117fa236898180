"""Every public name, from where it lives. `stepkeep` itself loads this on first use."""

from stepkeep.api import (
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
from stepkeep.codec.readable import (
    CommandOutcome as CommandOutcome,
    ContextDigest as ContextDigest,
    Criterion as Criterion,
)
from stepkeep.config import Settings as Settings
from stepkeep.engine import Fallback as Fallback, Pending as Pending
from stepkeep.errors import (
    BackendUnavailable as BackendUnavailable,
    Conflict as Conflict,
    Corrupt as Corrupt,
    StepkeepError as StepkeepError,
    InvalidInput as InvalidInput,
    NotFound as NotFound,
    Unsupported as Unsupported,
)
from stepkeep.executor.agents import (
    AgentCheckpoint as AgentCheckpoint,
    AgentStore as AgentStore,
    AgentSummary as AgentSummary,
)
from stepkeep.executor.interrupts import Cancellation as Cancellation
from stepkeep.executor.plan import (
    AgentState as AgentState,
    LastError as LastError,
    PlanStep as PlanStep,
    StepResult as StepResult,
    StepStatus as StepStatus,
)
from stepkeep.executor.result import ExecutionResult as ExecutionResult, Interrupted as Interrupted
from stepkeep.executor.retrying import RetryPolicy as RetryPolicy
from stepkeep.executor.scripts import Run as Run
from stepkeep.executor.steps import Hooks as Hooks, Outcome as Outcome, StepContext as StepContext
from stepkeep.history.between import CheckpointComparison as CheckpointComparison
from stepkeep.history.merge import MergeConflict as MergeConflict
from stepkeep.history.merging import Merged as Merged
from stepkeep.history.timeline import Timeline as Timeline
from stepkeep.history.tracing import ValueChange as ValueChange
from stepkeep.lifecycle.phase_record import PhaseCheckpoint as PhaseCheckpoint
from stepkeep.lifecycle.phases import (
    PhaseResult as PhaseResult,
    Phases as Phases,
    resolve_checkpoints_dir as resolve_checkpoints_dir,
)
from stepkeep.lifecycle.recorder import Recorder as Recorder
from stepkeep.maintenance.clean import CleanReport as CleanReport
from stepkeep.maintenance.prune import PrunePlan as PrunePlan, PruneReport as PruneReport
from stepkeep.maintenance.verify import VerifyReport as VerifyReport
from stepkeep.model import (
    Branch as Branch,
    Header as Header,
    Status as Status,
    Trigger as Trigger,
    TriggerKind as TriggerKind,
)
from stepkeep.model import Session as SessionInfo
from stepkeep.parts.automatic import AutoTrigger as AutoTrigger
from stepkeep.parts.port import Part as Part, PartFailed as PartFailed
from stepkeep.parts.recovery import RecoveryPoint as RecoveryPoint
