"""Capturing a tree: files that changed are read, the rest is taken over from the capture before."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

import msgspec

from stepkeep.codec.delta import DEFAULT_CEILING_BYTES
from stepkeep.engine import Engine, Made, NewBody, Save, reader
from stepkeep.errors import Conflict, StepkeepError
from stepkeep.logs import Log
from stepkeep.model import DETAILS, FILES, STATE, Header, Trigger
from stepkeep.storage.port import Blob
from stepkeep.storage.urls import database_file, directory_of
from stepkeep.workspace.captured_files import captures, has_files
from stepkeep.workspace.git import Git
from stepkeep.workspace.ignore import OWN_IGNORE, TreeRules, first_rules, own_rules
from stepkeep.workspace.manifest import (
    UNSEEN,
    FileEntry,
    Manifest,
    Skipped,
    body_after,
    body_of,
    is_safe,
    manifest_of,
    parents,
    stored_as,
)
from stepkeep.workspace.scan import (
    NO_SIGNATURE,
    ContentReader,
    Folders,
    Scan,
    StatSignature,
    all_signatures,
    corrected,
    folders_of,
    ignore_file,
    opened_root,
    signature_at,
)
from stepkeep.workspace.staging import remove_leftovers

log = Log("stepkeep")


class CaptureLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a tree is captured. What goes beyond is reported; `ignore` are more rules, as in an ignore file."""

    max_file_bytes: int = 50_000_000
    max_total_bytes: int = 1_000_000_000
    ignore: tuple[str, ...] = ()


TRIES: Final = 3
"""How often a tree is captured for one save when a sweep removes contents meanwhile."""

MAX_TRIES: Final = 10
"""How often a captured tree is saved when others save meanwhile."""

DEFAULT_LIMITS: Final = CaptureLimits()


class EarlierCapture:
    """An earlier capture of the same tree, indexed for the next one. The entries of a manifest are enough; `content`
    is the body it was stored as."""

    def __init__(self, manifest: Manifest, content: bytes | None = None) -> None:
        self.manifest = manifest
        self.content = content

    @cached_property
    def folders(self) -> Folders:
        return folders_of(self.manifest.entries)

    @cached_property
    def positions(self) -> dict[str, int]:
        """The index of each path in the list of entries."""
        return {entry.path: number for number, entry in enumerate(self.manifest.entries)}

    def entry(self, path: str) -> FileEntry | None:
        position = self.positions.get(path)
        return None if position is None else self.manifest.entries[position]

    def body_of(self, captured: CapturedTree) -> NewBody:
        """The body that stores a capture after this one."""
        if self.content is None or captured.replaced is None:
            return body_of(captured.manifest)
        return body_after(captured.manifest, self.content, captured.replaced)

    def followed_by(self, captured: CapturedTree, content: bytes | None = None) -> EarlierCapture:
        """The earlier capture for the save after this one."""
        after = EarlierCapture(captured.manifest, content)
        after.folders = captured.folders
        if captured.replaced is not None:
            after.positions = self.positions
        return after


class CapturedTree(msgspec.Struct, frozen=True, kw_only=True):
    """A captured tree: its manifest, the blobs that are not stored yet, and the stat signatures of its files.

    `replaced` are the entries, old and new, in which it differs from the capture before; None where also paths came
    or went.
    """

    manifest: Manifest
    blobs: tuple[Blob, ...]
    folders: Folders
    fresh: dict[str, StatSignature]
    replaced: tuple[tuple[FileEntry, FileEntry], ...] | None
    read_files: int

    def signature(self, path: str) -> StatSignature | None:
        """The stat signature of a captured file; None for a path that was not captured."""
        return self.fresh.get(path) or signature_at(self.folders, path)


def capture(
    engine: Engine,
    root: str,
    *,
    session: str | None = None,
    previous: EarlierCapture | None = None,
    limits: CaptureLimits = DEFAULT_LIMITS,
    also: Sequence[str] = (),
    with_blobs: bool = True,
    now_ns: Callable[[], int] = time.time_ns,
) -> CapturedTree:
    """Capture a tree. Nothing is stored, and nothing below the root is changed, but that what a killed restore left
    there is removed.

    `previous` is an earlier capture of the same tree: files with the same stat signature are not read again.
    `also` are paths that are captured whatever rules and limits say, or recorded as absent. `session` is the one that
    the capture is for: what it has is not compressed again.
    """
    began_ns = now_ns()
    before = previous or EarlierCapture(Manifest(root=root))
    repository = Git(root).repository()
    try:
        with opened_root(root) as descriptor:
            own = own_files(engine.backend.url, root)
            scan = Scan(own, known=before.folders, on_left_out=repository.ask_for_tracked)
            rules = first_rules(limits.ignore, repository.above, repository.everywhere)
            scan.tree(descriptor, rules)
            left_out = repository.not_checked_out()
            if scan.left_out:
                left_out += _add_tracked(scan, descriptor, repository.tracked.paths, limits)
            absent = [path for path in sorted(set(also)) if not scan.path(descriptor, path)]
            over = _over_the_caps(scan, limits, frozenset(also))
            reader = ContentReader(
                engine,
                descriptor,
                session=session,
                skipped=scan.skipped,
                began_ns=began_ns,
                with_blobs=with_blobs,
            )
            entries = reader.entries(scan.found, before.entry)
            if scan.has_leftovers:
                remove_leftovers(descriptor)
        folders = corrected(scan.folders, _marks(scan, entries, over))
        merged, replaced = _merged(before, folders, entries)
        git = repository.state()
    finally:
        repository.stop()
    captured = {entry.path for entry in merged} if scan.left_out else set()
    manifest = Manifest(
        root=root,
        git=git,
        skipped=tuple(sorted(scan.skipped, key=lambda each: each.path)),
        absent=tuple(absent),
        left_out=tuple(sorted(set(left_out))),
        ignored=tuple(each for each in scan.ignored() if each.path not in captured),
        git_problem=repository.problem if scan.left_out else "",
        private=tuple(sorted(scan.private, key=attrgetter("path"))),
        entries=merged,
    )
    return CapturedTree(
        manifest=manifest,
        blobs=tuple(reader.blobs.values()),
        folders=folders,
        fresh={path: scan.found[path] for path in entries},
        replaced=replaced,
        read_files=reader.read_files,
    )


def _marks(scan: Scan, entries: dict[str, FileEntry], over: Iterable[str]) -> dict[str, StatSignature | None]:
    """What to change in the signatures of a scan: paths that were not captured go, and files too young to trust get
    `NO_SIGNATURE`."""
    marks: dict[str, StatSignature | None] = dict.fromkeys(over)
    for path, signature in scan.found.items():
        entry = entries.get(path)
        marks[path] = None if entry is None else NO_SIGNATURE if entry.seen == UNSEEN else signature
    return marks


def _merged(
    before: EarlierCapture, folders: Folders, entries: dict[str, FileEntry]
) -> tuple[tuple[FileEntry, ...], tuple[tuple[FileEntry, FileEntry], ...] | None]:
    """All entries by path: those that were read now, and those of the capture before whose signature is unchanged.

    Also which of them were replaced, unless others came or went.
    """
    outside = [path for path in entries if signature_at(folders, path) is None]
    count = sum(len(folder.signatures) for folder in folders.values()) + len(outside)
    pairs = [(before.entry(path), entry) for path, entry in entries.items()]
    replaced = tuple((old, new) for old, new in pairs if old is not None and old != new)
    if count == len(before.manifest.entries) and all(old is not None for old, _ in pairs):
        merged = list(before.manifest.entries)
        for _, new in replaced:
            merged[before.positions[new.path]] = new
        return tuple(merged), replaced
    present = {path for path, _ in all_signatures(folders)}
    kept = [each for each in before.manifest.entries if each.path in present and each.path not in entries]
    return tuple(sorted([*kept, *entries.values()], key=attrgetter("path"))), None


# --- what belongs to the tree ------------------------------------------------------------------------------------


def _add_tracked(scan: Scan, root: int, tracked: Iterable[str], limits: CaptureLimits) -> set[str]:
    """Add the files that an ignore rule leaves out but git tracks, because they belong to the project.

    Returns those of them that a `.stepkeepignore` or the settings leave out all the same.
    """

    def own_ignore_file(path: str) -> bytes | None:
        return ignore_file(root, path) if path.rpartition("/")[2] == OWN_IGNORE else None

    rules, left_out = TreeRules(own_ignore_file, own_rules(limits.ignore)), set()
    for path in tracked:
        way = (path, *parents(path))
        if scan.left_out.keys().isdisjoint(way) or not is_safe(path) or any(each in scan.own for each in way):
            continue
        if (top := rules.left_out_by(path)) is not None:
            left_out.add(top)
        else:
            scan.path(root, path)
    return left_out


def _over_the_caps(scan: Scan, limits: CaptureLimits, exempt: frozenset[str]) -> list[str]:
    """Drop files over the limit for one file, then the largest ones until the total fits; report each of them."""
    folders = scan.folders.values()
    outside = {
        path: signature for path, signature in scan.found.items() if signature_at(scan.folders, path) is None
    }
    total = sum(each.size_bytes for each in folders) + sum(signature[3] for signature in outside.values())
    largest = max(
        [each.largest_bytes for each in folders] + [signature[3] for signature in outside.values()], default=0
    )
    if total <= limits.max_total_bytes and largest <= limits.max_file_bytes:
        return []
    signatures = {**dict(all_signatures(scan.folders)), **outside}
    sizes = {path: signature[3] for path, signature in signatures.items() if stat.S_ISREG(signature[4])}
    dropped = list(_too_large(sizes, limits, exempt))
    for each in dropped:
        scan.found.pop(each.path, None)
    scan.skipped += dropped
    return [each.path for each in dropped]


def _too_large(sizes: dict[str, int], limits: CaptureLimits, exempt: frozenset[str]) -> Iterable[Skipped]:
    total = sum(sizes.values())
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
        yield Skipped(path, reason, size)


# --- a capture as a body of a save -------------------------------------------------------------------------------


def capture_live(
    engine: Engine,
    uid: str,
    root: str,
    *,
    limits: CaptureLimits = DEFAULT_LIMITS,
    also: Sequence[str] = (),
    with_blobs: bool = False,
) -> CapturedTree:
    """Capture the live tree without storing it; only what changed since the newest capture is read.

    With `with_blobs` the result can be stored: files whose content is no longer in the store are then read again too.
    """
    previous = _newest_stored(engine, uid, root)
    if with_blobs and previous is not None:
        previous = _still_stored(engine, uid, previous)
    return capture(
        engine, root, session=uid, previous=previous, limits=limits, also=also, with_blobs=with_blobs
    )


class TreeCapture:
    """Captures a tree for one save, when the turn of that save comes.

    It captures again if contents it relied on were removed from the store meanwhile.

    `memory` keeps the newest capture of each tree, so that the next save does not read it from the store. `also` are
    paths that are captured whatever rules say. What could not be captured is in the manifest, and logged.
    """

    def __init__(
        self,
        engine: Engine,
        uid: str,
        root: str,
        *,
        limits: CaptureLimits = DEFAULT_LIMITS,
        memory: dict[str, EarlierCapture] | None = None,
        also: Sequence[str] = (),
    ) -> None:
        self.root = root
        self._also = also
        self._engine = engine
        self._uid = uid
        self._limits = limits
        self._memory = {} if memory is None else memory
        self._left = TRIES
        self._now: tuple[EarlierCapture, CapturedTree, NewBody] | None = None

    def make(self, refusal: Conflict | None) -> Made | None:
        """The body and blobs of the tree as it is now; after a refused save another attempt, or None to give up.

        Raises:
            InvalidInput: the root is not a directory (`invalid_workspace`).
        """
        if refusal is None:
            self._left = TRIES
            known = self._memory.get(self.root) or _newest_stored(self._engine, self._uid, self.root)
            return self._captured(known or EarlierCapture(Manifest(root=self.root)))
        assert self._now is not None
        earlier, captured, _ = self._now
        if (stored := _repeated(self._engine, refusal, captured.manifest)) is not None:
            return Made(stored, captured.blobs)
        if refusal.code != "blob_gone" or not self._left:
            return None
        return self._captured(
            _still_stored(self._engine, self._uid, earlier)
        )  # a sweep was faster: files are read again

    @property
    def manifest(self) -> Manifest | None:
        """What was captured last; None before."""
        return None if self._now is None else self._now[1].manifest

    def _captured(self, earlier: EarlierCapture) -> Made:
        self._left -= 1
        captured = capture(
            self._engine,
            self.root,
            session=self._uid,
            previous=earlier,
            limits=self._limits,
            also=self._also,
        )
        body = earlier.body_of(captured)
        self._now = earlier, captured, body
        return Made(body, captured.blobs)

    def stored(self, header: Header) -> None:
        assert self._now is not None
        earlier, captured, body = self._now
        self._memory[self.root] = earlier.followed_by(captured, body.content)
        skipped, problem = captured.manifest.skipped, captured.manifest.git_problem
        if problem:
            log.warning(
                "%s has no file that is ignored, even if git tracks it: git cannot be asked (%s)",
                header.id,
                problem,
            )
        for each in skipped[:20]:
            log.warning("%s has not captured %r: %s", header.id, each.path, each.reason)
        if len(skipped) > 20:
            log.warning("%s has not captured %d more", header.id, len(skipped) - 20)


def _repeated(engine: Engine, conflict: Conflict, manifest: Manifest) -> NewBody | None:
    """The stored manifest of the save that this one repeats, if the tree is still the same.

    Times and inodes may differ: a step that is run again writes the same files once more.
    """
    if conflict.code != "idempotency_mismatch" or conflict.checkpoint is None:
        return None
    try:
        header = engine.header(conflict.checkpoint)
        content = reader.load_body(engine.backend, header, FILES) if has_files(header) else None
        is_same = content is not None and _unseen(manifest_of(content)) == _unseen(manifest)
    except StepkeepError:
        return None  # pruned or damaged meanwhile: the caller raises the conflict
    return stored_as(manifest, content) if content is not None and is_same else None


def _unseen(manifest: Manifest) -> Manifest:
    entries = tuple(msgspec.structs.replace(entry, seen=UNSEEN) for entry in manifest.entries)
    return msgspec.structs.replace(manifest, entries=entries)


def save_tree(
    engine: Engine,
    uid: str,
    tree: CapturedTree,
    trigger: Trigger,
    *,
    message: str = "",
    tags: tuple[str, ...] = (),
    metadata: Mapping[str, Any] = MappingProxyType({}),
) -> Header:
    """Save a captured tree with the newest state as it is by then; without a `message`, with that one's message.

    `metadata` comes on top of that one's.
    """
    for left in reversed(range(MAX_TRIES)):
        session = engine.backend.session(uid)
        branch = engine.backend.branch(uid, session.branch)
        latest = engine.latest(session)
        save = Save(
            session=uid,
            state=None if latest is None else latest.body(STATE),
            details=None if latest is None else latest.body(DETAILS),
            files=Made(body_of(tree.manifest), tree.blobs),
            expect_head=None if branch is None else branch.head,
            step=None if latest is None else latest.header.step,
            status=session.status,
            trigger=trigger,
            message=message or ("" if latest is None else latest.header.message),
            tags=tags,
            metadata={**({} if latest is None else latest.header.metadata), **metadata},
        )
        try:
            return engine.save(save)
        except Conflict as exc:
            if exc.code != "head_moved" or not left:
                raise
    raise AssertionError("unreachable")


def _newest_stored(engine: Engine, uid: str, root: str) -> EarlierCapture | None:
    """The newest stored capture of that tree."""
    for header in captures(engine, uid):
        content = reader.load_body(engine.backend, header, FILES)
        manifest = manifest_of(content)
        if manifest.root == root:
            return EarlierCapture(manifest, content)
    return None


def _still_stored(engine: Engine, uid: str, earlier: EarlierCapture) -> EarlierCapture:
    """The capture without the files whose content is no longer in the store."""
    manifest = earlier.manifest
    wanted = manifest.blobs
    stored = engine.backend.has_blobs(sorted(wanted), uid)
    if stored >= wanted:
        return earlier
    entries = tuple(each for each in manifest.entries if each.is_link or each.digest in stored)
    return EarlierCapture(msgspec.structs.replace(manifest, entries=entries))


# --- the files of the store itself -------------------------------------------------------------------------------

_LOGS: Final = ("", "-wal", "-shm", "-journal")
DATABASE_ENDINGS: Final = (*_LOGS, *(f".metrics{log}" for log in _LOGS), "-ballast")
"""What follows the name of a database in the names of all files that a SQLite store makes."""


def own_files(url: str, root: str) -> frozenset[str]:
    """The files and folders of the store with that URL that lie below a root, relative to it, there or not."""
    paths = (os.path.relpath(path, root) for path in _store_paths(url, root))
    return frozenset(path for path in paths if path != os.curdir and path.split("/")[0] != os.pardir)


def _store_paths(url: str, root: str) -> Iterator[str]:
    if (file := database_file(url)) is not None:
        # Where the name is a link, the log is beside what it leads to, and the rest beside the link.
        beside = f"{os.path.realpath(file.parent)}/{file.name}"
        for path in {os.path.realpath(file), beside}:
            yield from (path + ending for ending in DATABASE_ENDINGS)
    elif (directory := directory_of(url)) is not None:
        path = os.path.realpath(directory)
        yield path
        if path == root:
            yield from (f"{path}/{name}" for name in _folders(url))


def _folders(url: str) -> Iterator[str]:
    """The folders inside a store of files; one that is the workspace itself owns only these."""
    from stepkeep.codec.readable import Layout
    from stepkeep.storage.files.layouts import NAMES, SIDECAR

    yield SIDECAR
    yield NAMES[Layout(url.rpartition("?layout=")[2])].top
