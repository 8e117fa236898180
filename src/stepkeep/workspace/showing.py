"""File changes for a reader: how many lines, or the whole difference as text."""

from __future__ import annotations

import msgspec

from stepkeep.codec.integrity import digest
from stepkeep.engine import Engine
from stepkeep.errors import Conflict
from stepkeep.workspace.compare import FileChange
from stepkeep.workspace.manifest import Entry
from stepkeep.workspace.patches import Side, patch_of, side_of
from stepkeep.workspace.reading import NotRead, read_file
from stepkeep.workspace.recorded import content_of
from stepkeep.workspace.scan import opened_root
from stepkeep.workspace.text import counts, is_text, lines_of


class LineCounts(msgspec.Struct, frozen=True):
    """Lines added and removed; None for a file that has none, such as a picture."""

    added: int | None
    removed: int | None


class ChangeReader:
    """Reads both sides of changes. `live_root` is where the newer side is, if that is no checkpoint."""

    def __init__(self, engine: Engine, live_root: str | None = None) -> None:
        self._engine = engine
        self._live_root = live_root

    def patch(self, change: FileChange) -> str:
        """The change as a patch; permissions other than of a program are not part of it."""
        return patch_of(change.path, *self._sides(change))

    def counts(self, change: FileChange) -> LineCounts:
        old, new = self._sides(change)
        before, after = b"" if old is None else old.content, b"" if new is None else new.content
        if not is_text(before) or not is_text(after):
            return LineCounts(None, None)
        return LineCounts(*counts(lines_of(before), lines_of(after)))

    def _sides(self, change: FileChange) -> tuple[Side | None, Side | None]:
        old = None if change.old is None else side_of(change.old, self._stored)
        new = None if change.new is None else side_of(change.new, self._newer)
        return old, new

    def _stored(self, entry: Entry) -> bytes:
        return content_of(self._engine, entry)

    def _newer(self, entry: Entry) -> bytes:
        return self._stored(entry) if self._live_root is None else _live(self._live_root, entry)


def _live(root: str, entry: Entry) -> bytes:
    """The content of a file that was looked at a moment ago, if it still is the same."""
    try:
        with opened_root(root) as descriptor:
            content, _ = read_file(descriptor, entry.path, entry.size)
    except (NotRead, OSError):
        content = None
    if content is None or digest(content) != entry.digest:
        raise Conflict(f"{entry.path!r} changed while it was compared: try again", code="files_changed")
    return content
