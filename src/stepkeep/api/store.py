"""An open store: its sessions, and the care for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Unpack

import msgspec

from stepkeep import config as configuration
from stepkeep.api.checkpoint import Checkpoint
from stepkeep.api.options import (
    check_limit,
    compress_hours,
    count_usage,
    policy_of,
    retention_rules,
    rule_sources,
    status_of,
)
from stepkeep.api.session import Session, session_summaries
from stepkeep.api.upkeep import Upkeep
from stepkeep.codec import exact
from stepkeep.codec.compression import ZSTD, ZSTD_COMPRESSION, Compression, chosen_compression
from stepkeep.config import Settings
from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.logs import Log
from stepkeep.model import Header, SessionInfo, Status, is_checkpoint_id, utc_now_us
from stepkeep.storage.port import Backend, HeaderQuery, SessionQuery, Usage

if TYPE_CHECKING:
    from stepkeep.api.doctor import Diagnosis
    from stepkeep.api.files import Workspace
    from stepkeep.api.import_files import FilesImport
    from stepkeep.api.investigating import Investigation
    from stepkeep.api.keys import Keys
    from stepkeep.api.option_types import (
        BackupRules,
        CleanupRules,
        RetentionRules,
        SaveOptions,
        TimelineOptions,
    )
    from stepkeep.api.overview import SessionPage
    from stepkeep.history.documents import CheckpointInfo, SessionSummary
    from stepkeep.history.state_diff import CheckpointComparison
    from stepkeep.history.timeline import Timelines
    from stepkeep.maintenance.backup import BackupReport
    from stepkeep.maintenance.clean import CleanReport
    from stepkeep.maintenance.copying import CopyReport
    from stepkeep.maintenance.last_backup import BackupNote
    from stepkeep.maintenance.metrics import Metrics, Stats
    from stepkeep.maintenance.prune import Pruned
    from stepkeep.maintenance.status import StoreStatus
    from stepkeep.maintenance.verify import Progress, VerifyReport
    from stepkeep.recording.phase_checkpoints import Phases
    from stepkeep.runs.agents import AgentStore
    from stepkeep.runs.approvals import Answered
    from stepkeep.runs.plan import ExecutionResult, PlanStep
    from stepkeep.runs.run_options import ExecuteOptions, Handler
    from stepkeep.runs.scripts import Run
    from stepkeep.runs.unfinished import Resumable
    from stepkeep.runs.workflows import Workflows
    from stepkeep.storage.port import Key


log = Log("stepkeep")

_MAX_NAMED: Final = 5
"""How many keys a message lists."""


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
        compression: str | Compression | None = None,
        clock: Callable[[], int] = utc_now_us,
    ) -> None:
        self._settings = configuration.load(cwd=None, environ={}) if settings is None else settings
        choice = compression or self._settings["checkpoint.compression"]
        self._engine = Engine(
            backend,
            keyframe_every=keyframe_every,
            max_state_bytes=max_state_bytes,
            compression=ZSTD_COMPRESSION if choice == ZSTD else chosen_compression(choice),
            compresses=self._settings.compresses,
            policy_of_new=self._settings.policy_of_new,
            clock=clock,
        )
        self._upkeep = Upkeep(self._engine, settings, clock=clock)
        self._has_investigations = False

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
        workspace: Workspace = None,
    ) -> Session:
        """The session with that key, created if there is none. Fields that are given are stored; others stay.

        A new one gets profile and project of the settings unless they are given. `retention` and `cleanup` are
        its own rules and come before those of settings and profile; `{}` takes them back. With `workspace`, a
        directory, every save by this handle captures the project files there.
        """
        given = _given(profile=profile, project=project, workflow=workflow, is_test=test, metadata=metadata)
        info = self._engine.session_with(key)
        if info is None:
            policy = policy_of(self._settings.policy_of_new, retention, cleanup)
            info = self._engine.create_session(key, **self._for_new_ones() | {"policy": policy} | given)
        if retention is not None or cleanup is not None:
            given["policy"] = policy_of(info.policy, retention, cleanup)
        return Session(self._engine, self._changed(info, given), self._settings, workspace=workspace)

    def save(
        self,
        key: str,
        state: object,
        *,
        profile: str | None = None,
        project: str | None = None,
        workflow: str | None = None,
        test: bool | None = None,
        **options: Unpack[SaveOptions],
    ) -> Header:
        """Save a state as the next checkpoint of a session, which is created if need be.

        Input that is refused leaves nothing behind, not even an empty session. `expect_head` may also be the beginning
        of an id. Otherwise as `Session.save`.
        """
        known = self._engine.session_with(key)
        if (head := options.get("expect_head")) is not None:
            # A head can be expected only of a session that exists. A full id stays as it is, so that one which is not
            # there is a conflict.
            session = self.get(key)
            options["expect_head"] = head if is_checkpoint_id(head) else session.header(head).id
        if known is not None and {profile, project, workflow, test} == {None}:
            return Session(self._engine, known, self._settings).save(state, **options)
        given = _given(profile=profile, project=project, workflow=workflow, is_test=test)
        # Everything that can be wrong is looked at before anything is written; the state is encoded once.
        draft = Session(
            self._engine, known or SessionInfo(uid="", key=key, created_us=0, updated_us=0), self._settings
        )
        workspace = options.pop("workspace", None)
        draft.files.root_to_capture(workspace)
        save = self._engine.checked(draft._save_of(state, **options))
        if known is None:
            info = self._engine.create_session(key, **self._for_new_ones() | given)
        else:
            info = self._changed(known, given)
        files = Session(self._engine, info, self._settings).files.capture(workspace)
        saved = self._engine.save(msgspec.structs.replace(save, session=info.uid, files=files))
        count_usage(self._engine, info.uid, options)
        return saved

    def _for_new_ones(self) -> dict[str, Any]:
        """What the settings say of new sessions; where they name no profile, the layout of a store of files does."""
        profile = self._settings["profile"]
        if "profile" not in self._settings.given:
            profile = self._engine.backend.capabilities.profile or profile
        return _given(profile=profile, project=self._settings["project"])

    def _changed(self, info: SessionInfo, given: dict[str, Any]) -> SessionInfo:
        """The session with these fields, which are stored where they are others."""
        changed = {name: value for name, value in given.items() if getattr(info, name) != value}
        return self._engine.describe_session(info.uid, changed) if changed else info

    def run(
        self,
        key: str,
        *,
        resume: bool = True,
        force: bool = False,
        profile: str | None = None,
        project: str | None = None,
    ) -> Run:
        """A resumable script: `with store.run("nightly") as run: pages = run.step("fetch", fetch, url)`.

        Steps that finished, in whichever process, return their stored output without being called. One process
        runs a script at a time. With `resume=False` all steps are called again, in a new run of the same session.
        `force` lets a finished step that is called with other arguments run again, instead of refusing it.
        """

        def find() -> SessionInfo:
            return self.session(key, profile=profile, project=project).info

        from stepkeep.runs.scripts import Run

        return Run(self._engine, find, resume=resume, force=force)

    def execute(
        self,
        key: str,
        plan: Iterable[PlanStep | Mapping[str, Any]] | None,
        handler: Handler | Mapping[str, Handler] | str | None = None,
        **options: Unpack[ExecuteOptions],
    ) -> ExecutionResult:
        """Work through a plan in a session: `handler` does each step, and every completed step is saved.

        A step that fails is part of the result; with `resume=True` the same call goes on where the work stopped:
        completed steps are never done again, one that was interrupted or failed is. Without a plan that is the one
        of the checkpoint. The handler gets a `StepContext` and returns what is to be saved, or an `Outcome`; plain
        functions are called on threads, and coroutine functions awaited on an event loop. There may be one for each
        action, in a dict, and `"module:function"` is imported. The options are those of `ExecuteOptions`.

        Raises:
            InvalidInput: the plan (`invalid_plan`) or an option makes no sense.
            NotFound: (`nothing_to_resume`) there is no checkpoint to resume from.
            Conflict: the session has unfinished work, and neither `resume` nor `restart` is given
                (`unfinished_work`); someone else runs it (`lease_held`) or took it over (`lease_lost`); or the plan
                is not the one that was saved (`plan_changed`).
            BackendUnavailable: a save failed; the run stopped, and no step is marked because of it.
            Interrupted: SIGINT or SIGTERM came; the work is saved as `paused`.
        """
        return self._execute(key, plan, handler, **options)

    def _execute(self, key: str, plan: Any, handler: Any, **options: Any) -> ExecutionResult:
        from stepkeep.runs.runner import (
            execute,  # it brings asyncio, which a program that only saves can do without
        )

        return execute(self._engine, self._settings, self._open_session, key, plan, handler, **options)

    def approve(self, key: str, answer: object = None, *, step: str | None = None) -> Answered:
        """Say yes to what a step of a session asks, with an answer for it where it wants one. Resuming goes on.

        `step` names the step where several ask. The answer is durable when this returns.

        Raises:
            NotFound: there is no such session, or it asks nothing (`nothing_to_approve`).
            InvalidInput: several steps ask (`ambiguous_question`), or the answer cannot be saved.
            Conflict: the time for an answer is over (`question_expired`), or someone runs the session (`lease_held`).
        """
        return self._answer(key, is_approved=True, value=answer, step=step)

    def refuse(self, key: str, reason: object = None, *, step: str | None = None) -> Answered:
        """Say no, as `approve` says yes. Resumed, the step fails, or is skipped if it was to be done again."""
        return self._answer(key, is_approved=False, value=reason, step=step)

    def _answer(self, key: str, **answer: Any) -> Answered:
        from stepkeep.runs import approvals

        return approvals.answer(self._engine, self._engine.find_session(key), **answer)

    def _open_session(self, key: str, **fields: Any) -> SessionInfo:
        return self.session(key, **fields).info

    def investigation(self, session: str | Session) -> Investigation:
        """The debugging session of that key, taken up where it stands, or begun with the profile `debug`.

        What it has not saved when the store is closed, or the program ends, is saved then.

        Raises:
            InvalidInput: the session holds something else (`not_an_investigation`).
        """
        from stepkeep.api.investigating import Investigation  # only who investigates pays for it

        self._has_investigations = True
        return Investigation(self, session)

    @property
    def workflows(self) -> Workflows:
        """Workflow files: check, run, queue and resume them, work on a queue, and list what can be resumed."""
        from stepkeep.runs.workflows import Workflows  # only who runs workflows pays for them

        return Workflows(
            self._engine,
            self._settings,
            open_session=self._open_session,
            find_header=lambda key, ref: self.get(key).header(ref),
        )

    @property
    def agents(self) -> AgentStore:
        """Checkpoints of agents by session and project, with typed states."""
        from stepkeep.runs.agents import AgentStore  # opening a store to save needs none of it

        return AgentStore(self._engine, self._settings)

    @property
    def phases(self) -> Phases:
        """Checkpoints at the phases of a task, and what is not finished; with `seed.json` in the `phase` layout."""
        from stepkeep.recording.phase_checkpoints import Phases

        return Phases(self._engine, policies=self._settings.policies_of)

    def get(self, key: str, *, prefix: bool = False) -> Session:
        """The existing session with that key; with `prefix` the only one whose key begins so will do.

        Raises:
            NotFound: there is none. InvalidInput: several keys begin so (`ambiguous_session`).
        """
        info = self._engine.session_with(key) if prefix else self._engine.find_session(key)
        return Session(self._engine, info or self._beginning(key), self._settings)

    def _beginning(self, text: str) -> SessionInfo:
        found = list(self.sessions(prefix=text, limit=_MAX_NAMED + 1))
        if not found:
            return self._engine.find_session(text)  # and say that there is none
        if len(found) > 1:
            more = " and more" if len(found) > _MAX_NAMED else ""
            named = ", ".join(repr(each.key) for each in found[:_MAX_NAMED])
            raise InvalidInput(
                f"several sessions begin with {text!r}: {named}{more}", code="ambiguous_session"
            )
        return found[0]

    def sessions(
        self,
        *,
        project: str | None = None,
        workflow: str | None = None,
        status: Status | str | None = None,
        prefix: str | None = None,
        limit: int | None = None,
    ) -> Iterator[SessionInfo]:
        """Sessions, most recently used first; at most `limit` of them."""
        check_limit(limit, "sessions")
        statuses = None if status is None else (status_of(status),)
        query = SessionQuery(
            project=project, workflow=workflow, statuses=statuses, key_prefix=prefix, limit=limit
        )
        return self._engine.backend.sessions(query)

    def summaries(
        self, *, project: str | None = None, status: Status | str | None = None, limit: int | None = None
    ) -> tuple[SessionSummary, ...]:
        """Sessions as every surface shows them, most recently used first."""
        found = self.sessions(project=project, status=status, limit=limit)
        return tuple(session_summaries(self._engine, found))

    def unfinished(self) -> tuple[Resumable, ...]:
        """Workflows, plans and scripts that did not come to their end: where, why, and what goes on with them."""
        from stepkeep.runs.unfinished import unfinished_runs

        return unfinished_runs(self._engine)

    def overview(
        self,
        *,
        text: str = "",
        project: str | None = None,
        status: Status | str | None = None,
        condition: str | None = None,
        runs_only: bool = False,
        limit: int = 50,
        after: str | None = None,
    ) -> SessionPage:
        """Sessions at a glance, most recently used first, `limit` of them; `after` is the `next` of the page before.

        `text` is looked for in keys, projects, workflows and metadata, and in the messages and tags of the newest
        20,000 checkpoints. Of the 2,000 sessions used last `condition` takes those that are in it, such as `running` or
        `crashed`, and `runs_only` those in which steps are worked through.
        """
        from stepkeep.api.overview import session_page

        return session_page(
            self._engine,
            text=text,
            project=project,
            statuses=None if status is None else (status_of(status),),
            condition=condition,
            runs_only=runs_only,
            limit=limit,
            after=after,
            max_bytes=self._settings.for_store["limits.max_bytes"],
            budget_bytes=self._settings.for_store["limits.budget_bytes"],
        )

    def checkpoint(self, id: str) -> Checkpoint:
        """The checkpoint with that id, or the only one whose id begins so, of whichever session.

        Raises:
            NotFound: there is no such checkpoint. InvalidInput: several ids begin so (`ambiguous_ref`).
        """
        from stepkeep.history.refs import header_of_id

        return Checkpoint(self._engine.load(header_of_id(self._engine, id)))

    def checkpoints(
        self,
        *,
        session: str | None = None,
        tag: str | None = None,
        status: Status | str | None = None,
        project: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Header]:
        """Headers of one session, or of all, newest first and on whichever branch; at most `limit` of them."""
        check_limit(limit, "checkpoints")
        query = HeaderQuery(
            session=None if session is None else self.get(session).uid,
            project=project,
            tag=tag,
            status=None if status is None else status_of(status),
            limit=limit,
        )
        return self._engine.headers(query)

    def describe(self, headers: Iterable[Header]) -> tuple[CheckpointInfo, ...]:
        """Checkpoints of any sessions as every surface shows them, with what they take in the store."""
        from stepkeep.history.documents import describe_across

        return describe_across(self._engine, list(headers))

    def diff(self, older: str, newer: str, *, limit: int | None = None) -> CheckpointComparison:
        """What changed between two checkpoints of whichever sessions, named by their ids or the beginnings of them.

        Keeps at most `limit` changes and counts all.

        Raises:
            NotFound: there is no such checkpoint. InvalidInput: several ids begin so (`ambiguous_ref`).
        """
        from stepkeep.history.state_diff import compare_checkpoints

        before, after = self.checkpoint(older), self.checkpoint(newer)
        return compare_checkpoints(self._engine, before._loaded, after._loaded, limit=limit)

    def timelines(self, **options: Unpack[TimelineOptions]) -> Timelines:
        """The timeline of every session that has something to show; see `Session.timeline`.

        A session that cannot be read is among the errors of the result.

        Raises:
            NotFound: no session has such a branch, or a checkpoint with that tag.
        """
        from stepkeep.history.timeline.assembly import read_timelines

        found = read_timelines(
            list(self.sessions()),
            lambda info: Session(self._engine, info, self._settings).timeline(**options),
        )
        branch, tag = options.get("branch"), options.get("tag")
        if not found.timelines and not found.errors and (branch or tag):
            wanted = [f"branch {branch!r}"] if branch else []
            wanted += [f"a checkpoint with tag {tag!r}"] if tag else []
            code = "branch_not_found" if branch else "checkpoint_not_found"
            raise NotFound(f"no session has {' and '.join(wanted)}", code=code, branch=branch)
        if options.get("since") is None:
            return found
        shown = tuple(timeline for timeline in found.timelines if timeline.entries)
        return msgspec.structs.replace(found, timelines=shown)

    def verify(self, *, repair: bool = False, progress: Progress | None = None) -> VerifyReport:
        """Check every byte of every session; `progress(1)` is called after each checkpoint.

        With `repair` what lies beside the checkpoints is first made anew from them: `latest.json`, checksums; and what
        belongs to nothing is removed. The report says what was done.
        """
        from stepkeep.maintenance.verify import verify

        return verify(self._engine, repair=repair, progress=progress)

    def usage(self) -> Usage:
        return self._engine.backend.usage()

    def metrics(self) -> Metrics:
        """What was counted in this store by all processes: saves, sizes, latencies, failures, resumes."""
        from stepkeep.maintenance.metrics import metrics_of, totals_of

        return metrics_of(totals_of(self._upkeep.meter.counts()))

    def prune(
        self,
        session: str | None = None,
        *,
        dry_run: bool = False,
        compress_after_hours: int | None = None,
        **rules: Unpack[RetentionRules],
    ) -> Pruned:
        """Remove from every session, or from one, what its rules do not keep, and give the space back.

        Rules that are given replace all rules of the sessions. What stays and is old enough is compressed where the
        store can; how old is a setting, unless it is given. A dry run changes nothing, and has a decision with its
        reasons for every checkpoint. A session that fails does not stop the others: `errors` names it. The error of
        the only session is raised.

        Raises:
            InvalidInput: a rule makes no sense.
            NotFound: there is no such session.
        """
        from stepkeep.maintenance.prune import prune_store

        return prune_store(
            self._engine,
            retention_rules(self._settings, rules),
            sources_of=rule_sources(self._settings, rules),
            only=None if session is None else self._engine.find_session(session),
            compress_after_hours=compress_hours(self._settings, compress_after_hours, self._engine.backend),
            dry_run=dry_run,
        )

    def clean(self, *, dry_run: bool = False) -> CleanReport:
        """Remove the sessions whose time has come, and give the space back. Active and leased ones stay.

        A dry run changes nothing, and says of every session what would become of it and why. A session that fails
        does not stop the others: `errors` names it.
        """
        from stepkeep.maintenance.clean import clean_store

        settings = self._settings
        return clean_store(
            self._engine, settings.policies_of, workflows=settings.workflows(), dry_run=dry_run
        )

    def status(self, *, limit: int | None = 10) -> StoreStatus:
        """What the store holds and takes, the `limit` sessions that take most, and what `clean` would remove."""
        from stepkeep.maintenance.status import store_status

        settings = self._settings.for_store
        return store_status(
            self._engine,
            self._settings.policies_of,
            limit=limit,
            max_bytes=settings["limits.max_bytes"],
            budget_bytes=settings["limits.budget_bytes"],
            last_backup=self._backup_note.read(),
        )

    def doctor(
        self, *, full: bool = False, trial: bool = True, progress: Progress | None = None
    ) -> Diagnosis:
        """Look over the store and what it runs on; what to do about each thing that is not in order.

        The newest checkpoint of the sessions used last is verified; with `full` every byte is. A small save is tried,
        read back and removed, unless `trial` is false. For a store that cannot be opened there is
        `stepkeep.api.diagnose`.
        """
        from stepkeep.api.doctor import diagnose

        return diagnose(self.url, full=full, trial=trial, progress=progress)

    def stats(self, *, hours: int = 24) -> Stats:
        """What all processes counted: totals, latencies, and the last hours one by one."""
        from stepkeep.maintenance.metrics import store_stats

        return store_stats(
            self._engine,
            self._upkeep.meter.counts(),
            hours=hours,
            is_counted=self._settings["metrics.enabled"],
            max_bytes=self._settings.for_store["limits.max_bytes"],
            last_backup=self._backup_note.read(),
        )

    def backup(
        self,
        destination: str | PathLike[str],
        *,
        recipients: Sequence[str] = (),
        force: bool = False,
        progress: Callable[[float], None] | None = None,
        **rules: Unpack[BackupRules],
    ) -> BackupReport:
        """Write everything that was saved before this call to a file, verified and durable, while the store is in use.

        A directory gets a file named after the time, and so does `s3://BUCKET/PREFIX` (extra `s3`), where what is there
        already is not sent again. There `rules` say which of these stay: `keep_last`, `keep_within`, `keep_hourly`,
        `keep_daily` and `keep_weekly` unite, and what none of them names goes. With `recipients`, public keys of `age`
        (extra `age`), only who has one of their keys can read it. `progress` gets the part that is done, from 0 to 1.

        Raises:
            InvalidInput: the destination exists and `force` is not set, or a rule or recipient makes no sense.
            BackendUnavailable: it cannot be written. Nothing with the name of a backup is left behind.
            Conflict: somebody else writes a backup there (`backup_running`, `backup_overtaken`).
        """
        from os import fspath

        from stepkeep.maintenance.backup import backup

        report = backup(
            self._engine,
            fspath(destination),
            rules=rules,
            recipients=recipients,
            force=force,
            progress=progress,
        )
        self._backup_note.write(report, now_us=self._engine.clock())
        return report

    @property
    def _backup_note(self) -> BackupNote:
        from stepkeep.config import data_folder
        from stepkeep.maintenance.last_backup import BackupNote

        return BackupNote(self._engine.backend.url, data_folder=data_folder)

    @property
    def keys(self) -> Keys:
        """What opens this store, if it is encrypted."""
        from stepkeep.api.keys import Keys

        return Keys(self._engine)

    def copy(
        self,
        destination: str,
        *,
        sessions: Sequence[str] = (),
        key: Key | PathLike[str] | None = None,
        encrypt: bool = False,
        progress: Progress | None = None,
    ) -> CopyReport:
        """Copy sessions, all of them unless named, into the store at a URL, and verify them there. Repeatable.

        Ids, numbers, branches, annotations, events and digests stay the same. With `encrypt` the destination is an
        encrypted store, opened or made with `key`, as in `open`; the copy of an encrypted store has the same keys.

        Raises:
            NotFound: there is no such session.
            InvalidInput: the destination is this store, or a key is missing or wrong.
            Conflict: the destination is to be encrypted, and has sessions that are not (`store_not_empty`).
            BackendUnavailable: one of the stores failed. What was copied is whole; copy again to go on.
        """
        from stepkeep.api.keys import finder_of
        from stepkeep.maintenance.copying import copy_into

        return copy_into(
            self._engine,
            destination,
            keys=sessions,
            find_key=finder_of(key),
            encrypt=encrypt,
            progress=progress,
        )

    def import_files(
        self,
        directory: str | PathLike[str],
        layout: str,
        *,
        session: str | None = None,
        accept_unverified: bool = False,
        dry_run: bool = False,
    ) -> FilesImport:
        """Adopt the checkpoint files of another system below a directory, which are only read. Repeating adds nothing.

        `layout` is `run`, `workflow` or `phase`: how the files are named and shaped. A file whose own checksum cannot
        be confirmed is skipped unless `accept_unverified`. `session` takes the place of the sessions that the files
        name. One bad file does not stop the others; the result has each with what became of it.

        Raises:
            InvalidInput: it is not a directory, or the store itself.
        """
        from pathlib import Path

        from stepkeep.api.import_files import Importer
        from stepkeep.codec.readable import Layout

        return Importer(
            store=self,
            directory=Path(directory),
            layout=Layout(layout),
            session=session,
            accept_unverified=accept_unverified,
            dry_run=dry_run,
        ).run()

    def import_agents(
        self, database: str | PathLike[str], *, session: str | None = None, dry_run: bool = False
    ) -> FilesImport:
        """Adopt the agent checkpoints in a SQLite database, which is only read. Repeating adds nothing.

        Its table is `checkpoints` or `agent_checkpoints`, with `state_json`. The sessions keep all that was adopted.

        Raises:
            InvalidInput: (`not_a_store`) it is no such database.
        """
        from pathlib import Path

        from stepkeep.api.agent_tables import AgentImporter
        from stepkeep.codec.readable import Layout

        return AgentImporter(
            store=self,
            directory=Path(database),
            layout=Layout.RUN,
            session=session,
            accept_unverified=False,
            dry_run=dry_run,
        ).run()

    def flush(self) -> None:
        """Return when every save that was started is settled."""
        self._engine.flush()

    def _settle(self) -> None:
        """Finish saves that are under way, prune what is due and write down what was counted; the store stays open."""
        self._upkeep.end_keeping()
        self._upkeep.close()

    def close(self) -> None:
        """Finish saves that are under way, prune what is due, release everything. Repeating it is harmless."""
        try:
            if self._has_investigations:
                from stepkeep.investigation.workbench import save_unsaved

                save_unsaved(self._engine)
            self._upkeep.end_keeping()
            self._engine.close()
        finally:
            self._upkeep.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _given(**fields: Any) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}
