"""`StepkeepCheckpointStorage` in the place of the framework's storages, in memory and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import agent_framework
from agent_framework._workflows import _checkpoint
from fresh_stores import fresh_url

from stepkeep.adapters.agent_framework import StepkeepCheckpointStorage


class InMemoryCheckpointStorage(StepkeepCheckpointStorage):
    """Made without arguments. The original copies any object; here the classes of the tests are allowed by name."""

    def __init__(self) -> None:
        names = ("ApprovalRequest", "CustomData", "ExecutorState", "ToolApprovalRequest")
        allowed = [f"tests.workflow.test_checkpoint:_Test{name}" for name in names]
        super().__init__(fresh_url(), allowed_checkpoint_types=allowed)


class FileCheckpointStorage(StepkeepCheckpointStorage):
    """Made with a folder."""

    def __init__(self, storage_path: Any, *, allowed_checkpoint_types: Any = None) -> None:
        self.storage_path = Path(storage_path)
        self.storage_path.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:{self.storage_path}/stepkeep.db"
        super().__init__(url, allowed_checkpoint_types=allowed_checkpoint_types or ())


for module in (agent_framework, agent_framework._workflows, _checkpoint):
    for made in (InMemoryCheckpointStorage, FileCheckpointStorage):
        if hasattr(module, made.__name__):
            setattr(module, made.__name__, made)
