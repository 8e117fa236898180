"""Hook events of coding agents: which event of which client means what, and their JSON in one form for all clients.

Names and fields are those of the clients' own documentation; `docs/reference/hooks.md` links the pages. Unknown fields
are ignored, and a field of the wrong kind counts as missing.
"""

from __future__ import annotations

import os
import re
from typing import Any

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.secrets import safe_text
from stepkeep.text import shortened, without_lone_surrogates

# --- what an event means, and which client calls it how --------------------------------------------------------

START = "start"
PROMPT = "prompt"
BEFORE_TOOL = "before_tool"
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
COPILOT = "copilot"
CURSOR = "cursor"
OPENCODE = "opencode"

EVENTS: dict[str, dict[str, str]] = {
    CLAUDE_CODE: {
        "SessionStart": START,
        "UserPromptSubmit": PROMPT,
        "PreToolUse": BEFORE_TOOL,
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
        "BeforeTool": BEFORE_TOOL,
        "AfterTool": TOOL,
        "PreCompress": COMPACTION,
        "AfterAgent": TURN_END,
        "SessionEnd": END,
    },
    CODEX: {
        "SessionStart": START,
        "UserPromptSubmit": PROMPT,
        "PreToolUse": BEFORE_TOOL,
        "PostToolUse": TOOL,
        "PreCompact": COMPACTION,
        "Stop": TURN_END,
        "SubagentStop": SUBAGENT_END,
        "SessionEnd": END,
        "agent-turn-complete": TURN_END,
    },
    COPILOT: {
        "SessionStart": START,
        "UserPromptSubmit": PROMPT,
        "PreToolUse": BEFORE_TOOL,
        "PostToolUse": TOOL,
        "PostToolUseFailure": TOOL_FAILED,
        "PreCompact": COMPACTION,
        "Stop": TURN_END,
        "SubagentStop": SUBAGENT_END,
        "SessionEnd": END,
    },
    CURSOR: {
        "sessionStart": START,
        "beforeSubmitPrompt": PROMPT,
        "preToolUse": BEFORE_TOOL,
        "postToolUse": TOOL,
        "postToolUseFailure": TOOL_FAILED,
        "preCompact": COMPACTION,
        "stop": TURN_END,
        "subagentStop": SUBAGENT_END,
        "sessionEnd": END,
    },
    OPENCODE: {
        "chat.message": PROMPT,
        "tool.execute.before": BEFORE_TOOL,
        "tool.execute.after": TOOL,
        "session.compacted": COMPACTION,
        "session.idle": TURN_END,
        "session.deleted": END,
    },
}
"""Client -> its events, and what each means here. `agent-turn-complete` is what Codex tells its `notify` program.
Copilot CLI has two forms of each event; these are the ones with the field names of the others. The events of opencode
are sent by our plugin."""

CLIENTS = tuple(EVENTS)

NOTIFY = "agent-turn-complete"

ADDS_CONTEXT = {"SessionStart", "UserPromptSubmit", "BeforeAgent"}
"""Events whose answer may add to the agent's context."""

ANSWERS_ALWAYS = {GEMINI, CODEX, COPILOT, CURSOR}
"""Clients that read every answer as JSON; the others take silence for nothing to say."""

_TOOLS_OF_PHASE = {
    "think": ("Agent", "Task"),
    "plan": (
        "EnterPlanMode",
        "ExitPlanMode",
        "TaskCreate",
        "TaskUpdate",
        "TodoWrite",
        "update_plan",
        "write_todos",
    ),
    "build": (
        *(
            "Delete",
            "Edit",
            "MultiEdit",
            "NotebookEdit",
            "StrReplace",
            "Write",
            "apply_patch",
            "create",
            "edit",
        ),
        *("patch", "replace", "write", "write_file"),
    ),
}
_PHASE_OF_TOOL = {tool: phase for phase, tools in _TOOLS_OF_PHASE.items() for tool in tools}
_SHELLS = {
    *(
        "Bash",
        "PowerShell",
        "Shell",
        "bash",
        "exec_command",
        "local_shell",
        "powershell",
        "run_shell_command",
    ),
    "shell",
}
_WRITERS = {*_TOOLS_OF_PHASE["build"], *_SHELLS}
_CHECKS = ("pytest", "unittest", " test", "check", "mypy", "ruff", "lint", "tox", "jest", "vitest")


def _phase_of_tool(tool: str, command: str) -> str:
    """The phase in which an agent that uses this tool works: what it looks at, plans, writes, runs or checks."""
    if tool in _SHELLS:
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


class TurnStart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a transcript ended when a prompt was given: the id of its last entry, None where it had none, and its size.

    `prompt_entry` is the id of the entry with the prompt itself, once it is written.
    """

    entry: str | None = None
    size_bytes: int = 0
    prompt_entry: str | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an event adds to the state of a session: what it means (`kind`), and what it brought.

    An event that is not a boundary waits in this form for the next checkpoint.
    """

    kind: str
    phase: str = ""
    prompt: str = ""
    message: str = ""
    outcome: ToolOutcome | None = None
    tasks: tuple[Task, ...] | None = None
    task: Task | None = None
    edited: tuple[str, ...] = ()
    """The files that a tool was told to write, by the names it was given."""


class HookEvent(Delta, frozen=True, kw_only=True):
    """One event of an agent. Empty texts and None: it brought none."""

    client: str
    name: str
    session: str
    cwd: str
    transcript: str = ""
    source: str = ""
    is_repaired: bool = False
    """Whether half characters in the input were replaced."""

    agent: dict[str, Any] | None = None
    """The agent's process, where another one than this hook's parent may save the event."""

    start: TurnStart | None = None
    """Where the transcript ended, where the event is a prompt that another process may save."""

    command: str = ""
    """What a shell is about to be told. It is never stored."""

    may_write: bool = False
    """Whether the tool that is about to be used may change files."""

    @property
    def delta(self) -> Delta:
        return Delta(**{name: getattr(self, name) for name in Delta.__struct_fields__})


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
    inputs, is_repaired = _decoded(content)
    session = safe_text(_first(inputs, "session_id", "conversation_id", "thread-id"), 400)
    if not session:
        raise InvalidEvent("the input names no session")
    if kind == TOOL and _has_failed(inputs):
        kind = TOOL_FAILED  # where the client has one event for both ends
    last_messages = ("last_assistant_message", "prompt_response", "last-assistant-message")
    return HookEvent(
        client=client,
        name=event,
        kind=kind,
        session=session,
        cwd=_text(inputs, "cwd") or _first_root(inputs) or cwd,
        transcript=_text(inputs, "transcript_path"),
        source=safe_text(inputs.get("source"), 40),
        is_repaired=is_repaired,
        prompt=_prompt(inputs),
        message=safe_text(_first(inputs, *last_messages), MAX_MESSAGE),
        **(_before_tool(inputs) if kind == BEFORE_TOOL else _of_tool(kind, inputs)),
    )


def _decoded(content: bytes) -> tuple[Inputs, bool]:
    """What the client sent, and whether half characters in it were replaced: a text that was cut may end in one."""
    if not content.strip():
        raise InvalidEvent("the input is empty")
    content = content.removeprefix(b"\xef\xbb\xbf")
    is_repaired = False
    try:
        try:
            found = msgspec.json.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            repaired = without_lone_surrogates(content)
            if repaired == content:
                raise
            found, is_repaired = msgspec.json.decode(repaired), True
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidEvent(f"the input is not JSON: {str(exc)[:200]}") from exc
    if not isinstance(found, dict):
        raise InvalidEvent("the input is not a JSON object")
    return found, is_repaired


def _first(inputs: Inputs, *names: str) -> Any:
    """What stands under the first of these names that has something."""
    return next((value for name in names if (value := inputs.get(name))), None)


def _first_root(inputs: Inputs) -> str:
    """The folder of a client that may have several open."""
    roots = inputs.get("workspace_roots")
    first = roots[0] if isinstance(roots, list) and roots else None
    return first if isinstance(first, str) else ""


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


def _before_tool(inputs: Inputs) -> dict[str, Any]:
    tool, command = _text(inputs, "tool_name"), _fields(inputs, "tool_input").get("command")
    if isinstance(command, list):  # some clients give a shell its words
        command = " ".join(map(str, command))
    is_shell = tool in _SHELLS and isinstance(command, str)
    # What a tool of somebody's server does is not known.
    return {"command": command if is_shell else "", "may_write": tool in _WRITERS or tool.startswith("mcp")}


def _of_tool(kind: str, inputs: Inputs) -> dict[str, Any]:
    if kind in (TOOL, TOOL_FAILED):
        tool = safe_text(inputs.get("tool_name"), MAX_SUBJECT)
        request = _fields(inputs, "tool_input")
        return {
            "edited": _edited(tool, request),
            "phase": _phase_of_tool(tool, str(request.get("command", ""))[:2000]),
            "outcome": _outcome(tool, request, inputs, failed=kind == TOOL_FAILED),
            **_tasks_in(tool, request, _fields(inputs, "tool_response")),
        }
    if kind == SUBAGENT_END:
        name = f"subagent {safe_text(_first(inputs, 'agent_type', 'agent_name', 'subagent_type'), 80) or 'unnamed'}"
        summary = _first_line(inputs.get("last_assistant_message"))
        return {"outcome": ToolOutcome("tool_use", name, "PASS", _duration(inputs), summary)}
    if kind == TASK_DONE:
        subject = _first_line(inputs.get("task_subject"))
        return {"task": Task(safe_text(inputs.get("task_id"), 80) or subject, subject, "completed")}
    return {"phase": "plan"} if inputs.get("permission_mode") == "plan" else {}


_PATCHED = r"(?m)^\*\*\* (?:Add|Update|Delete) File: (.+)$|^\*\*\* Move to: (.+)$"
"""Compiled where it is needed, which is seldom: that takes longer than all the rest here."""


def _edited(tool: str, request: dict[str, Any]) -> tuple[str, ...]:
    """The files that a tool was told to write."""
    if _PHASE_OF_TOOL.get(tool) != "build":
        return ()
    named = _first(request, "file_path", "filePath", "notebook_path", "path", "absolute_path")
    if isinstance(named, str):
        return (named,)
    text = _first(request, "patch", "input", "command")
    if isinstance(text, list):
        text = "\n".join(map(str, text))
    found = re.findall(_PATCHED, text) if isinstance(text, str) else []
    return tuple(made or moved for made, moved in found)


# --- outcomes --------------------------------------------------------------------------------------------------


def _outcome(tool: str, request: dict[str, Any], inputs: Inputs, *, failed: bool) -> ToolOutcome:
    shell = tool in _SHELLS
    name = _first_line(request.get("command")) if shell else ""
    reason = "interrupted" if inputs.get("is_interrupt") is True else "tool_failure"
    return ToolOutcome(
        kind="shell" if shell else "slash_command" if tool in ("SlashCommand", "Skill") else "tool_use",
        name=name or tool or "unnamed",
        result="FAIL" if failed else "PASS",
        duration_ms=_duration(inputs),
        summary=_first_line(_error_text(inputs))
        or _first_line(request.get("description"))
        or _first_line(request.get("file_path")),
        reason_code=reason if failed else None,
    )


def _duration(inputs: Inputs) -> int | float:
    value = inputs.get("duration_ms")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return value if 0 <= value < 1e12 else 0


def _has_failed(inputs: Inputs) -> bool:
    found = _fields(inputs, "tool_response")
    code = found.get("exit_code", found.get("exitCode"))
    kind = _fields(inputs, "tool_result").get("result_type", "success")
    return bool(found.get("error")) or (isinstance(code, int) and code != 0) or kind != "success"


def _error_text(inputs: Inputs) -> str:
    error = _first(inputs, "error", "error_message") or _fields(inputs, "tool_response").get("error")
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
    subject = _first_line(_first(entry, "subject", "content", "description", "step"))
    id = _first(entry, "id", "taskId")
    named = str(id) if isinstance(id, int) else safe_text(id, 80)
    return Task(named or default_id or subject, subject, _STATUSES.get(str(entry.get("status")), "pending"))


def _first_line(value: object) -> str:
    line = safe_text(value, MAX_SUBJECT * 4).partition("\n")[0].strip()
    return shortened(line, MAX_SUBJECT)
