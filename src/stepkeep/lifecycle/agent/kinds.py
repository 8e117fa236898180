"""What the events of agents mean, and the phases their work is in: plain texts, which cost nothing to import."""

from __future__ import annotations

START = "start"
PROMPT = "prompt"
TOOL = "tool"
TOOL_FAILED = "tool_failed"
COMPACTION = "compaction"
TURN_END = "turn_end"
SUBAGENT_END = "subagent_end"
TASK_DONE = "task_done"
END = "end"

PHASES = ("observe", "think", "plan", "build", "execute", "verify", "learn")
