"""An investigation: a debugging session that is saved as it goes, and rebuilt from its checkpoints alone.

Also what commands show of one, and how they change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack

import msgspec
from msgspec.structs import replace

from stepkeep.api.checkpoint import Restored
from stepkeep.api.options import Ref, RestoreOptions, RetentionRules
from stepkeep.api.session import Session
from stepkeep.api.store import Store
from stepkeep.history.documents import CheckpointInfo, describe
from stepkeep.history.refs import BEFORE
from stepkeep.investigation.markdown import markdown
from stepkeep.investigation.state import InvestigationComparison, InvestigationState, compare_states, state_of
from stepkeep.investigation.workbench import Workbench
from stepkeep.maintenance.prune import PruneReport
from stepkeep.model import Header
from stepkeep.recording.connected_parts import Part
from stepkeep.recording.recovery import RecoveryPoint, ReplayCommand, recovery_point
from stepkeep.storage.disk import write_file

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
        super().__init__(store.engine, session.info, session.parts)

    @property
    def session(self) -> Session:
        """The session that holds it all."""
        return self._session

    def __repr__(self) -> str:
        return f"<Investigation {self._key!r}>"

    def __enter__(self) -> Investigation:
        return self

    def __exit__(self, *_: object) -> None:
        self.save()

    def connect(self, name: str, part: Part) -> None:
        """Let a part of one's own be saved and restored with the investigation; see `Session.parts`."""
        self._session.parts.connect(name, part)

    # --- going back

    def restore(self, ref: Ref, **options: Unpack[RestoreOptions]) -> Restored:
        """Let everything be as it was at a checkpoint, all or none, and go on from there on a branch.

        What was not saved yet is saved first, where the investigation stands. Otherwise as `Session.restore`.
        """
        with self._lock:
            target = ref if ref == BEFORE else self._session.header(ref).id
            self.save()
            self._check_branch()
            done = self._session.restore(target, **options)
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

    def compare(self, older: Ref, newer: Ref = "latest") -> InvestigationComparison:
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

    def recovery_point(self, ref: Ref = "latest") -> RecoveryPoint:
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
            files, notes = self._session.files.code_at(checkpoint.header)
            code = replace(code or files, commit=files.commit, patches=files.patches)
        return recovery_point(self._key, checkpoint.id, code=code, commands=commands, notes=notes)

    def prune(self, **rules: Unpack[RetentionRules]) -> PruneReport:
        """Remove checkpoints that the session's rules, or the given ones, do not keep."""
        return self._session.prune(**rules)

    def report(self) -> str:
        """All of it as Markdown, as it stands now."""
        return markdown(self.state())


class InvestigationChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a verb did: the entry it is about, contradictions that came up, and the checkpoints that hold it."""

    session: str
    entry: Any
    contradictions: tuple[Any, ...]
    checkpoints: tuple[CheckpointInfo, ...]


class InvestigationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where an investigation stands."""

    session: str
    state: InvestigationState
    next_gaps: tuple[str, ...]
    latest: CheckpointInfo | None


class InvestigationReport(msgspec.Struct, frozen=True, kw_only=True):
    """An investigation as Markdown, and the file that has it."""

    session: str
    markdown: str
    output: str | None


class RecoveryView(msgspec.Struct, frozen=True, kw_only=True):
    """A recovery point as data, as text and as a script."""

    session: str
    point: RecoveryPoint
    text: str
    script: str


def change_investigation(
    store: Store, key: str, message: str, work: Callable[[Investigation], object]
) -> InvestigationChange:
    """Do one thing in an investigation, and save it; a session that is not there yet is begun.

    An event that is worth an automatic checkpoint makes one; any other change is saved as a checkpoint with this
    message and without the tag `auto`, so that nothing is lost when the process ends.
    """
    found = Investigation(store, key)
    before = found.session.info.last_seq
    known = {each.id for each in found.beliefs.contradictions()}
    entry = work(found)
    found.save(message)
    saved = [header for header in found.session.history() if header.seq > before]
    return InvestigationChange(
        session=key,
        entry=entry,
        contradictions=tuple(each for each in found.beliefs.contradictions() if each.id not in known),
        checkpoints=describe(found.session._engine, key, list(reversed(saved))),
    )


def investigation_status(found: Investigation) -> InvestigationStatus:
    """Where an investigation stands."""
    latest = next(found.list(limit=1), None)
    return InvestigationStatus(
        session=found.session.key,
        state=found.state(),
        next_gaps=tuple(gap.id for gap in found.gaps.to_fill()),
        latest=None if latest is None else found.session.describe(latest),
    )


def investigation_report(
    found: Investigation, *, output: Path | None = None, force: bool = False
) -> InvestigationReport:
    """An investigation as Markdown; with `output` it is written there, as `export` does."""
    text = found.report()
    if output is not None:
        write_file(output, text.encode(), force=force)
    written = None if output is None else str(output)
    return InvestigationReport(session=found.session.key, markdown=text, output=written)


def investigation_recovery(found: Investigation, ref: str) -> RecoveryView:
    """How to get back to a checkpoint."""
    point = found.recovery_point(ref)
    return RecoveryView(
        session=found.session.key, point=point, text=point.as_text(), script=point.as_script()
    )
