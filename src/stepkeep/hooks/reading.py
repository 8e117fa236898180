"""What an agent tells a hook, in one shape for all clients. Unknown fields are ignored, wrong ones count as missing."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.lifecycle.agent import clients
from stepkeep.lifecycle.agent.kinds import SUBAGENT_END, TASK_DONE, TOOL, TOOL_FAILED
from stepkeep.lifecycle.agent.moments import MAX_MESSAGE, MAX_TASKS, Moment, Outcome, Task
from stepkeep.lifecycle.agent.secrets import first_line, safe

MAX_INPUT_BYTES = 64 << 20
MAX_PROMPT = 500
MAX_SUBJECT = 200


class BadInput(InvalidInput):
    """What came in is of no use; the message says why."""

    code = "invalid_event"


Given = dict[str, Any]
"""What the client sent. Fields are checked one by one where they are used."""


def read_input(descriptor: int) -> bytes:
    """All that the agent wrote, up to a bound."""
    parts, size = [], 0
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
        size += len(part)
        if size > MAX_INPUT_BYTES:
            raise BadInput(f"the input has more than {MAX_INPUT_BYTES:,} bytes")
    return b"".join(parts)


def moment_of(client: str, event: str, content: bytes, *, cwd: str) -> Moment:
    """The event that a client tells of.

    Raises:
        BadInput: there is no such client or event, or the input is no JSON object with a session.
    """
    table = clients.EVENTS.get(client)
    if table is None:
        raise BadInput(f"no client {client[:80]!r}: use one of {', '.join(clients.CLIENTS)}")
    kind = table.get(event)
    if kind is None:
        raise BadInput(f"no event {event[:80]!r} of {client}: use one of {', '.join(table)}")
    given = _decoded(content)
    session = safe(given.get("session_id") or given.get("thread-id"), 400)
    if not session:
        raise BadInput("the input names no session")
    return Moment(
        client=client,
        event=event,
        kind=_failed_kind(kind, given),
        session=session,
        cwd=_text(given, "cwd") or cwd,
        transcript=_text(given, "transcript_path"),
        source=safe(given.get("source"), 40),
        reason=safe(given.get("reason"), 40),
        prompt=_prompt(given),
        message=safe(
            given.get("last_assistant_message")
            or given.get("prompt_response")
            or given.get("last-assistant-message"),
            MAX_MESSAGE,
        ),
        **_of_tool(kind, given),
    )


def _decoded(content: bytes) -> Given:
    if not content.strip():
        raise BadInput("the input is empty")
    try:
        found = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise BadInput(f"the input is no JSON: {str(exc)[:200]}") from exc
    if not isinstance(found, dict):
        raise BadInput("the input is no JSON object of an event")
    return found


def _text(given: Given, name: str) -> str:
    found = given.get(name)
    return found if isinstance(found, str) else ""


def _fields(given: Given, name: str) -> dict[str, Any]:
    found = given.get(name)
    return found if isinstance(found, dict) else {}


def _prompt(given: Given) -> str:
    messages = given.get("input-messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return safe(given.get("prompt") or last, MAX_PROMPT)


def _failed_kind(kind: str, given: Given) -> str:
    """A tool may also have failed where the client has one event for both ends."""
    return TOOL_FAILED if kind == TOOL and _has_failed(given) else kind


def _of_tool(kind: str, given: Given) -> dict[str, Any]:
    if kind in (TOOL, TOOL_FAILED):
        tool = safe(given.get("tool_name"), MAX_SUBJECT)
        request = _fields(given, "tool_input")
        return {
            "phase": clients.phase_of_tool(tool, str(request.get("command", ""))[:2000]),
            "outcome": _outcome(tool, request, given, failed=_failed_kind(kind, given) == TOOL_FAILED),
            **_tasks_in(tool, request, _fields(given, "tool_response")),
        }
    if kind == SUBAGENT_END:
        name = f"subagent {safe(given.get('agent_type'), 80) or 'unnamed'}"
        summary = first_line(given.get("last_assistant_message"), MAX_SUBJECT)
        return {"outcome": Outcome("tool_use", name, "PASS", _duration(given), summary)}
    if kind == TASK_DONE:
        subject = first_line(given.get("task_subject"), MAX_SUBJECT)
        return {"task": Task(safe(given.get("task_id"), 80) or subject, subject, "completed")}
    return {"phase": "plan"} if given.get("permission_mode") == "plan" else {}


# --- outcomes --------------------------------------------------------------------------------------------------


def _outcome(tool: str, request: dict[str, Any], given: Given, *, failed: bool) -> Outcome:
    shell = clients.is_shell(tool)
    name = first_line(request.get("command"), MAX_SUBJECT) if shell else ""
    interrupted = given.get("is_interrupt") is True
    summary = (
        first_line(_error_text(given), MAX_SUBJECT)
        or first_line(request.get("description"), MAX_SUBJECT)
        or first_line(request.get("file_path"), MAX_SUBJECT)
    )
    return Outcome(
        kind="shell" if shell else "slash_command" if tool in ("SlashCommand", "Skill") else "tool_use",
        name=name or tool or "unnamed",
        result="FAIL" if failed else "PASS",
        duration_ms=_duration(given),
        summary=summary,
        reason_code=("interrupted" if interrupted else "tool_failure") if failed else None,
    )


def _duration(given: Given) -> int | float:
    value = given.get("duration_ms")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return value if 0 <= value < 1e12 else 0


def _has_failed(given: Given) -> bool:
    found = _fields(given, "tool_response")
    code = found.get("exit_code", found.get("exitCode"))
    return bool(found.get("error")) or (isinstance(code, int) and code != 0)


def _error_text(given: Given) -> str:
    error = given.get("error") or _fields(given, "tool_response").get("error")
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
    subject = first_line(next((text for text in texts if text), ""), MAX_SUBJECT)
    id = entry.get("id") or entry.get("taskId")
    named = str(id) if isinstance(id, int) else safe(id, 80)
    return Task(named or default_id or subject, subject, _STATUSES.get(str(entry.get("status")), "pending"))
