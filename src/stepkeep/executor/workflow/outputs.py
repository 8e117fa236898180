"""What a step printed, as it is kept: short texts whole, of long ones the two ends, and the rest as a blob."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from stepkeep.executor.workflow.processes import Captured
from stepkeep.executor.workflow.redaction import Redactor
from stepkeep.storage.port import Blob

PREVIEW_BYTES: Final = 8 * 1024
"""Longer output is kept as a blob; the state has its first and last half of this."""

STREAMS: Final = ("stdout", "stderr")


class Kept:
    """Collects the fields of one output, its blobs, and their contents by digest."""

    def __init__(self, make_blob: Callable[[bytes], Blob], redactor: Redactor) -> None:
        self._make_blob = make_blob
        self._redactor = redactor
        self.fields: dict[str, Any] = {}
        self.blobs: list[Blob] = []
        self.contents: dict[str, bytes] = {}

    def add(self, name: str, captured: Captured) -> None:
        """Keep a stream under its name: `NAME`, and for long ones `NAME_bytes`, `NAME_blob` and `NAME_is_cut`."""
        whole = self._redactor.data(captured.head, ends_inside=captured.is_cut)
        if len(whole) <= PREVIEW_BYTES and not captured.is_cut:
            self.fields[name] = _text(whole)
            return
        blob = self._make_blob(whole)
        self.blobs.append(blob)
        self.contents[blob.digest] = whole
        self.fields |= {
            name: self._preview(whole, captured),
            f"{name}_bytes": captured.size,
            f"{name}_blob": blob.digest,
        }
        if captured.is_cut:
            self.fields[f"{name}_is_cut"] = True

    def _preview(self, whole: bytes, captured: Captured) -> str:
        half = PREVIEW_BYTES // 2
        end = self._redactor.data(captured.tail, starts_inside=True) if captured.is_cut else whole
        head, tail = whole[:half], end[-half:]
        left_out = captured.size - len(head) - len(tail)
        return f"{_text(head)}\n… {left_out:,} bytes left out …\n{_text(tail)}"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def stream_text(output: Mapping[str, Any], name: str, load_blob: Callable[[str], bytes]) -> str:
    """All that is kept of a stream, without the newlines at its end, as `$(…)` gives it in a shell."""
    digest = output.get(f"{name}_blob")
    text = output.get(name, "") if digest is None else _text(load_blob(digest))
    return str(text).rstrip("\n")


def last_line(output: Mapping[str, Any]) -> str:
    """The last thing a step said, for a message: of stderr, else of stdout."""
    for name in ("stderr", "stdout"):
        lines = [line.strip() for line in str(output.get(name, "")).splitlines() if line.strip()]
        if lines:
            return lines[-1] if len(lines[-1]) <= 300 else f"{lines[-1][:299]}…"
    return ""
