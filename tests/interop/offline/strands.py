"""An agent of Strands with a model that only listens."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import strands
from strands.models import Model
from strands.session import SnapshotSessionManager

from stepkeep import RetentionRules, Store
from stepkeep.adapters.strands import StepkeepStorage


class Listener(Model):
    """Answers that it heard; what it was given is kept."""

    heard: list[str]

    def update_config(self, **_: Any) -> None:
        pass

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        said = [message for message in messages if message["role"] == "user"]
        self.heard = [block["text"] for message in said for block in message["content"]]
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": "I heard"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


class Agent:
    def __init__(self, store: Store, retention: RetentionRules | None = None) -> None:
        self.storage = StepkeepStorage(store, retention=retention)

    def key(self, conversation: str) -> str:
        return f"strands:session/{conversation}/scopes/agent/listener"

    def sessions(self, conversation: str, **options: Any) -> SnapshotSessionManager:
        return SnapshotSessionManager(session_id=conversation, storage=self.storage, **options)

    async def turn(self, conversation: str, prompt: str) -> list[str]:
        model = Listener()
        agent = strands.Agent(
            model=model,
            agent_id="listener",
            session_manager=self.sessions(conversation),
            callback_handler=None,
        )
        await agent.invoke_async(prompt)
        return model.heard

    async def write(self, conversation: str, prompt: str) -> None:
        key = f"session/{conversation}/scopes/agent/listener/snapshots/snapshot_latest.json"
        latest = json.loads(await self.storage.read(key) or b"")
        latest["data"]["messages"].append({"role": "user", "content": [{"text": prompt}]})
        await self.storage.write(key, json.dumps(latest, ensure_ascii=False).encode())
