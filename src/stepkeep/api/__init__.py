"""The whole product in Python: stores, sessions, and what hangs on them.

Commands, servers, hooks and adapters use the names exported here and the modules of layer 0 (errors, logs, model,
text, secrets); adapters use `stepkeep.api.extension` beside them. Each name is imported from its module on first use,
because opening a store to save one checkpoint must not pay for everything else. What an action does lives in the
packages below; this package holds the objects through which it is reached, their options, and their results.
"""

import os
import sys
from types import ModuleType, SimpleNamespace

TYPE_CHECKING = (
    False  # known to type checkers; importing `typing` for it would cost more than all the rest here
)

if TYPE_CHECKING:
    from stepkeep.api.agent_tables import AgentsExported as AgentsExported, export_agents as export_agents
    from stepkeep.api.checkpoint import Checkpoint as Checkpoint, Restored as Restored
    from stepkeep.api.choosing import (
        Chosen as Chosen,
        TakenUp as TakenUp,
        choose as choose,
        current_session as current_session,
        is_phase_session as is_phase_session,
        list_unfinished as list_unfinished,
        open_phases as open_phases,
        phases_url as phases_url,
        recorded_run as recorded_run,
        resume_phase as resume_phase,
        working_folder as working_folder,
    )
    from stepkeep.api.doctor import Diagnosis as Diagnosis, Symptom as Symptom, diagnose as diagnose
    from stepkeep.api.files import Files as Files
    from stepkeep.api.hook_answers import answer_hook as answer_hook
    from stepkeep.api.hooks_trial import (
        EventTried as EventTried,
        HooksTrial as HooksTrial,
        try_hooks as try_hooks,
    )
    from stepkeep.api.import_files import FileImport as FileImport, FilesImport as FilesImport
    from stepkeep.api.investigating import (
        Investigation as Investigation,
        InvestigationChange as InvestigationChange,
        InvestigationStatus as InvestigationStatus,
        RecoveryView as RecoveryView,
        change_investigation as change_investigation,
        investigation_at as investigation_at,
        investigation_recovery as investigation_recovery,
        investigation_report as investigation_report,
        investigation_status as investigation_status,
        with_times as with_times,
    )
    from stepkeep.api.keys import (
        Keys as Keys,
        copy_store as copy_store,
        given_key as given_key,
        recover as recover,
    )
    from stepkeep.api.opening import open as open
    from stepkeep.api.option_types import (
        BackupRules as BackupRules,
        CleanupRules as CleanupRules,
        RestoreOptions as RestoreOptions,
        RetentionRules as RetentionRules,
        SaveOptions as SaveOptions,
        TimelineOptions as TimelineOptions,
    )
    from stepkeep.api.options import parse_policy as parse_policy
    from stepkeep.api.overview import (
        RunStep as RunStep,
        RunView as RunView,
        SessionOverview as SessionOverview,
        SessionPage as SessionPage,
    )
    from stepkeep.api.results import (
        FORMATS as FORMATS,
        Deleted as Deleted,
        Exported as Exported,
        Shown as Shown,
        ShownAt as ShownAt,
        ValueAt as ValueAt,
        StepOutput as StepOutput,
        TranscriptExported as TranscriptExported,
        ValueShown as ValueShown,
        to_json as to_json,
    )
    from stepkeep.api.rewinding import Rewind as Rewind, Rewound as Rewound
    from stepkeep.api.scheduled_backups import BackupAttempt as BackupAttempt, backups_every as backups_every
    from stepkeep.api.session import Session as Session
    from stepkeep.api.session_branches import Branches as Branches
    from stepkeep.api.store import Store as Store
    from stepkeep.codec.compression import Compression as Compression
    from stepkeep.config.store_names import default_url as default_url, store_option as store_option
    from stepkeep.codec.readable import (
        LAYOUTS as LAYOUTS,
        CommandOutcome as CommandOutcome,
        ContextDigest as ContextDigest,
    )
    from stepkeep.config import (
        Config as Config,
        SettingView as SettingView,
        Settings as Settings,
        inspect_config as inspect_config,
    )
    from stepkeep.config.editing import (
        ConfigWritten as ConfigWritten,
        init_config as init_config,
        set_config as set_config,
    )
    from stepkeep.config.trust import Trusted as Trusted, trust as trust
    from stepkeep.engine import Fallback as Fallback, Pending as Pending
    from stepkeep.errors import (
        BackendUnavailable as BackendUnavailable,
        Conflict as Conflict,
        Corrupt as Corrupt,
        InvalidInput as InvalidInput,
        NotFound as NotFound,
        StepkeepError as StepkeepError,
        Unsupported as Unsupported,
    )
    from stepkeep.history.changes import FULL as FULL
    from stepkeep.history.changes import WIDTH as WIDTH
    from stepkeep.history.conversation import Conversation as Conversation, MessageView as MessageView
    from stepkeep.history.documents import (
        BranchChanged as BranchChanged,
        BranchInfo as BranchInfo,
        BranchList as BranchList,
        CheckpointInfo as CheckpointInfo,
        History as History,
        SessionSummary as SessionSummary,
        decoded as decoded,
    )
    from stepkeep.history.finding import FoundText as FoundText, Match as Match
    from stepkeep.history.merge import (
        ClashInfo as ClashInfo,
        MergeConflict as MergeConflict,
        Merged as Merged,
        Side as Side,
        Strategy as Strategy,
    )
    from stepkeep.history.outline import Outline as Outline, OutlineEntry as OutlineEntry
    from stepkeep.history.refs import BEFORE as BEFORE
    from stepkeep.history.state_diff import (
        CheckpointComparison as CheckpointComparison,
        ComparisonView as ComparisonView,
        ValueChange as ValueChange,
        ValueLog as ValueLog,
    )
    from stepkeep.history.timeline import (
        CheckpointNode as CheckpointNode,
        DamagedNode as DamagedNode,
        FoldNode as FoldNode,
        GapNode as GapNode,
        Node as Node,
        Pictured as Pictured,
        RestNode as RestNode,
        Timeline as Timeline,
        TimelinePage as TimelinePage,
        Timelines as Timelines,
    )
    from stepkeep.investigation.beliefs import (
        BeliefKind as BeliefKind,
        ContradictionStatus as ContradictionStatus,
        Relationship as Relationship,
    )
    from stepkeep.investigation.entries import BrokenEntry as BrokenEntry, RepairedEntry as RepairedEntry
    from stepkeep.investigation.hypotheses import (
        PRIOR_CONFIDENCE as PRIOR_CONFIDENCE,
        Criticality as Criticality,
        EvidenceKind as EvidenceKind,
        GapStatus as GapStatus,
        GapType as GapType,
    )
    from stepkeep.investigation.worklog import VERIFICATION_SECONDS as VERIFICATION_SECONDS
    from stepkeep.maintenance.backup import BackupReport as BackupReport, restore_backup as restore_backup
    from stepkeep.maintenance.last_backup import LastBackup as LastBackup
    from stepkeep.maintenance.object_backup import is_object_url as is_object_url
    from stepkeep.maintenance.clean import CleanReport as CleanReport
    from stepkeep.maintenance.copying import (
        CopyReport as CopyReport,
        RecoverReport as RecoverReport,
        count_copied as count_copied,
    )
    from stepkeep.maintenance.prune import Pruned as Pruned, PruneReport as PruneReport
    from stepkeep.maintenance.rekey import RekeyReport as RekeyReport
    from stepkeep.maintenance.metrics import Stats as Stats, prometheus as prometheus
    from stepkeep.maintenance.status import (
        NextClean as NextClean,
        SessionStatus as SessionStatus,
        SessionUsage as SessionUsage,
        StoreStatus as StoreStatus,
    )
    from stepkeep.maintenance.verify import VerifyReport as VerifyReport
    from stepkeep.model import (
        Branch as Branch,
        Header as Header,
        SessionError as SessionError,
        SessionInfo as SessionInfo,
        Status as Status,
        Trigger as Trigger,
        TriggerKind as TriggerKind,
    )
    from stepkeep.policy.cleanup import SessionCleanup as SessionCleanup
    from stepkeep.policy.retention import CheckpointDecision as CheckpointDecision
    from stepkeep.recording.coding_agents.conversation_fork import ConversationFork as ConversationFork
    from stepkeep.recording.coding_agents.hook_process import hook_trouble as hook_trouble
    from stepkeep.recording.coding_agents.installing import (
        HooksChange as HooksChange,
        HooksInstalled as HooksInstalled,
        HooksStatus as HooksStatus,
        hooks_status as hooks_status,
        install_hooks as install_hooks,
        uninstall_hooks as uninstall_hooks,
    )
    from stepkeep.recording.coding_agents.transcripts import TranscriptView as TranscriptView
    from stepkeep.recording.coding_agents.turns import Turn as Turn
    from stepkeep.recording.connected_parts import Part as Part, PartFailed as PartFailed
    from stepkeep.recording.phase_checkpoints import (
        Criterion as Criterion,
        PhaseCheckpoint as PhaseCheckpoint,
        PhaseResult as PhaseResult,
        Phases as Phases,
        resolve_checkpoints_dir as resolve_checkpoints_dir,
    )
    from stepkeep.recording.recorder import Recorder as Recorder
    from stepkeep.recording.recovery import RecoveryPoint as RecoveryPoint
    from stepkeep.recording.triggers import AutoTrigger as AutoTrigger
    from stepkeep.runs.agents import (
        AgentCheckpoint as AgentCheckpoint,
        AgentStore as AgentStore,
        AgentSummary as AgentSummary,
    )
    from stepkeep.runs.approvals import Answered as Answered
    from stepkeep.runs.kinds import resume_command as resume_command
    from stepkeep.runs.plan import (
        AgentState as AgentState,
        ExecutionResult as ExecutionResult,
        Interrupted as Interrupted,
        LastError as LastError,
        PlanStep as PlanStep,
        Question as Question,
        RetryPolicy as RetryPolicy,
        StepResult as StepResult,
        StepStatus as StepStatus,
    )
    from stepkeep.runs.run_options import (
        ExecuteOptions as ExecuteOptions,
        Hooks as Hooks,
        Outcome as Outcome,
        StepContext as StepContext,
    )
    from stepkeep.runs.scripts import AwaitingAnswer as AwaitingAnswer, Run as Run
    from stepkeep.runs.signals import Cancellation as Cancellation
    from stepkeep.runs.queue import (
        Worked as Worked,
        WorkerEvent as WorkerEvent,
        WorkerEventKind as WorkerEventKind,
    )
    from stepkeep.runs.workflow.definition import (
        NOT_TRUE as NOT_TRUE,
        InvalidWorkflow as InvalidWorkflow,
        Workflow as Workflow,
    )
    from stepkeep.runs.unfinished import (
        PlanRun as PlanRun,
        Resumable as Resumable,
        plan_run as plan_run,
    )
    from stepkeep.runs.workflows import (
        PlannedWorkflow as PlannedWorkflow,
        QueuedWorkflow as QueuedWorkflow,
        WorkflowRun as WorkflowRun,
        Workflows as Workflows,
    )
    from stepkeep.storage.key_slots import SlotInfo as SlotInfo
    from stepkeep.storage.disk import write_file as write_file
    from stepkeep.storage.port import (
        ANY_HEAD as ANY_HEAD,
        Event as Event,
        KeyService as KeyService,
        Usage as Usage,
    )
    from stepkeep.workspace.bisection import Bisection as Bisection, BisectStep as BisectStep
    from stepkeep.workspace.captured_files import (
        FileList as FileList,
        FilesExported as FilesExported,
        FileText as FileText,
        FileVersion as FileVersion,
    )
    from stepkeep.workspace.file_diff import ChangedFile as ChangedFile, FilesDiff as FilesDiff
    from stepkeep.workspace.file_restore import RestoredFiles as RestoredFiles

# The same names by module, for importing them: a test compares the two lists.
_NAMES_BY_MODULE = {
    "api.agent_tables": "AgentsExported export_agents",
    "api.checkpoint": "Checkpoint Restored",
    "api.choosing": (
        "Chosen TakenUp choose current_session is_phase_session list_unfinished open_phases "
        "phases_url recorded_run resume_phase working_folder"
    ),
    "api.doctor": "Diagnosis Symptom diagnose",
    "api.files": "Files",
    "api.hook_answers": "answer_hook",
    "api.hooks_trial": "EventTried HooksTrial try_hooks",
    "api.import_files": "FileImport FilesImport",
    "api.investigating": (
        "Investigation InvestigationChange InvestigationStatus RecoveryView "
        "change_investigation investigation_at investigation_recovery investigation_report investigation_status "
        "with_times"
    ),
    "api.keys": "Keys copy_store given_key recover",
    "api.opening": "open",
    "api.option_types": "BackupRules CleanupRules RestoreOptions RetentionRules SaveOptions TimelineOptions",
    "api.options": "parse_policy",
    "api.overview": "RunStep RunView SessionOverview SessionPage",
    "api.results": "FORMATS Deleted Exported Shown ShownAt StepOutput TranscriptExported ValueAt ValueShown to_json",
    "api.rewinding": "Rewind Rewound",
    "api.scheduled_backups": "BackupAttempt backups_every",
    "api.session": "Session",
    "api.session_branches": "Branches",
    "api.store": "Store",
    "codec.compression": "Compression",
    "config.store_names": "default_url store_option",
    "codec.readable": "LAYOUTS CommandOutcome ContextDigest",
    "config": "Config SettingView Settings inspect_config",
    "config.editing": "ConfigWritten init_config set_config",
    "config.trust": "Trusted trust",
    "engine": "Fallback Pending",
    "errors": "BackendUnavailable Conflict Corrupt InvalidInput NotFound StepkeepError Unsupported",
    "history.changes": "FULL WIDTH",
    "history.conversation": "Conversation MessageView",
    "history.documents": "BranchChanged BranchInfo BranchList CheckpointInfo History SessionSummary decoded",
    "history.finding": "FoundText Match",
    "history.merge": "ClashInfo MergeConflict Merged Side Strategy",
    "history.outline": "Outline OutlineEntry",
    "history.refs": "BEFORE",
    "history.state_diff": "CheckpointComparison ComparisonView ValueChange ValueLog",
    "history.timeline": (
        "CheckpointNode DamagedNode FoldNode GapNode Node Pictured RestNode Timeline TimelinePage Timelines"
    ),
    "investigation.beliefs": "BeliefKind ContradictionStatus Relationship",
    "investigation.entries": "BrokenEntry RepairedEntry",
    "investigation.hypotheses": "PRIOR_CONFIDENCE Criticality EvidenceKind GapStatus GapType",
    "investigation.worklog": "VERIFICATION_SECONDS",
    "maintenance.backup": "BackupReport restore_backup",
    "maintenance.last_backup": "LastBackup",
    "maintenance.object_backup": "is_object_url",
    "maintenance.clean": "CleanReport",
    "maintenance.copying": "CopyReport RecoverReport count_copied",
    "maintenance.metrics": "Stats prometheus",
    "maintenance.prune": "PruneReport Pruned",
    "maintenance.rekey": "RekeyReport",
    "maintenance.status": "NextClean SessionStatus SessionUsage StoreStatus",
    "maintenance.verify": "VerifyReport",
    "model": "Branch Header SessionError SessionInfo Status Trigger TriggerKind",
    "policy.cleanup": "SessionCleanup",
    "policy.retention": "CheckpointDecision",
    "recording.coding_agents.conversation_fork": "ConversationFork",
    "recording.coding_agents.hook_process": "hook_trouble",
    "recording.coding_agents.installing": (
        "HooksChange HooksInstalled HooksStatus hooks_status install_hooks uninstall_hooks"
    ),
    "recording.coding_agents.transcripts": "TranscriptView",
    "recording.coding_agents.turns": "Turn",
    "recording.connected_parts": "Part PartFailed",
    "recording.phase_checkpoints": "Criterion PhaseCheckpoint PhaseResult Phases resolve_checkpoints_dir",
    "recording.recorder": "Recorder",
    "recording.recovery": "RecoveryPoint",
    "recording.triggers": "AutoTrigger",
    "runs.agents": "AgentCheckpoint AgentStore AgentSummary",
    "runs.approvals": "Answered",
    "runs.kinds": "resume_command",
    "runs.plan": "AgentState ExecutionResult Interrupted LastError PlanStep Question RetryPolicy StepResult StepStatus",
    "runs.queue": "Worked WorkerEvent WorkerEventKind",
    "runs.run_options": "ExecuteOptions Hooks Outcome StepContext",
    "runs.scripts": "AwaitingAnswer Run",
    "runs.signals": "Cancellation",
    "runs.unfinished": "PlanRun Resumable plan_run",
    "runs.workflow.definition": "NOT_TRUE InvalidWorkflow Workflow",
    "runs.workflows": "PlannedWorkflow QueuedWorkflow WorkflowRun Workflows",
    "storage.disk": "write_file",
    "storage.key_slots": "SlotInfo",
    "storage.port": "ANY_HEAD Event KeyService Usage",
    "workspace.bisection": "BisectStep Bisection",
    "workspace.captured_files": "FileList FileText FileVersion FilesExported",
    "workspace.file_diff": "ChangedFile FilesDiff",
    "workspace.file_restore": "RestoredFiles",
}


def _import_msgspec() -> None:
    """Import it without what it does not need, which takes half of its time.

    It looks for `typing_extensions`, and `uuid` before Python 3.13 asks `platform` for one word. Schemas are made of
    what two more modules know, which few processes ask for. Only in a process without threads: another one could miss a
    module at that moment.
    """
    threading = sys.modules.get("threading")
    has_threads = threading is not None and threading.active_count() > 1
    if has_threads or "msgspec" in sys.modules:
        return
    stand_ins = {
        "typing_extensions": None,
        "platform": SimpleNamespace(system=lambda: os.uname().sysname),
        "textwrap": _later("textwrap"),
        "msgspec.inspect": _later("msgspec.inspect"),
    }
    used = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    sys.modules.update(used)  # type: ignore[arg-type]
    try:
        import msgspec
    finally:
        for name in used:
            del sys.modules[name]


def _later(name: str) -> ModuleType:
    """A module that is imported when something in it is used."""
    module = ModuleType(name)
    module.__getattr__ = lambda wanted: getattr(__import__(name, fromlist=[wanted]), wanted)  # type: ignore[method-assign]
    return module


_import_msgspec()

_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

if not TYPE_CHECKING:
    __all__ = sorted(_MODULES)

    def __getattr__(name: str) -> object:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # As `import_module` does, which takes an import of its own.
        value = getattr(__import__(f"stepkeep.{module}", fromlist=[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES})
