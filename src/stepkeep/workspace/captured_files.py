"""The files of a checkpoint, read from the store: one by one, or as a tar archive."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Final, Literal

import msgspec

from stepkeep.engine import Engine, reader
from stepkeep.errors import NotFound
from stepkeep.history.documents import CheckpointInfo, describe_one
from stepkeep.model import FILES, Header, SessionInfo, Trigger, TriggerKind
from stepkeep.storage.disk import new_file
from stepkeep.storage.port import HeaderQuery
from stepkeep.workspace.manifest import (
    FileEntry,
    GitState,
    Manifest,
    PathFilter,
    from_text,
    manifest_of,
    to_text,
)
from stepkeep.workspace.renames import find_renames

SAFETY: Final = Trigger(TriggerKind.AUTO, "files_restore")
"""Why a safety checkpoint was saved: files were about to be restored."""


# --- finding captures --------------------------------------------------------------------------------------------


def has_files(header: Header) -> bool:
    return FILES in header.contents


def is_safety(header: Header) -> bool:
    """Whether a checkpoint was saved for safety before files were restored.

    Where files are asked for, `latest` passes over these, so that repeating a restore means the same checkpoint.
    """
    return header.trigger.event == SAFETY.event


def load_manifest(engine: Engine, header: Header) -> Manifest:
    """The files of a checkpoint, verified.

    Raises:
        NotFound: it was saved without files (`files_not_captured`).
        Corrupt: the list is damaged.
    """
    if not has_files(header):
        before = next(captures(engine, header.session, before=header.seq), None)
        hint = (
            "and no earlier one has"
            if before is None
            else f"the capture before it is checkpoint {before.seq} ({before.id})"
        )
        raise NotFound(
            f"checkpoint {header.seq} ({header.id}) holds no files: {hint}",
            code="files_not_captured",
            checkpoint=header.id,
        )
    return manifest_of(reader.load_body(engine.backend, header, FILES))


def captures(engine: Engine, uid: str, *, before: int | None = None) -> Iterator[Header]:
    """The checkpoints of a session that hold files, newest first, on whichever branch."""
    query = HeaderQuery(session=uid, max_seq=None if before is None else before - 1)
    return (header for header in engine.headers(query) if has_files(header))


def newest_capture(engine: Engine, uid: str, root: str | None = None) -> tuple[Header, Manifest] | None:
    """The newest capture of a session, of that tree if one is named."""
    for header in captures(engine, uid):
        manifest = load_manifest(engine, header)
        if root is None or manifest.root == root:
            return header, manifest
    return None


def latest_capture(engine: Engine, session: SessionInfo, branch: str | None = None) -> Header:
    """The newest checkpoint on the line of a branch, of the current one unless named, that holds files, but for safety
    checkpoints; or `NotFound`."""
    for row in reader.line_of(engine.backend, session, branch or session.branch):
        header = reader.verified(row)
        if has_files(header) and not is_safety(header):
            return header
    raise NotFound(
        f"session {session.key!r} has no checkpoint with files: save one with `workspace`",
        code="files_not_captured",
        session=session.key,
    )


def capture_before(engine: Engine, session: SessionInfo, newer: Header) -> Header:
    """The checkpoint with files that comes before another on the way to it.

    Raises:
        NotFound: there is none (`files_not_captured`).
    """
    for row in reader.line_of(engine.backend, session, newer.branch):
        if row.seq < newer.seq and has_files(header := reader.verified(row)):
            return header
    raise NotFound(
        f"session {session.key!r} has no files before checkpoint {newer.seq} to compare it with: name an older one",
        code="files_not_captured",
        session=session.key,
    )


def no_file(checkpoint: str, path: str, problem: str = "") -> NotFound:
    """What to raise for a path that a checkpoint does not have."""
    message = f"{problem or f'{checkpoint} has no file'} '{to_text(path)}'"
    return NotFound(message, code="file_not_found", checkpoint=checkpoint)


# --- reading one -------------------------------------------------------------------------------------------------


class FileText(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file as text; None where it is none. `is_cut` says that there is more."""

    checkpoint: str
    path: str
    mode: str
    size_bytes: int
    text: str | None
    is_cut: bool


class CapturedFiles:
    """The files of one checkpoint: what was captured, and every content.

    `root` is the directory that was captured; `git` commit, branch and dirty state of the repository then, None where
    there was none; `skipped` what was there, belongs to the project, and was not captured, each with its reason.
    """

    def __init__(self, engine: Engine, header: Header) -> None:
        self._engine = engine
        self.checkpoint = header.id
        self._session = header.session
        self.manifest = manifest = load_manifest(engine, header)
        self.root, self.git, self.skipped = manifest.root, manifest.git, manifest.skipped
        self.size_bytes = manifest.size_bytes
        self._entries = manifest.by_path()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[FileEntry]:
        return iter(self.manifest.entries)

    def __contains__(self, path: object) -> bool:
        return path in self._entries

    def entry(self, path: str) -> FileEntry:
        """What is recorded of one path, or `NotFound` (`file_not_found`)."""
        if path not in self._entries:
            raise no_file(self.checkpoint, path)
        return self._entries[path]

    def read(self, path: str) -> bytes:
        """The content of a file, verified; of a link its target.

        Raises:
            NotFound: there is no such file. Corrupt: it is damaged.
        """
        return content_of(self._engine, self.entry(path), self._session)

    def text(self, path: str, *, most: int = 200_000) -> FileText:
        """The content of a file, named as it is shown, in at most so many characters.

        Raises:
            NotFound: there is no such file. Corrupt: it is damaged.
        """
        from stepkeep.workspace.file_diff import is_text

        name = path if path in self else from_text(path)
        info, content = _captured_file(self.entry(name)), self.read(name)
        text = content.decode() if is_text(content) else None
        return FileText(
            checkpoint=self.checkpoint,
            path=info.path,
            mode=info.mode,
            size_bytes=info.size_bytes,
            text=None if text is None else text[:most],
            is_cut=text is not None and len(text) > most,
        )

    def __repr__(self) -> str:
        return f"<CapturedFiles {self.checkpoint}: {len(self)} files>"


def content_of(engine: Engine, entry: FileEntry, session: str | None = None) -> bytes:
    """What an entry holds, verified; of a link its target."""
    return os.fsencode(entry.target) if entry.is_link else engine.load_blob(entry.digest, session)


# --- as an archive -----------------------------------------------------------------------------------------------


class FilesExported(msgspec.Struct, frozen=True, kw_only=True):
    """A written archive; `output` is None where it went to a stream."""

    checkpoint: str
    output: str | None
    files: int
    size_bytes: int


def export_tar(
    engine: Engine, header: Header, output: str | os.PathLike[str] | IO[bytes], *, force: bool
) -> FilesExported:
    """Write the files of a checkpoint as a tar archive: to a file, whole or not at all, or to a stream.

    Sorted, with permissions and links. The same checkpoint gives the same bytes: no owners, and the time of the
    checkpoint for every file.

    Raises:
        Corrupt: a file is damaged; what was written to a stream so far is incomplete.
    """
    if not isinstance(output, (str, os.PathLike)):
        return _write_tar(engine, header, output, None)
    with new_file(Path(output), force=force) as file:
        return _write_tar(engine, header, file, str(Path(output)))


def _write_tar(engine: Engine, header: Header, stream: IO[bytes], output: str | None) -> FilesExported:
    import tarfile  # only who exports pays for it

    manifest = load_manifest(engine, header)
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for entry in manifest.entries:
            # tarfile writes names as UTF-8 with all other bytes escaped: exactly what `fsdecode` gives.
            info = tarfile.TarInfo(entry.path)
            info.mtime = header.time_us // 1_000_000
            info.mode = 0o777 if entry.is_link else entry.mode & 0o777
            if entry.is_link:
                info.type, info.linkname = tarfile.SYMTYPE, entry.target
                archive.addfile(info)
            else:
                content = content_of(engine, entry, header.session)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return FilesExported(
        checkpoint=header.id, output=output, files=len(manifest.entries), size_bytes=manifest.size_bytes
    )


# --- one file through the captures -------------------------------------------------------------------------------


class CapturedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a checkpoint, as text that can be shown; the mode is octal text, `digest` that of its content."""

    path: str
    mode: str
    size_bytes: int
    digest: str
    target: str | None


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a checkpoint. `total` counts all; `files` may be the first ones. `skipped` and `ignored` were there
    and are not captured, each with its reason."""

    checkpoint: CheckpointInfo
    root: str
    git: GitState | None
    total: int
    size_bytes: int
    files: tuple[CapturedFile, ...]
    skipped: dict[str, str]
    ignored: dict[str, str]


def file_list(engine: Engine, header: Header, wanted: PathFilter, *, limit: int | None = None) -> FileList:
    """The files of a checkpoint, all or those at and below some paths; at most `limit` of them by name."""
    manifest = load_manifest(engine, header)
    seen = [each.path for each in manifest.entries] + [each.path for each in manifest.skipped]
    seen += [each.path for each in manifest.ignored or ()]
    for path in wanted.naming_none(seen):
        raise no_file(header.id, path)
    entries = [entry for entry in manifest.entries if entry.path in wanted]
    return FileList(
        checkpoint=describe_one(engine, header),
        root=to_text(manifest.root),
        git=manifest.git,
        total=len(entries),
        size_bytes=sum(entry.size for entry in entries),
        files=tuple(map(_captured_file, entries[:limit])),
        skipped={to_text(each.path): each.reason for each in manifest.skipped if each.path in wanted},
        ignored={to_text(each.path): each.rule for each in manifest.ignored or () if each.path in wanted},
    )


def _captured_file(entry: FileEntry) -> CapturedFile:
    target = to_text(entry.target) if entry.is_link else None
    return CapturedFile(
        path=to_text(entry.path),
        mode=f"{entry.mode:o}",
        size_bytes=entry.size,
        digest=entry.digest,
        target=target,
    )


class FileVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint at which a file changed: `added`, `changed`, `renamed` (`old_path` was its name) or `removed`."""

    checkpoint: CheckpointInfo
    kind: Literal["added", "changed", "renamed", "removed"]
    path: str
    old_path: str | None = None
    size_bytes: int | None = None


def file_log(
    engine: Engine, session: SessionInfo, until: Header, path: str, *, limit: int | None
) -> tuple[FileVersion, ...]:
    """Where one file changed on the way to a checkpoint, newest first, followed through its renames.

    Raises:
        NotFound: no capture on that way has it (`file_not_found`).
    """
    found = tuple(islice(_versions(engine, session, until, path), limit))
    if not found:
        raise NotFound(
            f"no capture up to checkpoint {until.seq} has '{to_text(path)}'",
            code="file_not_found",
            path=to_text(path),
        )
    return found


def _versions(engine: Engine, session: SessionInfo, until: Header, path: str) -> Iterator[FileVersion]:
    newer: tuple[Header, dict[str, FileEntry]] | None = None
    for row in reader.line_of(engine.backend, session, until.branch, matching=HeaderQuery(max_seq=until.seq)):
        header = reader.verified(row)
        if not has_files(header):
            continue
        entries = load_manifest(engine, header).by_path()
        if newer is not None and (version := _version(engine, newer, entries, path)) is not None:
            yield version
            path = path if version.old_path is None else from_text(version.old_path)
        newer = header, entries
    if newer is not None and (version := _version(engine, newer, {}, path)) is not None:
        yield version


def _version(
    engine: Engine, newer: tuple[Header, dict[str, FileEntry]], before: dict[str, FileEntry], path: str
) -> FileVersion | None:
    """What happened to a path from one capture to the next; None if nothing did."""
    header, after = newer
    old, new = before.get(path), after.get(path)
    if (old is None and new is None) or (new is not None and new.is_same(old)):
        return None
    source = None
    if old is None and new is not None:
        gone = (each for name, each in before.items() if name not in after)
        come = (each for name, each in after.items() if name not in before)

        def read(entry: FileEntry) -> bytes:
            return content_of(engine, entry, header.session)

        was = find_renames(gone, come, read, read).get(path)
        source = None if was is None else was.path
    return FileVersion(
        checkpoint=describe_one(engine, header),
        kind="removed" if new is None else "renamed" if source else "added" if old is None else "changed",
        path=to_text(path),
        old_path=None if source is None else to_text(source),
        size_bytes=None if new is None else new.size,
    )
