"""LangGraph's checkpointer on Stepkeep: `StepkeepSaver`. It needs `pip install stepkeep[langgraph]`.

- `saver`: the checkpointer; `threads`: threads as sessions; `records`: checkpoints as checkpoints of the store
- `channel_values`, `serde`: channel values as data that is stored exactly; `writes`: pending writes as annotations
- `listing`: lists and the history of delta channels; `thread_retention`: which checkpoints of a thread stay
- `migration`: threads of LangGraph's own savers, brought over by `stepkeep import langgraph`
"""

from __future__ import annotations

from stepkeep.adapters.langgraph.saver import StepkeepSaver

__all__ = ["StepkeepSaver"]
