"""An investigation: a debugging session that is saved as it goes, and rebuilt from its checkpoints alone.

Also what commands show of one, and how they change it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack

import msgspec
from msgspec.structs import replace

from stepkeep.api.checkpoint import Checkpoint, Restored
from stepkeep.api.option_types import RestoreOptions, RetentionRules
from stepkeep.api.options import Ref, time_of, zone_of
from stepkeep.api.results import to_json
from stepkeep.api.session import Session
from stepkeep.api.store import Store
from stepkeep.errors import Corrupt, NotFound
from stepkeep.history.documents import CheckpointInfo, describe
from stepkeep.history.refs import BEFORE
from stepkeep.investigation.entries import plain
from stepkeep.investigation.experiments import ExperimentBranch
from stepkeep.investigation.hypotheses import KnowledgeGapAnalyzer
from stepkeep.investigation.markdown import markdown
from stepkeep.investigation.state import InvestigationComparison, InvestigationState, compare_states, state_of
from stepkeep.investigation.workbench import Workbench
from stepkeep.maintenance.prune import PruneReport
from stepkeep.model import Header, from_us
from stepkeep.recording.connected_parts import Part
from stepkeep.recording.recovery import CodeState, RecoveryPoint, ReplayCommand, recovery_point
from stepkeep.storage.disk import write_file
from stepkeep.workspace.captured_files import has_files, latest_capture

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
        environment = None if session.files.root_to_capture(None) is None else os.environ
        super().__init__(store.engine, session.info, session.parts, environment=environment)

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

    def connect(self, name: str, part: Part, *, restore: bool = True) -> bool:
        """Let a part of one's own be saved and restored with the investigation; see `Session.parts`.

        It gets what is stored of it, unless `restore` is False; returns whether there was anything.
        """
        return self._session.parts.connect(name, part, restore=restore)

    # --- going back

    def restore(self, ref: Ref, **options: Unpack[RestoreOptions]) -> Restored:
        """Let everything be as it was at a checkpoint, all or none, and go on from there on a branch.

        What was not saved yet is saved first, where the investigation stands, or on a rescue branch. Otherwise as
        `Session.restore`.
        """
        with self._lock:
            target = ref if ref == BEFORE else self._session.header(ref).id
            self.save(tolerant=options.get("force", False))
            done = self._session.restore(target, **options)
            self._settle(done.branch, done.checkpoint.id, done.checkpoint._loaded)
            return done

    def switch(self, name: str, *, files: bool = False, force: bool = False) -> ExperimentBranch:
        """Go on with another branch, with what was known there; what is here is saved first.

        With `files` the project files of its newest checkpoint that has any are restored too.

        Raises:
            NotFound: no checkpoint on the way to that branch has files (`files_not_captured`). Nothing changed.
            Conflict: files changed that no capture has (`files_changed`), and `force` is not given. Nothing changed.
        """
        if files:
            self.experiments.head(name)  # there is such a branch
            captured = latest_capture(self._engine, self._session.info, name)
            self.save()
            self._session.files.restore(captured.id, force=force)
        return super().switch(name)

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
        return None if found is None else self._state_of(found)

    def _state_of(self, checkpoint: Checkpoint) -> InvestigationState:
        """What a checkpoint holds; its code is that of its files, where it has any and nothing was noted."""
        state = state_of(checkpoint.state, checkpoint.details, seq=checkpoint.seq)
        code = state.code_changes
        if not has_files(checkpoint.header) or (code is not None and code.commit):
            return state
        commit, paths = self._session.files.changed_at(checkpoint.header)
        code = replace(code or CodeState(), commit=commit, paths=paths, changed_us=checkpoint.header.time_us)
        return replace(state, code_changes=code)

    def compare(self, older: Ref, newer: Ref = "latest") -> InvestigationComparison:
        """What changed from one checkpoint to another, entry by entry."""
        before, after = self._session.load(older), self._session.load(newer)
        return compare_states(
            self._state_of(before),
            self._state_of(after),
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

        Its code is that of the checkpoint's files, if it has any, else what was noted last.
        """
        checkpoint = self._session.load(ref)
        state = self._state_of(checkpoint)
        commands = [
            ReplayCommand(
                command=each.command, working_dir=None if each.working_dir == "." else each.working_dir
            )
            for each in state.command_history
            if each.replay
        ]
        code, notes = state.code_changes, tuple[str, ...]()
        if has_files(checkpoint.header):
            files, notes = self._session.files.code_at(checkpoint.header)
            code = replace(code or files, commit=files.commit, patches=files.patches)
        return recovery_point(
            self._key,
            checkpoint.id,
            code=code,
            commands=commands,
            notes=notes,
            store=self._session._store_to_name,
        )

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


def with_times(value: object) -> Any:
    """A value as JSON has it: a time in microseconds, such as `created_us`, becomes `created` in RFC 3339."""

    def told(part: Any) -> Any:
        if isinstance(part, list):
            return [told(each) for each in part]
        return dict(map(_told_field, part, map(told, part.values()))) if isinstance(part, dict) else part

    return told(msgspec.json.decode(to_json(value)))


def _told_field(name: str, value: Any) -> tuple[str, Any]:
    if not name.endswith("_us") or not isinstance(value, int | None):
        return name, value
    return name.removesuffix("_us"), None if value is None else msgspec.to_builtins(from_us(value))


def change_investigation(
    store: Store, key: str, message: str, work: Callable[[Investigation], object]
) -> InvestigationChange:
    """Do one thing in an investigation, and save it; a session that is not there yet is begun.

    An event that is worth an automatic checkpoint makes one; any other change is saved as a checkpoint with this
    message and without the tag `auto`, so that nothing is lost when the process ends.
    """
    is_new = store.engine.backend.session_by_key(key) is None
    found = Investigation(store, key)
    before = found.session.info.last_seq
    known = {each.id for each in found.beliefs.contradictions()}
    try:
        entry = work(found)
    except BaseException:
        found.discard()
        if is_new and not found.session.info.last_seq:
            found.session.clear()  # a command that fails begins nothing
        raise
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
    try:
        latest = found.session.header("latest")
    except (Corrupt, NotFound):
        latest = None
    return InvestigationStatus(
        session=found.session.key,
        state=found.state(),
        next_gaps=tuple(gap.id for gap in found.gaps.to_fill()),
        latest=None if latest is None else found.session.describe(latest),
    )


def investigation_at(found: Investigation, time: str) -> InvestigationStatus:
    """What was known at a time.

    Raises:
        NotFound: there was no checkpoint yet (`checkpoint_not_found`).
    """
    moment = time_of(time, now_us=found.session._engine.clock(), zone=zone_of(found.session._settings))
    checkpoint = found.session.load(from_us(moment))
    state = found._state_of(checkpoint)
    gaps = KnowledgeGapAnalyzer(lambda: moment)
    gaps.restore(plain({gap.id: gap for gap in state.gaps}))
    return InvestigationStatus(
        session=found.session.key,
        state=state,
        next_gaps=tuple(gap.id for gap in gaps.to_fill()),
        latest=found.session.describe(checkpoint.header),
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
