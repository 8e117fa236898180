"""Recovering: what still verifies in a damaged store, brought into a new one. The damaged store is only read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from stepkeep.engine import Engine
from stepkeep.errors import BackendUnavailable, NotFound, StepkeepError
from stepkeep.maintenance.copying import CopyReport, Progress, copy
from stepkeep.maintenance.verify import verify
from stepkeep.storage.port import Backend, SessionQuery
from stepkeep.storage.sqlite import SqliteBackend
from stepkeep.storage.sqlite_salvage import salvage

Open = Callable[[Path], Backend]


class RecoverReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was salvaged. `by_pages` is set when the file was read page by page, because SQLite could not."""

    copied: CopyReport
    by_pages: bool = False
    problem: str | None = None


def recover_database(
    damaged: Path, destination: Engine, *, progress: Progress | None = None
) -> RecoverReport:
    """Salvage a SQLite store, with its log where there is one.

    It is read as a store first. When that fails, or does not give everything, its pages are read one by one.

    Raises:
        NotFound: there is no such file, or nothing in it is a checkpoint of ours.
    """
    _check_exists(damaged)
    with _working_copy(damaged) as (work, _):
        problem = _trouble(work, damaged)
        if problem is None:
            copied = _copy(SqliteBackend(work), destination, progress)
            if copied.is_whole:
                return RecoverReport(copied=copied)
            problem = _first_problem(copied).replace(str(work), str(damaged))
    with _working_copy(damaged) as (work, folder):  # opening may have changed the first one
        copied = _copy(salvage(work, folder / "salvaged.db"), destination, progress)
        copied = msgspec.structs.replace(copied, copied=copied.copied + copied.present, present=0)
    if not copied.sessions and not copied.refused:
        raise NotFound(f"{damaged} holds no checkpoint that verifies: {problem}", code="nothing_recoverable")
    return RecoverReport(copied=copied, by_pages=True, problem=problem)


def _first_problem(copied: CopyReport) -> str:
    lost = [*copied.refused, *copied.lost]
    return lost[0].message if lost else copied.findings[0].message


def recover_directory(
    damaged: Path, destination: Engine, open_copy: Open, *, progress: Progress | None = None
) -> RecoverReport:
    """Salvage a store of files, opened from a copy of its directory."""
    _check_exists(damaged)
    with tempfile.TemporaryDirectory(prefix="stepkeep-recover-") as folder:
        work = Path(folder) / "store"
        with _reading(damaged):
            shutil.copytree(damaged, work, symlinks=True)
        return RecoverReport(copied=_copy(open_copy(work), destination, progress))


def _check_exists(path: Path) -> None:
    if not path.exists():
        raise NotFound(f"no store {path}", code="store_not_found")


@contextmanager
def _working_copy(damaged: Path) -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory(prefix="stepkeep-recover-") as folder, _reading(damaged):
        work = Path(folder) / "damaged.db"
        for ending in ("", "-wal"):
            if (file := Path(f"{damaged}{ending}")).is_file():
                shutil.copyfile(file, f"{work}{ending}")
        yield work, Path(folder)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise BackendUnavailable(
            f"{path} cannot be read: {exc.strerror or exc}", code="store_not_readable", retryable=False
        ) from exc


def _trouble(work: Path, damaged: Path) -> str | None:
    """Why the store cannot be read whole; None when it can."""
    try:
        engine = Engine(SqliteBackend(work))
        try:
            report, stored = verify(engine), engine.backend.usage()
        finally:
            _close(engine)
    except StepkeepError as exc:
        return str(exc).replace(str(work), str(damaged))
    if report.findings:
        return report.findings[0].message
    if report.checkpoints != stored.checkpoints:
        return f"{stored.checkpoints - report.checkpoints} checkpoints belong to no session"
    return None if report.sessions else "it has no session"


def _close(engine: Engine) -> None:
    """A damaged database may fail to close as well; nothing of it is needed any more."""
    with suppress(StepkeepError):
        engine.close()


def _copy(backend: Backend, destination: Engine, progress: Progress | None) -> CopyReport:
    engine = Engine(backend)
    try:
        sessions = list(backend.sessions(SessionQuery()))
        return copy(engine, destination, sessions=sessions, salvage=True, progress=progress)
    finally:
        _close(engine)
