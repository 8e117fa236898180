"""Merging a branch into the session's current one: a checkpoint with both heads as parents."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from stepkeep.engine import Engine, Loaded, NewBody, Save
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.history import branches
from stepkeep.history.ancestry import common_ancestor
from stepkeep.history.merge import ABSENT, Clash, MergeConflict, MergedState, Side, merge_states
from stepkeep.model import STATE, Branch, BranchState, Header, Session, Trigger, TriggerKind

Strategy: TypeAlias = Literal["union", "ours", "theirs"]

TAGS: Final = ("merge", "branch_merged")
"""The tags of a merge; profiles that keep what is significant keep the second one."""

_DETAILS: Final = "details"


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """A merge that was saved as `header`.

    `base` is the checkpoint that both branches began from, None when it is not stored or was not needed.
    `clashes` were decided by `on_conflict`. `is_closed` is False when someone saved to the merged branch
    meanwhile: that is not merged, and the branch stays open.
    """

    header: Header
    branch: Branch
    strategy: Strategy
    base: str | None = None
    clashes: tuple[Clash, ...] = ()
    is_closed: bool = True


def merge(
    engine: Engine,
    session: Session,
    name: str,
    *,
    strategy: Strategy = "union",
    message: str = "",
    on_conflict: Side | None = None,
) -> Merged:
    """Merge a branch into the current one and close it.

    `union` merges the states, see `history.merge`; `ours` and `theirs` take one of them. Details and step come
    from the side that is taken, with `union` from ours.

    Raises:
        NotFound: there is no such branch, or one of both has no checkpoint.
        Conflict: `merge_conflict` with all clashes, `branch_is_current`, `branch_closed`, or `head_moved` when
            someone saved to the current branch meanwhile. Nothing is written.
        Corrupt: a state that is needed is damaged.
    """
    _check_choice("strategy", strategy, get_args(Strategy))
    if on_conflict is not None:
        _check_choice("on_conflict", on_conflict, get_args(Side))
    uid = session.uid
    theirs_branch = branches.find(engine, uid, name)
    if name == session.branch:
        raise branches.is_current(uid, name, "cannot be merged into itself")
    branches.check_open(theirs_branch, uid)
    ours = _head(engine, session, branches.find(engine, uid, session.branch))
    theirs = _head(engine, session, theirs_branch)
    base = common_ancestor(engine, ours.header, theirs.header) if strategy == "union" else None
    merged = _merged(engine, session, name, strategy, base, ours, theirs, on_conflict)
    header = engine.save(
        Save(
            session=uid,
            bodies=_bodies(engine, merged.state, theirs if strategy == "theirs" else ours),
            parents=tuple(dict.fromkeys((ours.header.id, theirs.header.id))),
            expect_head=ours.header.id,
            step=(theirs if strategy == "theirs" else ours).header.step,
            trigger=Trigger(TriggerKind.AUTO, "merge"),
            message=message or f"merged {name[:200]}",
            tags=TAGS,
            metadata={"merge": _facts(name, strategy, base, ours, theirs, merged, on_conflict)},
        )
    )
    closed = branches.close_at(engine, uid, theirs_branch, BranchState.MERGED)
    return Merged(
        header=header,
        branch=closed or branches.find(engine, uid, name),
        strategy=strategy,
        base=None if base is None else base.id,
        clashes=merged.clashes,
        is_closed=closed is not None,
    )


def _check_choice(what: str, given: object, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise InvalidInput(f"{what} is one of {', '.join(choices)}, not {given!r}", code="invalid_option")


def _head(engine: Engine, session: Session, branch: Branch) -> Loaded:
    if branch.head is None:
        raise NotFound(
            f"branch {branch.name!r} has no checkpoint to merge",
            code="checkpoint_not_found",
            session=session.key,
            branch=branch.name,
        )
    return engine.load(engine.header(branch.head, session=session.uid))


def _merged(
    engine: Engine,
    session: Session,
    name: str,
    strategy: Strategy,
    base: Header | None,
    ours: Loaded,
    theirs: Loaded,
    on_conflict: Side | None,
) -> MergedState:
    if strategy != "union":
        return MergedState((ours if strategy == "ours" else theirs).value())
    began = ABSENT if base is None else engine.load(base).value()
    try:
        return merge_states(began, ours.value(), theirs.value(), prefer=on_conflict)
    except MergeConflict as exc:
        lost = "" if base is not None else " (the checkpoint that both began from is not stored any more)"
        raise MergeConflict(
            f"branch {name!r} cannot be merged into {session.branch!r}{lost}; {exc.message}\n"
            "Choose a side for these with on_conflict, or take one state with the strategy ours or theirs.",
            exc.clashes,
            session=session.key,
            branch=name,
        ) from None


def _bodies(engine: Engine, state: Any, side: Loaded) -> dict[str, NewBody]:
    bodies = {STATE: engine.encode(state)}
    if _DETAILS in side.contents:
        bodies[_DETAILS] = engine.encode(side.value(_DETAILS))
    return bodies


def _facts(
    name: str,
    strategy: Strategy,
    base: Header | None,
    ours: Loaded,
    theirs: Loaded,
    merged: MergedState,
    on_conflict: Side | None,
) -> dict[str, Any]:
    return {
        "branch": name,
        "strategy": strategy,
        "base": None if base is None else base.id,
        "ours": ours.header.id,
        "theirs": theirs.header.id,
        "clashes": len(merged.clashes),
        "on_conflict": on_conflict,
    }
