"""What the parts of an investigation announce, and which of it is worth a checkpoint by itself."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

import msgspec

from stepkeep.parts.automatic import AutoTrigger
from stepkeep.parts.port import Part


class EventKind(StrEnum):
    HYPOTHESIS_ADDED = "hypothesis_added"
    HYPOTHESIS_CHANGED = "hypothesis_changed"
    HYPOTHESIS_STATUS_CHANGED = "hypothesis_status_changed"
    EVIDENCE_ADDED = "evidence_added"
    BELIEF_ADDED = "belief_added"
    BELIEF_CHANGED = "belief_changed"
    DEPENDENCY_ADDED = "dependency_added"
    CONTRADICTION_FOUND = "contradiction_found"
    CONTRADICTION_CHANGED = "contradiction_changed"
    GAP_ADDED = "gap_added"
    GAP_CHANGED = "gap_changed"
    GAP_FILLED = "gap_filled"
    VERIFICATION_DONE = "verification_done"
    COMMAND_RECORDED = "command_recorded"
    NOTE_ADDED = "note_added"
    CODE_CHANGED = "code_changed"
    BRANCH_SWITCHED = "branch_switched"


class Announcement(msgspec.Struct, frozen=True):
    """Something that happened: to which entry, and the word that matters, such as its new status."""

    kind: EventKind
    subject: str
    word: str = ""


Listener: TypeAlias = Callable[[Announcement], None]


class Announcer:
    """Tells its listeners what happened, in the order in which they came."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def announce(self, kind: EventKind, subject: str, word: str = "") -> None:
        for listener in self._listeners:
            listener(Announcement(kind, subject, word))


class AnnouncingPart(Part, Protocol):
    """A part that tells what happens to it."""

    def listen(self, listener: Listener) -> None: ...


_TRIGGERS: Final = {
    EventKind.HYPOTHESIS_STATUS_CHANGED: AutoTrigger.HYPOTHESIS_STATUS_CHANGE,
    EventKind.CONTRADICTION_FOUND: AutoTrigger.NEW_CONTRADICTION_DETECTED,
    EventKind.VERIFICATION_DONE: AutoTrigger.VERIFICATION_COMPLETE,
    EventKind.BRANCH_SWITCHED: AutoTrigger.BRANCH_SWITCH,
    EventKind.GAP_FILLED: AutoTrigger.GAP_FILLED,
    EventKind.CODE_CHANGED: AutoTrigger.CODE_MODIFIED,
}


def trigger_for(announcement: Announcement) -> AutoTrigger:
    """Why a checkpoint may be due: the event itself, or else that enough time has passed."""
    return _TRIGGERS.get(announcement.kind, AutoTrigger.SIGNIFICANT_TIME_PASSED)


def tags_for(announcement: Announcement) -> tuple[str, ...]:
    """The tags by which the profile `debug` knows what to keep."""
    if announcement.kind is EventKind.CONTRADICTION_FOUND:
        return ("contradiction_detected",)
    is_decided = announcement.word in ("confirmed", "rejected")
    if announcement.kind is EventKind.HYPOTHESIS_STATUS_CHANGED and is_decided:
        return (f"hypothesis_{announcement.word}",)
    return ()
