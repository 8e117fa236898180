"""Running a plan in a session of a store, as the settings say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from stepkeep.config import Settings
from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.executor.interrupts import Cancellation
from stepkeep.executor.options import OnFailure, RunOptions
from stepkeep.executor.plan import PlanStep, steps_of
from stepkeep.executor.result import ExecutionResult
from stepkeep.executor.retrying import RetryPolicy
from stepkeep.executor.steps import Handler, Hooks
from stepkeep.model import Session, check_name

if TYPE_CHECKING:
    import asyncio


class ExecuteOptions(TypedDict, total=False):
    """What `Store.execute` takes beside plan and handler.

    `query` and `context` are those of a fresh run; a resumed one has them from its checkpoint. `profile` (`agent`
    unless given) and `project` are those of a new session, and change an existing one only where they are given.
    `resume` goes on from the newest valid checkpoint of the current branch, or from the one `from_ref` names;
    `force` does so although the plan changed. Up to `parallel` steps run at a time. `retry` says how often a step
    is tried, `timeout` how many seconds one try may take. With `on_failure="continue"` the steps that do not
    depend on a failed one are still done. `auto_checkpoint` (default: the settings) saves after every step.
    `hooks` are told what happens. `cancel` stops the run from another thread. `handle_signals=False` leaves SIGINT
    and SIGTERM alone. `label` tells others who runs the session.
    """

    query: str
    context: Mapping[str, Any] | None
    project: str | None
    profile: str | None
    resume: bool
    force: bool
    from_ref: str | None
    parallel: int
    retry: RetryPolicy | None
    timeout: float | None
    on_failure: OnFailure
    auto_checkpoint: bool | None
    hooks: Hooks | None
    cancel: Cancellation | None
    handle_signals: bool
    label: str


def execute(
    engine: Engine,
    settings: Settings,
    open_session: Callable[[str, str | None, str | None], Session],
    key: str,
    plan: Iterable[PlanStep | Mapping[str, Any]],
    handler: Handler | None,
    *,
    query: str = "",
    context: Mapping[str, Any] | None = None,
    project: str | None = None,
    profile: str | None = None,
    resume: bool = False,
    force: bool = False,
    from_ref: str | None = None,
    parallel: int = 1,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
    on_failure: OnFailure = "stop",
    auto_checkpoint: bool | None = None,
    hooks: Hooks | None = None,
    cancel: Cancellation | None = None,
    handle_signals: bool = True,
    label: str = "",
    loop: asyncio.AbstractEventLoop | None = None,
) -> ExecutionResult:
    """Run a plan; everything is checked before a session is made. `open_session` takes key, profile and project."""
    # It brings asyncio, which a program that only saves can do without.
    from stepkeep.executor.runner import Runner

    if handler is None:
        raise InvalidInput(
            "executeStep must be implemented: pass the function that does a step as handler",
            code="handler_missing",
        )
    steps = steps_of(plan)
    auto = settings["agent.checkpoints.auto_checkpoint"] if auto_checkpoint is None else auto_checkpoint
    options = RunOptions(
        resume=resume,
        force=force,
        from_ref=from_ref,
        parallel=parallel,
        retry=RetryPolicy() if retry is None else retry,
        timeout_seconds=timeout,
        on_failure=on_failure,
        saves=settings["agent.checkpoints.enabled"],
        auto_checkpoint=auto,
        handles_signals=handle_signals,
        label=label,
    )
    known = engine.backend.session_by_key(check_name("a session key", key))
    if known is None and resume:
        raise NotFound(
            f"there is no session {key!r} to resume: run it without resume",
            code="nothing_to_resume",
            session=key,
        )
    session = open_session(key, profile or ("agent" if known is None else None), project)
    runner = Runner(
        engine, session, steps, handler, options=options, hooks=hooks, context=context, query=query, loop=loop
    )
    if cancel is None:
        return runner.run()
    cancel.subscribe(runner.cancel)
    try:
        return runner.run()
    finally:
        cancel.unsubscribe(runner.cancel)
