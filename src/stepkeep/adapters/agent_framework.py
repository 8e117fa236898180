"""Checkpoints of Microsoft Agent Framework: `StepkeepCheckpointStorage`. Needs `pip install stepkeep[agent-framework]`.

```python
storage = StepkeepCheckpointStorage("sqlite:agents.db")
workflow = WorkflowBuilder(start_executor=first, checkpoint_storage=storage, name="review").build()
```

The checkpoints of a workflow's name are those of one session, in the order in which they were saved. Their state is the
framework's own encoding: JSON, with pickled objects in it where values are not plain. Nothing is pickled or unpickled
here; the framework does, and when it loads, only of types that it trusts itself or that are named.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

from agent_framework import WorkflowCheckpoint, WorkflowCheckpointException
from agent_framework._workflows._checkpoint_encoding import decode_checkpoint_value, encode_checkpoint_value

from stepkeep import api
from stepkeep.adapters.session_head import HeadsOwner, key_of, settled
from stepkeep.api import Header, RetentionRules, SaveOptions
from stepkeep.api.extension import HeaderQuery
from stepkeep.errors import NotFound

FRAMEWORK: Final = "agent-framework"
_FIRST: Final = ("state", "messages")
"""The fields that grow come first: what stands before a change is not stored again."""


class StepkeepCheckpointStorage(HeadsOwner):
    """The checkpoints of workflows in a Stepkeep store, for any number of processes.

    `store` is an open store, or the URL of one, which is then opened here and closed by `close`.
    `allowed_checkpoint_types` names the classes, as `module:qualname`, that may be unpickled beside those that the
    framework always allows; a checkpoint with others is refused when it is saved. `retention` says which checkpoints of
    a workflow stay; all of them without it.
    """

    def __init__(
        self,
        store: api.Store | str | os.PathLike[str],
        *,
        allowed_checkpoint_types: Iterable[str] = (),
        retention: RetentionRules | None = None,
    ) -> None:
        super().__init__(store, retention=retention)
        self._allowed = frozenset(allowed_checkpoint_types)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a copy durably as the newest of its workflow. One of the same id is replaced.

        Raises:
            WorkflowCheckpointException: it could not be loaded again.
        """
        # Before anything is awaited: what the workflow does next is not part of it.
        document = encode_checkpoint_value(checkpoint.to_dict())
        await settled(self._save, checkpoint.workflow_name, checkpoint.checkpoint_id, document)
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """The checkpoint with that id.

        Raises:
            WorkflowCheckpointException: there is none, or it holds a type that is not allowed.
            Corrupt: it is damaged.
        """
        return await settled(self._load, checkpoint_id)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """The checkpoint that was saved last, None if there is none; no other is read, and no clock is asked.

        Raises:
            Corrupt: it is damaged. No older one is taken instead.
        """
        state = await settled(self._heads.state, key_of(FRAMEWORK, workflow_name))
        return None if state is None else self._decoded(state)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """All checkpoints of a workflow, oldest first.

        Raises:
            Corrupt: one of them is damaged.
        """
        return await settled(self._list, workflow_name)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Their ids, oldest first; no checkpoint is read."""
        headers = await settled(self._heads.history, key_of(FRAMEWORK, workflow_name))
        return [header.external_id for header in headers if header.external_id is not None]

    async def delete(self, checkpoint_id: str) -> bool:
        """Remove a checkpoint with all its bytes; False if there is none."""
        return await settled(self._delete, checkpoint_id)

    # --- the same on a thread

    def _save(self, workflow: str, id: str, document: dict[str, Any]) -> None:
        self._decoded(document)
        state = {name: document[name] for name in _FIRST} | document
        step = document["iteration_count"]
        options = SaveOptions(external_id=id, step=step, message=f"superstep {step}")
        self._heads.replace(key_of(FRAMEWORK, workflow), state, options, lambda: self._delete(id))

    def _load(self, id: str) -> WorkflowCheckpoint:
        header = self._find(id)
        if header is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {id}")
        return self._decoded(self.store.engine.load(header).value())

    def _find(self, id: str) -> Header | None:
        """The checkpoint with the framework's id, in whichever session of the framework it is."""
        engine = self.store.engine
        for header in self._heads.headers(HeaderQuery(external_id=id)):
            if engine.backend.session(header.session).key.startswith(f"{FRAMEWORK}:"):
                return header
        return None

    def _list(self, workflow: str) -> list[WorkflowCheckpoint]:
        headers = self._heads.history(key_of(FRAMEWORK, workflow))
        return [self._decoded(self.store.engine.load(header).value()) for header in headers]

    def _delete(self, id: str) -> bool:
        header = self._find(id)
        if header is None:
            return False
        engine = self.store.engine
        try:
            self.store.get(engine.backend.session(header.session).key).delete(header.id)
        except NotFound:
            return False
        return True

    def _decoded(self, document: Any) -> WorkflowCheckpoint:
        return WorkflowCheckpoint.from_dict(decode_checkpoint_value(document, allowed_types=self._allowed))
