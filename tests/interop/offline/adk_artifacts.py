"""An agent of Google's ADK that keeps what it heard in an artifact."""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent
from google.adk.runners import InMemoryRunner
from google.genai import types

from stepkeep import RetentionRules, Store
from stepkeep.adapters.adk_artifacts import StepkeepArtifactService
from tests.interop.offline.adk import APP, USER, Listener

NAME = "heard.txt"


class Agent:
    def __init__(self, store: Store, retention: RetentionRules | None = None) -> None:
        self.artifacts = StepkeepArtifactService(store, retention=retention)

    def key(self, conversation: str) -> str:
        return f"adk-artifact:{APP}/{USER}/{conversation}/{NAME}"

    async def turn(self, conversation: str, prompt: str) -> list[str]:
        heard: list[str] = []

        async def note(callback_context: Any) -> None:
            heard[:] = [*_lines(await callback_context.load_artifact(NAME)), prompt]
            await callback_context.save_artifact(NAME, _part(heard), custom_metadata={"last": prompt})

        agent = LlmAgent(name="listener", model=Listener(), before_agent_callback=note)
        runner = InMemoryRunner(agent, app_name=APP)
        runner.artifact_service = self.artifacts
        await runner.session_service.create_session(app_name=APP, user_id=USER, session_id=conversation)
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        async for _ in runner.run_async(user_id=USER, session_id=conversation, new_message=message):
            pass
        return heard

    async def write(self, conversation: str, prompt: str) -> None:
        place: Any = {"app_name": APP, "user_id": USER, "session_id": conversation, "filename": NAME}
        heard = _lines(await self.artifacts.load_artifact(**place))
        await self.artifacts.save_artifact(
            **place, artifact=_part([*heard, prompt]), custom_metadata={"last": prompt}
        )


def _part(heard: list[str]) -> types.Part:
    return types.Part.from_bytes(data="\n".join(heard).encode(), mime_type="text/plain")


def _lines(part: types.Part | None) -> list[str]:
    return [] if part is None else part.inline_data.data.decode().split("\n")  # type: ignore[union-attr]
