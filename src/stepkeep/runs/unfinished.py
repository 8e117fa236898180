"""Runs that did not come to their end, whoever runs them: where each stopped, why, and what goes on with it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from stepkeep.codec.readable import ResumeHints
from stepkeep.config.store_names import store_option
from stepkeep.engine import Engine
from stepkeep.errors import StepkeepError
from stepkeep.history.documents import copied
from stepkeep.model import Header, SessionInfo, Status, from_us
from stepkeep.processes import is_dead
from stepkeep.runs.approvals import open_questions
from stepkeep.runs.kinds import (
    PLAN,
    RUNNER,
    SCRIPT,
    WORKFLOW,
    approve_command,
    how_to_go_on,
)
from stepkeep.runs.plan import ExecutionResult, Question
from stepkeep.runs.queue import WAITING, entry_of
from stepkeep.storage.port import HeaderQuery, Lease, SessionQuery


class Resumable(msgspec.Struct, frozen=True, kw_only=True):
    """A session whose work did not come to its end: how many steps are done, why it stopped there, and what to do.

    `runner` is what runs it: a workflow, plan, script, phase or recorder. `can_resume`: `stepkeep resume` alone goes
    on with it. Of a recorder `hints` says whether its work may be resumed now, why not, and what to do; `wait_seconds`
    how long it has to cool down first. `store` is set where it lies in another store than the one that was asked: the
    user's phase checkpoints.
    """

    session: str
    workflow: str
    status: Status
    step: int
    updated: datetime
    why: str
    can_resume: bool
    runner: str = ""
    is_crashed: bool = False
    how: str = ""
    store: str | None = None
    hints: ResumeHints | None = None
    wait_seconds: float | None = None


class PlanRun(msgspec.Struct, frozen=True, kw_only=True):
    """How the run of a plan ended, as every surface shows it. `next` is the command that goes on; `waiting` are the
    questions that a person has to answer before."""

    session: str
    status: Status
    steps_run: int
    steps_recovered: int
    steps_skipped: int
    duration_ms: int
    checkpoint: str | None
    error: str | None
    waiting: tuple[Question, ...]
    next: str | None


def plan_run(engine: Engine, key: str, result: ExecutionResult) -> PlanRun:
    store = store_option(engine.backend.url)
    command = approve_command(key, store) if result.waiting else how_to_go_on(key, PLAN, store)
    return copied(
        PlanRun,
        result,
        session=key,
        checkpoint=None if result.checkpoint is None else result.checkpoint.id,
        next=None if result.success else command,
    )


def runner_of(engine: Engine, session: SessionInfo) -> str | None:
    """What runs a session: a plan, a script or a workflow; None when its newest checkpoint is of nothing such."""
    header = _newest(engine, session)
    return None if header is None else _runner(header)


def unfinished_runs(engine: Engine) -> tuple[Resumable, ...]:
    """Runs that did not come to their end, most recently used first. One that is being run says so."""
    return tuple(_resumables(engine))


def crash_of(engine: Engine, session: SessionInfo) -> str | None:
    """Where a session stopped because its process ended, and what to do; None when nothing such happened."""
    if session.status is not Status.IN_PROGRESS:
        return None
    lease = engine.backend.lease(session.uid)
    if lease is None or is_alive(engine, lease):
        return None
    header = _newest(engine, session)
    if header is None or (runner := _runner(header)) is None:
        return None
    how = how_to_go_on(session.key, runner, store_option(engine.backend.url))
    return f"{_crashed(header, lease)}: {how}"


def is_alive(engine: Engine, lease: Lease) -> bool:
    """Whether whoever holds a lease still works, as far as can be told from here."""
    return lease.expires_us > engine.clock() and not is_dead(lease.owner)


def _resumables(engine: Engine) -> Iterator[Resumable]:
    store = store_option(engine.backend.url)
    for info in engine.backend.sessions(SessionQuery(statuses=WAITING)):
        header = _newest(engine, info)
        runner = None if header is None else _runner(header)
        if header is None or runner is None:
            continue
        lease = engine.backend.lease(info.uid)
        is_running = lease is not None and is_alive(engine, lease)
        fields: dict[str, Any] = {
            "can_resume": runner == WORKFLOW,
            "how": how_to_go_on(info.key, runner, store),
        }
        if lease is not None and is_running:
            fields = {"can_resume": False}
            fields["why"] = f"is being run (pid {lease.owner.pid} on {lease.owner.host})"
        elif info.status is Status.PAUSED:
            fields |= _paused(engine, info, store)
        elif info.status is Status.FAILED:
            fields["why"] = info.error or "failed"
        elif (entry := entry_of(info)) is not None and not entry.attempts:
            fields["why"] = f"waits for a worker of queue {entry.queue!r}"
        else:
            fields |= {"why": _crashed(header, lease), "is_crashed": True}
        yield Resumable(
            session=info.key,
            workflow=info.workflow or "",
            status=info.status,
            step=header.step or 0,
            updated=from_us(info.updated_us),
            runner=runner,
            **fields,
        )


def _newest(engine: Engine, session: SessionInfo) -> Header | None:
    """The newest checkpoint of the current branch whose header is intact."""
    query = HeaderQuery(session=session.uid, branch=session.branch, limit=1)
    try:
        return next(engine.headers(query), None)
    except StepkeepError:
        return None


def _runner(header: Header) -> str | None:
    runner = header.metadata.get(RUNNER)
    return runner if runner in (PLAN, SCRIPT, WORKFLOW) else None


def waits_for(engine: Engine, session: SessionInfo) -> str | None:
    """What a paused session waits for a person to decide; None where it is nothing that can be read."""
    try:
        questions = open_questions(engine, session) if session.status is Status.PAUSED else ()
    except StepkeepError:
        questions = ()
    asked = "; ".join(f"{question.step_id}: {question.text}" for question in questions)
    return f"waits for a person: {asked}" if asked else None


def _paused(engine: Engine, session: SessionInfo, store: str) -> dict[str, Any]:
    why = waits_for(engine, session)
    if why is None:
        return {"why": "was interrupted"}
    how = f"{approve_command(session.key, store)}, or with --refuse"
    return {"why": why, "how": how, "can_resume": False}


def _crashed(header: Header, lease: Lease | None) -> str:
    who = "" if lease is None else f" (pid {lease.owner.pid} on {lease.owner.host} ended)"
    return f"crashed in step {(header.step or 0) + 1}{who}"  # so many are done
