"""Moving a store: backups, copies, and the recovery of a damaged one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from stepkeep.api import Store
from stepkeep.engine import Engine
from stepkeep.errors import InvalidInput, NotFound
from stepkeep.maintenance import backup as backups
from stepkeep.maintenance.backup import BackupReport
from stepkeep.maintenance.copying import CopyReport, Progress
from stepkeep.maintenance.copying import copy as copy_sessions
from stepkeep.maintenance.recover import RecoverReport, recover_database, recover_directory
from stepkeep.model import utc_now_us
from stepkeep.storage.port import SessionQuery
from stepkeep.storage.urls import database_file, directory_of, open_backend

Fraction = Callable[[float], None]

_FILE_ENDINGS: Final = ("", "-wal", "-shm")


def backup(
    store: Store,
    destination: Path,
    *,
    keep: int | None = None,
    force: bool = False,
    progress: Fraction | None = None,
) -> BackupReport:
    """Back a store up while it is in use; see `maintenance.backup`."""
    return backups.backup(store.engine, destination, keep=keep, force=force, progress=progress)


def restore_backup(
    source: Path, url: str, *, force: bool = False, progress: Fraction | None = None
) -> BackupReport:
    """Make a backup the store at a URL."""
    destination = database_file(url)
    if destination is None:
        raise InvalidInput(
            f"{url} is no SQLite store: open the backup as sqlite:{source} and copy it there",
            code="not_a_file_store",
        )
    return backups.restore_backup(source, destination, now_us=utc_now_us(), force=force, progress=progress)


def count_copied(source: str, keys: Sequence[str] = ()) -> int:
    """How many checkpoints `copy` will look at."""
    with _existing(source) as engine:
        uids = [engine.find_session(key).uid for key in keys] if keys else [None]
        return sum(engine.backend.usage(uid).checkpoints for uid in uids)


def copy(
    source: str, destination: str, *, keys: Sequence[str] = (), progress: Progress | None = None
) -> CopyReport:
    """Copy sessions, all of them unless named, from one store into another."""
    _check_apart(source, destination)
    with _existing(source) as engine:
        sessions = [engine.find_session(key) for key in keys] if keys else None
        with _opened(destination) as target:
            return copy_sessions(engine, target, sessions=sessions, progress=progress)


def recover(source: str, destination: str, *, progress: Progress | None = None) -> RecoverReport:
    """Salvage what still verifies in a damaged store into a new one. The damaged one is not written to."""
    _check_apart(source, destination)
    made = database_file(destination)
    is_new = made is not None and not made.exists()
    with _opened(destination) as target:
        if next(target.backend.sessions(SessionQuery(limit=1)), None) is not None:
            raise InvalidInput(f"{destination} is not empty: name a new store", code="destination_not_new")
    try:
        with _opened(destination) as target:
            return _recover(source, target, progress)
    except NotFound:
        if made is not None and is_new:
            _remove_store(made)
        raise


def _recover(source: str, target: Engine, progress: Progress | None) -> RecoverReport:
    if (file := database_file(source)) is not None:
        return recover_database(file, target, progress=progress)
    if (directory := directory_of(source)) is not None:
        options = source.partition("?")[2]
        return recover_directory(
            directory, target, lambda copy: open_backend(f"files:{copy}?{options}"), progress=progress
        )
    with _existing(source) as engine:
        return RecoverReport(copied=copy_sessions(engine, target, salvage=True, progress=progress))


def _check_apart(source: str, destination: str) -> None:
    one, other = (database_file(url) or directory_of(url) for url in (source, destination))
    is_same = source == destination
    if one is not None and other is not None:
        is_same = one.resolve() == other.resolve()
    if is_same:
        raise InvalidInput(f"{destination} is the source itself", code="same_store")


@contextmanager
def _existing(url: str) -> Iterator[Engine]:
    place = database_file(url) or directory_of(url)
    if place is not None and not place.exists():
        raise NotFound(f"no store at {place}", code="store_not_found")
    with _opened(url) as engine:
        yield engine


@contextmanager
def _opened(url: str) -> Iterator[Engine]:
    """The bare engine: nothing may be pruned while it is copied."""
    engine = Engine(open_backend(url))
    try:
        yield engine
    finally:
        engine.close()


def _remove_store(path: Path) -> None:
    for ending in _FILE_ENDINGS:
        with suppress(OSError):
            Path(f"{path}{ending}").unlink(missing_ok=True)
