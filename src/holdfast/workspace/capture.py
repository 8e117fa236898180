"""Taking a picture of a tree: what changed is read, the rest is known from the capture before."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from holdfast.codec.integrity import digest
from holdfast.codec.patch import DEFAULT_CEILING_BYTES
from holdfast.engine import Engine
from holdfast.storage.port import Blob
from holdfast.storage.urls import database_file, directory_of
from holdfast.workspace.git import Git
from holdfast.workspace.ignore import OWN_IGNORE, Rules, first_rules
from holdfast.workspace.manifest import UNSEEN, Entry, Manifest, Seen, Skipped
from holdfast.workspace.names import is_safe, parents
from holdfast.workspace.reading import NotRead, Vanished, open_databases, read_file, read_link
from holdfast.workspace.scan import Scan, content_of, opened_root

BATCH_FILES: Final = 256
BATCH_BYTES: Final = 16_000_000
RACY_NS: Final = 100_000_000
COARSE_NS: Final = 2_000_000_000
"""How old a file must be before an unchanged time proves unchanged content: the clock of the file system ticks."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a tree is captured. What goes beyond is reported; `ignore` are more rules, as in an ignore file."""

    max_file_bytes: int = 50_000_000
    max_total_bytes: int = 1_000_000_000
    ignore: tuple[str, ...] = ()


DEFAULT_LIMITS: Final = Limits()


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """A captured tree: its manifest, the blobs that are not stored yet, and what the files looked like exactly."""

    manifest: Manifest
    blobs: tuple[Blob, ...]
    seen: dict[str, os.stat_result]
    read_files: int
    read_bytes: int


def real_root(root: str | os.PathLike[str]) -> str:
    """The root of a workspace by its one true name."""
    return os.path.realpath(os.fsdecode(root))


def capture(
    engine: Engine,
    root: str,
    *,
    previous: Manifest | None = None,
    limits: Limits = DEFAULT_LIMITS,
    also: Sequence[str] = (),
    with_blobs: bool = True,
    now_ns: Callable[[], int] = time.time_ns,
) -> Captured:
    """Capture a tree. Nothing is stored, and nothing below the root is changed.

    `previous` is an earlier capture of the same tree: what looks the same is not read again. `also` are paths that
    are captured whatever rules and caps say, or recorded as absent.
    """
    began_ns = now_ns()
    look = Git(root).look()
    try:
        with opened_root(root) as descriptor:
            scan = Scan(_is_store(engine, root))
            rules = (
                first_rules(limits.ignore)
                if look is None
                else first_rules(limits.ignore, above=look.above, everywhere=look.everywhere)
            )
            scan.tree(descriptor, rules)
            if look is not None:
                _add_tracked(scan, descriptor, look.tracked_but_ignored())
            absent = [path for path in sorted(set(also)) if not scan.path(descriptor, path)]
            _apply_caps(scan, limits, frozenset(also))
            reader = _Reader(engine, descriptor, scan, previous, began_ns, with_blobs=with_blobs)
            entries = reader.entries()
        git = None if look is None else look.state()
    finally:
        if look is not None:
            look.stop()
    manifest = Manifest(
        root=root,
        git=git,
        skipped=tuple(sorted(scan.skipped, key=lambda each: each.path)),
        absent=tuple(absent),
        entries=tuple(entries),
    )
    return Captured(
        manifest=manifest,
        blobs=tuple(reader.blobs.values()),
        seen=scan.found,
        read_files=reader.read_files,
        read_bytes=reader.read_bytes,
    )


# --- what belongs to the tree ------------------------------------------------------------------------------------


def _is_store(engine: Engine, root: str) -> Callable[[str], bool] | None:
    """Tells which paths belong to the store, where that lies in the tree."""
    file, directory = database_file(engine.backend.url), directory_of(engine.backend.url)
    own = file if file is not None else directory
    place = None if own is None else os.path.relpath(os.path.realpath(own), root)
    if place is None or place == "." or place.startswith("../"):
        return None
    if file is None:
        return lambda path: path == place
    return lambda path: path.startswith(place) and path[len(place) : len(place) + 1] in ("", "-", ".")


def _add_tracked(scan: Scan, root: int, paths: Iterable[str]) -> None:
    own: dict[str, Rules] = {}
    for path in paths:
        if is_safe(path) and not _is_left_out(root, path, own):
            scan.path(root, path)


def _is_left_out(root: int, path: str, known: dict[str, Rules]) -> bool:
    """Whether a `.holdfastignore` leaves out a path, or a directory above it."""
    rules, above = known.setdefault("", Rules().within("", own=content_of(root, OWN_IGNORE))), ""
    for step in [*reversed(list(parents(path))), path]:
        if rules.is_ignored(step, step.rpartition("/")[2], is_directory=step != path):
            return True
        if step != path:
            above = step
            if above not in known:
                known[above] = rules.within(above, own=content_of(root, f"{above}/{OWN_IGNORE}"))
            rules = known[above]
    return False


def _apply_caps(scan: Scan, limits: Limits, exempt: frozenset[str]) -> None:
    """Drop what is too large, and of the rest the largest until all fits; report each."""
    sizes = {path: each.st_size for path, each in scan.found.items() if stat.S_ISREG(each.st_mode)}
    total = sum(sizes.values())
    if total <= limits.max_total_bytes and max(sizes.values(), default=0) <= limits.max_file_bytes:
        return
    for path in sorted(sizes, key=lambda path: (-sizes[path], path)):
        size, is_exempt = sizes[path], path in exempt
        limit = DEFAULT_CEILING_BYTES if is_exempt else limits.max_file_bytes
        if size > limit:
            reason = f"larger than {limit:,} bytes"
        elif total > limits.max_total_bytes and size and not is_exempt:
            reason = f"all files together are larger than {limits.max_total_bytes:,} bytes"
        else:
            continue
        total -= size
        del scan.found[path]
        scan.skipped.append(Skipped(path, reason, size))


# --- what is in the files ----------------------------------------------------------------------------------------


class _Reader:
    """Turns what a scan found into entries, and contents that are not stored yet into blobs."""

    def __init__(
        self,
        engine: Engine,
        root: int,
        scan: Scan,
        previous: Manifest | None,
        began_ns: int,
        *,
        with_blobs: bool,
    ) -> None:
        self._engine = engine
        self._root = root
        self._scan = scan
        self._known = {} if previous is None else previous.by_path()
        self._began_ns = began_ns
        self._with_blobs = with_blobs
        self._databases: frozenset[tuple[int, int]] | None = None
        self._batch: dict[str, bytes] = {}
        self._batch_bytes = 0
        self.blobs: dict[str, Blob] = {}
        self.read_files = 0
        self.read_bytes = 0

    def entries(self) -> list[Entry]:
        entries = list(self._entries())
        self._flush()
        return entries

    def _entries(self) -> Iterator[Entry]:
        found, known = self._scan.found, self._known.get
        for path in sorted(found):
            status, entry = found[path], known(path)
            if entry is not None:
                seen = entry.seen
                # A change of content or permissions changes ctime, whatever is done to mtime.
                if (
                    seen.ctime_ns == status.st_ctime_ns
                    and seen.mtime_ns == status.st_mtime_ns
                    and seen.inode == status.st_ino
                    and (entry.size == status.st_size or entry.is_link)
                ):
                    yield entry
                    continue
            try:
                yield self._read(path, status)
            except Vanished:
                continue
            except NotRead as exc:
                self._scan.skipped.append(Skipped(path, str(exc), status.st_size))

    def _read(self, path: str, status: os.stat_result) -> Entry:
        if stat.S_ISLNK(status.st_mode):
            target = read_link(self._root, path)
            size = len(os.fsencode(target))
            return Entry(path, stat.S_IFLNK, size, target=target, seen=self._seen(status))
        if self._databases is None:
            self._databases = open_databases()
        if (status.st_dev, status.st_ino) in self._databases:
            raise NotRead("this process has it open for writing, perhaps as a database")
        content, status = read_file(self._root, path, status)
        self._scan.found[path] = status
        self.read_files += 1
        self.read_bytes += len(content)
        name = digest(content)
        self._keep(name, content)
        return Entry(path, _mode(status), len(content), name, seen=self._seen(status))

    def _seen(self, status: os.stat_result) -> Seen:
        """The look of a file, unless it is so young that its content could change under the same look."""
        mtime_ns, ctime_ns = status.st_mtime_ns, status.st_ctime_ns
        is_coarse = mtime_ns % 1_000_000_000 == 0 and ctime_ns % 1_000_000_000 == 0
        if max(mtime_ns, ctime_ns) + (COARSE_NS if is_coarse else RACY_NS) > self._began_ns:
            return UNSEEN
        return Seen(mtime_ns, ctime_ns, status.st_ino)

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


def _mode(status: os.stat_result) -> int:
    return stat.S_IFREG | (status.st_mode & 0o777)
