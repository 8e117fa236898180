"""An agent of OpenAI Agents with a model that follows a script."""

from __future__ import annotations

from typing import Any

import agents
from agents import Runner
from agents.testing import ScriptedModel, assistant_message

from stepkeep import RetentionRules, Store
from stepkeep.adapters.openai_agents import StepkeepSession

agents.set_tracing_disabled(True)


class Agent:
    def __init__(self, store: Store, retention: RetentionRules | None = None) -> None:
        self._store = store
        self._retention = retention

    def session(self, conversation: str) -> StepkeepSession:
        return StepkeepSession(conversation, self._store, retention=self._retention)

    def key(self, conversation: str) -> str:
        return self.session(conversation).key

    async def turn(self, conversation: str, prompt: str) -> list[str]:
        model = ScriptedModel([[assistant_message(f"I heard {prompt}")]])
        await Runner.run(
            agents.Agent(name="listener", model=model), prompt, session=self.session(conversation)
        )
        assert model.last_call is not None
        given: Any = model.last_call.input
        return [item["content"] for item in given if item.get("role") == "user"]

    async def write(self, conversation: str, prompt: str) -> None:
        await self.session(conversation).add_items([{"role": "user", "content": prompt}])
