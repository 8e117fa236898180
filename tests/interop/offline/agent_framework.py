"""A workflow of Microsoft Agent Framework that listens: every prompt answers a request for more."""

from __future__ import annotations

import uuid
from typing import Any

from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler, response_handler

from stepkeep import RetentionRules, Store
from stepkeep.adapters.agent_framework import StepkeepCheckpointStorage


class Listener(Executor):
    """Remembers what it heard, in the checkpoint."""

    def __init__(self) -> None:
        super().__init__(id="listener")
        self._prompts: list[str] = []

    @handler
    async def begin(self, prompt: str, ctx: WorkflowContext[str, list[str]]) -> None:
        await self._hear(prompt, ctx)

    @response_handler
    async def go_on(self, request: dict, prompt: str, ctx: WorkflowContext[str, list[str]]) -> None:  # type: ignore[type-arg]
        await self._hear(prompt, ctx)

    async def _hear(self, prompt: str, ctx: Any) -> None:
        self._prompts.append(prompt)
        await ctx.yield_output(list(self._prompts))
        await ctx.request_info({"heard": len(self._prompts)}, str)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"prompts": self._prompts}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._prompts = state["prompts"]


class Agent:
    def __init__(self, store: Store, retention: RetentionRules | None = None) -> None:
        self.storage = StepkeepCheckpointStorage(store, retention=retention)

    def key(self, conversation: str) -> str:
        return f"agent-framework:{conversation}"

    async def turn(self, conversation: str, prompt: str) -> list[str]:
        workflow = WorkflowBuilder(
            start_executor=Listener(), checkpoint_storage=self.storage, name=conversation, output_from="all"
        ).build()
        latest = await self.storage.get_latest(workflow_name=conversation)
        if latest is None:
            result = await workflow.run(prompt)
        else:
            (request,) = latest.pending_request_info_events
            result = await workflow.run(responses={request: prompt}, checkpoint_id=latest.checkpoint_id)
        prompts: list[str] = result.get_outputs()[-1]
        return prompts

    async def write(self, conversation: str, prompt: str) -> None:
        latest = await self.storage.get_latest(workflow_name=conversation)
        assert latest is not None
        latest.state["_executor_state"]["listener"]["prompts"].append(prompt)
        latest.checkpoint_id = str(uuid.uuid4())
        await self.storage.save(latest)
