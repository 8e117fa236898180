"""Notes: what someone wants to remember, with what it is about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stepkeep.investigation.events import Announcer, EventKind
from stepkeep.investigation.records import Clock, Entry, NewId, Records, check_tags, check_words, new_id


class DebugNote(Entry, frozen=True, kw_only=True):
    time_us: int
    content: str
    tags: tuple[str, ...] = ()
    hypotheses: tuple[str, ...] = ()


class Notebook(Announcer):
    """Notes, oldest first. They are added and never change."""

    def __init__(self, clock: Clock, *, make_id: NewId = new_id) -> None:
        super().__init__()
        self._clock = clock
        self._notes = Records(DebugNote, "note", "n", make_id)

    def all(self) -> tuple[DebugNote, ...]:
        return tuple(self._notes)

    def add(self, content: str, *, tags: Iterable[str] = (), hypotheses: Iterable[str] = ()) -> DebugNote:
        """Write something down. `hypotheses` are ids of those it is about."""
        added = DebugNote(
            id=self._notes.new_id(),
            time_us=self._clock(),
            content=check_words("a note", content),
            tags=check_tags(tags),
            hypotheses=check_tags(hypotheses),
        )
        self._notes.put(added)
        self.announce(EventKind.NOTE_ADDED, added.id)
        return added

    def snapshot(self) -> dict[str, Any]:
        return self._notes.snapshot()

    def validate(self, data: Any) -> None:
        self._notes.read(data)

    def restore(self, data: Any) -> None:
        self._notes.restore(data)
