"""Bodies as keyframes and byte-exact patches; which body to patch against.

Four codecs, named in each body record. `raw` and `zstd` stand alone. `splice` and `prefix` need the content
of their base: `splice` lists a few edits and is quick, `prefix` is a compressed frame that refers to the base
and takes any change. Bodies form groups: member 0 is a keyframe, each other one patches an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

import msgspec

from stepkeep.codec import splice
from stepkeep.codec.compression import MIN_PREFIX_BYTES, compress, decompress
from stepkeep.errors import Corrupt, InvalidInput, Unsupported

RAW: Final = "raw"
ZSTD: Final = "zstd"
PREFIX: Final = "prefix"
SPLICE: Final = "splice"
CODECS: Final = frozenset({RAW, ZSTD, PREFIX, SPLICE})

# No content larger than this is decoded unless the caller says so.
DEFAULT_CEILING_BYTES: Final = 512 * 1024 * 1024

GROUP_STRIDE: Final = 8
_MAX_GROUP_MEMBERS: Final = 128
# Up to here a frame that refers to the base is both quicker and smaller than edits.
_SMALL_BYTES: Final = 32 * 1024


class Encoded(msgspec.Struct, frozen=True):
    """Content as it is stored: the id of the codec and the bytes it made."""

    codec: str
    data: bytes


class Link(msgspec.Struct, frozen=True):
    """One stored body on the way from a keyframe to the content wanted; `size` is that of its own content."""

    codec: str
    data: bytes
    size: int


def encode_keyframe(content: bytes, *, compress_it: bool = True) -> Encoded:
    """Encode content so that it stands alone, compressed where that is wanted and makes it smaller."""
    if not compress_it:
        return Encoded(RAW, content)
    data = compress(content)
    return Encoded(ZSTD, data) if len(data) < len(content) else Encoded(RAW, content)


def encode_patch(content: bytes, base: bytes, *, shared: int = 0) -> Encoded | None:
    """Encode content as a patch against the content of another body; None when the base is too small for one.

    `shared` bytes at the start are known to be the same in both. Any change can be encoded, but not every patch is
    smaller than a keyframe: `starts_group` decides.
    """
    if len(base) < MIN_PREFIX_BYTES:
        return None
    edits = splice.find_edits(base, content, shared) if len(content) > _SMALL_BYTES else None
    if edits is not None:
        return Encoded(SPLICE, splice.pack(edits))
    return Encoded(PREFIX, compress(content, prefix=base))


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
        content = splice.apply(_usable(base), [(data, size)])
    else:
        raise Unsupported(f"unknown body codec {codec!r}: the store was written by a newer version")
    if len(content) != size:
        raise Corrupt(f"a body yields {len(content)} bytes, recorded were {size}")
    return content


def rebuild(links: Sequence[Link], *, ceiling: int = DEFAULT_CEILING_BYTES) -> bytes:
    """Rebuild the content of the first link; each is a patch against the next one, the last a keyframe.

    Consecutive splices become one list of pieces first, so that together they cost one copy of the content.

    Raises:
        Corrupt: a link is malformed, or the last one needs a base.
        Unsupported: this build does not know a codec, or a size is above the ceiling.
    """
    if not links:
        raise InvalidInput("nothing to rebuild: no links were given")
    content: bytes | None = None
    for is_splice, run in groupby(reversed(links), key=lambda link: link.codec == SPLICE):
        if is_splice:
            content = splice.apply(_usable(content), _sized(run, ceiling))
            continue
        for link in run:
            content = decode(link.codec, link.data, size=link.size, base=content, ceiling=ceiling)
    return _usable(content)


def base_member(member: int) -> int:
    """The member of the group that the given one is patched against.

    Two levels: every eighth member skips back to the eighth before it, the others to their neighbour. A
    writer needs two contents at hand, and any member of a full group is rebuilt from at most 22 patches.
    """
    if member < 1:
        raise InvalidInput(f"member {member} of a group has no base")
    return member - (GROUP_STRIDE if member % GROUP_STRIDE == 0 else 1)


def group_limit(keep_last: int | None, keyframe_every: int | None = None) -> int:
    """How many members a group may have, its keyframe included.

    At most half of the checkpoints kept, so that the kept history never hangs on one keyframe.
    """
    if keyframe_every is not None:
        return max(1, keyframe_every)
    if keep_last is None:
        return _MAX_GROUP_MEMBERS
    return min(_MAX_GROUP_MEMBERS, max(1, keep_last // 2))


def starts_group(
    *, members: int, limit: int, keyframe_bytes: int, patches_bytes: int, patch_bytes: int | None
) -> bool:
    """Whether the next body must be a keyframe rather than the patch made for it.

    `members` counts the group so far, `keyframe_bytes` is what a keyframe would take now, `patches_bytes` sums
    the group's patches, `patch_bytes` is the patch in question, None when none could be made. Sizes are as
    stored.
    """
    if members < 1 or members >= limit or patch_bytes is None:
        return True
    return patch_bytes * 2 > keyframe_bytes or patches_bytes + patch_bytes > 2 * keyframe_bytes


def _sized(links: Iterable[Link], ceiling: int) -> Iterable[tuple[bytes, int]]:
    for link in links:
        _check_size(link.size, ceiling)
        yield link.data, link.size


def _check_size(size: int, ceiling: int) -> None:
    if size < 0:
        raise Corrupt(f"a body records a negative size: {size}")
    if size > ceiling:
        raise Unsupported(f"a body of {size} bytes is above the ceiling of {ceiling} bytes")


def _usable(base: bytes | None, at_least: int = 0) -> bytes:
    if base is None:
        raise Corrupt("a patch has no base to apply it to")
    if len(base) < at_least:
        raise Corrupt(f"a base of {len(base)} bytes is too short for its patch")
    return base
