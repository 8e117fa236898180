"""`StepkeepSessionStore` in the place of the SDK's `InMemorySessionStore`."""

from __future__ import annotations

from typing import Any

import claude_agent_sdk
from claude_agent_sdk._internal import session_store
from fresh_stores import fresh_url

from stepkeep.adapters.claude import ENTRIES, StepkeepSessionStore, _key


class InMemorySessionStore(StepkeepSessionStore):
    """Made without arguments, and with the reference's helpers for tests."""

    def __init__(self) -> None:
        super().__init__(fresh_url())

    def get_entries(self, key: Any) -> list[Any]:
        state = self._heads.state(_key(key))
        return [] if state is None else state[ENTRIES]

    @property
    def size(self) -> int:
        return sum(info.key.count("/") == 1 for info in self.store.sessions())

    def clear(self) -> None:
        for info in list(self.store.sessions()):
            self.store.get(info.key).clear()


claude_agent_sdk.InMemorySessionStore = InMemorySessionStore  # type: ignore[misc]
session_store.InMemorySessionStore = InMemorySessionStore  # type: ignore[misc]
