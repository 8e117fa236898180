"""The belief graph: what is held to be true, what it rests on, and where it contradicts itself.

Contradictions are found by reading words, not meaning: two statements contradict each other if they have the same words
and only one of them is negated. Articles, the auxiliary *do* and a final *s* do not count, so `The cache expires`
contradicts `The cache doesn't expire`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.investigation.entries import (
    Announcer,
    Clock,
    Entry,
    EventKind,
    NewId,
    Records,
    check_share,
    check_word,
    check_words,
    new_id,
)
from stepkeep.model import check_text

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
    statement: str
    kind: BeliefKind
    confidence: float
    source: str
    time_us: int


class Dependency(Entry, frozen=True, kw_only=True):
    """An edge: belief `from_id` supports belief `to_id`."""

    from_id: str
    to_id: str
    relationship: Relationship
    strength: float
    reason: str


class Contradiction(Entry, frozen=True, kw_only=True):
    """Two beliefs that cannot both be true. Its id is made of theirs, so that it is found only once."""

    first: str
    second: str
    severity: Severity
    status: ContradictionStatus
    reason: str
    found_us: int


class BeliefGraph(Announcer):
    """Beliefs, the edges between them, and contradictions. The edges never form a cycle."""

    def __init__(self, clock: Clock, *, make_id: NewId = new_id) -> None:
        super().__init__()
        self._clock = clock
        self._beliefs = Records(Belief, "belief", "b", make_id)
        self._dependencies = Records(Dependency, "dependency", "d", make_id)
        self._contradictions = Records(Contradiction, "contradiction", "c", make_id)

    # --- looking

    def get(self, id: str) -> Belief:
        return self._beliefs.get(id)

    def all(self) -> tuple[Belief, ...]:
        return tuple(self._beliefs)

    def dependencies(self) -> tuple[Dependency, ...]:
        return tuple(self._dependencies)

    def contradictions(self) -> tuple[Contradiction, ...]:
        return tuple(self._contradictions)

    # --- changing

    def add(
        self,
        statement: str,
        *,
        kind: BeliefKind | str = BeliefKind.OBSERVATION,
        confidence: float = 0.8,
        source: str = "",
    ) -> Belief:
        """Hold something to be true. What it contradicts is announced."""
        added = Belief(
            id=self._beliefs.new_id(),
            statement=check_words("a belief", statement),
            kind=check_word("kind of belief", BeliefKind, kind),
            confidence=check_share("a confidence", confidence),
            source=check_text("a source", source),
            time_us=self._clock(),
        )
        self._beliefs.put(added)
        self.announce(EventKind.BELIEF_ADDED, added.id)
        self._look_at(added)
        return added

    def update(self, id: str, *, statement: str | None = None, confidence: float | None = None) -> Belief:
        """Change what a belief says, or how sure it is."""
        changes: dict[str, Any] = {}
        if statement is not None:
            changes["statement"] = check_words("a belief", statement)
        if confidence is not None:
            changes["confidence"] = check_share("a confidence", confidence)
        before = self.get(id)
        after = msgspec.structs.replace(before, **changes)
        if after != before:
            self._beliefs.put(after)
            self.announce(EventKind.BELIEF_CHANGED, after.id)
            self._look_at(after)
        return after

    def depend(
        self,
        from_id: str,
        to_id: str,
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
        check_no_cycle([*(each for each in self._dependencies if each.id != added.id), added])
        self._dependencies.put(added)
        self.announce(EventKind.DEPENDENCY_ADDED, added.id)
        return added

    def contradict(
        self, first: str, second: str, *, reason: str = "", severity: Severity | str | None = None
    ) -> Contradiction:
        """Say that two beliefs cannot both be true. One that is known already stays as it is."""
        one, other = self.get(first), self.get(second)
        if one.id == other.id:
            raise InvalidInput(f"belief {one.id} cannot contradict itself", code="invalid_option")
        chosen = None if severity is None else check_word("severity", Severity, severity)
        found = self._found(one, other, check_text("a reason", reason), chosen)
        return found or self._contradictions.get(_pair(one, other))

    def set_contradiction(self, id: str, status: ContradictionStatus | str) -> Contradiction:
        """Say how far a contradiction is dealt with."""
        wanted = check_word("status of a contradiction", ContradictionStatus, status)
        before = self._contradictions.get(id)
        after = msgspec.structs.replace(before, status=wanted)
        if after != before:
            self._contradictions.put(after)
            self.announce(EventKind.CONTRADICTION_CHANGED, after.id, wanted)
        return after

    # --- contradictions

    def look_again(self) -> tuple[Contradiction, ...]:
        """Compare all beliefs with each other, as after a merge; the contradictions that are new."""
        return tuple(found for belief in self._beliefs for found in self._look_at(belief))

    def _look_at(self, belief: Belief) -> list[Contradiction]:
        if belief.confidence < HELD:
            return []
        others = [each for each in self._beliefs if each.id != belief.id and each.confidence >= HELD]
        found = [
            self._found(belief, other, "one is the negation of the other", None)
            for other in others
            if contradict(belief.statement, other.statement)
        ]
        return [each for each in found if each is not None]

    def _found(
        self, one: Belief, other: Belief, reason: str, severity: Severity | None
    ) -> Contradiction | None:
        """A contradiction that was not known before."""
        first, second = sorted((one.id, other.id))
        id = _pair(one, other)
        if id in self._contradictions:
            return None
        added = Contradiction(
            id=id,
            first=first,
            second=second,
            severity=severity or _severity(min(one.confidence, other.confidence)),
            status=ContradictionStatus.ACTIVE,
            reason=reason,
            found_us=self._clock(),
        )
        self._contradictions.put(added)
        self.announce(EventKind.CONTRADICTION_FOUND, id)
        return added

    # --- as a part

    def snapshot(self) -> dict[str, Any]:
        return {
            "beliefs": self._beliefs.snapshot(),
            "dependencies": self._dependencies.snapshot(),
            "contradictions": self._contradictions.snapshot(),
        }

    def validate(self, data: Any) -> None:
        beliefs = self._beliefs.read(data["beliefs"])
        dependencies = self._dependencies.read(data["dependencies"]).values()
        contradictions = self._contradictions.read(data["contradictions"]).values()
        named = {end for each in dependencies for end in (each.from_id, each.to_id)}
        named |= {end for each in contradictions for end in (each.first, each.second)}
        if unknown := sorted(named - beliefs.keys()):
            raise InvalidInput(f"no belief {unknown[0]!r}, but something names it", code="invalid_entries")
        check_no_cycle(dependencies)

    def restore(self, data: Any) -> None:
        self._beliefs.restore(data["beliefs"])
        self._dependencies.restore(data["dependencies"])
        self._contradictions.restore(data["contradictions"])


def _pair(one: Belief, other: Belief) -> str:
    return "|".join(sorted((one.id, other.id)))


def _severity(confidence: float) -> Severity:
    if confidence >= 0.9:
        return Severity.HIGH
    return Severity.MEDIUM if confidence >= 0.7 else Severity.LOW


def check_no_cycle(dependencies: Iterable[Dependency]) -> None:
    """Refuse edges that lead back to where they began."""
    targets: dict[str, list[str]] = {}
    for each in dependencies:
        targets.setdefault(each.from_id, []).append(each.to_id)
    done: set[str] = set()
    for start in targets:
        _walk(start, targets, done)


def _walk(start: str, targets: dict[str, list[str]], done: set[str]) -> None:
    """Depth first, without recursion: an edge into the path that leads here closes a cycle."""
    if start in done:
        return
    path = [start]
    here = {start}
    ways = [iter(targets.get(start, ()))]
    while ways:
        step = next(ways[-1], None)
        if step is None:
            here.discard(path[-1])
            done.add(path.pop())
            ways.pop()
        elif step in here:
            circle = " > ".join([*path[path.index(step) :], step])
            raise InvalidInput(
                f"beliefs must not support each other in a circle: {circle}", code="belief_cycle"
            )
        elif step not in done:
            path.append(step)
            here.add(step)
            ways.append(iter(targets.get(step, ())))
