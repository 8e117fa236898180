"""Compression: Zstandard unless another algorithm is chosen, and decompression within a bound.

The library is the standard one from Python 3.14 and its backport before. Frames carry no checksum: the
digests of the record decide whether bytes are right. Algorithms of others are those that were chosen in this process.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from io import BytesIO
from typing import Final, Protocol

from stepkeep.errors import Corrupt, InvalidInput

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = [
    "MIN_PREFIX_BYTES",
    "NO_COMPRESSION",
    "START_BYTES",
    "ZSTD_COMPRESSION",
    "Compression",
    "chosen_compression",
    "compress",
    "compression_named",
    "decompress",
    "zstd",
]

RAW: Final = "raw"
ZSTD: Final = "zstd"
ENTRY_POINTS: Final = "stepkeep.compression"
"""Where a package names the algorithms that it offers."""

_NAME: Final = r"[a-z][a-z0-9]{0,31}"
_RESERVED: Final = frozenset({RAW, ZSTD, "prefix", "splice", "none"})
_MAX_LEVEL: Final = 19

# Keyframes of text are a tenth smaller than at level 1, for a little more time in one save of many; higher levels
# cost more than they gain.
_LEVEL: Final = 3
# With a prefix the lowest level finds long matches best, and is the fastest.
_PREFIX_LEVEL: Final = 1
# The library refuses a shorter prefix.
MIN_PREFIX_BYTES: Final = 8
START_BYTES: Final = 32 * 1024
"""How much of the beginning of a base what is put into it is compressed beside. A content that grows begins the same
each time, so compressors are prepared for it: that is as quick as compressing alone, and a quarter smaller."""

_MAX_PREPARED: Final = 4
_MIN_WINDOW_LOG: Final = 10
_MAX_WINDOW_LOG: Final = 31
_LARGE_BYTES: Final = 256 * 1024
# What the library gives in one block, and about what that takes compressed.
_PIECE_BYTES: Final = 32 * 1024
_INPUT_BYTES: Final = 16 * 1024


def compress(content: bytes, *, prefix: bytes | None = None) -> bytes:
    """Compress into one frame; with a `prefix`, refer to its bytes wherever they recur.

    The same prefix of at least `MIN_PREFIX_BYTES` is needed to decompress.
    """
    if prefix is None:
        return ZSTD_COMPRESSION.compress(content)
    options: dict[int, int] = {
        zstd.CompressionParameter.compression_level: _PREFIX_LEVEL,
        # A low level alone loses sight of a base of a megabyte or more.
        zstd.CompressionParameter.enable_long_distance_matching: 1,
        zstd.CompressionParameter.window_log: _window_log(len(prefix) + len(content)),
    }
    return zstd.compress(content, options=options, zstd_dict=_as_prefix(prefix))


def compress_beside(content: bytes, base: bytes, level: int = _LEVEL) -> bytes:
    """Compress a little into one frame that refers to the first `START_BYTES` of a base, which has as many.

    They are the prefix that is needed to decompress it.
    """
    for known in _beside.prepared:
        if known.level == level and base.startswith(known.start):
            return known.compress(content)
    start = base[:START_BYTES]
    if start == _beside.start:  # one that does not come again is not worth preparing for
        known = _Compressors(level, start)
        _beside.prepared = (known, *_beside.prepared[: _MAX_PREPARED - 1])
        return known.compress(content)
    _beside.start = start
    options: dict[int, int] = {zstd.CompressionParameter.compression_level: level}
    return zstd.compress(content, options=options, zstd_dict=_as_prefix(start))


def decompress(frame: bytes, *, limit: int, prefix: bytes | None = None) -> bytes:
    """Decompress one whole frame of at most `limit` bytes of content.

    Neither the output nor the library's window grows past `limit`, whatever the frame claims. A wrong prefix
    may go unnoticed: the caller checks the digest of the content.

    Raises:
        Corrupt: not exactly one frame, or its content is longer than `limit`.
    """
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _window_log(limit)}
    decompressor = zstd.ZstdDecompressor(None if prefix is None else _as_prefix(prefix), options)
    try:
        # One byte more than allowed, so that a frame that is too long shows.
        if limit < _LARGE_BYTES:
            content = decompressor.decompress(frame, max_length=limit + 1)
        else:
            content = _in_pieces(decompressor, frame, limit + 1)
    except zstd.ZstdError as exc:
        raise Corrupt(f"stored bytes do not decompress: {exc}") from exc
    if len(content) > limit:
        raise Corrupt(f"stored bytes decompress to more than the recorded {limit} bytes")
    if not decompressor.eof or decompressor.unused_data:
        raise Corrupt("stored bytes are not exactly one compressed frame")
    return content


def _in_pieces(decompressor: zstd.ZstdDecompressor, frame: bytes, most: int) -> bytes:
    """The content of a large frame, `most` bytes of it. In one call the library would hold it twice, and the rest of
    the frame beside it; memory that is used for the first time takes longer than what is put there."""
    content, view = BytesIO(bytes(most)), memoryview(frame)  # one that grows would be copied again and again
    at = 0
    while content.tell() < most and not decompressor.eof and (at < len(view) or not decompressor.needs_input):
        given = view[at : at + _INPUT_BYTES] if decompressor.needs_input else b""
        at += len(given)
        content.write(decompressor.decompress(given, max_length=min(_PIECE_BYTES, most - content.tell())))
    if at < len(view) and content.tell() < most:
        raise Corrupt("stored bytes are not exactly one compressed frame")
    content.truncate()
    return content.getvalue()


class _Compressors:
    """Compressors of one kind, used by one thread at a time and again by the next: making one costs more than
    compressing a delta, and some programs save from a new thread each time."""

    def __init__(self, level: int, start: bytes = b"") -> None:
        self.level = level
        self.start = start
        self._dict = zstd.ZstdDict(start, is_raw=True).as_digested_dict if start else None
        self._idle: deque[zstd.ZstdCompressor] = deque()

    def compress(self, content: bytes) -> bytes:
        try:
            compressor = self._idle.pop()
        except IndexError:
            options: dict[int, int] = {zstd.CompressionParameter.compression_level: self.level}
            compressor = zstd.ZstdCompressor(options=options, zstd_dict=self._dict)
        frame = compressor.compress(content, zstd.ZstdCompressor.FLUSH_FRAME)
        self._idle.append(compressor)
        return frame


class _Beside:
    """The compressors that are prepared for the start of a base, and the start that was met last. All of it is only
    remembered: two threads that change it at once may forget something."""

    def __init__(self) -> None:
        self.prepared: tuple[_Compressors, ...] = ()
        self.start = b""


_beside: Final = _Beside()


def _as_prefix(prefix: bytes) -> tuple[zstd.ZstdDict, int]:
    return zstd.ZstdDict(prefix, is_raw=True).as_prefix


def _window_log(size: int) -> int:
    """The smallest window that holds `size` bytes. A frame of `size` bytes never asks for a larger one."""
    return min(max(size.bit_length(), _MIN_WINDOW_LOG), _MAX_WINDOW_LOG)


# --- algorithms --------------------------------------------------------------------------------------------------


class Compression(Protocol):
    """An algorithm for what is stored. Pure, and safe for threads.

    `name` is recorded with everything it compressed, 1 to 32 small letters and digits, and must mean the same for ever.
    """

    @property
    def name(self) -> str: ...

    def compress(self, content: bytes) -> bytes:
        """Bytes from which `decompress` makes the content again. What does not get smaller is stored as it is."""

    def decompress(self, data: bytes, *, limit: int) -> bytes:
        """The content, which has at most `limit` bytes: whatever the data claims, no more may be made."""


class Zstandard:
    """Zstandard, at a level."""

    name = ZSTD

    def __init__(self, level: int = _LEVEL) -> None:
        self._level = level
        self._compressors = _Compressors(level)

    def compress(self, content: bytes) -> bytes:
        return self._compressors.compress(content)

    def compress_beside(self, content: bytes, base: bytes) -> bytes:
        """The content where it goes into a base of at least `START_BYTES`."""
        return compress_beside(content, base, self._level)

    def decompress(self, data: bytes, *, limit: int, prefix: bytes | None = None) -> bytes:
        return decompress(data, limit=limit, prefix=prefix)


class Uncompressed:
    """What is stored is the content itself."""

    name = RAW

    def compress(self, content: bytes) -> bytes:
        return content

    def decompress(self, data: bytes, *, limit: int) -> bytes:
        if len(data) > limit:
            raise Corrupt(f"stored bytes are more than the recorded {limit} bytes")
        return data


class Proven:
    """An algorithm of others: nothing is stored that it does not bring back, and what it raises is told as damage."""

    def __init__(self, inner: Compression) -> None:
        self._inner = inner
        self.name = inner.name

    def compress(self, content: bytes) -> bytes:
        """As the algorithm does.

        Raises:
            InvalidInput: the content would not come back (`compression_failed`).
        """
        try:
            data = self._inner.compress(content)
            is_same = type(data) is bytes and self._inner.decompress(data, limit=len(content)) == content
        except Exception as exc:
            raise InvalidInput(f"compression {self.name} failed: {exc}", code="compression_failed") from exc
        if not is_same:
            raise InvalidInput(
                f"compression {self.name} does not bring back what it compressed", code="compression_failed"
            )
        return data

    def decompress(self, data: bytes, *, limit: int) -> bytes:
        try:
            return self._inner.decompress(data, limit=limit)
        except Exception as exc:
            raise Corrupt(f"stored bytes do not decompress by {self.name}: {exc}") from exc


ZSTD_COMPRESSION: Final = Zstandard()
NO_COMPRESSION: Final = Uncompressed()

_known: dict[str, Compression] = {ZSTD: ZSTD_COMPRESSION, RAW: NO_COMPRESSION}


def chosen_compression(choice: str | Compression) -> Compression:
    """The algorithm that was chosen: `zstd`, `zstd-1` to `zstd-19`, `none`, one that a package offers, or one's own.

    It is known in this process from now on, for reading too.

    Raises:
        InvalidInput: there is none of that name, or it cannot be used (`invalid_compression`).
    """
    if not isinstance(choice, str):
        return _learned(choice)
    if choice == "none":
        return NO_COMPRESSION
    name, dash, level = choice.partition("-")
    if dash and name == ZSTD and level.isdecimal() and level.isascii() and 1 <= int(level) <= _MAX_LEVEL:
        return Zstandard(int(level))
    found = None if choice == RAW else _known.get(choice) or _offered(choice)
    if found is None:
        raise InvalidInput(
            f"no compression {choice!r}: there are zstd, zstd-1 to zstd-{_MAX_LEVEL} and none, and what installed "
            f"packages offer as {ENTRY_POINTS}",
            code="invalid_compression",
        )
    return found


def compression_named(name: str) -> Compression | None:
    """The algorithm that a record names; None if it is not built in and nobody chose it in this process.

    A record never makes a package be imported: stored bytes name data, not code.
    """
    return _known.get(name)


def _offered(name: str) -> Compression | None:
    """The algorithm that an installed package offers under a name that a person chose."""
    from importlib.metadata import entry_points  # few stores have one

    for each in entry_points(group=ENTRY_POINTS, name=name):
        offered = each.load()
        return _learned(offered() if isinstance(offered, type) else offered)
    return None


def _learned(compression: Compression) -> Compression:
    name = getattr(compression, "name", None)
    if not isinstance(name, str) or not re.fullmatch(_NAME, name) or name in _RESERVED:
        raise InvalidInput(
            f"{type(compression).__name__} cannot be used: its name is 1 to 32 small letters and digits and not one "
            f"of {', '.join(sorted(_RESERVED))}, and it is {name!r}",
            code="invalid_compression",
        )
    _known[name] = Proven(compression)
    return _known[name]
