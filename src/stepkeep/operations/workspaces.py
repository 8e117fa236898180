"""Project files: comparing, restoring, exporting."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from stepkeep.api import Session, Store
from stepkeep.engine import reader
from stepkeep.errors import BackendUnavailable, InvalidInput, NotFound
from stepkeep.history.refs import SWITCHED
from stepkeep.operations.views import CheckpointView, checkpoint_views
from stepkeep.storage.disk import check_replaceable, put_in_place, temporary_beside
from stepkeep.workspace.compare import FileChange, FileChangeKind, FileComparison
from stepkeep.workspace.export import write_tar
from stepkeep.workspace.known import has_files
from stepkeep.workspace.manifest import GitState
from stepkeep.workspace.names import PathFilter, to_text
from stepkeep.workspace.restore import FilesRestored, is_last
from stepkeep.workspace.showing import ChangeReader


class FileChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """One changed path. Modes are octal text; the counts of lines are None where they were not asked for, or for a
    file that has no lines."""

    kind: FileChangeKind
    path: str
    old_mode: str | None
    new_mode: str | None
    old_size_bytes: int | None
    new_size_bytes: int | None
    added_lines: int | None = None
    removed_lines: int | None = None


class FilesDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Which files differ. `newer` is None where the live tree at `live_root` is meant."""

    older: CheckpointView
    newer: CheckpointView | None
    live_root: str | None
    older_git: GitState | None
    total: int
    added: int
    removed: int
    changed: int
    mode: int
    changes: tuple[FileChangeView, ...]
    unknown: tuple[str, ...]
    patch: str | None


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A path that stayed as it was, and why."""

    path: str
    reason: str


class FilesRestoredView(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore of files did, or would do."""

    session: str
    checkpoint: CheckpointView
    root: str
    is_dry_run: bool
    is_complete: bool
    safety: str | None
    total: int
    changes: tuple[FileChangeView, ...]
    conflicts: tuple[str, ...]
    failures: tuple[FileProblem, ...]


class FilesExported(msgspec.Struct, frozen=True, kw_only=True):
    """A written archive."""

    checkpoint: str
    output: str | None
    files: int
    size_bytes: int


def diff_files(
    store: Store,
    key: str,
    older: str | None = None,
    newer: str | None = None,
    *,
    workspace: str | None = None,
    with_counts: bool = False,
    with_patch: bool = False,
) -> FilesDiff:
    """Which files differ between two checkpoints, or between one and the tree as it is now.

    Without `older` it is the one with files before `newer`; without both, the newest that has files.
    """
    session = store.get(key)
    if older is None:
        older = "latest" if newer is None else _capture_before(store, session, newer)
    found = session.diff_files(older, newer, workspace=workspace)
    changes = ChangeReader(store.engine, found.live_root)
    files = session.files(older)
    return FilesDiff(
        older=_checkpoint(store, session, files.checkpoint),
        newer=None if newer is None else _checkpoint(store, session, session.files(newer).checkpoint),
        live_root=None if found.live_root is None else to_text(found.live_root),
        older_git=files.git,
        total=found.total,
        **_counts(found),
        changes=tuple(_change(change, changes if with_counts else None) for change in found.changes),
        unknown=tuple(map(to_text, found.unknown)),
        patch="".join(map(changes.patch, found.changes)) if with_patch else None,
    )


def _capture_before(store: Store, session: Session, newer: str) -> str:
    header = store.engine.header(session.files(newer).checkpoint, session=session.uid)
    for row in reader.line_of(store.engine.backend, session.info, header.branch):
        if row.seq < header.seq and has_files(reader.verified(row)):
            return row.id
    raise NotFound(
        f"session {session.key!r} has no files before #{header.seq} to compare it with: name an older one",
        code="files_not_captured",
        session=session.key,
    )


def _counts(found: FileComparison) -> dict[str, int]:
    return {kind.value: found.count(kind) for kind in FileChangeKind}


def _change(change: FileChange, reader: ChangeReader | None) -> FileChangeView:
    old, new, lines = change.old, change.new, None if reader is None else reader.counts(change)
    return FileChangeView(
        kind=change.kind,
        path=to_text(change.path),
        old_mode=None if old is None else f"{old.mode:o}",
        new_mode=None if new is None else f"{new.mode:o}",
        old_size_bytes=None if old is None else old.size,
        new_size_bytes=None if new is None else new.size,
        added_lines=None if lines is None else lines.added,
        removed_lines=None if lines is None else lines.removed,
    )


def _checkpoint(store: Store, session: Session, checkpoint: str) -> CheckpointView:
    header = store.engine.header(checkpoint, session=session.uid)
    return checkpoint_views(session.key, session, [header])[0]


def restore_files(
    store: Store,
    key: str,
    ref: str,
    paths: Iterable[str] = (),
    *,
    workspace: str | None = None,
    dry_run: bool = False,
    force: bool = False,
) -> FilesRestoredView:
    """Make files what they were at a checkpoint, after a safety checkpoint of what is there."""
    session = store.get(key)
    done = session.restore_files(ref, paths, workspace=workspace, dry_run=dry_run, force=force)
    return _restored(store, session, done)


def undo_files(
    store: Store, key: str, *, workspace: str | None = None, dry_run: bool = False, force: bool = False
) -> FilesRestoredView:
    """Return to the safety checkpoint of the last restore of files."""
    session = store.get(key)
    return _restored(store, session, session.undo_files(workspace=workspace, dry_run=dry_run, force=force))


def were_files_restored_last(store: Store, key: str) -> bool:
    """Whether the newest thing that can be undone in a session is a restore of files, not a change of branches."""
    return is_last(store.engine, store.get(key).uid, SWITCHED)


def _restored(store: Store, session: Session, done: FilesRestored) -> FilesRestoredView:
    return FilesRestoredView(
        session=session.key,
        checkpoint=_checkpoint(store, session, done.checkpoint),
        root=to_text(done.root),
        is_dry_run=done.is_dry_run,
        is_complete=done.is_complete,
        safety=done.safety,
        total=len(done.changes),
        changes=tuple(_change(change, None) for change in done.changes),
        conflicts=tuple(map(to_text, done.conflicts)),
        failures=tuple(FileProblem(path=to_text(each.path), reason=each.reason) for each in done.failures),
    )


def export_files(
    store: Store,
    key: str,
    ref: str = "latest",
    *,
    output: Path | None,
    stream: IO[bytes] | None = None,
    force: bool = False,
) -> FilesExported:
    """Write the files of a checkpoint as a tar archive: to a file, whole or not at all, or to a stream."""
    session = store.get(key)
    checkpoint = session.files(ref).checkpoint
    header = store.engine.header(checkpoint, session=session.uid)
    if output is None:
        if stream is None:
            raise InvalidInput("name a file, or give a stream to write to", code="not_a_file")
        files, size = write_tar(store.engine, header, stream, PathFilter())
        return FilesExported(checkpoint=checkpoint, output=None, files=files, size_bytes=size)
    check_replaceable(output)
    temporary = temporary_beside(output)
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            files, size = write_tar(store.engine, header, file, PathFilter())
            file.flush()
            os.fsync(file.fileno())
        put_in_place(temporary, output, replace=force)
    except FileExistsError as exc:
        raise InvalidInput(f"{output} exists: use --force to replace it", code="file_exists") from exc
    except OSError as exc:
        raise BackendUnavailable(
            f"{output} cannot be written: {exc.strerror}", code="export_failed", retryable=False
        ) from exc
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return FilesExported(checkpoint=checkpoint, output=str(output), files=files, size_bytes=size)
