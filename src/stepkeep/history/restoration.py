"""Going on from an old checkpoint: the session moves to a branch there, and what came after stays where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from stepkeep.engine import Engine, Loaded
from stepkeep.errors import Conflict, NotFound
from stepkeep.history import branches, refs
from stepkeep.history.branches import NAMED, BranchSwitch
from stepkeep.model import Branch, BranchState, Header, SessionInfo, Status
from stepkeep.storage.port import ANY_HEAD

BEFORE: Final = "latest@before"
"""The ref that undoes a restore."""


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
    engine: Engine, header: Header, *, branch: str | None = None, expect_head: str | None = ANY_HEAD
) -> Restoration:
    """Let a session go on from one of its checkpoints.

    Where an open branch has it as head the session switches there, else a branch is forked. The checkpoint is
    loaded and verified before anything changes. The branch left behind stays, but unless a person named it
    pruning may take it (V7). A session that was finished is in progress again.

    Raises:
        Corrupt: the checkpoint is damaged; nothing changed.
        Conflict: `expect_head` is not the head of the current branch (`head_moved`), or the branch that was
            named exists elsewhere (`branch_exists`) or is not open (`branch_closed`).
    """
    return _RestoreWork(engine, engine.load(header), branch, expect_head).apply()


def undo(engine: Engine, session: SessionInfo, *, expect_head: str | None = ANY_HEAD) -> Restoration:
    """Return to where the session was before its last restore, fork or switch: to that branch, at its head.

    A branch that was closed since is forked where it was left. Undoing twice is doing it again.

    Raises:
        NotFound: the session never changed its branch, or the checkpoint is gone (`checkpoint_not_found`).
    """
    home = _left_last(engine, session)
    if home is None or home.head is None:
        return restore(engine, refs.resolve(engine, session, refs.Before()), expect_head=expect_head)
    loaded = engine.load(engine.header(home.head, session=session.uid))
    return _RestoreWork(engine, loaded, None, expect_head, preferred=home.name).apply()


def _left_last(engine: Engine, session: SessionInfo) -> Branch | None:
    """The branch that the last change of branches left, if it is open and where it was left, or further on."""
    events = [event.data for event in engine.backend.events(session.uid) if event.type == refs.SWITCHED]
    name, head = (events[-1].get("from"), events[-1].get("from_head")) if events else (None, None)
    home = None if name is None else engine.backend.branch(session.uid, name)
    if home is None or home.head is None or not branches.is_open(home):
        return None
    # Where pruning took the head that was left, an older one does not take its place. Ids sort like times.
    is_stored = refs.find(engine, session, refs.Before()) is not None
    return home if is_stored or home.head > (head or "") else None


class _RestoreWork:
    """One restore under way. A branch it began and did not enter is abandoned."""

    def __init__(
        self,
        engine: Engine,
        loaded: Loaded,
        name: str | None,
        expect_head: str | None,
        preferred: str | None = None,
    ) -> None:
        self._engine = engine
        self._loaded = loaded
        self._name = name
        self._expect_head = expect_head
        self._preferred = preferred
        self._begun: Branch | None = None

    def apply(self) -> Restoration:
        uid = self._loaded.header.session
        try:
            move = branches.move(
                self._engine,
                uid,
                self._target,
                why="restore",
                changes=_reopening,
                expect_head=self._expect_head,
            )
        except (Conflict, NotFound):
            if self._begun is not None:
                branches.change(self._engine, uid, self._begun, state=BranchState.ABANDONED, is_pinned=False)
            raise
        self._settle(move)
        return Restoration(
            loaded=self._loaded,
            branch=move.entered,
            is_new_branch=self._begun is not None,
            left=move.left,
        )

    def _target(self, session: SessionInfo) -> Branch:
        """The branch to go on with: one that has the checkpoint as its head, else a new one."""
        if self._begun is not None:
            return self._begun
        header = self._loaded.header
        found = next(self._candidates(session), None)
        if found is None:
            found = self._begun = branches.begin(self._engine, header, self._name)
        return found

    def _candidates(self, session: SessionInfo) -> Iterator[Branch]:
        header = self._loaded.header
        records = self._engine.backend.branches(session.uid)
        if self._name is not None:
            for record in records:
                if record.name == self._name:
                    branches.check_open(record, session.uid)
                    if record.head != header.id:
                        raise branches.exists(session.uid, self._name)
                    yield record
            return
        at_head = {each.name: each for each in records if each.head == header.id and branches.is_open(each)}
        order = (self._preferred, session.branch, header.branch, *at_head)
        yield from (at_head[name] for name in order if name in at_head)

    def _settle(self, move: BranchSwitch) -> None:
        """What is to be known of a restore that has happened: nothing below changes where the session is."""
        engine, session = self._engine, move.session
        if move.left.name != move.entered.name and NAMED not in move.left.metadata:
            branches.change(engine, session.uid, move.left, is_pinned=False)
        if move.before.status.is_finished:
            data = {"checkpoint": self._loaded.header.id}
            engine.backend.record_event(session.uid, "session_reopened", data, time_us=engine.clock())


def _reopening(session: SessionInfo) -> dict[str, Any]:
    if not session.status.is_finished:
        return {}
    return {"status": Status.IN_PROGRESS, "finished_us": None, "error": None}
