"""Finding unfinished work to offer when a session starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from stepkeep.engine import Engine
from stepkeep.lifecycle.agent import picture, saving, surroundings
from stepkeep.lifecycle.agent.moments import Moment
from stepkeep.model import Session, Status
from stepkeep.storage.port import SessionQuery

MAX_COUNTED = 20
LIVE_US = 30 * 60 * 1_000_000
"""How long after its last save an agent whose process lives still counts as at work."""


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work that may be resumed."""

    key: str
    number: int
    phase: str
    task: str
    status: Status
    time_us: int
    checkpoint: str
    store: str | None = None


def unfinished(engine: Engine, *, project: str | None = None, without: str = "") -> Iterator[Unfinished]:
    """Unfinished work with phases, the most recent first: of this project and of none, or of all.

    Work that another agent is at right now is not among it, nor the session named in `without`.
    """
    query = SessionQuery(statuses=(Status.IN_PROGRESS, Status.PAUSED))
    for session in engine.backend.sessions(query):
        if session.profile != saving.PROFILE or session.key == without:
            continue
        if project is not None and session.project not in (None, project):
            continue
        if _is_at_work(session, engine.clock()):
            continue
        found = _work_in(engine, session)
        if found is not None:
            yield found


def _is_at_work(session: Session, now_us: int) -> bool:
    agent = session.metadata.get("agent")
    return now_us - session.updated_us < LIVE_US and surroundings.is_alive(agent)


def _work_in(engine: Engine, session: Session) -> Unfinished | None:
    known = saving.known(engine, session)
    if known.header is None:
        return None
    told: dict[str, Any] = (
        picture.metadata(known.now) if known.picture.get("client") else known.header.metadata
    )
    number, task, phase = told.get("phase_number"), told.get("task_summary"), told.get("phase")
    return Unfinished(
        key=session.key,
        number=number if isinstance(number, int) else 1,
        phase=phase if isinstance(phase, str) else "",
        task=task if isinstance(task, str) else known.header.message,
        status=session.status,
        time_us=known.header.time_us,
        checkpoint=known.header.id,
    )


def to_offer(engine: Engine, moment: Moment) -> list[Unfinished]:
    """What a session that starts may be offered."""
    project = saving.project_name(moment)
    found = unfinished(engine, project=project, without=saving.session_key(moment))
    return [each for each, _ in zip(found, range(MAX_COUNTED), strict=False)]
