"""The plain JSON of a dict that grows from save to save: what is proven unchanged is not encoded again.

A value that holds the same objects as last time (see `watching`) has the same bytes; a list that begins with the
same elements begins with the same bytes. Only the rest is encoded, and checked as every state is. While the first value
only grows, hashing goes on from where it stood as well; who may choose the order has the largest value first.

The bytes depend on the values alone, never on what is remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from operator import is_
from typing import Any, Final, NamedTuple, TypeAlias

from stepkeep.codec.exact import MAX_BYTES
from stepkeep.codec.refusal import ATOMS
from stepkeep.codec.watching import Watch, no_objects
from stepkeep.codec.wire import to_json

LARGE_BYTES: Final = 32 * 1024
"""Smaller contents are written in the order of their dict: remembering them gains nothing."""

Encode: TypeAlias = Callable[[Any], bytes | None]
"""The plain JSON of a value, checked; None if it cannot be written as such."""

_Bytes: TypeAlias = bytes | memoryview


class Grown(NamedTuple):
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
    """One value: its elements when it was encoded (itself, if it is no list), and where its bytes are."""

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


class _Piece(NamedTuple):
    """The bytes of one value in this round, and what to remember of it."""

    chunks: list[_Bytes]
    watched: tuple[list[Any], bool, Watch] | None
    known: int = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.chunks))


class _First(NamedTuple):
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
