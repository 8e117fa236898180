"""Merging a branch into the session's current one: a checkpoint with both heads as parents.

`merge_states` is the pure part: three states in, one state and the clashes out. Compared with the state both sides
began from:

- what only one side changed is taken from that side, and what both changed alike stands;
- dicts are merged key by key, sets member by member;
- a list that both sides only appended to gets the additions of ours, then those of theirs;
- everything else that both sides changed is a clash, and so is a removal against a change.

Equality is strict, as in `state_diff`: `True`, `1` and `1.0` differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

from stepkeep.engine import Engine, Loaded, Save
from stepkeep.errors import Conflict, InvalidInput, NotFound
from stepkeep.history import branches
from stepkeep.history.branches import common_ancestor
from stepkeep.history.changes import value_text
from stepkeep.history.documents import ABSENT, Absent, CheckpointInfo, describe_one, exact_fields
from stepkeep.history.equality import SETS, Sameness, names_of, values_by_name, with_room
from stepkeep.history.paths import Path, format_path
from stepkeep.model import DETAILS, Branch, BranchState, Header, SessionInfo, Trigger, TriggerKind

Side: TypeAlias = Literal["ours", "theirs"]

MAX_TOLD: Final = 20
"""How many clashes the message of a `MergeConflict` describes; its `clashes` are all of them."""


class Clash(msgspec.Struct, frozen=True):
    """A place that both sides changed differently. A value is `ABSENT` where that state has none."""

    path: Path
    base: Any
    ours: Any
    theirs: Any


class MergedState(msgspec.Struct, frozen=True):
    """A merged state, and the clashes that were decided for one side. Parts are shared with the states given."""

    state: Any
    clashes: tuple[Clash, ...] = ()


class MergeConflict(Conflict):
    """Two branches changed the same places differently. `clashes` are all of them; nothing was written. `result`, set
    where branches of a session were merged, tells the same as JSON can hold it."""

    code = "merge_conflict"
    retryable = False
    result: Merged

    def __init__(self, message: str, clashes: Iterable[Clash], result: Merged | None = None) -> None:
        super().__init__(message)
        self.clashes = tuple(clashes)
        if result is not None:
            self.result, self.session, self.branch = result, result.session, result.branch


def merge_states(base: object, ours: object, theirs: object, *, prefer: Side | None = None) -> MergedState:
    """The state that has the changes of both sides since `base`.

    Without a base (`ABSENT`) only what is equal, and keys that one side alone has, can be merged. A clash is
    decided for the side that is preferred.

    Raises:
        MergeConflict: there are clashes, and no side is preferred.
    """
    walk = _MergeWalk(prefer or "ours")
    state = with_room(lambda: walk.merge((), base, ours, theirs))
    if walk.clashes and prefer is None:
        raise MergeConflict(describe(walk.clashes), walk.clashes)
    return MergedState(state, tuple(walk.clashes))


def describe(clashes: Sequence[Clash]) -> str:
    """The clashes in words, one per line."""
    count = "one place" if len(clashes) == 1 else f"{len(clashes):,} places"
    more = [f"and {len(clashes) - MAX_TOLD:,} more"] if len(clashes) > MAX_TOLD else []
    return "\n  ".join([f"both sides changed {count}:", *map(_line, clashes[:MAX_TOLD]), *more])


def _line(clash: Clash) -> str:
    sides = (clash.base, clash.ours, clash.theirs)
    base, ours, theirs = ("absent" if side is ABSENT else value_text(side) for side in sides)
    return f"{format_path(clash.path)}: was {base}, ours {ours}, theirs {theirs}"


class _MergeWalk:
    """Walks three states side by side and collects the clashes."""

    def __init__(self, preferred: Side) -> None:
        self.clashes: list[Clash] = []
        self._preferred = preferred
        self._same = Sameness()

    def merge(self, path: Path, base: Any, ours: Any, theirs: Any) -> Any:
        if self._same.of(ours, theirs) or self._same.of(base, theirs):
            return ours
        if self._same.of(base, ours):
            return theirs
        kind = type(ours)
        if kind is type(theirs):
            if kind is dict and type(base) in (dict, Absent):
                return self._dicts(path, base, ours, theirs)
            if kind is list and type(base) is list and self._are_appended(base, ours, theirs):
                return [*ours, *theirs[len(base) :]]
            if kind in SETS and type(base) is kind:
                return self._sets(path, base, ours, theirs)
        return self._clash(path, base, ours, theirs)

    def _clash(self, path: Path, base: Any, ours: Any, theirs: Any) -> Any:
        self.clashes.append(Clash(path, base, ours, theirs))
        return ours if self._preferred == "ours" else theirs

    def _dicts(self, path: Path, base: Any, ours: dict[Any, Any], theirs: dict[Any, Any]) -> Any:
        bases = {} if base is ABSENT else values_by_name(base)
        our_names, their_names = values_by_name(ours), values_by_name(theirs)
        merged = {}
        for name in our_names | their_names:
            absent = (None, ABSENT)
            key = our_names.get(name, their_names.get(name, absent))[0]
            sides = (names.get(name, absent)[1] for names in (bases, our_names, their_names))
            value = self.merge((*path, key), *sides)
            if value is not ABSENT:
                merged[name] = (key, value)
        result = dict(merged.values())
        # Keys that differ strictly may still be one key of a dict, such as 1 and True.
        return result if len(result) == len(merged) else self._clash(path, base, ours, theirs)

    def _sets(self, path: Path, base: Any, ours: Any, theirs: Any) -> Any:
        """A member stays if both have it or one side added it."""
        bases, our_names, their_names = (names_of(dict.fromkeys(each)) for each in (base, ours, theirs))
        both = their_names | our_names
        wanted = (our_names.keys() & their_names.keys()) | (both.keys() - bases.keys())
        merged = type(ours)(both[name] for name in wanted)
        return merged if len(merged) == len(wanted) else self._clash(path, base, ours, theirs)

    def _are_appended(self, base: list[Any], ours: list[Any], theirs: list[Any]) -> bool:
        return all(self._same.beginning(base, each) == len(base) for each in (ours, theirs))


# --- merging branches --------------------------------------------------------------------------------------------

Strategy: TypeAlias = Literal["union", "ours", "theirs"]

TAGS: Final = ("merge", "branch_merged")
"""The tags of a merge; profiles that keep what is significant keep the second one."""


class ClashInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A place that both sides changed differently, for JSON. A value is missing where that state has none."""

    path: str
    base_encoding: str | UnsetType = UNSET
    base: Raw | UnsetType = UNSET
    ours_encoding: str | UnsetType = UNSET
    ours: Raw | UnsetType = UNSET
    theirs_encoding: str | UnsetType = UNSET
    theirs: Raw | UnsetType = UNSET


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """A merge, or why it was refused: then `checkpoint` is None, and nothing was written.

    `into` is the branch merged into. `base` is the checkpoint that both branches began from, None when it is not stored
    or was not needed. `clashes` were decided by `on_conflict` if there is a checkpoint. `is_closed` is False when
    someone saved to the merged branch meanwhile: that is not merged, and the branch stays open.
    """

    session: str
    branch: str
    into: str
    strategy: Strategy
    is_merged: bool
    is_closed: bool = False
    base: str | None = None
    checkpoint: CheckpointInfo | None = None
    clashes: tuple[ClashInfo, ...] = ()


def _clash_info(clash: Clash) -> ClashInfo:
    values = exact_fields(base=clash.base, ours=clash.ours, theirs=clash.theirs)
    return ClashInfo(path=format_path(clash.path), **values)


def merge(
    engine: Engine,
    session: SessionInfo,
    name: str,
    *,
    strategy: Strategy = "union",
    message: str = "",
    on_conflict: Side | None = None,
    save: Callable[[Save], Header] | None = None,
) -> Merged:
    """Merge a branch into the current one and close it. `save` is that of the engine unless given.

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
    outcome = Merged(
        session=session.key, branch=name, into=session.branch, strategy=strategy, is_merged=False
    )
    taken = theirs if strategy == "theirs" else ours
    if strategy == "union":
        merged = _merged(engine, base, ours, theirs, on_conflict, outcome)
    else:
        merged = MergedState(taken.value())
    facts = {
        "branch": name,
        "strategy": strategy,
        "base": None if base is None else base.id,
        "ours": ours.header.id,
        "theirs": theirs.header.id,
        "clashes": len(merged.clashes),
        "on_conflict": on_conflict,
    }
    header = (save or engine.save)(
        Save(
            session=uid,
            state=merged.state,
            details=taken.body(DETAILS),
            parents=tuple(dict.fromkeys((ours.header.id, theirs.header.id))),
            expect_head=ours.header.id,
            step=taken.header.step,
            trigger=Trigger(TriggerKind.AUTO, "merge"),
            message=message or f"merged {name[:200]}",
            tags=TAGS,
            metadata={"merge": facts},
        )
    )
    return msgspec.structs.replace(
        outcome,
        into=header.branch,
        is_merged=True,
        is_closed=branches.close_at(engine, uid, theirs_branch, BranchState.MERGED) is not None,
        base=facts["base"],
        checkpoint=describe_one(engine, header),
        clashes=tuple(map(_clash_info, merged.clashes)),
    )


def _check_choice(what: str, given: object, choices: tuple[str, ...]) -> None:
    if given not in choices:
        raise InvalidInput(f"{what} is one of {', '.join(choices)}, not {given!r}", code="invalid_option")


def _head(engine: Engine, session: SessionInfo, branch: Branch) -> Loaded:
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
    base: Header | None,
    ours: Loaded,
    theirs: Loaded,
    on_conflict: Side | None,
    outcome: Merged,
) -> MergedState:
    began = ABSENT if base is None else engine.load(base).value()
    try:
        return merge_states(began, ours.value(), theirs.value(), prefer=on_conflict)
    except MergeConflict as exc:
        lost = "" if base is not None else " (the checkpoint that both began from is not stored any more)"
        raise MergeConflict(
            f"branch {outcome.branch!r} cannot be merged into {outcome.into!r}{lost}; {exc.message}\n"
            "Choose a side for these with on_conflict, or take one state with the strategy ours or theirs.",
            exc.clashes,
            msgspec.structs.replace(outcome, clashes=tuple(map(_clash_info, exc.clashes))),
        ) from None
