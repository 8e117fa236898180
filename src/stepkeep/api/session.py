"""One session of a store: save, load, look back, finish, remove."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from stepkeep import config as configuration
from stepkeep.api.checkpoint import DETAILS, Checkpoint, Restored
from stepkeep.api.connecting import parts_of, restore_with_parts, undo_with_parts
from stepkeep.api.files import CodeAt, Files, Workspace
from stepkeep.api.options import (
    KEEPS_ALL,
    RetentionRules,
    SaveOptions,
    names_of,
    query_of,
    ref_of,
    status_of,
    time_of,
    trigger_of,
)
from stepkeep.config import Settings
from stepkeep.config.rules import retention_of
from stepkeep.engine import Engine, Pending, Save
from stepkeep.engine.growth import Growth
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.history import branches as branching
from stepkeep.history import merging, refs, restore, times
from stepkeep.history.between import CheckpointComparison, between
from stepkeep.history.compare import compare
from stepkeep.history.merge import Side
from stepkeep.history.merging import Merged, Strategy
from stepkeep.history.paths import parse_path
from stepkeep.history.timeline import Timeline
from stepkeep.history.tracing import ValueChange, trace
from stepkeep.lifecycle.heartbeat import Wait
from stepkeep.lifecycle.merged import snapshot_fields
from stepkeep.lifecycle.recorder import Recorder
from stepkeep.lifecycle.resumption import HasArtifact
from stepkeep.maintenance.prune import PrunePlan, PruneReport, apply_prune, plan_prune
from stepkeep.maintenance.reserve import Reserve
from stepkeep.maintenance.verify import Progress, VerifyReport, verify
from stepkeep.model import STATE, Branch, BranchState, Header, Status, Trigger, TriggerKind
from stepkeep.model import Session as SessionInfo
from stepkeep.parts.automatic import AutoTrigger
from stepkeep.parts.connected import Extra, Missing, PutBack
from stepkeep.parts.environment import ALLOWED, captured
from stepkeep.parts.port import Part
from stepkeep.parts.recovery import CodeState, RecoveryPoint, ReplayCommand, recovery_point
from stepkeep.policy.profiles import retention_for
from stepkeep.policy.retention import Retention
from stepkeep.storage.port import ANY_HEAD, BodyInfo, Event, HeaderQuery, Usage

if TYPE_CHECKING:
    from stepkeep.workspace.changed import CodeChanges
    from stepkeep.workspace.compare import FileComparison
    from stepkeep.workspace.patches import CommitPatches
    from stepkeep.workspace.recorded import CapturedFiles
    from stepkeep.workspace.restore import FilesRestored


class Session:
    """One run of an agent or workflow in a store. A handle stays with its incarnation: after the session was
    deleted, saving raises `NotFound`, even when a new one has the same key."""

    def __init__(
        self,
        engine: Engine,
        info: SessionInfo,
        settings: Settings | None = None,
        *,
        workspace: Workspace = None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._uid = info.uid
        self._key = info.key
        self._growth = Growth(engine)
        self._files = Files(engine, info.uid, settings, workspace)
        self._parts = parts_of(engine, info.uid, settings, save=self._save_captured)

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
        anything is written. The options are those of `SaveOptions`. With `workspace` the project files are
        captured too, with `wait=False` in the background.

        Raises:
            InvalidInput: the state or an option cannot be saved; `.path` names the place in the state.
            Conflict: someone wrote first.
            NotFound: the session was deleted.
            BackendUnavailable: nothing was stored; `.retryable` says whether to repeat.
        """
        save, root = self._save_of(state, **options)
        return self._files.save(save, root) if wait else self._files.submit(save, root)

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
        workspace: Workspace = None,
    ) -> tuple[Save, str | None]:
        """The save, and the tree to capture with it."""
        bodies = {STATE: self._growth.body(state)}
        if details is not None:
            bodies[DETAILS] = self._engine.encode(details)
        save = Save(
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
        return save, self._files.root_to_capture(workspace)

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
        """The checkpoint a ref names: text as in `stepkeep.history.refs`, a seq, or a moment.

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
        return refs.resolve(self._engine, self.info, self._ref(ref), zone=self._zone)

    def _ref(self, ref: str | int | datetime) -> refs.Ref:
        return ref_of(ref, now_us=self._engine.clock(), zone=self._zone)

    @property
    def _zone(self) -> tzinfo:
        """Where a time that names no zone is at home."""
        return times.zone_named("UTC" if self._settings is None else self._settings["time.zone"])

    def query(
        self,
        *,
        time: str | datetime | None = None,
        seq: int | None = None,
        id: str | None = None,
        tag: str | None = None,
    ) -> Checkpoint | None:
        """The checkpoint at a time, else with that seq, else with that id: the first of them that is given counts.

        With `tag` only one that has it: by time the newest of those at or before. None when there is none.

        Raises:
            InvalidInput: neither time, seq nor id is given (`invalid_query`), or one of them makes no sense.
            Corrupt: it is damaged.
        """
        ref = query_of(time=time, seq=seq, id=id, tag=tag, now_us=self._engine.clock(), zone=self._zone)
        header = refs.find(self._engine, self.info, ref, zone=self._zone)
        if header is None or (tag is not None and tag not in header.tags):
            return None
        return Checkpoint(self._engine.load(header))

    def compare(
        self,
        older: str | int | datetime,
        newer: str | int | datetime = "latest",
        *,
        limit: int | None = None,
    ) -> CheckpointComparison:
        """What changed from one checkpoint to another: typed changes, counts, a summary, and the time between.

        Keeps at most `limit` changes and counts all.
        """
        before, after = self.load(older), self.load(newer)
        return between(before.header, after.header, compare(before.state, after.state, limit=limit))

    def diff(
        self,
        older: str | int | datetime,
        newer: str | int | datetime = "latest",
        *,
        limit: int | None = None,
    ) -> CheckpointComparison:
        """Short for `compare`."""
        return self.compare(older, newer, limit=limit)

    def log(
        self, path: str, *, ref: str | int | datetime = "latest", limit: int | None = None
    ) -> Iterator[ValueChange]:
        """Where one value of the state changed on the way to a checkpoint, oldest first; the last `limit` ones.

        `path` reads like `context.messages[-1]`. Checkpoints that do not verify are left out and logged.

        Raises:
            InvalidInput: the path is none (`invalid_path`).
            NotFound: there is no such checkpoint.
        """
        steps = parse_path(path)
        until = None if ref == "latest" else self.header(ref)
        return trace(self._engine, self.info, steps, until=until, limit=limit)

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
        """Headers, newest first. Bodies are not read; damaged headers are left out and logged.

        Raises:
            NotFound: there is no such branch.
            InvalidInput: `limit` is negative.
        """
        if limit is not None and limit < 0:
            raise InvalidInput(f"limit is {limit}; it counts checkpoints: 0 or more", code="invalid_option")
        if branch is not None:
            branching.find(self._engine, self._uid, branch)
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

    def timeline(
        self,
        *,
        since: str | datetime | None = None,
        branch: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
        fold: bool = False,
    ) -> Timeline:
        """All branches of this session as one graph, rows newest first. Headers are read, states are not.

        What does not match a filter is folded into rows that say how much it is, so that the graph stays
        connected. `fold` does the same with long runs of plain automatic checkpoints; `limit` is in rows.

        Raises:
            NotFound: there is no such branch, or no checkpoint with that tag; the message says what there is.
            InvalidInput: `since` is no time, or `limit` below 1.
        """
        from stepkeep.history.timeline.reading import Filter, read_timeline  # only who draws pays for it

        since_us = None if since is None else time_of(since, now_us=self._engine.clock(), zone=self._zone)
        wanted = Filter(since_us=since_us, branch=branch, tag=tag)
        return read_timeline(self._engine, self.info, wanted=wanted, fold=fold, limit=limit)

    def bodies(self, *ids: str) -> list[BodyInfo]:
        """How contents are stored: codec and size of every body of these checkpoints, of all unless given."""
        return self._engine.backend.bodies(self._uid, ids or None)

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

    # --- the life of a run

    def recorder(
        self,
        *,
        state: Callable[[], object] | None = None,
        plan_path: str | None = None,
        heartbeat_seconds: float | None = None,
        coalesce_seconds: float | None = None,
        fence: int | None = None,
        has_artifact: HasArtifact = os.path.exists,
        wait: Wait | None = None,
    ) -> Recorder:
        """A recorder for an agent loop: it takes a snapshot at every boundary that matters, and a heartbeat.

        `state` returns what to save; without it, `update` sets that, and until then the latest state is saved again.
        `has_artifact` tells whether what a step needs is there. The timers are those of the settings unless given;
        `wait` replaces waiting, for tests.
        """
        settings = configuration.load(cwd=None, environ={}) if self._settings is None else self._settings
        every, window = settings["recorder.heartbeat_seconds"], settings["recorder.coalesce_seconds"]
        return Recorder(
            self._engine,
            self.info,
            state=state,
            plan_path=plan_path,
            heartbeat_seconds=every if heartbeat_seconds is None else heartbeat_seconds,
            coalesce_seconds=window if coalesce_seconds is None else coalesce_seconds,
            fence=fence,
            has_artifact=has_artifact,
            wait=wait,
        )

    def run_document(self, ref: str | int | datetime = "latest") -> dict[str, Any]:
        """The fields of the snapshot document for a checkpoint: source, status, step, context, outcomes.

        `source_details` also names the triggers that were merged into it later. What nobody gave is left out.
        """
        loaded = self.load(ref)._loaded
        return snapshot_fields(self._engine, self.info, loaded)

    # --- branches

    def fork(
        self,
        ref: str | int | datetime = "latest",
        name: str | None = None,
        *,
        switch: bool = True,
        metadata: Mapping[str, Any] | None = None,
    ) -> Branch:
        """Begin a branch at a checkpoint, and unless `switch` is False go on there. Nothing is copied.

        Without a name it gets one such as `from-12`, after the number of the checkpoint.

        Raises:
            NotFound: there is no such checkpoint.
            Conflict: a branch has that name (`branch_exists`).
        """
        return branching.fork(self._engine, self.header(ref), name, switch=switch, metadata=metadata)

    def switch(self, name: str) -> Branch:
        """Go on with another branch: `latest` is its head, and saves go there, whoever saves.

        Raises:
            NotFound: there is none of that name (`branch_not_found`).
            Conflict: it was merged, abandoned or archived (`branch_closed`), or nothing is left of it (`branch_empty`).
        """
        return branching.switch(self._engine, self._uid, name)

    def merge(
        self, name: str, *, strategy: Strategy = "union", message: str = "", on_conflict: Side | None = None
    ) -> Merged:
        """Merge a branch into the current one, as a checkpoint with both heads as parents, and close it.

        `union` merges the two states, compared with the one both began from; `ours` and `theirs` take one of
        them. What both sides changed differently is a conflict, unless `on_conflict` names the side to take.

        Raises:
            MergeConflict: with all `clashes`; nothing is written.
            Conflict: someone saved meanwhile (`head_moved`), or the branch is current or closed.
            NotFound: there is no such branch, or nothing on it.
            Corrupt: a state that is needed is damaged.
        """
        return merging.merge(
            self._engine, self.info, name, strategy=strategy, message=message, on_conflict=on_conflict
        )

    def abandon(self, name: str) -> Branch:
        """Close a branch that led nowhere. Its checkpoints stay until the session's rules let them go."""
        return branching.close(self._engine, self._uid, name, BranchState.ABANDONED)

    def archive(self, name: str) -> Branch:
        """Close a branch that is done. Its checkpoints stay until the session's rules let them go."""
        return branching.close(self._engine, self._uid, name, BranchState.ARCHIVED)

    def reopen(self, name: str) -> Branch:
        """Open a branch again that was merged, abandoned or archived."""
        return branching.reopen(self._engine, self._uid, name)

    def restore(
        self,
        ref: str | int | datetime,
        *,
        branch: str | None = None,
        expect_head: str | None = ANY_HEAD,
        missing: Missing = "error",
        extra: Extra = "ignore",
    ) -> Restored:
        """Go on from an old checkpoint, on a branch that has it as head; one is forked if there is none.

        Nothing is deleted: what came after stays on the branch that is left. `restore("latest@before")` goes back
        there. `branch` names the new branch. `expect_head` is the id that `latest` must still have.

        Where parts are connected they get what the checkpoint holds of them, all or none, and the session moves only
        if nobody saves meanwhile. What they held and nobody saved is gone. A connected part that the checkpoint
        lacks is an error, or with `missing="keep"` stays as it is; what the checkpoint has and nobody connected is
        ignored, or with `extra="error"` an error. The result names both.

        Raises:
            NotFound: there is no such checkpoint, or it lacks a part (`part_not_saved`).
            Corrupt: it is damaged; nothing changed.
            Conflict: someone saved meanwhile (`head_moved`), or the branch is taken or closed.
            PartFailed: a part failed; all parts and the session are as before, but for what the error names.
        """
        parts = PutBack()
        if ref == restore.BEFORE and branch is None:
            if self._parts.names:
                done, parts = undo_with_parts(
                    self._engine,
                    self._parts,
                    self.info,
                    expect_head=expect_head,
                    missing=missing,
                    extra=extra,
                )
            else:
                done = restore.undo(self._engine, self.info, expect_head=expect_head)
        elif self._parts.names:
            done, parts = restore_with_parts(
                self._engine,
                self._parts,
                self.header(ref),
                branch=branch,
                expect_head=expect_head,
                missing=missing,
                extra=extra,
            )
        else:
            done = restore.restore(self._engine, self.header(ref), branch=branch, expect_head=expect_head)
        return Restored(
            checkpoint=Checkpoint(done.loaded),
            branch=done.branch.name,
            is_new_branch=done.is_new_branch,
            previous_branch=done.left.name,
            previous_head=done.left.head,
            undo=done.undo,
            parts=parts.restored,
            missing=parts.missing,
            extra=parts.extra,
        )

    # --- project files

    def files(self, ref: str | int | datetime = "latest") -> CapturedFiles:
        """The files that a checkpoint holds; for `latest` those of the newest one that holds any.

        Here and wherever files are asked for, safety checkpoints do not count in `latest`, `latest~2` and `step-5`.

        Raises:
            NotFound: it was saved without (`files_not_captured`).
        """
        return self._files.captured(self._header_with_files(ref))

    def diff_files(
        self,
        older: str | int | datetime = "latest",
        newer: str | int | datetime | None = None,
        *,
        paths: Iterable[str] = (),
        workspace: Workspace = None,
    ) -> FileComparison:
        """Which files differ between two checkpoints; without `newer`, between one and the files as they are now.

        Raises:
            NotFound: one of them has no files. InvalidInput: it is not clear where the files are now.
        """
        before = self._header_with_files(older)
        after = None if newer is None else self._header_with_files(newer)
        return self._files.compare(before, after, paths=paths, workspace=workspace)

    def restore_files(
        self,
        ref: str | int | datetime,
        paths: Iterable[str] = (),
        *,
        workspace: Workspace = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> FilesRestored:
        """Make the project files, or these paths, what they were at a checkpoint; the state stays as it is.

        A safety checkpoint is taken first. Every file is replaced whole, and files that are not captured are never
        touched. A dry run only tells what would change.

        Raises:
            NotFound: the checkpoint has no files, or not these.
            Conflict: files changed since the newest capture (`files_changed`): use `force`, or save first.
            BackendUnavailable: the files cannot be prepared (`files_not_restored`), and nothing changed; or they are
                in place, but a loss of power may take some back (`files_not_durable`).
        """
        header = self._header_with_files(ref)
        return self._files.restore(header, paths=paths, workspace=workspace, dry_run=dry_run, force=force)

    def undo_files(
        self, *, workspace: Workspace = None, dry_run: bool = False, force: bool = False
    ) -> FilesRestored:
        """Take the last restore of files back, in the tree that was restored; undoing twice is doing it again.

        Raises:
            NotFound: there was none (`nothing_to_undo`).
            InvalidInput: it is not clear that this tree is meant (`workspace_not_named`).
            Conflict: files changed since (`files_changed`).
        """
        return self._files.undo(self.info, workspace=workspace, dry_run=dry_run, force=force)

    def code_changed(
        self,
        notify: Callable[[tuple[str, ...], str | None], object] | None = None,
        *,
        workspace: Workspace = None,
    ) -> CodeChanges | None:
        """What changed in the project since its newest capture, None if nothing; `notify` gets paths and commit."""
        return self._files.changed(workspace, notify)

    def code_patches(
        self, ref: str | int | datetime = "latest", *, workspace: Workspace = None
    ) -> CommitPatches:
        """The commit of a checkpoint's files, and the patches for `git apply` that lead from there to them.

        Raises:
            NotFound: the checkpoint has no files, or the repository not that commit (`commit_not_found`).
        """
        return self._files.patches(self._header_with_files(ref), workspace)

    def _header_with_files(self, ref: str | int | datetime) -> Header:
        return self._files.header(self.info, self._ref(ref), self._zone)

    # --- connected parts

    def connect(self, name: str, part: Part) -> None:
        """Let a part be saved and restored with this handle: anything with `snapshot()` and `restore(data)`.

        One that also has `validate(data)` is asked before anything is restored.

        Raises:
            InvalidInput: it is no part (`not_a_part`), or it or its name is connected already (`part_connected`).
        """
        self._parts.connect(name, part)

    def _save_captured(self, save: Save) -> Header:
        return self._files.save(save, self._files.root_to_capture(None))

    def disconnect(self, name: str) -> None:
        """Let a connected part go; `NotFound` (`part_not_connected`) if there is none of that name."""
        self._parts.disconnect(name)

    def checkpoint(
        self, message: str = "", tags: Iterable[str] = (), *, expect_head: str | None = ANY_HEAD
    ) -> Header:
        """Save what all connected parts hold, as a manual checkpoint whose state has each under its name.

        Raises:
            InvalidInput: no part is connected (`no_parts`), or one gave something that cannot be saved; `.path`
                begins with its name.
            PartFailed: a part failed (`part_snapshot_failed`). Nothing was saved.
            Conflict: someone wrote first.
        """
        return self._parts.checkpoint(message, tags, expect_head=expect_head)

    def auto_checkpoint(self, trigger: AutoTrigger | str, *, tags: Iterable[str] = ()) -> Header | None:
        """Save what all connected parts hold because of an event, with message `Auto: …` and its tags.

        `significant_time_passed` is held back, and None returned, until `recorder.significant_seconds` (300) after
        the last checkpoint, whoever saved it; the warning of a compaction never is. The same trigger within 3 s that
        finds nothing changed is noted on the checkpoint before, which is returned. Otherwise as `checkpoint`.
        """
        return self._parts.auto_checkpoint(trigger, tags=tags)

    def recovery_point(
        self,
        ref: str | int | datetime = "latest",
        *,
        commit: str | None = None,
        patches: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        allowed: Iterable[str] = ALLOWED,
        commands: Iterable[str] = (),
        workspace: Workspace = None,
    ) -> RecoveryPoint:
        """What a person does to be where a checkpoint was: as data, as text, and as a script that nothing runs.

        Without `commit` and `patches` they are those of the checkpoint's files, if it has any; `workspace` says where
        their repository is now. Of `environment` only the variables in `allowed` are taken, and what looks like a
        secret is hidden.

        Raises:
            NotFound: there is no such checkpoint.
            InvalidInput: the commit is none (`invalid_commit`).
        """
        header, given = self.load(ref).header, tuple(patches)
        is_given = commit is not None or bool(given)
        files = CodeAt(commit, given) if is_given else self._files.code_at(header, workspace)
        code = CodeState(
            commit=files.commit, patches=files.patches, env_vars=captured(environment or {}, allowed)
        )
        replays = [ReplayCommand(command=command) for command in commands]
        return recovery_point(self._key, header.id, code=code, commands=replays, notes=files.notes)

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
        Reserve(self._engine.backend.url).spend(lambda: self._engine.delete(self._uid, ids))

    def clear(self) -> None:
        """Remove the whole session for good. A new one with the same key starts afresh."""
        Reserve(self._engine.backend.url).spend(lambda: self._engine.delete_session(self._uid))
