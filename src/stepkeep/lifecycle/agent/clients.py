"""Which events of which client mean what.

Names and fields are those of the clients' own documentation; `docs/reference/hooks.md` links the pages.
"""

from __future__ import annotations

from stepkeep.lifecycle.agent.kinds import (
    COMPACTION,
    END,
    PROMPT,
    START,
    SUBAGENT_END,
    TASK_DONE,
    TOOL,
    TOOL_FAILED,
    TURN_END,
)

CLAUDE_CODE = "claude-code"
GEMINI = "gemini"
CODEX = "codex"

EVENTS: dict[str, dict[str, str]] = {
    CLAUDE_CODE: {
        "SessionStart": START,
        "UserPromptSubmit": PROMPT,
        "PostToolUse": TOOL,
        "PostToolUseFailure": TOOL_FAILED,
        "PreCompact": COMPACTION,
        "Stop": TURN_END,
        "SubagentStop": SUBAGENT_END,
        "TaskCompleted": TASK_DONE,
        "SessionEnd": END,
    },
    GEMINI: {
        "SessionStart": START,
        "BeforeAgent": PROMPT,
        "AfterTool": TOOL,
        "PreCompress": COMPACTION,
        "AfterAgent": TURN_END,
        "SessionEnd": END,
    },
    CODEX: {
        "SessionStart": START,
        "UserPromptSubmit": PROMPT,
        "PostToolUse": TOOL,
        "PreCompact": COMPACTION,
        "Stop": TURN_END,
        "SubagentStop": SUBAGENT_END,
        "SessionEnd": END,
        "agent-turn-complete": TURN_END,
    },
}
"""Client -> its events, and what each means here. `agent-turn-complete` is what Codex tells its `notify` program."""

CLIENTS = tuple(EVENTS)

NOTIFY = "agent-turn-complete"

ADDS_CONTEXT = {"SessionStart", "UserPromptSubmit", "BeforeAgent"}
"""Events whose answer may add to the agent's context."""

ANSWERS_ALWAYS = {GEMINI, CODEX}
"""Clients that read every answer as JSON; the others take silence for nothing to say."""

_PHASE_OF_TOOL = {
    "Agent": "think",
    "Task": "think",
    "EnterPlanMode": "plan",
    "ExitPlanMode": "plan",
    "TaskCreate": "plan",
    "TaskUpdate": "plan",
    "TodoWrite": "plan",
    "update_plan": "plan",
    "write_todos": "plan",
    "Edit": "build",
    "MultiEdit": "build",
    "NotebookEdit": "build",
    "Write": "build",
    "apply_patch": "build",
    "replace": "build",
    "write_file": "build",
}
_SHELLS = {"Bash", "PowerShell", "exec_command", "local_shell", "run_shell_command", "shell"}
_CHECKS = (
    "pytest",
    "unittest",
    " test",
    "check",
    "mypy",
    "ruff",
    "lint",
    "tox",
    "jest",
    "vitest",
)


def is_shell(tool: str) -> bool:
    return tool in _SHELLS


def phase_of_tool(tool: str, command: str) -> str:
    """The phase in which an agent that uses this tool works: what it looks at, plans, writes, runs or checks."""
    if is_shell(tool):
        return "verify" if any(word in command for word in _CHECKS) else "execute"
    return _PHASE_OF_TOOL.get(tool, "observe")
