"""What changed in an investigation from one checkpoint to another: typed, counted, in words; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from stepkeep.investigation.beliefs import Belief
from stepkeep.investigation.commands import VerificationResult
from stepkeep.investigation.entries import Entry
from stepkeep.investigation.gaps import GapStatus
from stepkeep.investigation.hypotheses import Evidence, Hypothesis
from stepkeep.investigation.notes import DebugNote
from stepkeep.investigation.state import InvestigationState


class EntryAdded(msgspec.Struct, frozen=True, kw_only=True, tag="added", tag_field="change"):
    """An entry that only the newer checkpoint has."""

    id: str
    entry: Hypothesis | Belief


class EntryRemoved(msgspec.Struct, frozen=True, kw_only=True, tag="removed", tag_field="change"):
    """An entry that only the older checkpoint has, as after a restore."""

    id: str
    entry: Hypothesis | Belief


class EntryUpdated(msgspec.Struct, frozen=True, kw_only=True, tag="updated", tag_field="change"):
    id: str
    field: str
    old: Any
    new: Any


class StatusChanged(msgspec.Struct, frozen=True, kw_only=True, tag="status_changed", tag_field="change"):
    id: str
    old: str
    new: str


class ConfidenceChanged(
    msgspec.Struct, frozen=True, kw_only=True, tag="confidence_changed", tag_field="change"
):
    id: str
    old: float
    new: float


EntryChange: TypeAlias = EntryAdded | EntryRemoved | EntryUpdated | StatusChanged | ConfidenceChanged

_UNTOLD: Final = frozenset({"was_tested"})
"""Fields that follow from others."""

T = TypeVar("T", bound=Entry)
H = TypeVar("H", Hypothesis, Belief)


class InvestigationComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The changes from one checkpoint to another, and the time between them."""

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

    def as_text(self) -> str:
        """The counts, one line each."""
        return "\n".join(["Changes:", *(f" {line}" for line in self.summary.split("; "))])


def compare_states(
    older: InvestigationState, newer: InvestigationState, *, ids: tuple[str, str], elapsed: timedelta
) -> InvestigationComparison:
    hypotheses = changes(older.hypotheses, newer.hypotheses)
    beliefs = changes(older.beliefs, newer.beliefs)
    evidence = _added(older.evidence, newer.evidence)
    verifications = _added(older.verification_results, newer.verification_results)
    notes = _added(older.notes, newer.notes)
    were_filled = {gap.id for gap in older.gaps if gap.status is GapStatus.FILLED}
    filled = tuple(
        gap.id for gap in newer.gaps if gap.status is GapStatus.FILLED and gap.id not in were_filled
    )
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
    )


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
