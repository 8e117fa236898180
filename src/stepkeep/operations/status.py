"""How much a store or a session takes, and what will become of it."""

from __future__ import annotations

from datetime import datetime
from heapq import nlargest
from typing import Final

from stepkeep.api import Store
from stepkeep.config.rules import retention_of
from stepkeep.errors import Corrupt, NotFound
from stepkeep.model import Header, Status, from_us
from stepkeep.model import Session as SessionInfo
from stepkeep.operations.cleaning import clean_plans, cleanup_view
from stepkeep.operations.pruning import rule_texts
from stepkeep.operations.views import (
    NextClean,
    SessionStatus,
    SessionUsage,
    StoreStatus,
    checkpoint_views,
    session_view,
)
from stepkeep.storage.port import HeaderQuery, LooksOver, Usage

MAX_NAMED: Final = 10
"""How many sessions a status names at most, where there may be any number."""


def store_status(store: Store, *, limit: int | None = MAX_NAMED) -> StoreStatus:
    """How much is in the store, which sessions take most, and what the next clean would remove."""
    sessions = list(store.sessions())
    statuses = dict.fromkeys((status.value for status in Status), 0)
    for info in sessions:
        statuses[info.status] += 1
    going = [entry.session.key for plan in clean_plans(store) for entry in plan.going]
    return StoreStatus(
        store=store.url,
        statuses=statuses,
        usage=store.usage(),
        oldest=_time(store, HeaderQuery(newest_first=False, limit=1)),
        newest=_time(store, HeaderQuery(limit=1)),
        sessions=_largest(store, sessions, limit),
        next_clean=NextClean(count=len(going), sessions=tuple(going[:MAX_NAMED])),
    )


def session_status(store: Store, key: str) -> SessionStatus:
    """Where a session stands, what it takes, and the rules it is under."""
    session = store.get(key)
    info = session.info
    try:
        latest = checkpoint_views(session.key, session, [session.header("latest")])[0]
    except (NotFound, Corrupt):
        latest = None
    entries = (entry for plan in clean_plans(store) for entry in plan.entries)
    fate = (entry for entry in entries if entry.session.uid == info.uid)
    return SessionStatus(
        store=store.url,
        session=session_view(info),
        usage=session.usage(),
        latest=latest,
        takes=_session_usage(store, info, session.usage()),
        rules=rule_texts(retention_of(store.settings, info)),
        cleanup=next((cleanup_view(entry) for entry in fate), None),
    )


def _largest(store: Store, sessions: list[SessionInfo], limit: int | None) -> tuple[SessionUsage, ...]:
    sizes = _sizes(store, sessions)
    ranked = [(sizes.get(info.uid, 0), -at, info) for at, info in enumerate(sessions)]
    found = nlargest(len(ranked) if limit is None else limit, ranked, key=lambda each: each[:2])
    return tuple(_session_usage(store, info, store.engine.backend.usage(info.uid)) for _, _, info in found)


def _sizes(store: Store, sessions: list[SessionInfo]) -> dict[str, int]:
    """The stored bytes of every session, by uid."""
    backend = store.engine.backend
    if isinstance(backend, LooksOver):
        return backend.session_bytes()
    return {info.uid: backend.usage(info.uid).body_bytes for info in sessions}


def _session_usage(store: Store, info: SessionInfo, usage: Usage) -> SessionUsage:
    headers = list(store.engine.headers(HeaderQuery(session=info.uid)))
    size_bytes = sum(header.size_bytes for header in headers)
    return SessionUsage(
        session=info.key,
        status=info.status,
        checkpoints=usage.checkpoints,
        stored_bytes=usage.body_bytes,
        hidden_bytes=usage.hidden_bytes,
        size_bytes=size_bytes,
        ratio=round(size_bytes / usage.body_bytes, 2) if usage.body_bytes else None,
        oldest=headers[-1].created_at if headers else None,
        newest=headers[0].created_at if headers else None,
    )


def _time(store: Store, query: HeaderQuery) -> datetime | None:
    header: Header | None = next(store.engine.headers(query), None)
    return None if header is None else from_us(header.time_us)
