"""An investigation: a debugging session that is saved as it goes, and rebuilt from its checkpoints alone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from types import TracebackType
from typing import Unpack

from msgspec.structs import replace

from stepkeep.api.checkpoint import Restored
from stepkeep.api.options import RetentionRules
from stepkeep.api.session import Session
from stepkeep.api.store import Store
from stepkeep.history.restore import BEFORE
from stepkeep.investigation.comparison import InvestigationComparison, compare_states
from stepkeep.investigation.report import markdown
from stepkeep.investigation.state import InvestigationState, state_of
from stepkeep.investigation.workbench import Workbench
from stepkeep.maintenance.prune import PruneReport
from stepkeep.model import Header
from stepkeep.parts.connected import Extra, Missing
from stepkeep.parts.port import Part
from stepkeep.parts.recovery import CodeState, RecoveryPoint, ReplayCommand, recovery_point
from stepkeep.storage.port import ANY_HEAD

PROFILE = "debug"
"""The profile of a new investigation."""


class Investigation(Workbench):
    """A debugging session: hypotheses, beliefs, gaps, verifications, notes, commands, code and experiments.

    What is stored is taken up again, whichever process saved it. Events that matter are saved by themselves; in a
    `with` block the rest is saved at its end, also when it ends with an exception.
    """

    def __init__(self, store: Store, session: Session | str) -> None:
        if isinstance(session, str):
            is_new = store.engine.backend.session_by_key(session) is None
            session = store.session(session, profile=PROFILE if is_new else None)
        self._session = session
        super().__init__(store.engine, session.info, session._parts)

    @property
    def session(self) -> Session:
        """The session that holds it all."""
        return self._session

    def __repr__(self) -> str:
        return f"<Investigation {self._key!r}>"

    def __enter__(self) -> Investigation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.save()

    def connect(self, name: str, part: Part) -> None:
        """Let a part of one's own be saved and restored with the investigation; see `Session.connect`."""
        self._session.connect(name, part)

    # --- going back

    def restore(
        self,
        ref: str | int | datetime,
        *,
        branch: str | None = None,
        expect_head: str | None = ANY_HEAD,
        missing: Missing = "error",
        extra: Extra = "ignore",
    ) -> Restored:
        """Let everything be as it was at a checkpoint, all or none, and go on from there on a branch.

        What was not saved yet is saved first, where the investigation stands. Otherwise as `Session.restore`.
        """
        with self._lock:
            target = ref if ref == BEFORE else self._session.header(ref).id
            self.save()
            self._check_branch()
            done = self._session.restore(
                target, branch=branch, expect_head=expect_head, missing=missing, extra=extra
            )
            self._settle(done.branch, done.checkpoint.id, done.checkpoint._loaded)
            return done

    # --- looking back

    def query_at(
        self,
        *,
        time: str | datetime | None = None,
        seq: int | None = None,
        id: str | None = None,
        tag: str | None = None,
    ) -> InvestigationState | None:
        """What was known at a time, else at that seq, else at that id; None when there is no such checkpoint.

        Raises:
            InvalidInput: none of them is given (`invalid_query`), or the checkpoint holds something else.
        """
        found = self._session.query(time=time, seq=seq, id=id, tag=tag)
        return None if found is None else state_of(found.state, found.details)

    def compare(
        self, older: str | int | datetime, newer: str | int | datetime = "latest"
    ) -> InvestigationComparison:
        """What changed from one checkpoint to another, entry by entry."""
        before, after = self._session.load(older), self._session.load(newer)
        return compare_states(
            state_of(before.state, before.details),
            state_of(after.state, after.details),
            ids=(before.id, after.id),
            elapsed=after.created_at - before.created_at,
        )

    def list(self, *, limit: int | None = None) -> Iterator[Header]:
        """The checkpoints, newest first."""
        return self._session.history(limit=limit)

    def find_by_tag(self, tag: str) -> Iterator[Header]:
        """The checkpoints with that tag, newest first."""
        return self._session.history(tag=tag)

    # --- the rest

    def recovery_point(self, ref: str | int | datetime = "latest") -> RecoveryPoint:
        """What a person does to be where a checkpoint was: its code, environment, commands to replay, and itself.

        Where no commit or patch was noted, they are those of the checkpoint's files, if it has any.
        """
        checkpoint = self._session.load(ref)
        state = state_of(checkpoint.state, checkpoint.details)
        commands = [
            ReplayCommand(
                command=each.command, working_dir=None if each.working_dir == "." else each.working_dir
            )
            for each in state.command_history
            if each.replay
        ]
        code, notes = state.code_changes, tuple[str, ...]()
        if code is None or not (code.commit or code.patches):
            files = self._session._files.code_at(checkpoint.header)
            code = replace(code or CodeState(), commit=files.commit, patches=files.patches)
            notes = files.notes
        return recovery_point(self._key, checkpoint.id, code=code, commands=commands, notes=notes)

    def prune(self, **rules: Unpack[RetentionRules]) -> PruneReport:
        """Remove checkpoints that the session's rules, or the given ones, do not keep."""
        return self._session.prune(**rules)

    def report(self) -> str:
        """All of it as Markdown, as it stands now."""
        return markdown(self.state())
