"""The moments of an agent's work, in one shape for all clients."""

from __future__ import annotations

import msgspec

MAX_MESSAGE = 4000
MAX_TASKS = 200


class Task(msgspec.Struct, frozen=True):
    """An entry of the agent's task list."""

    id: str
    subject: str
    status: str


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a tool did, in the words of the snapshot lifecycle."""

    kind: str
    name: str
    result: str
    duration_ms: int | float
    summary: str
    reason_code: str | None = None


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One event: what it means, and the facts it brought. Empty texts and None say that it brought none."""

    client: str
    event: str
    kind: str
    session: str
    cwd: str
    transcript: str = ""
    source: str = ""
    reason: str = ""
    prompt: str = ""
    message: str = ""
    phase: str = ""
    outcome: Outcome | None = None
    tasks: tuple[Task, ...] | None = None
    task: Task | None = None
