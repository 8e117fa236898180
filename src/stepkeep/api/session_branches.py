"""The branches of a session: list, fork, switch, merge, close and reopen them, and look along one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stepkeep.history import branches
from stepkeep.history.documents import BranchInfo, BranchList, History, branch_infos, line_history
from stepkeep.history.merge import Merged, Side, Strategy, merge
from stepkeep.model import Branch, BranchState

if TYPE_CHECKING:
    from stepkeep.api.options import Ref
    from stepkeep.api.session import Session


class Branches:
    """The branches of one session. Iterating yields them, oldest first, as they are stored now."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._engine = session._engine
        self._uid = session.uid

    def __iter__(self) -> Iterator[Branch]:
        return iter(self._engine.backend.branches(self._uid))

    def __len__(self) -> int:
        return len(self._engine.backend.branches(self._uid))

    def __getitem__(self, name: str) -> Branch:
        """The branch of that name, or `NotFound` (`branch_not_found`)."""
        return branches.find(self._engine, self._uid, name)

    def list(self) -> BranchList:
        """All branches, oldest first, with their heads and how many checkpoints each has."""
        info = self._session.info
        return BranchList(
            session=info.key, current=info.branch, branches=branch_infos(self._engine, info, self)
        )

    def log(self, name: str | None = None, *, limit: int | None = None) -> History:
        """The checkpoints that led to the head of a branch, newest first; of the current one unless named.

        The line goes on through the branches that it was forked from. Keeps at most `limit` and counts all.

        Raises:
            NotFound: there is no such branch.
        """
        info = self._session.info
        branch = info.branch if name is None else self[name].name
        return line_history(self._engine, info, branch, limit=limit)

    def fork(
        self,
        ref: Ref = "latest",
        name: str | None = None,
        *,
        switch: bool = True,
        metadata: Mapping[str, Any] | None = None,
    ) -> BranchInfo:
        """Begin a branch at a checkpoint, and unless `switch` is False go on there. Nothing is copied.

        Without a name it gets one such as `from-12`, after the number of the checkpoint.

        Raises:
            NotFound: there is no such checkpoint.
            Conflict: a branch has that name (`branch_exists`).
        """
        at = self._session.header(ref)
        return self._described(branches.fork(self._engine, at, name, switch=switch, metadata=metadata))

    def switch(self, name: str) -> BranchInfo:
        """Go on with another branch: `latest` is its head, and saves go there, whoever saves.

        Raises:
            NotFound: there is none of that name (`branch_not_found`).
            Conflict: it was merged, abandoned or archived (`branch_closed`), or nothing is left of it (`branch_empty`).
        """
        return self._described(branches.switch(self._engine, self._uid, name))

    def merge(
        self, name: str, *, strategy: Strategy = "union", message: str = "", on_conflict: Side | None = None
    ) -> Merged:
        """Merge a branch into the current one, as a checkpoint with both heads as parents, and close it.

        `union` merges the two states, compared with the one both began from; `ours` and `theirs` take one of
        them. What both sides changed differently is a conflict, unless `on_conflict` names the side to take.

        Raises:
            MergeConflict: with all `clashes`, and what was tried as `result`; nothing is written.
            Conflict: someone saved meanwhile (`head_moved`), or the branch is current or closed.
            NotFound: there is no such branch, or nothing on it.
            Corrupt: a state that is needed is damaged.
        """
        info = self._session.info
        return merge(
            self._engine,
            info,
            name,
            strategy=strategy,
            message=message,
            on_conflict=on_conflict,
            save=self._session._save_captured,
        )

    def abandon(self, name: str) -> BranchInfo:
        """Close a branch that led nowhere. Its checkpoints stay until the session's rules let them go."""
        return self._described(branches.close(self._engine, self._uid, name, BranchState.ABANDONED))

    def archive(self, name: str) -> BranchInfo:
        """Close a branch that is done. Its checkpoints stay until the session's rules let them go."""
        return self._described(branches.close(self._engine, self._uid, name, BranchState.ARCHIVED))

    def reopen(self, name: str) -> BranchInfo:
        """Open a branch again that was merged, abandoned or archived."""
        return self._described(branches.reopen(self._engine, self._uid, name))

    def _described(self, branch: Branch) -> BranchInfo:
        return branch_infos(self._engine, self._session.info, [branch])[0]
