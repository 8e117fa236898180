"""Comparing the states of two checkpoints."""

from __future__ import annotations

from itertools import islice

from msgspec import Raw

from stepkeep.api import Checkpoint, Session, Store
from stepkeep.codec import exact
from stepkeep.engine import reader
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.history.changes import Added, Change, Changed, Comparison, Moved, Removed
from stepkeep.history.compare import compare
from stepkeep.history.paths import format_path
from stepkeep.model import Header
from stepkeep.operations.views import ChangeView, CheckpointView, Diff, checkpoint_views
from stepkeep.storage.port import HeaderQuery


def diff(
    store: Store, key: str, older: str | None = None, newer: str = "latest", *, limit: int | None = None
) -> tuple[Diff, Comparison]:
    """What changed from one checkpoint of a session to another. Without `older` it is the one before `newer`.

    Keeps at most `limit` changes and counts all. The comparison has the same with its values, for text.
    """
    session = store.get(key)
    after = session.load(newer)
    before = session.load(_before(store, session, after) if older is None else older)
    return _diff(store, before, after, limit)


def diff_ids(store: Store, older: str, newer: str, *, limit: int | None = None) -> tuple[Diff, Comparison]:
    """The same for two ids, or the beginnings of ids, of whichever sessions."""
    return _diff(store, _by_id(store, older), _by_id(store, newer), limit)


def _before(store: Store, session: Session, checkpoint: Checkpoint) -> str:
    header = checkpoint.header
    for row in reader.line_of(store.engine.backend, session.info, header.branch):
        if row.seq < header.seq:
            return row.id
    raise NotFound(
        f"session {session.key!r} has no checkpoint before #{header.seq} to compare it with",
        code="checkpoint_not_found",
        session=session.key,
    )


def _by_id(store: Store, text: str) -> Checkpoint:
    rows = list(islice(store.engine.backend.headers(HeaderQuery(id_prefix=text)), 2))
    if len(rows) > 1:
        raise InvalidInput(
            f"{text} is the beginning of several ids, such as {rows[0].id} and {rows[1].id}",
            code="ambiguous_ref",
        )
    return store.checkpoint(rows[0].id if rows else text)


def _diff(store: Store, before: Checkpoint, after: Checkpoint, limit: int | None) -> tuple[Diff, Comparison]:
    comparison = compare(before.state, after.state, limit=limit)
    older, newer = (_view(store, checkpoint.header) for checkpoint in (before, after))
    result = Diff(
        older=older,
        newer=newer,
        elapsed_seconds=(after.header.time_us - before.header.time_us) / 1e6,
        total=comparison.total,
        added=comparison.added,
        removed=comparison.removed,
        changed=comparison.changed,
        moved=comparison.moved,
        summary=comparison.summary,
        is_workflow=comparison.is_workflow,
        changes=tuple(_change_view(change) for change in comparison.changes),
    )
    return result, comparison


def _view(store: Store, header: Header) -> CheckpointView:
    session = Session(store.engine, store.engine.backend.session(header.session))
    return checkpoint_views(session.key, session, [header])[0]


def _change_view(change: Change) -> ChangeView:
    path = format_path(change.path)
    match change:
        case Added(_, value):
            encoding, data = exact.encode(value)
            return ChangeView(kind="added", path=path, new_encoding=encoding, new=Raw(data))
        case Removed(_, value):
            encoding, data = exact.encode(value)
            return ChangeView(kind="removed", path=path, old_encoding=encoding, old=Raw(data))
        case Changed(_, old, new):
            (old_encoding, old_data), (new_encoding, new_data) = exact.encode(old), exact.encode(new)
            return ChangeView(
                kind="changed",
                path=path,
                old_encoding=old_encoding,
                old=Raw(old_data),
                new_encoding=new_encoding,
                new=Raw(new_data),
            )
        case Moved(_, old_index, new_index):
            return ChangeView(kind="moved", path=path, old_index=old_index, new_index=new_index)
