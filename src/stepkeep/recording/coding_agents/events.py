"""Hook events of coding agents: which event of which client means what, and their JSON in one form for all clients.

Names and fields are those of the clients' own documentation; `docs/reference/hooks.md` links the pages. Unknown fields
are ignored, and a field of the wrong kind counts as missing.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.secrets import safe_text
from stepkeep.text import shortened

# --- what an event means, and which client calls it how --------------------------------------------------------

START = "start"
PROMPT = "prompt"
TOOL = "tool"
TOOL_FAILED = "tool_failed"
COMPACTION = "compaction"
TURN_END = "turn_end"
SUBAGENT_END = "subagent_end"
TASK_DONE = "task_done"
END = "end"

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


# --- an event --------------------------------------------------------------------------------------------------

MAX_MESSAGE = 4000
MAX_TASKS = 200


class Task(msgspec.Struct, frozen=True):
    """An entry of the agent's task list."""

    id: str
    subject: str
    status: str


class ToolOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a tool did, in the words of the snapshot lifecycle."""

    kind: str
    name: str
    result: str
    duration_ms: int | float
    summary: str
    reason_code: str | None = None


class HookEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of an agent: what it means (`kind`), and what it brought. Empty texts and None: it brought none."""

    client: str
    name: str
    kind: str
    session: str
    cwd: str
    transcript: str = ""
    source: str = ""
    reason: str = ""
    prompt: str = ""
    message: str = ""
    phase: str = ""
    outcome: ToolOutcome | None = None
    tasks: tuple[Task, ...] | None = None
    task: Task | None = None


# --- reading ---------------------------------------------------------------------------------------------------

MAX_INPUT_BYTES = 64 << 20
MAX_PROMPT = 500
MAX_SUBJECT = 200


class InvalidEvent(InvalidInput):
    """The input of a hook is not an event of a known client; the message says why."""

    code = "invalid_event"


Inputs = dict[str, Any]
"""What the client sent. Fields are checked one by one where they are used."""


def read_input(descriptor: int) -> bytes:
    """All that the agent wrote, up to a bound."""
    parts, size = [], 0
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
        size += len(part)
        if size > MAX_INPUT_BYTES:
            raise InvalidEvent(f"the input has more than {MAX_INPUT_BYTES:,} bytes")
    return b"".join(parts)


def read_event(client: str, event: str, content: bytes, *, cwd: str) -> HookEvent:
    """The event that a client tells of.

    Raises:
        InvalidEvent: there is no such client or event, or the input is not a JSON object that names a session.
    """
    table = EVENTS.get(client)
    if table is None:
        raise InvalidEvent(f"no client {client[:80]!r}: use one of {', '.join(CLIENTS)}")
    kind = table.get(event)
    if kind is None:
        raise InvalidEvent(f"no event {event[:80]!r} of {client}: use one of {', '.join(table)}")
    inputs = _decoded(content)
    session = safe_text(inputs.get("session_id") or inputs.get("thread-id"), 400)
    if not session:
        raise InvalidEvent("the input names no session")
    return HookEvent(
        client=client,
        name=event,
        kind=_failed_kind(kind, inputs),
        session=session,
        cwd=_text(inputs, "cwd") or cwd,
        transcript=_text(inputs, "transcript_path"),
        source=safe_text(inputs.get("source"), 40),
        reason=safe_text(inputs.get("reason"), 40),
        prompt=_prompt(inputs),
        message=safe_text(
            inputs.get("last_assistant_message")
            or inputs.get("prompt_response")
            or inputs.get("last-assistant-message"),
            MAX_MESSAGE,
        ),
        **_of_tool(kind, inputs),
    )


def _decoded(content: bytes) -> Inputs:
    if not content.strip():
        raise InvalidEvent("the input is empty")
    try:
        found = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidEvent(f"the input is not JSON: {str(exc)[:200]}") from exc
    if not isinstance(found, dict):
        raise InvalidEvent("the input is not a JSON object")
    return found


def _text(inputs: Inputs, name: str) -> str:
    found = inputs.get(name)
    return found if isinstance(found, str) else ""


def _fields(inputs: Inputs, name: str) -> dict[str, Any]:
    found = inputs.get(name)
    return found if isinstance(found, dict) else {}


def _prompt(inputs: Inputs) -> str:
    messages = inputs.get("input-messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return safe_text(inputs.get("prompt") or last, MAX_PROMPT)


def _failed_kind(kind: str, inputs: Inputs) -> str:
    """A tool may also have failed where the client has one event for both ends."""
    return TOOL_FAILED if kind == TOOL and _has_failed(inputs) else kind


def _of_tool(kind: str, inputs: Inputs) -> dict[str, Any]:
    if kind in (TOOL, TOOL_FAILED):
        tool = safe_text(inputs.get("tool_name"), MAX_SUBJECT)
        request = _fields(inputs, "tool_input")
        return {
            "phase": phase_of_tool(tool, str(request.get("command", ""))[:2000]),
            "outcome": _outcome(tool, request, inputs, failed=_failed_kind(kind, inputs) == TOOL_FAILED),
            **_tasks_in(tool, request, _fields(inputs, "tool_response")),
        }
    if kind == SUBAGENT_END:
        name = f"subagent {safe_text(inputs.get('agent_type'), 80) or 'unnamed'}"
        summary = _first_line(inputs.get("last_assistant_message"), MAX_SUBJECT)
        return {"outcome": ToolOutcome("tool_use", name, "PASS", _duration(inputs), summary)}
    if kind == TASK_DONE:
        subject = _first_line(inputs.get("task_subject"), MAX_SUBJECT)
        return {"task": Task(safe_text(inputs.get("task_id"), 80) or subject, subject, "completed")}
    return {"phase": "plan"} if inputs.get("permission_mode") == "plan" else {}


# --- outcomes --------------------------------------------------------------------------------------------------


def _outcome(tool: str, request: dict[str, Any], inputs: Inputs, *, failed: bool) -> ToolOutcome:
    shell = is_shell(tool)
    name = _first_line(request.get("command"), MAX_SUBJECT) if shell else ""
    interrupted = inputs.get("is_interrupt") is True
    summary = (
        _first_line(_error_text(inputs), MAX_SUBJECT)
        or _first_line(request.get("description"), MAX_SUBJECT)
        or _first_line(request.get("file_path"), MAX_SUBJECT)
    )
    return ToolOutcome(
        kind="shell" if shell else "slash_command" if tool in ("SlashCommand", "Skill") else "tool_use",
        name=name or tool or "unnamed",
        result="FAIL" if failed else "PASS",
        duration_ms=_duration(inputs),
        summary=summary,
        reason_code=("interrupted" if interrupted else "tool_failure") if failed else None,
    )


def _duration(inputs: Inputs) -> int | float:
    value = inputs.get("duration_ms")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return value if 0 <= value < 1e12 else 0


def _has_failed(inputs: Inputs) -> bool:
    found = _fields(inputs, "tool_response")
    code = found.get("exit_code", found.get("exitCode"))
    return bool(found.get("error")) or (isinstance(code, int) and code != 0)


def _error_text(inputs: Inputs) -> str:
    error = inputs.get("error") or _fields(inputs, "tool_response").get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) else ""


# --- task lists ------------------------------------------------------------------------------------------------

_LISTS = {"TodoWrite": "todos", "write_todos": "todos", "update_plan": "plan"}
_STATUSES = {"completed": "completed", "done": "completed", "in_progress": "in_progress"}


def _tasks_in(tool: str, request: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    if tool in _LISTS:
        entries = request.get(_LISTS[tool])
        if isinstance(entries, list):
            found = enumerate(entries[:MAX_TASKS], start=1)
            return {"tasks": tuple(_task(each, str(at)) for at, each in found if isinstance(each, dict))}
    if tool == "TaskCreate":
        made = response.get("task")
        return {"task": _task({**request, **(made if isinstance(made, dict) else {})}, "")}
    if tool == "TaskUpdate" and request.get("status") != "deleted":
        return {"task": _task(request, "")}
    return {}


def _task(entry: dict[str, Any], default_id: str) -> Task:
    texts = (entry.get(name) for name in ("subject", "content", "description", "step"))
    subject = _first_line(next((text for text in texts if text), ""), MAX_SUBJECT)
    id = entry.get("id") or entry.get("taskId")
    named = str(id) if isinstance(id, int) else safe_text(id, 80)
    return Task(named or default_id or subject, subject, _STATUSES.get(str(entry.get("status")), "pending"))


def _first_line(value: object, limit: int) -> str:
    line = safe_text(value, limit * 4).partition("\n")[0].strip()
    return shortened(line, limit)
