"""Hypotheses and their evidence, and knowledge gaps: what may be the cause, and what has to be found out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

from stepkeep.investigation.entries import (
    TIME_PASSED,
    Entry,
    EntryPart,
    EntryRef,
    check_ids,
    check_share,
    check_tags,
    check_word,
    check_words,
)
from stepkeep.model import check_text
from stepkeep.recording.triggers import AutoTrigger

PRIOR_CONFIDENCE: Final = 0.5


class HypothesisStatus(StrEnum):
    ACTIVE = "active"
    UNDER_TEST = "under_test"
    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    ARCHIVED = "archived"


DECIDED: Final = frozenset({HypothesisStatus.CONFIRMED, HypothesisStatus.REJECTED})
TESTED: Final = DECIDED | {HypothesisStatus.UNDER_TEST}


class EvidenceKind(StrEnum):
    OBSERVATION = "observation"
    EXPERIMENT_RESULT = "experiment_result"
    EXTERNAL_REFERENCE = "external_reference"
    DEDUCTION = "deduction"


class Hypothesis(Entry, frozen=True, kw_only=True):
    """A possible cause. `was_tested` stays true once it was under test, confirmed or rejected."""

    plural = "hypotheses"
    prefix = "h"

    created_us: int
    description: str
    status: HypothesisStatus = HypothesisStatus.ACTIVE
    confidence: float = PRIOR_CONFIDENCE
    tags: tuple[str, ...] = ()
    parent: str | None = None
    was_tested: bool = False


class Evidence(Entry, frozen=True, kw_only=True):
    """What speaks for a hypothesis (strength up to 1) or against it (down to −1)."""

    plural = "evidence"
    prefix = "e"

    hypothesis: str
    time_us: int
    kind: EvidenceKind
    strength: float
    description: str
    source: str = ""
    raw: str = ""


class HypothesisBoard(EntryPart[Hypothesis]):
    """Hypotheses and their evidence. Ids may be given by a unique beginning."""

    kinds = (Hypothesis, Evidence)

    def children(self, id: EntryRef) -> tuple[Hypothesis, ...]:
        parent = self.get(id).id
        return tuple(each for each in self.all() if each.parent == parent)

    def evidence(self, hypothesis: EntryRef | None = None) -> tuple[Evidence, ...]:
        """All evidence, or that about one hypothesis, oldest first."""
        wanted = None if hypothesis is None else self.get(hypothesis).id
        return tuple(each for each in self._of(Evidence).values() if wanted in (None, each.hypothesis))

    def add(
        self,
        description: str,
        *,
        confidence: float = PRIOR_CONFIDENCE,
        tags: Iterable[str] = (),
        parent: EntryRef | None = None,
    ) -> Hypothesis:
        """Put up a hypothesis, be it a refinement of another one."""
        return self._put(
            Hypothesis(
                id=self._new_id(Hypothesis),
                created_us=self._clock(),
                description=check_words("a hypothesis", description),
                confidence=check_share("a confidence", confidence),
                tags=check_tags(tags),
                parent=None if parent is None else self.get(parent).id,
            )
        )

    def update(
        self,
        id: EntryRef,
        *,
        description: str | None = None,
        confidence: float | None = None,
        tags: Iterable[str] | None = None,
    ) -> Hypothesis:
        """Change what a hypothesis says, or how likely it is."""
        fields: dict[str, Any] = {}
        if description is not None:
            fields["description"] = check_words("a hypothesis", description)
        if confidence is not None:
            fields["confidence"] = check_share("a confidence", confidence)
        if tags is not None:
            fields["tags"] = check_tags(tags)
        return self._update(self.get(id), **fields)

    def set_status(
        self, id: EntryRef, status: HypothesisStatus | str, *, confidence: float | None = None
    ) -> Hypothesis:
        """Say where a hypothesis stands now. A status that is new is worth a checkpoint."""
        wanted = check_word("status of a hypothesis", HypothesisStatus, status)
        before = self.get(id)
        is_new = wanted != before.status
        return self._update(
            before,
            AutoTrigger.HYPOTHESIS_STATUS_CHANGE if is_new else TIME_PASSED,
            (f"hypothesis_{wanted}",) if is_new and wanted in DECIDED else (),
            status=wanted,
            was_tested=before.was_tested or wanted in TESTED,
            confidence=before.confidence if confidence is None else check_share("a confidence", confidence),
        )

    def test(self, id: EntryRef) -> Hypothesis:
        return self.set_status(id, HypothesisStatus.UNDER_TEST)

    def confirm(self, id: EntryRef, *, confidence: float | None = None) -> Hypothesis:
        return self.set_status(id, HypothesisStatus.CONFIRMED, confidence=confidence)

    def reject(self, id: EntryRef, *, confidence: float | None = None) -> Hypothesis:
        return self.set_status(id, HypothesisStatus.REJECTED, confidence=confidence)

    def archive(self, id: EntryRef) -> Hypothesis:
        return self.set_status(id, HypothesisStatus.ARCHIVED)

    def add_evidence(
        self,
        hypothesis: EntryRef,
        description: str,
        *,
        kind: EvidenceKind | str = EvidenceKind.OBSERVATION,
        strength: float = 0.0,
        source: str = "",
        raw: str = "",
    ) -> Evidence:
        """Note what speaks for or against a hypothesis. Its confidence is the investigator's to change."""
        return self._put(
            Evidence(
                id=self._new_id(Evidence),
                hypothesis=self.get(hypothesis).id,
                time_us=self._clock(),
                kind=check_word("kind of evidence", EvidenceKind, kind),
                strength=check_share("a strength", strength, least=-1.0),
                description=check_words("evidence", description),
                source=check_text("a source", source),
                raw=check_text("raw data", raw),
            )
        )

    def _misfits(
        self, entries: Mapping[type[Entry], Mapping[str, Any]]
    ) -> Iterator[tuple[type[Entry], str, str]]:
        for id, evidence in entries[Evidence].items():
            if evidence.hypothesis not in entries[Hypothesis]:
                yield Evidence, id, f"it is about {evidence.hypothesis!r}, which is not there"


# --- gaps


class GapType(StrEnum):
    FACTUAL = "factual"
    OBSERVATIONAL = "observational"
    EXPERIMENTAL = "experimental"
    EXTERNAL_REFERENCE = "external_reference"
    CODE_UNDERSTANDING = "code_understanding"
    INFERENTIAL = "inferential"


class Criticality(StrEnum):
    """How much hangs on it, most first."""

    BLOCKING = "blocking"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    TRIVIAL = "trivial"


class GapStatus(StrEnum):
    UNFILLED = "unfilled"
    IN_PROGRESS = "in_progress"
    FILLED = "filled"
    UNFILLABLE = "unfillable"
    OBSOLETE = "obsolete"


_ORDER: Final = tuple(Criticality)


class KnowledgeGap(Entry, frozen=True, kw_only=True):
    """A question. `blocks` are ids of what waits for it, `how` says what would answer it."""

    plural = "gaps"
    prefix = "g"

    question: str
    type: GapType
    criticality: Criticality
    created_us: int
    status: GapStatus = GapStatus.UNFILLED
    filled_us: int | None = None
    blocks: tuple[str, ...] = ()
    how: str = ""
    answer: str = ""

    @property
    def is_open(self) -> bool:
        return self.status in (GapStatus.UNFILLED, GapStatus.IN_PROGRESS)


class KnowledgeGapAnalyzer(EntryPart[KnowledgeGap]):
    """Gaps, and which one to fill next."""

    kinds = (KnowledgeGap,)

    def to_fill(self) -> tuple[KnowledgeGap, ...]:
        """The open gaps: the most critical first, then those that block most, then the oldest."""
        is_open = [gap for gap in self.all() if gap.is_open]
        return tuple(sorted(is_open, key=lambda gap: (_ORDER.index(gap.criticality), -len(gap.blocks))))

    def add(
        self,
        question: str,
        *,
        type: GapType | str = GapType.FACTUAL,
        criticality: Criticality | str = Criticality.MEDIUM,
        blocks: Iterable[EntryRef] = (),
        how: str = "",
    ) -> KnowledgeGap:
        """Note that something is not known."""
        return self._put(
            KnowledgeGap(
                id=self._new_id(KnowledgeGap),
                question=check_words("a question", question),
                type=check_word("type of gap", GapType, type),
                criticality=check_word("criticality", Criticality, criticality),
                created_us=self._clock(),
                blocks=check_ids(blocks),
                how=check_text("how to fill a gap", how),
            )
        )

    def fill(self, id: EntryRef, answer: str = "") -> KnowledgeGap:
        """Note the answer. Filling it for the first time is worth a checkpoint."""
        return self._set(id, GapStatus.FILLED, answer=check_text("an answer", answer))

    def set_status(self, id: EntryRef, status: GapStatus | str) -> KnowledgeGap:
        """Say that a gap is worked on, cannot be filled, or does not matter any more."""
        return self._set(id, check_word("status of a gap", GapStatus, status))

    def _set(self, id: EntryRef, status: GapStatus, **fields: Any) -> KnowledgeGap:
        before = self.get(id)
        if status is not GapStatus.FILLED:
            return self._update(before, status=status, filled_us=None, **fields)
        if before.status is GapStatus.FILLED:
            return self._update(before, **fields)
        now_us = self._clock()
        return self._update(before, AutoTrigger.GAP_FILLED, status=status, filled_us=now_us, **fields)
