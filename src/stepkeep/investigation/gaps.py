"""Knowledge gaps: what is not known, how much hangs on it, and what filled it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

import msgspec

from stepkeep.investigation.entries import (
    Announcer,
    Clock,
    Entry,
    EventKind,
    NewId,
    Records,
    check_tags,
    check_word,
    check_words,
    new_id,
)
from stepkeep.model import check_text


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


_OPEN: Final = frozenset({GapStatus.UNFILLED, GapStatus.IN_PROGRESS})
_ORDER: Final = tuple(Criticality)


class KnowledgeGap(Entry, frozen=True, kw_only=True):
    """A question. `blocks` are ids of what waits for it, `how` says what would answer it."""

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
        return self.status in _OPEN


class KnowledgeGapAnalyzer(Announcer):
    """Gaps, and which one to fill next."""

    def __init__(self, clock: Clock, *, make_id: NewId = new_id) -> None:
        super().__init__()
        self._clock = clock
        self._gaps = Records(KnowledgeGap, "gap", "g", make_id)

    def get(self, id: str) -> KnowledgeGap:
        return self._gaps.get(id)

    def all(self) -> tuple[KnowledgeGap, ...]:
        return tuple(self._gaps)

    def to_fill(self) -> tuple[KnowledgeGap, ...]:
        """The open gaps: the most critical first, then those that block most, then the oldest."""
        is_open = [gap for gap in self._gaps if gap.is_open]
        return tuple(sorted(is_open, key=lambda gap: (_ORDER.index(gap.criticality), -len(gap.blocks))))

    def add(
        self,
        question: str,
        *,
        type: GapType | str = GapType.FACTUAL,
        criticality: Criticality | str = Criticality.MEDIUM,
        blocks: Iterable[str] = (),
        how: str = "",
    ) -> KnowledgeGap:
        """Note that something is not known."""
        added = KnowledgeGap(
            id=self._gaps.new_id(),
            question=check_words("a question", question),
            type=check_word("type of gap", GapType, type),
            criticality=check_word("criticality", Criticality, criticality),
            created_us=self._clock(),
            blocks=check_tags(blocks),
            how=check_text("how to fill a gap", how),
        )
        self._gaps.put(added)
        self.announce(EventKind.GAP_ADDED, added.id)
        return added

    def fill(self, id: str, answer: str = "") -> KnowledgeGap:
        """Note the answer. Only filling it for the first time is announced as filled."""
        return self._change(id, GapStatus.FILLED, check_text("an answer", answer))

    def set_status(self, id: str, status: GapStatus | str) -> KnowledgeGap:
        """Say that a gap is worked on, cannot be filled, or does not matter any more."""
        return self._change(id, check_word("status of a gap", GapStatus, status), None)

    def _change(self, id: str, status: GapStatus, answer: str | None) -> KnowledgeGap:
        before = self.get(id)
        is_filled = status is GapStatus.FILLED
        was_filled = before.status is GapStatus.FILLED
        after = msgspec.structs.replace(
            before,
            status=status,
            filled_us=(before.filled_us if was_filled else self._clock()) if is_filled else None,
            answer=before.answer if answer is None else answer,
        )
        if after == before:
            return before
        self._gaps.put(after)
        kind = EventKind.GAP_FILLED if is_filled and not was_filled else EventKind.GAP_CHANGED
        self.announce(kind, after.id, status)
        return after

    # --- as a part

    def snapshot(self) -> dict[str, Any]:
        return self._gaps.snapshot()

    def validate(self, data: Any) -> None:
        self._gaps.read(data)

    def restore(self, data: Any) -> None:
        self._gaps.restore(data)
