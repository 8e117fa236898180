"""Bodies as keyframes and byte-exact deltas; which body a delta is made against.

Four codecs, named in each body record. `raw` and `zstd` stand alone. `splice` and `prefix` need the content
of their base: `splice` lists a few edits and is quick, `prefix` is a compressed frame that refers to the base
and takes any change. The frame of a `splice` refers to the beginning of a large base. Where another algorithm than zstd
was chosen, its name stands for `zstd`, and `splice+NAME` for `splice`; then there is no `prefix`, and no reference.

Bodies form groups: number 0 is a keyframe, each other one is a delta against an earlier one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, Protocol

import msgspec

from stepkeep.codec.compression import (
    MIN_PREFIX_BYTES,
    START_BYTES,
    ZSTD_COMPRESSION,
    Compression,
    Zstandard,
    compress,
    compression_named,
    decompress,
)
from stepkeep.codec.compression import RAW as RAW
from stepkeep.codec.compression import ZSTD as ZSTD
from stepkeep.errors import Corrupt, InvalidInput, Unsupported

PREFIX: Final = "prefix"
SPLICE: Final = "splice"
CODECS: Final = frozenset({RAW, ZSTD, PREFIX, SPLICE})
_SPLICE_BY: Final = f"{SPLICE}+"

# No content larger than this is decoded unless the caller says so.
DEFAULT_CEILING_BYTES: Final = 512 * 1024 * 1024

GROUP_STRIDE: Final = 16
"""A delta whose number divides by this is based on the one as many before it, any other on its neighbour. So a writer
needs two contents at hand, and any body of a full group is rebuilt from at most 78 deltas."""

_MAX_GROUP_MEMBERS: Final = 1024
_MAX_CAREFUL_MEMBERS: Final = 128
"""Fewer hang on a keyframe that has no redundant delta, and fewer deltas that are no lists of edits make a group: each
is applied to all of its base, which takes long."""

_LARGE_BYTES: Final = 512 * 1024
"""A content of this size gets a keyframe whenever it has grown by half: a first load, which remembers nothing, reads
one frame three times as fast as the many deltas that it would be made of."""

# Below this a frame hardly gets smaller than its content.
_TINY_BYTES: Final = 128

# Up to here a frame that refers to the base is both quicker and smaller than edits.
_SMALL_BYTES: Final = 32 * 1024


class StoredForm(msgspec.Struct, frozen=True, kw_only=True):
    """How one body is stored. It may be re-encoded without changing the checkpoint.

    `digest` is over the stored bytes. `base` is the checkpoint whose body of the same name this one is based on.
    `position` and `group_bytes` are the place in the keyframe group and the delta bytes of the group so far.
    `is_redundant` marks a second encoding of a body that many are based on; it is never a reference. `blobs` are the
    blobs this record keeps alive, sorted.
    """

    name: str
    codec: str
    size: int
    stored_size: int
    digest: str
    base: str | None = None
    position: int = 0
    group_bytes: int = 0
    is_redundant: bool = False
    blobs: tuple[str, ...] = ()


class BodyInfo(StoredForm, frozen=True, kw_only=True):
    """How one body of one checkpoint is stored."""

    checkpoint: str


class Body(BodyInfo, frozen=True, kw_only=True):
    """A body record with its stored bytes."""

    data: bytes


class Encoded(msgspec.Struct, frozen=True):
    """Content as it is stored: the id of the codec and the bytes it made."""

    codec: str
    data: bytes


class Link(Protocol):
    """One stored body on the way from a keyframe to the content wanted; `size` is that of its own content."""

    @property
    def codec(self) -> str: ...

    @property
    def data(self) -> bytes: ...

    @property
    def size(self) -> int: ...


class Rebuilt(msgspec.Struct, frozen=True):
    """Content that is at hand, as the last link of a chain."""

    data: bytes
    codec: str = RAW

    @property
    def size(self) -> int:
        return len(self.data)


def encode_keyframe(content: bytes, compression: Compression = ZSTD_COMPRESSION) -> Encoded:
    """Encode content so that it stands alone, compressed where that makes it smaller."""
    data = content if len(content) < _TINY_BYTES else compression.compress(content)
    return Encoded(compression.name, data) if len(data) < len(content) else Encoded(RAW, content)


def encode_delta(
    content: bytes, base: bytes, *, shared: int = 0, compression: Compression = ZSTD_COMPRESSION
) -> Encoded | None:
    """Encode content as a delta against the content of another body; None when none can be made.

    `shared` bytes at the start are known to be the same in both. By zstd any change can be encoded unless the base is
    too small, by others a few edits. Not every delta is smaller than a keyframe: `starts_group` decides.
    """
    if len(base) < MIN_PREFIX_BYTES:
        return None
    has_prefix = compression.name == ZSTD
    edits = find_edits(base, content, shared) if len(content) > _SMALL_BYTES or not has_prefix else None
    if edits is not None:
        return encode_edits(edits, base, compression)
    return Encoded(PREFIX, compress(content, prefix=base)) if has_prefix else None


def encode_edits(edits: list[Edit], base: bytes, compression: Compression = ZSTD_COMPRESSION) -> Encoded:
    """Encode content as a delta by edits that are known: at most `MAX_EDITS`, which put in `MAX_PUT_BYTES`."""
    codec = SPLICE if compression.name == ZSTD else _SPLICE_BY + compression.name
    return Encoded(codec, pack_edits(edits, base, compression))


def algorithm_of(codec: str) -> str:
    """The name of the algorithm in a codec that is none of `CODECS`."""
    return codec.removeprefix(_SPLICE_BY)


def decode(
    codec: str, data: bytes, *, size: int, base: bytes | None = None, ceiling: int = DEFAULT_CEILING_BYTES
) -> bytes:
    """Return content of exactly the recorded `size`. Memory is bounded by `size`, whatever the data claims.

    A wrong base or a changed bit may decode without error: the caller checks the digest of the content.

    Raises:
        Corrupt: the data is malformed, does not yield `size` bytes, or its base is missing.
        Unsupported: this build does not know the codec, or `size` is above the ceiling.
    """
    _check_size(size, ceiling)
    if codec == RAW:
        content = data
    elif codec == ZSTD:
        content = decompress(data, limit=size)
    elif codec == PREFIX:
        content = decompress(data, limit=size, prefix=_usable(base, MIN_PREFIX_BYTES))
    elif codec == SPLICE:
        content = edited(_usable(base), unpack(data, start_of(base)))
    else:
        content = _decode_otherwise(codec, data, size, base)
    if len(content) != size:
        raise Corrupt(f"a body yields {len(content)} bytes, recorded were {size}")
    return content


def _decode_otherwise(codec: str, data: bytes, size: int, base: bytes | None) -> bytes:
    """The content by another algorithm than zstd."""
    name = algorithm_of(codec)
    compression = compression_named(name)
    if compression is None:
        raise Unsupported(
            f"unknown body codec {codec!r}: a newer version wrote it, or its compression was not chosen here"
        )
    if name == codec:
        return compression.decompress(data, limit=size)
    return edited(_usable(base), unpack(data, compression=compression))


def rebuild(links: Sequence[Link], *, ceiling: int = DEFAULT_CEILING_BYTES) -> bytes:
    """Rebuild the content of the first link; each is a delta against the next one, the last a keyframe.

    Consecutive splices become one list of pieces first, so that together they cost one copy of the content.

    Raises:
        Corrupt: a link is malformed, or the last one needs a base.
        Unsupported: this build does not know a codec, or a size is above the ceiling.
    """
    if not links:
        raise InvalidInput("nothing to rebuild: no links were given")
    keep_memory_for(links[0].size)
    content: bytes | None = None
    for is_splice, run in groupby(reversed(links), key=lambda link: link.codec == SPLICE):
        links_of_run = list(run)
        if is_splice:
            for link in links_of_run:
                _check_size(link.size, ceiling)
            content = apply_edits(_usable(content), [(link.data, link.size) for link in links_of_run])
            continue
        for link in links_of_run:
            content = decode(link.codec, link.data, size=link.size, base=content, ceiling=ceiling)
    return _usable(content)


_MAX_KEPT_BYTES: Final = 16 * 1024 * 1024
_kept_bytes = 64 * 1024


def keep_memory_for(size: int) -> None:
    """Let the allocator keep memory at hand for contents of this size, up to twice as large.

    glibc keeps blocks up to the size of the largest that was given back. A content that grows is always larger than
    those before it, so all of its memory would come anew from the system, page by page, at each save: half of its time.
    A larger block that nobody touches costs nothing.
    """
    global _kept_bytes
    if _kept_bytes <= size <= _MAX_KEPT_BYTES:
        _kept_bytes = 2 * size
        bytes(min(4 * size, 2 * _MAX_KEPT_BYTES - 8192))


def group_limit(keep_last: int | None, keyframe_every: int | None = None) -> int:
    """How many bodies a group may have, its keyframe included.

    At most half of the checkpoints kept, so that the kept history never hangs on one keyframe.
    """
    if keyframe_every is not None:
        return max(1, keyframe_every)
    if keep_last is None:
        return _MAX_GROUP_MEMBERS
    return min(_MAX_GROUP_MEMBERS, max(1, keep_last // 2))


def starts_group(
    *,
    length: int,
    limit: int,
    keyframe_bytes: int,
    deltas_bytes: int,
    delta: Encoded | None,
    is_bridged: bool,
    size: int,
    keyframe_size: int,
) -> bool:
    """Whether the next body must be a keyframe rather than the delta made for it.

    `length` counts the group so far, `keyframe_bytes` is what a keyframe would take now, `deltas_bytes` sums
    the group's deltas, `delta` is the one in question, None when none could be made. Sizes are as stored. `is_bridged`
    tells that the keyframe of the group has a redundant delta. `size` and `keyframe_size` are of the contents.
    """
    if delta is None:
        return True
    limit = limit if is_bridged and delta.codec != PREFIX else min(limit, _MAX_CAREFUL_MEMBERS)
    if not 1 <= length < limit or (size >= _LARGE_BYTES and size * 2 >= keyframe_size * 3):
        return True
    delta_bytes = len(delta.data)
    return delta_bytes * 2 > keyframe_bytes or deltas_bytes + delta_bytes > 2 * keyframe_bytes


def _check_size(size: int, ceiling: int) -> None:
    if size < 0:
        raise Corrupt(f"a body records a negative size: {size}")
    if size > ceiling:
        raise Unsupported(f"a body of {size} bytes is above the ceiling of {ceiling} bytes")


def _usable(base: bytes | None, at_least: int = 0) -> bytes:
    if base is None:
        raise Corrupt("a delta has no base to apply it to")
    if len(base) < at_least:
        raise Corrupt(f"a base of {len(base)} bytes is too short for its delta")
    return base


MAX_EDITS: Final = 64
MAX_PUT_BYTES: Final = 64 * 1024
_MAX_NUMBER_BITS: Final = 63
_MAX_NUMBER_BYTES: Final = 9
_MAX_PACKED_BYTES: Final = MAX_PUT_BYTES + (1 + 3 * MAX_EDITS) * _MAX_NUMBER_BYTES

# Long enough to be rarely found in a wrong place, short enough to fit between two changes.
_NEEDLE_BYTES: Final = 32
# How far past a difference to take a needle. Close by first, where most changes end.
_OFFSETS: Final = (0, *(8 << doubling for doubling in range(11)))
# Bytes searched for all needles of one splice: about a millisecond, less than the codec tried after it.
_SEARCH_BYTES: Final = 2 * 1024 * 1024
# One comparison covers at most this much, so that a difference costs at most one more pass over it.
_MAX_STRIDE: Final = 64 * 1024
# More pieces than this are joined before the next splice: walking them would cost more than the copy.
_MAX_PIECES: Final = 1024


class Edit(NamedTuple):
    """Keep bytes of the old content, cut the next ones, put others in their place."""

    keep: int
    cut: int
    put: bytes | memoryview


def find_edits(old: bytes, new: bytes, shared: int = 0) -> list[Edit] | None:
    """Edits that turn `old` into `new` exactly; None when there would be too many, or too much to put in.

    The first `shared` bytes are known to be the same. Few edits, not the fewest: a change that moves bytes around is
    cut and put in again.
    """
    return _Comparison(old, new).edits(shared)


def start_of(base: bytes | None) -> bytes | None:
    """The beginning of a base that frames of edits refer to; None where it is too small for that."""
    return None if base is None or len(base) < START_BYTES else base[:START_BYTES]


def pack_edits(edits: list[Edit], base: bytes, compression: Compression = ZSTD_COMPRESSION) -> bytes:
    """Pack edits of a base into one compressed frame."""
    numbers = bytearray()
    _add_number(numbers, len(edits))
    for keep, cut, put in edits:
        _add_number(numbers, keep)
        _add_number(numbers, cut)
        _add_number(numbers, len(put))
    content = b"".join((numbers, *[edit[2] for edit in edits]))
    if len(base) >= START_BYTES and isinstance(compression, Zstandard):
        return compression.compress_beside(content, base)
    return compression.compress(content)


def unpack(
    packed: bytes, start: bytes | None = None, *, compression: Compression = ZSTD_COMPRESSION
) -> list[Edit]:
    """Read back what `pack_edits` wrote for a base with that start.

    Raises:
        Corrupt: the bytes are not packed edits.
    """
    if start is None:
        content = compression.decompress(packed, limit=_MAX_PACKED_BYTES)
    else:
        content = decompress(packed, limit=_MAX_PACKED_BYTES, prefix=start)
    numbers = _numbers(content)
    count, at = next(numbers)
    if count > MAX_EDITS:
        raise Corrupt(f"a splice claims {count} edits, more than {MAX_EDITS}")
    shapes = []
    for _ in range(count):
        (keep, _), (cut, _), (length, at) = next(numbers), next(numbers), next(numbers)
        shapes.append((keep, cut, length))
    view = memoryview(content)
    edits = []
    for keep, cut, length in shapes:
        edits.append(Edit(keep, cut, view[at : at + length]))
        at += length
    if at != len(content):
        raise Corrupt("the bytes a splice puts in do not match their recorded lengths")
    return edits


def apply_edits(base: bytes, splices: Iterable[tuple[bytes, int]]) -> bytes:
    """Apply packed splices in turn, each given with the size of its result, in one copy of the base.

    Raises:
        Corrupt: a splice is malformed, or does not fit the content before it.
    """
    pieces, total = [memoryview(base)], len(base)
    start = start_of(base)
    for packed, size in splices:
        edits = unpack(packed, start)
        before, total = total, total + sum(len(edit.put) - edit.cut for edit in edits)
        if total != size:
            raise Corrupt(f"a splice yields {total} bytes, recorded were {size}")
        pieces = _spliced(pieces, before, edits) if edits else pieces
        if len(pieces) > _MAX_PIECES:
            pieces = [memoryview(b"".join(pieces))]
        if edits and edits[0].keep < START_BYTES:
            start = start_of(_first_bytes(pieces))
    return b"".join(pieces)


def _first_bytes(pieces: list[memoryview]) -> bytes:
    """The beginning of content in pieces: of a large one all that frames may refer to."""
    first: list[memoryview] = []
    size = 0
    for piece in pieces:
        first.append(piece)
        size += len(piece)
        if size >= START_BYTES:
            break
    return b"".join(first)


def edited(base: bytes, edits: list[Edit]) -> bytes:
    """One content with edits applied."""
    view = memoryview(base)
    pieces: list[bytes | memoryview] = []
    at = 0
    for keep, cut, put in edits:
        pieces += (view[at : at + keep], put)
        at += keep + cut
    if at > len(base):
        raise Corrupt("a splice reaches past the end of its base")
    pieces.append(view[at:])
    return b"".join(pieces)


def _spliced(pieces: list[memoryview], size: int, edits: list[Edit]) -> list[memoryview]:
    """Content of a size in consecutive pieces, edited without copying it.

    What comes before the first edit is not looked at: most contents grow at their end.
    """
    result, left = pieces, _cut_off(pieces, size - edits[0].keep)

    def take(count: int) -> Iterator[memoryview]:
        while count:
            if not left:
                raise Corrupt("a splice reaches past the end of its base")
            piece = left.popleft()
            if len(piece) > count:
                left.appendleft(piece[count:])
                piece = piece[:count]
            count -= len(piece)
            yield piece

    for number, (keep, cut, put) in enumerate(edits):
        result += take(keep) if number else ()
        for _ in take(cut):
            pass
        if put:
            result.append(memoryview(put))
    return [*result, *left]


def _cut_off(pieces: list[memoryview], count: int) -> deque[memoryview]:
    """The last bytes of pieces, which lose them."""
    if count < 0:
        raise Corrupt("a splice reaches past the end of its base")
    end: deque[memoryview] = deque()
    while count:
        piece = pieces.pop()
        if len(piece) > count:
            pieces.append(piece[:-count])
            piece = piece[-count:]
        count -= len(piece)
        end.appendleft(piece)
    return end


class _Comparison:
    """Two contents, compared from the front; what they share at the end is set aside first."""

    def __init__(self, old: bytes, new: bytes) -> None:
        self._old, self._new = old, new
        self._new_view = memoryview(new)
        self._old_end, self._new_end = len(old), len(new)
        self._search_left = _SEARCH_BYTES

    def edits(self, shared: int) -> list[Edit] | None:
        keep = old_at = new_at = shared + self._run_after(shared, shared)
        shared_end = self._run_before(self._old_end, self._new_end, old_at, new_at)
        self._old_end -= shared_end
        self._new_end -= shared_end
        edits: list[Edit] = []
        put_left = MAX_PUT_BYTES
        while old_at < self._old_end or new_at < self._new_end:
            old_next, new_next, run = self._resync(old_at, new_at)
            put_left -= new_next - new_at
            if put_left < 0 or len(edits) == MAX_EDITS:
                return None
            edits.append(Edit(keep, old_next - old_at, self._new_view[new_at:new_next]))
            keep, old_at, new_at = run, old_next + run, new_next + run
        return edits

    def _resync(self, old_at: int, new_at: int) -> tuple[int, int, int]:
        """Where both contents agree again after a difference, and for how long; their ends if nowhere."""
        for offset in _OFFSETS:
            reach = 512 + 16 * offset
            if self._search_left < 0:
                break
            meetings = [
                self._meeting(old_at, new_at, *pair)
                for pair in (
                    self._old_in_new(old_at + offset, new_at, reach),
                    self._new_in_old(old_at, new_at + offset, reach),
                )
                if pair
            ]
            if meetings:
                return max(meetings, key=lambda meeting: meeting[2])
        return self._old_end, self._new_end, 0

    def _old_in_new(self, old_at: int, new_at: int, reach: int) -> tuple[int, int] | None:
        end = min(old_at + _NEEDLE_BYTES, self._old_end)
        found = self._find(self._new, self._old[old_at:end], new_at, min(new_at + reach, self._new_end))
        return None if found < 0 else (old_at, found)

    def _new_in_old(self, old_at: int, new_at: int, reach: int) -> tuple[int, int] | None:
        end = min(new_at + _NEEDLE_BYTES, self._new_end)
        found = self._find(self._old, self._new[new_at:end], old_at, min(old_at + reach, self._old_end))
        return None if found < 0 else (found, new_at)

    def _find(self, content: bytes, needle: bytes, start: int, end: int) -> int:
        if len(needle) < _NEEDLE_BYTES:
            return -1
        found = content.find(needle, start, end)
        self._search_left -= (end if found < 0 else found) - start
        return found

    def _meeting(self, old_from: int, new_from: int, old_at: int, new_at: int) -> tuple[int, int, int]:
        """Widen an agreement to both sides: where it starts, not before the given places, and its length."""
        before = self._run_before(old_at, new_at, old_from, new_from)
        return old_at - before, new_at - before, before + self._run_after(old_at, new_at)

    def _run_after(self, old_at: int, new_at: int) -> int:
        """How many bytes agree from here on."""

        def agree(start: int, end: int) -> bool:
            return self._old.startswith(self._new_view[new_at + start : new_at + end], old_at + start)

        return _longest(agree, min(self._old_end - old_at, self._new_end - new_at))

    def _run_before(self, old_at: int, new_at: int, old_from: int, new_from: int) -> int:
        """How many bytes agree just before here, not reaching before the given places."""

        def agree(start: int, end: int) -> bool:
            return self._old.startswith(self._new_view[new_at - end : new_at - start], old_at - end)

        return _longest(agree, min(old_at - old_from, new_at - new_from))


def shared_start(old: bytes, new: bytes) -> int:
    """How many bytes two contents begin with in common."""
    return _Comparison(old, new)._run_after(0, 0)


def _longest(agree: Callable[[int, int], bool], limit: int) -> int:
    """The longest run, up to `limit`, of which `agree(start, end)` holds in every part.

    Strides double while they agree; the rest of the run is shorter than the stride that failed, so halving
    strides spell its length in binary.
    """
    done, stride = 0, 64
    while done + stride <= limit and agree(done, done + stride):
        done += stride
        stride = min(2 * stride, _MAX_STRIDE)
    while stride := stride // 2:
        if done + stride <= limit and agree(done, done + stride):
            done += stride
    return done


def _add_number(numbers: bytearray, value: int) -> None:
    while value > 0x7F:
        numbers.append(value & 0x7F | 0x80)
        value >>= 7
    numbers.append(value)


def _numbers(content: bytes) -> Iterator[tuple[int, int]]:
    """Numbers from the front of the content, each with the place after it."""
    value = shift = 0
    for place, byte in enumerate(content, 1):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value, place
            value = shift = 0
        elif shift >= _MAX_NUMBER_BITS:
            raise Corrupt("a number in a splice is too large")
    raise Corrupt("a splice ends early")
