"""Threads as sessions: which one a config means, and when a new one may be made.

A put that names a checkpoint continues something. If its thread is gone, it was deleted meanwhile, and the put must
not bring it back. A put that names none begins a thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from langchain_core.runnables import RunnableConfig

from stepkeep.adapters.langgraph.naming import (
    WORKFLOW,
    Place,
    session_metadata,
    thread_named,
)
from stepkeep.api import RetentionRules, Store
from stepkeep.api.options import policy_of
from stepkeep.engine import reader
from stepkeep.errors import Conflict, Corrupt, NotFound
from stepkeep.model import Header, Session
from stepkeep.storage.port import HeaderQuery, SessionQuery

ARRIVAL_SECONDS: Final = 5.0
"""How long writes wait for the first checkpoint of their thread, which another thread of the graph is storing."""

KEEPS_ALL: Final = "archive"
MAX_REMEMBERED: Final = 10_000


class Threads:
    """The sessions that are threads of LangGraph. Safe for threads and forks.

    What it remembers only saves look-ups: a session that is gone by then is refused by the store.
    """

    def __init__(self, store: Store, retention: RetentionRules) -> None:
        self._engine = store.engine
        self._project: str | None = store.settings["project"]
        self._retention = retention
        self._uids: dict[str, str] = {}
        self._newest: dict[tuple[str, str], tuple[str, str]] = {}

    # --- finding

    def find(self, key: str) -> Session | None:
        """The thread with that session key, as it is stored now."""
        session = self._engine.backend.session_by_key(key)
        if session is None:
            self._uids.pop(key, None)
            return None
        return self._checked(session)

    def _checked(self, session: Session) -> Session:
        if session.workflow != WORKFLOW:
            raise Conflict(
                f"session {session.key!r} is no thread of LangGraph: use another thread id, or another store",
                code="not_a_thread",
                retryable=False,
                session=session.key,
            )
        _remember(self._uids, session.key, session.uid)
        return session

    def all(self) -> Iterator[Session]:
        return self._engine.backend.sessions(SessionQuery(workflow=WORKFLOW))

    def uid_to_put(self, place: Place) -> str:
        """The session that a put goes to, made if the put begins a thread.

        Raises:
            NotFound: the thread does not exist, and the put names a checkpoint of it.
        """
        known = self._uids.get(place.key)
        if known is not None:
            return known
        session = self.find(place.key)
        if session is not None:
            return self._adopted(session).uid
        if place.checkpoint is not None:
            raise self.gone(place)
        return self._begin(place).uid

    def uid_to_write(self, place: Place) -> str:
        """The session that pending writes go to. Their thread's first checkpoint may still be on its way."""
        known = self._uids.get(place.key)
        if known is not None:
            return known
        session = self.find(place.key) or self._arriving(place.key)
        if session is None:
            raise self.gone(place)
        return self._adopted(session).uid

    def may_begin_anew(self, place: Place, config: RunnableConfig) -> bool:
        """Whether a put that met a deleted incarnation of its thread may begin it anew.

        One inside a graph that was running then may not: its config names checkpoints of the graphs around it. The
        dead incarnation is remembered until a graph looks the thread up again, so that it refuses all late puts.
        """
        if place.checkpoint is not None or (config.get("configurable") or {}).get("checkpoint_map"):
            return False
        self._uids.pop(place.key, None)
        return True

    def gone(self, place: Place) -> NotFound:
        return NotFound(
            f"thread {place.thread[:200]!r} does not exist, and a checkpoint of it is to be continued: "
            "it was deleted meanwhile, or never stored",
            code="thread_not_found",
            session=place.key,
        )

    def _arriving(self, key: str) -> Session | None:
        """The session once it is there, or None when it did not come in time."""
        deadline = time.monotonic() + ARRIVAL_SECONDS
        pause = 0.002
        while time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
            session = self.find(key)
            if session is not None:
                return session
        return None

    def opened(self, thread: str) -> Session:
        """A thread, made if there is none."""
        place = Place(thread=thread)
        session = self.find(place.key)
        return self._begin(place) if session is None else session

    def _begin(self, place: Place) -> Session:
        fields: dict[str, Any] = {
            "profile": KEEPS_ALL,
            "workflow": WORKFLOW,
            "metadata": session_metadata(place.thread),
            "policy": policy_of(None, self._retention or None, None),
        }
        if self._project:
            fields["project"] = self._project
        return self._checked(self._engine.open_session(place.key, **fields))

    def _adopted(self, session: Session) -> Session:
        """An existing thread, under the retention this saver was given."""
        policy = policy_of(session.policy, self._retention or None, None)
        if policy == session.policy:
            return session
        return self._engine.describe_session(session.uid, {"policy": policy})

    # --- checkpoints of a thread

    def header(self, uid: str, branch: str, checkpoint: str | None) -> Header | None:
        """A checkpoint by its LangGraph id, or the newest of a namespace: the head of its branch."""
        if checkpoint is None:
            return self._head(uid, branch)
        query = HeaderQuery(session=uid, branch=branch, external_id=checkpoint, limit=1)
        row = next(self._engine.backend.headers(query), None)
        return None if row is None else reader.verified(row)

    def _head(self, uid: str, branch: str) -> Header | None:
        """The newest of a namespace; `Corrupt` when the branch names one that is not stored."""
        missing = None
        while (record := self._engine.backend.branch(uid, branch)) is not None and record.head is not None:
            row = next(
                self._engine.backend.headers(HeaderQuery(session=uid, ids=(record.head,), limit=1)), None
            )
            if row is not None:
                return reader.verified(row)
            if missing == record.head:  # nobody is moving it
                raise Corrupt(f"{missing} is missing", code="checkpoint_missing", checkpoint=missing)
            missing = record.head
        return None

    def parent_id(self, uid: str, place: Place, *, fresh: bool = False) -> str | None:
        """The Stepkeep id of the checkpoint that `place` names as the parent, None when it is not stored."""
        if place.checkpoint is None:
            return None
        newest = self._newest.get((uid, place.branch))
        if not fresh and newest is not None and newest[0] == place.checkpoint:
            return newest[1]
        header = self.header(uid, place.branch, place.checkpoint)
        return None if header is None else header.id

    def stored(self, header: Header) -> None:
        """Remember a checkpoint that was just stored: it is probably the next one's parent."""
        _remember(self._newest, (header.session, header.branch), (str(header.external_id), header.id))


def thread_of_session(session: Session) -> str:
    return thread_named(session.key, session.metadata)


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    if len(known) >= MAX_REMEMBERED:
        known.clear()
    known[key] = value
