"""The parts that are connected to a session, and restoring it together with them: all of it happens, or none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from stepkeep.api.checkpoint import Checkpoint, Restored
from stepkeep.api.values import ChangeCounts
from stepkeep.config import Settings
from stepkeep.engine import Engine, Save
from stepkeep.errors import StepkeepError
from stepkeep.history import branches, state_diff
from stepkeep.history.branches import Restoration
from stepkeep.history.documents import readable_header
from stepkeep.history.refs import BEFORE
from stepkeep.model import Header, SessionInfo
from stepkeep.recording.connected_parts import Extra, Missing, Parts, PutBack
from stepkeep.storage.port import ANY_HEAD

if TYPE_CHECKING:
    from stepkeep.api.session import Session


def parts_of(engine: Engine, uid: str, settings: Settings | None, *, save: Callable[[Save], Header]) -> Parts:
    """The parts of a session, none yet. What is merged into a checkpoint is noted as the recorder does.

    `save` stores a checkpoint, with the project files where the session has some.
    """
    timers = (
        {}
        if settings is None
        else {
            "significant_seconds": settings["recorder.significant_seconds"],
            "coalesce_seconds": settings["recorder.coalesce_seconds"],
        }
    )

    return Parts(engine, uid, save=save, **timers)


def restore(
    session: Session,
    ref: str | int | datetime,
    *,
    branch: str | None,
    expect_head: str | None,
    missing: Missing,
    extra: Extra,
    compare: bool,
) -> Restored:
    """Let a session go on from a checkpoint, together with its connected parts; see `Session.restore`."""
    engine, parts = session._engine, session._parts
    is_undo = ref == BEFORE and branch is None
    report = PutBack()
    if parts is None or not parts.names:
        if is_undo:
            done = branches.undo(engine, session.info, expect_head=expect_head)
        else:
            done = branches.restore(engine, session.header(ref), branch=branch, expect_head=expect_head)
    elif is_undo:
        done, report = _undo_with_parts(
            engine, parts, session.info, expect_head=expect_head, missing=missing, extra=extra
        )
    else:
        done, report = _restore_with_parts(
            engine,
            parts,
            session.header(ref),
            branch=branch,
            expect_head=expect_head,
            missing=missing,
            extra=extra,
        )
    previous = readable_header(engine, session.uid, done.left.head)
    checkpoint = Checkpoint(done.loaded)
    return Restored(
        session=session.key,
        checkpoint=checkpoint,
        info=session.describe(checkpoint.header),
        branch=done.branch.name,
        is_new_branch=done.is_new_branch,
        previous_branch=done.left.name,
        previous_head=done.left.head,
        previous_seq=None if previous is None else previous.seq,
        changes=_changes(engine, previous, checkpoint.state) if compare and previous is not None else None,
        undo=done.undo,
        parts=report.restored,
        missing=report.missing,
        extra=report.extra,
    )


def _changes(engine: Engine, previous: Header, state: object) -> ChangeCounts | None:
    try:
        before = engine.load(previous).value()
    except StepkeepError:
        return None
    found = state_diff.compare(before, state, limit=0)
    return ChangeCounts(
        total=found.total,
        added=found.added,
        removed=found.removed,
        changed=found.changed,
        moved=found.moved,
        summary=found.summary,
    )


def _restore_with_parts(
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
        done = branches.restore(engine, header, branch=branch, expect_head=expect_head)
    return done, report


def _undo_with_parts(
    engine: Engine,
    parts: Parts,
    info: SessionInfo,
    *,
    expect_head: str | None,
    missing: Missing,
    extra: Extra,
) -> tuple[Restoration, PutBack]:
    """Return to where the session was before, with its parts. Where they fail, the session stays where it is."""
    done = branches.undo(engine, info, expect_head=expect_head)
    header = done.loaded.header
    try:
        with parts.put_back(
            done.loaded.value(), missing=missing, extra=extra, checkpoint=header.id
        ) as report:
            return done, report
    except BaseException:
        if done.left.name != done.branch.name:
            branches.undo(engine, engine.backend.session(info.uid))  # undoing twice is doing it again
        raise


def _head(engine: Engine, info: SessionInfo) -> str | None:
    branch = engine.backend.branch(info.uid, info.branch)
    return None if branch is None else branch.head
