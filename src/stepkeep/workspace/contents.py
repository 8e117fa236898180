"""What is in the files that do not look as they are known: entries for the list, and blobs that are not stored yet."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Final

from stepkeep.codec.integrity import digest
from stepkeep.engine import Engine
from stepkeep.storage.port import Blob
from stepkeep.workspace.looks import Look, look_of, recorded_look
from stepkeep.workspace.manifest import UNSEEN, Entry, Seen, Skipped
from stepkeep.workspace.reading import NotRead, Vanished, is_among, open_databases, read_file, read_link

BATCH_FILES: Final = 256
BATCH_BYTES: Final = 16_000_000
RACY_NS: Final = 100_000_000
COARSE_NS: Final = 2_000_000_000
"""How old a file must be before an unchanged time proves unchanged content: the clock of the file system ticks."""


class Reader:
    """Reads files below an opened root. What cannot be read is added to `skipped`, what vanished is not there."""

    def __init__(
        self,
        engine: Engine,
        root: int,
        *,
        skipped: list[Skipped],
        began_ns: int,
        with_blobs: bool,
    ) -> None:
        self._engine = engine
        self._root = root
        self._skipped = skipped
        self._began_ns = began_ns
        self._with_blobs = with_blobs
        self._databases: frozenset[tuple[int, int]] | None = None
        self._batch: dict[str, bytes] = {}
        self._batch_bytes = 0
        self.blobs: dict[str, Blob] = {}
        self.read_files = 0
        self.read_bytes = 0

    def entries(self, found: dict[str, Look], known: Callable[[str], Entry | None]) -> dict[str, Entry]:
        """The entries of what was found, by path. A look that is newer than the one found takes its place."""
        entries = {}
        for path in sorted(found):
            look, entry = found[path], known(path)
            if entry is not None and recorded_look(entry) == look:
                entries[path] = entry
                continue
            try:
                entries[path], found[path] = self._read(path, look)
            except Vanished:
                continue
            except NotRead as exc:
                self._skipped.append(Skipped(path, str(exc), look[3]))
        self._flush()
        return entries

    def _read(self, path: str, look: Look) -> tuple[Entry, Look]:
        if stat.S_ISLNK(look[4]):
            target = read_link(self._root, path)
            size = len(os.fsencode(target))
            return Entry(path, stat.S_IFLNK, size, target=target, seen=self._seen(look)), look
        if self._databases is None:
            self._databases = open_databases()
        if is_among(self._databases, self._root, path, look[2]):
            raise NotRead("this process has it open for writing, perhaps as a database")
        content, status = read_file(self._root, path, look[3])
        look = look_of(status)
        self.read_files += 1
        self.read_bytes += len(content)
        name = digest(content)
        self._keep(name, content)
        return Entry(path, stat.S_IFREG | (look[4] & 0o777), len(content), name, seen=self._seen(look)), look

    def _seen(self, look: Look) -> Seen:
        """The look of a file, unless it is so young that its content could change under the same look."""
        mtime_ns, ctime_ns, inode, _, _ = look
        is_coarse = mtime_ns % 1_000_000_000 == 0 and ctime_ns % 1_000_000_000 == 0
        if max(mtime_ns, ctime_ns) + (COARSE_NS if is_coarse else RACY_NS) > self._began_ns:
            return UNSEEN
        return Seen(mtime_ns, ctime_ns, inode)

    def _keep(self, name: str, content: bytes) -> None:
        if not self._with_blobs or name in self.blobs or name in self._batch:
            return
        self._batch[name] = content
        self._batch_bytes += len(content)
        if len(self._batch) >= BATCH_FILES or self._batch_bytes >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Compress what the store does not have; only that stays in memory."""
        stored = self._engine.backend.has_blobs(list(self._batch)) if self._batch else set()
        for name, content in self._batch.items():
            if name not in stored:
                self.blobs[name] = self._engine.make_blob(content)
        self._batch, self._batch_bytes = {}, 0
