"""`stepkeep copy` and `stepkeep recover`."""

from __future__ import annotations

import click

from stepkeep import operations
from stepkeep.cli.app import DAMAGE, Command, Settings, settings_of
from stepkeep.cli.printing import ProgressLine, clean, count, lines
from stepkeep.operations import CopyReport, RecoverReport

COPY_EXAMPLE = """\
stepkeep copy sqlite:agent.db files:readable
stepkeep copy sqlite:agent.db postgresql:///stepkeep --session research-42"""
RECOVER_EXAMPLE = "stepkeep recover sqlite:broken.db sqlite:mended.db"
MAX_SHOWN = 200


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
    progress = ProgressLine("copying", operations.count_copied(source, keys))
    try:
        report = operations.copy(source, destination, keys=keys, progress=progress.advance)
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
        report = operations.recover(source, destination, progress=progress.advance)
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


COMMANDS = {"copy": copy, "recover": recover}
