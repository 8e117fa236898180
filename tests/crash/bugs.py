"""Bugs put into the child on purpose: the harness must find each of them, or it proves nothing.

They are planted by replacing functions in the child process that is about to work, never in the sources.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from stepkeep.maintenance import prune
from stepkeep.storage import disk, sqlite
from stepkeep.storage.files import directory, durable_files, sidecar
from stepkeep.storage.files.document_writer import DocumentWriter
from stepkeep.storage.sql.backend import SqlBackend
from stepkeep.workspace import file_restore, staging

Say = Callable[[str], None]


def nothing(*_: object, **__: object) -> None:
    """Takes everything, does nothing."""


def no_sync(say: Say) -> None:
    durable_files.sync_file = nothing


def no_directory_sync(say: Say) -> None:
    durable_files.OpenFolder.sync = nothing  # type: ignore[method-assign]


def no_sync_at_creation(say: Say) -> None:
    sqlite.sync_directory = disk.sync_directory = sqlite.sync_way_to = nothing


def acknowledged_before_the_commit(say: Say) -> None:
    append = SqlBackend.append

    def early(*args: Any) -> Any:
        say("ACK r 4")
        return append(*args)

    SqlBackend.append = early  # type: ignore[method-assign]


def pointer_overwritten_in_place(say: Say) -> None:
    def overwrite(folder: durable_files.OpenFolder, temporary: str, name: str) -> None:
        content = folder.read(temporary, limit=None)
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=folder._fd)
        os.write(descriptor, content)
        os.fsync(descriptor)
        os.close(descriptor)
        folder.discard(temporary)

    durable_files.OpenFolder.replace = overwrite  # type: ignore[method-assign]


def failed_sync_swallowed(say: Say) -> None:
    def sync(descriptor: int) -> None:
        with suppress(OSError):
            os.fsync(descriptor)

    durable_files.sync_file = sync


def failed_sync_retried(say: Say) -> None:
    def sync(descriptor: int) -> None:
        try:
            os.fsync(descriptor)
        except OSError:
            os.fsync(descriptor)

    durable_files.sync_file = sync


def write_count_ignored(say: Say) -> None:
    durable_files._write_all = lambda descriptor, content: os.write(descriptor, content)  # type: ignore[assignment]


def failed_write_swallowed(say: Say) -> None:
    write = durable_files._write_all

    def quiet(descriptor: int, content: bytes) -> None:
        with suppress(OSError):
            write(descriptor, content)

    durable_files._write_all = quiet


def prune_takes_the_newest(say: Say) -> None:
    prune._in_order = lambda headers, going: iter([header.id for header in headers])
    remove = SqlBackend.remove

    def unguarded(*args: Any, keep_heads: bool = False, **options: Any) -> Any:
        return remove(*args, **options)

    SqlBackend.remove = unguarded  # type: ignore[method-assign]


def original_removed_before_its_copy(say: Say) -> None:
    compress = DocumentWriter.compress

    def hasty(writer: DocumentWriter, entry: sidecar.DocumentEntry, packed: bytes) -> None:
        (writer._tree.root / entry.file).unlink()
        compress(writer, entry, packed)

    DocumentWriter.compress = hasty  # type: ignore[method-assign]


def documents_removed_before_the_commit(say: Say) -> None:
    def hasty(store: Any, tx: Any, uid: str, entries: Any) -> None:
        for entry in entries:
            sidecar.forget(tx, entry.file)
            (store.root / entry.file).unlink(missing_ok=True)

    directory.FilesBackend._let_go = hasty  # type: ignore[method-assign]


def _pragma_after_connecting(statement: str) -> None:
    connect = sqlite._connect

    def changed(*args: Any) -> Any:
        connection = connect(*args)
        connection.all(statement)
        return connection

    sqlite._connect = changed


def wal_normal(say: Say) -> None:
    _pragma_after_connecting("PRAGMA synchronous = NORMAL")


def rollback_journal(say: Say) -> None:
    _pragma_after_connecting("PRAGMA journal_mode = DELETE")


def failed_commit_left_in_the_log(say: Say) -> None:
    sqlite._write_over = nothing


def files_stored_with_the_commit(say: Say) -> None:
    def bare(item: Any) -> Any:
        bodies = tuple(msgspec.structs.replace(body, data=b"") for body in item.bodies)
        return msgspec.structs.replace(item, bodies=bodies)

    directory.FilesBackend._store_blobs = nothing  # type: ignore[method-assign]
    directory.without_bytes = bare


def restored_names_not_synced(say: Say) -> None:
    staging.Staging.placed = nothing  # type: ignore[method-assign]


def files_replaced_before_they_are_safe(say: Say) -> None:
    move = file_restore._FilesRestore._move
    file_restore._FilesRestore._safety = lambda work: ""  # type: ignore[method-assign]

    def hasty(work: Any, area: Any, safety: str) -> Any:
        failures = move(work, area, safety)
        work._note(file_restore.BEGUN, work._save_safety())
        return failures

    file_restore._FilesRestore._move = hasty  # type: ignore[method-assign]


BUGS: dict[str, Callable[[Say], None]] = {
    bug.__name__: bug
    for bug in (
        no_sync,
        no_directory_sync,
        no_sync_at_creation,
        acknowledged_before_the_commit,
        pointer_overwritten_in_place,
        failed_sync_swallowed,
        failed_sync_retried,
        write_count_ignored,
        failed_write_swallowed,
        prune_takes_the_newest,
        original_removed_before_its_copy,
        documents_removed_before_the_commit,
        wal_normal,
        rollback_journal,
        failed_commit_left_in_the_log,
        files_stored_with_the_commit,
        restored_names_not_synced,
        files_replaced_before_they_are_safe,
    )
}


def apply(bug: str | None, say: Say) -> None:
    """Plant a bug into this process."""
    if bug is not None:
        BUGS[bug](say)
