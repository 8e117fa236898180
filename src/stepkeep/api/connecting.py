"""Restoring a session together with the parts that are connected to it: all of it happens, or none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from stepkeep.config import Settings
from stepkeep.engine import Engine, Save
from stepkeep.history import restore
from stepkeep.history.restore import Restoration
from stepkeep.lifecycle.merged import MergedTrigger, merge
from stepkeep.model import Header, Trigger
from stepkeep.model import Session as SessionInfo
from stepkeep.parts.checkpoints import Parts
from stepkeep.parts.connected import Extra, Missing, PutBack
from stepkeep.storage.port import ANY_HEAD


def parts_of(engine: Engine, uid: str, settings: Settings | None, *, save: Callable[[Save], Header]) -> Parts:
    """The parts of a session, none yet. What is merged into a checkpoint is noted as the recorder does.

    `save` stores a checkpoint, with the project files where the session has some.
    """
    places = count(1)
    timers = (
        {}
        if settings is None
        else {
            "significant_seconds": settings["recorder.significant_seconds"],
            "coalesce_seconds": settings["recorder.coalesce_seconds"],
        }
    )

    def note(header: Header, trigger: Trigger, time_us: int, message: str) -> None:
        merged = MergedTrigger(trigger=trigger, time_us=time_us, message=message)
        merge(engine, header, merged, place=next(places), fence=None)

    return Parts(engine, uid, save=save, merge=note, **timers)


def restore_with_parts(
    engine: Engine,
    parts: Parts,
    header: Header,
    *,
    branch: str | None,
    expect_head: str | None,
    missing: Missing,
    extra: Extra,
) -> tuple[Restoration, PutBack]:
    """Give the parts what a checkpoint holds, and let the session go on from there.

    The session moves last, and only if its head is still the one of the beginning; otherwise the parts go back.
    """
    info = engine.backend.session(header.session)
    if expect_head == ANY_HEAD:
        expect_head = _head(engine, info)
    state = engine.load(header).value()
    with parts.put_back(state, missing=missing, extra=extra, checkpoint=header.id) as report:
        done = restore.restore(engine, header, branch=branch, expect_head=expect_head)
    return done, report


def undo_with_parts(
    engine: Engine,
    parts: Parts,
    info: SessionInfo,
    *,
    expect_head: str | None,
    missing: Missing,
    extra: Extra,
) -> tuple[Restoration, PutBack]:
    """Return to where the session was before, with its parts. Where they fail, the session stays where it is."""
    done = restore.undo(engine, info, expect_head=expect_head)
    header = done.loaded.header
    try:
        with parts.put_back(
            done.loaded.value(), missing=missing, extra=extra, checkpoint=header.id
        ) as report:
            return done, report
    except BaseException:
        if done.left.name != done.branch.name:
            restore.undo(engine, engine.backend.session(info.uid))  # undoing twice is doing it again
        raise


def _head(engine: Engine, info: SessionInfo) -> str | None:
    branch = engine.backend.branch(info.uid, info.branch)
    return None if branch is None else branch.head
