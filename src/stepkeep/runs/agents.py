"""The agent store: save and load the state of an agent by session and project.

A thin layer over the engine: its checkpoints are those of every other surface, and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final

import msgspec

from stepkeep.codec import exact
from stepkeep.engine import Engine, Fallback, Loaded, Save
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound
from stepkeep.history.paths import ROOT, find, format_path, parse_path
from stepkeep.model import Header, SessionInfo, Status, Trigger, TriggerKind, check_name, check_text
from stepkeep.runs.plan import AgentState, from_state, to_state
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


class StatePart(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a state: where it is, what it is, and how many bytes it takes."""

    path: str
    kind: str
    size_bytes: int


class AgentStore:
    """Checkpoints of agents. Sessions are made when they are first saved into, with profile `agent`."""

    def __init__(self, engine: Engine, *, project: str | None = None, is_enabled: bool = True) -> None:
        """`project` is that of new sessions for which none is given; without `is_enabled` servers save nothing."""
        self._engine = engine
        self._project = project
        self._is_enabled = is_enabled

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
            message=description,
            metadata=metadata,
        )
        header = self._engine.save_in(session, save, profile=AGENT_PROFILE, **self._made_with(project))
        info = self._engine.backend.session(header.session)
        if project is not None and info.project != project:
            info = self._engine.describe_session(info.uid, {"project": project})
        return _checkpoint(self._engine.load(header), info)

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
        if not self._is_enabled:
            raise Conflict(
                "nothing was saved: agent.checkpoints.enabled is false in the configuration",
                code="checkpoints_disabled",
                retryable=False,
                session=session,
            )
        check_text("a description", description)
        known = self._find(session)
        value = state if encoding == exact.JSON else _state_of_tags(state)
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
        return _entry(session, header)

    def _made_with(self, project: str | None) -> dict[str, str]:
        named = project or self._project
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
        """The checkpoint with that id, of whichever session; None when there is none.

        Raises:
            Corrupt: it is damaged.
        """
        try:
            header = self._engine.header(id)
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
        header = self._engine.header(id)
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


def _state_of_tags(tree: object) -> Any:
    """The state that a document with tags stands for."""
    try:
        return exact.decode(exact.TAGGED, exact.encode(tree)[1])
    except Corrupt as exc:
        raise InvalidInput(
            f"the state does not follow the encoding json+tags: {exc}", code="invalid_tags"
        ) from exc


def state_parts(state: object, path: str = ROOT, *, limit: int) -> tuple[StatePart, ...]:
    """The values right below a place in a state, the first ones; those that have no path are left out."""
    steps = parse_path(path)
    value = find(state, steps)
    if isinstance(value, dict):
        below: Iterator[tuple[Any, Any]] = iter(value.items())
    elif isinstance(value, list | tuple):
        below = iter(enumerate(value))
    else:
        return ()
    return tuple(
        StatePart(
            path=format_path((*steps, step)), kind=type(each).__name__, size_bytes=len(exact.encode(each)[1])
        )
        for step, each in islice(below, limit)
    )
