"""The files of a checkpoint, read from the store: one by one, or as a tar archive."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from stepkeep.engine import Engine, reader
from stepkeep.errors import NotFound
from stepkeep.model import FILES, Header, SessionInfo, Trigger, TriggerKind
from stepkeep.storage.disk import new_file
from stepkeep.storage.port import HeaderQuery
from stepkeep.workspace.manifest import FileEntry, Manifest, manifest_of

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
            else f"the capture before it is #{before.seq} ({before.id})"
        )
        raise NotFound(
            f"checkpoint #{header.seq} ({header.id}) holds no files: {hint}",
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


def latest_capture(engine: Engine, session: SessionInfo) -> Header:
    """The newest checkpoint on the current line that holds files, but for safety checkpoints; or `NotFound`."""
    for row in reader.line_of(engine.backend, session, session.branch):
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
        f"session {session.key!r} has no files before #{newer.seq} to compare it with: name an older one",
        code="files_not_captured",
        session=session.key,
    )


# --- reading one -------------------------------------------------------------------------------------------------


class CapturedFiles:
    """The files of one checkpoint: what was captured, and every content.

    `root` is the directory that was captured; `git` commit, branch and dirty state of the repository then, None where
    there was none; `skipped` what was there, belongs to the project, and was not captured, each with its reason.
    """

    def __init__(self, engine: Engine, header: Header) -> None:
        self._engine = engine
        self.checkpoint = header.id
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
            raise NotFound(
                f"{self.checkpoint} has no file {path!r}", code="file_not_found", checkpoint=self.checkpoint
            )
        return self._entries[path]

    def read(self, path: str) -> bytes:
        """The content of a file, verified; of a link its target.

        Raises:
            NotFound: there is no such file. Corrupt: it is damaged.
        """
        return content_of(self._engine, self.entry(path))

    def __repr__(self) -> str:
        return f"<CapturedFiles {self.checkpoint}: {len(self)} files>"


def content_of(engine: Engine, entry: FileEntry) -> bytes:
    """What an entry holds, verified; of a link its target."""
    return os.fsencode(entry.target) if entry.is_link else engine.load_blob(entry.digest)


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
                content = content_of(engine, entry)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return FilesExported(
        checkpoint=header.id, output=output, files=len(manifest.entries), size_bytes=manifest.size_bytes
    )
