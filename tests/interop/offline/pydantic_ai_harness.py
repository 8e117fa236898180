"""An agent of Pydantic AI whose steps are persisted, with a model that only listens."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pydantic_ai
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai_harness.step_persistence import ContinuableSnapshot, StepPersistence, continue_run

from stepkeep import RetentionRules, Store
from stepkeep.adapters.pydantic_ai_harness import StepkeepStepStore


def prompts(messages: list[ModelMessage]) -> list[str]:
    parts = (part for message in messages for part in message.parts)
    return [str(part.content) for part in parts if isinstance(part, UserPromptPart)]


class Agent:
    """Every turn is a run of its own, which goes on from the one before."""

    def __init__(self, store: Store, retention: RetentionRules | None = None) -> None:
        self.steps = StepkeepStepStore(store, retention=retention)

    async def _last_run(self, conversation: str) -> str | None:
        runs = await self.steps.list_runs(conversation_id=conversation)
        return runs[-1].run_id if runs else None

    def key(self, conversation: str) -> str:
        return f"pydantic-ai-run:{asyncio.run(self._last_run(conversation))}"

    async def turn(self, conversation: str, prompt: str) -> list[str]:
        heard: list[str] = []

        def listen(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
            heard[:] = prompts(messages)
            return ModelResponse(parts=[TextPart("I heard")])

        last = await self._last_run(conversation)
        history: Any = None if last is None else await continue_run(self.steps, run_id=last)
        persistence: Any = StepPersistence(store=self.steps, run_id=f"{conversation}-{uuid.uuid4()}")
        agent = pydantic_ai.Agent(FunctionModel(listen), capabilities=[persistence])
        await agent.run(prompt, message_history=history, conversation_id=conversation)
        return heard

    async def write(self, conversation: str, prompt: str) -> None:
        run = await self._last_run(conversation)
        assert run is not None
        snapshot = await self.steps.latest_snapshot(run_id=run)
        assert snapshot is not None
        more: list[ModelMessage] = [
            ModelRequest(parts=[UserPromptPart(prompt)]),
            ModelResponse(parts=[TextPart("I heard")]),
        ]
        await self.steps.save_snapshot(
            ContinuableSnapshot(run_id=run, step_index=9, messages=[*snapshot.messages, *more])
        )
