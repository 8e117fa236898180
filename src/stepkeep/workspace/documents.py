"""What is told of captured files: which differ, what a restore did, what was exported. JSON can hold all of it.

Paths are text that can be shown: bytes that are not UTF-8 are written as escapes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import BackendUnavailable, InvalidInput
from stepkeep.history.documents import CheckpointInfo, describe_one
from stepkeep.model import Header
from stepkeep.storage.disk import check_replaceable, put_in_place, temporary_beside
from stepkeep.workspace.captured_files import write_tar
from stepkeep.workspace.file_diff import FileChange, FileChangeKind, FileComparison
from stepkeep.workspace.file_restore import FilesRestored
from stepkeep.workspace.manifest import GitState, PathFilter, to_text
from stepkeep.workspace.patches import ChangeReader


class ChangedFile(msgspec.Struct, frozen=True, kw_only=True):
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
    """Which files differ. `newer` is None where the live tree at `live_root` is meant. `unknown` are paths that one
    of the two did not capture."""

    older: CheckpointInfo
    newer: CheckpointInfo | None
    live_root: str | None
    older_git: GitState | None
    total: int
    added: int
    removed: int
    changed: int
    mode: int
    changes: tuple[ChangedFile, ...]
    unknown: tuple[str, ...]
    patch: str | None

    @property
    def summary(self) -> str:
        """How many files changed in which way."""
        counts = {kind: getattr(self, kind) for kind in ("added", "removed", "changed", "mode")}
        return ", ".join(f"{number} {kind}" for kind, number in counts.items() if number) or "no changes"


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A path that stayed as it was, and why."""

    path: str
    reason: str


class RestoredFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore of files did, or on a dry run would do.

    `changes` lead from the tree as it was to the checkpoint. `failures` are paths that are as they were, and why.
    `safety` is the checkpoint that has the tree as it was; None when nothing had to change. `conflicts` are paths
    whose content no capture had: they are only overwritten by force.
    """

    session: str
    checkpoint: CheckpointInfo
    root: str
    is_dry_run: bool
    is_complete: bool
    safety: str | None
    total: int
    changes: tuple[ChangedFile, ...]
    conflicts: tuple[str, ...]
    failures: tuple[FileProblem, ...]


class FilesExported(msgspec.Struct, frozen=True, kw_only=True):
    """A written archive; `output` is None where it went to a stream."""

    checkpoint: str
    output: str | None
    files: int
    size_bytes: int


def files_diff(
    engine: Engine,
    older: Header,
    newer: Header | None,
    found: FileComparison,
    *,
    git: GitState | None,
    line_counts: bool,
    patch: bool,
) -> FilesDiff:
    """A comparison as it is told, with numbers of lines and a patch where they are asked for."""
    changes = ChangeReader(engine, found.live_root)
    counts = {kind.value: found.count(kind) for kind in FileChangeKind}
    return FilesDiff(
        older=describe_one(engine, older),
        newer=None if newer is None else describe_one(engine, newer),
        live_root=None if found.live_root is None else to_text(found.live_root),
        older_git=git,
        total=found.total,
        **counts,
        changes=tuple(_changed(change, changes if line_counts else None) for change in found.changes),
        unknown=tuple(map(to_text, found.unknown)),
        patch="".join(map(changes.patch, found.changes)) if patch else None,
    )


def restored_files(engine: Engine, header: Header, done: FilesRestored) -> RestoredFiles:
    """A restore as it is told."""
    checkpoint = describe_one(engine, header)
    return RestoredFiles(
        session=checkpoint.session,
        checkpoint=checkpoint,
        root=to_text(done.root),
        is_dry_run=done.is_dry_run,
        is_complete=done.is_complete,
        safety=done.safety,
        total=len(done.changes),
        changes=tuple(_changed(change, None) for change in done.changes),
        conflicts=tuple(map(to_text, done.conflicts)),
        failures=tuple(FileProblem(path=to_text(each.path), reason=each.reason) for each in done.failures),
    )


def _changed(change: FileChange, reader: ChangeReader | None) -> ChangedFile:
    old, new, lines = change.old, change.new, None if reader is None else reader.counts(change)
    return ChangedFile(
        kind=change.kind,
        path=to_text(change.path),
        old_mode=None if old is None else f"{old.mode:o}",
        new_mode=None if new is None else f"{new.mode:o}",
        old_size_bytes=None if old is None else old.size,
        new_size_bytes=None if new is None else new.size,
        added_lines=None if lines is None else lines.added,
        removed_lines=None if lines is None else lines.removed,
    )


def export_tar(
    engine: Engine, header: Header, output: str | os.PathLike[str] | IO[bytes], *, force: bool
) -> FilesExported:
    """Write the files of a checkpoint as a tar archive: to a file, whole or not at all, or to a stream."""
    if not isinstance(output, (str, os.PathLike)):
        files, size = write_tar(engine, header, output, PathFilter())
        return FilesExported(checkpoint=header.id, output=None, files=files, size_bytes=size)
    path = Path(output)
    check_replaceable(path)
    temporary = temporary_beside(path)
    try:
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            files, size = write_tar(engine, header, file, PathFilter())
            file.flush()
            os.fsync(file.fileno())
        put_in_place(temporary, path, replace=force)
    except FileExistsError as exc:
        raise InvalidInput(f"{path} exists: use --force to replace it", code="file_exists") from exc
    except OSError as exc:
        raise BackendUnavailable(
            f"{path} cannot be written: {exc.strerror}", code="export_failed", retryable=False
        ) from exc
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return FilesExported(checkpoint=header.id, output=str(path), files=files, size_bytes=size)
