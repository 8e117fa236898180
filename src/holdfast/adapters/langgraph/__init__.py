"""LangGraph's checkpointer on Holdfast: `HoldfastSaver`. It needs `pip install holdfast[langgraph]`."""

from __future__ import annotations

from holdfast.adapters.langgraph.saver import HoldfastSaver

__all__ = ["HoldfastSaver"]
