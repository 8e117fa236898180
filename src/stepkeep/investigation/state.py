"""The whole of an investigation at one moment, as a checkpoint holds it, and what changed between two. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from stepkeep import typed
from stepkeep.errors import InvalidInput
from stepkeep.investigation.beliefs import Belief, Contradiction, Dependency
from stepkeep.investigation.entries import BrokenEntry, Entry, read_entries
from stepkeep.investigation.experiments import ExperimentBranch, Experiments
from stepkeep.investigation.hypotheses import Evidence, GapStatus, Hypothesis, KnowledgeGap
from stepkeep.investigation.worklog import (
    DebugNote,
    ExecutedCommand,
    VerificationResult,
    VerificationStatus,
    read_code,
)
from stepkeep.recording.recovery import CodeState


class SessionMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """All but the time is counted from the entries. `checkpoints_created` includes those pruned since."""

    checkpoints_created: int = 0
    hypotheses_tested: int = 0
    verifications_run: int = 0
    gaps_filled: int = 0
    time_in_debugging_seconds: float = 0.0


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What is saved beside the parts: it is not restored with them, and no merge joins it."""

    session_id: str = ""
    started_us: int = 0
    experiments: Experiments = Experiments()
    metrics: SessionMetrics = SessionMetrics()
    env_vars: dict[str, str] = {}


_ENTRIES: Final[dict[str, tuple[str, type[Entry]]]] = {
    "hypotheses": ("hypotheses", Hypothesis),
    "evidence": ("hypotheses", Evidence),
    "beliefs": ("beliefs", Belief),
    "belief_dependencies": ("beliefs", Dependency),
    "contradictions": ("beliefs", Contradiction),
    "gaps": ("gaps", KnowledgeGap),
    "verification_results": ("verifications", VerificationResult),
    "notes": ("notes", DebugNote),
    "command_history": ("commands", ExecutedCommand),
}
"""Field of the whole -> the part that has these entries, and their kind."""

_SEVERAL: Final = frozenset({"hypotheses", "beliefs"})
"""Parts with entries of several kinds. Every investigation has them."""


class InvestigationState(msgspec.Struct, frozen=True, kw_only=True):
    """A debugging session at one moment. `broken` are stored entries that cannot be read."""

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
    broken: tuple[BrokenEntry, ...] = ()


def is_investigation(state: object) -> bool:
    """Whether the state of a checkpoint is one of an investigation."""
    return isinstance(state, dict) and state.keys() >= _SEVERAL


def state_of(state: Any, details: Any, *, seq: int | None = None) -> InvestigationState:
    """The investigation that a checkpoint holds; `seq` is its number.

    What is counted is counted here: a merge, or a state that is saved again, keeps the details of another checkpoint.

    Raises:
        InvalidInput: it holds something else (`not_an_investigation`).
    """
    if not is_investigation(state):
        raise InvalidInput("the checkpoint holds no investigation", code="not_an_investigation")
    try:
        beside = details_of(details)
        read = {field: _entries(state, *where) for field, where in _ENTRIES.items()}
        code, broken = read_code(state.get("code"))
        entries: dict[str, Any] = {field: found for field, (found, _) in read.items()}
        metrics = msgspec.structs.replace(beside.metrics, **counted(entries))
        return InvestigationState(
            session_id=beside.session_id,
            started_us=beside.started_us,
            current_branch=beside.experiments.current,
            branches=beside.experiments.branches,
            code_changes=_with_environment(code, beside.env_vars),
            metrics=metrics if seq is None else msgspec.structs.replace(metrics, checkpoints_created=seq),
            broken=(*(each for _, found in read.values() for each in found), *broken),
            **entries,
        )
    except (msgspec.ValidationError, InvalidInput) as exc:
        raise InvalidInput(
            f"the checkpoint holds no investigation: {exc}", code="not_an_investigation"
        ) from exc


def _entries(state: dict[str, Any], part: str, kind: type[Entry]) -> tuple[Any, Iterable[BrokenEntry]]:
    """The entries of a kind in the state of a checkpoint, and those that cannot be read.

    A part that was not connected then is empty.
    """
    saved = state.get(part, {})
    if part in _SEVERAL:
        saved = typed.convert(saved, dict[str, Any]).get(kind.plural, {})
    entries, broken = read_entries(kind, saved)
    return tuple(entries.values()), broken.values()


def _with_environment(code: CodeState | None, env_vars: dict[str, str]) -> CodeState | None:
    """The state of the code, with the environment of the checkpoint where none was noted with it."""
    if not env_vars or (code is not None and code.env_vars):
        return code
    return msgspec.structs.replace(code or CodeState(), env_vars=env_vars)


def counted(entries: Mapping[str, Any]) -> dict[str, int]:
    """What the entries of an investigation say of how it went."""
    skipped = VerificationStatus.SKIPPED
    return {
        "hypotheses_tested": sum(each.was_tested for each in entries["hypotheses"]),
        "verifications_run": sum(each.status is not skipped for each in entries["verification_results"]),
        "gaps_filled": sum(each.status is GapStatus.FILLED for each in entries["gaps"]),
    }


def details_of(details: Any) -> Details:
    return typed.convert(details, Details) if isinstance(details, dict) else Details()


# --- comparing


class _Change(msgspec.Struct, frozen=True, kw_only=True, tag_field="change"):
    id: str


class EntryAdded(_Change, frozen=True, kw_only=True, tag="added"):
    """An entry that only the newer checkpoint has."""

    entry: Hypothesis | Belief


class EntryRemoved(_Change, frozen=True, kw_only=True, tag="removed"):
    """An entry that only the older checkpoint has, as after a restore."""

    entry: Hypothesis | Belief


class EntryUpdated(_Change, frozen=True, kw_only=True, tag="updated"):
    field: str
    old: Any
    new: Any


class StatusChanged(_Change, frozen=True, kw_only=True, tag="status_changed"):
    old: str
    new: str


class ConfidenceChanged(_Change, frozen=True, kw_only=True, tag="confidence_changed"):
    old: float
    new: float


EntryChange: TypeAlias = EntryAdded | EntryRemoved | EntryUpdated | StatusChanged | ConfidenceChanged

_UNTOLD: Final = frozenset({"was_tested"})
"""Fields that follow from others."""

T = TypeVar("T", bound=Entry)
H = TypeVar("H", Hypothesis, Belief)


class InvestigationComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The changes from one checkpoint to another, and the time between them; `reading` tells them in words."""

    older: str
    newer: str
    time_delta: timedelta
    hypothesis_diff: tuple[EntryChange, ...]
    belief_diff: tuple[EntryChange, ...]
    evidence_added: tuple[Evidence, ...]
    verifications_added: tuple[VerificationResult, ...]
    gaps_filled: tuple[str, ...]
    notes_added: tuple[DebugNote, ...]
    summary: str
    reading: tuple[str, ...] = ()

    def as_text(self) -> str:
        """The counts, one line each, then what happened in words."""
        return "\n".join(["Changes:", *(f" {line}" for line in self.summary.split("; ")), *self.reading])


def compare_states(
    older: InvestigationState, newer: InvestigationState, *, ids: tuple[str, str], elapsed: timedelta
) -> InvestigationComparison:
    hypotheses = changes(older.hypotheses, newer.hypotheses)
    beliefs = changes(older.beliefs, newer.beliefs)
    evidence = _added(older.evidence, newer.evidence)
    verifications = _added(older.verification_results, newer.verification_results)
    notes = _added(older.notes, newer.notes)
    filled = tuple(gap.id for gap in _added(_filled(older), _filled(newer)))
    parts = [
        _counted("Hypotheses", hypotheses),
        _counted("Beliefs", beliefs),
        f"Evidence: {len(evidence)} added",
        f"Verifications: {len(verifications)} added",
        f"Gaps: {len(filled)} filled",
        f"Notes: {len(notes)} added",
    ]
    return InvestigationComparison(
        older=ids[0],
        newer=ids[1],
        time_delta=elapsed,
        hypothesis_diff=hypotheses,
        belief_diff=beliefs,
        evidence_added=evidence,
        verifications_added=verifications,
        gaps_filled=filled,
        notes_added=notes,
        summary="; ".join(parts),
        reading=tuple(_reading(older, newer, hypotheses, beliefs)),
    )


def _reading(
    older: InvestigationState,
    newer: InvestigationState,
    hypotheses: Iterable[EntryChange],
    beliefs: Iterable[EntryChange],
) -> Iterator[str]:
    """New beliefs and theories, what was dropped or reworded, verdicts that changed, what was asked and answered."""
    texts = {each.id: each.description for state in (older, newer) for each in state.hypotheses}
    texts |= {each.id: each.statement for state in (older, newer) for each in state.beliefs}
    words = {
        "New theory": [each.id for each in hypotheses if isinstance(each, EntryAdded)],
        "Dropped theory": [each.id for each in hypotheses if isinstance(each, EntryRemoved)],
        "New belief": [each.id for each in beliefs if isinstance(each, EntryAdded)],
        "Dropped belief": [each.id for each in beliefs if isinstance(each, EntryRemoved)],
    }
    for word, ids in words.items():
        yield from (f"{word}: {texts[id]}" for id in ids)
    for change in hypotheses:
        if isinstance(change, StatusChanged):
            yield f"Verdict: {texts[change.id]} ({change.old} -> {change.new})"
    for change in (*hypotheses, *beliefs):
        if isinstance(change, ConfidenceChanged):
            yield f"Confidence: {texts[change.id]} ({change.old:.0%} -> {change.new:.0%})"
        elif isinstance(change, EntryUpdated) and change.field in ("description", "statement"):
            yield f"Reworded: {change.old} -> {change.new}"
    for each in _added(older.contradictions, newer.contradictions):
        pair = [text for id, text in texts.items() if id in (each.first, each.second)]
        yield f"Contradiction: {' / '.join(pair)}"
    before, after = _verdicts(older), _verdicts(newer)
    for plan, status in after.items():
        if before.get(plan, status) != status:
            yield f"Verification flipped: {plan} ({before[plan]} -> {status})"
        elif plan not in before:
            yield f"Verification {status}: {plan}"
    yield from (f"Answered: {gap.question}" for gap in _added(_filled(older), _filled(newer)))
    yield from (f"New question: {gap.question}" for gap in _added(older.gaps, newer.gaps))


def _verdicts(state: InvestigationState) -> dict[str, VerificationStatus]:
    """How the verifications of each plan ended last."""
    return {each.plan: each.status for each in state.verification_results}


def _filled(state: InvestigationState) -> list[KnowledgeGap]:
    return [gap for gap in state.gaps if gap.status is GapStatus.FILLED]


def changes(older: Iterable[H], newer: Iterable[H]) -> tuple[EntryChange, ...]:
    """What happened to each entry: those that are there now in their order, then those that are gone."""
    before = {entry.id: entry for entry in older}
    after = {entry.id: entry for entry in newer}
    found: list[EntryChange] = []
    for id, entry in after.items():
        if id not in before:
            found.append(EntryAdded(id=id, entry=entry))
        else:
            found += _updates(before[id], entry)
    found += [EntryRemoved(id=id, entry=entry) for id, entry in before.items() if id not in after]
    return tuple(found)


def _updates(old: H, new: H) -> list[EntryChange]:
    found: list[EntryChange] = []
    for field in type(new).__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before == after or field in _UNTOLD:
            continue
        if field == "status":
            found.append(StatusChanged(id=new.id, old=before, new=after))
        elif field == "confidence":
            found.append(ConfidenceChanged(id=new.id, old=before, new=after))
        else:
            found.append(EntryUpdated(id=new.id, field=field, old=before, new=after))
    return found


def _added(older: Iterable[T], newer: Iterable[T]) -> tuple[T, ...]:
    known = {entry.id for entry in older}
    return tuple(entry for entry in newer if entry.id not in known)


def _counted(noun: str, found: Sequence[EntryChange]) -> str:
    added = sum(isinstance(change, EntryAdded) for change in found)
    removed = sum(isinstance(change, EntryRemoved) for change in found)
    updated = len({change.id for change in found if not isinstance(change, EntryAdded | EntryRemoved)})
    gone = f", {removed} removed" if removed else ""
    return f"{noun}: {added} added, {updated} updated{gone}"
