"""Branches, merging and restoring."""

from __future__ import annotations

from collections import Counter

from msgspec import UNSET, Raw, UnsetType

from stepkeep.api import Session, Store
from stepkeep.codec import exact
from stepkeep.engine import reader
from stepkeep.errors import StepkeepError
from stepkeep.history import branches as branching
from stepkeep.history.compare import compare
from stepkeep.history.merge import ABSENT, Clash, MergeConflict, Side
from stepkeep.history.merging import Strategy
from stepkeep.history.paths import format_path
from stepkeep.history.restore import BEFORE
from stepkeep.model import Branch, Header, from_us
from stepkeep.operations.views import (
    BranchChanged,
    Branches,
    BranchView,
    ChangeCounts,
    ClashView,
    History,
    MergeView,
    RestoredView,
    checkpoint_views,
)
from stepkeep.storage.port import HeaderQuery


def list_branches(store: Store, key: str) -> Branches:
    """The branches of a session, oldest first."""
    session = store.get(key)
    current = session.info.branch
    own = Counter(row.branch for row in store.engine.backend.headers(HeaderQuery(session=session.uid)))
    views = tuple(_view(store, session, each, current, own[each.name]) for each in session.branches())
    return Branches(session=session.key, current=current, branches=views)


def _view(store: Store, session: Session, branch: Branch, current: str, checkpoints: int) -> BranchView:
    head = _header(store, session, branch.head)
    return BranchView(
        name=branch.name,
        is_current=branch.name == current,
        state=branch.state.value,
        is_pinned=branch.is_pinned,
        checkpoints=checkpoints,
        head=branch.head,
        head_seq=branch.head_seq,
        time=None if head is None else head.created_at,
        message="" if head is None else head.message,
        fork=branch.fork,
        fork_branch=branch.fork_branch,
        fork_seq=branch.fork_seq,
        created=from_us(branch.created_us),
        metadata=branch.metadata,
    )


def _header(store: Store, session: Session, checkpoint: str | None) -> Header | None:
    """A header for showing it; None where it is damaged or gone."""
    try:
        return None if checkpoint is None else store.engine.header(checkpoint, session=session.uid)
    except StepkeepError:
        return None


def _changed(store: Store, session: Session, branch: Branch) -> BranchChanged:
    own = sum(1 for _ in store.engine.backend.headers(HeaderQuery(session=session.uid, branch=branch.name)))
    view = _view(store, session, branch, session.info.branch, own)
    return BranchChanged(session=session.key, branch=view)


def fork(
    store: Store, key: str, ref: str = "latest", *, name: str | None = None, switch: bool = True
) -> BranchChanged:
    """Begin a branch at a checkpoint."""
    session = store.get(key)
    return _changed(store, session, session.fork(ref, name, switch=switch))


def switch(store: Store, key: str, name: str) -> BranchChanged:
    """Make a branch the current one."""
    session = store.get(key)
    return _changed(store, session, session.switch(name))


def close_branch(store: Store, key: str, name: str, *, archive: bool) -> BranchChanged:
    """Abandon a branch, or archive it."""
    session = store.get(key)
    return _changed(store, session, session.archive(name) if archive else session.abandon(name))


def reopen_branch(store: Store, key: str, name: str) -> BranchChanged:
    """Open a closed branch again."""
    session = store.get(key)
    return _changed(store, session, session.reopen(name))


def branch_log(store: Store, key: str, name: str, *, limit: int | None = None) -> History:
    """The line of one branch, newest first, through the branches that it was forked from."""
    session = store.get(key)
    branch = branching.find(store.engine, session.uid, name)
    rows = list(reader.line_of(store.engine.backend, session.info, branch.name))
    headers: list[Header] = []
    damaged: list[str] = []
    for row in rows:
        if limit is not None and len(headers) >= limit:
            break
        try:
            headers.append(reader.verified(row))
        except StepkeepError:
            damaged.append(row.id)
    return History(
        session=session.key,
        branch=branch.name,
        total=len(rows),
        checkpoints=checkpoint_views(session.key, session, headers),
        damaged=tuple(damaged),
    )


# --- merging


def merge(
    store: Store,
    key: str,
    name: str,
    *,
    strategy: Strategy = "union",
    message: str = "",
    on_conflict: Side | None = None,
) -> MergeView:
    """Merge a branch into the current one. Clashes are a result: nothing is written, and all are listed."""
    session = store.get(key)
    into = session.info.branch
    try:
        done = session.merge(name, strategy=strategy, message=message, on_conflict=on_conflict)
    except MergeConflict as exc:
        return MergeView(
            session=session.key,
            branch=name,
            into=into,
            strategy=strategy,
            is_merged=False,
            is_closed=False,
            base=None,
            checkpoint=None,
            clashes=tuple(map(_clash_view, exc.clashes)),
        )
    return MergeView(
        session=session.key,
        branch=name,
        into=done.header.branch,
        strategy=done.strategy,
        is_merged=True,
        is_closed=done.is_closed,
        base=done.base,
        checkpoint=checkpoint_views(session.key, session, [done.header])[0],
        clashes=tuple(map(_clash_view, done.clashes)),
    )


def _clash_view(clash: Clash) -> ClashView:
    (base_encoding, base), (ours_encoding, ours), (theirs_encoding, theirs) = map(
        _encoded, (clash.base, clash.ours, clash.theirs)
    )
    return ClashView(
        path=format_path(clash.path),
        base_encoding=base_encoding,
        base=base,
        ours_encoding=ours_encoding,
        ours=ours,
        theirs_encoding=theirs_encoding,
        theirs=theirs,
    )


def _encoded(value: object) -> tuple[str | UnsetType, Raw | UnsetType]:
    if value is ABSENT:
        return UNSET, UNSET
    encoding, data = exact.encode(value)
    return encoding, Raw(data)


# --- restoring


def restore(
    store: Store, key: str, ref: str, *, branch: str | None = None, expect_head: str | None = None
) -> RestoredView:
    """Let a session go on from a checkpoint. `expect_head` is the id that latest must still have."""
    session = store.get(key)
    if expect_head is None:
        done = session.restore(ref, branch=branch)
    else:
        done = session.restore(ref, branch=branch, expect_head=expect_head)
    previous = _header(store, session, done.previous_head)
    return RestoredView(
        session=session.key,
        checkpoint=checkpoint_views(session.key, session, [done.checkpoint.header])[0],
        branch=done.branch,
        is_new_branch=done.is_new_branch,
        previous_branch=done.previous_branch,
        previous_head=done.previous_head,
        previous_seq=None if previous is None else previous.seq,
        changes=None if previous is None else _changes(store, previous, done.state),
        undo=BEFORE,
    )


def _changes(store: Store, previous: Header, state: object) -> ChangeCounts | None:
    try:
        before = store.engine.load(previous).value()
    except StepkeepError:
        return None
    found = compare(before, state, limit=0)
    return ChangeCounts(
        total=found.total,
        added=found.added,
        removed=found.removed,
        changed=found.changed,
        moved=found.moved,
        summary=found.summary,
    )
