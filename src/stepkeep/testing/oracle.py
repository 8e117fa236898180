"""What a session must hold after everything that was done to it, kept in plain dicts.

Written from the promises of the port and the API, and from nothing of their code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from stepkeep.model import MAIN_BRANCH, MAX_SEQ, Header, Status
from stepkeep.storage.port import ANY_HEAD, Target
from stepkeep.testing.strategies import same


@dataclass(frozen=True)
class Wish:
    """A save as asked for. `branch` None means the session's current one."""

    state: Any
    details: Any = None
    branch: str | None = None
    step: int | None = None
    status: Status = Status.IN_PROGRESS
    tags: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    external_id: str | None = None
    idempotency_key: str | None = None
    expect_head: str | None = ANY_HEAD

    def options(self) -> dict[str, Any]:
        """The keyword arguments of `Session.save`."""
        return {name: value for name, value in vars(self).items() if name != "state"}


class SavedModel(NamedTuple):
    """A checkpoint that was acknowledged."""

    id: str
    seq: int
    branch: str
    wish: Wish


class ForkPoint(NamedTuple):
    """Where a branch left another one. It outlives the checkpoint there."""

    id: str
    branch: str
    seq: int


EMPTY: Final = ForkPoint("", "", 0)


@dataclass
class SessionModel:
    """One incarnation of a session."""

    uid: str
    kept: dict[str, SavedModel] = field(default_factory=dict)
    last_seq: int = 0
    branch: str = MAIN_BRANCH
    heads: dict[str, str | None] = field(default_factory=lambda: {MAIN_BRANCH: None})
    head_seqs: dict[str, int] = field(default_factory=dict)
    forks: dict[str, ForkPoint] = field(default_factory=dict)
    status: Status = Status.IN_PROGRESS
    notes: dict[tuple[Target, str, str], bytes] = field(default_factory=dict)
    damaged_headers: set[str] = field(default_factory=set)
    damaged_bodies: set[str] = field(default_factory=set)

    # --- saving

    def branch_of(self, wish: Wish) -> str:
        return self.branch if wish.branch is None else wish.branch

    def original(self, wish: Wish) -> SavedModel | None:
        """The kept checkpoint that already has the wish's idempotency key."""
        key = wish.idempotency_key
        keyed = (saved for saved in self.kept.values() if saved.wish.idempotency_key == key)
        return None if key is None else next(keyed, None)

    def refusals(self, wish: Wish) -> set[str]:
        """The codes with which the save may be refused; empty when it must succeed. The key comes first."""
        original = self.original(wish)
        if original is not None:
            return set() if _is_repeat(original.wish, wish) else {"idempotency_mismatch"}
        branch = self.branch_of(wish)
        codes = set()
        if wish.expect_head not in (ANY_HEAD, self.heads.get(branch)):
            codes.add("head_moved")
        taken = {(saved.branch, saved.wish.external_id) for saved in self.kept.values()}
        if wish.external_id is not None and (branch, wish.external_id) in taken:
            codes.add("external_id_exists")
        return codes

    def add(self, wish: Wish, header: Header) -> None:
        """Take a new checkpoint in."""
        saved = SavedModel(header.id, header.seq, self.branch_of(wish), wish)
        self.kept[saved.id] = saved
        self.last_seq = saved.seq
        self.status = wish.status
        self._put_head(saved.branch, saved)

    def _put_head(self, branch: str, saved: SavedModel | None) -> None:
        self.heads[branch] = None if saved is None else saved.id
        self.head_seqs[branch] = 0 if saved is None else saved.seq

    # --- forking

    def fork(self, saved: SavedModel, branch: str) -> None:
        """Put a branch on a checkpoint and go there."""
        self.forks[branch] = ForkPoint(saved.id, saved.branch, saved.seq)
        self._put_head(branch, saved)
        self.branch = branch

    def line(self, branch: str) -> list[str]:
        """The head of a branch, then what lies behind it, newest first and through the forks."""
        head = self.heads.get(branch)
        if head is None:
            return []
        behind = self._behind(branch, self.head_seqs[branch])
        return [head, *(id_ for id_ in behind if id_ != head)]

    def _behind(self, branch: str, max_seq: int) -> list[str]:
        behind: list[str] = []
        at, seen = branch, set[str]()
        while at in self.heads and at not in seen:
            seen.add(at)
            own = [saved for saved in self.kept.values() if saved.branch == at and saved.seq <= max_seq]
            behind += [saved.id for saved in sorted(own, key=lambda saved: -saved.seq)]
            fork = self.forks.get(at, EMPTY)
            at, max_seq = fork.branch, fork.seq
        return behind

    # --- removing

    def refused(self, ids: Iterable[str]) -> set[str]:
        """Those that must stay because one that stays requires them, directly or through another."""
        wanted = set(ids) & self.kept.keys()
        staying = self.kept.keys() - wanted
        while True:
            required = {id_ for stay in staying for id_ in self.kept[stay].wish.requires} & wanted
            if required <= staying:
                return staying & wanted
            staying |= required

    def remove(self, ids: Sequence[str]) -> None:
        """Take out all of these that may go, with their annotations, and move heads."""
        going = (set(ids) & self.kept.keys()) - self.refused(ids)
        gone = [self.kept.pop(id_) for id_ in going]
        targets: set[Target] = {saved.id for saved in gone}
        targets |= {(saved.branch, saved.wish.external_id) for saved in gone if saved.wish.external_id}
        self.notes = {key: data for key, data in self.notes.items() if key[0] not in targets}
        for branch, head in list(self.heads.items()):
            if head in going:
                behind = self._behind(branch, MAX_SEQ)
                self._put_head(branch, self.kept[behind[0]] if behind else None)


def _is_repeat(first: Wish, again: Wish) -> bool:
    """Whether two saves under one key say the same: bodies, step and status count."""
    return (
        same(first.state, again.state)
        and same(first.details, again.details)
        and (first.step, first.status) == (again.step, again.status)
    )
