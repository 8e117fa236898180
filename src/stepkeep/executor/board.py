"""The board a runner works from: which steps are ready, running, done; no I/O."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stepkeep.executor.plan import LastError, StepResult, StepStatus
from stepkeep.executor.progress import Progress, StepProgress

_PASSED = (StepStatus.COMPLETED, StepStatus.SKIPPED)


class Board:
    """The steps of one run by index. Its owner's thread alone changes it."""

    def __init__(self, progress: Progress) -> None:
        self._entries = list(progress.steps)
        self._query = progress.query
        self._index = {entry.step.id: index for index, entry in enumerate(self._entries)}
        self.last_error = progress.last_error

    def __getitem__(self, index: int) -> StepProgress:
        return self._entries[index]

    def __setitem__(self, index: int, entry: StepProgress) -> None:
        """Put an entry back as it was."""
        self._entries[index] = entry

    def progress(self, context: dict[str, object]) -> Progress:
        """Everything as it stands now."""
        return Progress(
            steps=tuple(self._entries), context=context, query=self._query, last_error=self.last_error
        )

    def ready(self) -> Iterator[int]:
        """Pending steps with nothing left to wait for, in the plan's order.

        A step skipped by choice stands in nobody's way. What a failure stands in the way of is skipped itself.
        """
        for index, entry in enumerate(self._entries):
            if entry.status is StepStatus.PENDING and all(
                self._entries[self._index[name]].status in _PASSED for name in entry.step.dependencies
            ):
                yield index

    def count(self, *statuses: StepStatus) -> int:
        return sum(entry.status in statuses for entry in self._entries)

    def outputs(self) -> dict[str, object]:
        """The outputs of the completed steps."""
        return {entry.step.id: entry.result.output for entry in self._entries if entry.result is not None}

    def start(self, index: int) -> None:
        entry = self._entries[index]
        self._set(index, StepStatus.RUNNING, attempts=entry.attempts + 1)

    def release(self, index: int) -> None:
        """A step that was interrupted has to be done again."""
        self._set(index, StepStatus.PENDING)

    def complete(self, index: int, result: StepResult) -> None:
        self._set(index, StepStatus.COMPLETED, result=result, error=None)
        if self.last_error is not None and self.last_error.step_index == index:
            self.last_error = None

    def skip(self, index: int, reason: str) -> None:
        self._set(index, StepStatus.SKIPPED, error=reason)

    def fail(self, index: int, error: LastError) -> list[int]:
        """A step failed for good; the steps that depend on it, directly or not, are skipped and returned."""
        self._set(index, StepStatus.FAILED, error=error.message)
        self.last_error = error
        return self._skip_dependents(index)

    def _skip_dependents(self, index: int) -> list[int]:
        blocked, skipped = {self._entries[index].step.id}, list[int]()
        grows = True
        while grows:
            grows = False
            for other, entry in enumerate(self._entries):
                if entry.status is StepStatus.PENDING and blocked.intersection(entry.step.dependencies):
                    self.skip(other, f"depends on {self._entries[index].step.id!r}, which failed")
                    blocked.add(entry.step.id)
                    skipped.append(other)
                    grows = True
        return skipped

    def _set(self, index: int, status: StepStatus, **changes: object) -> None:
        entry = self._entries[index]
        step = msgspec.structs.replace(entry.step, status=status)
        self._entries[index] = msgspec.structs.replace(entry, step=step, **changes)
