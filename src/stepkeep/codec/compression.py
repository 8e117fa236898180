"""Zstandard behind two functions: compress, and decompress within a bound.

The library is the standard one from Python 3.14 and its backport before. Frames carry no checksum: the
digests of the record decide whether bytes are right.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

from stepkeep.errors import Corrupt

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["MIN_PREFIX_BYTES", "compress", "decompress", "zstd"]

# Keyframes of text are a tenth smaller than at level 1, for a little more time in one save of many; higher levels
# cost more than they gain.
_LEVEL: Final = 3
# With a prefix the lowest level finds long matches best, and is the fastest.
_PREFIX_LEVEL: Final = 1
# The library refuses a shorter prefix.
MIN_PREFIX_BYTES: Final = 8
_MIN_WINDOW_LOG: Final = 10
_MAX_WINDOW_LOG: Final = 31


def compress(content: bytes, *, prefix: bytes | None = None) -> bytes:
    """Compress into one frame; with a `prefix`, refer to its bytes wherever they recur.

    The same prefix of at least `MIN_PREFIX_BYTES` is needed to decompress.
    """
    if prefix is None:
        return _compressor().compress(content, zstd.ZstdCompressor.FLUSH_FRAME)
    options: dict[int, int] = {
        zstd.CompressionParameter.compression_level: _PREFIX_LEVEL,
        # A low level alone loses sight of a base of a megabyte or more.
        zstd.CompressionParameter.enable_long_distance_matching: 1,
        zstd.CompressionParameter.window_log: _window_log(len(prefix) + len(content)),
    }
    return zstd.compress(content, options=options, zstd_dict=_as_prefix(prefix))


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
        content = decompressor.decompress(frame, max_length=limit + 1)
    except zstd.ZstdError as exc:
        raise Corrupt(f"stored bytes do not decompress: {exc}") from exc
    if len(content) > limit:
        raise Corrupt(f"stored bytes decompress to more than the recorded {limit} bytes")
    if not decompressor.eof or decompressor.unused_data:
        raise Corrupt("stored bytes are not exactly one compressed frame")
    return content


_local = threading.local()


def _compressor() -> zstd.ZstdCompressor:
    """This thread's compressor: making one costs more than compressing a delta."""
    if not hasattr(_local, "compressor"):
        _local.compressor = zstd.ZstdCompressor(_LEVEL)
    compressor: zstd.ZstdCompressor = _local.compressor
    return compressor


def _as_prefix(prefix: bytes) -> tuple[zstd.ZstdDict, int]:
    return zstd.ZstdDict(prefix, is_raw=True).as_prefix


def _window_log(size: int) -> int:
    """The smallest window that holds `size` bytes. A frame of `size` bytes never asks for a larger one."""
    return min(max(size.bit_length(), _MIN_WINDOW_LOG), _MAX_WINDOW_LOG)
