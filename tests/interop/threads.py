"""Small threads, put through the saver's own interface."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, empty_checkpoint, uuid6


def config(thread: Any = "t", namespace: str = "", checkpoint: str | None = None) -> RunnableConfig:
    named = {} if checkpoint is None else {"checkpoint_id": checkpoint}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, **named}}


def id_of(found: RunnableConfig) -> str:
    return str(found["configurable"]["checkpoint_id"])


def checkpoint(values: dict[str, Any] | None = None, *, id: str | None = None) -> Checkpoint:
    made = empty_checkpoint()
    made["id"] = id or str(uuid6())
    made["channel_values"] = dict(values or {})
    made["channel_versions"] = dict.fromkeys(values or {}, 1)
    return made


def put(
    saver: BaseCheckpointSaver[Any],
    values: dict[str, Any] | None = None,
    at: RunnableConfig | None = None,
    *,
    id: str | None = None,
    **metadata: Any,
) -> RunnableConfig:
    """Put a checkpoint below the one that the config names."""
    made = checkpoint(values, id=id)
    described: Any = {"source": "loop", "step": 1, "parents": {}, **metadata}
    return saver.put(at or config(), made, described, made["channel_versions"])


def values_of(saver: BaseCheckpointSaver[Any], at: RunnableConfig | None = None) -> Any:
    found = saver.get_tuple(at or config())
    assert found is not None
    return found.checkpoint["channel_values"]
