"""How a script's run is saved: one checkpoint per finished step, and one that says why it ended early."""

from __future__ import annotations

from typing import Final

import msgspec

from stepkeep.engine import Engine, Save
from stepkeep.engine.engine import shortened
from stepkeep.executor.script_record import LastError, Ledger, Started, details_of, timestamp
from stepkeep.model import STATE, Status, Trigger, TriggerKind

DETAILS: Final = "details"
STEP_BOUNDARY: Final = "step_boundary"


class Saver:
    """Makes and stores the checkpoints of one run, fenced by the token of its lease."""

    def __init__(self, engine: Engine, uid: str, *, fence: int) -> None:
        self._engine = engine
        self._uid = uid
        self._fence = fence

    def save_of(
        self,
        done: Ledger,
        *,
        message: str,
        event: str = STEP_BOUNDARY,
        step: int | None = None,
        status: Status = Status.IN_PROGRESS,
        last_error: LastError | None = None,
    ) -> Save:
        """The checkpoint of a ledger: the outputs are its state, the record its details.

        Raises:
            InvalidInput: the outputs cannot be saved.
        """
        record = msgspec.structs.replace(done.record, last_error=last_error)
        return Save(
            session=self._uid,
            bodies={
                STATE: self._engine.encode(done.outputs),
                DETAILS: self._engine.encode(details_of(record)),
            },
            fence=self._fence,
            step=step,
            status=status,
            trigger=Trigger(TriggerKind.ERROR if status is Status.FAILED else TriggerKind.AUTO, event),
            message=message,
        )

    def failure(self, done: Ledger, error: Exception, blamed: Started | None) -> None:
        """Store that an error ended the run, and which step raised it."""
        text = shortened(f"{type(error).__name__}: {error}")
        last_error = LastError(
            message=text,
            timestamp=timestamp(self._engine.clock()),
            step=None if blamed is None else blamed.name,
            step_index=None if blamed is None else blamed.ordinal,
        )
        save = self.save_of(
            done,
            message=f"Failed {_where(done, blamed)}",
            event="run_stopped" if blamed is None else "step_failed",
            step=None if blamed is None else blamed.ordinal,
            status=Status.FAILED,
            last_error=last_error,
        )
        self._engine.save(save)
        self._engine.finish(self._uid, Status.FAILED, error=text, fence=self._fence)

    def pause(self, done: Ledger, blamed: Started | None) -> None:
        """Store that the run was stopped from outside, and in which step."""
        save = self.save_of(
            done,
            message=f"Paused {_where(done, blamed)}",
            event="run_stopped",
            step=None if blamed is None else blamed.ordinal,
            status=Status.PAUSED,
        )
        self._engine.save(save)
        self.mark(Status.PAUSED)

    def mark(self, status: Status) -> None:
        """Set the status of the session."""
        self._engine.finish(self._uid, status, fence=self._fence)


def _where(done: Ledger, blamed: Started | None) -> str:
    return f"after {done.last_step}" if blamed is None else f"at step {blamed.ordinal}: {blamed.name}"
