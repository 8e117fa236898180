"""The daily verbs of an investigation. Each opens it from its checkpoints, and saves what it changed.

An event that is worth an automatic checkpoint makes one; any other change is saved as a checkpoint without the tag
`auto`, so that nothing is lost when the process ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stepkeep.api import Store
from stepkeep.api.investigating import Investigation
from stepkeep.errors import InvalidInput
from stepkeep.history.merge import Side
from stepkeep.history.merging import Strategy
from stepkeep.investigation.comparison import InvestigationComparison
from stepkeep.investigation.state import InvestigationState
from stepkeep.operations.exporting import write_file
from stepkeep.operations.views import CheckpointView, checkpoint_views
from stepkeep.parts.recovery import RecoveryPoint

T = TypeVar("T")


class InvestigationChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a verb did: the entry it is about, contradictions that came up, and the checkpoints that hold it."""

    session: str
    entry: Any
    contradictions: tuple[Any, ...]
    checkpoints: tuple[CheckpointView, ...]


class InvestigationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Where an investigation stands."""

    session: str
    state: InvestigationState
    next_gaps: tuple[str, ...]
    latest: CheckpointView | None


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


def _changed(
    store: Store, key: str, work: Callable[[Investigation], object], message: str
) -> InvestigationChange:
    """Do one thing in an investigation, and save it."""
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
        checkpoints=checkpoint_views(key, found.session, list(reversed(saved))),
    )


def _existing(store: Store, key: str) -> Investigation:
    return Investigation(store, store.get(key))


# --- hypotheses and evidence


def add_hypothesis(
    store: Store,
    key: str,
    description: str,
    *,
    confidence: float,
    tags: Iterable[str] = (),
    parent: str | None = None,
) -> InvestigationChange:
    """Put up a hypothesis."""

    def work(found: Investigation) -> object:
        return found.hypotheses.add(description, confidence=confidence, tags=tags, parent=parent)

    return _changed(store, key, work, "Hypothesis added")


def set_hypothesis(
    store: Store, key: str, id: str, status: str | None, *, confidence: float | None = None
) -> InvestigationChange:
    """Change the status of a hypothesis, or only how likely it is."""

    def work(found: Investigation) -> object:
        if status is None:
            return found.hypotheses.update(id, confidence=confidence)
        return found.hypotheses.set_status(id, status, confidence=confidence)

    return _changed(store, key, work, "Hypothesis changed")


def add_evidence(
    store: Store, key: str, hypothesis: str, description: str, **fields: Any
) -> InvestigationChange:
    """Note what speaks for or against a hypothesis."""

    def work(found: Investigation) -> object:
        return found.hypotheses.add_evidence(hypothesis, description, **fields)

    return _changed(store, key, work, "Evidence added")


# --- beliefs


def add_belief(store: Store, key: str, statement: str, **fields: Any) -> InvestigationChange:
    """Hold something to be true."""
    return _changed(store, key, lambda found: found.beliefs.add(statement, **fields), "Belief added")


def update_belief(store: Store, key: str, id: str, *, confidence: float) -> InvestigationChange:
    """Say how sure a belief is now."""
    return _changed(
        store, key, lambda found: found.beliefs.update(id, confidence=confidence), "Belief changed"
    )


def depend(store: Store, key: str, from_id: str, to_id: str, **fields: Any) -> InvestigationChange:
    """Let one belief support another."""
    return _changed(
        store, key, lambda found: found.beliefs.depend(from_id, to_id, **fields), "Dependency added"
    )


def contradict(store: Store, key: str, first: str, second: str, *, reason: str = "") -> InvestigationChange:
    """Say that two beliefs cannot both be true."""

    def work(found: Investigation) -> object:
        return found.beliefs.contradict(first, second, reason=reason)

    return _changed(store, key, work, "Contradiction noted")


def set_contradiction(store: Store, key: str, id: str, status: str) -> InvestigationChange:
    """Say how far a contradiction is dealt with."""
    return _changed(
        store, key, lambda found: found.beliefs.set_contradiction(id, status), "Contradiction changed"
    )


# --- gaps, notes, code


def add_gap(store: Store, key: str, question: str, **fields: Any) -> InvestigationChange:
    """Note that something is not known."""
    return _changed(store, key, lambda found: found.gaps.add(question, **fields), "Gap added")


def fill_gap(store: Store, key: str, id: str, answer: str) -> InvestigationChange:
    """Note the answer to a gap."""
    return _changed(store, key, lambda found: found.gaps.fill(id, answer), "Gap filled")


def set_gap(store: Store, key: str, id: str, status: str) -> InvestigationChange:
    """Say where a gap stands."""
    return _changed(store, key, lambda found: found.gaps.set_status(id, status), "Gap changed")


def add_note(
    store: Store, key: str, content: str, *, tags: Iterable[str] = (), hypotheses: Sequence[str] = ()
) -> InvestigationChange:
    """Write something down."""

    def work(found: Investigation) -> object:
        about = [found.hypotheses.get(id).id for id in hypotheses]
        return found.notes.add(content, tags=tags, hypotheses=about)

    return _changed(store, key, work, "Note added")


def code_changed(
    store: Store,
    key: str,
    paths: Sequence[str],
    *,
    commit: str | None,
    patches: Sequence[str],
    environment: Mapping[str, str],
) -> InvestigationChange:
    """Note that source code was modified."""

    def work(found: Investigation) -> object:
        return found.code_changed(paths, commit, patches=patches, environment=environment)

    return _changed(store, key, work, "Code changed")


# --- verifying


def run_verification(
    store: Store,
    key: str,
    command: Sequence[str],
    *,
    plan: str,
    hypothesis: str | None,
    timeout_seconds: float,
) -> InvestigationChange:
    """Run a command that shows whether something is so."""

    def work(found: Investigation) -> object:
        about = None if hypothesis is None else found.hypotheses.get(hypothesis).id
        return found.verifications.run(command, plan=plan, hypothesis=about, timeout_seconds=timeout_seconds)

    return _changed(store, key, work, "Verification run")


def record_command(store: Store, key: str, command: str, **fields: Any) -> InvestigationChange:
    """Note a command that was run by hand."""
    return _changed(store, key, lambda found: found.commands.record(command, **fields), "Command noted")


# --- experiments


def begin_experiment(store: Store, key: str, name: str, **fields: Any) -> InvestigationChange:
    """Try something on a branch of its own."""
    return _changed(store, key, lambda found: found.begin_experiment(name, **fields), "Experiment begun")


def switch_experiment(store: Store, key: str, name: str) -> InvestigationChange:
    """Go on with another branch."""
    return _changed(store, key, lambda found: found.switch(name), "Branch switched")


def merge_experiment(
    store: Store, key: str, name: str, *, strategy: Strategy, on_conflict: Side | None, results: str
) -> InvestigationChange:
    """Merge an experiment into the current branch."""

    def work(found: Investigation) -> object:
        found.merge(name, strategy=strategy, on_conflict=on_conflict)
        return found.experiments.note_results(name, results) if results else found.experiments.get(name)

    return _changed(store, key, work, "Experiment merged")


def close_experiment(
    store: Store, key: str, name: str, *, results: str, archive: bool
) -> InvestigationChange:
    """Abandon an experiment, or archive it."""

    def work(found: Investigation) -> object:
        return found.close_experiment(name, results=results, archive=archive)

    return _changed(store, key, work, "Experiment closed")


def warn_of_compaction(store: Store, key: str) -> InvestigationChange:
    """Save everything before the context is compacted."""
    return _changed(store, key, lambda found: found.compaction_warning().id, "Compaction")


# --- looking


def investigation_status(store: Store, key: str) -> InvestigationStatus:
    """Where an investigation stands."""
    found = _existing(store, key)
    latest = list(found.list(limit=1))
    return InvestigationStatus(
        session=key,
        state=found.state(),
        next_gaps=tuple(gap.id for gap in found.gaps.to_fill()),
        latest=checkpoint_views(key, found.session, latest)[0] if latest else None,
    )


def investigation_report(
    store: Store, key: str, *, output: Path | None = None, force: bool = False
) -> InvestigationReport:
    """An investigation as Markdown; with `output` it is written there, as `export` does."""
    text = _existing(store, key).report()
    if output is not None:
        write_file(output, text.encode(), force=force)
    return InvestigationReport(session=key, markdown=text, output=None if output is None else str(output))


def compare_investigation(store: Store, key: str, older: str, newer: str) -> InvestigationComparison:
    """What changed from one checkpoint to another."""
    return _existing(store, key).compare(older, newer)


def investigation_recovery(store: Store, key: str, ref: str) -> RecoveryView:
    """How to get back to a checkpoint."""
    point = _existing(store, key).recovery_point(ref)
    return RecoveryView(session=key, point=point, text=point.as_text(), script=point.as_script())


def words_of(text: str | None) -> tuple[str, ...]:
    """A list given as `a,b`."""
    if text is None:
        return ()
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise InvalidInput(f"{text!r} is no list such as a,b", code="invalid_name")
    return words
