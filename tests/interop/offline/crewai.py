"""A flow of CrewAI that only listens."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import redirect_stdout
from typing import Any

os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
}

from crewai.flow import Flow, persist, start

from stepkeep import RetentionRules, Store
from stepkeep.adapters.crewai import StepkeepFlowPersistence


class Agent:
    def __init__(self, store: Store, retention: RetentionRules | None = None) -> None:
        self.persistence = StepkeepFlowPersistence(store, retention=retention)

        @persist(self.persistence)
        class Listener(Flow[dict[str, Any]]):  # type: ignore[misc]
            @start()
            def listen(self) -> None:
                self.state["heard"] = [*self.state.get("heard", ()), self.state["prompt"]]

        self._flow = Listener

    def key(self, conversation: str) -> str:
        return f"crewai:{conversation}"

    async def turn(self, conversation: str, prompt: str) -> list[str]:
        flow = self._flow(suppress_flow_events=True)
        with redirect_stdout(sys.stderr):  # it talks
            await flow.kickoff_async(inputs={"id": conversation, "prompt": prompt})
        return list(flow.state["heard"])

    async def write(self, conversation: str, prompt: str) -> None:
        state = self.persistence.load_state(conversation) or {"heard": []}
        changed = state | {"heard": [*state["heard"], prompt]}
        await asyncio.to_thread(self.persistence.save_state, conversation, "listen", changed)
