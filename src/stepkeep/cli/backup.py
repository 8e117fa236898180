"""`stepkeep backup`, `restore-backup`, `copy` and `recover`: a store in another place."""

from __future__ import annotations

from pathlib import Path

import click

from stepkeep import api
from stepkeep.api import BackupReport, CopyReport, RecoverReport
from stepkeep.cli.app import DAMAGE, Command, Settings, settings_of
from stepkeep.cli.printing import ProgressLine, lines
from stepkeep.text import clean, count, size

BACKUP_EXAMPLE = """\
stepkeep backup before-upgrade.db
stepkeep backup /backups/agent --keep 7"""
COPY_EXAMPLE = """\
stepkeep copy sqlite:agent.db files:readable
stepkeep copy sqlite:agent.db postgresql:///stepkeep --session research-42"""
RECOVER_EXAMPLE = "stepkeep recover sqlite:broken.db sqlite:mended.db"
MAX_SHOWN = 200
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
    with api.open(settings.store, create=False) as store, _Percent("backing up") as percent:
        report = store.backup(destination, keep=keep, force=force, progress=percent.reached)
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
        report = api.restore_backup(
            source, settings.store or api.default_url(), force=force, progress=percent.reached
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


@click.command("copy", cls=Command, example=COPY_EXAMPLE)
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DEST")
@click.option("--session", "keys", multiple=True, metavar="KEY", help="Copy this session only; repeatable.")
@settings_of
def copy(settings: Settings, source: str, destination: str, keys: tuple[str, ...]) -> int:
    """Copy sessions from the store SRC into the store DEST, and verify them there.

    Ids, numbers, branches, notes, events and digests stay the same. Repeat it to bring over what is new, or after an
    interruption. Exits with 4 when something in SRC is damaged, and with 5 when DEST refused a session.
    """
    progress = ProgressLine("copying", api.count_copied(source, keys))
    try:
        report = api.copy_store(source, destination, keys=keys, progress=progress.advance)
    finally:
        progress.close()
    settings.show(report, lambda report: lines(_copy_lines(report)))
    return _exit_code(report)


def _copy_lines(report: CopyReport) -> list[str]:
    there = f", {report.present:,} were there" if report.present else ""
    done = f"{count(report.copied, 'checkpoint')} in {count(report.sessions, 'session')}"
    return [*_problems(report), f"Copied {done}{there}"]


def _problems(report: CopyReport) -> list[str]:
    texts = [f"REFUSED {clean(each.session)}: {clean(each.message)} ({each.code})" for each in report.refused]
    for lost in report.lost[:MAX_SHOWN]:
        number = "" if lost.seq is None else f" #{lost.seq}"
        texts.append(f"LOST {clean(lost.session)}{number}: {clean(lost.message)} ({lost.code})")
    if len(report.lost) > MAX_SHOWN:
        texts.append(f"LOST {len(report.lost) - MAX_SHOWN:,} more; --json lists all")
    texts += [
        f"DAMAGED {clean(each.session)}: {clean(each.message)} ({each.code})" for each in report.findings
    ]
    return texts


def _exit_code(report: CopyReport) -> int:
    if report.lost or report.findings:
        return DAMAGE
    return 5 if report.refused else 0


@click.command("recover", cls=Command, example=RECOVER_EXAMPLE)
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DEST")
@settings_of
def recover(settings: Settings, source: str, destination: str) -> int:
    """Bring every checkpoint of the damaged store SRC that still verifies into the new store DEST.

    SRC is only read, also when SQLite cannot open it any more. What is lost is listed by session and number. Exits
    with 4 when something is lost.
    """
    progress = ProgressLine("recovering")
    try:
        report = api.recover(source, destination, progress=progress.advance)
    finally:
        progress.close()
    settings.show(report, _print_recovered)
    return _exit_code(report.copied)


def _print_recovered(report: RecoverReport) -> None:
    copied = report.copied
    texts = _problems(copied)
    if report.by_pages:
        texts.append(f"Read page by page, because: {clean(report.problem or '')}")
    done = f"{count(copied.copied, 'checkpoint')} in {count(copied.sessions, 'session')}"
    texts.append(f"Recovered {done}, lost {len(copied.lost):,}")
    lines(texts)


COMMANDS = {"backup": backup, "restore-backup": restore_backup, "copy": copy, "recover": recover}
