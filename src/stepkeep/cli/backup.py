"""`stepkeep backup` and `stepkeep restore-backup`."""

from __future__ import annotations

from pathlib import Path

import click

from stepkeep import operations
from stepkeep.cli.app import DAMAGE, Command, Settings, settings_of
from stepkeep.cli.printing import ProgressLine, clean, count, lines, size
from stepkeep.operations import BackupReport

BACKUP_EXAMPLE = """\
stepkeep backup before-upgrade.db
stepkeep backup /backups/agent --keep 7"""
RESTORE_EXAMPLE = "stepkeep restore-backup before-upgrade.db --force"


@click.command("backup", cls=Command, example=BACKUP_EXAMPLE)
@click.argument("destination", metavar="DEST", type=click.Path(path_type=Path))
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep the newest N backups in DEST.")
@click.option("--force", is_flag=True, help="Replace DEST if it exists.")
@settings_of
def backup(settings: Settings, destination: Path, keep: int | None, force: bool) -> int:
    """Write the whole store to the file DEST while it is in use, and verify it.

    If DEST is a directory, the file in it is named after the time, and --keep removes older ones. Exits with 4 when
    the store has damage, which is then in the backup too.
    """
    with operations.open_store(settings.store) as store, _Percent("backing up") as percent:
        report = operations.backup(store, destination, keep=keep, force=force, progress=percent.reached)
    settings.show(report, _print_backup)
    return DAMAGE if report.findings else 0


def _print_backup(report: BackupReport) -> None:
    texts = [
        f"DAMAGED {clean(each.session)}: {clean(each.message)} ({each.code})" for each in report.findings
    ]
    texts.append(f"Backed up {_content(report)} to {clean(report.path)} ({size(report.size_bytes)})")
    texts += [f"Removed {clean(path)}" for path in report.removed]
    lines(texts)


@click.command("restore-backup", cls=Command, example=RESTORE_EXAMPLE)
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace the store; it is kept under another name.")
@settings_of
def restore_backup(settings: Settings, source: Path, force: bool) -> None:
    """Make the file BACKUP the store, after every byte of it was verified. BACKUP itself is only read."""
    with _Percent("restoring") as percent:
        report = operations.restore_backup(
            source, operations.store_url(settings.store), force=force, progress=percent.reached
        )
    settings.show(report, _print_restored)


def _print_restored(report: BackupReport) -> None:
    texts = [f"Restored {_content(report)} to {clean(report.path)}"]
    if report.replaced is not None:
        texts.append(f"The store that was there is now {clean(report.replaced)}")
    lines(texts)


def _content(report: BackupReport) -> str:
    return f"{count(report.checkpoints, 'checkpoint')} in {count(report.sessions, 'session')}"


class _Percent(ProgressLine):
    """Progress told as a fraction."""

    def __init__(self, verb: str) -> None:
        super().__init__(verb, 100)
        self._reached = 0

    def reached(self, fraction: float) -> None:
        percent = int(fraction * 100)
        self.advance(percent - self._reached)
        self._reached = percent

    def __enter__(self) -> _Percent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


COMMANDS = {"backup": backup, "restore-backup": restore_backup}
