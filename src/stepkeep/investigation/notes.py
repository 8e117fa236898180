"""What someone wants to remember: notes, and the state of the code that is being debugged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from stepkeep.errors import InvalidInput
from stepkeep.investigation.entries import (
    Announcer,
    Clock,
    Entry,
    EventKind,
    NewId,
    Records,
    check_tags,
    check_words,
    new_id,
    plain,
)
from stepkeep.model import check_text
from stepkeep.recording.recovery import ALLOWED, CodeState, captured, checked_commit


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


class CodeTracker(Announcer):
    """The code as it was last told; None until then."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._state: CodeState | None = None

    @property
    def state(self) -> CodeState | None:
        return self._state

    def changed(
        self,
        paths: Iterable[str],
        commit: str | None = None,
        *,
        patches: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        allowed: Iterable[str] = ALLOWED,
    ) -> CodeState:
        """Source code was modified. Of the environment only allowed variables are kept, secrets hidden.

        Raises:
            InvalidInput: the commit is not the id of one (`invalid_commit`), or `paths` is one text.
        """
        if isinstance(paths, str) or isinstance(patches, str):
            raise InvalidInput("paths and patches take lists of texts", code="invalid_option")
        self._state = CodeState(
            commit=checked_commit(commit),
            patches=tuple(check_text("a patch", patch, limit=2**20) for patch in patches),
            paths=tuple(check_text("a path", path) for path in paths),
            env_vars=captured(environment or {}, allowed),
            changed_us=self._clock(),
        )
        self.announce(EventKind.CODE_CHANGED, ", ".join(self._state.paths)[:200])
        return self._state

    def snapshot(self) -> dict[str, Any] | None:
        state: dict[str, Any] | None = plain(self._state)
        return state

    def validate(self, data: Any) -> None:
        _read(data)

    def restore(self, data: Any) -> None:
        self._state = _read(data)


def _read(data: Any) -> CodeState | None:
    try:
        return msgspec.convert(data, CodeState | None)
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"no state of code: {exc}", code="invalid_entries") from exc
