"""What the parts of an investigation are made of: entries by id, checked when they come in.

An entry is found by the beginning of its id. A part tells its owner of every change, and which automatic checkpoint
that is worth. A stored entry that cannot be read does not stand in the way of the others: it is set aside, saved again
as it is, and mended or dropped by `repair`.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypedDict, TypeVar, Unpack

import msgspec

from stepkeep import typed
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.model import check_name, check_text
from stepkeep.recording.triggers import AutoTrigger, listed

log = logging.getLogger("stepkeep")

NewId: TypeAlias = Callable[[str], str]
Clock: TypeAlias = Callable[[], int]
OnChange: TypeAlias = Callable[[AutoTrigger, tuple[str, ...]], None]
"""Told of a change: the trigger that it is worth, and the tags by which the profile `debug` keeps its checkpoint."""

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
MAX_NEAR: Final = 10
TIME_PASSED: Final = AutoTrigger.SIGNIFICANT_TIME_PASSED
"""The trigger of a change that is not worth a checkpoint by itself."""


def new_id(prefix: str) -> str:
    """`<prefix>_<random>`: entries of two branches stay apart when the branches are merged."""
    return f"{prefix}_{''.join(secrets.choice(_ALPHABET) for _ in range(8))}"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Something with an id of its own. `plural` names all of its kind, `prefix` begins their ids."""

    plural: ClassVar[str]
    prefix: ClassVar[str]

    id: str


class BrokenEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A stored entry that cannot be read, and why. `entries` names all of its kind, `data` is what is stored."""

    entries: str
    id: str
    reason: str
    data: Any


class RepairedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a broken entry: mended, or dropped because too little of it can be read."""

    entries: str
    id: str
    reason: str
    is_mended: bool


EntryRef: TypeAlias = str | Entry
"""What names an entry: its id, the beginning of that, or the entry itself."""

T = TypeVar("T", bound=Entry)
E = TypeVar("E", bound=Entry)
W = TypeVar("W", bound=StrEnum)


class PartOptions(TypedDict, total=False):
    """What every part of an investigation can be given."""

    make_id: NewId
    on_change: OnChange


class EntryPart(Generic[T]):
    """Entries of one kind or several, each in the order in which they came, as a part of a session.

    The first of `kinds` is the main one. A snapshot has the entries of several kinds by their plural.
    """

    kinds: ClassVar[tuple[type[Entry], ...]]

    def __init__(self, clock: Clock, **options: Unpack[PartOptions]) -> None:
        self._clock = clock
        self._make_id = options.get("make_id", new_id)
        self._on_change = options.get("on_change")
        self._main: Any = self.kinds[0]
        self._entries: dict[type[Entry], dict[str, Any]] = {kind: {} for kind in self.kinds}
        self._broken: dict[type[Entry], dict[str, BrokenEntry]] = {kind: {} for kind in self.kinds}

    def get(self, id: EntryRef) -> T:
        """The entry with that id, or the only one whose id begins so.

        Raises:
            NotFound: there is none, or several (`entry_not_found`).
        """
        found: T = self._get(self._main, id)
        return found

    def all(self) -> tuple[T, ...]:
        return tuple(self._entries[self._main].values())

    def _of(self, kind: type[E]) -> dict[str, E]:
        return self._entries[kind]

    def _get(self, kind: type[E], ref: EntryRef) -> E:
        id, entries = entry_id(ref), self._of(kind)
        if id in entries:
            return entries[id]
        found = [name for name in entries if id and name.startswith(id)]
        if len(found) == 1:
            return entries[found[0]]
        what = f"several {kind.plural} begin with {id!r}" if found else f"no {id!r} among the {kind.plural}"
        near = ", ".join((found or list(entries))[-MAX_NEAR:]) or "none yet"
        raise NotFound(f"{what}: there is {near}", code="entry_not_found", path=id)

    def _new_id(self, kind: type[Entry]) -> str:
        while (id := self._make_id(kind.prefix)) in self._entries[kind] or id in self._broken[kind]:
            pass
        return id

    # --- changing

    def _changed(self, trigger: AutoTrigger = TIME_PASSED, tags: tuple[str, ...] = ()) -> None:
        if self._on_change is not None:
            self._on_change(trigger, tags)

    def _put(self, entry: E, trigger: AutoTrigger = TIME_PASSED, tags: tuple[str, ...] = ()) -> E:
        """Keep an entry, be it in place of the one with its id, and tell of it."""
        self._keep(entry)
        self._changed(trigger, tags)
        return entry

    def _keep(self, entry: Entry) -> None:
        """Keep an entry that reads back as it is: what is stored must open again."""
        kind = type(entry)
        try:
            typed.convert(msgspec.to_builtins(entry), kind)
        except (msgspec.ValidationError, TypeError) as exc:
            raise InvalidInput(
                f"this cannot be one of the {kind.plural}: {exc}", code="invalid_option"
            ) from exc
        self._entries[kind][entry.id] = entry

    def _update(
        self, before: E, trigger: AutoTrigger = TIME_PASSED, tags: tuple[str, ...] = (), **fields: Any
    ) -> E:
        """Change fields of an entry; where that changes nothing, nothing is told."""
        after = msgspec.structs.replace(before, **fields)
        return before if after == before else self._put(after, trigger, tags)

    # --- as a part

    def snapshot(self) -> dict[str, Any]:
        found: dict[str, Any] = plain({kind.plural: entries for kind, entries in self._entries.items()})
        for kind, broken in self._broken.items():
            found[kind.plural] |= {id: each.data for id, each in broken.items()}
        return found if len(self.kinds) > 1 else found[self._main.plural]

    def validate(self, data: Any) -> None:
        """Refuse data that `restore` should not take.

        Raises:
            InvalidInput: they are not entries of this part, or do not fit together (`invalid_entries`).
        """
        self._check(self._read(data)[0])

    def restore(self, data: Any) -> None:
        self._entries, self._broken = self._read(data)
        for each in self.broken:
            log.warning("one of the %s is left out, %s: %s", each.entries, each.id, each.reason)

    def _read(
        self, data: Any
    ) -> tuple[dict[type[Entry], dict[str, Any]], dict[type[Entry], dict[str, BrokenEntry]]]:
        has_several = len(self.kinds) > 1
        read = {kind: read_entries(kind, data[kind.plural] if has_several else data) for kind in self.kinds}
        entries: dict[type[Entry], dict[str, Any]] = {kind: found for kind, (found, _) in read.items()}
        broken = {kind: set_aside for kind, (_, set_aside) in read.items()}
        for kind, id, reason in list(self._misfits(entries)):
            data = plain(entries[kind].pop(id))
            broken[kind][id] = BrokenEntry(entries=kind.plural, id=id, reason=reason, data=data)
        return entries, broken

    def _misfits(
        self,
        entries: Mapping[type[Entry], Mapping[str, Any]],  # noqa: ARG002
    ) -> Iterator[tuple[type[Entry], str, str]]:
        """Entries that name others which are not there: their kind, their id, and what they lack."""
        return iter(())

    def _check(self, entries: Mapping[type[Entry], Mapping[str, Any]]) -> None:
        """Refuse entries that do not fit together."""

    # --- what cannot be read

    @property
    def broken(self) -> tuple[BrokenEntry, ...]:
        """Stored entries that cannot be read. They stay stored as they are until they are repaired."""
        return tuple(each for broken in self._broken.values() for each in broken.values())

    def repair(self) -> tuple[RepairedEntry, ...]:
        """Mend every entry that cannot be read, or drop it where what it needs is missing."""
        done = []
        for kind, broken in self._broken.items():
            for each in broken.values():
                if (mended := _mended(kind, each.data)) is not None:
                    self._entries[kind][each.id] = mended
                if any((kind, each.id) == misfit[:2] for misfit in self._misfits(self._entries)):
                    del self._entries[kind][each.id]
                is_mended = each.id in self._entries[kind]
                done.append(
                    RepairedEntry(entries=each.entries, id=each.id, reason=each.reason, is_mended=is_mended)
                )
        self._broken = {kind: {} for kind in self.kinds}
        return tuple(done)


def read_entries(kind: type[E], data: Any) -> tuple[dict[str, E], dict[str, BrokenEntry]]:
    """The stored entries of a kind by id, and those of them that cannot be read.

    Raises:
        InvalidInput: the data are no entries at all (`invalid_entries`).
    """
    try:
        entries: dict[str, E] = typed.convert(data, dict[str, kind])  # type: ignore[valid-type]
        broken: dict[str, BrokenEntry] = {}
    except msgspec.ValidationError as exc:
        stored = data if isinstance(data, dict) else {"": None}
        if any(not isinstance(each, dict) or each.get("id") != id for id, each in stored.items()):
            raise invalid_entries(f"these are not {kind.plural}: {exc}") from exc
        entries, broken = _one_by_one(kind, stored)
    for id, entry in entries.items():
        if id != entry.id:
            raise invalid_entries(f"{entry.id!r} of the {kind.plural} is stored under the id {id!r}")
    return entries, broken


def _one_by_one(kind: type[E], stored: dict[str, Any]) -> tuple[dict[str, E], dict[str, BrokenEntry]]:
    entries, broken = dict[str, E](), dict[str, BrokenEntry]()
    for id, data in stored.items():
        try:
            entries[id] = typed.convert(data, kind)
        except msgspec.ValidationError as exc:
            broken[id] = BrokenEntry(entries=kind.plural, id=id, reason=str(exc), data=data)
    return entries, broken


def _mended(kind: type[E], data: Any) -> E | None:
    """The entry with every field that can be read, be it `"0"` for a number or an entry for its id; None if a field
    is missing that it needs."""
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        value = data.get(field.name)
        value = value["id"] if isinstance(value, dict) and "id" in value else value
        try:
            fields[field.name] = typed.convert(value, field.type, strict=False)
        except msgspec.ValidationError:
            if field.required:
                return None
    return kind(**fields)


def invalid_entries(message: str) -> InvalidInput:
    return InvalidInput(message, code="invalid_entries")


def plain(value: object) -> Any:
    """A value as plain JSON data: a state without tuples is saved several times faster."""
    return msgspec.json.decode(msgspec.json.encode(value))


# --- checking what comes in


def entry_id(ref: EntryRef) -> str:
    """The id, or the beginning of one, by which an entry is named."""
    id = ref.id if isinstance(ref, Entry) else ref
    if not isinstance(id, str):
        raise InvalidInput(f"{id!r} names no entry: give it, or its id", code="invalid_option")
    return id


def check_ids(refs: Iterable[EntryRef]) -> tuple[str, ...]:
    """The ids of entries, each once."""
    return check_tags([entry_id(ref) for ref in listed("ids", refs)])


def check_share(what: str, value: object, *, least: float = 0.0) -> float:
    """`value` if it is a number from `least` to 1."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= 1:  # type: ignore[arg-type,operator]
        raise InvalidInput(
            f"{what} must be a number from {least:g} to 1, not {value!r}", code="invalid_option"
        )
    return float(value)  # type: ignore[arg-type]


def check_word(what: str, kind: type[W], word: object) -> W:
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
    return tuple(dict.fromkeys(check_name("each of the tags", tag) for tag in listed("tags", tags)))
