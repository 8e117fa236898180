"""The table from the specifications to Stepkeep is complete, and every entry of it is there."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import logging
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

import stepkeep
from stepkeep import cli
from stepkeep.cli.app import stepkeep as commands
from stepkeep.config.schema import lookup
from stepkeep.maintenance.metrics import Metrics
from stepkeep.mcp.server import build_server
from stepkeep.mcp.tools import OpenedStore
from stepkeep.policy.profiles import PROFILES
from stepkeep.runs.workflow.parse import parse_workflow
from stepkeep.testing.builders import FakeClock

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
REQUIREMENTS = ROOT / "docs" / "design" / "requirements.md"
DAY = 86_400

NAMES = {
    "000": """
        CheckpointHistory; CheckpointHistory.new; archive_current; prune_history; list_history;
        HistoryEntry; HistoryEntry.path; .timestamp; .size; CheckpointLoader; load_with_fallback;
        try_load_checkpoint; CheckpointValidator; validate_integrity; CheckpointEnvelope;
        CheckpointEnvelope.compressed; .data; .integrity_hash; WorkflowCheckpoint; CheckpointManager;
        CheckpointCleaner; cleanup_old_checkpoints; cleanup_session; should_cleanup; get_policy;
        RetentionPolicy; RetentionPolicy.enabled; .retention_days; RetentionPolicies;
        RetentionPolicies.completed_default; .failed_default; .test_default; .workflows; CleanupReport;
        CleanupReport.cleaned_count; .retained_count; .error_count; UnifiedSession; SessionStatus.Running;
        .Paused; .Completed; .Failed; .Cancelled; module history; module cleanup; module recovery;
        checkpoint history <session>; checkpoint diff <session> --from --to; checkpoint export <session>
        --output; checkpoint cleanup; checkpoint.history.enabled; .max_count; checkpoint.cleanup.enabled;
        .completed_retention_days; .failed_retention_days; .test_retention_days;
        checkpoint.cleanup.workflows.<name>.retention_days; checkpoint.cleanup.workflows.<name>.enabled;
        cleanup: {retention_days: N}; cleanup: {enabled: false}; test: true; Latest checkpoint corrupted,
        using history checkpoint from <time>; Loaded latest checkpoint; Latest checkpoint failed to load:
        <error>; Attempting fallback to <N> history checkpoints; Trying history checkpoint <i>: <path>;
        History checkpoint <i> failed: <error>; Recovered from history checkpoint: <time> (<path>); No
        valid checkpoint found (tried <N> checkpoints); Archived checkpoint to history: <path>; Pruning
        old checkpoint from history: <path>; Cleaning up session <id> (age: <D> days, policy: <P> days);
        Failed to cleanup session <id>: <error>; Variables changed:; Steps added:; ... (7 more);
        sessions/{id}/checkpoint.json; sessions/{id}/history/checkpoint-{timestamp}.json
    """,
    "001": """
        snapshot_id; created_at; run_id; source; source_details; status; step_state; context_digest;
        command_outcomes; integrity; step_state.plan_path; .step_id; .step_ordinal; .step_status;
        .todo_compliance; .resume_hints; todo_compliance.result; .violations; .checked_at;
        resume_hints.eligible; .reason_code; .next_actions; context_digest.window_pressure;
        .protected_artifacts; .dropped_items; .policy_profile; command_outcomes.kind; .name; .result;
        .duration_ms; .reason_code; .summary; step_boundary; error_boundary; timer; manual; in_progress;
        failed; completed; paused; done; skipped; step boundary; error boundary; timer boundary; manual
        boundary; coalescing; /checkpoint; compression; retention; checkpoints/<run_id>/latest.json;
        checkpoints/<run_id>/history/<snapshot_id>.json; checkpoint_schema_invalid;
        checkpoint_integrity_mismatch; checkpoint_atomic_write_failed; checkpoint_retention_prune_failed
    """,
    "002": """
        TemporalCheckpointManager; TemporalCheckpointManager.new; connect_hypothesis_board;
        connect_belief_graph; checkpoint; auto_checkpoint; capture_state; restore; query_at; compare;
        list_checkpoints; find_by_tag; create_recovery_point; prune; is_significant_checkpoint;
        update_last_checkpoint_time; TemporalCheckpoint; TemporalCheckpoint.id; .timestamp;
        .sequence_number; .message; .tags; .trigger; .state; .delta; DebugStateSnapshot;
        DebugStateSnapshot.session_id; .started_at; .hypotheses; .evidence; .beliefs;
        .belief_dependencies; .gaps; .verification_results; .current_branch; .branches; .notes;
        .code_changes; .command_history; .metrics; HypothesisSnapshot; Hypothesis; HypothesisStatus;
        Evidence; Belief; DependencyType; KnowledgeGap; VerificationResult; ExperimentBranch; DebugNote;
        CodeState; ExecutedCommand; ExecutedCommand.timestamp; .command; .working_dir; .exit_code;
        .stdout_preview; .stderr_preview; SessionMetrics; SessionMetrics.checkpoints_created;
        .hypotheses_tested; .verifications_run; .gaps_filled; .time_in_debugging; StateDelta;
        StateDelta.from_checkpoint; .hypothesis_changes; .belief_changes; .new_evidence;
        .new_verifications; HypothesisChange; BeliefChange; HypothesisChange.Added; .Updated;
        .StatusChanged; .ConfidenceChanged; BeliefChange.Added; .Updated; .ConfidenceChanged;
        CheckpointTrigger; CheckpointTrigger.Manual; .Automatic; .Scheduled; AutoTrigger;
        HypothesisStatusChange; NewContradictionDetected; VerificationComplete; BranchSwitch; GapFilled;
        CodeModified; SignificantTimePassed; ContextCompactionWarning; TemporalQuery.timestamp;
        .sequence_number; .checkpoint_id; .tag_filter; TemporalQuery; CheckpointError.InvalidQuery;
        CheckpointComparison; CheckpointComparison.from; .to; .time_delta; .hypothesis_diff; .belief_diff;
        .evidence_added; .verifications_added; .gaps_filled; .notes_added; .summary; RecoveryPoint;
        RecoveryPoint.checkpoint_id; .recovery_instructions; RecoveryStep; RecoveryStep.RestoreCodeState;
        .RestoreEnvironment; .ReplayCommand; .ManualInstruction; RestoreCodeState.commit_hash; .patches;
        RestoreEnvironment.env_vars; ReplayCommand.command; ManualInstruction.instruction; RecoveryReport;
        RecoveryReport.restored_to; .timestamp; .message; .recovery_complete; RetentionPolicy;
        PruneReport; PruneReport.total; .kept; .deleted; CheckpointSummary; HypothesisBoard;
        get_all_hypotheses; get_all_evidence; HypothesisBoard.restore; BeliefGraph; get_all_beliefs;
        get_all_dependencies; BeliefGraph.restore; KnowledgeGapAnalyzer; get_all_gaps;
        KnowledgeGapAnalyzer.restore; ExperimentManager; current; list_branches;
        ExperimentManager.restore; VerificationRunner; get_results; CheckpointStorage; store_checkpoint;
        get_checkpoint; get_checkpoint_by_sequence; find_checkpoint_before; find_checkpoints_by_tag;
        get_latest_checkpoint; delete_checkpoint; store_raw; get_raw; EfficientCheckpointStorage;
        CompressionAlgorithm; SerializedCheckpoint.Full; .Delta; checkpoint create "<message>" --tags;
        checkpoint list --tag; checkpoint diff <id1> <id2>; checkpoint restore <id>; checkpoint at
        "<time>"; checkpoint timeline; checkpoint prune --keep-last --keep-days; hypothesis_confirmed;
        hypothesis_rejected; contradiction_detected; branch_merged; Auto: <Trigger>; Restore debugging
        session <id> from checkpoint <id>; Restored to: <message> (<time>); Changes:; Hypotheses: <N>
        added, <M> updated; Created checkpoint <id> before compaction
    """,
    "003": """
        CheckpointState; CheckpointState.id; .sessionId; .phase; .phaseNumber; .createdAt; .completed;
        .taskSummary; .iscCriteria; .metadata; iscCriteria.id; .subject; .status; createCheckpoint;
        loadCheckpoint; listCheckpoints; detectIncompleteCheckpoint; completeCheckpoint;
        cleanupCheckpoints; resolveCheckpointsDir; ok; checkpointId; file; error; state.checkpointRef;
        session start hook; checkpoint_created; checkpoint_completed; Checkpoint: Resume from Phase N?
        (<task summary>); ckpt-<timestamp>-<phase>.json
    """,
    "004": """
        Checkpoint; Checkpoint.id; .sessionId; .projectId; .stepNumber; .createdAt; .state;
        metadata.description; .triggerType; .durationMs; .tokenUsage; AgentState; AgentState.query; .plan;
        .currentStepIndex; .results; .context; .lastError; lastError.stepIndex; .message; .timestamp;
        PlanStep; PlanStep.id; .description; .action; .parameters; .status; .dependencies; StepResult;
        StepResult.stepId; .output; .completedAt; .durationMs; .tokenUsage; CheckpointManager; save;
        loadLatest; load; list; delete; clearSession; pruneOldCheckpoints; SaveOptions;
        SaveOptions.description; .triggerType; .durationMs; .tokenUsage; CheckpointSummary;
        CheckpointedExecutor; execute; executeStep; ExecuteOptions; ExecuteOptions.query;
        .resumeFromCheckpoint; .autoCheckpoint; ExecutionResult; ExecutionResult.success; .state; .error;
        .totalDurationMs; checkpoint_save; checkpoint_load; checkpoint_list; agent.checkpoints.enabled;
        .autoCheckpoint; .maxCheckpointsPerSession; .pruneAfterDays; .compressState;
        checkpoint_save_count; checkpoint_resume_count; checkpoint_save_size_bytes;
        checkpoint_save_latency_ms; steps_recovered; table checkpoints; session_id; project_id;
        step_number; created_at; state_json; trigger_type; duration_ms; token_usage;
        idx_checkpoints_session; idx_checkpoints_project; Resuming from checkpoint at step N; Failed at
        step N: <step description>; Execution complete; executeStep must be implemented
    """,
}
"""Every name that a specification defines: APIs, classes, fields, commands, keys, codes, metrics, texts, files.

They are separated by semicolons; one that begins with a dot continues the one before it.
"""

_HEADING = re.compile(r"## (\d{3}): ")
_SPAN = re.compile(r"`([^`]+)`")
_ONLY_SPANS = re.compile(r"`[^`]+`(, `[^`]+`)*")
_SHOWN_WHEN_RUN = ("text", "event", "file", "table")


# --- the table


class Row(NamedTuple):
    seed: str
    names: list[str]
    kind: str
    entries: list[str]

    def __str__(self) -> str:
        return f"{self.seed} {self.names[0]}"


def _expanded(items: list[str]) -> list[str]:
    """`.x` stands beside the item before it."""
    found: list[str] = []
    for item in items:
        is_sibling = found and re.fullmatch(r"\.\w+", item)
        found.append(found[-1].rpartition(".")[0] + item if is_sibling else item)
    return found


def _names(cell: str) -> list[str]:
    if not _ONLY_SPANS.fullmatch(cell):
        return [cell.replace("`", "")]
    return [name.strip() for name in _expanded(_SPAN.findall(cell))]


def _rows() -> Iterator[Row]:
    seed = ""
    names, _, _proofs = REQUIREMENTS.read_text(encoding="utf-8").partition("## What proves it")
    for line in names.splitlines():
        if heading := _HEADING.match(line):
            seed = heading[1]
        elif seed and line.startswith("| ") and not line.startswith("| name |"):
            name, kind, ours, _remark = (cell.strip() for cell in line.strip("|").split("|"))
            yield Row(seed, _names(name), kind, _expanded(_SPAN.findall(ours)))


ROWS = list(_rows())


@pytest.mark.parametrize("seed", NAMES)
def test_every_name_of_a_specification_has_a_row(seed: str) -> None:
    """None of its names is left out of the table, and the table has no others."""
    wanted = _expanded(" ".join(NAMES[seed].split()).split("; "))
    named = [name for row in ROWS if row.seed == seed for name in row.names]
    assert sorted(named) == sorted(wanted)


@pytest.mark.parametrize("row", [row for row in ROWS if row.kind not in _SHOWN_WHEN_RUN], ids=str)
def test_what_a_row_names_exists(row: Row) -> None:
    """Each entry is found where its kind is kept: imported, registered, or in a schema."""
    assert row.entries
    for entry in row.entries:
        assert RESOLVERS[row.kind](entry), f"no {row.kind} {entry}"


def _proofs() -> Iterator[tuple[str, str]]:
    """(id of a requirement, test that proves it), by the last table of the page."""
    _names_of_seeds, _, proofs = REQUIREMENTS.read_text(encoding="utf-8").partition("## What proves it")
    for line in proofs.splitlines():
        if line.startswith("| ") and not line.startswith("| id |"):
            requirement, _what, tests = (cell.strip() for cell in line.strip("|").split("|"))
            yield from ((requirement, test) for test in _SPAN.findall(tests) or [""])


def test_every_proof_of_a_requirement_exists() -> None:
    """The test that a row names, as `file::function` or `file::Class::method`, is in the tree."""
    for requirement, proof in _proofs():
        path, *names = proof.split("::")
        file = ROOT / path
        assert file.is_file(), f"{requirement}: no file {path!r}"
        text = file.read_text(encoding="utf-8")
        for name in names:
            assert re.search(rf"^ *(async )?(def|class) {name}\b", text, re.M), f"{requirement}: {proof}"


# --- what can be looked up


def _python(entry: str) -> bool:
    """Import a dotted name; the parameters in parentheses must be those of the function."""
    path, _, parameters = entry.rstrip(")").partition("(")
    value = _resolved(path)
    if not parameters:
        return True
    return set(parameters.split(", ")) <= inspect.signature(value).parameters.keys()


def _resolved(path: str) -> Any:
    value: Any = import_module("stepkeep")
    for part in path.split(".")[1:]:
        if part in getattr(value, "__annotations__", {}) and not hasattr(value, part):
            return part  # a key of a TypedDict
        if not hasattr(value, part) and inspect.ismodule(value):
            import_module(f"{value.__name__}.{part}")
        value = getattr(value, part)
    return value


def _command(entry: str) -> bool:
    """Find a command, also one within a group, that has these options."""
    _, *words = entry.split(" ")
    command: click.Command = commands
    for word in (word for word in words if not word.startswith("-")):
        assert isinstance(command, click.Group), f"{command.name} has no commands"
        found = command.get_command(click.Context(command), word)
        assert found is not None, f"{command.name} has no command {word}"
        command = found
    options = {option for parameter in command.params for option in parameter.opts}
    return {word for word in words if word.startswith("-")} <= options


@cache
def _tool_schemas() -> dict[str, dict[str, Any]]:
    server = build_server(OpenedStore("memory:"))
    return {tool.name: tool.input_schema for tool in asyncio.run(server.list_tools())}


def _tool(entry: str) -> bool:
    """Find a tool that requires exactly the first arguments and takes the others."""
    name, _, arguments = entry.rstrip(")").partition("(")
    required, _, others = arguments.partition(";")
    schema = _tool_schemas()[name]
    takes = set(others.replace(",", " ").split()) <= schema["properties"].keys()
    return takes and bool(schema.get("required", []) == [name for name in required.split(", ") if name])


def _workflow(entry: str) -> bool:
    """Read a workflow file with that line; it must have an effect."""
    without, given = (
        parse_workflow(f"name: flow\n{line}\nsteps:\n  - shell: 'true'\n", source="flow.yaml")
        for line in ("", entry)
    )
    return (without.cleanup, without.is_test) != (given.cleanup, given.is_test)


def _code(entry: str) -> bool:
    return f"`{entry}`" in (REFERENCE / "errors.md").read_text(encoding="utf-8")


RESOLVERS: dict[str, Callable[[str], bool]] = {
    "python": _python,
    "command": _command,
    "tool": _tool,
    "setting": lambda entry: lookup(entry) is not None,
    "workflow": _workflow,
    "code": _code,
    "metric": lambda entry: entry in Metrics.__struct_fields__,
    "trigger": lambda entry: entry in {each.word for each in stepkeep.AutoTrigger},
    "tag": lambda entry: entry in PROFILES["debug"].retention.keep_tags,
}


# --- what has to be run to be seen


@dataclass
class Seen:
    """What a run of everything left: printed, logged and raised texts, files, events, tables."""

    text: list[str] = field(default_factory=list)
    file: list[str] = field(default_factory=list)
    event: list[str] = field(default_factory=list)
    table: list[str] = field(default_factory=list)

    def has(self, kind: str, entry: str) -> bool:
        varies = {"text": "…", "file": "*"}.get(kind)
        parts = [entry] if varies is None else entry.split(varies)
        # A text may have more around it, such as the step in a line of `history`; a name may not.
        pattern = ".+".join(map(re.escape, parts))
        look = re.search if kind == "text" else re.fullmatch
        return any(look(pattern, line) for line in getattr(self, kind))


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    root, found = tmp_path_factory.mktemp("seeds"), Seen()
    logger, handler = logging.getLogger("stepkeep"), _Lines(found.text)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        _fall_back(root, found)
        _keep_snapshots(root)
        _go_through_phases(root, found)
        _clean_and_prune()
        _fail_and_resume(found)
        _look_by_command(root, found)
        _investigate(root, found)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    found.file += [path.relative_to(root).as_posix().partition("/")[2] for path in root.rglob("*.json")]
    with sqlite3.connect(root / "store.db") as database:
        found.table += [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
    database.close()
    return found


@pytest.mark.full
@pytest.mark.parametrize("row", [row for row in ROWS if row.kind in _SHOWN_WHEN_RUN], ids=str)
def test_what_a_row_shows_is_seen(row: Row, seen: Seen) -> None:
    """Each text, file, event and table comes up when the features are used."""
    assert row.entries
    for entry in row.entries:
        assert seen.has(row.kind, entry), f"no {row.kind} {entry}"


def _fall_back(root: Path, found: Seen) -> None:
    """Load a session whose newest two checkpoints are damaged, then all of them."""
    url, clock = f"files:{root / 'workflows'}?layout=workflow", FakeClock()
    with stepkeep.open(url, clock=clock) as store:
        session = store.session("session-abc")
        for step in range(4):
            session.save({"step": step}, step=step)
            clock.advance(60)
    folder = root / "workflows" / "sessions" / "session-abc"
    history = sorted((folder / "history").iterdir())
    with stepkeep.open(url, clock=clock) as store:
        session = store.get("session-abc")
        session.latest()
        for path in (folder / "checkpoint.json", history[-1]):
            path.write_text("{", encoding="utf-8")
        session.latest()
        for path in history:
            path.write_text("{", encoding="utf-8")
        with pytest.raises(stepkeep.Corrupt) as caught:
            session.latest()
        found.text.append(caught.value.message)


def _keep_snapshots(root: Path) -> None:
    with stepkeep.open(f"files:{root / 'runs'}?layout=run") as store:
        store.session("nightly").save({"step": 1})


def _go_through_phases(root: Path, found: Seen) -> None:
    with stepkeep.open_phases(root / "phases") as phases:
        created = phases.create_checkpoint("plan", session_id="task", task_summary="Fix the cache")
        offered = phases.detect_incomplete_checkpoint()
        assert created.checkpoint_id is not None
        assert offered is not None
        found.text.append(offered.offer)
        phases.complete_checkpoint(created.checkpoint_id)
    (log,) = (root / "phases" / "events").iterdir()
    events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    found.event += [event["data"]["action"] for event in events]


def _clean_and_prune() -> None:
    """Prune one session, clean another, and try a third whose policy makes no sense."""
    clock = FakeClock()
    with stepkeep.open("memory:", clock=clock) as store:
        pruned, ended, odd = (store.session(key, profile="workflow") for key in ("pruned", "ended", "odd"))
        for session in (pruned, pruned, ended, odd):
            session.save({})
        pruned.prune(keep_last=1)
        store.engine.backend.update_session(odd.uid, {"policy": {"cleanup": {"retention_days": -5}}})
        ended.complete()
        clock.advance(8 * DAY)
        store.clean()


def _fail_and_resume(found: Seen) -> None:
    plan = [{"id": "fetch", "description": "Fetch revenue"}, {"id": "report"}]

    def fail(context: stepkeep.StepContext) -> None:
        raise TimeoutError

    with stepkeep.open("memory:") as store:
        store.execute("research", plan, fail)
        store.execute("research", plan, lambda context: context.index, resume=True)
        found.text += [header.message for header in store.get("research").history()]
        with pytest.raises(stepkeep.InvalidInput) as caught:
            store.execute("other", plan, None)
        found.text.append(caught.value.message)


def _look_by_command(root: Path, found: Seen) -> None:
    """Show the history of a workflow, compare two steps of it, and go back to one."""
    url = f"sqlite:{root / 'store.db'}"
    with stepkeep.open(url) as store:
        session = store.session("session-abc123")
        for step in range(1, 9):
            done = [{"index": index, "command": f"shell: make {index}"} for index in range(1, step + 1)]
            session.save(
                {"variables": {"iteration": step}, "completed_steps": done}, step=step, message="go on"
            )
    for words in (
        ["history", "session-abc123"],
        ["diff", "session-abc123", "--from", "step-5", "--to", "step-7"],
        ["restore", "session-abc123", "step-5"],
    ):
        found.text += _printed(url, words)


def _investigate(root: Path, found: Seen) -> None:
    url = f"sqlite:{root / 'investigation.db'}"
    with stepkeep.open(url) as store, store.investigation("bug") as bug:
        bug.checkpoint("before")
        bug.hypotheses.add("The cache is stale")
        found.text.append(bug.compaction_warning().message)
    for words in (["compaction"], ["compare", "#1"], ["recovery"]):
        found.text += _printed(url, ["investigate", *words, "--session", "bug"])


def _printed(url: str, words: list[str]) -> list[str]:
    """What a command prints, line by line."""
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with redirect_stdout(output):
        assert cli.main([*words, "--store", url]) == 0, words
    output.seek(0)
    return output.read().splitlines()
