"""The events that are worth a checkpoint by themselves: their words, messages and tags; pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from stepkeep.errors import InvalidInput
from stepkeep.model import Trigger, TriggerKind
from stepkeep.policy.triggers import COMPACTION_WARNING

AUTO_TAG: Final = "auto"


class AutoTrigger(StrEnum):
    """Why an automatic checkpoint is made."""

    HYPOTHESIS_STATUS_CHANGE = "hypothesis_status_change"
    NEW_CONTRADICTION_DETECTED = "new_contradiction_detected"
    VERIFICATION_COMPLETE = "verification_complete"
    BRANCH_SWITCH = "branch_switch"
    GAP_FILLED = "gap_filled"
    CODE_MODIFIED = "code_modified"
    SIGNIFICANT_TIME_PASSED = "significant_time_passed"
    CONTEXT_COMPACTION_WARNING = COMPACTION_WARNING

    @property
    def word(self) -> str:
        """The name as messages and tags have it: `HypothesisStatusChange`."""
        return "".join(part.capitalize() for part in self.value.split("_"))

    @property
    def message(self) -> str:
        return f"Auto: {self.word}"

    @property
    def tags(self) -> tuple[str, str]:
        return AUTO_TAG, self.word

    @property
    def trigger(self) -> Trigger:
        return Trigger(TriggerKind.AUTO, self.value)


_BY_NAME: Final = {name: each for each in AutoTrigger for name in (each.value, each.word)}


def auto_trigger(name: AutoTrigger | str) -> AutoTrigger:
    """The trigger of that name, in either spelling.

    Raises:
        InvalidInput: there is none (`invalid_trigger`).
    """
    found = _BY_NAME.get(name)
    if found is None:
        raise InvalidInput(
            f"no automatic trigger {name!r}: choose one of {', '.join(AutoTrigger)}", code="invalid_trigger"
        )
    return found
