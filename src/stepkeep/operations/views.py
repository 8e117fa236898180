"""What the operations return: frozen structs, and how they are built.

Their fields, encoded as JSON, are what `--json` prints: a field is never renamed or removed, new ones may come.
Times are UTC in RFC 3339, sizes are bytes.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from stepkeep.api import Checkpoint, Session, Store
from stepkeep.errors import NotFound
from stepkeep.maintenance.verify import Finding
from stepkeep.model import Content, Header, Status, TriggerKind, from_us
from stepkeep.model import Session as SessionInfo
from stepkeep.storage.port import Usage


class TriggerView(msgspec.Struct, frozen=True, kw_only=True):
    """Why a checkpoint was saved."""

    kind: TriggerKind
    event: str | None


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint without its contents. `ratio` is `size_bytes` ÷ `stored_bytes`, None when nothing is stored."""

    id: str
    session: str
    seq: int
    branch: str
    time: datetime
    step: int | None
    status: Status
    trigger: TriggerView
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


class MergedTriggerView(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger that found nothing changed, and was noted on the checkpoint instead of making another."""

    kind: TriggerKind
    event: str | None
    time: datetime
    message: str


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint with its state, verified. With encoding `json` the state is the document itself; with
    `json+tags` an object with one `$` key stands for a value JSON lacks."""

    checkpoint: CheckpointView
    encoding: str
    state: msgspec.Raw
    details_encoding: str | None
    details: msgspec.Raw | None
    fallback: FallbackView | None
    merged_triggers: tuple[MergedTriggerView, ...]


class ValueShown(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the state of a checkpoint, verified, written like a state."""

    checkpoint: CheckpointView
    path: str
    encoding: str
    value: msgspec.Raw
    fallback: FallbackView | None


class ShownAt(Shown, frozen=True, kw_only=True):
    """The newest checkpoint at or before a time. `asked` is that time, read in `zone` unless it named its own."""

    asked: datetime
    asked_text: str
    zone: str
    is_future: bool


class ValueAt(ValueShown, frozen=True, kw_only=True):
    """The same for one value of its state."""

    asked: datetime
    asked_text: str
    zone: str
    is_future: bool


class ValueChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint at which a value was added, changed or removed. Only the values that its kind has are there."""

    checkpoint: CheckpointView
    kind: str
    old_encoding: str | msgspec.UnsetType = msgspec.UNSET
    old: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    new_encoding: str | msgspec.UnsetType = msgspec.UNSET
    new: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class ValueLog(msgspec.Struct, frozen=True, kw_only=True):
    """How the value at a path changed on the way to a checkpoint, oldest first."""

    session: str
    path: str
    changes: tuple[ValueChangeView, ...]


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `export` writes."""

    stepkeep_export: int
    checkpoint: CheckpointView
    encoding: str
    state: msgspec.Raw
    details_encoding: str | None
    details: msgspec.Raw | None


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written where, and as which document. `output` None means that it was not written to a file."""

    checkpoint: str
    encoding: str
    output: str | None
    size_bytes: int
    fallback: FallbackView | None
    format: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify` looked at and found. `result` is PASS or FAIL, `fixes` what to do about the findings."""

    is_intact: bool
    sessions: int
    checkpoints: int
    bodies: int
    pruned: int
    findings: tuple[Finding, ...]
    result: str
    fixes: tuple[str, ...]


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

    `sessions` are the largest ones; `oldest` and `newest` are times of checkpoints.
    """

    store: str
    statuses: dict[str, int]
    usage: Usage
    oldest: datetime | None
    newest: datetime | None
    sessions: tuple[SessionUsage, ...]
    next_clean: NextClean


class Symptom(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at, and what to do about it. `verdict` is ok, note, warning or problem."""

    name: str
    verdict: str
    message: str
    advice: str | None = None


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What `doctor` found. Healthy is a store without problems; it may have warnings."""

    store: str
    is_healthy: bool
    symptoms: tuple[Symptom, ...]


class CleanupView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether `clean` would remove a session, and why. `limit_days` is None where no age could make it go."""

    session: str
    goes: bool
    reason: str
    age_days: int
    limit_days: int | None


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One session, what it takes, the newest checkpoint of its current branch, the rules for its history in
    words, and whether `clean` would remove it (None: its profile or policy makes no sense)."""

    store: str
    session: SessionView
    usage: Usage
    latest: CheckpointView | None
    takes: SessionUsage
    rules: tuple[str, ...]
    cleanup: CleanupView | None


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed: these checkpoints, or the whole session."""

    session: str
    is_whole_session: bool
    checkpoints: tuple[str, ...]
    count: int


class ChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """One difference between two states. `kind` is added, removed, changed or moved; `path` reads like
    `context.messages[3].when`. Only the fields that the kind has are there. Values are written like a state, each
    with its encoding; the indexes of a move are those in the old and in the new list."""

    kind: str
    path: str
    old_encoding: str | msgspec.UnsetType = msgspec.UNSET
    old: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    new_encoding: str | msgspec.UnsetType = msgspec.UNSET
    new: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    old_index: int | msgspec.UnsetType = msgspec.UNSET
    new_index: int | msgspec.UnsetType = msgspec.UNSET


class Diff(msgspec.Struct, frozen=True, kw_only=True, rename={"older": "from", "newer": "to"}):
    """What changed from one checkpoint to another. The numbers count all changes; `changes` may be the first."""

    older: CheckpointView
    newer: CheckpointView
    elapsed_seconds: float
    total: int
    added: int
    removed: int
    changed: int
    moved: int
    summary: str
    is_workflow: bool
    changes: tuple[ChangeView, ...]


class BranchView(msgspec.Struct, frozen=True, kw_only=True):
    """A branch. `state` is open, merged, abandoned or archived; pruning protects pinned open ones and the current
    one. `checkpoints` counts its own, not those before its fork. `time` is that of its head, None when that cannot
    be read."""

    name: str
    is_current: bool
    state: str
    is_pinned: bool
    checkpoints: int
    head: str | None
    head_seq: int
    time: datetime | None
    message: str
    fork: str | None
    fork_branch: str | None
    fork_seq: int
    created: datetime
    metadata: dict[str, Any]


class Branches(msgspec.Struct, frozen=True, kw_only=True):
    """The branches of a session, oldest first, and which one it is on."""

    session: str
    current: str
    branches: tuple[BranchView, ...]


class BranchChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A branch after it was forked, entered, closed or reopened."""

    session: str
    branch: BranchView


class ClashView(msgspec.Struct, frozen=True, kw_only=True):
    """A place that both sides changed differently. A value is missing where that state has none."""

    path: str
    base_encoding: str | msgspec.UnsetType = msgspec.UNSET
    base: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    ours_encoding: str | msgspec.UnsetType = msgspec.UNSET
    ours: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    theirs_encoding: str | msgspec.UnsetType = msgspec.UNSET
    theirs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class MergeView(msgspec.Struct, frozen=True, kw_only=True):
    """A merge, or why it was refused: then `checkpoint` is None, and nothing was written.

    `into` is the branch merged into, `base` what both began from. `clashes` were decided if there is a checkpoint.
    `is_closed` is false when someone saved to the branch meanwhile.
    """

    session: str
    branch: str
    into: str
    strategy: str
    is_merged: bool
    is_closed: bool
    base: str | None
    checkpoint: CheckpointView | None
    clashes: tuple[ClashView, ...]


class ChangeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many changes lead from one state to another, and a summary."""

    total: int
    added: int
    removed: int
    changed: int
    moved: int
    summary: str


class RestoredView(msgspec.Struct, frozen=True, kw_only=True):
    """A session that goes on from a checkpoint. `changes` lead from the state before to the restored one, None
    when the state before cannot be read. `undo` is the ref that leads back."""

    session: str
    checkpoint: CheckpointView
    branch: str
    is_new_branch: bool
    previous_branch: str
    previous_head: str | None
    previous_seq: int | None
    changes: ChangeCounts | None
    undo: str


class DecisionView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one checkpoint stays, and why."""

    checkpoint: str
    seq: int
    branch: str
    time: datetime
    step: int | None
    stored_bytes: int
    stays: bool
    reasons: tuple[str, ...]
    warning: str | None


class PrunedSession(msgspec.Struct, frozen=True, kw_only=True):
    """What pruning did to one session, or would do.

    `refused` counts checkpoints that were to go and became needed, `missing` those that others removed meanwhile,
    `stored_bytes` what is needed no more. `rules` are in words. `decisions`, newest first, are there in a dry run.
    """

    session: str
    total: int
    kept: int
    deleted: int
    refused: int
    missing: int
    stored_bytes: int
    rules: tuple[str, ...]
    warnings: tuple[str, ...]
    decisions: tuple[DecisionView, ...]


class SessionError(msgspec.Struct, frozen=True, kw_only=True):
    """A session that could not be pruned or cleaned, and stays; None for what is no single session's."""

    session: str | None
    code: str | None
    message: str


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What pruning did to all sessions it was asked for, or would do. `reclaimed_bytes` is what the store became
    smaller; other data may still use the room of what was removed. `compressed` counts checkpoints that stay and
    are stored smaller. `result` is PASS, or FAIL with `errors`; `fixes` is what to do about those."""

    is_dry_run: bool
    total: int
    kept: int
    deleted: int
    refused: int
    missing: int
    stored_bytes: int
    reclaimed_bytes: int
    sessions: tuple[PrunedSession, ...]
    errors: tuple[SessionError, ...]
    compressed: int
    result: str
    fixes: tuple[str, ...]


class Cleaned(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions were removed, stayed, or could not be dealt with. `sessions` says why, for each in a dry
    run and otherwise for those that went. `warnings` are about the configuration."""

    is_dry_run: bool
    cleaned: int
    retained: int
    error: int
    stored_bytes: int
    reclaimed_bytes: int
    sessions: tuple[CleanupView, ...]
    errors: tuple[SessionError, ...]
    warnings: tuple[str, ...]


class SettingView(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the configuration. `value` is JSON: durations are seconds. `origin` is default, user, project,
    environment or flag; `source` is the file or variable."""

    key: str
    value: Any
    text: str
    origin: str
    source: str | None
    line: int | None


class ProblemView(msgspec.Struct, frozen=True, kw_only=True):
    """Something wrong in the configuration."""

    source: str
    line: int | None
    key: str
    message: str
    text: str


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was looked for, those that win first."""

    path: str
    scope: str
    exists: bool
    is_used: bool
    note: str


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration in force, or what is wrong with it."""

    settings: tuple[SettingView, ...]
    files: tuple[ConfigFile, ...]
    problems: tuple[ProblemView, ...]


# --- building --------------------------------------------------------------------------------------------------


def checkpoint_views(key: str, session: Session, headers: list[Header]) -> tuple[CheckpointView, ...]:
    stored: dict[str, int] = {}
    for body in session.bodies(*(header.id for header in headers)) if headers else ():
        stored[body.checkpoint] = stored.get(body.checkpoint, 0) + body.stored_size
    return tuple(checkpoint_view(key, header, stored.get(header.id, 0)) for header in headers)


def checkpoint_views_across(store: Store, headers: list[Header]) -> tuple[CheckpointView, ...]:
    by_session: dict[str, list[Header]] = {}
    for header in headers:
        by_session.setdefault(header.session, []).append(header)
    views: dict[str, CheckpointView] = {}
    for uid, own in by_session.items():
        with suppress(NotFound):  # deleted meanwhile
            session = Session(store.engine, store.engine.backend.session(uid))
            views.update((view.id, view) for view in checkpoint_views(session.key, session, own))
    return tuple(views[header.id] for header in headers if header.id in views)


def checkpoint_view(key: str, header: Header, stored_bytes: int) -> CheckpointView:
    return CheckpointView(
        id=header.id,
        session=key,
        seq=header.seq,
        branch=header.branch,
        time=header.created_at,
        step=header.step,
        status=header.status,
        trigger=TriggerView(kind=header.trigger.kind, event=header.trigger.event),
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


def session_view(info: SessionInfo) -> SessionView:
    return SessionView(
        key=info.key,
        uid=info.uid,
        status=info.status,
        project=info.project,
        workflow=info.workflow,
        profile=info.profile,
        is_test=info.is_test,
        branch=info.branch,
        checkpoints=stored_count(info),
        created=from_us(info.created_us),
        updated=from_us(info.updated_us),
        finished=None if info.finished_us is None else from_us(info.finished_us),
        error=info.error,
        metadata=info.metadata,
    )


def stored_count(info: SessionInfo) -> int:
    return info.last_seq - sum(last - first + 1 for first, last in info.gaps)


def fallback_view(checkpoint: Checkpoint) -> FallbackView | None:
    if (fallback := checkpoint.fallback) is None:
        return None
    failures = tuple(Failure(checkpoint=id, code=code) for id, code in fallback.failures)
    return FallbackView(tried=fallback.tried, failures=failures)
