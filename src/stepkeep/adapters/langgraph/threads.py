"""Threads as sessions: which one a config means, when a new one may be made, and how the names translate.

LangGraph takes any text as a name, also empty, with NUL, or 10,000 characters long. What Stepkeep would not take is
named by its digest, and the text itself is stored beside it.

A put begins a thread that nobody has. If it names a checkpoint there, that one is a parent which this store never had.
A thread that was deleted while a graph uses it is another matter: what the graph still puts must not bring it back.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec
from langchain_core.runnables import RunnableConfig

from stepkeep.api import RetentionRules, Store
from stepkeep.api.extension import HeaderQuery, SessionQuery, policy_of, verified
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound
from stepkeep.model import MAIN_BRANCH, Header, SessionInfo, check_branch_name, check_name

WORKFLOW: Final = "langgraph"
"""The workflow of every session that is a thread: what tells it from other sessions of the store."""

THREAD_ID: Final = "thread_id"
_THREAD: Final = "thread#"
_NAMESPACE: Final = "ns:"
_HASHED_NAMESPACE: Final = "ns#"
_RUN: Final = "run:"
_HASHED_RUN: Final = "run#"


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """What a config names: a thread, a namespace in it, and maybe one checkpoint there."""

    thread: str
    namespace: str = ""
    checkpoint: str | None = None

    @property
    def key(self) -> str:
        """The key of the thread's session."""
        return session_key(self.thread)

    @property
    def branch(self) -> str:
        return branch_of(self.namespace)

    def config(self, checkpoint: str | None = None) -> RunnableConfig:
        """The config that names a checkpoint here."""
        return {
            "configurable": {
                "thread_id": self.thread,
                "checkpoint_ns": self.namespace,
                "checkpoint_id": self.checkpoint if checkpoint is None else checkpoint,
            }
        }


def location_of(config: RunnableConfig) -> Location:
    """The location that a config names.

    Raises:
        InvalidInput: it has no thread id (`thread_id_missing`), or one of its names is not a text.
    """
    configurable = config.get("configurable") or {}
    thread = configurable.get("thread_id")
    if thread is None:
        raise InvalidInput(
            'the config has no thread id: pass {"configurable": {"thread_id": "…"}}', code="thread_id_missing"
        )
    return Location(
        thread=_text("thread_id", thread),
        namespace=_text("checkpoint_ns", configurable.get("checkpoint_ns") or ""),
        checkpoint=checkpoint_of(config),
    )


def checkpoint_of(config: RunnableConfig) -> str | None:
    """The checkpoint id that a config names, None without one."""
    checkpoint = (config.get("configurable") or {}).get("checkpoint_id")
    return _text("checkpoint_id", checkpoint) if checkpoint else None


def _text(what: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidInput(f"{what} must be text, not {type(value).__name__}", code="invalid_name")
    return str(value)


@lru_cache(maxsize=256)
def session_key(thread: str) -> str:
    """The key of a thread's session: the thread id itself where that can be a key."""
    is_plain = not thread.startswith(_THREAD) and _is_name(thread)
    return thread if is_plain else _THREAD + _digest(thread)


def thread_of_session(session: SessionInfo) -> str:
    stored = session.metadata.get(THREAD_ID)
    return session.key if stored is None else str(json.loads(stored))


@lru_cache(maxsize=256)
def branch_of(namespace: str) -> str:
    """The branch of a namespace: `main` for the root, `ns:NAME` for others, unless that reads like a ref."""
    if not namespace:
        return MAIN_BRANCH
    name = _NAMESPACE + namespace
    try:
        return check_branch_name(name)
    except InvalidInput:
        return _HASHED_NAMESPACE + _digest(namespace)


def hidden_namespace(namespace: str) -> str | None:
    """What a header must remember of a namespace because its branch does not tell it."""
    return json.dumps(namespace) if branch_of(namespace).startswith(_HASHED_NAMESPACE) else None


def namespace_of(branch: str, hidden: str | None) -> str:
    """The namespace of a branch, given what its headers remember."""
    if hidden is not None:
        return str(json.loads(hidden))
    return "" if branch == MAIN_BRANCH else branch.removeprefix(_NAMESPACE)


def is_namespace(branch: str) -> bool:
    """Whether a branch is one of a namespace, and not one that somebody made beside them."""
    return branch == MAIN_BRANCH or branch.startswith((_NAMESPACE, _HASHED_NAMESPACE))


def run_tag(run: str) -> str:
    """The tag by which the checkpoints of a run are found."""
    tag = _RUN + run
    return tag if _is_name(tag) else _HASHED_RUN + _digest(run)


def _is_name(text: str) -> bool:
    try:
        check_name("a name", text)
    except InvalidInput:
        return False
    return True


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# --- the sessions of threads ---------------------------------------------------------------------------------------

ARRIVAL_SECONDS: Final = 5.0
"""How long writes to a thread that was deleted wait for a new run's first checkpoint, which may be on its way."""

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
        self._deleted: dict[str, str] = {}
        self._newest: dict[tuple[str, str], tuple[str, str]] = {}

    # --- finding

    def find(self, thread: str) -> SessionInfo | None:
        """The session of a thread, as it is stored now."""
        key = session_key(thread)
        session = self._engine.backend.session_by_key(key)
        if session is None:
            if (uid := self._uids.pop(key, None)) is not None:
                _remember(self._deleted, key, uid)
            return None
        return self._checked(session)

    def _checked(self, session: SessionInfo) -> SessionInfo:
        if session.workflow != WORKFLOW:
            raise Conflict(
                f"session {session.key!r} is not a thread of LangGraph: use another thread id, or another store",
                code="not_a_thread",
                retryable=False,
                session=session.key,
            )
        _remember(self._uids, session.key, session.uid)
        return session

    def all(self) -> Iterator[SessionInfo]:
        return self._engine.backend.sessions(SessionQuery(workflow=WORKFLOW))

    def known_uid(self, location: Location) -> str | None:
        """The session of a thread that was found or made here before."""
        return self._uids.get(location.key)

    def uid(self, location: Location, *, is_write: bool = False) -> str:
        """The session that a put or pending writes go to.

        What goes to a thread that does not exist begins it, also writes whose first checkpoint is on its way.

        Raises:
            NotFound: the thread was deleted, and what was there is continued.
        """
        known = self._uids.get(location.key)
        if known is not None:
            return known
        session = self.find(location.thread)
        is_deleted = session is None and location.key in self._deleted
        if is_deleted and is_write:
            session = self._arriving(location.thread)
        if session is not None:
            return self._adopted(session).uid
        if is_deleted and location.checkpoint is not None:
            raise self.gone(location)
        return self.opened(location.thread).uid

    def may_begin_anew(self, location: Location, config: RunnableConfig) -> bool:
        """Whether a put that met a deleted incarnation of its thread may begin it anew.

        One inside a graph that was running then may not: its config names checkpoints of the graphs around it. The
        dead incarnation is remembered until a graph looks the thread up again, so that it refuses all late puts.
        """
        if location.checkpoint is not None or (config.get("configurable") or {}).get("checkpoint_map"):
            return False
        self._uids.pop(location.key, None)
        return True

    def gone(self, location: Location) -> NotFound:
        return NotFound(
            f"thread {location.thread[:200]!r} does not exist, and a checkpoint of it is to be continued: "
            "it was deleted meanwhile",
            code="thread_not_found",
            session=location.key,
        )

    def _arriving(self, thread: str) -> SessionInfo | None:
        """The session once it is there, or None when it did not come in time."""
        deadline = time.monotonic() + ARRIVAL_SECONDS
        pause = 0.002
        session = None
        while session is None and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
            session = self.find(thread)
        return session

    def opened(self, thread: str) -> SessionInfo:
        """A thread, made if there is none."""
        key = session_key(thread)
        fields: dict[str, Any] = {
            "profile": KEEPS_ALL,
            "workflow": WORKFLOW,
            "metadata": {} if key == thread else {THREAD_ID: json.dumps(thread)},
        }
        if self._retention:
            fields["policy"] = policy_of(None, self._retention, None)
        if self._project:
            fields["project"] = self._project
        self._deleted.pop(key, None)
        return self._checked(self._engine.open_session(key, **fields))

    def _adopted(self, session: SessionInfo) -> SessionInfo:
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
        return None if row is None else verified(row)

    def _head(self, uid: str, branch: str) -> Header | None:
        """The newest of a namespace; `Corrupt` when the branch names one that is not stored."""
        missing = None
        while (record := self._engine.backend.branch(uid, branch)) is not None and record.head is not None:
            query = HeaderQuery(session=uid, ids=(record.head,), limit=1)
            row = next(self._engine.backend.headers(query), None)
            if row is not None:
                return verified(row)
            if missing == record.head:  # nobody is moving it
                raise Corrupt(f"{missing} is missing", code="checkpoint_missing", checkpoint=missing)
            missing = record.head
        return None

    def parents(self, uid: str, location: Location, *, fresh: bool = False) -> tuple[str, ...]:
        """The Stepkeep id of the checkpoint that `location` names as the parent.

        Where that one is not stored it is the name itself: so the header tells that it has a parent, and which.
        """
        if location.checkpoint is None:
            return ()
        newest = self._newest.get((uid, location.branch))
        if not fresh and newest is not None and newest[0] == location.checkpoint:
            return (newest[1],)
        header = self.header(uid, location.branch, location.checkpoint)
        if header is not None:
            return (header.id,)
        return (location.checkpoint,) if _is_name(location.checkpoint) else ()

    def may_be_newest(self, uid: str, location: Location) -> bool:
        """Whether a location names no checkpoint, or the one that was stored here last."""
        newest = self._newest.get((uid, location.branch))
        return location.checkpoint is None or (newest is not None and newest[0] == location.checkpoint)

    def stored(self, header: Header) -> None:
        """Remember a checkpoint that was just stored: it is probably the next one's parent."""
        _remember(self._newest, (header.session, header.branch), (str(header.external_id), header.id))


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    if len(known) >= MAX_REMEMBERED:
        known.clear()
    known[key] = value
