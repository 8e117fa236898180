"""What is known of an agent's work, changed event by event; pure.

The session state is the state of a checkpoint. It holds where the work stands and where the transcript ends, never the
transcript itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stepkeep.model import PHASES
from stepkeep.recording.coding_agents import events
from stepkeep.recording.coding_agents.events import MAX_TASKS, HookEvent, Task, ToolOutcome

MAX_RECENT = 10
MAX_OUTCOMES = 50
SUMMARY_WORDS = 8

SessionState = dict[str, Any]


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an event adds to the state; also how an event that is not a boundary waits for the next checkpoint."""

    kind: str
    phase: str = ""
    prompt: str = ""
    message: str = ""
    outcome: ToolOutcome | None = None
    tasks: tuple[Task, ...] | None = None
    task: Task | None = None


def delta_of(event: HookEvent) -> Delta:
    return Delta(**{name: getattr(event, name) for name in Delta.__struct_fields__})


def changed(state: SessionState, delta: Delta) -> SessionState:
    """The state after an event."""
    after = dict(state)
    if delta.phase:
        after["phase"] = delta.phase
    if delta.prompt:
        after["prompt"] = delta.prompt
    if delta.message:
        after["last_message"] = delta.message
    if delta.tasks is not None:
        after["tasks"] = [msgspec.to_builtins(task) for task in delta.tasks]
    if delta.task is not None:
        after["tasks"] = _with_task(state.get("tasks", []), delta.task)
    if delta.outcome is not None:
        after["recent"] = [*state.get("recent", []), msgspec.to_builtins(delta.outcome)][-MAX_RECENT:]
    if delta.kind == events.COMPACTION:
        after["compacted"] = True
    elif delta.kind == events.PROMPT:
        after.pop("compacted", None)
    if delta.kind == events.TURN_END:
        after["turn"] = "ended"
    elif delta.kind in (events.PROMPT, events.TOOL, events.TOOL_FAILED):
        after["turn"] = "running"
    return after


def _with_task(tasks: list[dict[str, str]], task: Task) -> list[dict[str, str]]:
    """The list with one task put in or changed, found by its id, else by what it says."""
    at = next((at for at, each in enumerate(tasks) if each["id"] == task.id), None)
    if at is None and task.subject:
        at = next((at for at, each in enumerate(tasks) if each["subject"] == task.subject), None)
    if at is None:
        return [*tasks, msgspec.to_builtins(task)][-MAX_TASKS:]
    known = tasks[at]
    return [
        *tasks[:at],
        {**known, "subject": task.subject or known["subject"], "status": task.status},
        *tasks[at + 1 :],
    ]


def open_tasks(state: SessionState) -> list[dict[str, str]]:
    return [task for task in state.get("tasks", []) if task["status"] != "completed"]


def is_work_done(state: SessionState) -> bool:
    """Whether nothing is left over when the session ends now: the last turn came to its end, and no task is open."""
    return state.get("turn") == "ended" and not open_tasks(state)


def phase_number(state: SessionState) -> int:
    return PHASES.index(state.get("phase", PHASES[0])) + 1


def summary(state: SessionState) -> str:
    """The task in eight words: the one in progress, else what was asked for, else what was said last."""
    running = [task["subject"] for task in open_tasks(state) if task["status"] == "in_progress"]
    waiting = [task["subject"] for task in open_tasks(state)]
    texts = (*running, *waiting, state.get("prompt", ""), state.get("last_message", ""))
    text = next((text for text in texts if text), "")
    return " ".join(text.split()[:SUMMARY_WORDS]) or "unnamed work"


def metadata(state: SessionState) -> dict[str, Any]:
    """What a checkpoint says of the phase, so that it is one among all phase checkpoints."""
    return {
        "phase": state.get("phase", PHASES[0]),
        "phase_number": phase_number(state),
        "task_summary": summary(state),
        "criteria": state.get("tasks", [])[:50],
        "client": state.get("client", ""),
    }


def details(state: SessionState, outcomes: list[ToolOutcome]) -> dict[str, Any]:
    """What a checkpoint says of commands and of the step, as the snapshot lifecycle names it."""
    found: dict[str, Any] = {
        "command_outcomes": [msgspec.to_builtins(each) for each in outcomes[-MAX_OUTCOMES:]]
    }
    if len(outcomes) > MAX_OUTCOMES:
        found["command_outcomes_dropped"] = len(outcomes) - MAX_OUTCOMES
    step = next(iter(open_tasks(state)), None)
    if step is not None:
        status = "running" if step["status"] == "in_progress" else "pending"
        found["step_state"] = {"step_id": step["id"], "step_status": status}
    return found


def comparable(state: SessionState) -> SessionState:
    """What has to differ for an event to be worth a checkpoint of its own, wherever the transcript ends."""
    passing = {"transcript", "events_seen", "git", "recent"}
    return {key: value for key, value in state.items() if key not in passing}
