"""Going back to before a prompt of a coding agent: its files, its conversation, or both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from stepkeep.errors import Conflict, NotFound
from stepkeep.model import STATE, Header
from stepkeep.recording.coding_agents.conversation_fork import ConversationFork, fork_before
from stepkeep.recording.coding_agents.turns import AgentTurns, Turn
from stepkeep.text import count
from stepkeep.workspace.file_restore import (
    RestoredFiles,
    SomeFiles,
    last_step,
    restore_files,
    stopped_restore,
)

if TYPE_CHECKING:
    from stepkeep.api.session import Session


class Rewound(msgspec.Struct, frozen=True, kw_only=True):
    """What going back before a turn did, or on a dry run would do.

    `files` has one entry for each tree in which the agent worked, None where only the conversation was meant;
    `conversation` is how the conversation goes on, None where only files were meant. `changed_by` names the session
    that last changed a file of the conflicts, where that is known.
    """

    session: str
    turn: Turn
    is_dry_run: bool
    files: tuple[RestoredFiles, ...] | None
    conversation: ConversationFork | None
    changed_by: dict[str, str]

    @property
    def conflicts(self) -> tuple[str, ...]:
        """The files that somebody else changed since."""
        return tuple(path for each in self.files or () for path in each.conflicts)

    @property
    def is_complete(self) -> bool:
        return all(each.is_complete for each in self.files or ())


class Rewind:
    """The turns of a coding agent whose hooks save into a session, and the way back before each."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._engine = session._engine

    def turns(self, *, limit: int | None = None) -> tuple[Turn, ...]:
        """The prompts, newest first, each with the files that the agent changed for it."""
        return self._looked_up().newest_first(limit)

    def plan(self, turn: int, *, code: bool = True, conversation: bool = True) -> Rewound:
        """What going back to before a turn would change. Nothing is changed.

        Raises:
            NotFound: there is no such turn (`turn_not_found`), or its files were not captured (`files_not_captured`).
        """
        return self._go(turn, code=code, conversation=conversation, dry_run=True, force=False)

    def to(self, turn: int, *, code: bool = True, conversation: bool = True, force: bool = False) -> Rewound:
        """Make the files what they were when the prompt of a turn was given, and say how the conversation forks there.

        Only files that this agent changed since are touched, and each only if nobody else changed it: all or none, but
        with `force`. A safety checkpoint is taken first; `undo` brings everything back. When this is stopped in the
        middle, doing it again finishes it, and `undo` takes it back.

        Raises:
            NotFound: there is no such turn (`turn_not_found`), or its files were not captured (`files_not_captured`).
            Conflict: somebody else changed some of the files (`files_changed`). Nothing was changed.
            BackendUnavailable: see `Files.restore`.
        """
        return self._go(turn, code=code, conversation=conversation, dry_run=False, force=force)

    def undo(self, *, force: bool = False, dry_run: bool = False) -> tuple[RestoredFiles, ...]:
        """Take the last rewind back, in all trees that it changed; the conversation is not touched.

        Raises:
            NotFound: there was none (`nothing_to_undo`).
            Conflict: files changed since (`files_changed`).
        """
        step = last_step(self._engine, self._session.info, files_only=True)
        mark, done = (step.files or {}).get("mark"), dict[str, RestoredFiles]()
        while (safety := (step.files or {})["safety"]) not in done:
            done[safety] = self._session.files.take_back(step, anywhere=True, dry_run=dry_run, force=force)
            after = last_step(self._engine, self._session.info, files_only=True)
            is_part = mark is not None and (after.files or {}).get("mark") == mark
            if is_part and step.takes_back and after.takes_back:
                step = after
        return tuple(done.values())

    @property
    def is_interrupted(self) -> bool:
        """Whether the last restore of files was stopped in the middle: doing it again finishes it, `undo` takes it
        back."""
        return stopped_restore(self._engine, self._session.uid) is not None

    def _looked_up(self) -> AgentTurns:
        return AgentTurns(self._engine, self._session.info, self._session.files._limits)

    def _go(self, turn: int, *, code: bool, conversation: bool, dry_run: bool, force: bool) -> Rewound:
        self._engine.flush()  # what is captured now must not come after this
        turns = self._looked_up()
        found = turns.find(turn)
        planned = self._planned(turns, found) if code else {}
        files = {tree: self._restored(*each, dry_run=True) for tree, each in planned.items()}
        changed_by: dict[str, str] = {}
        for tree, each in files.items():
            changed_by |= turns.who_changed(tree, each.conflicts) if each.conflicts else {}
        if not dry_run:
            self._check(files.values(), changed_by, force=force)
            files = {tree: self._restored(*each, force=force) for tree, each in planned.items()}
        return Rewound(
            session=self._session.key,
            turn=found,
            is_dry_run=dry_run,
            files=tuple(files.values()) if code else None,
            conversation=self._fork(turns, found) if conversation else None,
            changed_by=changed_by,
        )

    def _planned(self, turns: AgentTurns, turn: Turn) -> dict[str, tuple[Header, str, SomeFiles]]:
        """What is to be restored in each tree, from which checkpoint on."""
        if turn.files is None:
            raise NotFound(
                f"the files were not captured at turn {turn.number}: `stepkeep hooks status` may say why",
                code="files_not_captured",
                session=self._session.key,
                checkpoint=turn.checkpoint,
            )
        trees = turns.trees(turn.number).items()
        found = {
            tree: (first, tree, turns.before(turn.number, tree, turn.checkpoint)) for tree, first in trees
        }
        return {tree: each for tree, each in found.items() if each[2].wanted}

    def _restored(
        self, header: Header, tree: str, some: SomeFiles, *, dry_run: bool = False, force: bool = False
    ) -> RestoredFiles:
        limits = self._session.files._limits
        return restore_files(
            self._engine, header, tree, some=some, limits=limits, dry_run=dry_run, force=force
        )

    def _check(self, files: Iterable[RestoredFiles], changed_by: Mapping[str, str], *, force: bool) -> None:
        """Refuse to go over what others did, in any tree, before anything is changed."""
        conflicts = [path for each in files for path in each.conflicts]
        if force or not conflicts:
            return
        named = [f"{path!r} ({changed_by[path]})" if path in changed_by else repr(path) for path in conflicts]
        more = f" and {len(named) - 5} more" if len(named) > 5 else ""
        raise Conflict(
            f"somebody else changed {count(len(named), 'file')} since: {', '.join(named[:5])}{more}. Nothing was "
            "changed. With force=True (--force) they go back too; the safety checkpoint then has them",
            code="files_changed",
            retryable=False,
            session=self._session.key,
        )

    def _fork(self, turns: AgentTurns, turn: Turn) -> ConversationFork:
        state = self._engine.load(self._engine.header(turn.checkpoint)).value(STATE)
        state = state if isinstance(state, dict) else {}
        return fork_before(
            str(state.get("client", "")),
            str(state.get("agent_session", "")),
            turn,
            is_newest=turns.is_newest(turn.number),
        )
