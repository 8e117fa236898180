"""`StepkeepSessionService` in the place of ADK's session service in memory."""

from __future__ import annotations

from fresh_stores import fresh_url
from google.adk.sessions import in_memory_session_service

from stepkeep.adapters.adk import StepkeepSessionService


class InMemorySessionService(StepkeepSessionService):
    """Made without arguments."""

    def __init__(self) -> None:
        super().__init__(fresh_url())


in_memory_session_service.InMemorySessionService = InMemorySessionService  # type: ignore[misc]
