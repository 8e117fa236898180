"""The options of methods as typed dicts, for those who write them down; making these classes takes a moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from os import PathLike
from typing import Any, Literal, TypedDict

from stepkeep.model import Status, Trigger, TriggerKind


class RetentionRules(TypedDict, total=False):
    """Which checkpoints of a session stay; see the reference of the section `retention` in the configuration.

    Durations are a `timedelta` or text such as `12h`, sizes a number of bytes or text such as `20MB`. None switches
    a rule off.
    """

    keep_last: int | None
    keep_within: timedelta | str | None
    keep_hourly: timedelta | str | None
    keep_daily: timedelta | str | None
    keep_weekly: timedelta | str | None
    keep_manual: bool
    keep_tags: Iterable[str]
    keep_terminal: bool
    max_count: int | None
    max_age: timedelta | str | None
    max_bytes: int | str | None


class BackupRules(TypedDict, total=False):
    """Which backups in a directory or in object storage stay; they unite, as they do for checkpoints."""

    keep_last: int | None
    keep_within: timedelta | str | None
    keep_hourly: timedelta | str | None
    keep_daily: timedelta | str | None
    keep_weekly: timedelta | str | None


class CleanupRules(TypedDict, total=False):
    """When the whole session may go: never if `enabled` is False, else so many days after its end."""

    enabled: bool
    retention_days: int


class TimelineOptions(TypedDict, total=False):
    """What `Session.timeline` and `Store.timelines` take."""

    since: str | datetime | None
    branch: str | None
    tag: str | None
    limit: int | None
    fold: bool


class SaveOptions(TypedDict, total=False):
    """What `Session.save` takes beside the state.

    `step` and `message` say where the work stands; `tags`, `metadata` (plain JSON, up to 64 KiB) and `details`
    (any state) describe it. `status` also becomes the session's. `trigger` says why it is saved. `branch` is
    the current one unless given, and `parents` the branch's head. `requires` are ids that must stay as long as
    this checkpoint. `external_id` is the caller's own name for it, unique on the branch. A repeat with the same
    `idempotency_key` and content returns the first checkpoint. `expect_head` names the checkpoint that must
    still be the branch's newest (None: there must be none), else `Conflict`. `fence` is a lease's token.
    `usage`, a dict with `tokens` and `cost`, is added to the sums of the session, which `Store.stats` adds up.
    `workspace` captures the project files: a directory, or True for the session's or the current one; False leaves
    out what the session would capture.
    """

    step: int | None
    message: str
    tags: Iterable[str]
    status: Status | str
    trigger: Trigger | TriggerKind | str
    metadata: Mapping[str, Any] | None
    details: object
    branch: str | None
    parents: Iterable[str] | None
    requires: Iterable[str]
    external_id: str | None
    idempotency_key: str | None
    expect_head: str | None
    fence: int | None
    usage: Mapping[str, int | float] | None
    workspace: bool | str | PathLike[str] | None


class RestoreOptions(TypedDict, total=False):
    """What `Session.restore` takes beside the ref.

    `branch` names the new branch. `expect_head` is the id that `latest` must still have. A connected part that the
    checkpoint lacks is an error, or with `missing="keep"` stays as it is; what the checkpoint has and nobody connected
    is ignored, or with `extra="error"` an error. The result names both. With `force` a part that cannot say what it
    holds now is restored all the same, and project files are overwritten that no capture has. With `compare` it also
    counts the changes that lead from the state before to the restored one. With `files` the project files of the
    checkpoint are restored too, in `workspace` as with `Files.restore`, and one undo takes all of it back; with
    `parts=False` connected parts are left alone.
    """

    branch: str | None
    expect_head: str | None
    missing: Literal["error", "keep"]
    extra: Literal["ignore", "error"]
    force: bool
    compare: bool
    files: bool
    parts: bool
    workspace: bool | str | PathLike[str] | None
