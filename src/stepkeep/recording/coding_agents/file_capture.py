"""An event saved with the project files: by a process of its own, so that no agent waits for them.

The event is durable in the spool before that process starts. The checkpoint comes a moment later, and has the files;
where they cannot be had it comes without. A process that dies leaves the event to the next hook, which brings it in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stepkeep.engine import Engine, MakesBody
from stepkeep.errors import BackendUnavailable, Conflict
from stepkeep.model import SessionInfo
from stepkeep.recording.coding_agents import agent_session, hook_events, hook_process
from stepkeep.recording.coding_agents.environment import repository_of
from stepkeep.recording.coding_agents.hook_events import HookEvent
from stepkeep.recording.coding_agents.spool import Spool, Spooled

if TYPE_CHECKING:
    from stepkeep.recording.coding_agents.responses import AnyStore

BOUNDARIES = (hook_events.TURN_END, hook_events.COMPACTION, hook_events.END)
TOO_SLOW = "files_took_too_long"
"""In the metadata of a session: its tree is not captured again."""

SECONDS = 30
_NICE = 10


def tree_of(event: HookEvent, environ: Mapping[str, str]) -> str | None:
    """The repository whose files belong to an event; None when there is none, or the event is not a boundary."""
    if event.kind not in BOUNDARIES:
        return None
    root = repository_of(event.cwd)
    # A home directory under version control is not a project: most of its files have nothing to do with the work.
    return None if root in ("", "/", hook_process.home_of(environ).rstrip("/")) else root


def start(store: AnyStore, spooled: Spooled, root: str, environ: Mapping[str, str]) -> bool:
    """Let a process of its own save the event with the files of a tree; False if none can be made."""
    try:
        process = os.fork()
    except OSError:
        return False
    if process == 0:
        try:
            _leave_the_agent()
            _saved(store, spooled, root, environ)
        finally:
            os._exit(0)  # it is a copy of the hook, and must not go on as one
    return True


def _leave_the_agent() -> None:
    """Be no part of what the agent waits for, and in nobody's way."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.nice(_NICE)


def _saved(store: AnyStore, spooled: Spooled, root: str, environ: Mapping[str, str]) -> None:
    """Save the event, with the files where they can be had. What cannot be saved is left to the next hook."""
    engine, event = store.engine, spooled.event
    try:
        try:
            with hook_process.Timeout(SECONDS, "the files were not captured"):
                agent_session.record(
                    engine, event, key=spooled.key, capture=lambda session: _tree(engine, session, root)
                )
        except Exception as exc:  # the agent goes on, whatever it is
            if not _is_saved(exc):
                _record(engine, spooled)
                _note(engine, event, environ, exc)
        spooled.done()
    except Exception as exc:
        spooled.leave()
        _log(event, environ, exc, f"kept for the next event: {exc}")
    finally:
        store.close()


def _record(engine: Engine, spooled: Spooled) -> None:
    try:
        agent_session.record(engine, spooled.event, key=spooled.key)
    except Conflict as exc:
        if not _is_saved(exc):
            raise


def _is_saved(exc: Exception) -> bool:
    """Whether another process saved the event meanwhile."""
    return isinstance(exc, Conflict) and exc.code == "idempotency_mismatch"


def bring_in(engine: Engine, spool: Spool, own: str, *, until: Spooled | None = None) -> None:
    """Save what others could not, in order, up to one; while the store cannot be used all of it stays.

    What the store will never take is set aside, so that it stops nobody.

    Raises:
        StepkeepError: the store cannot be used.
    """
    waiting = spool.left_behind(own, until=until)
    try:
        while waiting:
            try:
                _record(engine, waiting[0])
            except Exception as exc:
                if isinstance(exc, BackendUnavailable) or getattr(exc, "retryable", False):
                    raise
                waiting.pop(0).set_aside()
            else:
                waiting.pop(0).done()
    finally:
        for each in waiting:
            each.leave()


def _tree(engine: Engine, session: SessionInfo, root: str) -> MakesBody | None:
    """What captures a tree; None when the settings switch it off, or it took too long before.

    A configuration that is wrong costs the files.
    """
    from stepkeep import config
    from stepkeep.workspace.capture import CaptureLimits, TreeCapture, real_root

    settings = config.here()
    if not settings["hooks.workspace"] or session.metadata.get(TOO_SLOW):
        return None
    limits = CaptureLimits(
        max_file_bytes=settings["workspace.max_file_bytes"],
        max_total_bytes=settings["workspace.max_total_bytes"],
        ignore=tuple(settings["workspace.ignore"] or ()),
    )
    return TreeCapture(engine, session.uid, real_root(root), limits=limits)


def _note(engine: Engine, event: HookEvent, environ: Mapping[str, str], exc: Exception) -> None:
    _log(event, environ, exc, f"saved without files: {exc}")
    if getattr(exc, "code", "") == "hook_timeout":
        session = agent_session.find_session(engine, event)
        if session is not None:
            engine.describe_session(session.uid, {"metadata": {**session.metadata, TOO_SLOW: True}})


def _log(event: HookEvent, environ: Mapping[str, str], exc: Exception, message: str) -> None:
    hook_process.log_problem(
        environ,
        client=event.client,
        event=event.name,
        session=event.session,
        code=str(getattr(exc, "code", type(exc).__name__)),
        message=message,
    )
