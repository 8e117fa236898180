"""Looking at what is stored. Nothing is changed."""

from __future__ import annotations

import msgspec

from holdfast.api import DETAILS, Store
from holdfast.engine import reader
from holdfast.errors import HoldfastError
from holdfast.maintenance.verify import Progress, VerifyReport
from holdfast.model import STATE, Header, Status
from holdfast.operations.views import (
    CheckpointView,
    History,
    SessionView,
    Shown,
    Verified,
    checkpoint_views,
    checkpoint_views_across,
    fallback_view,
    session_view,
)
from holdfast.storage.port import HeaderQuery

MAX_COMPLETIONS = 50


def list_sessions(
    store: Store, *, project: str | None = None, status: str | None = None, limit: int | None = None
) -> tuple[SessionView, ...]:
    """Sessions, most recently used first."""
    found = store.sessions(project=project, status=status, limit=limit)
    return tuple(session_view(info) for info in found)


def list_checkpoints(
    store: Store,
    *,
    session: str | None = None,
    tag: str | None = None,
    status: str | None = None,
    project: str | None = None,
    limit: int | None = None,
) -> tuple[CheckpointView, ...]:
    """Checkpoints of one session, or of all, newest first and on whichever branch."""
    within = None if session is None else store.get(session)
    query = HeaderQuery(
        session=None if within is None else within.uid,
        project=project,
        tag=tag,
        status=None if status is None else Status(status),
        limit=limit,
    )
    headers = list(store.engine.headers(query))
    if within is not None:
        return checkpoint_views(within.key, within, headers)
    return checkpoint_views_across(store, headers)


def history(store: Store, key: str, *, limit: int | None = None) -> History:
    """The checkpoints that led to where the session stands now."""
    session = store.get(key)
    info = session.info
    headers: list[Header] = []
    damaged: list[str] = []
    total = 0
    for row in reader.line_of(store.engine.backend, info, info.branch):
        total += 1
        if limit is not None and len(headers) >= limit:
            continue
        try:
            headers.append(reader.verified(row))
        except HoldfastError:
            damaged.append(row.id)
    return History(
        session=info.key,
        branch=info.branch,
        total=total,
        checkpoints=checkpoint_views(info.key, session, headers),
        damaged=tuple(damaged),
    )


def show(store: Store, key: str, ref: str = "latest") -> Shown:
    """A checkpoint and its state. `latest` falls back to an older one when the newest is damaged."""
    session = store.get(key)
    checkpoint = session.load(ref)
    (view,) = checkpoint_views(session.key, session, [checkpoint.header])
    encodings = {name: content.encoding for name, content in checkpoint.header.contents.items()}
    has_details = DETAILS in encodings
    return Shown(
        checkpoint=view,
        encoding=encodings[STATE],
        state=msgspec.Raw(checkpoint.content()),
        details_encoding=encodings[DETAILS] if has_details else None,
        details=msgspec.Raw(checkpoint.content(DETAILS)) if has_details else None,
        fallback=fallback_view(checkpoint),
    )


def verify(store: Store, key: str | None = None, *, progress: Progress | None = None) -> Verified:
    """Check every byte of a session, or of all."""
    target = store if key is None else store.get(key)
    report: VerifyReport = target.verify(progress=progress)
    return Verified(
        is_intact=report.is_intact,
        sessions=report.sessions,
        checkpoints=report.checkpoints,
        bodies=report.bodies,
        pruned=report.pruned,
        findings=report.findings,
    )


def count_checkpoints(store: Store, key: str | None = None) -> int:
    """How many checkpoints `verify` will look at."""
    return (store if key is None else store.get(key)).usage().checkpoints


def session_named(store: Store, key: str) -> SessionView:
    """The session with that key, or `NotFound`."""
    return session_view(store.get(key).info)


# --- completing ------------------------------------------------------------------------------------------------


def complete_sessions(store: Store, prefix: str) -> tuple[str, ...]:
    """Keys that begin so, most recently used first."""
    return tuple(info.key for info in store.sessions(prefix=prefix or None, limit=MAX_COMPLETIONS))


def complete_refs(store: Store, key: str, prefix: str) -> tuple[str, ...]:
    """Refs of a session that begin so."""
    headers = list(store.get(key).history(limit=MAX_COMPLETIONS))
    names = dict.fromkeys(["latest", "newest"])
    names.update(dict.fromkeys(f"step-{header.step}" for header in headers if header.step is not None))
    names.update(dict.fromkeys(f"tag:{tag}" for header in headers for tag in header.tags))
    names.update(dict.fromkeys(f"seq:{header.seq}" for header in headers))
    names.update(dict.fromkeys(header.id for header in headers))
    return tuple(name for name in names if name.startswith(prefix))
