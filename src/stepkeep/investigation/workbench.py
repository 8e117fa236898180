"""The workbench of an investigation: its parts, tied to a session, saved when something happens.

Every event that matters becomes a checkpoint by itself. Others are saved when enough time has passed, or when the
investigator says so. Two who work on one session at the same time do not lose each other's entries: whoever comes
second takes the other's in before saving. Where that cannot be done, because both changed the same entry or the session
went on with another branch, what is here is saved on a rescue branch.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec

from stepkeep.engine import Engine, Loaded
from stepkeep.errors import Conflict, InvalidInput, NotFound, StepkeepError
from stepkeep.history import branches, merge
from stepkeep.history.documents import ABSENT
from stepkeep.history.merge import Merged, Side, Strategy, merge_states
from stepkeep.investigation.beliefs import BeliefGraph, check_no_cycle
from stepkeep.investigation.entries import (
    BrokenEntry,
    EntryRef,
    NewId,
    PartOptions,
    RepairedEntry,
    new_id,
    plain,
)
from stepkeep.investigation.experiments import ExperimentBranch, ExperimentManager
from stepkeep.investigation.hypotheses import HypothesisBoard, KnowledgeGapAnalyzer
from stepkeep.investigation.state import (
    Details,
    InvestigationState,
    SessionMetrics,
    counted,
    details_of,
    is_investigation,
    state_of,
)
from stepkeep.investigation.worklog import (
    CodeTracker,
    CommandHistory,
    Notebook,
    VerificationRunner,
    check_seconds,
)
from stepkeep.model import DETAILS, Header, SessionInfo, Trigger, TriggerKind
from stepkeep.processes import Worker
from stepkeep.recording.connected_parts import Part, Parts
from stepkeep.recording.recovery import captured
from stepkeep.recording.triggers import AutoTrigger, Wait, auto_trigger, listed
from stepkeep.storage.port import HeaderQuery

log = logging.getLogger("stepkeep")

MAX_TRIES: Final = 10
PENDING_US: Final = 180 * 1_000_000
"""A change for which no trigger stands is saved if the last checkpoint is older than that; else it waits a little."""
SCHEDULE_SECONDS: Final = 600.0
SCHEDULED: Final = Trigger(TriggerKind.TIMER, "scheduled")
IDLE_US: Final = 900 * 1_000_000
"""A longer pause between two checkpoints counts as that much: nobody was debugging."""
_PARTS: Final = ("hypotheses", "beliefs", "gaps", "verifications", "notes", "commands", "code")
CHANGED: Final = "investigation_changed"
"""The event of a checkpoint that keeps changes for which no automatic trigger stands."""


_unsaved: Final[dict[int, Workbench]] = {}
"""Those that hold something which no checkpoint has, by their `id`: they are kept until it is saved, also where nobody
else holds them any more. What another process has not saved is its own affair."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unsaved.clear)


def save_unsaved(engine: Engine) -> None:
    """Save what no checkpoint of an engine has yet: it is about to be closed."""
    for each in list(_unsaved.values()):
        if each._engine is engine:
            each._save_at_last()


class Workbench:
    """The parts of an investigation, and when they are saved. One thread at a time changes it."""

    def __init__(
        self,
        engine: Engine,
        session: SessionInfo,
        parts: Parts,
        *,
        make_id: NewId = new_id,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        clock = engine.clock
        self._engine = engine
        self._uid = session.uid
        self._key = session.key
        self._started_us = session.created_us
        self._env_vars = captured(environment or {})
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
        self._rescue: str | None = None
        self._debugging_us = 0
        for name in _PARTS:
            part: Part = getattr(self, name)
            parts.connect(name, part, restore=False)
        self._nothing = {name: getattr(self, name).snapshot() for name in _PARTS}
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
            **counted(
                {
                    "hypotheses": self.hypotheses.all(),
                    "verification_results": self.verifications.all(),
                    "gaps": self.gaps.all(),
                }
            ),
            time_in_debugging_seconds=(self._debugging_us + spent_us) / 1_000_000,
        )

    def _spent_us(self, now_us: int) -> int:
        """How much of the time since the last checkpoint was spent debugging."""
        return 0 if self._seen is None else max(0, min(now_us - self._seen.time_us, IDLE_US))

    def state(self) -> InvestigationState:
        """All of it at this moment, saved or not."""
        state = state_of(self.parts.capture(), self._details(0))
        return msgspec.structs.replace(state, broken=self.broken)

    def _details(self, more: int = 1) -> object:
        """What is saved beside the parts of a checkpoint, which counts itself."""
        return plain(
            Details(
                session_id=self._key,
                started_us=self._started_us,
                experiments=self.experiments.all(),
                metrics=self._counted(more),
                env_vars=self._env_vars,
            )
        )

    @property
    def broken(self) -> tuple[BrokenEntry, ...]:
        """Stored entries that cannot be read: they are left out, and stay stored as they are until `repair`."""
        return tuple(each for name in _PARTS for each in getattr(self, name).broken)

    def repair(self) -> tuple[RepairedEntry, ...]:
        """Mend stored entries that cannot be read, drop those of which too little is left, and save."""
        with self._lock:
            done = tuple(each for name in _PARTS for each in getattr(self, name).repair())
            if done:
                self._note_change()
                self.save(f"{len(done)} broken entries repaired")
            return done

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
            head = None if branch is None else branch.head
            with self.parts.put_back(state, missing="keep", checkpoint=head):
                self._settle(session.branch, head, loaded)

    def _settle(self, branch: str, head: str | None, loaded: Loaded | None) -> None:
        """Remember where the parts stand."""
        self._branch, self._rescue, self._head = branch, None, head
        self.discard()
        self._seen = None if loaded is None else loaded.header
        self._debugging_us = max(
            self._debugging_us, _debugging_us(loaded), _debugging_us(self._newest(loaded))
        )

    def _newest(self, loaded: Loaded | None) -> Loaded | None:
        """The newest checkpoint, where another one was taken up: the time that was spent is not restored."""
        newest = next(self._engine.headers(HeaderQuery(session=self._uid, limit=1)), None)
        if newest is None or (loaded is not None and loaded.header.id == newest.id):
            return None
        try:
            return self._engine.load(newest)
        except StepkeepError:
            return None

    # --- saving

    def _changed(self, trigger: AutoTrigger, tags: tuple[str, ...] = ()) -> None:
        """Something changed: make the checkpoint that it is worth, or look at the time."""
        self._note_change()
        if self._automatic(trigger, tags) is None and self._since_us() >= PENDING_US:
            self.save()

    def _note_change(self) -> None:
        self._is_dirty = True
        if id(self) not in _unsaved:
            _unsaved[id(self)] = self
            # Not `atexit`: what a save then begins is ended too, if it is a finalizer that makes it.
            self._at_exit = weakref.finalize(Workbench, self._save_at_last)

    def discard(self) -> None:
        """What changed since the last checkpoint need not be saved."""
        self._is_dirty = False
        if _unsaved.pop(id(self), None) is not None:
            self._at_exit.detach()

    def _save_at_last(self) -> None:
        """Save what no checkpoint has, or say that it is lost: the store is being closed, or the program ends."""
        if id(self) not in _unsaved:
            return
        try:
            self.save(tolerant=True)
        except StepkeepError as exc:
            log.warning("changes of %r are not saved: %s", self._key, exc)
        self.discard()

    def _since_us(self) -> int:
        """How long ago the last checkpoint was."""
        last_us = self._started_us if self._seen is None else self._seen.time_us
        return self._engine.clock() - last_us

    def _automatic(self, trigger: AutoTrigger, tags: Iterable[str] = ()) -> Header | None:
        return self._save(
            lambda: self.parts.auto_checkpoint(
                trigger, tags=tags, details=self._details, branch=self._rescue, expect_head=self._head
            )
        )

    def auto_checkpoint(self, trigger: AutoTrigger | str, *, tags: Iterable[str] = ()) -> Header | None:
        """Save because of an event that this does not see itself; None when it is held back."""
        return self._automatic(auto_trigger(trigger), listed("tags", tags))

    def checkpoint(self, message: str = "", tags: Iterable[str] = ()) -> Header:
        """Save all of it, as asked for by hand."""
        return self._saved_with(message, listed("tags", tags), Trigger(TriggerKind.MANUAL))

    def save(self, message: str = "", *, tolerant: bool = False) -> Header | None:
        """Save what changed since the last checkpoint; None if nothing did.

        With `tolerant` a part of one's own that fails keeps what is stored of it.
        """
        if not self._is_dirty:
            return None
        trigger = Trigger(TriggerKind.AUTO, CHANGED)
        return self._saved_with(message or "Changes", (), trigger, tolerant=tolerant)

    def _saved_with(
        self, message: str, tags: Iterable[str], trigger: Trigger, *, tolerant: bool = False
    ) -> Header:
        header = self._save(
            lambda: self.parts.checkpoint(
                message,
                tags,
                trigger=trigger,
                details=self._details,
                branch=self._rescue,
                expect_head=self._head,
                tolerant=tolerant,
            )
        )
        assert header is not None
        return header

    def compaction_warning(self) -> Header:
        """The context is about to be compacted: save everything at once, whatever came before.

        Where it does not go with what others did it is on a rescue branch, which the header names; of a part of one's
        own that fails, it has what was stored before.

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

    @contextmanager
    def scheduled(self, seconds: float = SCHEDULE_SECONDS, *, wait: Wait | None = None) -> Iterator[None]:
        """Save every so many seconds what changed, while the block runs. `wait` replaces waiting, for tests."""

        def work() -> float:
            if self._is_dirty:
                self._saved_with("Scheduled", (), SCHEDULED)
            return seconds

        check_seconds("seconds", seconds)
        worker = Worker("stepkeep-schedule", work, wait=wait)
        worker.start(after_seconds=seconds)
        try:
            yield
        finally:
            worker.stop()

    def tick(self) -> Header | None:
        """Save if enough time has passed since the last checkpoint. Call it now and then."""
        return self._automatic(AutoTrigger.SIGNIFICANT_TIME_PASSED)

    def _save(self, save: Callable[[], Header | None]) -> Header | None:
        """Save on top of what was seen last; where others saved meanwhile, with what they did.

        What does not go with that is saved on a rescue branch, and so is what follows it.
        """
        with self._lock:
            current = self._engine.backend.session(self._uid).branch
            if self._rescue is None and current != self._branch:
                self._begin_rescue(f"session {self._key!r} went on with branch {current!r} meanwhile")
            for left in reversed(range(MAX_TRIES)):
                try:
                    header = save()
                except Conflict as exc:
                    self._join_others(exc, gives_up=not left)
                    continue
                return self._saved(header)
            return self._saved(save())

    def _saved(self, header: Header | None) -> Header | None:
        if header is not None:
            self._debugging_us += self._spent_us(header.time_us)
            self._seen, self._head = header, header.id
            self.discard()
        return header

    def _join_others(self, conflict: Conflict, *, gives_up: bool) -> None:
        """Make the next attempt to save one that others do not stand in the way of."""
        if conflict.code == "head_moved" and not gives_up:
            try:
                self._take_in_theirs()
                return
            except Conflict as exc:
                conflict = exc
        if conflict.code not in ("merge_conflict", "head_moved"):
            raise conflict
        self._begin_rescue(conflict.message)

    def _begin_rescue(self, why: str) -> None:
        """Let what is here go on, on a branch of its own, from where it was in step with the session."""
        name = f"rescue-{0 if self._seen is None else self._seen.seq}-{new_id('r')[2:]}"
        self._head = None
        if self._seen is not None:
            with suppress(StepkeepError):  # pruned meanwhile: then the branch begins nowhere
                self._head = branches.begin(self._engine, self._seen, name).head
        self._branch = self._rescue = name
        log.warning("%s. What is here is saved on branch %r: reload, then merge that.", why, name)

    @property
    def rescue(self) -> str | None:
        """The branch that saves go to since they do not go with what others did; None where they do."""
        return self._rescue

    def _take_in_theirs(self) -> None:
        """Join what others saved with what is here.

        Raises:
            Conflict: both changed the same entry, or the two do not fit together (`merge_conflict`). What is here stays
                as it is.
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
        self, name: str, *, description: str = "", hypothesis: EntryRef | None = None, criteria: str = ""
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
            self._branch, self._rescue, self._head = begun.name, None, begun.head
            self._changed(AutoTrigger.BRANCH_SWITCH)
            return self.experiments.get(name)

    def switch(self, name: str) -> ExperimentBranch:
        """Go on with another branch, with what was known there; what is here is saved first."""
        with self._lock:
            self.save()
            if name == self._branch and self._rescue is None:
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
                self._engine,
                session,
                name,
                strategy=strategy,
                on_conflict=on_conflict,
                message=message,
                save=self.parts.save,
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
        closed = self.experiments.close(name, archive=archive)
        return self.experiments.note_results(name, results) if results else closed


def _debugging_us(loaded: Loaded | None) -> int:
    """The time that was spent up to a checkpoint."""
    if loaded is None or DETAILS not in loaded.contents:
        return 0
    return round(details_of(loaded.value(DETAILS)).metrics.time_in_debugging_seconds * 1_000_000)
