"""The plain JSON of a dict that grows from save to save: what is proven unchanged is not encoded again.

The proof: texts, numbers, booleans and None never change. Containers may, at any moment and in place, so each one is
kept together with the very objects it held. It is unchanged if it still holds these objects, one by one and in the same
order. Keeping them also keeps their identities from being used again, so the proof has no gap.

A value that holds the same objects as last time has the same bytes; a list that begins with the same elements begins
with the same bytes. Only the rest is encoded, and checked as every state is. While the first value only grows, hashing
goes on from where it stood as well; who may choose the order has the largest value first. The bytes depend on the
values alone, never on what is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from itertools import chain
from operator import attrgetter, is_
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from stepkeep.codec.exact import ATOMS, MAX_BYTES, to_json

MAX_WATCHED: Final = 1_000_000
"""More values than this are not watched: shared references may multiply without end."""


_attributes: Final = attrgetter("__dict__", "__pydantic_extra__")


def no_objects(kind: type) -> bool:  # noqa: ARG001
    """Only dicts and lists are watched."""
    return False


class _Held:
    """Containers of one kind, and the very objects that each held when it was added.

    `contents` gives the objects in a container, `mark` what of it must not change beside them: its length or class.
    """

    def __init__(self, contents: Callable[[Any], Iterable[Any]], mark: Callable[[Any], object]) -> None:
        self._contents = contents
        self._mark = mark
        self.containers: list[Any] = []
        self._marks: list[object] = []
        self.objects: list[Any] = []

    def add(self, containers: list[Any]) -> list[Any]:
        """What these hold."""
        objects = list(chain.from_iterable(map(self._contents, containers)))
        self.containers += containers
        self._marks += map(self._mark, containers)
        self.objects += objects
        return objects

    def is_same(self) -> bool:
        now = chain.from_iterable(map(self._contents, self.containers))
        return list(map(self._mark, self.containers)) == self._marks and all(map(is_, now, self.objects))


class Watch:
    """Some values, and everything in them, as they were when they were added.

    Besides dicts with text keys and lists it takes objects of the classes that `is_open` accepts: models of pydantic
    whose whole content is in their fields.
    """

    def __init__(self, is_open: Callable[[type], bool] = no_objects) -> None:
        self._is_open = is_open
        self._dicts = _Held(dict.values, len)
        self._keys = ""
        self._lists = _Held(iter, len)
        self._models = _Held(_attributes, type)

    def add(self, values: Iterable[Any]) -> bool:
        """Watch more values. False if one of them cannot be watched: then this watch proves nothing any more."""
        level = _changeable(values)
        while level:
            present = set(map(type, level))
            below: list[Any] = []
            if dict in present:
                dicts = [value for value in level if type(value) is dict]
                if not _have_plain_keys(dicts):
                    return False
                below += self._dicts.add(dicts)
                self._keys += _keys(dicts)
            if list in present:
                below += self._lists.add([value for value in level if type(value) is list])
            if others := present - {dict, list}:
                if not all(map(self._is_open, others)):
                    return False
                below += self._models.add([value for value in level if type(value) in others])
            if len(self._dicts.objects) + len(self._lists.objects) > MAX_WATCHED:
                return False
            level = _changeable(below)
        return True

    def holds(self) -> bool:
        """Whether nothing in the values changed since they were added."""
        try:
            return (
                self._dicts.is_same()
                and _keys(self._dicts.containers) == self._keys
                and self._lists.is_same()
                and self._models.is_same()
            )
        except (AttributeError, RuntimeError, TypeError):  # it is changing, or a key is not text any more
            return False


def _keys(dicts: Iterable[dict[str, Any]]) -> str:
    """All keys as one text, each ended by NUL: joining is quicker than comparing them one by one.

    For as many keys of which none has a NUL, equal texts mean equal keys.
    """
    return "\0".join((*chain.from_iterable(dicts), ""))


def _have_plain_keys(dicts: list[dict[Any, Any]]) -> bool:
    keys = list(chain.from_iterable(dicts))
    return set(map(type, keys)) <= {str} and not any("\0" in key for key in keys)


def _changeable(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if type(value) not in ATOMS]


LARGE_BYTES: Final = 32 * 1024
"""Smaller contents are written in the order of their dict: remembering them gains nothing."""

Encode: TypeAlias = Callable[[Any], bytes | None]
"""The plain JSON of a value, checked; None if it cannot be written as such."""

_Bytes: TypeAlias = bytes | memoryview


class Grown(msgspec.Struct, frozen=True):
    """A content, its SHA-256, and the order in which it has the keys of the dict.

    Its first `shared` bytes are those of `before`, the content of the last time; `known` are those that were not
    encoded again, wherever they are.
    """

    content: bytes
    digest: str
    order: list[str]
    before: bytes
    shared: int
    known: int


class _Part(NamedTuple):
    """One value: its elements when it was encoded (itself, if it is not a list), and where its bytes are."""

    elements: list[Any]
    is_list: bool
    watch: Watch
    start: int
    end: int

    def begins(self, value: Any) -> bool:
        """Whether `value` is still what was encoded, or a list that begins with it."""
        if (type(value) is list) is not self.is_list:
            return False
        elements = value if self.is_list else [value]
        return (
            len(elements) >= len(self.elements)
            and all(map(is_, self.elements, elements))
            and self.watch.holds()
        )


class _Piece(msgspec.Struct, frozen=True):
    """The bytes of one value in this round, and what to remember of it."""

    chunks: list[_Bytes]
    watched: tuple[list[Any], bool, Watch] | None
    known: int = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.chunks))


class _First(msgspec.Struct, frozen=True):
    """The value that came first: its name, where it ended, and the hash of everything up to there."""

    name: str
    end: int
    hashed: Any


class Growing:
    """The successive values of one dict. For one thread at a time; of no use any more after an error.

    `encode` gives the bytes of one value, or of a list of new elements. `is_open` as in `Watch`. With `keeps_order`
    the keys stay in the order of the dict.
    """

    def __init__(
        self,
        encode: Encode,
        is_open: Callable[[type], bool] = no_objects,
        *,
        max_bytes: int = MAX_BYTES,
        keeps_order: bool = False,
    ) -> None:
        self._encode = encode
        self._is_open = is_open
        self._max_bytes = max_bytes
        self._keeps_order = keeps_order
        self._content = b""
        self._parts: dict[str, _Part] = {}
        self._first = _First("", 0, sha256())

    @property
    def size_bytes(self) -> int:
        """The size of the content that is remembered."""
        return len(self._content)

    def content(self, values: dict[str, Any]) -> Grown | None:
        """The content of these values; None if one of them cannot be written as plain JSON, or all are too large."""
        pieces: dict[str, _Piece] = {}
        size = 0
        for name, value in values.items():
            piece = self._piece(name, value) if type(name) is str else None
            if piece is None:
                return None
            pieces[name] = piece
            size += piece.size
            if size > self._max_bytes:
                return None
        return self._joined(pieces)

    # --- one value

    def _piece(self, name: str, value: Any) -> _Piece | None:
        part = self._parts.get(name)
        if part is not None and part.begins(value):
            return self._longer(part, value[len(part.elements) :] if part.is_list else [])
        return self._new(value)

    def _longer(self, part: _Part, added: list[Any]) -> _Piece | None:
        known = memoryview(self._content)[part.start : part.end]
        if not added:
            return _Piece([known], part[:3], len(known))
        # Watched before they are encoded: what changes in between is noticed next time.
        is_watched = part.watch.add(added)
        encoded = self._encode(added)
        if encoded is None:
            return None
        comma = b"," if part.elements else b""
        part.elements.extend(added)
        chunks: list[_Bytes] = [known[:-1], comma, encoded[1:]]
        return _Piece(chunks, part[:3] if is_watched else None, len(known))

    def _new(self, value: Any) -> _Piece | None:
        is_list = type(value) is list
        elements = list(value) if is_list else [value]
        watch = Watch(self._is_open)
        is_watched = type(value) not in ATOMS and watch.add(elements)
        encoded = self._encode(elements if is_list else value)
        if encoded is None:
            return None
        return _Piece([encoded], (elements, is_list, watch) if is_watched else None)

    # --- all of them

    def _joined(self, pieces: dict[str, _Piece]) -> Grown:
        order = list(pieces) if self._keeps_order else _order(pieces)
        chunks: list[_Bytes] = []
        parts: dict[str, _Part] = {}
        at = 0
        first_end = 0
        for name in order:
            piece = pieces[name]
            lead = (b"," if chunks else b"{") + to_json(name) + b":"
            start = at + len(lead)
            at = start + piece.size
            chunks += (lead, *piece.chunks)
            if piece.watched is not None:
                parts[name] = _Part(*piece.watched, start, at)
            first_end = first_end or at
        content = b"".join((*chunks, b"}")) if order else b"{}"
        before, self._content, self._parts = self._content, content, parts
        first = order[0] if order else ""
        shared = self._first.end if order and first == self._first.name and pieces[first].known else 0
        digest = self._digest(content, shared, first, first_end)
        return Grown(content, digest, order, before, shared, sum(piece.known for piece in pieces.values()))

    def _digest(self, content: bytes, shared: int, first: str, first_end: int) -> str:
        """The digest of a content. What it shares with the last one was hashed then."""
        hashed = self._first.hashed.copy() if shared else sha256()
        view = memoryview(content)
        end = max(0, first_end - 1)  # the bracket that closes a list moves when the list grows
        hashed.update(view[shared:end])
        self._first = _First(first, end, hashed.copy())
        hashed.update(view[end:])
        return str(hashed.hexdigest())


def _order(pieces: dict[str, _Piece]) -> list[str]:
    """The names as they come, but of a large content that of the largest value first."""
    names = list(pieces)
    sizes = {name: pieces[name].size for name in names}
    if sum(sizes.values()) < LARGE_BYTES:
        return names
    largest = max(names, key=sizes.__getitem__)
    return [largest, *(name for name in names if name != largest)]
