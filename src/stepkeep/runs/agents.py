"""The agent store: save and load the state of an agent by session and project.

A thin layer over the engine: its checkpoints are those of every other surface, and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final

import msgspec

from stepkeep.codec import exact
from stepkeep.config import Settings
from stepkeep.engine import Engine, Fallback, Loaded, Save
from stepkeep.errors import Conflict, InvalidInput, NotFound, StepkeepError
from stepkeep.history.documents import decoded
from stepkeep.history.refs import header_of_id
from stepkeep.logs import Log
from stepkeep.maintenance.spending import add_usage, usage_of
from stepkeep.model import Header, SessionInfo, Status, Trigger, TriggerKind, check_name, check_text
from stepkeep.runs.plan import AgentState, checked_state, from_state, is_number, refuse
from stepkeep.storage.port import HeaderQuery

log = Log("stepkeep")

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
        """The state with its types, or `InvalidInput` when an agent did not save it (`state_type_mismatch`)."""
        return from_state(self.state)


class AgentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of an agent without its state, as servers show it."""

    id: str
    session: str
    seq: int
    branch: str
    time: datetime
    step: int
    status: Status
    trigger: TriggerKind
    description: str
    tags: tuple[str, ...]
    duration_ms: int | float
    token_usage: int | None
    size_bytes: int


class AgentPage(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoints of a session, newest first. `next_before` is where the next page begins, None at the end."""

    session: str
    status: Status
    branch: str
    total: int
    checkpoints: tuple[AgentEntry, ...]
    next_before: int | None


class AgentStore:
    """Checkpoints of agents. Sessions are made when they are first saved into, with profile `agent`."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    def save(
        self,
        session: str,
        project: str | None,
        state: AgentState | Mapping[str, Any],
        *,
        trigger: TriggerKind | str = TriggerKind.AUTO,
        description: str | None = "",
        duration_ms: int | float = 0,
        token_usage: int | None = None,
        usage: Mapping[str, int | float] | None = None,
    ) -> AgentCheckpoint:
        """Save a state as the session's next checkpoint; when this returns it is durable.

        `step_number` is the state's `currentStepIndex`. Older checkpoints go as the profile says: with `agent`, all but
        the newest ten. `usage`, a dict with `tokens` and `cost`, is added to the sums of the session.

        Raises:
            InvalidInput: the state or an option cannot be saved.
            Conflict: the configuration switches checkpoints of agents off (`checkpoints_disabled`).
        """
        self._check_enabled(session)
        stored = checked_state(state) if isinstance(state, AgentState) else state
        _check_numbers(duration_ms, token_usage)
        spent = None if usage is None else usage_of(usage)
        metadata: dict[str, Any] = {"durationMs": duration_ms}
        if token_usage is not None:
            metadata["tokenUsage"] = token_usage
        if trigger not in tuple(TriggerKind):
            raise InvalidInput(
                f"no trigger {trigger!r}: choose one of {', '.join(TriggerKind)}", code="invalid_trigger"
            )
        save = Save(
            state=stored,
            step=_step_of(stored),
            trigger=Trigger(TriggerKind(trigger)),
            message=description or "",
            metadata=metadata,
        )
        header = self._engine.save_in(session, save, profile=AGENT_PROFILE, **self._made_with(project))
        info = self._engine.backend.session(header.session)
        if project is not None and info.project != project:
            info = self._engine.describe_session(info.uid, {"project": project})
        found = _checkpoint(self._engine.load(header), info)
        if spent is not None:
            add_usage(self._engine, info.uid, spent)
        self._prune(info)
        return found

    def _prune(self, session: SessionInfo) -> None:
        """Let go of what the rules of a session do not keep. What prevents that is no matter of the save before."""
        from stepkeep.maintenance.prune import prune_session  # most saves remove nothing
        from stepkeep.maintenance.space import most_bytes

        try:
            retention = self._settings.retention_of(session)
            most = most_bytes(self._engine, session.uid, retention.max_bytes)
            if not retention.keeps_all_of(session.stored_count, most):
                prune_session(self._engine, session, retention)
        except StepkeepError as exc:
            log.warning("session %s was not pruned: %s", session.key, exc)

    def _check_enabled(self, session: str) -> None:
        if not self._settings["agent.checkpoints.enabled"]:
            raise Conflict(
                "nothing was saved: agent.checkpoints.enabled is false in the configuration",
                code="checkpoints_disabled",
                retryable=False,
                session=session,
            )

    def save_document(
        self,
        session: str,
        state: Mapping[str, Any],
        *,
        encoding: str = exact.JSON,
        description: str = "",
        project: str | None = None,
    ) -> AgentEntry:
        """Save the state that a JSON document stands for, as `save` does; what is returned has no state.

        With the encoding `json+tags` the document has tags, as `show` and `export` print it. Input that is refused
        leaves nothing behind.

        Raises:
            InvalidInput: a number is not finite (`invalid_json`), or the tags make no sense (`invalid_tags`).
            Conflict: the configuration switches checkpoints of agents off (`checkpoints_disabled`).
        """
        self._check_enabled(session)
        check_text("a description", description)
        known = self._find(session)
        value = decoded(encoding, state)
        save = self._engine.encoded(
            Save(
                session="" if known is None else known.uid,
                state=value,
                step=_step_of(value),
                message=description,
                metadata={"durationMs": 0},
            )
        )
        body = save.state
        if encoding == exact.JSON and body.encoding == exact.TAGGED and b'{"$float":' in body.content:
            # Some readers of JSON make infinity of texts like 1e999.
            raise InvalidInput(
                "the state has a number that is not finite: save it as text", code="invalid_json"
            )
        if known is None:
            made = self._made_with(project)
            return _entry(session, self._engine.save_in(session, save, profile=AGENT_PROFILE, **made))
        header = self._engine.save(save)
        if project is not None and known.project != project:
            self._engine.describe_session(known.uid, {"project": project})
        self._prune(self._engine.backend.session(known.uid))
        return _entry(session, header)

    def _made_with(self, project: str | None) -> dict[str, str]:
        named = project or self._settings["project"]
        return {"project": named} if named else {}

    def page(self, session: str, *, limit: int, before: int | None = None) -> AgentPage:
        """So many checkpoints of a session, on whichever branch, newest first, with numbers below `before`.

        Raises:
            NotFound: there is no such session.
        """
        if limit < 1:
            raise InvalidInput(f"limit counts checkpoints: 1 or more, not {limit}", code="invalid_option")
        info = self._engine.find_session(session)
        query = HeaderQuery(session=info.uid, max_seq=None if before is None else before - 1)
        headers = list(islice(self._engine.headers(query), limit + 1))
        return AgentPage(
            session=info.key,
            status=info.status,
            branch=info.branch,
            total=info.stored_count,
            checkpoints=tuple(_entry(info.key, header) for header in headers[:limit]),
            next_before=headers[limit - 1].seq if len(headers) > limit else None,
        )

    def load_latest(self, session: str) -> AgentCheckpoint | None:
        """The newest checkpoint of the session's current branch that verifies; None when there is none."""
        info = self._find(session)
        loaded = None if info is None else self._engine.latest(info)
        return None if info is None or loaded is None else _checkpoint(loaded, info)

    def load(self, id: str) -> AgentCheckpoint | None:
        """The checkpoint with that id, or the only one whose id begins so, of whichever session; None if there is none.

        Raises:
            Corrupt: it is damaged. InvalidInput: several ids begin so (`ambiguous_ref`).
        """
        try:
            header = header_of_id(self._engine, id)
        except NotFound:
            return None
        return _checkpoint(self._engine.load(header), self._engine.backend.session(header.session))

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
        header = header_of_id(self._engine, id)
        self._engine.delete(header.session, [header.id])

    def clear_session(self, session: str) -> None:
        """Remove a session with all its checkpoints for good.

        Raises:
            NotFound: there is no such session.
        """
        self._engine.delete_session(self._engine.find_session(session).uid)

    def _find(self, key: str) -> SessionInfo | None:
        return self._engine.backend.session_by_key(check_name("a session key", key))


def _checkpoint(loaded: Loaded, info: SessionInfo) -> AgentCheckpoint:
    fields = _summary(loaded.header, info)
    return AgentCheckpoint(**fields, state=loaded.value(), fallback=loaded.fallback)


def _summary(header: Header, info: SessionInfo) -> dict[str, Any]:
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


def _check_numbers(duration_ms: object, token_usage: object) -> None:
    refuse(
        "this checkpoint cannot be saved so",
        {
            "duration_ms is a number of milliseconds": not is_number(duration_ms),
            "token_usage is a whole number": token_usage is not None and type(token_usage) is not int,
        },
    )


def _step_of(state: object) -> int:
    step = state.get("currentStepIndex", 0) if isinstance(state, Mapping) else 0
    return step if type(step) is int else 0


def _entry(key: str, header: Header) -> AgentEntry:
    usage = header.metadata.get("tokenUsage")
    return AgentEntry(
        id=header.id,
        session=key,
        seq=header.seq,
        branch=header.branch,
        time=header.created_at,
        step=header.step or 0,
        status=header.status,
        trigger=header.trigger.kind,
        description=header.message,
        tags=header.tags,
        duration_ms=header.metadata.get("durationMs", 0),
        token_usage=usage if isinstance(usage, int) else None,
        size_bytes=header.size_bytes,
    )
