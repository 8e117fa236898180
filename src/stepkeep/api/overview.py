"""Sessions at a glance: where each stands, who runs it, what it takes, what was saved last; and the steps of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

import msgspec

from stepkeep import typed
from stepkeep.engine import Engine, Loaded
from stepkeep.errors import Corrupt, InvalidInput, StepkeepError
from stepkeep.history.documents import SessionSummary, copied, readable_header, summary_of
from stepkeep.model import DETAILS, STATE, Header, SessionInfo, Status, from_us, to_us
from stepkeep.processes import is_dead
from stepkeep.runs.approvals import open_questions
from stepkeep.runs.kinds import RUNNER
from stepkeep.runs.plan import SCRIPT, Question, StepProgress, from_state
from stepkeep.runs.queue import QueueEntry, entry_of
from stepkeep.storage.port import HeaderQuery, Lease, SessionQuery, Usage

Condition: TypeAlias = Literal[
    "running", "crashed", "queued", "open", "waiting", "paused", "completed", "failed", "cancelled"
]
"""Where a session stands for a person: `open` is one that nobody runs, and that is not finished; one that is `waiting`
goes on when a person answers what its steps ask."""

STEP_EVENTS: Final = frozenset(
    {"step_boundary", "error_boundary", "interruption", "queued", "step_failed", "run_started", "run_stopped"}
)
"""What checkpoints are saved for where steps are worked through."""

MAX_LOOKED_AT: Final = 2000
"""Among how many sessions, those used last, runs and those in a condition are looked for."""

MAX_SEARCHED: Final = 20_000
"""In the messages and tags of how many checkpoints, the newest ones, sessions are looked for."""


class SessionOverview(SessionSummary, frozen=True, kw_only=True):
    """A session, where it stands, who runs it, the newest checkpoint of its current branch, and what it takes.

    `holder` is the process that runs it, or ran it last and did not come to its end. `is_run` says that steps are
    worked through in it, and `waiting` is what they ask a person. `task` is what its metadata say it is about.
    """

    condition: Condition
    holder: str | None
    queue: QueueEntry | None
    is_run: bool
    waiting: tuple[Question, ...]
    task: str
    message: str
    step: int | None
    tags: tuple[str, ...]
    latest: str | None
    stored_bytes: int


class SessionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some sessions, most recently used first. `usage` is that of the whole store, `max_bytes` the most it may take,
    `budget_bytes` what it may take before history is thinned, each None where there is no such limit; `next` is
    passed as `after` for more, None when there are none."""

    store: str
    usage: Usage
    max_bytes: int | None
    budget_bytes: int | None
    sessions: tuple[SessionOverview, ...]
    next: str | None


def session_page(
    engine: Engine,
    *,
    text: str = "",
    project: str | None = None,
    statuses: tuple[Status, ...] | None = None,
    condition: str | None = None,
    runs_only: bool = False,
    limit: int = 50,
    after: str | None = None,
    max_bytes: int | None = None,
    budget_bytes: int | None = None,
) -> SessionPage:
    """The next `limit` sessions that match. `text` is looked for in keys, projects, workflows and metadata, and in the
    messages and tags of checkpoints."""
    if limit < 1:
        raise InvalidInput("limit counts sessions: 1 or more", code="invalid_option")
    query = SessionQuery(project=project, statuses=statuses, after=None if after is None else _place(after))
    infos: Iterator[SessionInfo] = engine.backend.sessions(query)
    if runs_only or condition is not None:
        infos = islice(infos, MAX_LOOKED_AT)
    if text:
        wanted = text.casefold()
        said = _sessions_that_say(engine, wanted)
        infos = (info for info in infos if info.uid in said or wanted in _words(info))
    overviews = (overview_of(engine, info) for info in infos)
    wanted_ones = (
        each for each in overviews if (each.is_run or not runs_only) and condition in (None, each.condition)
    )
    found = list(islice(wanted_ones, limit + 1))
    last = found[limit - 1] if len(found) > limit else None
    return SessionPage(
        store=engine.backend.url,
        usage=engine.backend.usage(),
        max_bytes=max_bytes,
        budget_bytes=budget_bytes,
        sessions=tuple(found[:limit]),
        next=None if last is None else f"{to_us(last.updated)}-{last.uid}",
    )


def _place(after: str) -> tuple[int, str]:
    time, _, uid = after.partition("-")
    if not (time.isascii() and time.isdigit() and len(time) < 19):
        raise InvalidInput("after is not the next of a page", code="invalid_cursor")
    return int(time), uid


def _words(info: SessionInfo) -> str:
    words = (info.key, info.project or "", info.workflow or "", info.error or "")
    return "\n".join([*words, msgspec.json.encode(info.metadata).decode()]).casefold()


def _sessions_that_say(engine: Engine, wanted: str) -> set[str]:
    """The sessions with a checkpoint whose message or tags contain a text."""
    headers = engine.headers(HeaderQuery(limit=MAX_SEARCHED))
    return {
        header.session
        for header in headers
        if wanted in header.message.casefold() or any(wanted in tag.casefold() for tag in header.tags)
    }


def overview_of(engine: Engine, info: SessionInfo) -> SessionOverview:
    """One session at a glance."""
    backend = engine.backend
    branch = backend.branch(info.uid, info.branch) if info.last_seq else None
    header = None if branch is None else readable_header(engine, info.uid, branch.head)
    lease, queue, waiting = backend.lease(info.uid), entry_of(info), _waiting(engine, info, header)
    return copied(
        SessionOverview,
        summary_of(info),
        condition="waiting" if waiting else _condition(info, lease, queue, now_us=engine.clock()),
        holder=None if lease is None else f"pid {lease.owner.pid} on {lease.owner.host}",
        queue=queue,
        is_run=lease is not None or queue is not None or _is_step(header),
        waiting=waiting,
        task=_task(info, header),
        message="" if header is None else header.message,
        step=None if header is None else header.step,
        tags=() if header is None else header.tags,
        latest=None if header is None else header.id,
        stored_bytes=backend.usage(info.uid).body_bytes,
    )


def _waiting(engine: Engine, info: SessionInfo, header: Header | None) -> tuple[Question, ...]:
    """What a person may still answer. Only of a run that paused is the state read."""
    if info.status is not Status.PAUSED or header is None or RUNNER not in header.metadata:
        return ()
    try:
        questions = open_questions(engine, info)
    except StepkeepError:
        return ()  # its own page tells what is wrong with it
    now = from_us(engine.clock())
    return tuple(each for each in questions if each.expires_at is None or each.expires_at > now)


def _task(info: SessionInfo, header: Header | None) -> str:
    """That of the session, else what a coding agent was at when it saved last."""
    found = info.metadata.get("task") or (header and header.metadata.get("task_summary"))
    return found if isinstance(found, str) else ""


def _is_step(header: Header | None) -> bool:
    return header is not None and (RUNNER in header.metadata or header.trigger.event in STEP_EVENTS)


def _condition(info: SessionInfo, lease: Lease | None, queue: QueueEntry | None, *, now_us: int) -> Condition:
    if lease is not None and lease.expires_us > now_us and not is_dead(lease.owner):
        return "running"
    if info.status is not Status.IN_PROGRESS:
        return info.status.value  # type: ignore[return-value]
    if lease is not None:
        return "crashed"
    return "open" if queue is None else "queued"


# --- the steps of a run ----------------------------------------------------------------------------------------


class RunStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step and what became of it. What is not known of it is None; `attempts` 0 means that nobody counted."""

    id: str
    name: str
    kind: str
    status: str
    attempts: int
    duration_ms: int | float | None
    completed: datetime | None
    error: str | None
    has_output: bool


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a session as a checkpoint has them. `kind` is None where it holds no steps."""

    session: SessionOverview
    checkpoint: str | None
    kind: Literal["workflow", "plan", "script"] | None
    steps: tuple[RunStep, ...]
    error: str | None


def run_view(engine: Engine, info: SessionInfo, loaded: Loaded | None) -> RunView:
    """The steps that a loaded checkpoint tells of."""
    kind, steps = (None, ()) if loaded is None else _steps(loaded)
    return RunView(
        session=overview_of(engine, info),
        checkpoint=None if loaded is None else loaded.header.id,
        kind=kind,
        steps=tuple(steps),
        error=info.error,
    )


def _steps(loaded: Loaded) -> tuple[Any, tuple[RunStep, ...]]:
    try:
        details = loaded.value(DETAILS) if DETAILS in loaded.contents else None
        if isinstance(details, Mapping) and SCRIPT in details:
            return "script", tuple(_script_steps(details[SCRIPT]))
        if STATE not in loaded.contents:
            return None, ()
        state = loaded.value()
        if not isinstance(state, Mapping):
            return None, ()
        if "completed_steps" in state:
            from stepkeep.runs.workflow.serializer import WorkflowSerializer

            progress = WorkflowSerializer.load(state)
            return "workflow", tuple(_progress_step(each, is_printed=True) for each in progress.steps)
        if isinstance(state.get("plan"), list | tuple):
            return "plan", tuple(_plan_steps(state))
    except Corrupt:
        raise
    except (StepkeepError, ValueError, TypeError):
        pass  # the state of something else that has the same names
    return None, ()


def _script_steps(details: Any) -> Iterator[RunStep]:
    from stepkeep.runs.scripts import ScriptRecord

    record = typed.convert(details, ScriptRecord)
    for name, step in record.steps.items():
        completed = datetime.fromisoformat(step.completed_at)
        yield _step(name, status="completed", duration_ms=step.duration_ms, completed=completed)
    error = record.last_error
    if error is not None and error.step is not None:
        yield _step(error.step, status="failed", error=error.message, has_output=False)


def _plan_steps(state: Mapping[str, Any]) -> Iterator[RunStep]:
    agent = from_state(state)
    results = {result.step_id: result for result in agent.results}
    error = agent.last_error
    for index, step in enumerate(agent.plan):
        message = error.message if error is not None and error.step_index == index else None
        yield _progress_step(StepProgress(step=step, result=results.get(step.id), error=message))


def _progress_step(entry: StepProgress, *, is_printed: bool = False) -> RunStep:
    result = entry.result
    return _step(
        entry.step.id,
        name=entry.step.description,
        kind=entry.step.action,
        status=entry.status.value,
        attempts=entry.attempts if result is None else result.attempts,
        duration_ms=None if result is None else result.duration_ms,
        completed=None if result is None else result.completed_at,
        error=entry.error,
        has_output=result is not None or (is_printed and entry.status == "failed"),
    )


def _step(id: str, *, status: str, **fields: Any) -> RunStep:
    unknown = {"name": "", "kind": "", "attempts": 0, "duration_ms": None, "completed": None, "error": None}
    return RunStep(**{**unknown, "has_output": True, **fields}, id=id, status=status)
