"""Copying a thread: every checkpoint is sealed anew under a new id, and keeps its LangGraph id."""

from __future__ import annotations

from stepkeep.adapters.langgraph import writes
from stepkeep.adapters.langgraph.records import same_contents
from stepkeep.api.extension import Engine, HeaderQuery, NewBody, Save, check_stored, verified
from stepkeep.errors import Conflict
from stepkeep.model import STATE, Header, SessionInfo


def store_once(engine: Engine, save: Save) -> Header:
    """Store a checkpoint; if one with its LangGraph id and the same contents is there, that one.

    Raises:
        Conflict: one with its id holds other contents (`external_id_exists`).
    """
    try:
        return engine.save(save)
    except Conflict as exc:
        if exc.code != "external_id_exists" or exc.checkpoint is None:
            raise
        stored = engine.header(exc.checkpoint, session=save.session)
        if not same_contents(stored, save):
            raise
        return stored


def copy_thread(engine: Engine, source: SessionInfo, target: SessionInfo) -> int:
    """Copy all checkpoints with their parents and pending writes; how many. Repeatable: what is there stays."""
    ids: dict[str, str] = {}
    for row in engine.backend.headers(HeaderQuery(session=source.uid, newest_first=False)):
        header = verified(row)
        ids[header.id] = store_once(engine, _again(engine, header, target, ids)).id
    for note in engine.backend.annotations(source.uid, None, writes.KIND):
        goal = ids.get(note.target) if isinstance(note.target, str) else note.target
        if goal is not None:
            check_stored(note.data, note.digest, checkpoint=str(note.target), body="pending writes")
            engine.backend.annotate(
                target.uid, goal, note.kind, note.name, note.data, time_us=note.time_us, replace=True
            )
    return len(ids)


def _again(engine: Engine, header: Header, target: SessionInfo, ids: dict[str, str]) -> Save:
    loaded = engine.load(header)
    return Save(
        session=target.uid,
        state=loaded.body(),
        bodies={
            name: NewBody(loaded.contents[name], content.encoding)
            for name, content in header.contents.items()
            if name != STATE
        },
        branch=header.branch,
        parents=tuple(ids[parent] for parent in header.parents if parent in ids),
        external_id=header.external_id,
        step=header.step,
        status=header.status,
        trigger=header.trigger,
        message=header.message,
        tags=header.tags,
        metadata=header.metadata,
        requires=tuple(ids[required] for required in header.requires if required in ids),
    )
