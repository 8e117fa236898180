"""`StepkeepStorage` in the place of Strands' storage in memory."""

from __future__ import annotations

from typing import Any

import strands.storage
from fresh_stores import fresh_url
from strands.storage import in_memory_storage

from stepkeep.adapters.strands import StepkeepStorage


class InMemoryStorage(StepkeepStorage):
    """Made without arguments."""

    def __init__(self, **_: Any) -> None:
        super().__init__(fresh_url())


strands.storage.InMemoryStorage = InMemoryStorage  # type: ignore[misc]
in_memory_storage.InMemoryStorage = InMemoryStorage  # type: ignore[misc]
