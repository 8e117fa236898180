"""Backups: a whole store in one file, taken while it is in use, and putting one back.

A backup is a SQLite store like any other. It is made under another name, verified, and only then given its own, so
that a backup with its name is whole. In object storage it is kept in pieces (`object_backup`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import BackendUnavailable, Corrupt, InvalidInput, NotFound
from stepkeep.maintenance.copying import copy, copy_database
from stepkeep.maintenance.object_backup import ObjectBackups, is_object_url, workplace
from stepkeep.maintenance.verify import Finding, verify
from stepkeep.model import from_us, utc_now_us
from stepkeep.storage.disk import (
    check_replaceable,
    file_errors,
    make_private_directory,
    put_in_place,
    sync_directory,
    temporary_beside,
)
from stepkeep.storage.port import TakesSnapshots
from stepkeep.storage.sqlite import SqliteBackend, make_single_file
from stepkeep.storage.urls import database_file

PARTIAL: Final = "partial"
"""How the names of unfinished backups end."""

ABANDONED_SECONDS: Final = 86_400
"""Nobody works on an unfinished backup that was not written to for so long."""

_DATED: Final = re.compile(r"stepkeep-\d{8}T\d{12}\.db")

Progress = Callable[[float], None]


class BackupReport(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that was made, or put back. `findings` is damage that its source had already; `sent_bytes` had to be
    sent to object storage."""

    path: str
    size_bytes: int
    sessions: int
    checkpoints: int
    findings: tuple[Finding, ...] = ()
    removed: tuple[str, ...] = ()
    replaced: str | None = None
    sent_bytes: int = 0


def backup(
    engine: Engine,
    destination: str | Path,
    *,
    keep: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> BackupReport:
    """Write everything acknowledged before this call to a file, verified and durable.

    A directory, or `s3://BUCKET/PREFIX`, gets one named after the time; with `keep` only so many of these stay there.

    Raises:
        InvalidInput: the destination exists, or `keep` makes no sense there.
        BackendUnavailable: it cannot be written. Nothing with the name of a backup is left behind.
        Conflict: somebody else writes a backup there (`backup_running`).
    """
    if is_object_url(destination):
        return _backup_objects(engine, str(destination), keep, progress)
    destination = Path(destination)
    if keep is not None and (keep < 1 or not destination.is_dir()):
        raise InvalidInput(
            "keep counts the backups in a directory: 1 or more, and name an existing directory",
            code="invalid_option",
        )
    path = destination / dated_name(engine.clock()) if destination.is_dir() else destination
    _check_destination(engine, path, force)
    with file_errors(path, code="backup_failed"), _unfinished(path) as temporary:
        _write(engine, temporary, progress)
        report = _verified(temporary, path)
        _make_room(path)
        put_in_place(temporary, path, replace=force)
        removed = _rotate(destination, keep) if keep is not None and not report.findings else ()
    return msgspec.structs.replace(report, removed=removed)


def _backup_objects(engine: Engine, url: str, keep: int | None, progress: Progress | None) -> BackupReport:
    if keep is not None and keep < 1:
        raise InvalidInput("keep counts backups: 1 or more", code="invalid_option")
    objects, name = ObjectBackups(url), dated_name(engine.clock()).removesuffix(".db")
    with workplace() as folder:
        file = folder / "store.db"
        _write(engine, file, _part_of(progress, 0, 0.5))
        report = _verified(file, file)
        sent = objects.put(
            file,
            name,
            sessions=report.sessions,
            checkpoints=report.checkpoints,
            keep=None if report.findings else keep,
            progress=_part_of(progress, 0.5, 0.5),
        )
    return msgspec.structs.replace(report, path=sent.path, removed=sent.removed, sent_bytes=sent.sent_bytes)


def _part_of(progress: Progress | None, start: float, length: float) -> Progress | None:
    return None if progress is None else lambda done: progress(start + done * length)


def _check_destination(engine: Engine, path: Path, force: bool) -> None:
    backend = engine.backend
    if isinstance(backend, SqliteBackend) and path.exists() and path.samefile(backend.path):
        raise InvalidInput(f"{path} is the store itself", code="same_store")
    if path.exists() and not force:
        raise InvalidInput(f"{path} exists: use --force to replace it", code="file_exists")
    check_replaceable(path)


def _make_room(path: Path) -> None:
    """Take away what belongs to an older file of that name: SQLite would apply its log to the new one.

    A store that is open somewhere is not replaced: whoever has it open would go on in a file without a name.
    """
    if path.exists():
        with suppress(InvalidInput, Corrupt):  # no store, so nobody has it open as one
            make_single_file(path)
    for ending in ("-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)


def dated_name(now_us: int) -> str:
    return f"stepkeep-{from_us(now_us):%Y%m%dT%H%M%S%f}.db"


def restore_backup(
    source: str | Path, url: str, *, force: bool = False, progress: Progress | None = None
) -> BackupReport:
    """Make a backup the store at a URL, after it was verified. The backup itself is only read.

    Of `s3://BUCKET/PREFIX` it is the newest one there.

    With `force` a store that is there is kept under another name, which is in the report. At every moment there is a
    store at the destination, the old one or the backup.

    Raises:
        NotFound: there is no such backup.
        InvalidInput: the URL is not that of a SQLite store, the destination exists, or the backup is not a store.
        Corrupt: the backup is damaged: recover it into a new store instead.
        BackendUnavailable: the store at the destination is open somewhere. Nothing was changed.
    """
    if is_object_url(source):
        with workplace() as folder:
            ObjectBackups(str(source)).fetch(folder / "backup.db", progress=_part_of(progress, 0, 0.5))
            return restore_backup(
                folder / "backup.db", url, force=force, progress=_part_of(progress, 0.5, 0.5)
            )
    source, destination = Path(source), database_file(url)
    if destination is None:
        raise InvalidInput(
            f"{url} is not a SQLite store: open the backup as sqlite:{source} and copy it there",
            code="not_a_file_store",
        )
    if not source.is_file():
        raise NotFound(f"no backup {source}", code="backup_not_found")
    if destination.exists() and source.samefile(destination):
        raise InvalidInput(f"{destination} is the backup itself", code="same_store")
    if destination.exists() and not force:
        raise InvalidInput(
            f"{destination} exists: use --force to replace it; it is kept under another name",
            code="file_exists",
        )
    with file_errors(destination, code="backup_failed"):
        make_private_directory(destination.parent)
        with _unfinished(destination) as temporary:
            copy_database(source, temporary)
            if progress is not None:
                progress(0.5)
            try:
                report = _verified(temporary, destination)
            except InvalidInput as exc:
                text = str(exc).replace(str(temporary), str(source))
                raise InvalidInput(text, code=exc.code) from exc
            if report.findings:
                raise Corrupt(
                    f"{source} is damaged: {report.findings[0].message}; recover it into a new store",
                    code="backup_damaged",
                )
            replaced = _kept(destination)
            _make_room(destination)
            put_in_place(temporary, destination, replace=replaced is not None)
    if progress is not None:
        progress(1.0)
    return msgspec.structs.replace(report, replaced=replaced)


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A name beside `path` to work under; whatever is left of it afterwards is removed.

    What a backup that was killed left there goes too.
    """
    _remove_abandoned(path.parent)
    temporary = temporary_beside(path, PARTIAL)
    try:
        yield temporary
    finally:
        for ending in ("", "-wal", "-shm", "-journal"):
            with suppress(OSError):
                Path(f"{temporary}{ending}").unlink(missing_ok=True)


def _remove_abandoned(directory: Path) -> None:
    for path in directory.glob(f".stepkeep-*.{PARTIAL}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                path.unlink()


def _write(engine: Engine, path: Path, progress: Progress | None) -> None:
    if isinstance(engine.backend, TakesSnapshots):
        engine.backend.snapshot(path, progress=progress)
        return
    target = Engine(SqliteBackend(path), clock=engine.clock)
    try:
        report = copy(engine, target)
    finally:
        target.close()
    if report.refused:
        raise BackendUnavailable(
            f"session {report.refused[0].session!r} was not copied: {report.refused[0].message}",
            code=report.refused[0].code,
            retryable=False,
        )


def _verified(temporary: Path, path: Path) -> BackupReport:
    engine = Engine(SqliteBackend(temporary))
    try:
        found = verify(engine)
    finally:
        engine.close()
    make_single_file(temporary)
    return BackupReport(
        path=str(path),
        size_bytes=temporary.stat().st_size,
        sessions=found.sessions,
        checkpoints=found.checkpoints,
        findings=found.findings,
    )


def _rotate(directory: Path, keep: int) -> tuple[str, ...]:
    """Remove the oldest dated backups; names sort like times."""
    dated = sorted(path for path in directory.iterdir() if _DATED.fullmatch(path.name))
    going = dated[:-keep]
    for path in going:
        path.unlink()
    sync_directory(directory)
    return tuple(str(path) for path in going)


def _kept(path: Path) -> str | None:
    """Give a store that is about to be replaced another name, durably; None when there is none."""
    if not path.exists():
        return None
    with suppress(InvalidInput, Corrupt):  # a store that cannot be opened has nobody working on it
        make_single_file(path)
    kept = path.with_name(f"{path.name}.replaced-{from_us(utc_now_us()):%Y%m%dT%H%M%S%f}")
    if (log := Path(f"{path}-wal")).exists():
        log.rename(f"{kept}-wal")  # SQLite would apply it to the backup
    try:
        kept.hardlink_to(path)
    except OSError:  # no links here
        path.rename(kept)
    sync_directory(path.parent)
    return str(kept)
