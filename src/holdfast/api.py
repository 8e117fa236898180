"""The public face: open a store, save and load the state of a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cached_property, partial
from types import TracebackType
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from holdfast import config as configuration
from holdfast.codec import exact
from holdfast.config import Settings
from holdfast.config.rules import CLEANUP, compresses, retention_of
from holdfast.engine import Engine, Fallback, Loaded, Pending, Save
from holdfast.errors import HoldfastError, InvalidInput, NotFound
from holdfast.history import refs
from holdfast.maintenance.budget import Budget, Limits
from holdfast.maintenance.clean import CleanEntry, CleanReport, apply_clean
from holdfast.maintenance.keeper import Keeper, plans_to_clean
from holdfast.maintenance.prune import PrunePlan, PruneReport, apply_prune, plan_prune
from holdfast.maintenance.space import reclaim
from holdfast.maintenance.verify import Progress, VerifyReport, verify
from holdfast.model import STATE, Branch, Header, Status, Trigger, TriggerKind, check_name, to_us, utc_now_us
from holdfast.model import Session as SessionInfo
from holdfast.policy.cleanup import rule_from
from holdfast.policy.profiles import retention_for
from holdfast.policy.retention import Retention
from holdfast.storage.port import ANY_HEAD, Backend, BodyInfo, Event, HeaderQuery, SessionQuery, Usage
from holdfast.storage.urls import open_backend

T = TypeVar("T")

DETAILS = "details"
KEEPS_ALL = "archive"
"""The profile that rules are checked against, and to which those of `Session.prune` are added."""


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    config: Settings | None = None,
    keyframe_every: int | None = None,
    max_state_bytes: int = exact.MAX_BYTES,
    clock: Callable[[], int] = utc_now_us,
) -> Store:
    """Open a store, creating it if need be.

    `url` is `sqlite:PATH` (or just a path) or `memory:`. Without one: the environment's `HOLDFAST_STORE`, then the
    store that a configuration file names, then a database in the user's data folder. `config` replaces the
    settings from environment and files. `keyframe_every=1` stores full copies instead of patches. States that
    encode to more than `max_state_bytes` are refused. `clock` gives the time in microseconds since 1970.

    Raises:
        InvalidInput: the configuration, the URL or an option makes no sense.
    """
    if keyframe_every is not None and keyframe_every < 1:
        raise InvalidInput("keyframe_every counts checkpoints: 1 or more", code="invalid_option")
    settings = configuration.here() if config is None else config
    if isinstance(url, os.PathLike):
        url = f"sqlite:{os.fspath(url)}"
    backend = open_backend(default_url(settings) if url is None else url)
    return Store(
        backend,
        settings=settings,
        keyframe_every=keyframe_every,
        max_state_bytes=max_state_bytes,
        clock=clock,
    )


def default_url(settings: Settings | None = None) -> str:
    """The store used when none is named: that of the settings, else the one in the user's data folder."""
    if url := (configuration.here() if settings is None else settings).store_url():
        return url
    from platformdirs import user_data_path

    return f"sqlite:{user_data_path('holdfast') / 'holdfast.db'}"


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
    max_age: timedelta | str | None
    max_bytes: int | str | None


class CleanupRules(TypedDict, total=False):
    """When the whole session may go: never if `enabled` is False, else so many days after its end."""

    enabled: bool
    retention_days: int


class SaveOptions(TypedDict, total=False):
    """What `Session.save` takes beside the state.

    `step` and `message` say where the work stands; `tags`, `metadata` (plain JSON, up to 64 KiB) and `details`
    (any state) describe it. `status` also becomes the session's. `trigger` says why it is saved. `branch` is
    the current one unless given, and `parents` the branch's head. `requires` are ids that must stay as long as
    this checkpoint. `external_id` is the caller's own name for it, unique on the branch. A repeat with the same
    `idempotency_key` and content returns the first checkpoint. `expect_head` names the checkpoint that must
    still be the branch's newest (None: there must be none), else `Conflict`. `fence` is a lease's token.
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


class Store:
    """An open store. Use it as a context manager, or call `close`. Safe for threads and forks.

    Made without settings, it has no keeper and no limits.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        settings: Settings | None = None,
        keyframe_every: int | None = None,
        max_state_bytes: int = exact.MAX_BYTES,
        clock: Callable[[], int] = utc_now_us,
    ) -> None:
        self._settings = configuration.load(cwd=None, environ={}) if settings is None else settings
        self._engine = Engine(
            backend,
            keyframe_every=keyframe_every,
            max_state_bytes=max_state_bytes,
            compresses=partial(compresses, self._settings),
            clock=clock,
        )
        self._keeper = None if settings is None else _keeper_of(self._engine, settings)

    @property
    def settings(self) -> Settings:
        """The settings this store was opened with: every key, its value, and where that came from."""
        return self._settings

    @property
    def url(self) -> str:
        return self._engine.backend.url

    @property
    def engine(self) -> Engine:
        """The engine under this store, for adapters and tools."""
        return self._engine

    def session(
        self,
        key: str,
        *,
        profile: str | None = None,
        project: str | None = None,
        workflow: str | None = None,
        test: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
        retention: RetentionRules | None = None,
        cleanup: CleanupRules | None = None,
    ) -> Session:
        """The session with that key, created if there is none. Fields that are given are stored; others stay.

        A new one gets profile and project of the settings unless they are given. `retention` and `cleanup` are
        its own rules and come before those of settings and profile; `{}` takes them back.
        """
        given: dict[str, Any] = {
            name: value
            for name, value in (
                ("profile", profile),
                ("project", project),
                ("workflow", workflow),
                ("is_test", test),
                ("metadata", metadata),
            )
            if value is not None
        }
        defaults = {name: self._settings[name] for name in ("profile", "project") if self._settings[name]}
        policy = _policy(None, retention, cleanup)
        info = self._engine.open_session(key, **{**defaults, "policy": policy, **given})
        if retention is not None or cleanup is not None:
            given["policy"] = _policy(info.policy, retention, cleanup)
        changed = {name: value for name, value in given.items() if getattr(info, name) != value}
        if changed:
            info = self._engine.describe_session(info.uid, changed)
        return self._session(info)

    def _session(self, info: SessionInfo) -> Session:
        return Session(self._engine, info, self._settings)

    def get(self, key: str) -> Session:
        """The existing session with that key, or `NotFound`."""
        return self._session(self._engine.find_session(key))

    def sessions(
        self,
        *,
        project: str | None = None,
        workflow: str | None = None,
        status: Status | str | None = None,
        prefix: str | None = None,
        limit: int | None = None,
    ) -> Iterator[SessionInfo]:
        """Sessions, most recently used first."""
        statuses = None if status is None else (_status(status),)
        query = SessionQuery(
            project=project, workflow=workflow, statuses=statuses, key_prefix=prefix, limit=limit
        )
        return self._engine.backend.sessions(query)

    def checkpoint(self, id: str) -> Checkpoint:
        """The checkpoint with that id, of whichever session."""
        return Checkpoint(self._engine.load(self._engine.header(id)))

    def checkpoints(self, *, tag: str | None = None, limit: int | None = None) -> Iterator[Header]:
        """Headers of all sessions, newest first."""
        return self._engine.headers(HeaderQuery(tag=tag, limit=limit))

    def verify(self, *, progress: Progress | None = None) -> VerifyReport:
        """Check every byte of every session."""
        return verify(self._engine, progress=progress)

    def usage(self) -> Usage:
        return self._engine.backend.usage()

    @overload
    def prune(self, *, dry_run: Literal[False] = False) -> tuple[PruneReport, ...]: ...

    @overload
    def prune(self, *, dry_run: Literal[True]) -> tuple[PrunePlan, ...]: ...

    def prune(self, *, dry_run: bool = False) -> tuple[PruneReport, ...] | tuple[PrunePlan, ...]:
        """Remove from every session what its rules do not keep, and give the space back.

        A dry run returns the plans and changes nothing. A session that fails does not stop the others; its error
        is raised at the end.
        """
        plans: list[PrunePlan] = []
        reports: list[PruneReport] = []
        errors: list[HoldfastError] = []
        for info in list(self._engine.backend.sessions(SessionQuery())):
            session = self._session(info)
            try:
                if dry_run:
                    plans.append(session.prune(dry_run=True))
                else:
                    reports.append(session.prune())
            except NotFound:
                continue  # deleted meanwhile
            except HoldfastError as exc:
                errors.append(exc)
        if not dry_run:
            reclaim(self._engine)
        if errors:
            raise errors[0]
        return tuple(plans) if dry_run else tuple(reports)

    @overload
    def clean(self, *, dry_run: Literal[False] = False) -> CleanReport: ...

    @overload
    def clean(self, *, dry_run: Literal[True]) -> tuple[CleanEntry, ...]: ...

    def clean(self, *, dry_run: bool = False) -> CleanReport | tuple[CleanEntry, ...]:
        """Remove the sessions whose time has come, and give the space back. Active and leased ones stay.

        A dry run returns every session with what would become of it and why, and changes nothing. A session that
        fails does not stop the others; the report names it.
        """
        now_us = self._engine.clock()
        plans = tuple(plans_to_clean(self._engine, self._settings.cleanup_policies, now_us=now_us))
        if dry_run:
            return tuple(entry for plan in plans for entry in plan.entries)
        reports = [apply_clean(self._engine, plan, now_us=now_us) for plan in plans]
        reclaim(self._engine)
        return CleanReport(
            cleaned=sum(report.cleaned for report in reports),
            retained=sum(report.retained for report in reports),
            missing=sum(report.missing for report in reports),
            errors=tuple(error for report in reports for error in report.errors),
            stored_bytes=sum(report.stored_bytes for report in reports),
        )

    def flush(self) -> None:
        """Return when every save that was started is settled."""
        self._engine.flush()

    def close(self) -> None:
        """Finish saves that are under way, prune what is due, release everything. Repeating it is harmless."""
        if self._keeper is not None:
            self._engine.flush()
            self._keeper.close()
        self._engine.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Session:
    """One run of an agent or workflow in a store. A handle stays with its incarnation: after the session was
    deleted, saving raises `NotFound`, even when a new one has the same key."""

    def __init__(self, engine: Engine, info: SessionInfo, settings: Settings | None = None) -> None:
        self._engine = engine
        self._settings = settings
        self._uid = info.uid
        self._key = info.key

    @property
    def key(self) -> str:
        return self._key

    @property
    def uid(self) -> str:
        return self._uid

    @property
    def info(self) -> SessionInfo:
        """The session as it is stored now: status, profile, current branch, times."""
        return self._engine.backend.session(self._uid)

    def __repr__(self) -> str:
        return f"<Session {self._key!r}>"

    # --- saving

    @overload
    def save(
        self, state: object, *, wait: Literal[True] = True, **options: Unpack[SaveOptions]
    ) -> Header: ...

    @overload
    def save(self, state: object, *, wait: Literal[False], **options: Unpack[SaveOptions]) -> Pending: ...

    def save(self, state: object, *, wait: bool = True, **options: Unpack[SaveOptions]) -> Header | Pending:
        """Save a state as the next checkpoint. When this returns, it survives a crash and a loss of power.

        With `wait=False` the state is encoded at once, a handle is returned, and a background thread commits;
        `handle.result()` tells when it is durable. A state that would not come back equal is refused before
        anything is written. The options are those of `SaveOptions`.

        Raises:
            InvalidInput: the state or an option cannot be saved; `.path` names the place in the state.
            Conflict: someone wrote first.
            NotFound: the session was deleted.
            BackendUnavailable: nothing was stored; `.retryable` says whether to repeat.
        """
        save = self._save_of(state, **options)
        return self._engine.save(save) if wait else self._engine.submit_in_background(save)

    def _save_of(
        self,
        state: object,
        *,
        step: int | None = None,
        message: str = "",
        tags: Iterable[str] = (),
        status: Status | str = Status.IN_PROGRESS,
        trigger: Trigger | TriggerKind | str = TriggerKind.AUTO,
        metadata: Mapping[str, Any] | None = None,
        details: object = None,
        branch: str | None = None,
        parents: Iterable[str] | None = None,
        requires: Iterable[str] = (),
        external_id: str | None = None,
        idempotency_key: str | None = None,
        expect_head: str | None = ANY_HEAD,
        fence: int | None = None,
    ) -> Save:
        bodies = {STATE: self._engine.encode(state)}
        if details is not None:
            bodies[DETAILS] = self._engine.encode(details)
        return Save(
            session=self._uid,
            bodies=bodies,
            branch=branch,
            parents=None if parents is None else _names("parents", parents),
            expect_head=expect_head,
            idempotency_key=idempotency_key,
            external_id=external_id,
            fence=fence,
            step=step,
            status=_status(status),
            trigger=_trigger(trigger),
            message=message,
            tags=_names("tags", tags),
            metadata={} if metadata is None else metadata,
            requires=_names("requires", requires),
        )

    # --- loading

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint of the current branch that verifies; None when there is none at all.

        When newer ones are damaged, the result says so in `.fallback`, and the log has a warning for each.

        Raises:
            Corrupt: there are checkpoints, and none of them verifies (code `no_valid_checkpoint`).
        """
        loaded = self._engine.latest(self.info)
        return None if loaded is None else Checkpoint(loaded)

    def newest(self) -> Checkpoint | None:
        """The checkpoint with the highest seq, on whichever branch; no fallback."""
        loaded = self._engine.newest(self._uid)
        return None if loaded is None else Checkpoint(loaded)

    def load(self, ref: str | int | datetime = "latest") -> Checkpoint:
        """The checkpoint a ref names: text as in `holdfast.history.refs`, a seq, or a moment.

        Plain `latest` falls back to an older checkpoint when the newest is damaged; every other ref does not.

        Raises:
            NotFound: there is no such checkpoint.
            Corrupt: it is damaged.
        """
        if ref == "latest":
            checkpoint = self.latest()
            if checkpoint is None:
                raise NotFound(f"session {self._key!r} has no checkpoint yet", code="checkpoint_not_found")
            return checkpoint
        return Checkpoint(self._engine.load(self.header(ref)))

    def at(self, ref: str | int | datetime) -> Checkpoint:
        """The checkpoint at a seq, id, or moment; see `load`."""
        return self.load(ref)

    def header(self, ref: str | int | datetime) -> Header:
        """The verified header a ref names, without its bodies."""
        return refs.resolve(self._engine, self.info, _ref(ref))

    def history(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        step: int | None = None,
        status: Status | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        newest_first: bool = True,
        limit: int | None = None,
    ) -> Iterator[Header]:
        """Headers, newest first. Bodies are not read; damaged headers are left out and logged."""
        query = HeaderQuery(
            session=self._uid,
            branch=branch,
            tag=tag,
            step=step,
            status=None if status is None else _status(status),
            newest_first=newest_first,
            limit=limit,
        )
        return self._engine.headers(query, metadata=metadata)

    def bodies(self) -> list[BodyInfo]:
        """How the contents of this session are stored: codec and size of every body."""
        return self._engine.backend.bodies(self._uid)

    def branches(self) -> list[Branch]:
        return self._engine.backend.branches(self._uid)

    def events(self) -> list[Event]:
        """What happened to this session, oldest first."""
        return self._engine.backend.events(self._uid)

    def usage(self) -> Usage:
        return self._engine.backend.usage(self._uid)

    def verify(self, *, progress: Progress | None = None) -> VerifyReport:
        """Check every byte of this session."""
        return verify(self._engine, self.info, progress=progress)

    # --- status

    def complete(self) -> SessionInfo:
        return self._engine.finish(self._uid, Status.COMPLETED)

    def fail(self, error: str | None = None) -> SessionInfo:
        return self._engine.finish(self._uid, Status.FAILED, error=error)

    def cancel(self) -> SessionInfo:
        return self._engine.finish(self._uid, Status.CANCELLED)

    def pause(self) -> SessionInfo:
        return self._engine.finish(self._uid, Status.PAUSED)

    # --- removing

    @overload
    def prune(self, *, dry_run: Literal[False] = False, **rules: Unpack[RetentionRules]) -> PruneReport: ...

    @overload
    def prune(self, *, dry_run: Literal[True], **rules: Unpack[RetentionRules]) -> PrunePlan: ...

    def prune(self, *, dry_run: bool = False, **rules: Unpack[RetentionRules]) -> PruneReport | PrunePlan:
        """Remove the checkpoints that the session's rules, or instead of all of them the given ones, do not keep.

        A dry run returns the plan, each checkpoint with the reason it stays or goes, and changes nothing.

        Raises:
            InvalidInput: a rule makes no sense.
            BackendUnavailable: code `checkpoint_retention_prune_failed`; what stays is intact, prune again.
        """
        info = self.info
        retention = retention_for(KEEPS_ALL, rules) if rules else self._retention(info)
        plan = plan_prune(self._engine, info, retention, now_us=self._engine.clock())
        return plan if dry_run else apply_prune(self._engine, plan)

    def _retention(self, info: SessionInfo) -> Retention:
        settings = self._settings
        return retention_of(configuration.load(cwd=None, environ={}) if settings is None else settings, info)

    def delete(self, *ids: str) -> None:
        """Remove checkpoints for good: their bytes are overwritten, what depends on them is re-encoded."""
        self._engine.delete(self._uid, ids)

    def clear(self) -> None:
        """Remove the whole session for good. A new one with the same key starts afresh."""
        self._engine.delete_session(self._uid)


class Checkpoint:
    """A verified checkpoint: its header, and the values that were saved."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    @property
    def header(self) -> Header:
        return self._loaded.header

    @property
    def id(self) -> str:
        return self._loaded.header.id

    @property
    def seq(self) -> int:
        return self._loaded.header.seq

    @property
    def step(self) -> int | None:
        return self._loaded.header.step

    @property
    def created_at(self) -> datetime:
        return self._loaded.header.created_at

    @property
    def fallback(self) -> Fallback | None:
        """Set when this is not the newest checkpoint, because newer ones are damaged."""
        return self._loaded.fallback

    @cached_property
    def state(self) -> Any:
        """What was saved."""
        return self._loaded.value()

    @cached_property
    def details(self) -> Any:
        """What was saved as details, None if nothing was."""
        return self._loaded.value(DETAILS) if DETAILS in self._loaded.contents else None

    def load(self, type: type[T]) -> T:
        """The state rebuilt as a dataclass, msgspec struct or pydantic model."""
        return exact.convert(self._loaded.value(), type)

    def content(self, name: str = STATE) -> bytes:
        """The exact bytes of a body."""
        return self._loaded.contents[name]

    def __repr__(self) -> str:
        return f"<Checkpoint {self.id} #{self.seq}>"


def _keeper_of(engine: Engine, settings: Settings) -> Keeper | None:
    """Let a keeper watch the engine, unless it is switched off; limits hold in either case."""
    limits = Limits(max_bytes=settings["limits.max_bytes"], min_free_bytes=settings["limits.min_free_bytes"])
    keeper, budget = None, Budget(engine, limits)
    if settings["keeper.enabled"]:
        keeper = Keeper(
            engine,
            retention_of=partial(retention_of, settings),
            policies=settings.cleanup_policies,
            limits=limits,
            keeps_history=settings["checkpoint.history.enabled"],
            interval_seconds=settings["keeper.interval_seconds"],
        )
        engine.on_saved, engine.on_finished, budget = keeper.saved, keeper.finished, keeper.budget
    if limits.is_set:
        engine.on_append = budget.admit
    return keeper


def _policy(
    stored: Mapping[str, Any] | None, retention: RetentionRules | None, cleanup: CleanupRules | None
) -> dict[str, Any] | None:
    """The policy of a session after the given parts replaced the stored ones; None when nothing is left."""
    policy = dict(stored or {})
    if retention is not None:
        retention_for(KEEPS_ALL, retention)
        own = {CLEANUP: policy[CLEANUP]} if CLEANUP in policy else {}
        policy = own | {key: _plain(value) for key, value in retention.items()}
    if cleanup is not None:
        rule_from(CLEANUP, cleanup)
        policy = {key: value for key, value in policy.items() if key != CLEANUP}
        policy |= {CLEANUP: dict(cleanup)} if cleanup else {}
    return policy or None


def _plain(value: object) -> object:
    """A checked value of a rule as JSON has it."""
    if isinstance(value, timedelta):
        return f"{-(-value // timedelta(seconds=1))}s"
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else value


def _ref(ref: str | int | datetime) -> refs.Ref:
    if isinstance(ref, datetime):
        return refs.Moment(to_us(ref))
    if isinstance(ref, int):
        return refs.Seq(ref)
    return refs.parse(ref)


def _status(status: Status | str) -> Status:
    try:
        return Status(status)
    except ValueError:
        raise InvalidInput(
            f"no status {status!r}: choose one of {', '.join(Status)}", code="invalid_status"
        ) from None


def _trigger(trigger: Trigger | TriggerKind | str) -> Trigger:
    if isinstance(trigger, Trigger):
        return trigger
    try:
        return Trigger(TriggerKind(trigger))
    except ValueError:
        raise InvalidInput(
            f"no trigger {trigger!r}: choose one of {', '.join(TriggerKind)}", code="invalid_trigger"
        ) from None


def _names(what: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInput(f"{what} takes a list of texts, not {names!r}", code="invalid_name")
    return tuple(check_name(f"each of {what}", name) for name in names)
