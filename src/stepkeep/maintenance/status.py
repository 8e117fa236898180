"""How much a store or a session takes, and what will become of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput
from stepkeep.history.documents import CheckpointInfo, SessionSummary, describe, summary_of
from stepkeep.maintenance.clean import Policies, decide_about, plan_clean
from stepkeep.maintenance.last_backup import LastBackup
from stepkeep.maintenance.space import counted_bytes, most_bytes
from stepkeep.model import Header, SessionInfo, Status
from stepkeep.policy.cleanup import SessionCleanup
from stepkeep.policy.retention import Retention, rule_texts
from stepkeep.storage.port import HeaderQuery, LooksOver, SessionQuery, Usage

MAX_NAMED: Final = 10
"""How many sessions a status names at most, where there may be any number."""


class SessionUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one session takes. `stored_bytes` is what its bodies take, `hidden_bytes` what of that belongs to removed
    checkpoints that others still need, and `ratio` how many times smaller its states are stored."""

    session: str
    status: Status
    checkpoints: int
    stored_bytes: int
    hidden_bytes: int
    size_bytes: int
    ratio: float | None
    oldest: datetime | None
    newest: datetime | None


class NextClean(msgspec.Struct, frozen=True, kw_only=True):
    """What `clean` would remove now: how many sessions, and the keys of the first ones."""

    count: int
    sessions: tuple[str, ...]


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A store as a whole: how many sessions have which status, and what they take.

    `sessions` are the largest ones; `oldest` and `newest` are times of checkpoints. `max_bytes` is the limit of the
    store, `budget_bytes` what it may take before history is thinned; None when it has none. `is_over_budget`: it takes
    more than that, because nothing more may go, or nobody thinned it yet. `last_backup`
    is the last one that was made of it, as far as this machine knows.
    """

    store: str
    statuses: dict[str, int]
    usage: Usage
    oldest: datetime | None
    newest: datetime | None
    sessions: tuple[SessionUsage, ...]
    next_clean: NextClean
    max_bytes: int | None
    budget_bytes: int | None
    is_over_budget: bool
    last_backup: LastBackup | None


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One session, what it takes, the newest checkpoint of its current branch, the rules for its history in
    words, and whether `clean` would remove it (None: its profile or policy makes no sense).

    `is_over_budget`: it takes more than `budget_bytes`, because nothing more may go, or nobody pruned it yet.
    `stopped_restore` is the checkpoint whose files were being restored when that was stopped in the middle.
    """

    store: str
    session: SessionSummary
    usage: Usage
    latest: CheckpointInfo | None
    takes: SessionUsage
    rules: tuple[str, ...]
    cleanup: SessionCleanup | None
    budget_bytes: int | None
    is_over_budget: bool
    stopped_restore: str | None


def store_status(
    engine: Engine,
    policies: Policies,
    *,
    limit: int | None = MAX_NAMED,
    max_bytes: int | None = None,
    budget_bytes: int | None = None,
    last_backup: LastBackup | None = None,
) -> StoreStatus:
    """How much is in the store, the `limit` sessions that take most, and what the next clean would remove."""
    sessions = list(engine.backend.sessions(SessionQuery()))
    usage = engine.backend.usage()
    going = [entry.session.key for entry in plan_clean(engine, policies, now_us=engine.clock()).going]
    return StoreStatus(
        store=engine.backend.url,
        statuses=count_statuses(sessions),
        usage=usage,
        oldest=_time(engine, HeaderQuery(newest_first=False, limit=1)),
        newest=_time(engine, HeaderQuery(limit=1)),
        sessions=_largest(engine, sessions, limit),
        next_clean=NextClean(count=len(going), sessions=tuple(going[:MAX_NAMED])),
        max_bytes=max_bytes,
        budget_bytes=budget_bytes,
        is_over_budget=budget_bytes is not None and counted_bytes(engine.backend, usage) > budget_bytes,
        last_backup=last_backup,
    )


def count_statuses(sessions: Iterable[SessionInfo]) -> dict[str, int]:
    """How many of the sessions have each status, also those that none has."""
    statuses = dict.fromkeys((status.value for status in Status), 0)
    for info in sessions:
        statuses[info.status] += 1
    return statuses


def session_usage(engine: Engine, info: SessionInfo) -> SessionUsage:
    """What one session takes, and how old its checkpoints are."""
    usage = engine.backend.usage(info.uid)
    headers = list(engine.headers(HeaderQuery(session=info.uid)))
    size_bytes = sum(header.size_bytes for header in headers)
    return SessionUsage(
        session=info.key,
        status=info.status,
        checkpoints=usage.checkpoints,
        size_bytes=size_bytes,
        ratio=round(size_bytes / usage.body_bytes, 2) if usage.body_bytes else None,
        stored_bytes=usage.body_bytes,
        hidden_bytes=usage.hidden_bytes,
        oldest=headers[-1].created_at if headers else None,
        newest=headers[0].created_at if headers else None,
    )


def session_status(
    engine: Engine,
    policies: Policies,
    info: SessionInfo,
    retention: Retention,
    latest: Header | None,
    *,
    sources: Mapping[str, str],
) -> SessionStatus:
    """Where a session stands, what it takes, and the rules it is under; `latest` is its newest checkpoint."""
    from stepkeep.workspace.file_restore import stopped_restore  # the status of a store can do without

    cleanup = None
    with suppress(InvalidInput):
        cleanup = decide_about(engine, info, policies, now_us=engine.clock())
    return SessionStatus(
        store=engine.backend.url,
        session=summary_of(info),
        usage=engine.backend.usage(info.uid),
        latest=None if latest is None else describe(engine, info.key, [latest])[0],
        takes=session_usage(engine, info),
        rules=rule_texts(retention, info.profile, sources),
        cleanup=cleanup,
        budget_bytes=retention.max_bytes,
        is_over_budget=most_bytes(engine, info.uid, retention.max_bytes) > (retention.max_bytes or 0),
        stopped_restore=stopped_restore(engine, info.uid),
    )


def _largest(engine: Engine, sessions: list[SessionInfo], limit: int | None) -> tuple[SessionUsage, ...]:
    backend = engine.backend
    if isinstance(backend, LooksOver):
        sizes = backend.session_bytes()
    else:
        sizes = {info.uid: backend.usage(info.uid).body_bytes for info in sessions}
    ranked = sorted(sessions, key=lambda info: -sizes.get(info.uid, 0))
    return tuple(session_usage(engine, info) for info in ranked[:limit])


def _time(engine: Engine, query: HeaderQuery) -> datetime | None:
    header = next(engine.headers(query), None)
    return None if header is None else header.created_at
