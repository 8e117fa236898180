"""The workbench of an investigation: its parts, tied to a session, saved when something happens.

Every event that matters becomes a checkpoint by itself. Others are saved when enough time has passed, or when the
investigator says so. Two who work on one session at the same time do not lose each other's entries: whoever comes
second takes the other's in before saving.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from stepkeep.engine import Engine, Loaded
from stepkeep.errors import Conflict, InvalidInput, NotFound, StepkeepError
from stepkeep.history import branches, merge
from stepkeep.history.documents import ABSENT
from stepkeep.history.merge import Merged, Side, Strategy, merge_states
from stepkeep.investigation.beliefs import BeliefGraph, check_no_cycle
from stepkeep.investigation.entries import NewId, PartOptions, new_id, plain
from stepkeep.investigation.experiments import ExperimentBranch, ExperimentManager
from stepkeep.investigation.hypotheses import GapStatus, HypothesisBoard, KnowledgeGapAnalyzer
from stepkeep.investigation.state import (
    Details,
    InvestigationState,
    SessionMetrics,
    details_of,
    is_investigation,
    state_of,
)
from stepkeep.investigation.worklog import (
    CodeTracker,
    CommandHistory,
    Notebook,
    VerificationRunner,
    VerificationStatus,
)
from stepkeep.model import DETAILS, Header, SessionInfo, Trigger, TriggerKind
from stepkeep.recording.connected_parts import Part, Parts
from stepkeep.recording.triggers import AutoTrigger, auto_trigger, listed

MAX_TRIES: Final = 10
IDLE_US: Final = 900 * 1_000_000
"""A longer pause between two checkpoints counts as that much: nobody was debugging."""
CHANGED: Final = "investigation_changed"
"""The event of a checkpoint that keeps changes for which no automatic trigger stands."""


class Workbench:
    """The parts of an investigation, and when they are saved. One thread at a time changes it."""

    def __init__(
        self, engine: Engine, session: SessionInfo, parts: Parts, *, make_id: NewId = new_id
    ) -> None:
        clock = engine.clock
        self._engine = engine
        self._uid = session.uid
        self._key = session.key
        self._started_us = session.created_us
        self.parts = parts
        options: PartOptions = {"make_id": make_id, "on_change": self._changed}
        self.hypotheses = HypothesisBoard(clock, **options)
        self.beliefs = BeliefGraph(clock, **options)
        self.gaps = KnowledgeGapAnalyzer(clock, **options)
        self.commands = CommandHistory(clock, **options)
        self.verifications = VerificationRunner(clock, self.commands, **options)
        self.notes = Notebook(clock, **options)
        self.code = CodeTracker(clock, on_change=self._changed)
        self.code_changed = self.code.changed  # as the event is called: source code was modified
        self.experiments = ExperimentManager(engine, session.uid)
        self._lock = threading.RLock()
        self._is_dirty = False
        self._seen: Header | None = None
        self._head: str | None = None
        self._branch = session.branch
        self._debugging_us = 0
        for name in ("hypotheses", "beliefs", "gaps", "verifications", "notes", "commands", "code"):
            part: Part = getattr(self, name)
            parts.connect(name, part)
        self._nothing = parts.capture()
        self.reload()

    # --- what it holds

    @property
    def has_changes(self) -> bool:
        """Whether something changed since the last checkpoint."""
        return self._is_dirty

    @property
    def metrics(self) -> SessionMetrics:
        return self._counted(0)

    def _counted(self, more: int) -> SessionMetrics:
        """How it went up to now, or with the time up to now when one `more` checkpoint is about to be made."""
        spent_us = self._spent_us(self._engine.clock()) if more else 0
        return SessionMetrics(
            checkpoints_created=self._engine.backend.session(self._uid).last_seq + more,
            hypotheses_tested=sum(each.was_tested for each in self.hypotheses.all()),
            verifications_run=sum(
                each.status is not VerificationStatus.SKIPPED for each in self.verifications.all()
            ),
            gaps_filled=sum(each.status is GapStatus.FILLED for each in self.gaps.all()),
            time_in_debugging_seconds=(self._debugging_us + spent_us) / 1_000_000,
        )

    def _spent_us(self, now_us: int) -> int:
        """How much of the time since the last checkpoint was spent debugging."""
        return 0 if self._seen is None else max(0, min(now_us - self._seen.time_us, IDLE_US))

    def state(self) -> InvestigationState:
        """All of it at this moment, saved or not."""
        return state_of(self.parts.capture(), self._details(0))

    def _details(self, more: int = 1) -> object:
        """What is saved beside the parts of a checkpoint, which counts itself."""
        return plain(
            Details(
                session_id=self._key,
                started_us=self._started_us,
                experiments=self.experiments.all(),
                metrics=self._counted(more),
            )
        )

    # --- loading

    def reload(self) -> None:
        """Take what is stored; what was not saved is gone.

        Raises:
            InvalidInput: the session holds something else (`not_an_investigation`).
            Corrupt: none of its checkpoints loads.
        """
        with self._lock:
            session = self._engine.backend.session(self._uid)
            branch = self._engine.backend.branch(self._uid, session.branch)
            loaded = self._engine.latest(session)
            state = self._nothing if loaded is None else loaded.value()
            if not is_investigation(state):
                raise InvalidInput(
                    f"session {self._key!r} holds no investigation: choose another key",
                    code="not_an_investigation",
                    session=self._key,
                )
            with self.parts.put_back(state, missing="keep"):
                self._settle(session.branch, None if branch is None else branch.head, loaded)

    def _settle(self, branch: str, head: str | None, loaded: Loaded | None) -> None:
        """Remember where the parts stand."""
        self._branch, self._head, self._is_dirty = branch, head, False
        self._seen = None if loaded is None else loaded.header
        has_details = loaded is not None and DETAILS in loaded.contents
        details = details_of(loaded.value(DETAILS) if loaded is not None and has_details else None)
        self._debugging_us = round(details.metrics.time_in_debugging_seconds * 1_000_000)

    # --- saving

    def _changed(self, trigger: AutoTrigger, tags: tuple[str, ...] = ()) -> None:
        """Something changed: make the checkpoint that it is worth, or look at the time."""
        self._is_dirty = True
        self._automatic(trigger, tags)

    def _automatic(self, trigger: AutoTrigger, tags: Iterable[str] = ()) -> Header | None:
        return self._save(
            lambda head: self.parts.auto_checkpoint(
                trigger, tags=tags, details=self._details, expect_head=head
            )
        )

    def auto_checkpoint(self, trigger: AutoTrigger | str, *, tags: Iterable[str] = ()) -> Header | None:
        """Save because of an event that this does not see itself; None when it is held back."""
        return self._automatic(auto_trigger(trigger), listed("tags", tags))

    def checkpoint(self, message: str = "", tags: Iterable[str] = ()) -> Header:
        """Save all of it, as asked for by hand."""
        return self._saved_with(message, listed("tags", tags), Trigger(TriggerKind.MANUAL))

    def save(self, message: str = "") -> Header | None:
        """Save what changed since the last checkpoint; None if nothing did."""
        if not self._is_dirty:
            return None
        return self._saved_with(message or "Changes", (), Trigger(TriggerKind.AUTO, CHANGED))

    def _saved_with(self, message: str, tags: Iterable[str], trigger: Trigger) -> Header:
        header = self._save(
            lambda head: self.parts.checkpoint(
                message, tags, trigger=trigger, details=self._details, expect_head=head
            )
        )
        assert header is not None
        return header

    def compaction_warning(self) -> Header:
        """The context is about to be compacted: save everything at once, whatever came before.

        Raises:
            Conflict: called out of a save of this very thread (`checkpoint_nested`); the checkpoint follows that.
        """
        header = self._automatic(AutoTrigger.CONTEXT_COMPACTION_WARNING)
        if header is None:
            raise Conflict(
                "a save of this thread is under way, and the checkpoint for the compaction follows it",
                code="checkpoint_nested",
                retryable=False,
                session=self._key,
            )
        return header

    def tick(self) -> Header | None:
        """Save if enough time has passed since the last checkpoint. Call it now and then."""
        return self._automatic(AutoTrigger.SIGNIFICANT_TIME_PASSED)

    def _save(self, save: Callable[[str | None], Header | None]) -> Header | None:
        """Save on top of what was seen last; where others saved meanwhile, with what they did."""
        with self._lock:
            for _ in range(MAX_TRIES):
                self._check_branch()
                try:
                    header = save(self._head)
                except Conflict as exc:
                    if exc.code != "head_moved":
                        raise
                    self._take_in_theirs()
                    continue
                if header is not None:
                    self._debugging_us += self._spent_us(header.time_us)
                    self._seen, self._head, self._is_dirty = header, header.id, False
                return header
        raise Conflict(f"others save into session {self._key!r} all the time: try again", session=self._key)

    def _check_branch(self) -> None:
        current = self._engine.backend.session(self._uid).branch
        if current != self._branch:
            raise Conflict(
                f"session {self._key!r} went on with branch {current!r} meanwhile: reload, then repeat",
                code="branch_left",
                session=self._key,
                branch=current,
            )

    def _take_in_theirs(self) -> None:
        """Join what others saved with what is here.

        Raises:
            Conflict: both changed the same entry (`merge_conflict`), or the two do not fit together. Nothing is lost:
                theirs is stored, and what is here stays as it is.
        """
        session = self._engine.backend.session(self._uid)
        branch = branches.find(self._engine, self._uid, self._branch)
        theirs = self._engine.latest(session, self._branch)
        if theirs is None:
            self._head = branch.head
            return
        merged = merge_states(self._seen_state(), self.parts.capture(), theirs.value()).state
        try:
            with self.parts.put_back(merged, missing="keep", checkpoint=theirs.header.id):
                self._seen, self._head = theirs.header, branch.head
        except StepkeepError as exc:
            raise Conflict(
                f"what others saved into session {self._key!r} does not go with what is here: {exc}",
                code="merge_conflict",
                retryable=False,
                session=self._key,
            ) from exc

    def _seen_state(self) -> Any:
        if self._seen is None:
            return self._nothing
        try:
            return self._engine.load(self._seen).value()
        except NotFound:
            return ABSENT  # pruned meanwhile: what both have must then be equal

    # --- experiments

    def begin_experiment(
        self, name: str, *, description: str = "", hypothesis: str | None = None, criteria: str = ""
    ) -> ExperimentBranch:
        """Try something on a branch of its own: fork where the investigation stands, and go on there."""
        with self._lock:
            about = None if hypothesis is None else self.hypotheses.get(hypothesis).id
            if self._head is None:
                self.checkpoint("Investigation begun")
            self.save()
            at = self._engine.header(str(self._head), session=self._uid)
            begun = self.experiments.begin(
                at, name, description=description, hypothesis=about, criteria=criteria
            )
            self._branch, self._head = begun.name, begun.head
            self._changed(AutoTrigger.BRANCH_SWITCH)
            return self.experiments.get(name)

    def switch(self, name: str) -> ExperimentBranch:
        """Go on with another branch, with what was known there; what is here is saved first."""
        with self._lock:
            self.save()
            if name == self._branch:
                return self.experiments.get(name)
            header = self.experiments.head(name)
            loaded = self._engine.load(header)
            with self.parts.put_back(loaded.value(), missing="keep", checkpoint=header.id):
                entered = branches.switch(self._engine, self._uid, name)
                self._settle(name, header.id, loaded)
            if entered.head != header.id:
                self.reload()  # someone saved there in between
            self._changed(AutoTrigger.BRANCH_SWITCH)
            return self.experiments.get(name)

    def merge(
        self, name: str, *, strategy: Strategy = "union", on_conflict: Side | None = None, message: str = ""
    ) -> Merged:
        """Merge an experiment into the current branch; both sides' entries are here afterwards.

        Raises:
            MergeConflict: both changed the same entries. Nothing is written.
            InvalidInput: the beliefs of both would support each other in a circle (`belief_cycle`).
        """
        with self._lock:
            self.save()
            if strategy == "union":
                self._check_beliefs(name)
            session = self._engine.backend.session(self._uid)
            merged = merge.merge(
                self._engine, session, name, strategy=strategy, on_conflict=on_conflict, message=message
            )
            self.reload()
            self.beliefs.look_again()
            return merged

    def _check_beliefs(self, name: str) -> None:
        theirs = self._engine.load(self.experiments.head(name))
        edges = {edge.id: edge for edge in state_of(theirs.value(), None).belief_dependencies}
        check_no_cycle((edges | {edge.id: edge for edge in self.beliefs.dependencies()}).values())

    def close_experiment(self, name: str, *, results: str = "", archive: bool = False) -> ExperimentBranch:
        """Abandon an experiment, or archive it, with what came out of it."""
        if results:
            self.experiments.note_results(name, results)
        return self.experiments.close(name, archive=archive)
