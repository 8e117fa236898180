"""How a debugging session went, in numbers; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from stepkeep.investigation.gaps import GapStatus, KnowledgeGap
from stepkeep.investigation.hypotheses import Hypothesis
from stepkeep.investigation.verifications import VerificationResult, VerificationStatus

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
