"""Branches: named lines of checkpoints. Fork at any checkpoint, move the session between them, go on from an old
checkpoint, close and reopen, and find where two of them parted.

Nothing here removes a checkpoint, and every change is a compare-and-set: two at once never overwrite each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final, Literal, TypeAlias

import msgspec

from stepkeep.engine import Engine, Loaded, reader
from stepkeep.engine.engine import plain_metadata
from stepkeep.errors import Conflict, NotFound
from stepkeep.history import refs
from stepkeep.history.refs import BEFORE, SWITCHED
from stepkeep.model import Branch, BranchState, Header, SessionInfo, Status, check_branch_name, check_name
from stepkeep.storage.port import ANY_HEAD, HeaderQuery

Why: TypeAlias = Literal["fork", "switch", "restore", "undo"]

NAMED: Final = "named"
"""The metadata of a branch whose name a person chose: restoring leaves such a branch pinned."""

MAX_TRIES: Final = 50
MAX_NAMES_TOLD: Final = 10


class BranchSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is on another branch now. `left` is as it was when nobody saved there by default any more."""

    before: SessionInfo
    left: Branch
    entered: Branch


def find(engine: Engine, uid: str, name: str) -> Branch:
    """The branch with that name, or `NotFound` naming those that exist."""
    found = engine.backend.branch(uid, check_name("a branch", name))
    if found is None:
        key = engine.backend.session(uid).key
        names = [branch.name for branch in engine.backend.branches(uid)]
        raise NotFound(
            f"session {key!r} has no branch {name!r}: there {'is' if len(names) == 1 else 'are'} {listed(names)}",
            code="branch_not_found",
            session=key,
            branch=name,
        )
    return found


def listed(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - MAX_NAMES_TOLD:,} more" if len(names) > MAX_NAMES_TOLD else ""
    return f"{', '.join(names[:MAX_NAMES_TOLD])}{more}"


# --- forking ---------------------------------------------------------------------------------------------------


def fork(
    engine: Engine,
    at: Header,
    name: str | None = None,
    *,
    switch: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> Branch:
    """Begin a branch at a checkpoint, by default as the session's current one.

    Without a name it gets one such as `from-12`, after the checkpoint's number. A name that is taken is a `Conflict`.
    """
    branch = begin(engine, at, name, metadata=metadata)
    if switch:
        move(engine, at.session, lambda _: branch, why="fork")
    return branch


def begin(
    engine: Engine, at: Header, name: str | None, *, metadata: Mapping[str, Any] | None = None
) -> Branch:
    """A new branch at a checkpoint, pinned, so that pruning leaves the checkpoint alone from now on (V7)."""
    marks = {} if name is None else {NAMED: True}
    wanted = Branch(
        name="" if name is None else check_branch_name(name),
        created_us=engine.clock(),
        head=at.id,
        fork=at.id,
        metadata=plain_metadata({**(metadata or {}), **marks}),
    )
    for candidate in _names(at) if name is None else [name]:
        if engine.backend.branch(at.session, candidate) is None:
            branch = msgspec.structs.replace(wanted, name=candidate)
            # Another may have taken the name a moment ago.
            if (stored := _set_if_unmoved(engine, at.session, branch, expect_head=None)) is not None:
                return stored
    raise _exists(at.session, wanted.name)


def _refused(message: str, uid: str, name: str, *, code: str) -> Conflict:
    return Conflict(message, code=code, retryable=False, session=uid, branch=name)


def _exists(uid: str, name: str) -> Conflict:
    message = f"there is a branch {name!r} already: switch to it, or choose another name"
    return _refused(message, uid, name, code="branch_exists")


def _names(at: Header) -> Iterator[str]:
    yield f"from-{at.seq}"
    yield from (f"from-{at.seq}-{number}" for number in count(2))


# --- moving the session ----------------------------------------------------------------------------------------


def switch(engine: Engine, uid: str, name: str) -> Branch:
    """Make a branch the session's current one; saves that name no branch go there from now on. A branch that is closed,
    or of which all was pruned, is a `Conflict`."""

    def wanted(session: SessionInfo) -> Branch:
        branch = find(engine, uid, name)
        check_open(branch, uid)
        # One that began nowhere may simply not have been used yet.
        is_used = branch.head is None and branch.fork is not None
        if is_used and any(engine.backend.headers(HeaderQuery(session=uid, limit=1))):
            message = f"nothing is left of branch {name!r}: restore a checkpoint instead"
            raise _refused(message, session.key, name, code="branch_empty")
        return branch

    return move(engine, uid, wanted, why="switch").entered


def check_open(branch: Branch, uid: str) -> None:
    if branch.state is not BranchState.OPEN:
        message = f"branch {branch.name!r} is {branch.state}: reopen it first"
        raise _refused(message, uid, branch.name, code="branch_closed")


def move(
    engine: Engine,
    uid: str,
    wanted: Callable[[SessionInfo], Branch],
    *,
    why: Why,
    changes: Callable[[SessionInfo], dict[str, Any]] = lambda _: {},
    expect_head: str | None = ANY_HEAD,
) -> BranchSwitch:
    """Make the branch that is `wanted` the session's current one, in one step with other changes of the session.

    When someone else changed the session meanwhile, everything is looked at again. With `expect_head` it
    happens only if the branch that is left still has that head at the moment of the switch.

    Raises:
        Conflict: it has another head (`head_moved`); the session stays where it is.
    """
    for _ in range(MAX_TRIES):
        session = engine.backend.session(uid)
        check_head(session, find(engine, uid, session.branch), expect_head)
        found = wanted(session)
        pinned = msgspec.structs.replace(found, is_pinned=True)
        branch = found if found == pinned else _set_if_unmoved(engine, uid, pinned, expect_head=found.head)
        if branch is None:
            continue  # someone saved to it meanwhile
        fields = {"branch": branch.name, **changes(session)}
        if branch.name == session.branch and len(fields) == 1:
            return BranchSwitch(before=session, left=branch, entered=branch)
        moved = _update(engine, session, fields)
        if moved is None:
            continue
        # Nobody saves to the old branch by default any more, so its head now is what was left.
        left = find(engine, uid, session.branch)
        try:
            if left.name != moved.branch:
                check_head(session, left, expect_head)
        except Conflict:  # a save came between the check and the switch, which is undone
            _update(engine, moved, {name: getattr(session, name) for name in fields})
            raise
        if branch.name != left.name:
            data = {
                "from": left.name,
                "from_head": left.head,
                "to": branch.name,
                "to_head": branch.head,
                "why": why,
            }
            engine.backend.record_event(uid, SWITCHED, data, time_us=engine.clock())
        return BranchSwitch(before=session, left=left, entered=branch)
    raise Conflict(f"others keep changing session {uid}: try again", code="version_changed", session=uid)


def _update(engine: Engine, session: SessionInfo, fields: dict[str, Any]) -> SessionInfo | None:
    """The changed session; None when it is not the one that was looked at any more."""
    updated_us = max(session.updated_us, engine.clock())
    try:
        return engine.backend.update_session(
            session.uid, {**fields, "updated_us": updated_us}, expect_version=session.version
        )
    except Conflict as exc:
        if exc.code != "version_changed":
            raise
        return None
    finally:
        engine.forget(session.uid)


def check_head(session: SessionInfo, branch: Branch, expect_head: str | None) -> None:
    if expect_head not in (ANY_HEAD, branch.head):
        raise Conflict(
            f"branch {branch.name!r} is at {branch.head or 'no checkpoint'}, not at "
            f"{expect_head or 'none'}: someone saved meanwhile, so look again",
            code="head_moved",
            session=session.key,
            branch=branch.name,
            checkpoint=branch.head,
        )


# --- going on from an old checkpoint ---------------------------------------------------------------------------


class Restoration(msgspec.Struct, frozen=True, kw_only=True):
    """What was restored, on which branch the session goes on, and what it left behind."""

    loaded: Loaded
    branch: Branch
    is_new_branch: bool
    left: Branch

    @property
    def undo(self) -> str:
        """How to return, in words."""
        if self.left.name == self.branch.name:
            return "nothing to undo: the session was there already"
        return (
            f"restore {BEFORE!r} returns to branch {self.left.name!r} at {self.left.head or 'its beginning'}"
        )


def restore(
    engine: Engine, loaded: Loaded, *, branch: str | None = None, expect_head: str | None = ANY_HEAD
) -> Restoration:
    """Let a session go on from one of its checkpoints. What came after stays where it is.

    Where an open branch has it as head the session switches there, else a branch is forked. The branch left behind
    stays, but unless a person named it pruning may take it (V7). A session that was finished is in progress again.

    Raises:
        Conflict: `expect_head` is not the head of the current branch (`head_moved`), or the branch that was
            named exists elsewhere (`branch_exists`) or is not open (`branch_closed`).
    """
    return _restored(engine, loaded, branch, expect_head)


def undo(
    engine: Engine,
    session: SessionInfo,
    *,
    switch: Mapping[str, Any] | None = None,
    why: Why = "undo",
    expect_head: str | None = ANY_HEAD,
) -> Restoration:
    """Return to where the session was before its last restore, fork or switch: to that branch, at its head.

    A branch that was closed since is forked where it was left. Undoing twice is doing it again. `switch` is what was
    noted of an earlier one, to return to where the session was before that.

    Raises:
        NotFound: the session never changed its branch, or the checkpoint is gone (`checkpoint_not_found`).
    """
    left = switch or refs.last_switch(engine, session) or {}
    home = _left_by(engine, session, left)
    if home is None or home.head is None:
        if switch is None or not isinstance(switch.get("from_head"), str):
            header = refs.resolve(engine, session, refs.CheckpointRef("before"))
        else:
            header = engine.header(switch["from_head"], session=session.uid)
        return _restored(engine, engine.load(header), None, expect_head, why=why)
    loaded = engine.load(engine.header(home.head, session=session.uid))
    return _restored(engine, loaded, None, expect_head, preferred=home.name, why=why)


def _left_by(engine: Engine, session: SessionInfo, switch: Mapping[str, Any]) -> Branch | None:
    """The branch that a change of branches left, if it is open and where it was left, or further on."""
    home = None if "from" not in switch else engine.backend.branch(session.uid, switch["from"])
    if home is None or home.head is None or home.state is not BranchState.OPEN:
        return None
    # Where pruning took the head that was left, an older one does not take its place. Ids sort like times.
    head = switch.get("from_head") or ""
    is_stored = next(engine.backend.headers(HeaderQuery(session=session.uid, ids=(head,))), None) is not None
    return home if is_stored or home.head > head else None


def _restored(
    engine: Engine,
    loaded: Loaded,
    name: str | None,
    expect_head: str | None,
    preferred: str | None = None,
    why: Why = "restore",
) -> Restoration:
    header, begun = loaded.header, None

    def target(session: SessionInfo) -> Branch:
        """The branch to go on with: one that has the checkpoint as its head, else a new one."""
        nonlocal begun
        if begun is None:
            found = _at_head(engine, session, header, name, preferred)
            if found is not None:
                return found
            begun = begin(engine, header, name)
        return begun

    try:
        done = move(engine, header.session, target, why=why, changes=_reopening, expect_head=expect_head)
    except (Conflict, NotFound):
        if begun is not None:
            change(engine, header.session, begun, state=BranchState.ABANDONED, is_pinned=False)
        raise
    # Nothing below changes where the session is.
    if done.left.name != done.entered.name and NAMED not in done.left.metadata:
        change(engine, header.session, done.left, is_pinned=False)
    if done.before.status.is_finished:
        data = {"checkpoint": header.id}
        engine.backend.record_event(header.session, "session_reopened", data, time_us=engine.clock())
    return Restoration(loaded=loaded, branch=done.entered, is_new_branch=begun is not None, left=done.left)


def _at_head(
    engine: Engine, session: SessionInfo, header: Header, name: str | None, preferred: str | None
) -> Branch | None:
    """The branch that is named, or an open one that has the checkpoint as its head."""
    if name is not None:
        found = engine.backend.branch(session.uid, check_name("a branch", name))
        if found is not None:
            check_open(found, session.uid)
            if found.head != header.id:
                raise _exists(session.uid, name)
        return found
    records = engine.backend.branches(session.uid)
    at_head = {
        each.name: each for each in records if each.head == header.id and each.state is BranchState.OPEN
    }
    order = (preferred, session.branch, header.branch, *at_head)
    return next((at_head[each] for each in order if each in at_head), None)


def _reopening(session: SessionInfo) -> dict[str, Any]:
    if not session.status.is_finished:
        return {}
    return {"status": Status.IN_PROGRESS, "finished_us": None, "error": None}


# --- changing a branch -----------------------------------------------------------------------------------------


def close(
    engine: Engine, uid: str, name: str, state: Literal[BranchState.ABANDONED, BranchState.ARCHIVED]
) -> Branch:
    """Close a branch, unless it is the current one or was merged: that it was must stay known. Its checkpoints stay and
    can be loaded, but pruning treats them like any others."""
    branch = find(engine, uid, name)
    if branch.state is BranchState.MERGED:
        check_open(branch, uid)
    if engine.backend.session(uid).branch == name:
        raise is_current(uid, name, f"cannot be {state}")
    return change(engine, uid, branch, state=state)


def close_at(engine: Engine, uid: str, branch: Branch, state: BranchState) -> Branch | None:
    """The branch as closed, at the very head it was seen with; None when someone saved to it meanwhile."""
    return _set_if_unmoved(engine, uid, msgspec.structs.replace(branch, state=state), expect_head=branch.head)


def is_current(uid: str, name: str, problem: str) -> Conflict:
    message = f"branch {name!r} is the current one and {problem}: switch to another first"
    return _refused(message, uid, name, code="branch_is_current")


def reopen(engine: Engine, uid: str, name: str) -> Branch:
    """Open a branch again that was merged, abandoned or archived; it is pinned from now on."""
    return change(engine, uid, find(engine, uid, name), state=BranchState.OPEN, is_pinned=True)


def _set_if_unmoved(engine: Engine, uid: str, branch: Branch, *, expect_head: str | None) -> Branch | None:
    """The branch as stored; None when its head is another by now."""
    try:
        return engine.backend.set_branch(uid, branch, expect_head=expect_head)
    except Conflict as exc:
        if exc.code != "head_moved":
            raise
        return None


def change(engine: Engine, uid: str, branch: Branch, **fields: Any) -> Branch:
    """The branch with other fields, whatever its head is by now."""
    wanted = msgspec.structs.replace(branch, **fields)
    if wanted == branch:
        return branch
    return engine.backend.set_branch(uid, msgspec.structs.replace(wanted, head=ANY_HEAD))


# --- where two branches parted -----------------------------------------------------------------------------------


def common_ancestor(engine: Engine, ours: Header, theirs: Header) -> Header | None:
    """The newest checkpoint that both descend from; None when they have no common ancestor, or it was removed.

    Follows parents, so a branch that was merged before is compared with what was merged then. Where pruning
    thinned a line, the walk goes on at the next older checkpoint of that line; when both sides arrive like that,
    the checkpoint where they parted is one of those that are gone.
    """
    # The checkpoints on the way back, each with the heads it was reached from: True if no link is missing.
    reached: dict[str, tuple[Header, dict[str, bool]]] = {}
    waiting: list[tuple[int, str]] = []  # the highest seq first: a parent is always older than its child

    def reach(header: Header, head: str, *, is_linked: bool) -> None:
        if header.id not in reached:
            reached[header.id] = header, {}
            heapq.heappush(waiting, (-header.seq, header.id))
        by = reached[header.id][1]
        by[head] = by.get(head, False) or is_linked

    for start in (ours, theirs):
        reach(start, start.id, is_linked=True)
    while waiting:
        found, by = reached[heapq.heappop(waiting)[1]]
        if len(by) == 2 or ours.id == theirs.id:
            return found if any(by.values()) else None
        for older, is_linked in _before(engine, found):
            for head in by:
                reach(older, head, is_linked=is_linked)
    return None


def _before(engine: Engine, header: Header) -> Iterator[tuple[Header, bool]]:
    """The stored checkpoints that a checkpoint descends from, and whether each is the very next one."""
    parents = [found for parent in header.parents if (found := _find(engine, header, ids=(parent,)))]
    yield from ((parent, True) for parent in parents)
    if len(parents) < len(header.parents):
        yield from _across_the_gap(engine, header)


def _across_the_gap(engine: Engine, header: Header) -> Iterator[tuple[Header, bool]]:
    """The next older checkpoint of the same line. One that a branch was forked at is known to be the very next."""
    name: str | None = header.branch
    max_seq, seen = header.seq - 1, set[str]()
    while name is not None and name not in seen:
        seen.add(name)
        if older := _find(engine, header, branch=name, max_seq=max_seq):
            yield older, False
            return
        record = engine.backend.branch(header.session, name)
        if record is None or record.fork is None:
            return
        if fork := _find(engine, header, ids=(record.fork,)):
            yield fork, True
            return
        name, max_seq = record.fork_branch, record.fork_seq


def _find(engine: Engine, near: Header, **query: Any) -> Header | None:
    """The newest of the same session that is stored, or None."""
    row = next(engine.backend.headers(HeaderQuery(session=near.session, **query, limit=1)), None)
    return None if row is None else reader.verified(row)
