"""The hypothesis board: what may be the cause, how likely it is, and what speaks for and against it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.investigation.entries import (
    Announcer,
    Clock,
    Entry,
    EventKind,
    NewId,
    Records,
    check_share,
    check_tags,
    check_word,
    check_words,
    new_id,
)
from stepkeep.model import check_text

PRIOR: Final = 0.5


class HypothesisStatus(StrEnum):
    ACTIVE = "active"
    UNDER_TEST = "under_test"
    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    ARCHIVED = "archived"


TESTED: Final = frozenset(
    {HypothesisStatus.UNDER_TEST, HypothesisStatus.CONFIRMED, HypothesisStatus.REJECTED}
)


class EvidenceKind(StrEnum):
    OBSERVATION = "observation"
    EXPERIMENT_RESULT = "experiment_result"
    EXTERNAL_REFERENCE = "external_reference"
    DEDUCTION = "deduction"


class Hypothesis(Entry, frozen=True, kw_only=True):
    """A possible cause. `was_tested` stays true once it was under test, confirmed or rejected."""

    created_us: int
    description: str
    status: HypothesisStatus = HypothesisStatus.ACTIVE
    confidence: float = PRIOR
    tags: tuple[str, ...] = ()
    parent: str | None = None
    was_tested: bool = False


class Evidence(Entry, frozen=True, kw_only=True):
    """What speaks for a hypothesis (strength up to 1) or against it (down to −1)."""

    hypothesis: str
    time_us: int
    kind: EvidenceKind
    strength: float
    description: str
    source: str = ""
    raw: str = ""


class HypothesisBoard(Announcer):
    """Hypotheses and their evidence. Ids may be given by a unique beginning."""

    def __init__(self, clock: Clock, *, make_id: NewId = new_id) -> None:
        super().__init__()
        self._clock = clock
        self._hypotheses = Records(Hypothesis, "hypothesis", "h", make_id)
        self._evidence = Records(Evidence, "evidence", "e", make_id)

    # --- looking

    def get(self, id: str) -> Hypothesis:
        return self._hypotheses.get(id)

    def all(self) -> tuple[Hypothesis, ...]:
        return tuple(self._hypotheses)

    def children(self, id: str) -> tuple[Hypothesis, ...]:
        parent = self.get(id).id
        return tuple(each for each in self._hypotheses if each.parent == parent)

    def evidence(self, hypothesis: str | None = None) -> tuple[Evidence, ...]:
        """All evidence, or that about one hypothesis, oldest first."""
        wanted = None if hypothesis is None else self.get(hypothesis).id
        return tuple(each for each in self._evidence if wanted in (None, each.hypothesis))

    # --- changing

    def add(
        self,
        description: str,
        *,
        confidence: float = PRIOR,
        tags: Iterable[str] = (),
        parent: str | None = None,
    ) -> Hypothesis:
        """Put up a hypothesis, be it a refinement of another one."""
        added = Hypothesis(
            id=self._hypotheses.new_id(),
            created_us=self._clock(),
            description=check_words("a hypothesis", description),
            confidence=check_share("a confidence", confidence),
            tags=check_tags(tags),
            parent=None if parent is None else self.get(parent).id,
        )
        self._hypotheses.put(added)
        self.announce(EventKind.HYPOTHESIS_ADDED, added.id)
        return added

    def update(
        self,
        id: str,
        *,
        description: str | None = None,
        confidence: float | None = None,
        tags: Iterable[str] | None = None,
    ) -> Hypothesis:
        """Change what a hypothesis says, or how likely it is."""
        changes: dict[str, Any] = {}
        if description is not None:
            changes["description"] = check_words("a hypothesis", description)
        if confidence is not None:
            changes["confidence"] = check_share("a confidence", confidence)
        if tags is not None:
            changes["tags"] = check_tags(tags)
        before = self.get(id)
        after = msgspec.structs.replace(before, **changes)
        if after != before:
            self._hypotheses.put(after)
            self.announce(EventKind.HYPOTHESIS_CHANGED, after.id)
        return after

    def set_status(
        self, id: str, status: HypothesisStatus | str, *, confidence: float | None = None
    ) -> Hypothesis:
        """Say where a hypothesis stands now. Only a status that is new is announced."""
        wanted = check_word("status of a hypothesis", HypothesisStatus, status)
        before = self.get(id)
        after = msgspec.structs.replace(
            before,
            status=wanted,
            was_tested=before.was_tested or wanted in TESTED,
            confidence=before.confidence if confidence is None else check_share("a confidence", confidence),
        )
        if after == before:
            return before
        self._hypotheses.put(after)
        is_new_status = after.status != before.status
        kind = EventKind.HYPOTHESIS_STATUS_CHANGED if is_new_status else EventKind.HYPOTHESIS_CHANGED
        self.announce(kind, after.id, after.status if is_new_status else "")
        return after

    def test(self, id: str) -> Hypothesis:
        return self.set_status(id, HypothesisStatus.UNDER_TEST)

    def confirm(self, id: str, *, confidence: float | None = None) -> Hypothesis:
        return self.set_status(id, HypothesisStatus.CONFIRMED, confidence=confidence)

    def reject(self, id: str, *, confidence: float | None = None) -> Hypothesis:
        return self.set_status(id, HypothesisStatus.REJECTED, confidence=confidence)

    def archive(self, id: str) -> Hypothesis:
        return self.set_status(id, HypothesisStatus.ARCHIVED)

    def add_evidence(
        self,
        hypothesis: str,
        description: str,
        *,
        kind: EvidenceKind | str = EvidenceKind.OBSERVATION,
        strength: float = 0.0,
        source: str = "",
        raw: str = "",
    ) -> Evidence:
        """Note what speaks for or against a hypothesis. Its confidence is the investigator's to change."""
        added = Evidence(
            id=self._evidence.new_id(),
            hypothesis=self.get(hypothesis).id,
            time_us=self._clock(),
            kind=check_word("kind of evidence", EvidenceKind, kind),
            strength=check_share("a strength", strength, least=-1.0),
            description=check_words("evidence", description),
            source=check_text("a source", source),
            raw=check_text("raw data", raw),
        )
        self._evidence.put(added)
        self.announce(EventKind.EVIDENCE_ADDED, added.id)
        return added

    # --- as a part

    def snapshot(self) -> dict[str, Any]:
        return {"hypotheses": self._hypotheses.snapshot(), "evidence": self._evidence.snapshot()}

    def validate(self, data: Any) -> None:
        hypotheses = self._hypotheses.read(data["hypotheses"])
        for evidence in self._evidence.read(data["evidence"]).values():
            if evidence.hypothesis not in hypotheses:
                raise InvalidInput(
                    f"evidence {evidence.id} is about {evidence.hypothesis!r}, which is not there",
                    code="invalid_entries",
                )

    def restore(self, data: Any) -> None:
        self._hypotheses.restore(data["hypotheses"])
        self._evidence.restore(data["evidence"])
