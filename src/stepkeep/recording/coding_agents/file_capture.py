"""The project files beside what a hook saved: captured by a process of their own, so that no agent waits for them.

The checkpoint is durable before that process starts, and its files come a moment later, in a checkpoint with the same
state; where nothing changed since the last capture there is none. Whatever goes wrong here costs only the files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stepkeep.engine import Engine
from stepkeep.model import SessionInfo, Trigger, TriggerKind
from stepkeep.recording.coding_agents import hook_events, hook_process
from stepkeep.recording.coding_agents.environment import repository_of
from stepkeep.recording.coding_agents.hook_events import HookEvent

if TYPE_CHECKING:
    from stepkeep.recording.coding_agents.responses import AnyStore
    from stepkeep.workspace.capture import CaptureLimits

BOUNDARIES = (hook_events.TURN_END, hook_events.COMPACTION, hook_events.END)
TRIGGER = Trigger(TriggerKind.AUTO, "workspace")
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


def start(store: AnyStore, uid: str, root: str, event: HookEvent, environ: Mapping[str, str]) -> None:
    """Begin to capture a tree, in a process that closes the store at its end; where none can be made, not at all."""
    try:
        process = os.fork()
    except OSError:
        return
    if process == 0:
        try:
            _leave_the_agent()
            _captured(store, uid, root, event, environ)
        finally:
            os._exit(0)  # it is a copy of the hook, and must not go on as one


def _leave_the_agent() -> None:
    """Be no part of what the agent waits for, and in nobody's way."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.nice(_NICE)


def _captured(store: AnyStore, uid: str, root: str, event: HookEvent, environ: Mapping[str, str]) -> None:
    engine = store.engine
    try:
        with hook_process.Timeout(SECONDS, "the files were not captured"):
            session = engine.backend.session(uid)
            limits = _limits()
            if limits is not None and not session.metadata.get(TOO_SLOW):
                _save(engine, session, root, limits)
    except Exception as exc:  # the agent goes on, whatever it is
        _note(engine, uid, event, environ, exc)
    finally:
        store.close()


def _limits() -> CaptureLimits | None:
    """How much is captured; None when the settings switch it off. A configuration that is wrong costs the files."""
    from stepkeep import config
    from stepkeep.workspace.capture import CaptureLimits

    settings = config.here()
    if not settings["hooks.workspace"]:
        return None
    return CaptureLimits(
        max_file_bytes=settings["workspace.max_file_bytes"],
        max_total_bytes=settings["workspace.max_total_bytes"],
        ignore=tuple(settings["workspace.ignore"] or ()),
    )


def _save(engine: Engine, session: SessionInfo, root: str, limits: CaptureLimits) -> None:
    from stepkeep.workspace.capture import capture_live, real_root, save_tree

    tree = capture_live(engine, session.uid, real_root(root), limits=limits, with_blobs=True)
    if tree.replaced == ():
        return  # as the last capture has it
    if engine.latest(session) is not None:
        save_tree(engine, session.uid, tree, TRIGGER)


def _note(engine: Engine, uid: str, event: HookEvent, environ: Mapping[str, str], exc: Exception) -> None:
    code = str(getattr(exc, "code", type(exc).__name__))
    hook_process.log_problem(
        environ,
        client=event.client,
        event=event.name,
        session=event.session,
        code=code,
        message=f"saved without files: {exc}",
    )
    if code == "hook_timeout":
        metadata = {**engine.backend.session(uid).metadata, TOO_SLOW: True}
        engine.describe_session(uid, {"metadata": metadata})
