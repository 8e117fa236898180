"""Which backup of a store was the last one: noted beside the store, for status, doctor, metrics and pages."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from stepkeep import typed
from stepkeep.codec.integrity import digest
from stepkeep.errors import StepkeepError
from stepkeep.logs import Log
from stepkeep.maintenance.space import beside_store
from stepkeep.model import from_us
from stepkeep.storage.disk import make_private_directory, write_file

if TYPE_CHECKING:
    from stepkeep.maintenance.backup import BackupReport

log = Log("stepkeep")


class LastBackup(msgspec.Struct, frozen=True, kw_only=True):
    """A backup that was made of a store: when, where, and what it holds."""

    time: datetime
    path: str
    size_bytes: int
    sessions: int
    checkpoints: int


class BackupNote:
    """The note for one store. That of a server is kept in the data folder: it is of this user and machine."""

    def __init__(self, url: str, *, data_folder: Callable[[], str]) -> None:
        own = beside_store(url, ".last-backup", "last-backup.json")
        if own is None and url != "memory:":
            own = f"{data_folder()}/backups/{digest(url.encode())[:32]}.json"
        self._path = own

    def write(self, report: BackupReport, *, now_us: int) -> None:
        """Note a backup. It is made, whether or not this can be written."""
        if self._path is None:
            return
        note = LastBackup(
            time=from_us(now_us),
            path=report.path,
            size_bytes=report.size_bytes,
            sessions=report.sessions,
            checkpoints=report.checkpoints,
        )
        from pathlib import Path  # who only reads can do without

        try:
            make_private_directory(os.path.dirname(self._path))
            write_file(Path(self._path), msgspec.json.encode(note), force=True)
        except (OSError, StepkeepError) as exc:
            log.warning("the backup %s is made, but cannot be noted: %s", report.path, exc)

    def read(self) -> LastBackup | None:
        """The last backup; None when there was none, or its note cannot be read."""
        if self._path is not None:
            with suppress(OSError, msgspec.MsgspecError), open(self._path, "rb") as file:
                return typed.from_json(file.read(), LastBackup)
        return None
