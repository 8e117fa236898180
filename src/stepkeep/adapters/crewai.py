"""Persistence for flows of CrewAI: `StepkeepFlowPersistence`. It needs `pip install stepkeep[crewai]`.

```python
@persist(StepkeepFlowPersistence("sqlite:agents.db"))
class Review(Flow[State]): ...
```

A flow is a session whose state is that of the flow, one checkpoint for each method that ended. While it waits for a
person, the details of its checkpoints have what it waits for.
"""

from __future__ import annotations

import os
from typing import Any, Final

from crewai.flow.async_feedback.types import PendingFeedbackContext
from crewai.flow.persistence.base import FlowPersistence
from pydantic import BaseModel, PrivateAttr

from stepkeep import api
from stepkeep.adapters.session_head import Change, HeadsOwner, SessionHeads, key_of, stored_value
from stepkeep.api import RetentionRules, SaveOptions, Status
from stepkeep.errors import InvalidInput

FRAMEWORK: Final = "crewai"
CONTEXT: Final = "context"
STATE: Final = "state"


class StepkeepFlowPersistence(HeadsOwner, FlowPersistence):  # type: ignore[misc]
    """The states of flows in a Stepkeep store, for any number of processes.

    `store` is an open store, or the URL of one, which is then opened here and closed by `close`. Every method of a flow
    leaves a checkpoint; `retention` says how many stay, all of them without it. Values come back as they were: dates,
    sets, tuples, bytes; of an object its fields.
    """

    persistence_type: str = "StepkeepFlowPersistence"
    url: str = ""
    _heads: SessionHeads = PrivateAttr()

    def __init__(
        self,
        store: api.Store | str | os.PathLike[str] | None = None,
        /,
        *,
        retention: RetentionRules | None = None,
        **fields: Any,
    ) -> None:
        FlowPersistence.__init__(self, **fields)
        self._heads = SessionHeads(self.url if store is None else store, retention=retention)
        self.url = self.store.url

    def init_db(self) -> None:
        """Nothing to do: opening a store makes what it needs."""

    def save_state(self, flow_uuid: str, method_name: str, state_data: dict[str, Any] | BaseModel) -> None:
        """Save the state of a flow durably after one of its methods. What it waits for, it still waits for.

        Raises:
            InvalidInput: a value cannot be stored; nothing was saved.
        """
        state = _fields(state_data)
        self._save(flow_uuid, lambda head: _change(method_name, state, head.details))

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """The newest state of a flow, None if there is none.

        Raises:
            Corrupt: it is damaged. No older one is taken instead.
        """
        return self._heads.state(key_of(FRAMEWORK, flow_uuid))

    # --- flows that wait for a person

    def save_pending_feedback(
        self, flow_uuid: str, context: PendingFeedbackContext, state_data: dict[str, Any] | BaseModel
    ) -> None:
        """Save the state together with what the flow waits for, as one checkpoint."""
        state = _fields(state_data)
        pending = {CONTEXT: stored_value(context.to_dict()), STATE: state}
        self._save(flow_uuid, lambda _: _change(context.method_name, state, pending))

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """The state in which a flow began to wait and what for; None if it does not wait."""
        pending = self._heads.details(key_of(FRAMEWORK, flow_uuid))
        return (
            None if pending is None else (pending[STATE], PendingFeedbackContext.from_dict(pending[CONTEXT]))
        )

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """Let the flow wait no more; its state stays."""
        self._save(flow_uuid, lambda head: _change("answered", head.state, None) if head.details else None)

    def _save(self, flow_uuid: str, work: Any) -> None:
        self._heads.change(key_of(FRAMEWORK, flow_uuid), work)


def _change(message: str, state: dict[str, Any], pending: dict[str, Any] | None) -> Change:
    status = Status.IN_PROGRESS if pending is None else Status.PAUSED
    return Change(state, SaveOptions(message=message, details=pending, status=status))


def _fields(state: dict[str, Any] | BaseModel) -> dict[str, Any]:
    """The fields of a state as they are stored, each as it comes back."""
    if isinstance(state, BaseModel):
        state = state.model_dump(mode="python")
    if not isinstance(state, dict):
        raise InvalidInput(f"the state of a flow is a model or a dict, not {type(state).__name__}")
    return {name: stored_value(value) for name, value in state.items()}
