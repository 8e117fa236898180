"""Branches: named lines of checkpoints. Fork at any checkpoint, move the session between them, close and reopen.

Nothing here removes a checkpoint, and every change is a compare-and-set: two at once never overwrite each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, Final, Literal, TypeAlias

import msgspec

from stepkeep.engine import Engine
from stepkeep.engine.engine import plain_metadata
from stepkeep.errors import Conflict, NotFound
from stepkeep.history.refs import SWITCHED
from stepkeep.model import Branch, BranchState, Header, Session, check_branch_name, check_name
from stepkeep.storage.port import ANY_HEAD, HeaderQuery

Why: TypeAlias = Literal["fork", "switch", "restore"]

NAMED: Final = "named"
"""The metadata of a branch whose name a person chose: restoring leaves such a branch pinned."""

MAX_TRIES: Final = 50
MAX_NAMES_TOLD: Final = 10


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is on another branch now. `left` is as it was when nobody saved there by default any more."""

    before: Session
    session: Session
    left: Branch
    entered: Branch


def find(engine: Engine, uid: str, name: str) -> Branch:
    """The branch with that name, or `NotFound` naming those that exist."""
    found = engine.backend.branch(uid, check_name("a branch", name))
    if found is None:
        key = engine.backend.session(uid).key
        names = [branch.name for branch in engine.backend.branches(uid)]
        more = f" and {len(names) - MAX_NAMES_TOLD} more" if len(names) > MAX_NAMES_TOLD else ""
        raise NotFound(
            f"no branch {name!r}: there is {', '.join(map(repr, names[:MAX_NAMES_TOLD]))}{more}",
            code="branch_not_found",
            session=key,
            branch=name,
        )
    return found


def is_open(branch: Branch) -> bool:
    return branch.state is BranchState.OPEN


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

    Without a name it gets one such as `from-12`, after the checkpoint's number.

    Raises:
        Conflict: a branch has that name (`branch_exists`).
        NotFound: the checkpoint was removed.
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
        stored = _store_new(engine, at.session, msgspec.structs.replace(wanted, name=candidate))
        if stored is not None:
            return stored
    raise exists(at.session, wanted.name)


def exists(uid: str, name: str) -> Conflict:
    return Conflict(
        f"there is a branch {name!r} already: switch to it, or choose another name",
        code="branch_exists",
        retryable=False,
        session=uid,
        branch=name,
    )


def _names(at: Header) -> Iterator[str]:
    yield f"from-{at.seq}"
    yield from (f"from-{at.seq}-{number}" for number in count(2))


def _store_new(engine: Engine, uid: str, branch: Branch) -> Branch | None:
    """The branch as stored; None when there is one of that name, be it since a moment."""
    if engine.backend.branch(uid, branch.name) is not None:
        return None
    return _set_if_unmoved(engine, uid, branch, expect_head=None)


# --- moving the session ----------------------------------------------------------------------------------------


def switch(engine: Engine, uid: str, name: str) -> Branch:
    """Make a branch the session's current one; saves that name no branch go there from now on.

    Raises:
        NotFound: there is none of that name (`branch_not_found`).
        Conflict: it was merged, abandoned or archived (`branch_closed`), or all of it was pruned (`branch_empty`).
    """

    def wanted(session: Session) -> Branch:
        branch = find(engine, uid, name)
        check_open(branch, uid)
        # One that began nowhere may simply not have been used yet.
        if branch.head is None and branch.fork is not None and _has_checkpoints(engine, uid):
            raise Conflict(
                f"nothing is left of branch {name!r}: restore a checkpoint instead",
                code="branch_empty",
                retryable=False,
                session=session.key,
                branch=name,
            )
        return branch

    return move(engine, uid, wanted, why="switch").entered


def _has_checkpoints(engine: Engine, uid: str) -> bool:
    return next(engine.backend.headers(HeaderQuery(session=uid, limit=1)), None) is not None


def check_open(branch: Branch, uid: str) -> None:
    if not is_open(branch):
        raise Conflict(
            f"branch {branch.name!r} is {branch.state}: reopen it first",
            code="branch_closed",
            retryable=False,
            session=uid,
            branch=branch.name,
        )


def move(
    engine: Engine,
    uid: str,
    wanted: Callable[[Session], Branch],
    *,
    why: Why,
    changes: Callable[[Session], dict[str, Any]] = lambda _: {},
    expect_head: str | None = ANY_HEAD,
) -> Move:
    """Make the branch that is `wanted` the session's current one, in one step with other changes of the session.

    When someone else changed the session meanwhile, everything is looked at again. With `expect_head` it
    happens only if the branch that is left still has that head at the moment of the switch.

    Raises:
        Conflict: it has another head (`head_moved`); the session stays where it is.
    """
    for _ in range(MAX_TRIES):
        session = engine.backend.session(uid)
        check_head(session, find(engine, uid, session.branch), expect_head)
        branch = _pinned(engine, uid, wanted(session))
        if branch is None:
            continue
        fields = {"branch": branch.name, **changes(session)}
        if branch.name == session.branch and len(fields) == 1:
            return Move(before=session, session=session, left=branch, entered=branch)
        moved = _update(engine, session, fields)
        if moved is None:
            continue
        # Nobody saves to the old branch by default any more, so its head now is what was left.
        left = find(engine, uid, session.branch)
        _check_left(engine, session, moved, left, fields, expect_head)
        if branch.name != left.name:
            _record(engine, uid, left, branch, why)
        return Move(before=session, session=moved, left=left, entered=branch)
    raise Conflict(f"others keep changing session {uid}: try again", code="version_changed", session=uid)


def _update(engine: Engine, session: Session, fields: dict[str, Any]) -> Session | None:
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


def check_head(session: Session, branch: Branch, expect_head: str | None) -> None:
    if expect_head not in (ANY_HEAD, branch.head):
        raise Conflict(
            f"branch {branch.name!r} is at {branch.head or 'no checkpoint'}, not at "
            f"{expect_head or 'none'}: someone saved meanwhile, so look again",
            code="head_moved",
            session=session.key,
            branch=branch.name,
            checkpoint=branch.head,
        )


def _check_left(
    engine: Engine,
    before: Session,
    moved: Session,
    left: Branch,
    fields: dict[str, Any],
    expect_head: str | None,
) -> None:
    """A save may have come between the look at the head and the switch: then the switch is taken back."""
    if left.name == moved.branch:
        return
    try:
        check_head(before, left, expect_head)
    except Conflict:
        _update(engine, moved, {name: getattr(before, name) for name in fields})
        raise


def _record(engine: Engine, uid: str, left: Branch, entered: Branch, why: Why) -> None:
    data = {
        "from": left.name,
        "from_head": left.head,
        "to": entered.name,
        "to_head": entered.head,
        "why": why,
    }
    engine.backend.record_event(uid, SWITCHED, data, time_us=engine.clock())


# --- changing a branch -----------------------------------------------------------------------------------------


def close(
    engine: Engine, uid: str, name: str, state: Literal[BranchState.ABANDONED, BranchState.ARCHIVED]
) -> Branch:
    """Close a branch. Its checkpoints stay and can be loaded, but pruning treats them like any others.

    Raises:
        NotFound: there is none of that name (`branch_not_found`).
        Conflict: it is the session's current one (`branch_is_current`).
    """
    branch = find(engine, uid, name)
    if engine.backend.session(uid).branch == name:
        raise is_current(uid, name, f"cannot be {state}")
    return change(engine, uid, branch, state=state)


def close_at(engine: Engine, uid: str, branch: Branch, state: BranchState) -> Branch | None:
    """The branch as closed, at the very head it was seen with; None when someone saved to it meanwhile."""
    closed = msgspec.structs.replace(branch, state=state)
    return _set_if_unmoved(engine, uid, closed, expect_head=branch.head)


def is_current(uid: str, name: str, problem: str) -> Conflict:
    return Conflict(
        f"branch {name!r} is the current one and {problem}: switch to another first",
        code="branch_is_current",
        retryable=False,
        session=uid,
        branch=name,
    )


def reopen(engine: Engine, uid: str, name: str) -> Branch:
    """Open a branch again that was merged, abandoned or archived; it is pinned from now on."""
    return change(engine, uid, find(engine, uid, name), state=BranchState.OPEN, is_pinned=True)


def _pinned(engine: Engine, uid: str, branch: Branch) -> Branch | None:
    """The branch as pinned, at the very head it was seen with; None when someone saved to it meanwhile."""
    if branch.is_pinned:
        return branch
    pinned = msgspec.structs.replace(branch, is_pinned=True)
    return _set_if_unmoved(engine, uid, pinned, expect_head=branch.head)


def _set_if_unmoved(engine: Engine, uid: str, branch: Branch, *, expect_head: str | None) -> Branch | None:
    try:
        return engine.backend.set_branch(uid, branch, expect_head=expect_head)
    except Conflict as exc:
        if exc.code != "head_moved":
            raise
        return None


def change(engine: Engine, uid: str, branch: Branch, **fields: Any) -> Branch:
    """The branch with other fields, whatever its head is by now."""
    for _ in range(MAX_TRIES):
        wanted = msgspec.structs.replace(branch, **fields)
        if wanted == branch:
            return branch
        changed = _set_if_unmoved(engine, uid, wanted, expect_head=branch.head)
        if changed is not None:
            return changed
        branch = find(engine, uid, branch.name)
    raise Conflict(f"others keep saving to branch {branch.name!r}: try again", code="head_moved", session=uid)
