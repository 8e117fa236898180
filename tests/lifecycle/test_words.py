"""The words of the snapshot lifecycle and ours, both ways."""

from __future__ import annotations

import pytest

import stepkeep
from stepkeep.codec.words import STEP_WORDS, step_status, step_word
from stepkeep.lifecycle.sources import source_of, trigger_of
from stepkeep.model import Trigger, TriggerKind


@pytest.mark.parametrize("ours", sorted(STEP_WORDS))
def test_the_status_of_a_step_translates_both_ways(ours: str) -> None:
    """And our own word is understood as well."""
    assert step_status(step_word(ours)) == step_status(ours) == ours


@pytest.mark.parametrize("kind", list(TriggerKind))
def test_a_trigger_translates_both_ways(kind: TriggerKind) -> None:
    """The event goes with it."""
    trigger = Trigger(kind, "something_happened")
    assert trigger_of(source_of(trigger), "something_happened") == trigger


def test_words_that_nobody_uses_are_refused() -> None:
    """The error lists those that exist."""
    with pytest.raises(stepkeep.InvalidInput, match="step_boundary"):
        trigger_of("whim")
    with pytest.raises(stepkeep.InvalidInput, match="skipped"):
        step_status("splendid")
