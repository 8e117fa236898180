"""The belief graph: what is held to be true, what it rests on, and where it contradicts itself.

Contradictions are found by reading words, not meaning: two statements contradict each other if they have the same words
and only one of them is negated. Articles, the auxiliary *do* and a final *s* do not count, so `The cache expires`
contradicts `The cache doesn't expire`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from stepkeep.errors import InvalidInput
from stepkeep.investigation.entries import (
    Entry,
    EntryPart,
    EntryRef,
    check_share,
    check_word,
    check_words,
)
from stepkeep.model import check_text
from stepkeep.recording.triggers import AutoTrigger

_WORD: Final = re.compile(r"[\w.+-]*\w(?:['’]\w+)?")
_NEGATIONS: Final = frozenset({"not", "no", "never"})
_SPLIT: Final = {"cannot": "can", "can't": "can", "won't": "will", "shan't": "shall"}
_IGNORED: Final = frozenset({"a", "an", "the", "do", "does", "did", "that", "it's", "there"})


@lru_cache(maxsize=10_000)
def meaning(statement: str) -> tuple[tuple[str, ...], bool]:
    """The words that count, in their order, and whether they are negated."""
    words: list[str] = []
    is_negated = False
    for word in _WORD.findall(statement.lower().replace("’", "'")):
        plain, negates = _plain(word)
        is_negated ^= negates
        if plain:
            words.append(plain)
    return tuple(words), is_negated


def _plain(word: str) -> tuple[str, bool]:
    if word in _NEGATIONS:
        return "", True
    if word in _SPLIT:
        return _SPLIT[word], True
    is_negated = word.endswith("n't")
    base = word.removesuffix("n't")
    return ("" if base in _IGNORED else _without_s(base)), is_negated


def _without_s(word: str) -> str:
    is_plural = len(word) > 3 and word.endswith("s") and not word.endswith("ss")
    return word[:-1] if is_plural else word


def contradict(first: str, second: str) -> bool:
    """Whether two statements say the opposite."""
    (words, is_negated), (other_words, is_other_negated) = meaning(first), meaning(second)
    return bool(words) and words == other_words and is_negated != is_other_negated


HELD: Final = 0.5
"""From that confidence on a belief is held, and can contradict another."""


class BeliefKind(StrEnum):
    OBSERVATION = "observation"
    INFERENCE = "inference"
    ASSUMPTION = "assumption"
    ACTION = "action"
    EXPECTATION = "expectation"


class Relationship(StrEnum):
    LOGICAL_IMPLICATION = "logical_implication"
    CAUSAL = "causal"
    EVIDENTIAL = "evidential"
    DERIVATION = "derivation"
    ASSUMPTION = "assumption"
    MEASUREMENT_BASIS = "measurement_basis"


class Severity(StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class ContradictionStatus(StrEnum):
    ACTIVE = "active"
    INVESTIGATING = "investigating"
    RESOLVED = "resolved"
    IGNORED = "ignored"


class Belief(Entry, frozen=True, kw_only=True):
    plural = "beliefs"
    prefix = "b"

    statement: str
    kind: BeliefKind
    confidence: float
    source: str
    time_us: int


class Dependency(Entry, frozen=True, kw_only=True):
    """An edge: belief `from_id` supports belief `to_id`."""

    plural = "dependencies"
    prefix = "d"

    from_id: str
    to_id: str
    relationship: Relationship
    strength: float
    reason: str


class Contradiction(Entry, frozen=True, kw_only=True):
    """Two beliefs that cannot both be true. Its id is made of theirs, so that it is found only once."""

    plural = "contradictions"
    prefix = "c"

    first: str
    second: str
    severity: Severity
    status: ContradictionStatus
    reason: str
    found_us: int


class BeliefGraph(EntryPart[Belief]):
    """Beliefs, the edges between them, and contradictions. The edges never form a cycle."""

    kinds = (Belief, Dependency, Contradiction)

    def dependencies(self) -> tuple[Dependency, ...]:
        return tuple(self._of(Dependency).values())

    def contradictions(self) -> tuple[Contradiction, ...]:
        return tuple(self._of(Contradiction).values())

    def add(
        self,
        statement: str,
        *,
        kind: BeliefKind | str = BeliefKind.OBSERVATION,
        confidence: float = 0.8,
        source: str = "",
    ) -> Belief:
        """Hold something to be true. What it contradicts is noted."""
        added = self._put(
            Belief(
                id=self._new_id(Belief),
                statement=check_words("a belief", statement),
                kind=check_word("kind of belief", BeliefKind, kind),
                confidence=check_share("a confidence", confidence),
                source=check_text("a source", source),
                time_us=self._clock(),
            )
        )
        self._look_at(added)
        return added

    def update(
        self, id: EntryRef, *, statement: str | None = None, confidence: float | None = None
    ) -> Belief:
        """Change what a belief says, or how sure it is."""
        fields: dict[str, Any] = {}
        if statement is not None:
            fields["statement"] = check_words("a belief", statement)
        if confidence is not None:
            fields["confidence"] = check_share("a confidence", confidence)
        before = self.get(id)
        after = self._update(before, **fields)
        if after != before:
            self._look_at(after)
        return after

    def depend(
        self,
        from_id: EntryRef,
        to_id: EntryRef,
        *,
        relationship: Relationship | str = Relationship.EVIDENTIAL,
        strength: float = 1.0,
        reason: str = "",
    ) -> Dependency:
        """Let one belief support another.

        Raises:
            InvalidInput: the edge would close a cycle (`belief_cycle`).
        """
        start, end = self.get(from_id).id, self.get(to_id).id
        added = Dependency(
            id=f"{start}>{end}",
            from_id=start,
            to_id=end,
            relationship=check_word("relationship", Relationship, relationship),
            strength=check_share("a strength", strength),
            reason=check_text("a reason", reason),
        )
        check_no_cycle((*self.dependencies(), added))
        return self._put(added)

    def contradict(
        self, first: EntryRef, second: EntryRef, *, reason: str = "", severity: Severity | str | None = None
    ) -> Contradiction:
        """Say that two beliefs cannot both be true. One that is known already stays as it is."""
        one, other = self.get(first), self.get(second)
        if one.id == other.id:
            raise InvalidInput(f"belief {one.id} cannot contradict itself", code="invalid_option")
        chosen = None if severity is None else check_word("severity", Severity, severity)
        return self._contradiction(one, other, check_text("a reason", reason), chosen)

    def set_contradiction(self, id: EntryRef, status: ContradictionStatus | str) -> Contradiction:
        """Say how far a contradiction is dealt with."""
        wanted = check_word("status of a contradiction", ContradictionStatus, status)
        return self._update(self._get(Contradiction, id), status=wanted)

    def look_again(self) -> tuple[Contradiction, ...]:
        """Compare all beliefs with each other, as after a merge; the contradictions that are new."""
        known = len(self._of(Contradiction))
        for belief in self.all():
            self._look_at(belief)
        return self.contradictions()[known:]

    def _look_at(self, belief: Belief) -> None:
        """Note which of the beliefs that are held contradict this one."""
        if belief.confidence < HELD:
            return
        for other in self.all():
            if other.confidence >= HELD and contradict(belief.statement, other.statement):
                self._contradiction(belief, other, "one is the negation of the other", None)

    def _contradiction(
        self, one: Belief, other: Belief, reason: str, severity: Severity | None
    ) -> Contradiction:
        """The contradiction of two beliefs. One that is new is worth a checkpoint."""
        first, second = sorted((one.id, other.id))
        id = f"{first}|{second}"
        known = self._of(Contradiction).get(id)
        if known is not None:
            return known
        added = Contradiction(
            id=id,
            first=first,
            second=second,
            severity=severity or _severity(min(one.confidence, other.confidence)),
            status=ContradictionStatus.ACTIVE,
            reason=reason,
            found_us=self._clock(),
        )
        return self._put(added, AutoTrigger.NEW_CONTRADICTION_DETECTED, ("contradiction_detected",))

    def _misfits(
        self, entries: Mapping[type[Entry], Mapping[str, Any]]
    ) -> Iterator[tuple[type[Entry], str, str]]:
        for kind in (Dependency, Contradiction):
            for id, each in entries[kind].items():
                ends = (each.from_id, each.to_id) if kind is Dependency else (each.first, each.second)
                if unknown := [end for end in ends if end not in entries[Belief]]:
                    yield kind, id, f"it names belief {unknown[0]!r}, which is not there"

    def _check(self, entries: Mapping[type[Entry], Mapping[str, Any]]) -> None:
        check_no_cycle(entries[Dependency].values())


def _severity(confidence: float) -> Severity:
    if confidence >= 0.9:
        return Severity.HIGH
    return Severity.MEDIUM if confidence >= 0.7 else Severity.LOW


def check_no_cycle(dependencies: Iterable[Dependency]) -> None:
    """Refuse edges that lead back to where they began."""
    edges: TopologicalSorter[str] = TopologicalSorter()
    for each in dependencies:
        edges.add(each.to_id, each.from_id)
    try:
        edges.prepare()
    except CycleError as exc:
        circle = " > ".join(exc.args[1])
        raise InvalidInput(
            f"beliefs must not support each other in a circle: {circle}", code="belief_cycle"
        ) from exc
