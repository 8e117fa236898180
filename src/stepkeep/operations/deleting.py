"""Removing checkpoints or sessions for good."""

from __future__ import annotations

from collections.abc import Iterable

from stepkeep.api import Session, Store
from stepkeep.errors import Corrupt
from stepkeep.model import is_checkpoint_id
from stepkeep.operations.views import Deleted, stored_count


def delete(store: Store, key: str, refs: Iterable[str] = ()) -> Deleted:
    """Remove checkpoints, or without refs the whole session, for good."""
    session = store.get(key)
    ids = tuple(dict.fromkeys(_id_of(session, ref) for ref in tuple(refs)))
    count = len(ids) or stored_count(session.info)
    if ids:
        session.delete(*ids)
    else:
        session.clear()
    return Deleted(session=key, is_whole_session=not ids, checkpoints=ids, count=count)


def _id_of(session: Session, ref: str) -> str:
    """The id that a ref names. A damaged checkpoint can still be removed by its number, or its id or a part of that."""
    if is_checkpoint_id(ref):
        return ref
    try:
        return session.header(ref).id
    except Corrupt as exc:
        if exc.checkpoint is None or not ref.startswith(("#", "seq:", "cp_")):
            raise
        return exc.checkpoint
