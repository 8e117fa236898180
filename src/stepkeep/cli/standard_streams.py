"""Standard streams that end no work: where a disk is full, the reader has gone or the descriptor was closed."""

from __future__ import annotations

import io
import os
import sys

TYPE_CHECKING = False  # known to type checkers; `typing` has one too, at the price of its import

if TYPE_CHECKING:
    from typing import TextIO

    from _typeshed import ReadableBuffer


class _Stream(io.FileIO):
    """A descriptor to write to. What it does not take any more is dropped, and `failure` says why."""

    failure: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        if self.failure is None:
            try:
                return super().write(data)
            except OSError as exc:
                self.failure = exc
        return len(memoryview(data).cast("B"))


def secure() -> None:
    """Replace stdout and stderr of this process, and a stdin that was closed."""
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= 2:
        pass  # one that was closed: a file that is opened later must not take its place
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  (it is empty)
    sys.stdout, sys.stderr = _secured(sys.stdout, 1), _secured(sys.stderr, 2)


def _secured(stream: TextIO | None, descriptor: int) -> io.TextIOWrapper:
    raw = _Stream(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(stream, "encoding", "utf-8"),
        errors=getattr(stream, "errors", "backslashreplace"),
        line_buffering=descriptor == 2 or raw.isatty(),
    )


def output_failure() -> OSError | None:
    """Why not all of the output could be written; None when it was, or the streams are somebody else's."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.failure if isinstance(raw, _Stream) else None
