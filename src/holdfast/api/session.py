"""One session of a store: save, load, look back, finish, remove."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, Unpack, overload

from holdfast import config as configuration
from holdfast.api.checkpoint import DETAILS, Checkpoint
from holdfast.api.options import (
    KEEPS_ALL,
    RetentionRules,
    SaveOptions,
    names_of,
    ref_of,
    status_of,
    trigger_of,
)
from holdfast.config import Settings
from holdfast.config.rules import retention_of
from holdfast.engine import Engine, Pending, Save
from holdfast.errors import NotFound
from holdfast.history import refs
from holdfast.maintenance.prune import PrunePlan, PruneReport, apply_prune, plan_prune
from holdfast.maintenance.verify import Progress, VerifyReport, verify
from holdfast.model import STATE, Branch, Header, Status, Trigger, TriggerKind
from holdfast.model import Session as SessionInfo
from holdfast.policy.profiles import retention_for
from holdfast.policy.retention import Retention
from holdfast.storage.port import ANY_HEAD, BodyInfo, Event, HeaderQuery, Usage


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
            parents=None if parents is None else names_of("parents", parents),
            expect_head=expect_head,
            idempotency_key=idempotency_key,
            external_id=external_id,
            fence=fence,
            step=step,
            status=status_of(status),
            trigger=trigger_of(trigger),
            message=message,
            tags=names_of("tags", tags),
            metadata={} if metadata is None else metadata,
            requires=names_of("requires", requires),
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
        return refs.resolve(self._engine, self.info, ref_of(ref))

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
            status=None if status is None else status_of(status),
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
