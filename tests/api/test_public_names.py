"""The public names, and what importing them costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import stepkeep
from stepkeep import api
from tests.api import programs

NAMES = [
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


def test_the_public_names_are_these() -> None:
    """Adding or removing a public name is a decision: it changes this list and the reference."""
    assert stepkeep.__all__ == NAMES
    assert sorted(NAMES) == NAMES
    assert all(hasattr(stepkeep, name) for name in NAMES)


def test_every_error_is_of_one_tree_and_has_a_code() -> None:
    """One `except StepkeepError` catches all; the codes differ."""
    errors = [
        stepkeep.NotFound,
        stepkeep.Conflict,
        stepkeep.Corrupt,
        stepkeep.BackendUnavailable,
        stepkeep.Unsupported,
        stepkeep.InvalidInput,
    ]
    assert all(issubclass(error, stepkeep.StepkeepError) for error in errors)
    assert len({error.code for error in errors}) == len(errors)
    assert issubclass(stepkeep.NotFound, LookupError)
    assert issubclass(stepkeep.InvalidInput, ValueError)


def imported_by(statement: str) -> set[str]:
    """The top-level modules that a statement imports in a fresh interpreter."""
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", statement],
        capture_output=True,
        text=True,
        check=True,
        env=programs.environment(),
        timeout=60,
    )
    lines = [line for line in run.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def test_importing_stepkeep_imports_no_surface() -> None:
    """What only a command, a server or a file needs is imported when it is needed."""
    modules = imported_by("import stepkeep")
    assert "stepkeep" in modules
    assert not modules & {"rich", "click", "mcp", "pydantic", "asyncio", "yaml"}


def test_saving_imports_no_surface_either() -> None:
    """Opening a store, saving and loading stay as lean as the import."""
    modules = imported_by(
        "import stepkeep, tempfile\n"
        "with tempfile.TemporaryDirectory() as folder, stepkeep.open(folder + '/h.db') as store:\n"
        "    store.session('k').save({}); store.session('k').load().state"
    )
    assert not modules & {"rich", "click", "mcp", "pydantic", "asyncio", "yaml", "platformdirs", "pickle"}


def test_what_msgspec_did_not_import_is_there_when_it_is_used() -> None:
    """Whoever uses msgspec beside us gets its schemas and types, and the real modules by their names."""
    program = (
        "import sys, stepkeep.api\n"
        "assert not {'textwrap', 'msgspec.inspect'} & set(sys.modules)\n"
        "import msgspec\n"
        "class Point(msgspec.Struct):\n"
        "    '''Where it is.'''\n"
        "    x: int\n"
        "schema = msgspec.json.schema(Point)\n"
        "assert schema['$defs']['Point']['description'] == 'Where it is.', schema\n"
        "assert isinstance(msgspec.inspect.type_info(int), msgspec.inspect.IntType)\n"
        "import msgspec.inspect, textwrap\n"
        "assert textwrap.fill and msgspec.inspect is sys.modules['msgspec.inspect']"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=programs.environment(), timeout=60)


def test_the_api_exports_what_type_checkers_see() -> None:
    """The table of lazily imported names and the imports for type checkers are the same list."""
    tree = ast.parse(Path(api.__file__).read_text())
    seen = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {name: f"stepkeep.{module}" for name, module in api._MODULES.items()}
    assert set(api.__all__) == set(seen)
    assert all(hasattr(api, name) for name in api.__all__)
