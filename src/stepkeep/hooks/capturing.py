"""The project files beside what a hook saved: captured by a process of their own, so that no agent waits for them.

The checkpoint is durable before that process starts, and its files come a moment later, in a checkpoint with the same
state; where nothing changed since the last capture there is none. Whatever goes wrong here costs only the files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stepkeep.engine import Engine, NewBody, Save
from stepkeep.errors import Conflict
from stepkeep.hooks import place
from stepkeep.lifecycle.agent import kinds, saving
from stepkeep.lifecycle.agent.folders import home_of
from stepkeep.lifecycle.agent.moments import Moment
from stepkeep.lifecycle.agent.surroundings import repository_of
from stepkeep.model import STATE, Session, Trigger, TriggerKind

if TYPE_CHECKING:
    from stepkeep.workspace.capture import Captured, Limits

BOUNDARIES = (kinds.TURN_END, kinds.COMPACTION, kinds.END)
TRIGGER = Trigger(TriggerKind.AUTO, "workspace")
TOO_SLOW = "files_took_too_long"
"""In the metadata of a session: its tree is not captured again."""

SECONDS = 30
MAX_TRIES = 5
_NICE = 10


def tree_of(moment: Moment, environ: Mapping[str, str]) -> str | None:
    """The repository whose files belong to a moment; None when there is none, or the moment is no boundary."""
    if moment.kind not in BOUNDARIES:
        return None
    root = repository_of(moment.cwd)
    # A home under version control is no project: most of what is in it is of no concern here.
    return None if root in ("", "/", home_of(environ).rstrip("/")) else root


def start(engine: Engine, uid: str, root: str, moment: Moment, environ: Mapping[str, str]) -> bool:
    """Begin to capture a tree, in a process that closes the store at its end. False when there can be none now."""
    try:
        process = os.fork()
    except OSError:
        return False
    if process == 0:
        try:
            _leave_the_agent()
            _captured(engine, uid, root, moment, environ)
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


def _captured(engine: Engine, uid: str, root: str, moment: Moment, environ: Mapping[str, str]) -> None:
    from stepkeep.hooks.patience import Patience

    try:
        with Patience(SECONDS, "the files were not captured"):
            session = engine.backend.session(uid)
            limits = _limits(environ)
            if limits is not None and not session.metadata.get(TOO_SLOW):
                _save(engine, session, root, limits)
    except Exception as exc:  # the agent goes on, whatever it is
        _note(engine, uid, moment, environ, exc)
    finally:
        engine.close()


def _limits(environ: Mapping[str, str]) -> Limits | None:
    """How much is captured; None when the settings switch it off."""
    from stepkeep.workspace.capture import DEFAULT_LIMITS, Limits

    settings = place.settings(environ, place.cwd())
    if settings is None:
        return DEFAULT_LIMITS
    if not settings["hooks.workspace"]:
        return None
    return Limits(
        max_file_bytes=settings["workspace.max_file_bytes"],
        max_total_bytes=settings["workspace.max_total_bytes"],
        ignore=tuple(settings["workspace.ignore"] or ()),
    )


def _save(engine: Engine, session: Session, root: str, limits: Limits) -> None:
    from stepkeep.workspace.capture import real_root
    from stepkeep.workspace.known import look_at

    tree = look_at(engine, session.uid, real_root(root), limits=limits, with_blobs=True)
    if tree.replaced == ():
        return  # as the last capture has it
    for left in reversed(range(MAX_TRIES)):
        try:
            _save_beside_the_newest(engine, engine.backend.session(session.uid), tree)
        except Conflict as exc:
            if exc.code != "head_moved" or not left:
                raise
        else:
            return


def _save_beside_the_newest(engine: Engine, session: Session, tree: Captured) -> None:
    """Store a tree with the state as it is by now: the next hook may have been faster."""
    from stepkeep.workspace.known import with_files

    newest = engine.latest(session)
    if newest is None:
        return
    header = newest.header
    save = Save(
        session=session.uid,
        bodies={
            name: NewBody(newest.contents[name], header.contents[name].encoding)
            for name in (STATE, saving.DETAILS)
            if name in newest.contents
        },
        expect_head=header.id,
        step=header.step,
        status=session.status,
        trigger=TRIGGER,
        message=header.message,
        metadata=header.metadata,
    )
    engine.save(with_files(save, tree))


def _note(engine: Engine, uid: str, moment: Moment, environ: Mapping[str, str], exc: Exception) -> None:
    from stepkeep.lifecycle.agent import log

    code = str(getattr(exc, "code", type(exc).__name__))
    log.note(
        environ,
        client=moment.client,
        event=moment.event,
        session=moment.session,
        code=code,
        message=f"saved without files: {exc}",
    )
    if code == "hook_timeout":
        metadata = {**engine.backend.session(uid).metadata, TOO_SLOW: True}
        engine.describe_session(uid, {"metadata": metadata})
