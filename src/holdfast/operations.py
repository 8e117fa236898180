"""What a user can do, one function per action. Every surface calls these and nothing below.

The results are frozen structs. Their fields, encoded as JSON, are what `--json` prints: a field is never renamed
or removed, new ones may come. Times are UTC in RFC 3339, sizes are bytes.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack

import msgspec

from holdfast import api
from holdfast.api import DETAILS, Checkpoint, SaveOptions, Session, Store
from holdfast.engine import reader
from holdfast.errors import BackendUnavailable, Corrupt, HoldfastError, InvalidInput, NotFound
from holdfast.maintenance.verify import Finding, Progress, VerifyReport
from holdfast.model import STATE, Content, Header, Status, Trigger, from_us, is_checkpoint_id
from holdfast.model import Session as SessionInfo
from holdfast.storage.disk import sync_directory
from holdfast.storage.port import HeaderQuery, Usage
from holdfast.storage.urls import database_file

EXPORT_VERSION = 1
MAX_COMPLETIONS = 50


# --- results ---------------------------------------------------------------------------------------------------


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint without its contents. `ratio` is `size_bytes` ÷ `stored_bytes`, None when nothing is stored."""

    id: str
    session: str
    seq: int
    branch: str
    time: datetime
    step: int | None
    status: Status
    trigger: Trigger
    message: str
    tags: tuple[str, ...]
    metadata: dict[str, Any]
    parents: tuple[str, ...]
    requires: tuple[str, ...]
    external_id: str | None
    idempotency_key: str | None
    size_bytes: int
    stored_bytes: int
    ratio: float | None
    contents: dict[str, Content]
    chain: str


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session. `checkpoints` counts those that are stored now."""

    key: str
    uid: str
    status: Status
    project: str | None
    workflow: str | None
    profile: str
    is_test: bool
    branch: str
    checkpoints: int
    created: datetime
    updated: datetime
    finished: datetime | None
    error: str | None
    metadata: dict[str, Any]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The line of the current branch, newest first. `total` counts all of it, `checkpoints` may be its beginning.
    `damaged` are the ids whose header does not verify; they are in no other field but `total`."""

    session: str
    branch: str
    total: int
    checkpoints: tuple[CheckpointView, ...]
    damaged: tuple[str, ...]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that did not load, and why."""

    checkpoint: str
    code: str


class FallbackView(msgspec.Struct, frozen=True, kw_only=True):
    """Set when newer checkpoints are damaged and an older one was loaded."""

    tried: int
    failures: tuple[Failure, ...]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint with its state, verified. With encoding `json` the state is the document itself; with
    `json+tags` an object with one `$` key stands for a value JSON lacks."""

    checkpoint: CheckpointView
    encoding: str
    state: msgspec.Raw
    details_encoding: str | None
    details: msgspec.Raw | None
    fallback: FallbackView | None


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `export` writes."""

    holdfast_export: int
    checkpoint: CheckpointView
    encoding: str
    state: msgspec.Raw
    details_encoding: str | None
    details: msgspec.Raw | None


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written where. `output` None means that it was not written to a file."""

    checkpoint: str
    encoding: str
    output: str | None
    size_bytes: int
    fallback: FallbackView | None


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify` looked at and found."""

    is_intact: bool
    sessions: int
    checkpoints: int
    bodies: int
    pruned: int
    findings: tuple[Finding, ...]


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A store as a whole: how many sessions have which status, and what they take."""

    store: str
    statuses: dict[str, int]
    usage: Usage


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One session, what it takes, and the newest checkpoint of its current branch."""

    store: str
    session: SessionView
    usage: Usage
    latest: CheckpointView | None


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed: these checkpoints, or the whole session."""

    session: str
    is_whole_session: bool
    checkpoints: tuple[str, ...]
    count: int


# --- opening ---------------------------------------------------------------------------------------------------


def open_store(url: str | None = None, *, create: bool = False) -> Store:
    """Open the named store, or the default one.

    Raises:
        NotFound: there is none, and `create` was not asked for. Nothing is made.
    """
    url = api.default_url() if url is None else url
    file = database_file(url)
    if not create and file is not None and not file.exists():
        raise NotFound(f"no store at {file} yet: the first save creates it", code="store_not_found")
    return api.open(url)


# --- saving ----------------------------------------------------------------------------------------------------


def save(
    store: Store,
    key: str,
    state: object,
    *,
    profile: str | None = None,
    project: str | None = None,
    **options: Unpack[SaveOptions],
) -> CheckpointView:
    """Save a state as the next checkpoint of a session, which is created if need be.

    Input that is refused leaves nothing behind, not even an empty session.
    """
    fields = {"profile": profile, "project": project}
    if any(fields.values()) or not _has_session(store, key):
        _rehearse(key, state, fields, options)
    if options.get("expect_head") is not None:
        session = store.get(key)  # a head can be expected only of a session that exists
        options["expect_head"] = _head_named(session, str(options["expect_head"]))
    session = store.session(key, profile=profile, project=project)
    header = session.save(state, **options)
    return _views(session.key, session, [header])[0]


def _has_session(store: Store, key: str) -> bool:
    try:
        store.get(key)
    except NotFound:
        return False
    return True


def _rehearse(key: str, state: object, fields: Mapping[str, str | None], options: SaveOptions) -> None:
    """Do the same save in memory, where all that can be wrong with the input comes out."""
    rehearsed = options.copy()
    rehearsed.pop("expect_head", None)
    rehearsed.pop("requires", None)
    rehearsed.pop("parents", None)
    rehearsed.pop("fence", None)
    with api.open("memory:") as scratch:
        scratch.session(key, profile=fields["profile"], project=fields["project"]).save(state, **rehearsed)


def _head_named(session: Session, text: str) -> str:
    """A full id as it is, so that an id which is not there is a conflict; the beginning of one resolved."""
    return text if is_checkpoint_id(text) else session.header(text).id


# --- looking ---------------------------------------------------------------------------------------------------


def list_sessions(
    store: Store, *, project: str | None = None, status: str | None = None, limit: int | None = None
) -> tuple[SessionView, ...]:
    """Sessions, most recently used first."""
    found = store.sessions(project=project, status=status, limit=limit)
    return tuple(_session_view(info) for info in found)


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
        return _views(within.key, within, headers)
    return _views_across(store, headers)


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
        checkpoints=_views(info.key, session, headers),
        damaged=tuple(damaged),
    )


def show(store: Store, key: str, ref: str = "latest") -> Shown:
    """A checkpoint and its state. `latest` falls back to an older one when the newest is damaged."""
    session = store.get(key)
    checkpoint = session.load(ref)
    (view,) = _views(session.key, session, [checkpoint.header])
    encodings = {name: content.encoding for name, content in checkpoint.header.contents.items()}
    has_details = DETAILS in encodings
    return Shown(
        checkpoint=view,
        encoding=encodings[STATE],
        state=msgspec.Raw(checkpoint.content()),
        details_encoding=encodings[DETAILS] if has_details else None,
        details=msgspec.Raw(checkpoint.content(DETAILS)) if has_details else None,
        fallback=_fallback_view(checkpoint),
    )


def store_status(store: Store) -> StoreStatus:
    """How much is in the store."""
    statuses = dict.fromkeys((status.value for status in Status), 0)
    for info in store.sessions():
        statuses[info.status] += 1
    return StoreStatus(store=store.url, statuses=statuses, usage=store.usage())


def session_status(store: Store, key: str) -> SessionStatus:
    """Where a session stands."""
    session = store.get(key)
    try:
        latest = _views(session.key, session, [session.header("latest")])[0]
    except (NotFound, Corrupt):
        latest = None
    return SessionStatus(
        store=store.url, session=_session_view(session.info), usage=session.usage(), latest=latest
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


# --- exporting -------------------------------------------------------------------------------------------------


def export(
    store: Store, key: str, ref: str = "latest", *, output: Path | None, force: bool = False
) -> tuple[Exported, bytes]:
    """The readable document of a checkpoint, and its bytes. With `output` it is written there: whole or not at
    all, durable, readable only by its owner, and over an existing file only with `force`."""
    shown = show(store, key, ref)
    document = Export(
        holdfast_export=EXPORT_VERSION,
        checkpoint=shown.checkpoint,
        encoding=shown.encoding,
        state=shown.state,
        details_encoding=shown.details_encoding,
        details=shown.details,
    )
    content = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    if output is not None:
        _write_file(output, content, force=force)
    exported = Exported(
        checkpoint=shown.checkpoint.id,
        encoding=shown.encoding,
        output=None if output is None else str(output),
        size_bytes=len(content),
        fallback=shown.fallback,
    )
    return exported, content


def _write_file(path: Path, content: bytes, *, force: bool) -> None:
    if path.is_dir():
        raise InvalidInput(f"{path} is a directory: name a file in it", code="not_a_file")
    temporary = path.with_name(f".holdfast-{secrets.token_hex(8)}.tmp")
    with _file_errors(path):
        try:
            _write_new(temporary, content)
            _put_in_place(temporary, path, force=force)
            sync_directory(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _put_in_place(temporary: Path, path: Path, *, force: bool) -> None:
    if not force:
        try:
            path.hardlink_to(temporary)  # unlike a rename, it never replaces
            return
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if path.exists():
                raise FileExistsError(path) from None
    temporary.replace(path)


def _write_new(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as exc:
        raise InvalidInput(f"{path} exists: use --force to replace it", code="file_exists") from exc
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or exc
        raise BackendUnavailable(
            f"{path} cannot be written: {reason}", code="export_failed", retryable=False
        ) from exc


# --- changing --------------------------------------------------------------------------------------------------


def finish(store: Store, key: str, status: Status, *, error: str | None = None) -> SessionView:
    """Set the status of a session: completed, failed, cancelled or paused."""
    session = store.get(key)
    match status:
        case Status.COMPLETED:
            return _session_view(session.complete())
        case Status.FAILED:
            return _session_view(session.fail(error))
        case Status.CANCELLED:
            return _session_view(session.cancel())
        case Status.PAUSED:
            return _session_view(session.pause())
        case _:
            raise InvalidInput(f"a session does not finish as {status}", code="invalid_status")


def delete(store: Store, key: str, refs: Iterable[str] = ()) -> Deleted:
    """Remove checkpoints, or without refs the whole session, for good."""
    session = store.get(key)
    # A damaged checkpoint can still be removed by its id.
    ids = tuple(
        dict.fromkeys(ref if is_checkpoint_id(ref) else session.header(ref).id for ref in tuple(refs))
    )
    count = len(ids) or _stored_count(session.info)
    if ids:
        session.delete(*ids)
    else:
        session.clear()
    return Deleted(session=key, is_whole_session=not ids, checkpoints=ids, count=count)


def session_named(store: Store, key: str) -> SessionView:
    """The session with that key, or `NotFound`."""
    return _session_view(store.get(key).info)


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


# --- views -----------------------------------------------------------------------------------------------------


def _views(key: str, session: Session, headers: list[Header]) -> tuple[CheckpointView, ...]:
    stored: dict[str, int] = {}
    for body in session.bodies() if headers else ():
        stored[body.checkpoint] = stored.get(body.checkpoint, 0) + body.stored_size
    return tuple(_view(key, header, stored.get(header.id, 0)) for header in headers)


def _views_across(store: Store, headers: list[Header]) -> tuple[CheckpointView, ...]:
    by_session: dict[str, list[Header]] = {}
    for header in headers:
        by_session.setdefault(header.session, []).append(header)
    views: dict[str, CheckpointView] = {}
    for uid, own in by_session.items():
        with suppress(NotFound):  # deleted meanwhile
            session = Session(store.engine, store.engine.backend.session(uid))
            views.update((view.id, view) for view in _views(session.key, session, own))
    return tuple(views[header.id] for header in headers if header.id in views)


def _view(key: str, header: Header, stored_bytes: int) -> CheckpointView:
    return CheckpointView(
        id=header.id,
        session=key,
        seq=header.seq,
        branch=header.branch,
        time=header.created_at,
        step=header.step,
        status=header.status,
        trigger=header.trigger,
        message=header.message,
        tags=header.tags,
        metadata=header.metadata,
        parents=header.parents,
        requires=header.requires,
        external_id=header.external_id,
        idempotency_key=header.idempotency_key,
        size_bytes=header.size_bytes,
        stored_bytes=stored_bytes,
        ratio=round(header.size_bytes / stored_bytes, 2) if stored_bytes else None,
        contents=header.contents,
        chain=header.chain,
    )


def _session_view(info: SessionInfo) -> SessionView:
    return SessionView(
        key=info.key,
        uid=info.uid,
        status=info.status,
        project=info.project,
        workflow=info.workflow,
        profile=info.profile,
        is_test=info.is_test,
        branch=info.branch,
        checkpoints=_stored_count(info),
        created=from_us(info.created_us),
        updated=from_us(info.updated_us),
        finished=None if info.finished_us is None else from_us(info.finished_us),
        error=info.error,
        metadata=info.metadata,
    )


def _stored_count(info: SessionInfo) -> int:
    return info.last_seq - sum(last - first + 1 for first, last in info.gaps)


def _fallback_view(checkpoint: Checkpoint) -> FallbackView | None:
    if (fallback := checkpoint.fallback) is None:
        return None
    failures = tuple(Failure(checkpoint=id, code=code) for id, code in fallback.failures)
    return FallbackView(tried=fallback.tried, failures=failures)
