"""One session of a store: save, load, look back, finish, remove."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, Literal, Unpack, overload

import msgspec

from stepkeep.api.checkpoint import Checkpoint, Restored, restore
from stepkeep.api.options import (
    KEEP_EVERYTHING,
    Ref,
    check_limit,
    count_usage,
    names_of,
    policy_of,
    query_of,
    ref_of,
    retention_rules,
    rule_sources,
    status_of,
    time_of,
    trigger_of,
    zone_of,
)
from stepkeep.config import Settings
from stepkeep.engine import Engine, Pending, Save
from stepkeep.errors import Conflict, Corrupt, InvalidInput, NotFound
from stepkeep.model import Header, SessionInfo, Status, Trigger, TriggerKind, is_checkpoint_id
from stepkeep.storage.port import ANY_HEAD, Event, HeaderQuery, LooksOver, Usage

if TYPE_CHECKING:
    from stepkeep.api.files import Files, Workspace
    from stepkeep.api.option_types import CleanupRules, RestoreOptions, RetentionRules, SaveOptions
    from stepkeep.api.overview import RunView, SessionOverview
    from stepkeep.api.results import (
        Deleted,
        Exported,
        Shown,
        ShownAt,
        StepOutput,
        TranscriptExported,
        ValueAt,
        ValueShown,
    )
    from stepkeep.api.rewinding import Rewind
    from stepkeep.api.session_branches import Branches
    from stepkeep.history.documents import CheckpointInfo, SessionSummary
    from stepkeep.history.finding import FoundText, Match
    from stepkeep.history.state_diff import CheckpointComparison, ValueLog
    from stepkeep.history.timeline import Timeline, TimelinePage
    from stepkeep.history.timeline.assembly import Filter
    from stepkeep.maintenance.prune import PruneReport
    from stepkeep.maintenance.status import SessionStatus
    from stepkeep.maintenance.verify import Progress, VerifyReport
    from stepkeep.recording.connected_parts import Parts
    from stepkeep.recording.recorder import Recorder
    from stepkeep.recording.recovery import RecoveryPoint
    from stepkeep.recording.resumption import HasArtifact
    from stepkeep.recording.triggers import Wait
    from stepkeep.runs.plan import Stream
    from stepkeep.workspace.file_restore import RestoredFiles

# Imported here is what a save and a load need; the other methods import what they need when they are called.

MAX_COMPLETIONS = 50
MAX_TRIES = 50
"""How often the latest state is saved again while others save."""

_AUTO = Trigger(TriggerKind.AUTO)


class Session:
    """One run of an agent or workflow in a store. A handle stays with its incarnation: after the session was
    deleted, saving raises `NotFound`, even when a new one has the same key."""

    def __init__(
        self, engine: Engine, info: SessionInfo, settings: Settings, *, workspace: Workspace = None
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._uid = info.uid
        self._key = info.key
        self._files: Files | None = None
        if workspace not in (None, False):
            self._files = self._files_in(workspace)
        self._parts: Parts | None = None

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

    @property
    def _store_to_name(self) -> str | None:
        """The store as a command for this session has to name it; None where commands find it by themselves."""
        from stepkeep.config.store_names import store_to_name

        return store_to_name(self._engine.backend.url, self._settings)

    @property
    def branches(self) -> Branches:
        """The branches of this session: list, fork, switch, merge and close them."""
        from stepkeep.api.session_branches import Branches

        return Branches(self)

    @property
    def files(self) -> Files:
        """The project files that saves of this session captured: look at them, compare and restore them."""
        if self._files is None:
            self._files = self._files_in(None)
        return self._files

    def _files_in(self, workspace: Workspace) -> Files:
        from stepkeep.api.files import Files

        return Files(self._engine, self._uid, self._settings, workspace)

    @property
    def rewind(self) -> Rewind:
        """The turns of a coding agent whose hooks save into this session, and the way back before each."""
        from stepkeep.api.rewinding import Rewind

        return Rewind(self)

    @property
    def parts(self) -> Parts:
        """The parts that are saved and restored with this handle: connect them, and save what they hold."""
        if self._parts is None:
            from stepkeep.recording.connected_parts import Parts

            self._parts = Parts(
                self._engine,
                self._uid,
                save=self._save_captured,
                significant_seconds=self._settings["recorder.significant_seconds"],
                coalesce_seconds=self._settings["recorder.coalesce_seconds"],
            )
        return self._parts

    def _save_captured(self, save: Save) -> Header:
        return self._engine.save(msgspec.structs.replace(save, files=self.files.capture(None)))

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
        save = self._save_of(state, **options)
        saved = self._engine.save(save) if wait else self._engine.save_later(save)
        if "usage" in options:
            count_usage(self._engine, self._uid, options)
        return saved

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
        usage: Mapping[str, int | float] | None = None,
        workspace: Workspace = None,
    ) -> Save:
        if usage is not None:
            from stepkeep.maintenance.spending import usage_of

            usage_of(usage)  # or what is wrong with it, before anything is saved
        return Save(
            session=self._uid,
            state=state,
            details=details,
            files=None if self._files is None and workspace is None else self.files.capture(workspace),
            branch=branch,
            parents=None if parents is None else names_of("parents", parents),
            expect_head=expect_head,
            idempotency_key=idempotency_key,
            external_id=external_id,
            fence=fence,
            step=step,
            status=status if type(status) is Status else status_of(status),
            trigger=_AUTO if trigger is TriggerKind.AUTO else trigger_of(trigger),
            message=message,
            tags=() if tags == () else names_of("tags", tags),
            metadata={} if metadata is None else metadata,
            requires=() if requires == () else names_of("requires", requires),
        )

    def save_again(
        self,
        message: str = "",
        *,
        tags: Iterable[str] = (),
        step: int | None = None,
        workspace: Workspace = None,
    ) -> Header:
        """Save the latest state once more, as a manual checkpoint. Nobody's save in between is covered up.

        It keeps step, details and metadata, and the session its status. When the latest is damaged, the newest intact
        one is saved.

        Raises:
            InvalidInput: the session has no state yet (`no_state`).
            Corrupt: there are checkpoints, and none of them verifies.
            Conflict: others save all the time.
        """
        for _ in range(MAX_TRIES):
            info = self.info
            head = self.branches[info.branch].head if info.last_seq else None
            latest = self.latest()
            if latest is None:
                raise InvalidInput(
                    f"session {self._key!r} has no state to save again: give one by --state",
                    code="no_state",
                    session=self._key,
                )
            try:
                return self.save(
                    latest.state,
                    message=message,
                    tags=tags,
                    step=latest.step if step is None else step,
                    details=latest.details,
                    metadata=latest.header.metadata,
                    status=info.status,
                    trigger=TriggerKind.MANUAL,
                    expect_head=head,
                    workspace=workspace,
                )
            except Conflict as exc:
                if exc.code != "head_moved":
                    raise
        raise Conflict(f"others save into session {self._key!r} all the time: try again", session=self._key)

    # --- loading

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint of the current branch that verifies; None when there is none at all.

        When newer ones are damaged, the result says so in `.fallback`, and the log has a warning for each.

        Raises:
            Corrupt: there are checkpoints, and none of them verifies (code `no_valid_checkpoint`).
        """
        loaded = self._engine.latest_of(self._uid)
        return None if loaded is None else Checkpoint(loaded)

    def newest(self) -> Checkpoint | None:
        """The checkpoint with the highest seq, on whichever branch; no fallback."""
        loaded = self._engine.newest(self._uid)
        return None if loaded is None else Checkpoint(loaded)

    def load(self, ref: Ref = "latest") -> Checkpoint:
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

    def at(self, ref: Ref) -> Checkpoint:
        """The checkpoint at a seq, id, or moment; see `load`."""
        return self.load(ref)

    def header(self, ref: Ref) -> Header:
        """The verified header a ref names, without its bodies."""
        from stepkeep.history import refs

        zone = zone_of(self._settings)
        wanted = ref_of(ref, now_us=self._engine.clock(), zone=zone)
        return refs.resolve(self._engine, self.info, wanted, zone=zone)

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
        from stepkeep.history import refs

        zone = zone_of(self._settings)
        ref = query_of(time=time, seq=seq, id=id, tag=tag, now_us=self._engine.clock(), zone=zone)
        header = refs.find(self._engine, self.info, ref, zone=zone)
        if header is None or (tag is not None and tag not in header.tags):
            return None
        return Checkpoint(self._engine.load(header))

    def diff(
        self, older: Ref | None = None, newer: Ref = "latest", *, limit: int | None = None
    ) -> CheckpointComparison:
        """What changed from one checkpoint to another: typed changes, counts, a summary, and the time between.

        Without `older` it is the checkpoint before `newer`. Keeps at most `limit` changes and counts all.

        Raises:
            NotFound: there is no such checkpoint, or none before.
        """
        from stepkeep.history.state_diff import compare_checkpoints

        after = self.load(newer)
        before = self.load(self._before(after.header) if older is None else older)
        return compare_checkpoints(self._engine, before._loaded, after._loaded, limit=limit)

    def _before(self, header: Header) -> str:
        from stepkeep.engine import reader

        for row in reader.line_of(self._engine.backend, self.info, header.branch):
            if row.seq < header.seq:
                return row.id
        raise NotFound(
            f"session {self._key!r} has no checkpoint before {header.seq} to compare it with",
            code="checkpoint_not_found",
            session=self._key,
        )

    def log(self, path: str, *, ref: Ref = "latest", limit: int | None = None) -> ValueLog:
        """Where one value of the state changed on the way to a checkpoint, oldest first; the last `limit` ones.

        `path` reads like `context.messages[-1]`. Checkpoints that do not verify are left out and logged. A value that
        was never there has no changes.

        Raises:
            InvalidInput: the path cannot be read (`invalid_path`).
            NotFound: there is no such checkpoint.
        """
        from stepkeep.history.paths import parse_path
        from stepkeep.history.state_diff import trace

        steps = parse_path(path)
        until = None if ref == "latest" else self.header(ref)
        return trace(self._engine, self.info, steps, until=until, limit=limit)

    def find(
        self, text: str, *, limit: int = 50, should_stop: Callable[[], bool] = lambda: False
    ) -> FoundText:
        """The first places of this session that contain a text; see `matches`."""
        from stepkeep.history.finding import found_text

        return found_text(self._key, text, self.matches(text, should_stop=should_stop), limit)

    def matches(self, text: str, *, should_stop: Callable[[], bool] = lambda: False) -> Iterator[Match]:
        """Where messages, tags, metadata and values of states contain a text, oldest first.

        A value that stays as it is counts once, where it appeared. The case of ASCII letters does not matter. Nothing
        is read that the caller does not ask for; `should_stop` is asked before each checkpoint. Those that do not
        verify are left out.

        Raises:
            InvalidInput: the text is empty (`invalid_query`).
        """
        from stepkeep.history.finding import find_text

        return find_text(self._engine, self.info, text, should_stop=should_stop)

    def show(self, ref: Ref = "latest") -> Shown:
        """A checkpoint with its state as JSON can hold it, and the triggers that were merged into it.

        `latest` falls back to an older one when the newest is damaged, as `load` does.
        """
        from stepkeep.api.results import shown

        return shown(self._engine, self.load(ref))

    def show_value(self, ref: Ref, path: str) -> ValueShown:
        """One value of the state of a checkpoint, as JSON can hold it.

        Raises:
            NotFound: the state has nothing at that path (`path_not_found`); the message says what is near.
        """
        from stepkeep.api.results import value_shown

        return value_shown(self._engine, self.load(ref), path)

    def output(self, step: str, *, ref: Ref = "latest", stream: Stream = "stdout") -> StepOutput:
        """All that is kept of what a step had given when a checkpoint was saved, byte for byte.

        Of a workflow that is what the step printed; of a plan its blobs, or else its output; of a script its output.

        Raises:
            NotFound: no such step was done by then (`step_not_found`); the message names those that were.
        """
        from stepkeep.api.results import step_output

        return step_output(self._engine, self.load(ref), self.key, step, stream)

    def show_at(self, time: str, path: str | None = None) -> ShownAt | ValueAt:
        """What the state, or one value of it, was at a time: that of the newest checkpoint at or before.

        Raises:
            InvalidInput: the time cannot be read, or never was.
            NotFound: the session had no checkpoint then, or the state nothing at that path.
        """
        from stepkeep.api.results import shown_at

        return shown_at(self, time, path)

    def refs(self, prefix: str = "") -> tuple[str, ...]:
        """Refs that name checkpoints of this session and begin so, for completing them."""
        headers = list(self.history(limit=MAX_COMPLETIONS))
        names = dict.fromkeys(["latest", "latest@before", "newest", "now"])
        names.update(dict.fromkeys(f"branch:{branch.name}" for branch in self.branches))
        names.update(dict.fromkeys(f"step-{header.step}" for header in headers if header.step is not None))
        names.update(dict.fromkeys(f"tag:{tag}" for header in headers for tag in header.tags))
        names.update(dict.fromkeys(f"seq:{header.seq}" for header in headers))
        names.update(dict.fromkeys(header.id for header in headers))
        return tuple(name for name in names if name.startswith(prefix))

    def describe(self, header: Header) -> CheckpointInfo:
        """One of its checkpoints as every surface shows it, with what it takes in the store."""
        from stepkeep.history.documents import describe

        return describe(self._engine, self._key, [header])[0]

    def summary(self, info: SessionInfo | None = None) -> SessionSummary:
        """The session as every surface shows it: as it is, or as a call left it that returned `info`.

        One that has ended may be cleaned at once, and could not be looked at any more.
        """
        return next(session_summaries(self._engine, [self.info if info is None else info]))

    def overview(self) -> SessionOverview:
        """The session at a glance: where it stands, who runs it, what was saved last, and what it takes."""
        from stepkeep.api.overview import overview_of

        return overview_of(self._engine, self.info)

    def run_view(self) -> RunView:
        """The steps of the workflow, plan or script that runs here, as the latest checkpoint has them."""
        from stepkeep.api.overview import run_view

        return run_view(self._engine, self.info, self._engine.latest_of(self._uid))

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
        check_limit(limit, "checkpoints")
        if branch is not None:
            self.branches[branch]  # `NotFound` where there is none
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
            InvalidInput: `since` is not a time, or `limit` is below 1.
        """
        from stepkeep.history.timeline.assembly import read_timeline  # only who draws pays for it

        wanted = self._timeline_filter(since, branch, tag)
        return read_timeline(self._engine, self.info, wanted=wanted, fold=fold, limit=limit)

    def timeline_pages(
        self,
        *,
        since: str | datetime | None = None,
        branch: str | None = None,
        tag: str | None = None,
        fold: bool = False,
        size: int = 400,
        lanes: int = 12,
    ) -> Sequence[TimelinePage]:
        """The same graph as it is drawn in at most so many lanes, `size` rows a page; at least one page.

        Only the pages that are looked at are made: for histories that nobody sees as a whole.
        """
        from stepkeep.history.timeline.assembly import read_pages

        wanted = self._timeline_filter(since, branch, tag)
        return read_pages(self._engine, self.info, wanted=wanted, fold=fold, size=size, lanes=lanes)

    def _timeline_filter(self, since: str | datetime | None, branch: str | None, tag: str | None) -> Filter:
        from stepkeep.history.timeline.assembly import Filter

        now_us, zone = self._engine.clock(), zone_of(self._settings)
        since_us = None if since is None else time_of(since, now_us=now_us, zone=zone)
        return Filter(since_us=since_us, branch=branch, tag=tag)

    def events(self, ref: Ref | None = None) -> list[Event]:
        """What happened to this session, oldest first; with `ref` what concerns that checkpoint, and the triggers that
        were merged into it (`trigger_merged`)."""
        events = self._engine.backend.events(self._uid)
        if ref is None:
            return events
        from stepkeep.api.results import events_about

        return events_about(self._engine, self.header(ref), events)

    def usage(self) -> Usage:
        return self._engine.backend.usage(self._uid)

    def verify(self, *, repair: bool = False, progress: Progress | None = None) -> VerifyReport:
        """Check every byte of this session.

        With `repair` what lies beside the checkpoints is first made anew from them: `latest.json`, checksums; and what
        belongs to nothing is removed. The report says what was done.
        """
        from stepkeep.maintenance.verify import verify

        return verify(self._engine, self.info, repair=repair, progress=progress)

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
        from stepkeep.recording.recorder import Recorder

        settings = self._settings
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

    def run_document(self, ref: Ref = "latest") -> dict[str, Any]:
        """The fields of the snapshot document for a checkpoint: source, status, step, context, outcomes.

        `source_details` also names the triggers that were merged into it later. What nobody gave is left out.
        """
        from stepkeep.recording.triggers import snapshot_fields

        return snapshot_fields(self._engine, self.info, self.load(ref)._loaded)

    # --- going back

    def restore(self, ref: Ref, **options: Unpack[RestoreOptions]) -> Restored:
        """Go on from an old checkpoint, on a branch that has it as head; one is forked if there is none.

        Nothing is deleted: what came after stays on the branch that is left. `restore("latest@before")` goes back
        there. Where parts are connected they get what the checkpoint holds of them, all or none, and the session moves
        only if nobody saves meanwhile. What they held and nobody saved is gone. The options are those of
        `RestoreOptions`.

        Raises:
            NotFound: there is no such checkpoint, or it lacks a part (`part_not_saved`).
            Corrupt: it is damaged; nothing changed.
            Conflict: someone saved meanwhile (`head_moved`), or the branch is taken or closed.
            PartFailed: a part failed; all parts and the session are as before, but for what the error names.
        """
        return restore(self, ref, **options)

    def undo(
        self,
        *,
        workspace: Workspace = None,
        dry_run: bool = False,
        force: bool = False,
        compare: bool = False,
    ) -> Restored | RestoredFiles:
        """Take back the last restore, switch or fork that was not taken back yet, of the session, its files, or both.

        When all are taken back, undoing once more does the last one again. A dry run is for files alone.

        Raises:
            NotFound: there was none (`nothing_to_undo`), or the checkpoint is gone.
            Conflict: files changed since (`files_changed`).
        """
        from stepkeep.workspace.file_restore import last_step

        step = last_step(self._engine, self.info)
        if step.switch is None:
            return self.files.take_back(step, workspace=workspace, dry_run=dry_run, force=force)
        if dry_run:
            raise InvalidInput("a dry run is for files, and a branch was changed", code="invalid_option")
        return restore(self, "latest", step=step, workspace=workspace, force=force, compare=compare)

    def recovery_point(
        self,
        ref: Ref = "latest",
        *,
        commit: str | None = None,
        patches: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        allowed: Iterable[str] | None = None,
        commands: Iterable[str] = (),
        workspace: Workspace = None,
    ) -> RecoveryPoint:
        """What a person does to be where a checkpoint was: as data, as text, and as a script that nothing runs.

        Without `commit` and `patches` they are those of the checkpoint's files, if it has any; `workspace` says where
        their repository is now. Of `environment` only the variables in `allowed`, a short list unless given, are taken,
        and what looks like a secret is hidden.

        Raises:
            NotFound: there is no such checkpoint.
            InvalidInput: the commit is not the id of one (`invalid_commit`).
        """
        from stepkeep.recording.recovery import ALLOWED, CodeState, ReplayCommand, captured, recovery_point

        header, notes = self.load(ref).header, tuple[str, ...]()
        code = CodeState(commit=commit, patches=tuple(patches))
        if code.commit is None and not code.patches:
            code, notes = self.files.code_at(header, workspace)
        variables = captured(environment or {}, ALLOWED if allowed is None else allowed)
        replays = [ReplayCommand(command=command) for command in commands]
        return recovery_point(
            self._key,
            header.id,
            code=code,
            environment=variables,
            commands=replays,
            notes=notes,
            store=self._store_to_name,
        )

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

    def status(self) -> SessionStatus:
        """Where the session stands, what it takes, the rules for its history, and whether `clean` would remove it."""
        from stepkeep.maintenance.status import session_status

        info, settings = self.info, self._settings
        try:
            latest = self.header("latest")
        except (NotFound, Corrupt):
            latest = None
        return session_status(
            self._engine,
            settings.policies_of,
            info,
            settings.retention_of(info),
            latest,
            sources=settings.rule_sources(info),
        )

    def export(
        self,
        ref: Ref = "latest",
        *,
        output: str | os.PathLike[str] | None = None,
        force: bool = False,
        format: str = "stepkeep",
    ) -> tuple[Exported, bytes]:
        """The readable document of a checkpoint, and its bytes.

        With `output` it is written there: whole or not at all, durable, readable only by its owner, and over an
        existing file only with `force`. `format` is `stepkeep`, or the layout (`run`, `workflow`, `phase`) whose
        document it is to be.

        Raises:
            NotFound: there is no such checkpoint.
            InvalidInput: the file exists, or is not a file.
            BackendUnavailable: it cannot be written (`export_failed`).
        """
        from pathlib import Path

        from stepkeep.api.results import export

        path = None if output is None else Path(output)
        return export(self, self.load(ref), output=path, force=force, form=format)

    def export_transcript(
        self, ref: Ref = "latest", *, output: str | os.PathLike[str] | IO[bytes], force: bool = False
    ) -> TranscriptExported:
        """Write the transcript of a coding agent as it was at a checkpoint, byte for byte: to a file, whole or not at
        all, or to a stream. For `latest` it is that of the newest checkpoint that has one.

        Raises:
            NotFound: none was kept with it (`transcript_not_kept`).
            InvalidInput: there is a file of that name (`file_exists`), and `force` is not given.
            Corrupt: it is damaged; what was written to a stream so far is not all of it.
        """
        from pathlib import Path

        from stepkeep.api.results import export_transcript
        from stepkeep.recording.coding_agents.transcripts import TRANSCRIPT

        header = self.header(ref)
        if ref == "latest" and TRANSCRIPT not in header.contents:
            header = next((each for each in self.history() if TRANSCRIPT in each.contents), header)
        place = Path(output) if isinstance(output, (str, os.PathLike)) else output
        return export_transcript(self._engine, header, place, force=force)

    def prune(self, *, dry_run: bool = False, **rules: Unpack[RetentionRules]) -> PruneReport:
        """Remove the checkpoints that the session's rules do not keep.

        Keep counts that are given replace those of the session. Its caps, unless given, hold, and what it always keeps,
        by hand, tagged or of a finished status, stays unless that is switched off here.

        A dry run changes nothing, and has a decision for each checkpoint, with the reasons it stays or goes.

        Raises:
            InvalidInput: a rule makes no sense.
            BackendUnavailable: code `checkpoint_retention_prune_failed`; what stays is intact, prune again.
        """
        from stepkeep.maintenance.prune import prune_session

        info = self.info
        retention = retention_rules(self._settings, rules)(info)
        sources = rule_sources(self._settings, rules)(info)
        return prune_session(self._engine, info, retention, sources=sources, dry_run=dry_run)

    def keep(
        self,
        *,
        forever: bool = False,
        retention: RetentionRules | None = None,
        cleanup: CleanupRules | None = None,
    ) -> SessionStatus:
        """Give the session rules of its own, before those of configuration and profile; `{}` takes them back.

        With `forever` nothing of it is pruned or cleaned, whatever else says so, until it is told otherwise.

        Raises:
            InvalidInput: a rule makes no sense; nothing is changed.
        """
        if forever:
            retention, cleanup = KEEP_EVERYTHING, {"enabled": False}
        info = self.info
        policy = policy_of(info.policy, retention, cleanup)
        if policy != info.policy:
            self._engine.describe_session(self._uid, {"policy": policy})
        return self.status()

    def delete(self, *refs: str) -> Deleted:
        """Remove checkpoints for good: their bytes are overwritten, what depends on them is re-encoded.

        A damaged checkpoint can still be named by its number, or its id or the beginning of that.
        """
        from stepkeep.api.results import Deleted
        from stepkeep.maintenance.space import spend_ballast

        ids = tuple(dict.fromkeys(map(self._id_of, refs)))
        spend_ballast(self._engine.backend.url, lambda: self._engine.delete(self._uid, ids))
        return Deleted(session=self._key, is_whole_session=False, checkpoints=ids, count=len(ids))

    def _id_of(self, ref: str) -> str:
        if is_checkpoint_id(ref):
            return ref
        try:
            return self.header(ref).id
        except Corrupt as exc:
            if exc.checkpoint is None or not (ref.isdigit() or ref.startswith(("#", "seq:", "cp_"))):
                raise
            return exc.checkpoint

    def clear(self) -> Deleted:
        """Remove the whole session for good. A new one with the same key starts afresh."""
        from stepkeep.api.results import Deleted
        from stepkeep.maintenance.space import spend_ballast

        count = self.info.stored_count
        spend_ballast(self._engine.backend.url, lambda: self._engine.delete_session(self._uid))
        return Deleted(session=self._key, is_whole_session=True, checkpoints=(), count=count)


def session_summaries(engine: Engine, sessions: Iterable[SessionInfo]) -> Iterator[SessionSummary]:
    """Sessions as every surface shows them."""
    from stepkeep.history.documents import summary_of

    # Where many are asked for, it is read once which of them somebody runs, or ran.
    held = engine.backend.leased(now=False) if isinstance(engine.backend, LooksOver) else None
    for info in sessions:
        crash = None
        if info.status is Status.IN_PROGRESS and (held is None or info.uid in held):
            from stepkeep.runs.unfinished import crash_of

            crash = crash_of(engine, info)
        yield summary_of(info, crash=crash)
