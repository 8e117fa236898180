"""LangGraph's checkpointer on Stepkeep: `StepkeepSaver`. It needs `pip install stepkeep[langgraph]`."""

from __future__ import annotations

from stepkeep.adapters.langgraph.saver import StepkeepSaver

__all__ = ["StepkeepSaver"]
