"""Random investigations, checkpoints, restores and prunes: after each step the parts equal a plain model."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import stepkeep
from stepkeep.storage.memory import MemoryBackend
from stepkeep.testing import FakeClock
from tests.sampling import examples

Model = dict[str, Any]
TEXTS = st.sampled_from(["the cache is stale", "the cache is not stale", "it leaks", "it never leaks", "ok"])
PICK = st.integers(min_value=0, max_value=1000)


class Investigations(RuleBasedStateMachine):
    """The model knows nothing of parts, branches or bytes: it is what a person would write down."""

    @initialize()
    def begin(self) -> None:
        self.clock = FakeClock()
        self.backend = MemoryBackend()
        self.live: Model = {"hypotheses": {}, "evidence": [], "beliefs": {}, "gaps": {}, "notes": []}
        self.stored: dict[str, Model] = {}
        self.seen = 0
        self.names = 0
        self._open()

    def _open(self) -> None:
        self.bug = stepkeep.Store(self.backend, clock=self.clock).investigation("bug")

    def _take(self, before: Model | None = None, left: str | None = None) -> None:
        """Remember what the new checkpoints must hold: those on a branch that was left, what was there before."""
        for header in self.bug.session.history(newest_first=False):
            if header.seq > self.seen:
                is_left = before is not None and header.branch == left
                self.stored[header.id] = deepcopy(before if is_left else self.live)  # type: ignore[arg-type]
                self.seen = header.seq
        self.clock.advance(20)

    # --- entries

    @rule(text=TEXTS, confidence=st.floats(0, 1))
    def add_hypothesis(self, text: str, confidence: float) -> None:
        added = self.bug.hypotheses.add(text, confidence=confidence)
        self.live["hypotheses"][added.id] = [text, "active", confidence]
        self._take()

    @precondition(lambda self: self.live["hypotheses"])
    @rule(pick=PICK, status=st.sampled_from(["active", "under_test", "confirmed", "rejected"]))
    def set_status(self, pick: int, status: str) -> None:
        id = list(self.live["hypotheses"])[pick % len(self.live["hypotheses"])]
        self.live["hypotheses"][id][1] = status
        self.bug.hypotheses.set_status(id, status)
        self._take()

    @precondition(lambda self: self.live["hypotheses"])
    @rule(pick=PICK, text=TEXTS)
    def add_evidence(self, pick: int, text: str) -> None:
        id = list(self.live["hypotheses"])[pick % len(self.live["hypotheses"])]
        self.live["evidence"].append([id, text])
        self.bug.hypotheses.add_evidence(id, text)
        self._take()

    @rule(text=TEXTS)
    def add_belief(self, text: str) -> None:
        added = self.bug.beliefs.add(text)
        self.live["beliefs"][added.id] = text
        self._take()

    @rule(text=TEXTS)
    def add_gap(self, text: str) -> None:
        self.live["gaps"][self.bug.gaps.add(text).id] = "unfilled"
        self._take()

    @precondition(lambda self: self.live["gaps"])
    @rule(pick=PICK)
    def fill_gap(self, pick: int) -> None:
        id = list(self.live["gaps"])[pick % len(self.live["gaps"])]
        self.live["gaps"][id] = "filled"
        self.bug.gaps.fill(id)
        self._take()

    @rule(text=TEXTS)
    def add_note(self, text: str) -> None:
        self.live["notes"].append(text)
        self.bug.notes.add(text)
        self._take()

    # --- checkpoints

    @rule()
    def checkpoint(self) -> None:
        self.bug.checkpoint("by hand")
        self._take()

    @rule(seconds=st.sampled_from([1, 400, 4000]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.bug.tick()
        self._take()

    @rule()
    def warn(self) -> None:
        self.bug.compaction_warning()
        self._take()

    @rule()
    def reopen(self) -> None:
        self.bug.save()
        self._take()
        self._open()

    # --- travelling

    @precondition(lambda self: self.stored)
    @rule(pick=PICK)
    def restore(self, pick: int) -> None:
        ids = [header.id for header in self.bug.list()]
        id = ids[pick % len(ids)]
        before, left = deepcopy(self.live), self.bug.session.info.branch
        self.bug.restore(id)
        self._take(before, left)
        self.live = deepcopy(self.stored[id])

    @rule()
    def experiment(self) -> None:
        self.names += 1
        self.bug.begin_experiment(f"try {self.names}")
        self._take()

    @rule(pick=PICK)
    def switch(self, pick: int) -> None:
        is_open = [each for each in self.bug.session.branches if each.state == "open" and each.head]
        if not is_open:
            return
        target = is_open[pick % len(is_open)]
        before, left = deepcopy(self.live), self.bug.session.info.branch
        if target.name != left:
            assert target.head is not None
            self.live = deepcopy(self.stored[target.head])
        self.bug.switch(target.name)
        self._take(before, left)

    @rule(keep=st.integers(1, 5))
    def prune(self, keep: int) -> None:
        self.bug.prune(keep_last=keep)

    # --- what must be

    @invariant()
    def the_parts_equal_the_model(self) -> None:
        state = self.bug.state()
        found = {
            "hypotheses": {
                each.id: [each.description, each.status, each.confidence] for each in state.hypotheses
            },
            "evidence": [[each.hypothesis, each.description] for each in state.evidence],
            "beliefs": {each.id: each.statement for each in state.beliefs},
            "gaps": {each.id: each.status for each in state.gaps},
            "notes": [each.content for each in state.notes],
        }
        assert found == self.live

    def teardown(self) -> None:
        if hasattr(self, "bug"):
            for header in self.bug.list():
                found = self.bug.query_at(id=header.id)
                assert found is not None
                assert [each.content for each in found.notes] == self.stored[header.id]["notes"]


TestInvestigations = Investigations.TestCase
TestInvestigations.settings = settings(max_examples=examples(25), stateful_step_count=25)
