"""The plain JSON of a state that changes from save to save: what is proven the same is not encoded again.

The proof is by value. Of each container that was encoded there is a private copy, decoded from its very bytes, and the
copy's MessagePack. A container is the same if it equals the copy and has the same MessagePack: equality tells a tuple
from a list and a UUID from its text, MessagePack tells 1 from True and 1.0 and has the keys in their order. A list that
begins with the same elements begins with the same bytes. What is new is encoded and proven as every state is.
Of a state that nobody changes any more no copy is made, and the very same objects need no comparing.

A large content has the largest value of its dict first, so that hashing goes on from where it stood while that value
grows. The bytes depend on the values alone, never on what is remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from operator import is_
from typing import Any, Final, TypeAlias

import msgspec

from stepkeep.codec import exact
from stepkeep.codec.delta import MAX_EDITS, MAX_PUT_BYTES, Edit, find_edits, keep_memory_for, shared_start
from stepkeep.codec.exact import ATOMS, INT_MAX, INT_MIN, ValidationError, to_json
from stepkeep.codec.integrity import RunningDigest
from stepkeep.errors import StepkeepError

MIN_ORDERED_BYTES: Final = 32 * 1024
MAX_ORDERED_BYTES: Final = 64 * 1024 * 1024
"""Other contents have the order of their dict: hashing small ones costs little, large ones are not remembered."""

MAX_KEYS: Final = 64
MAX_LEVELS: Final = 3
"""A dict with more keys, or further down, is encoded whole when anything in it changed."""

_WHOLE_BYTES: Final = 1024
"""So is a small one: comparing its values takes longer than encoding all of it."""

_SIMILAR_BYTES: Final = 512
"""Where so much took the place of as much, the two may have bytes in common that only a search finds."""

_pack = msgspec.msgpack.Encoder().encode

Plain: TypeAlias = Callable[[Any, int], tuple[bytes, Any] | None]
"""The plain JSON of a container within a depth, and its private copy made from these bytes; None if it has none.

A copy of None is never the same as anything: the container is encoded again each time.
"""


class Derived(msgspec.Struct, frozen=True):
    """How a content came from the one before: what both begin with, and the edits between them where these are few."""

    before: bytes
    shared: int
    edits: list[Edit] | None


class Grown(msgspec.Struct, frozen=True):
    """A content, its SHA-256, and the position in the dict of the key that the content has first."""

    content: bytes
    digest: str
    first_at: int
    derived: Derived


# --- what is remembered of a value -----------------------------------------------------------------------------


class _Whole(msgspec.Struct, frozen=True):
    """A container that is the same as a whole or not at all."""

    copy: Any
    packed: bytes
    size: int


class _List(msgspec.Struct):
    """A list that may grow: the copies of its elements, and their MessagePack one after the other.

    Elements that nobody changes are their own copies, and are packed when they have to be compared by value.
    """

    copy: list[Any]
    packed: bytearray | None
    size: int


class _Dict(msgspec.Struct, frozen=True):
    """A dict by its values: what is remembered of each, and where its JSON begins within that of the dict."""

    nodes: dict[str, _Node]
    starts: dict[str, int]
    size: int


_Node: TypeAlias = _Whole | _List | _Dict | int
"""What is remembered of a value; of one that is always encoded again only the size of its JSON."""


_Span: TypeAlias = tuple[int, int, bytes | None]
"""A stretch of the new content: the bytes of the old one from start to end, or others that may stand for these."""

_Piece: TypeAlias = tuple[_Node, int, list[_Span]]
"""What to remember of a value, the size of its JSON, and its JSON."""


class _NotPlain(Exception):
    """A value has no plain JSON: the state must be encoded as a whole."""


def _size(node: _Node) -> int:
    return node if isinstance(node, int) else node.size


def _elements(values: list[Any]) -> memoryview:
    """The MessagePack of a list without its head."""
    return memoryview(_pack(values))[_head_bytes(len(values)) :]


def _head_bytes(count: int) -> int:
    """How the MessagePack of a list begins: with so many bytes for the number of its elements."""
    return 1 if count < 16 else 3 if count < 65536 else 5


def _remembered(copy: Any, size: int, level: int, is_frozen: bool) -> _Node:
    """What to remember of a value whose JSON takes `size` bytes and decodes to `copy`."""
    if type(copy) is list:
        return _List(copy[:], None, size) if is_frozen else _List(copy, bytearray(_elements(copy)), size)
    if type(copy) is not dict:
        return size
    if not copy or size < _WHOLE_BYTES or len(copy) > MAX_KEYS or level >= MAX_LEVELS:
        return _Whole(copy, _pack(copy), size)
    nodes: dict[str, _Node] = {}
    starts: dict[str, int] = {}
    at = 0
    for name, value in copy.items():
        length = len(to_json(value))
        nodes[name] = _remembered(value, length, level + 1, is_frozen)
        starts[name] = at + len(to_json(name)) + 2  # a brace or a comma before it, a colon behind
        at = starts[name] + length
    return _Dict(nodes, starts, size)


def _sharing(elements: list[Any], copy: list[Any]) -> list[Any]:
    """The private copy of elements with their own texts in it: the same text is equal without being read.

    Texts never change. The containers are new, and all of it equals the copy that was made from the stored bytes.
    """
    try:
        shared: list[Any] = _copied(elements)
    except (_NotPlain, RuntimeError):
        return copy
    return shared if shared == copy else copy


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is dict:
        return {key: _copied(each) for key, each in value.items()}
    if kind is list or kind is tuple:
        return kind([_copied(each) for each in value])
    raise _NotPlain


def _atom(value: Any) -> bytes:
    """The JSON of a text, a number, a boolean or None that comes back equal."""
    kind = type(value)
    if (kind is int and not INT_MIN <= value <= INT_MAX) or (kind is float and not isfinite(value)):
        raise _NotPlain
    return to_json(value)


class Growing:
    """The successive contents of one dict. For one thread at a time; of no use any more after an error.

    `plain` encodes a container, and `view` gives plain data that tells all about one, to be compared with its copy.
    `is_frozen` promises that nobody changes the dicts, nor anything in them, once they were given.
    """

    def __init__(
        self,
        plain: Plain = exact.plain,
        view: Callable[[Any], Any] | None = None,
        *,
        max_bytes: int = exact.MAX_BYTES,
        is_frozen: bool = False,
    ) -> None:
        self._plain = plain
        self._view = view
        self.is_frozen = is_frozen
        self._max_bytes = max_bytes
        self._content = b""
        self._root = _Dict({}, {}, 0)
        self._digest = RunningDigest()

    @property
    def size_bytes(self) -> int:
        """The size of the content that is remembered."""
        return len(self._content)

    def begin(self, content: bytes, copy: dict[str, Any]) -> Grown:
        """Remember a first state by its JSON, of more than a few bytes, and what that decodes to."""
        root = _remembered(copy, len(content), 0, self.is_frozen)
        assert isinstance(root, _Dict)
        pieces: dict[str, _Piece] = {}
        for name, node in root.nodes.items():
            start, size = root.starts[name], _size(node)
            pieces[name] = node, size, [(0, 0, content[start : start + size])]
        return self._joined(pieces)

    def content(self, state: dict[str, Any]) -> Grown | None:
        """The content of a state; None where it must be encoded as a whole, or where that will tell what is wrong."""
        try:
            return self._joined(self._pieces(self._root, 0, state, 1))
        except (_NotPlain, StepkeepError, ValidationError, RuntimeError, UnicodeError, *_UNPACKABLE):
            return None

    # --- one value

    def _pieces(self, node: _Dict, start: int, values: dict[str, Any], level: int) -> dict[str, _Piece]:
        """The values of a dict whose old JSON begins at `start`."""
        if len(values) > MAX_KEYS:
            raise _NotPlain
        pieces: dict[str, _Piece] = {}
        size = 0
        for name, value in values.items():
            if type(name) is not str:
                raise _NotPlain
            old = node.nodes.get(name)
            at = 0 if old is None else start + node.starts[name]
            pieces[name] = self._piece(old, at, value, level)
            size += pieces[name][1]
            if size > self._max_bytes:
                raise _NotPlain
        return pieces

    def _piece(self, node: _Node | None, start: int, value: Any, level: int) -> _Piece:
        kind = type(value)
        if kind in ATOMS:
            data = _atom(value)
            if node == len(data) and self._content.startswith(data, start):
                return node, node, [(start, start + node, None)]
            return len(data), len(data), [(start, start + _size(node or 0), data)]
        if kind is list and type(node) is _List:
            if (longer := self._longer(node, start, value, level)) is not None:
                return longer
        elif kind is dict and type(node) is _Dict and level < MAX_LEVELS:
            pieces = self._pieces(node, start, value, level + 1)
            return self._laid_out(node, start, pieces, list(pieces))
        elif type(node) is _Whole and self._is_same(value, node):
            return node, node.size, [(start, start + node.size, None)]
        found = self._plain(value, exact.MAX_DEPTH - level)
        if found is None:
            raise _NotPlain
        data, copy = found
        span = (start, start + _size(node or 0), data)
        copy = value if self.is_frozen else copy
        return _remembered(copy, len(data), level, self.is_frozen), len(data), [span]

    def _is_same(self, value: Any, node: _Whole) -> bool:
        if value is node.copy:
            return True
        view = value if self._view is None else self._view(value)
        return bool(view == node.copy) and _pack(view) == node.packed

    def _are_same(self, elements: list[Any], node: _List) -> bool:
        """Whether these are the elements of a list that is remembered."""
        if node.packed is None:
            if all(map(is_, elements, node.copy)):
                return True
            is_same = elements == node.copy and _pack(elements) == _pack(node.copy)
            node.copy = elements if is_same else node.copy
            return is_same
        if elements != node.copy:
            return False
        packed = _pack(elements)
        return len(packed) == _head_bytes(len(elements)) + len(node.packed) and packed.endswith(node.packed)

    def _longer(self, node: _List, start: int, value: list[Any], level: int) -> _Piece | None:
        """A list that begins with all elements of the old one; None if it does not."""
        elements = value[:]  # another thread may add to it meanwhile
        view = elements if self._view is None else self._view(elements)
        count = len(node.copy)
        if len(elements) < count or not self._are_same(view[:count], node):
            return None
        end = start + node.size
        if len(elements) == count:
            return node, node.size, [(start, end, None)]
        found = self._plain(elements[count:], exact.MAX_DEPTH - level)
        if found is None:
            raise _NotPlain
        data, copy = found
        if copy is None:
            return None
        added = b"," + data[1:] if count else data[1:]
        if node.packed is None:
            node.copy += elements[count:]
        else:
            node.copy += _sharing(view[count:], copy)
            node.packed += _elements(copy)
        node.size += len(added) - 1
        return node, node.size, [(start, end - 1, None), (end - 1, end, added)]

    # --- all of them

    def _laid_out(self, node: _Dict, start: int, pieces: dict[str, _Piece], order: list[str]) -> _Piece:
        """The values of a dict behind their names."""
        if not order:
            return _Dict({}, {}, 2), 2, [(start, start + node.size, b"{}")]
        spans: list[_Span] = []
        nodes: dict[str, _Node] = {}
        starts: dict[str, int] = {}
        at = 0
        for name in order:
            nodes[name], size, own = pieces[name]
            lead = (b"," if spans else b"{") + to_json(name) + b":"
            old = start + node.starts.get(name, 0)
            is_kept = name in node.starts and self._content.startswith(lead, old - len(lead))
            spans.append((old - len(lead), old, None) if is_kept else (0, 0, lead))
            spans += own
            starts[name] = at + len(lead)
            at = starts[name] + size
        end = start + node.size
        spans.append((end - 1, end, None) if node.size else (0, 0, b"}"))
        return _Dict(nodes, starts, at + 1), at + 1, spans

    def _joined(self, pieces: dict[str, _Piece]) -> Grown:
        order = list(pieces)
        first_at = 0
        sizes = [size for _, size, _ in pieces.values()]
        # A brace or a comma before each name, a colon behind it, and the closing brace.
        length = sum(sizes) + sum(map(len, map(to_json, order))) + 2 * len(order) + 1
        if order and MIN_ORDERED_BYTES <= length <= MAX_ORDERED_BYTES:
            first_at = sizes.index(max(sizes))
            order.insert(0, order.pop(first_at))
        root, _, spans = self._laid_out(self._root, 0, pieces, order)
        assert isinstance(root, _Dict)
        keep_memory_for(length)
        content, derived = _written(self._content, spans)
        self._root, self._content = root, content
        return Grown(content, self._digest.of(content, derived.shared), first_at, derived)


class Following:
    """The successive contents of JSON that someone else wrote, kept byte for byte. For one thread at a time."""

    def __init__(self) -> None:
        self._content = b""
        self._digest = RunningDigest()

    @property
    def size_bytes(self) -> int:
        """The size of the content that is remembered."""
        return len(self._content)

    def content(self, content: bytes) -> Grown:
        """A content, and how it came from the one before."""
        before, self._content = self._content, content
        edits = find_edits(before, content)
        kept = edits[0].keep if edits else len(before)
        shared = shared_start(before, content) if edits is None else kept
        return Grown(content, self._digest.of(content, shared), 0, Derived(before, shared, edits))


_UNPACKABLE: Final = (TypeError, ValueError, OverflowError)


def _written(old: bytes, spans: list[_Span]) -> tuple[bytes, Derived]:
    """The content in spans, and how it comes from the old one."""
    view = memoryview(old)
    chunks: list[bytes | memoryview] = []
    edits: list[Edit] = []
    put: list[bytes | memoryview] = []
    keep = at = begin = put_bytes = (
        0  # bytes of the old content from `begin` to `at` are kept, and not written yet
    )
    is_similar = False
    for start, end, data in spans:
        if data is None and start >= at:
            if put or start > at:
                chunks.append(view[begin:at])
                chunks += put
                edits.append(Edit(keep, start - at, b"".join(put)))
                keep, put, begin = 0, [], start
            keep += end - start
            at = end
        else:
            new = view[start:end] if data is None else data
            size = len(new)
            is_similar = is_similar or (size >= _SIMILAR_BYTES and end - start >= _SIMILAR_BYTES)
            put_bytes += size
            put.append(new)
    chunks.append(view[begin:at])
    chunks += put
    if put or at < len(old):
        edits.append(Edit(keep, len(old) - at, b"".join(put)))
    is_few = not is_similar and len(edits) <= MAX_EDITS and put_bytes <= MAX_PUT_BYTES
    shared = edits[0].keep if edits else len(old)
    return b"".join(chunks), Derived(old, shared, edits if is_few else None)
