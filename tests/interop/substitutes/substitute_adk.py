"""`StepkeepSessionService` and `StepkeepArtifactService` in the place of ADK's services in memory."""

from __future__ import annotations

from fresh_stores import fresh_url
from google.adk.artifacts import in_memory_artifact_service
from google.adk.sessions import in_memory_session_service

from stepkeep.adapters.adk import StepkeepSessionService
from stepkeep.adapters.adk_artifacts import StepkeepArtifactService


class InMemorySessionService(StepkeepSessionService):
    """Made without arguments."""

    def __init__(self) -> None:
        super().__init__(fresh_url())


in_memory_session_service.InMemorySessionService = InMemorySessionService  # type: ignore[misc]


class InMemoryArtifactService(StepkeepArtifactService):
    """Made without arguments."""

    def __init__(self) -> None:
        super().__init__(fresh_url())


in_memory_artifact_service.InMemoryArtifactService = InMemoryArtifactService  # type: ignore[misc]
