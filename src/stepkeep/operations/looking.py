"""Looking at what is stored. Nothing is changed."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, structs

from stepkeep.api import DETAILS, Checkpoint, Session, Store
from stepkeep.codec import exact
from stepkeep.engine import reader
from stepkeep.errors import StepkeepError
from stepkeep.history.paths import find, format_path, parse_path
from stepkeep.history.times import read, written, zone_name, zone_named
from stepkeep.history.tracing import ValueChange
from stepkeep.lifecycle.merged import merged_triggers
from stepkeep.maintenance.verify import Progress, VerifyReport
from stepkeep.model import STATE, Header, Status, from_us
from stepkeep.operations.choosing import current_session
from stepkeep.operations.fixes import FAIL, PASS, fixes_for_codes
from stepkeep.operations.views import (
    CheckpointView,
    History,
    MergedTriggerView,
    SessionView,
    Shown,
    ShownAt,
    ValueAt,
    ValueChangeView,
    ValueLog,
    ValueShown,
    Verified,
    checkpoint_views,
    checkpoint_views_across,
    fallback_view,
    session_view,
)
from stepkeep.storage.port import HeaderQuery

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
        except StepkeepError:
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
    return shown_of(store, session, session.load(ref))


def show_value(store: Store, key: str, ref: str, path: str) -> ValueShown:
    """One value of the state of a checkpoint.

    Raises:
        NotFound: the state has nothing at that path (`path_not_found`); the message says what is near.
    """
    session = store.get(key)
    return _value_shown(session, session.load(ref), path)


def at(store: Store, key: str, time: str, path: str | None = None) -> ShownAt | ValueAt:
    """What the state, or one value of it, was at a time: that of the newest checkpoint at or before.

    Raises:
        InvalidInput: that is no time, or none that there was.
        NotFound: the session had no checkpoint then, or the state nothing at that path.
    """
    now_us = store.engine.clock()
    zone = zone_named(store.settings["time.zone"])
    session = store.get(key)
    time_us = read(time, now_us=now_us, zone=zone)
    checkpoint = session.load(from_us(time_us))
    asked: dict[str, Any] = {
        "asked": from_us(time_us),
        "asked_text": written(time_us, zone, fraction=False),
        "zone": zone_name(zone),
        "is_future": time_us > now_us,
    }
    if path is not None:
        return ValueAt(**structs.asdict(_value_shown(session, checkpoint, path)), **asked)
    return ShownAt(**structs.asdict(shown_of(store, session, checkpoint)), **asked)


def log_value(
    store: Store, key: str, path: str, *, ref: str = "latest", limit: int | None = None
) -> tuple[ValueLog, tuple[ValueChange, ...]]:
    """How one value changed on the way to a checkpoint, oldest first. The changes have the same, for text.

    Raises:
        NotFound: there never was a value at that path.
    """
    session = store.get(key)
    changes = tuple(session.log(path, ref=ref, limit=limit))
    if not changes:
        find(session.load(ref).state, parse_path(path))
    views = checkpoint_views(session.key, session, [change.header for change in changes])
    result = ValueLog(
        session=session.key,
        path=format_path(parse_path(path)),
        changes=tuple(_change_view(*pair) for pair in zip(views, changes, strict=True)),
    )
    return result, changes


def shown_of(store: Store, session: Session, checkpoint: Checkpoint) -> Shown:
    """A loaded checkpoint as it is shown, with the triggers that were merged into it."""
    (view,) = checkpoint_views(session.key, session, [checkpoint.header])
    encodings = {name: content.encoding for name, content in checkpoint.header.contents.items()}
    has_details = DETAILS in encodings
    return Shown(
        checkpoint=view,
        encoding=encodings[STATE],
        state=Raw(checkpoint.content()),
        details_encoding=encodings[DETAILS] if has_details else None,
        details=Raw(checkpoint.content(DETAILS)) if has_details else None,
        fallback=fallback_view(checkpoint),
        merged_triggers=tuple(
            MergedTriggerView(
                kind=merged.trigger.kind,
                event=merged.trigger.event,
                time=from_us(merged.time_us),
                message=merged.message,
            )
            for merged in merged_triggers(store.engine, checkpoint.header)
        ),
    )


def _value_shown(session: Session, checkpoint: Checkpoint, path: str) -> ValueShown:
    steps = parse_path(path)
    encoding, content = exact.encode(find(checkpoint.state, steps))
    (view,) = checkpoint_views(session.key, session, [checkpoint.header])
    return ValueShown(
        checkpoint=view,
        path=format_path(steps),
        encoding=encoding,
        value=Raw(content),
        fallback=fallback_view(checkpoint),
    )


def _change_view(view: CheckpointView, change: ValueChange) -> ValueChangeView:
    old = None if change.kind == "added" else exact.encode(change.old)
    new = None if change.kind == "removed" else exact.encode(change.new)
    return ValueChangeView(
        checkpoint=view,
        kind=change.kind,
        old_encoding=UNSET if old is None else old[0],
        old=UNSET if old is None else Raw(old[1]),
        new_encoding=UNSET if new is None else new[0],
        new=UNSET if new is None else Raw(new[1]),
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
        result=PASS if report.is_intact else FAIL,
        fixes=fixes_for_codes((finding.code for finding in report.findings), session=key),
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


def complete_branches(store: Store, key: str | None, prefix: str) -> tuple[str, ...]:
    """Branches of a session, or of the current one, that begin so."""
    session = store.get(current_session(store).session if key is None else key)
    return tuple(branch.name for branch in session.branches() if branch.name.startswith(prefix))


def complete_refs(store: Store, key: str | None, prefix: str) -> tuple[str, ...]:
    """Refs of a session, or of the current one, that begin so."""
    session = store.get(current_session(store).session if key is None else key)
    headers = list(session.history(limit=MAX_COMPLETIONS))
    names = dict.fromkeys(["latest", "latest@before", "newest", "now"])
    names.update(dict.fromkeys(f"branch:{branch.name}" for branch in session.branches()))
    names.update(dict.fromkeys(f"step-{header.step}" for header in headers if header.step is not None))
    names.update(dict.fromkeys(f"tag:{tag}" for header in headers for tag in header.tags))
    names.update(dict.fromkeys(f"seq:{header.seq}" for header in headers))
    names.update(dict.fromkeys(header.id for header in headers))
    return tuple(name for name in names if name.startswith(prefix))
