"""What the parts of an investigation are made of: entries by id, checked when they come in, and what they announce.

An entry is found by the beginning of its id. Some announcements are worth a checkpoint by themselves.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from stepkeep.errors import InvalidInput, NotFound
from stepkeep.model import check_name, check_text
from stepkeep.recording.parts import Part
from stepkeep.recording.triggers import AutoTrigger

NewId: TypeAlias = Callable[[str], str]
Clock: TypeAlias = Callable[[], int]

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
MAX_NEAR: Final = 10


def new_id(prefix: str) -> str:
    """`<prefix>_<random>`: entries of two branches stay apart when the branches are merged."""
    return f"{prefix}_{''.join(secrets.choice(_ALPHABET) for _ in range(8))}"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Something with an id of its own."""

    id: str


T = TypeVar("T", bound=Entry)
E = TypeVar("E", bound=StrEnum)


class Records(Generic[T]):
    """Entries of one kind, in the order in which they came."""

    def __init__(self, kind: type[T], noun: str, prefix: str, make_id: NewId = new_id) -> None:
        self._kind = kind
        self._noun = noun
        self._prefix = prefix
        self._make_id = make_id
        self._entries: dict[str, T] = {}

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: object) -> bool:
        return id in self._entries

    def new_id(self) -> str:
        while (id := self._make_id(self._prefix)) in self._entries:
            pass
        return id

    def put(self, entry: T) -> T:
        self._entries[entry.id] = entry
        return entry

    def get(self, id: str) -> T:
        """The entry with that id, or the only one whose id begins so.

        Raises:
            NotFound: there is none, or several (`entry_not_found`).
        """
        if id in self._entries:
            return self._entries[id]
        found = [entry for name, entry in self._entries.items() if id and name.startswith(id)]
        if len(found) == 1:
            return found[0]
        near = [entry.id for entry in found] or list(self._entries)
        what = f"several {self._noun}s begin with {id!r}" if found else f"no {self._noun} {id!r}"
        raise NotFound(
            f"{what}: there is {', '.join(near[-MAX_NEAR:]) or 'none yet'}", code="entry_not_found", path=id
        )

    def keep_newest(self, most: int) -> None:
        for id in list(self._entries)[: max(0, len(self._entries) - most)]:
            del self._entries[id]

    def snapshot(self) -> dict[str, Any]:
        entries: dict[str, Any] = plain(self._entries)
        return entries

    def read(self, data: Any) -> dict[str, T]:
        """The entries in a snapshot.

        Raises:
            InvalidInput: the data are not entries of an investigation (`invalid_entries`).
        """
        try:
            entries = msgspec.convert(data, dict[str, self._kind])  # type: ignore[name-defined]
        except msgspec.ValidationError as exc:
            raise InvalidInput(f"no {self._noun}s: {exc}", code="invalid_entries") from exc
        for id, entry in entries.items():
            if id != entry.id:
                raise InvalidInput(
                    f"no {self._noun}s: {entry.id!r} is under the id {id!r}", code="invalid_entries"
                )
        return entries

    def restore(self, data: Any) -> None:
        self._entries = self.read(data)


def plain(value: object) -> Any:
    """A value as plain JSON data: a state without tuples is saved several times faster."""
    return msgspec.json.decode(msgspec.json.encode(value))


# --- checking what comes in


def check_share(what: str, value: object, *, least: float = 0.0) -> float:
    """`value` if it is a number from `least` to 1."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= 1:  # type: ignore[arg-type,operator]
        raise InvalidInput(
            f"{what} must be a number from {least:g} to 1, not {value!r}", code="invalid_option"
        )
    return float(value)  # type: ignore[arg-type]


def check_word(what: str, kind: type[E], word: object) -> E:
    """The member of an enumeration that a word stands for."""
    try:
        return kind(word)  # type: ignore[arg-type]
    except ValueError:
        raise InvalidInput(
            f"no {what} {word!r}: choose one of {', '.join(kind)}", code="invalid_option"
        ) from None


def check_words(what: str, text: object) -> str:
    """Text that is not empty."""
    checked = check_text(what, text)
    if not checked.strip():
        raise InvalidInput(f"{what} is empty: say something", code="invalid_text")
    return checked


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise InvalidInput(f"tags takes a list of texts, not {tags!r}", code="invalid_name")
    return tuple(dict.fromkeys(check_name("each of the tags", tag) for tag in tags))


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
