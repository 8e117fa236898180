"""The whole of an investigation at one moment, typed, as a checkpoint holds it, and how it went in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.investigation.beliefs import Belief, Contradiction, Dependency
from stepkeep.investigation.commands import ExecutedCommand, VerificationResult, VerificationStatus
from stepkeep.investigation.experiments import ExperimentBranch, Experiments
from stepkeep.investigation.gaps import GapStatus, KnowledgeGap
from stepkeep.investigation.hypotheses import Evidence, Hypothesis
from stepkeep.investigation.notes import DebugNote
from stepkeep.recording.recovery import CodeState

IDLE_SECONDS: Final = 900.0
"""A longer pause between two checkpoints counts as that much: nobody was debugging."""


class SessionMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """All but the time is counted from the entries. `checkpoints_created` includes those pruned since."""

    checkpoints_created: int = 0
    hypotheses_tested: int = 0
    verifications_run: int = 0
    gaps_filled: int = 0
    time_in_debugging_seconds: float = 0.0


def metrics_of(
    hypotheses: Iterable[Hypothesis],
    verifications: Iterable[VerificationResult],
    gaps: Iterable[KnowledgeGap],
    *,
    checkpoints: int,
    debugging_us: int,
) -> SessionMetrics:
    return SessionMetrics(
        checkpoints_created=checkpoints,
        hypotheses_tested=sum(each.was_tested for each in hypotheses),
        verifications_run=sum(each.status is not VerificationStatus.SKIPPED for each in verifications),
        gaps_filled=sum(each.status is GapStatus.FILLED for each in gaps),
        time_in_debugging_seconds=debugging_us / 1_000_000,
    )


def time_spent_us(*, last_us: int, now_us: int) -> int:
    """How much of the time since the last checkpoint was spent debugging."""
    return max(0, min(now_us - last_us, round(IDLE_SECONDS * 1_000_000)))


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
