"""Removing checkpoints or sessions for good."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.api import Store
from holdfast.model import is_checkpoint_id
from holdfast.operations.views import Deleted, stored_count


def delete(store: Store, key: str, refs: Iterable[str] = ()) -> Deleted:
    """Remove checkpoints, or without refs the whole session, for good."""
    session = store.get(key)
    # A damaged checkpoint can still be removed by its id.
    ids = tuple(
        dict.fromkeys(ref if is_checkpoint_id(ref) else session.header(ref).id for ref in tuple(refs))
    )
    count = len(ids) or stored_count(session.info)
    if ids:
        session.delete(*ids)
    else:
        session.clear()
    return Deleted(session=key, is_whole_session=not ids, checkpoints=ids, count=count)
