"""An agent of Pydantic AI with a model that is a function."""

from __future__ import annotations

from typing import Any

import pydantic_ai
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel

from stepkeep import RetentionRules, Store
from stepkeep.adapters.pydantic_ai import StepkeepConversationStore


class Agent:
    def __init__(self, store: Store, retention: RetentionRules | None = None) -> None:
        self.conversations = StepkeepConversationStore(store, retention=retention)

    def key(self, conversation: str) -> str:
        return f"pydantic-ai:{conversation}"

    async def turn(self, conversation: str, prompt: str) -> list[str]:
        heard: list[str] = []

        def answer(messages: list[Any], info: Any) -> ModelResponse:
            parts = [part for message in messages for part in message.parts]
            heard[:] = [str(part.content) for part in parts if isinstance(part, UserPromptPart)]
            return ModelResponse(parts=[TextPart("I heard")])

        store = self.conversations
        before = await store.load(conversation) or Conversation(conversation_id=conversation)
        result = await pydantic_ai.Agent(FunctionModel(answer)).run(prompt, conversation=before)
        await store.save(result)
        return heard

    async def write(self, conversation: str, prompt: str) -> None:
        loaded = await self.conversations.load(conversation)
        assert loaded is not None
        loaded.messages.append(ModelRequest(parts=[UserPromptPart(prompt)]))
        await self.conversations.save(loaded)
