"""An open store: its sessions, and the care for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from stepkeep import config as configuration
from stepkeep.api.checkpoint import Checkpoint
from stepkeep.api.counting import CountedRun, counted, meter_of
from stepkeep.api.executing import ExecuteOptions, execute
from stepkeep.api.files import Workspace
from stepkeep.api.options import CleanupRules, RetentionRules, policy_of, status_of
from stepkeep.api.session import Session
from stepkeep.codec import exact
from stepkeep.config import Settings
from stepkeep.config.rules import compresses, retention_of
from stepkeep.engine import Engine
from stepkeep.errors import NotFound, StepkeepError
from stepkeep.executor.agents import AgentStore
from stepkeep.executor.plan import PlanStep
from stepkeep.executor.result import ExecutionResult
from stepkeep.executor.scripts import Run
from stepkeep.executor.steps import Handler
from stepkeep.lifecycle.phases import Phases, phases_home
from stepkeep.maintenance.budget import Budget, Limits
from stepkeep.maintenance.clean import CleanEntry, CleanReport, apply_clean
from stepkeep.maintenance.keeper import Keeper, plans_to_clean
from stepkeep.maintenance.metering import MeteredEngine
from stepkeep.maintenance.metrics import Metrics, metrics_of, totals_of
from stepkeep.maintenance.prune import PrunePlan, PruneReport
from stepkeep.maintenance.reserve import Reserve
from stepkeep.maintenance.space import reclaim
from stepkeep.maintenance.verify import Progress, VerifyReport, verify
from stepkeep.model import Header, Status, utc_now_us
from stepkeep.model import Session as SessionInfo
from stepkeep.storage.port import Backend, HeaderQuery, SessionQuery, Usage
from stepkeep.workspace import background

if TYPE_CHECKING:
    from stepkeep.api.investigating import Investigation


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
        self._engine = MeteredEngine(
            backend,
            meter=meter_of(backend.url, settings, clock=clock),
            keyframe_every=keyframe_every,
            max_state_bytes=max_state_bytes,
            compresses=partial(compresses, self._settings),
            clock=clock,
        )
        Reserve(backend.url).hold()
        self._keeper = None if settings is None else _keeper_of(self._engine, settings)

    @property
    def settings(self) -> Settings:
        """The settings this store was opened with: every key, its value, and where that came from."""
        return self._settings

    @property
    def url(self) -> str:
        return self._engine.backend.url

    @property
    def engine(self) -> MeteredEngine:
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
        policy = policy_of(None, retention, cleanup)
        info = self._engine.open_session(key, **{**defaults, "policy": policy, **given})
        if retention is not None or cleanup is not None:
            given["policy"] = policy_of(info.policy, retention, cleanup)
        changed = {name: value for name, value in given.items() if getattr(info, name) != value}
        if changed:
            info = self._engine.describe_session(info.uid, changed)
        return Session(self._engine, info, self._settings, workspace=workspace)

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
        `force` lets a finished step that is called with other arguments run again, instead of refusing it. A new
        session has the profile `agent` unless another is given.
        """

        def find() -> SessionInfo:
            is_new = self._engine.backend.session_by_key(key) is None
            return self.session(key, profile=profile or ("agent" if is_new else None), project=project).info

        return CountedRun(self._engine, find, resume=resume, force=force)

    def execute(
        self,
        key: str,
        plan: Iterable[PlanStep | Mapping[str, Any]],
        handler: Handler | None = None,
        **options: Unpack[ExecuteOptions],
    ) -> ExecutionResult:
        """Work through a plan in a session: `handler` does each step, and every completed step is saved.

        A step that fails is part of the result; with `resume=True` the same call goes on where the work stopped:
        completed steps are never done again, one that was interrupted or failed is. The handler gets a
        `StepContext` and returns what is to be saved, or an `Outcome`; plain functions are called on threads, and
        coroutine functions awaited on an event loop. The options are those of `ExecuteOptions`.

        Raises:
            InvalidInput: the plan (`invalid_plan`) or an option makes no sense.
            NotFound: (`nothing_to_resume`) there is no checkpoint to resume from.
            Conflict: someone else runs the session (`lease_held`) or took it over (`lease_lost`), or the plan is
                not the one that was saved (`plan_changed`).
            BackendUnavailable: a save failed; the run stopped, and no step is marked because of it.
            Interrupted: SIGINT or SIGTERM came; the work is saved as `paused`.
        """
        return self._execute(key, plan, handler, **options)

    def _execute(self, key: str, plan: Any, handler: Handler | None, **options: Any) -> ExecutionResult:
        def open_session(key: str, profile: str | None, project: str | None) -> SessionInfo:
            return self.session(key, profile=profile, project=project).info

        result: ExecutionResult = counted(
            self._engine,
            execute,
            self._engine,
            self._settings,
            open_session,
            key,
            plan,
            handler,
            **options,
        )
        return result

    def investigation(self, session: str | Session) -> Investigation:
        """The debugging session of that key, taken up where it stands, or begun with the profile `debug`.

        Raises:
            InvalidInput: the session holds something else (`not_an_investigation`).
        """
        from stepkeep.api.investigating import Investigation  # only who investigates pays for it

        return Investigation(self, session)

    @property
    def agents(self) -> AgentStore:
        """Checkpoints of agents by session and project, with typed states."""
        return AgentStore(self._engine, project=self._settings["project"])

    @property
    def phases(self) -> Phases:
        """Checkpoints at the phases of a task, and what is not finished; with `seed.json` in the `phase` layout."""
        return Phases(self._engine, home=phases_home(self._engine))

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
        statuses = None if status is None else (status_of(status),)
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

    def metrics(self) -> Metrics:
        """What was counted in this store by all processes: saves, sizes, latencies, failures, resumes."""
        return metrics_of(totals_of(self._engine.meter.counts()))

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
        errors: list[StepkeepError] = []
        for info in list(self._engine.backend.sessions(SessionQuery())):
            session = self._session(info)
            try:
                if dry_run:
                    plans.append(session.prune(dry_run=True))
                else:
                    reports.append(session.prune())
            except NotFound:
                continue  # deleted meanwhile
            except StepkeepError as exc:
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
        background.close(self._engine)
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
            compress_after_hours=settings["checkpoint.compress_after_hours"],
            interval_seconds=settings["keeper.interval_seconds"],
        )
        engine.on_saved, engine.on_finished, budget = keeper.saved, keeper.finished, keeper.budget
    if limits.is_set:
        engine.on_append = budget.admit
    return keeper
