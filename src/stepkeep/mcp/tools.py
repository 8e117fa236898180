"""The tools: what a model can do with the checkpoints of its sessions, and the store they work on.

Each is a method whose signature is the input schema of the tool. They are called on worker threads, so that one call
that waits for the store does not hold up the others, and a call goes to its end although its client is gone. A store
that cannot be opened is an error of the call that needed it, which a model can read: the next call tries again.
"""

from __future__ import annotations

import threading
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from pydantic import Field

from stepkeep import api
from stepkeep.api import Store, state_parts
from stepkeep.errors import InvalidInput
from stepkeep.mcp.answers import (
    CompleteAnswer,
    DiffAnswer,
    ListAnswer,
    LoadAnswer,
    PartAnswer,
    SavedAnswer,
    TimelineAnswer,
    complete_answer,
    diff_answer,
    list_answer,
    load_answer,
    saved_answer,
    timeline_answer,
)
from stepkeep.model import Status


class OpenedStore:
    """A store by its URL; safe for the threads that calls run on."""

    def __init__(self, url: str | None = None, *, store: Store | None = None) -> None:
        self._url = url
        self._store = store
        self._lock = threading.Lock()

    def get(self) -> Store:
        """The store, or what keeps it from being opened."""
        with self._lock:
            if self._store is None:
                self._store = api.open(self._url)
            return self._store

    def close(self) -> None:
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()


WHOLE_BYTES: Final = 100_000
"""States up to this size are returned whole, unless a call asks for more."""

MOST_BYTES: Final = 16_000_000
MAX_PARTS: Final = 50
MAX_LEVELS: Final = 150
"""Deeper than this the JSON of an answer is not written whole: readers of JSON give up soon after."""

MAX_CHANGE_BYTES: Final = 2000

SessionId: TypeAlias = Annotated[str, Field(description="The session: any text that names this task or run")]
State: TypeAlias = Annotated[dict[str, Any], Field(description="Current agent state to save: a JSON object")]
Description: TypeAlias = Annotated[str, Field(description="Human-readable checkpoint name")]
CheckpointId: TypeAlias = Annotated[
    str,
    Field(description="Specific checkpoint ID (optional); also latest~2, step-5, #12 or '2 hours ago'"),
]
Encoding: TypeAlias = Annotated[
    Literal["json", "json+tags"],
    Field(description="json+tags only for a state that was loaded with that encoding"),
]
StatePath: TypeAlias = Annotated[
    str, Field(description="Return only the value at this path of the state, such as context.messages[-1]")
]
MaxBytes: TypeAlias = Annotated[
    int, Field(ge=1, le=MOST_BYTES, description="Return the state whole up to this size")
]
Limit: TypeAlias = Annotated[int, Field(ge=1, le=200, description="How many to return at most")]
Cursor: TypeAlias = Annotated[str, Field(description="nextCursor of the page before")]
OlderId: TypeAlias = Annotated[str, Field(description="Default: the checkpoint before the newer one")]
NewerId: TypeAlias = Annotated[str, Field(description="Default: the latest checkpoint")]
SinceTime: TypeAlias = Annotated[
    str, Field(description="Only what was saved since then, such as 2 hours ago")
]


class Tools:
    """The tools over one store. `project` is that of the sessions that are saved into."""

    def __init__(self, opened: OpenedStore, *, project: str | None = None) -> None:
        self._opened = opened
        self._project = project

    def checkpoint_save(
        self,
        sessionId: SessionId,
        state: State,
        description: Description = "",
        encoding: Encoding = "json",
    ) -> SavedAnswer:
        """Save current execution state as a checkpoint.

        When this returns, the checkpoint survives a crash and a loss of power. The session is made if there is
        none. Older checkpoints go as the session's retention says, by default all but the newest 10.
        """
        agents = self._opened.get().agents
        return saved_answer(
            agents.save_document(
                sessionId, state, encoding=encoding, description=description, project=self._project
            )
        )

    def checkpoint_load(
        self,
        sessionId: SessionId,
        checkpointId: CheckpointId = "",
        path: StatePath = "",
        maxBytes: MaxBytes = WHOLE_BYTES,
    ) -> LoadAnswer:
        """Load the latest checkpoint for a session, or a specific one, with its state exactly as it was saved.

        A state larger than maxBytes is not returned: the answer then lists its parts, and path gets one of them.
        If the latest checkpoint is damaged, the newest intact one is returned and fellBackFrom says so.
        """
        store, ref = self._opened.get(), checkpointId or "latest"
        if path:
            value = store.get(sessionId).show_value(ref, path)
            view, encoding, content = value.checkpoint, value.encoding, bytes(value.value)
            fallback, place = value.fallback, value.path
        else:
            shown = store.get(sessionId).show(ref)
            view, encoding, content = shown.checkpoint, shown.encoding, bytes(shown.state)
            fallback, place = shown.fallback, None
        tree = msgspec.json.decode(content)
        is_deep = _is_deeper(tree, MAX_LEVELS)
        if len(content) <= maxBytes and not is_deep:
            return load_answer(view, encoding, path=place, state=tree, fallback=fallback)
        state = store.get(sessionId).load(view.id).state
        parts = state_parts(state, place or "$", limit=MAX_PARTS)
        return load_answer(
            view,
            encoding,
            path=place,
            state=None,
            parts=[PartAnswer(path=part.path, kind=part.kind, sizeBytes=part.size_bytes) for part in parts],
            next_step=_how_to_get_it(view.id, len(content), is_deep),
            fallback=fallback,
        )

    def checkpoint_list(self, sessionId: SessionId, limit: Limit = 50, cursor: Cursor = "") -> ListAnswer:
        """List all checkpoints for a session, newest first, without their states."""
        before = _before(cursor)
        return list_answer(self._opened.get().agents.page(sessionId, limit=limit, before=before))

    def checkpoint_diff(
        self,
        sessionId: SessionId,
        olderId: OlderId = "",
        newerId: NewerId = "",
        limit: Limit = 50,
    ) -> DiffAnswer:
        """Show what changed in the state between two checkpoints of a session."""
        session = self._opened.get().get(sessionId)
        found = session.diff(olderId or None, newerId or "latest", limit=limit)
        return diff_answer(found, max_value_bytes=MAX_CHANGE_BYTES)

    def checkpoint_timeline(
        self, sessionId: SessionId, limit: Limit = 30, since: SinceTime = ""
    ) -> TimelineAnswer:
        """Show all branches of a session as one graph: checkpoints, forks, what was pruned or is damaged."""
        session = self._opened.get().get(sessionId)
        return timeline_answer(session.timeline(limit=limit, since=since or None, fold=True))

    def checkpoint_complete(self, sessionId: SessionId) -> CompleteAnswer:
        """Mark a session as completed, so that it is not offered for resuming any more.

        Its checkpoints stay until the cleanup of finished sessions. Saving into it opens it again.
        """
        session = self._opened.get().get(sessionId)
        if session.info.status is not Status.COMPLETED:  # one that is completed was finished then, not now
            session.complete()
        return complete_answer(session.summary())


def _before(cursor: str) -> int | None:
    if not cursor:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidInput("cursor is none that checkpoint_list returned", code="invalid_cursor")
    return int(cursor)


def _how_to_get_it(checkpoint: str, size: int, is_deep: bool) -> str:
    why = f"nested more than {MAX_LEVELS} levels deep" if is_deep else f"{size} bytes"
    more = "" if is_deep or size > MOST_BYTES else f", or with maxBytes={size} for all of it"
    return (
        f"The value is {why}: call checkpoint_load with checkpointId={checkpoint} and one of the paths{more}."
    )


def _is_deeper(tree: object, levels: int) -> bool:
    level: list[Any] = [tree]
    for _ in range(levels):
        level = [
            below
            for value in level
            if isinstance(value, dict | list)
            for below in (value.values() if isinstance(value, dict) else value)
            if isinstance(below, dict | list)
        ]
        if not level:
            return False
    return True
