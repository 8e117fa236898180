"""An agent of Google's ADK with a model that only listens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.genai import types

from stepkeep import RetentionRules, Store
from stepkeep.adapters.adk import StepkeepSessionService

APP, USER = "listening", "ada"


class Listener(BaseLlm):
    """Answers that it heard; what it was given is kept."""

    model: str = "listener"
    heard: list[str] = []  # noqa: RUF012 - pydantic copies it

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        said = [content for content in llm_request.contents if content.role == "user"]
        self.heard = [part.text for content in said for part in content.parts or () if part.text]
        answer = types.Content(role="model", parts=[types.Part(text="I heard")])
        yield LlmResponse(content=answer)


class Agent:
    def __init__(self, store: Store, retention: RetentionRules | None = None) -> None:
        self.service = StepkeepSessionService(store, retention=retention)

    def key(self, conversation: str) -> str:
        return f"adk:{APP}/{USER}/{conversation}"

    async def session(self, conversation: str) -> Any:
        return await self.service.get_session(app_name=APP, user_id=USER, session_id=conversation)

    async def turn(self, conversation: str, prompt: str) -> list[str]:
        model = Listener()
        runner = Runner(
            app_name=APP, agent=LlmAgent(name="listener", model=model), session_service=self.service
        )
        if await self.session(conversation) is None:
            await self.service.create_session(app_name=APP, user_id=USER, session_id=conversation)
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        async for _ in runner.run_async(user_id=USER, session_id=conversation, new_message=message):
            pass
        return model.heard

    async def write(self, conversation: str, prompt: str) -> None:
        content = types.Content(role="user", parts=[types.Part(text=prompt)])
        event = Event(author="user", content=content, invocation_id="i")
        await self.service.append_event(await self.session(conversation), event)
