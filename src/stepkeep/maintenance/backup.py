"""Backups: a whole store in one file, taken while it is in use, and putting one back.

A backup is a SQLite store like any other. It is made under another name, verified, and only then given its own, so
that a backup with its name is whole. In object storage it is kept in pieces (`object_backup`).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import WRITE_FAILED, BackendUnavailable, Conflict, Corrupt, InvalidInput, NotFound
from stepkeep.maintenance import age_files
from stepkeep.maintenance.copying import copy, copy_database
from stepkeep.maintenance.object_backup import (
    ABANDONED_SECONDS,
    ObjectBackups,
    is_object_url,
    workplace,
)
from stepkeep.maintenance.verify import Finding, verify
from stepkeep.model import from_us, utc_now_us
from stepkeep.policy.retention import Retention
from stepkeep.policy.rotation import dated_name, rotation_of, surplus
from stepkeep.storage.disk import (
    check_replaceable,
    file_errors,
    make_private_directory,
    put_in_place,
    sync_directory,
    temporary_beside,
)
from stepkeep.storage.key_slots import has_keys, no_key, with_keys_of
from stepkeep.storage.port import TakesSnapshots
from stepkeep.storage.sqlite import SqliteBackend, make_single_file
from stepkeep.storage.urls import database_file

PARTIAL: Final = "partial"
"""How the names of unfinished backups end."""

LOCK: Final = ".stepkeep-backup.lock"
"""The file in a directory that is locked while a backup is written to it."""

Progress = Callable[[float], None]


class BackupReport(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that was made, or put back. `findings` is damage that its source had already; `sent_bytes` had to be
    sent to object storage; who can read an encrypted one are its `recipients`."""

    path: str
    size_bytes: int
    sessions: int
    checkpoints: int
    findings: tuple[Finding, ...] = ()
    removed: tuple[str, ...] = ()
    replaced: str | None = None
    sent_bytes: int = 0
    recipients: tuple[str, ...] = ()


def backup(
    engine: Engine,
    destination: str | Path,
    *,
    rules: Mapping[str, object] | None = None,
    recipients: Sequence[str] = (),
    force: bool = False,
    after: str | None = "",
    progress: Progress | None = None,
) -> BackupReport:
    """Write everything acknowledged before this call to a file, verified and durable.

    A directory, or `s3://BUCKET/PREFIX`, gets one named after the time; with `rules` those that none of them keeps go.
    With `recipients` only who has one of their keys can read it. `after` is the name that the newest backup there must
    have, for object storage.

    Raises:
        InvalidInput: the destination exists, or rules make no sense there.
        BackendUnavailable: it cannot be written. Nothing with the name of a backup is left behind.
        Conflict: somebody else writes a backup there (`backup_running`, `backup_overtaken`).
    """
    rotation = rotation_of(rules or {})
    readers = age_files.Recipients(recipients) if recipients else None
    if is_object_url(destination):
        report = _backup_objects(engine, str(destination), rotation, readers, after, progress)
    else:
        report = _backup_file(engine, Path(destination), rotation, readers, force, progress)
    return msgspec.structs.replace(report, recipients=tuple(recipients))


def _backup_file(
    engine: Engine,
    destination: Path,
    rotation: Retention | None,
    readers: age_files.Recipients | None,
    force: bool,
    progress: Progress | None,
) -> BackupReport:
    if rotation is not None and not destination.is_dir():
        raise InvalidInput(
            "what to keep is said of the backups in a directory: name an existing directory",
            code="invalid_option",
        )
    with _only_one_in(destination) if destination.is_dir() else nullcontext():
        path = destination
        if destination.is_dir():
            ending = f".db{age_files.ENDING}" if readers is not None else ".db"
            path = destination / f"{dated_name(engine.clock(), _names_in(destination))}{ending}"
        _check_destination(engine, path, force)
        with file_errors(path, code="backup_failed"), _unfinished(path) as temporary:
            report = _write_verified(engine, temporary, path, readers, progress)
            report = msgspec.structs.replace(report, path=str(path))
            _make_room(path)
            put_in_place(temporary, path, replace=force)
            if rotation is None or report.findings:
                return report
            return msgspec.structs.replace(report, removed=_rotate(destination, rotation, engine.clock()))


def _write_verified(
    engine: Engine, target: Path, name: Path, readers: age_files.Recipients | None, progress: Progress | None
) -> BackupReport:
    """Write the whole store to a new file, verify it, and encrypt it if somebody else is to keep it."""
    if readers is None:
        with _told_of(target, name):
            _write(engine, target, progress)
            return _verified(target, name)
    with workplace() as folder:  # where it lies in clear for a while: on this machine, not at the destination
        plain = folder / "store.db"
        report = _write_verified(engine, plain, plain, None, progress)
        readers.encrypt(plain, target)
    _sync(target)
    return msgspec.structs.replace(report, size_bytes=target.stat().st_size)


@contextmanager
def _told_of(file: Path, name: Path) -> Iterator[None]:
    """Tell what goes wrong with an unfinished file under the name that it would have got."""
    try:
        yield
    except BackendUnavailable as exc:
        if str(file) not in str(exc):
            raise  # of the store
        reason = str(exc).replace(str(file), str(name))
        if exc.code == WRITE_FAILED:
            hint = "; TMPDIR names another place for it" if name == file else ""
            reason = f"{name} cannot be written: its disk is full{hint}"
        raise BackendUnavailable(reason, code="backup_failed", retryable=False) from exc


def _sync(file: Path) -> None:
    with file.open("rb") as written:
        os.fsync(written.fileno())


@contextmanager
def _only_one_in(directory: Path) -> Iterator[None]:
    """One backup at a time is written to a directory. The lock goes with the process."""
    path = directory / LOCK
    with file_errors(directory, code="backup_failed"):
        descriptor = _locked(path)
        while descriptor is None:
            descriptor = _locked(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path) -> int | None:
    """The open lock file; None if whoever had it has just removed it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except BlockingIOError as exc:
        os.close(descriptor)
        raise Conflict(
            f"somebody else writes a backup to {path.parent}: try again later",
            code="backup_running",
            retryable=True,
        ) from exc
    except OSError:  # a file system without locks: names differ anyway
        return descriptor
    os.close(descriptor)
    return None


def _backup_objects(
    engine: Engine,
    url: str,
    rotation: Retention | None,
    readers: age_files.Recipients | None,
    after: str | None,
    progress: Progress | None,
) -> BackupReport:
    objects = ObjectBackups(url)
    objects.prove_conditions()  # before the work is done
    with workplace() as folder:
        file = folder / "store"
        with file_errors(file, code="backup_failed"):
            report = _write_verified(engine, file, file, readers, _part_of(progress, 0, 0.5))
        sent = objects.put(
            file,
            now_us=engine.clock(),
            sessions=report.sessions,
            checkpoints=report.checkpoints,
            rules=None if report.findings else rotation,
            after=after,
            progress=_part_of(progress, 0.5, 0.5),
        )
    return msgspec.structs.replace(report, path=sent.path, removed=sent.removed, sent_bytes=sent.sent_bytes)


def _part_of(progress: Progress | None, start: float, length: float) -> Progress | None:
    return None if progress is None else lambda done: progress(start + done * length)


def _check_destination(engine: Engine, path: Path, force: bool) -> None:
    own = database_file(engine.backend.url)
    if own is not None and path.exists() and path.samefile(own):
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


def restore_backup(
    source: str | Path,
    url: str,
    *,
    identity: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> BackupReport:
    """Make a backup the store at a URL, after it was verified. The backup itself is only read.

    Of `s3://BUCKET/PREFIX` it is the newest one there. `identity` is the file with the key of an encrypted one.

    With `force` a store that is there is kept under another name, which is in the report. At every moment there is a
    store at the destination, the old one or the backup.

    Raises:
        NotFound: there is no such backup.
        InvalidInput: the URL is not that of a SQLite store, the destination exists, the backup is not a store, or it is
            encrypted and the key is missing (`identity_needed`) or another one (`wrong_identity`).
        Corrupt: the backup is damaged: recover it into a new store instead.
        BackendUnavailable: the store at the destination is open somewhere. Nothing was changed.
    """
    _check_restorable(url, force)
    key = None if identity is None else Path(identity)
    with workplace() as folder, file_errors(folder, code="backup_failed"):
        file = Path(source)
        if is_object_url(source):
            file = folder / "fetched"
            ObjectBackups(str(source)).fetch(file, progress=_part_of(progress, 0, 0.5))
        elif not file.is_file():
            raise NotFound(f"no backup {source}", code="backup_not_found")
        if age_files.is_encrypted(file):
            age_files.decrypt(file, folder / "decrypted", key, name=str(source))
            file = folder / "decrypted"
        return _restore(file, str(source), url, force=force, progress=_part_of(progress, 0.5, 0.5))


def _check_restorable(url: str, force: bool) -> Path:
    """Where the store will be: known before anything is fetched."""
    destination = database_file(url)
    if destination is None:
        raise InvalidInput(
            f"{url} is not a SQLite store: restore to one, and copy it there", code="not_a_file_store"
        )
    if destination.exists() and not force:
        raise InvalidInput(
            f"{destination} exists: use --force to replace it; it is kept under another name",
            code="file_exists",
        )
    return destination


def _restore(source: Path, name: str, url: str, *, force: bool, progress: Progress | None) -> BackupReport:
    destination = _check_restorable(url, force)
    if destination.exists() and source.samefile(destination):
        raise InvalidInput(f"{destination} is the backup itself", code="same_store")
    with file_errors(destination, code="backup_failed"):
        make_private_directory(destination.parent)
        with _unfinished(destination) as temporary:
            copy_database(source, temporary)
            if progress is not None:
                progress(0.5)
            try:
                report = _verified(temporary, destination)
            except InvalidInput as exc:
                text = str(exc).replace(str(temporary), name)
                raise InvalidInput(text, code=exc.code) from exc
            if report.findings:
                raise Corrupt(
                    f"{name} is damaged: {report.findings[0].message}; recover it into a new store",
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
    backend = SqliteBackend(path)
    usable = with_keys_of(engine.backend, backend, no_key) if has_keys(engine.backend) else backend
    target = Engine(usable, clock=engine.clock)
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


def _rotate(directory: Path, rules: Retention, now_us: int) -> tuple[str, ...]:
    going = [directory / name for name in surplus(_names_in(directory), rules, now_us)]
    for path in going:
        path.unlink()
    sync_directory(directory)
    return tuple(map(str, going))


def _names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.is_file()]


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
