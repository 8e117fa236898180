"""Backups that are made again and again by a program that does nothing else."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from os import PathLike, fspath
from typing import Any, Final

import msgspec

from stepkeep.api.store import Store
from stepkeep.errors import InvalidInput, StepkeepError, Unsupported
from stepkeep.logs import Log
from stepkeep.maintenance.backup import BackupReport
from stepkeep.maintenance.last_backup import LastBackup
from stepkeep.model import from_us, to_us, utc_now_us
from stepkeep.policy.profiles import check_duration

log = Log("stepkeep")

JITTER: Final = 0.1
"""Up to this part of the interval is added: many machines that were started together do not all send at once."""

AGAIN: Final = 0.1
"""After a failure it is tried again after this part of the interval."""


class BackupAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One round: the report of the backup that was made, or why there is none, and when the next round comes."""

    time: datetime
    report: BackupReport | None
    code: str | None
    message: str | None
    next: datetime


def backups_every(
    open_store: Callable[[], Store],
    destination: str | PathLike[str],
    *,
    every: timedelta | str,
    wait: Callable[[float], object] | None = None,
    **options: Any,
) -> Iterator[BackupAttempt]:
    """Make a backup of a store every so often, for as long as the caller takes the next one.

    The store is open only while a backup is made. The first one is made at once, unless the last one is younger than
    the interval. One that fails is told and tried again sooner; one that is still being written elsewhere is never
    joined by a second. `wait` replaces sleeping, in seconds; the options are those of `Store.backup`.

    Raises:
        InvalidInput: an option makes no sense. Unsupported: an extra is missing. Trying again would not help.
    """
    interval = check_duration("every", every)
    sleep = wait or threading.Event().wait
    with open_store() as store:
        last = store.status(limit=0).last_backup
    sleep(_seconds_to_first(last, fspath(destination), interval, utc_now_us()))
    while True:
        began = utc_now_us()
        report, failure = _attempt(open_store, fspath(destination), options)
        part = 1 + JITTER * random.random() if failure is None else AGAIN * (1 + random.random())
        due = began + round(interval.total_seconds() * part * 1_000_000)
        yield BackupAttempt(
            time=from_us(began),
            report=report,
            code=None if failure is None else failure.code,
            message=None if failure is None else failure.message,
            next=from_us(due),
        )
        sleep(max(0.0, (due - utc_now_us()) / 1_000_000))


def _seconds_to_first(last: LastBackup | None, destination: str, every: timedelta, now_us: int) -> float:
    """A program that is started often does not make a backup each time. Where the clock went back it does."""
    if last is None or not last.path.startswith(destination.rstrip("/") + "/"):
        return 0.0
    age = timedelta(microseconds=now_us - to_us(last.time))
    return (every - age).total_seconds() if timedelta(0) <= age < every else 0.0


def _attempt(
    open_store: Callable[[], Store], destination: str, options: dict[str, Any]
) -> tuple[BackupReport | None, StepkeepError | None]:
    try:
        with open_store() as store:
            return store.backup(destination, **options), None
    except (InvalidInput, Unsupported):
        raise
    except StepkeepError as exc:
        log.error("the backup to %s failed: %s (%s)", destination, exc.message, exc.code)
        return None, exc
