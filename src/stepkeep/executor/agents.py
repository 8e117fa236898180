"""The agent store: save and load the state of an agent by session and project.

A thin layer over the engine: its checkpoints are those of every other surface, and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from stepkeep.engine import Engine, Fallback, Loaded, Save
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.executor.plan import AgentState, from_state, to_state
from stepkeep.model import STATE, Header, Session, Trigger, TriggerKind, check_name
from stepkeep.storage.port import HeaderQuery

AGENT_PROFILE: Final = "agent"


class AgentSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of an agent without its state. `session` is the session's key."""

    id: str
    session: str
    project: str | None
    step_number: int
    created_at: datetime
    description: str = ""
    trigger: TriggerKind = TriggerKind.AUTO
    duration_ms: int | float = 0
    token_usage: int | None = None


class AgentCheckpoint(AgentSummary, frozen=True, kw_only=True):
    """A checkpoint of an agent. `state` is exactly what was saved, whichever surface saved it.

    `fallback` is set when this is not the newest checkpoint, because newer ones are damaged.
    """

    state: Any
    fallback: Fallback | None = None

    def agent_state(self) -> AgentState:
        """The state with its types, or `InvalidInput` when it is none of an agent (`state_type_mismatch`)."""
        return from_state(self.state)


class AgentStore:
    """Checkpoints of agents. Sessions are made when they are first saved into, with profile `agent`."""

    def __init__(self, engine: Engine, *, project: str | None = None) -> None:
        """`project` is that of new sessions for which none is given."""
        self._engine = engine
        self._project = project

    def save(
        self,
        session: str,
        project: str | None,
        state: AgentState | Mapping[str, Any],
        *,
        trigger: TriggerKind | str = TriggerKind.AUTO,
        description: str = "",
        duration_ms: int | float = 0,
        token_usage: int | None = None,
    ) -> AgentCheckpoint:
        """Save a state as the session's next checkpoint; when this returns it is durable.

        `step_number` is the state's `currentStepIndex`. Older checkpoints go as the profile says, later.

        Raises:
            InvalidInput: the state or an option cannot be saved.
        """
        stored = to_state(state) if isinstance(state, AgentState) else state
        body = self._engine.encode(stored)
        metadata: dict[str, Any] = {"durationMs": duration_ms}
        if token_usage is not None:
            metadata["tokenUsage"] = token_usage
        kind = _kind_of(trigger)
        info = self._open(session, project)
        header = self._engine.save(
            Save(
                session=info.uid,
                bodies={STATE: body},
                step=_step_of(stored),
                trigger=Trigger(kind),
                message=description,
                metadata=metadata,
            )
        )
        return self._checkpoint(self._engine.load(header), info)

    def load_latest(self, session: str) -> AgentCheckpoint | None:
        """The newest checkpoint of the session's current branch that verifies; None when there is none."""
        info = self._find(session)
        loaded = None if info is None else self._engine.latest(info)
        return None if info is None or loaded is None else self._checkpoint(loaded, info)

    def load(self, id: str) -> AgentCheckpoint | None:
        """The checkpoint with that id, of whichever session; None when there is none.

        Raises:
            Corrupt: it is damaged.
        """
        header = self._header(id)
        if header is None:
            return None
        return self._checkpoint(self._engine.load(header), self._engine.backend.session(header.session))

    def list(self, session: str) -> list[AgentSummary]:
        """All checkpoints of a session without their states, newest first; empty when there is none."""
        info = self._find(session)
        if info is None:
            return []
        headers = self._engine.headers(HeaderQuery(session=info.uid))
        return [AgentSummary(**_summary(header, info)) for header in headers]

    def delete(self, id: str) -> None:
        """Remove a checkpoint for good.

        Raises:
            NotFound: there is none with that id.
        """
        header = self._engine.header(id)
        self._engine.delete(header.session, [header.id])

    def clear_session(self, session: str) -> None:
        """Remove a session with all its checkpoints for good.

        Raises:
            NotFound: there is no such session.
        """
        self._engine.delete_session(self._engine.find_session(session).uid)

    def _open(self, key: str, project: str | None) -> Session:
        wanted = {"project": project or self._project} if project or self._project else {}
        info = self._engine.open_session(key, profile=AGENT_PROFILE, **wanted)
        if project is not None and info.project != project:
            info = self._engine.describe_session(info.uid, {"project": project})
        return info

    def _find(self, key: str) -> Session | None:
        return self._engine.backend.session_by_key(check_name("a session key", key))

    def _header(self, id: str) -> Header | None:
        try:
            return self._engine.header(id)
        except NotFound:
            return None

    def _checkpoint(self, loaded: Loaded, info: Session) -> AgentCheckpoint:
        fields = _summary(loaded.header, info)
        return AgentCheckpoint(**fields, state=loaded.value(), fallback=loaded.fallback)


def _summary(header: Header, info: Session) -> dict[str, Any]:
    return {
        "id": header.id,
        "session": info.key,
        "project": info.project,
        "step_number": header.step or 0,
        "created_at": header.created_at,
        "description": header.message,
        "trigger": header.trigger.kind,
        "duration_ms": header.metadata.get("durationMs", 0),
        "token_usage": header.metadata.get("tokenUsage"),
    }


def _kind_of(trigger: TriggerKind | str) -> TriggerKind:
    try:
        return TriggerKind(trigger)
    except ValueError:
        raise InvalidInput(
            f"no trigger {trigger!r}: choose one of {', '.join(TriggerKind)}", code="invalid_trigger"
        ) from None


def _step_of(state: object) -> int:
    step = state.get("currentStepIndex", 0) if isinstance(state, Mapping) else 0
    return step if type(step) is int else 0
