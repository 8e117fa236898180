"""What happened between two checkpoints: the changes of the state, and the time."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from stepkeep.history.changes import Comparison
from stepkeep.model import Header


class CheckpointComparison(Comparison, frozen=True, kw_only=True):
    """The changes that lead from the state of one checkpoint to that of another, counted and summed up."""

    older: Header
    newer: Header

    @property
    def elapsed(self) -> timedelta:
        """The time between them; negative when `newer` was saved first."""
        return timedelta(microseconds=self.newer.time_us - self.older.time_us)


def between(older: Header, newer: Header, comparison: Comparison) -> CheckpointComparison:
    """The comparison of two states as that of their checkpoints."""
    return CheckpointComparison(**msgspec.structs.asdict(comparison), older=older, newer=newer)
