"""Which checkpoints a run saves, and what they say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from stepkeep.engine.engine import shortened
from stepkeep.executor.progress import Progress
from stepkeep.executor.saver import Saver
from stepkeep.executor.steps import Hooks, tell
from stepkeep.model import Header, Status, Trigger, TriggerKind

COMPLETE: Final = "Execution complete"
STARTED: Final = "Execution started"

_AUTO: Final = Trigger()
_STEP: Final = Trigger(TriggerKind.AUTO, "step_boundary")
_ERROR: Final = Trigger(TriggerKind.ERROR, "error_boundary")
_PAUSE: Final = Trigger(TriggerKind.AUTO, "interruption")


class Checkpoints:
    """Saves at the boundaries of a run. Without a saver nothing is saved; without `is_auto` nothing after steps.

    `newest` is the last one saved, or the one the run was resumed from.
    """

    def __init__(
        self,
        saver: Saver | None,
        *,
        hooks: Hooks,
        is_auto: bool,
        newest: Header | None = None,
        duration_ms: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._saver = saver
        self._hooks = hooks
        self._is_auto = is_auto
        self._earlier_ms = duration_ms
        self._monotonic = monotonic
        self._started = monotonic()
        self.newest = newest

    @property
    def duration_ms(self) -> int:
        """How long this run has taken so far."""
        return round((self._monotonic() - self._started) * 1000)

    def begun(self, progress: Progress) -> None:
        """The run begins here: what a run that is killed in its first step goes back to."""
        at = progress.current_step_index
        self._save(progress, STARTED if at == 0 else f"Resumed at step {at}")

    def stepped(self, progress: Progress, index: int) -> None:
        """A step is completed, or was skipped by choice."""
        if self._is_auto:
            self._save(progress, _labelled("Completed", progress, index), trigger=_STEP)

    def failed(self, progress: Progress, index: int, *, is_end: bool) -> None:
        """A step failed for good. Only at the end of the work does that make the session failed."""
        self._save(
            progress,
            _labelled(f"Failed at step {index}", progress, index),
            status=Status.FAILED if is_end else Status.IN_PROGRESS,
            trigger=_ERROR,
        )

    def paused(self, progress: Progress) -> None:
        at = progress.current_step_index
        self._save(
            progress, _labelled(f"Paused at step {at}", progress, at), status=Status.PAUSED, trigger=_PAUSE
        )

    def completed(self, progress: Progress) -> None:
        self._save(progress, COMPLETE, status=Status.COMPLETED)

    def _save(
        self,
        progress: Progress,
        message: str,
        *,
        status: Status = Status.IN_PROGRESS,
        trigger: Trigger = _AUTO,
    ) -> None:
        if self._saver is None:
            return
        self.newest = self._saver.save(
            progress,
            message=message,
            duration_ms=self._earlier_ms + self.duration_ms,
            status=status,
            trigger=trigger,
        )
        tell(self._hooks.on_checkpoint, self.newest)


def _labelled(text: str, progress: Progress, index: int) -> str:
    if index >= len(progress.plan):
        return text
    step = progress.plan[index]
    return shortened(f"{text}: {step.description or step.id}")
