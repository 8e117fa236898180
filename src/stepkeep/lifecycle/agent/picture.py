"""What is known of an agent's work, event by event; pure.

The picture is the state of a checkpoint. It holds where the work stands and where the transcript ends, never the
transcript itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stepkeep.lifecycle.agent import kinds
from stepkeep.lifecycle.agent.moments import MAX_TASKS, Moment, Outcome, Task

MAX_RECENT = 10
MAX_OUTCOMES = 50
SUMMARY_WORDS = 8

Picture = dict[str, Any]


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an event adds to the picture; also how an event that is no boundary waits for the next checkpoint."""

    kind: str
    phase: str = ""
    prompt: str = ""
    message: str = ""
    outcome: Outcome | None = None
    tasks: tuple[Task, ...] | None = None
    task: Task | None = None


def facts_of(moment: Moment) -> Facts:
    return Facts(**{name: getattr(moment, name) for name in Facts.__struct_fields__})


def changed(picture: Picture, facts: Facts) -> Picture:
    """The picture after an event."""
    after = dict(picture)
    if facts.phase:
        after["phase"] = facts.phase
    if facts.prompt:
        after["prompt"] = facts.prompt
    if facts.message:
        after["last_message"] = facts.message
    if facts.tasks is not None:
        after["tasks"] = [msgspec.to_builtins(task) for task in facts.tasks]
    if facts.task is not None:
        after["tasks"] = _with_task(picture.get("tasks", []), facts.task)
    if facts.outcome is not None:
        after["recent"] = [*picture.get("recent", []), msgspec.to_builtins(facts.outcome)][-MAX_RECENT:]
    if facts.kind == kinds.COMPACTION:
        after["compacted"] = True
    elif facts.kind == kinds.PROMPT:
        after.pop("compacted", None)
    if facts.kind == kinds.TURN_END:
        after["turn"] = "ended"
    elif facts.kind in (kinds.PROMPT, kinds.TOOL, kinds.TOOL_FAILED):
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


def open_tasks(picture: Picture) -> list[dict[str, str]]:
    return [task for task in picture.get("tasks", []) if task["status"] != "completed"]


def is_work_done(picture: Picture) -> bool:
    """Whether nothing is left over when the session ends now: the last turn came to its end, and no task is open."""
    return picture.get("turn") == "ended" and not open_tasks(picture)


def phase_number(picture: Picture) -> int:
    return kinds.PHASES.index(picture.get("phase", kinds.PHASES[0])) + 1


def summary(picture: Picture) -> str:
    """The task in eight words: the one in progress, else what was asked for, else what was said last."""
    running = [task["subject"] for task in open_tasks(picture) if task["status"] == "in_progress"]
    waiting = [task["subject"] for task in open_tasks(picture)]
    texts = (*running, *waiting, picture.get("prompt", ""), picture.get("last_message", ""))
    text = next((text for text in texts if text), "")
    return " ".join(text.split()[:SUMMARY_WORDS]) or "unnamed work"


def metadata(picture: Picture) -> dict[str, Any]:
    """What a checkpoint says of the phase, so that it is one among all phase checkpoints."""
    return {
        "phase": picture.get("phase", kinds.PHASES[0]),
        "phase_number": phase_number(picture),
        "task_summary": summary(picture),
        "criteria": picture.get("tasks", [])[:50],
        "client": picture.get("client", ""),
    }


def details(picture: Picture, outcomes: list[Outcome]) -> dict[str, Any]:
    """What a checkpoint says of commands and of the step, as the snapshot lifecycle names it."""
    found: dict[str, Any] = {
        "command_outcomes": [msgspec.to_builtins(each) for each in outcomes[-MAX_OUTCOMES:]]
    }
    if len(outcomes) > MAX_OUTCOMES:
        found["command_outcomes_dropped"] = len(outcomes) - MAX_OUTCOMES
    step = next(iter(open_tasks(picture)), None)
    if step is not None:
        status = "running" if step["status"] == "in_progress" else "pending"
        found["step_state"] = {"step_id": step["id"], "step_status": status}
    return found


def is_same(one: Picture, other: Picture) -> bool:
    """Whether two pictures tell the same of the work, wherever the transcript ends."""
    passing = {"transcript", "events_seen", "git", "recent"}
    return {key: value for key, value in one.items() if key not in passing} == {
        key: value for key, value in other.items() if key not in passing
    }
