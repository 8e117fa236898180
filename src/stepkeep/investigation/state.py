"""The whole of an investigation at one moment, typed, as a checkpoint holds it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.investigation.beliefs import Belief, Contradiction, Dependency
from stepkeep.investigation.commands import ExecutedCommand
from stepkeep.investigation.experiments import ExperimentBranch, Experiments
from stepkeep.investigation.gaps import KnowledgeGap
from stepkeep.investigation.hypotheses import Evidence, Hypothesis
from stepkeep.investigation.metrics import SessionMetrics
from stepkeep.investigation.notes import DebugNote
from stepkeep.investigation.verifications import VerificationResult
from stepkeep.parts.recovery import CodeState

HYPOTHESES: Final = "hypotheses"
BELIEFS: Final = "beliefs"
GAPS: Final = "gaps"
VERIFICATIONS: Final = "verifications"
NOTES: Final = "notes"
COMMANDS: Final = "commands"
CODE: Final = "code"
PARTS: Final = (HYPOTHESES, BELIEFS, GAPS, VERIFICATIONS, NOTES, COMMANDS, CODE)
"""The names under which the parts of an investigation are connected."""


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What is saved beside the parts: facts of that moment, which nobody restores and no merge joins."""

    session_id: str = ""
    started_us: int = 0
    experiments: Experiments = Experiments()
    metrics: SessionMetrics = SessionMetrics()


class _Board(msgspec.Struct, frozen=True, kw_only=True):
    hypotheses: dict[str, Hypothesis] = {}
    evidence: dict[str, Evidence] = {}


class _Graph(msgspec.Struct, frozen=True, kw_only=True):
    beliefs: dict[str, Belief] = {}
    dependencies: dict[str, Dependency] = {}
    contradictions: dict[str, Contradiction] = {}


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a checkpoint. A part that was not connected then is empty."""

    hypotheses: _Board = _Board()
    beliefs: _Graph = _Graph()
    gaps: dict[str, KnowledgeGap] = {}
    verifications: dict[str, VerificationResult] = {}
    notes: dict[str, DebugNote] = {}
    commands: dict[str, ExecutedCommand] = {}
    code: CodeState | None = None


class InvestigationState(msgspec.Struct, frozen=True, kw_only=True):
    """A debugging session at one moment."""

    session_id: str
    started_us: int
    hypotheses: tuple[Hypothesis, ...]
    evidence: tuple[Evidence, ...]
    beliefs: tuple[Belief, ...]
    belief_dependencies: tuple[Dependency, ...]
    contradictions: tuple[Contradiction, ...]
    gaps: tuple[KnowledgeGap, ...]
    verification_results: tuple[VerificationResult, ...]
    current_branch: str
    branches: tuple[ExperimentBranch, ...]
    notes: tuple[DebugNote, ...]
    code_changes: CodeState | None
    command_history: tuple[ExecutedCommand, ...]
    metrics: SessionMetrics


def is_investigation(state: object) -> bool:
    """Whether the state of a checkpoint is one of an investigation."""
    return isinstance(state, dict) and {HYPOTHESES, BELIEFS} <= state.keys()


def state_of(state: Any, details: Any) -> InvestigationState:
    """The investigation that a checkpoint holds.

    Raises:
        InvalidInput: it holds something else (`not_an_investigation`).
    """
    if not is_investigation(state):
        raise InvalidInput("the checkpoint holds no investigation", code="not_an_investigation")
    try:
        saved = msgspec.convert(state, _Saved)
        beside = details_of(details)
    except msgspec.ValidationError as exc:
        raise InvalidInput(
            f"the checkpoint holds no investigation: {exc}", code="not_an_investigation"
        ) from exc
    return InvestigationState(
        session_id=beside.session_id,
        started_us=beside.started_us,
        hypotheses=tuple(saved.hypotheses.hypotheses.values()),
        evidence=tuple(saved.hypotheses.evidence.values()),
        beliefs=tuple(saved.beliefs.beliefs.values()),
        belief_dependencies=tuple(saved.beliefs.dependencies.values()),
        contradictions=tuple(saved.beliefs.contradictions.values()),
        gaps=tuple(saved.gaps.values()),
        verification_results=tuple(saved.verifications.values()),
        current_branch=beside.experiments.current,
        branches=beside.experiments.branches,
        notes=tuple(saved.notes.values()),
        code_changes=saved.code,
        command_history=tuple(saved.commands.values()),
        metrics=beside.metrics,
    )


def details_of(details: Any) -> Details:
    return msgspec.convert(details, Details) if isinstance(details, dict) else Details()
