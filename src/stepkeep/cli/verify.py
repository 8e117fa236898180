"""`stepkeep verify`."""

from __future__ import annotations

import click

from stepkeep import api
from stepkeep.api import Session, Store, VerifyReport
from stepkeep.cli.app import DAMAGE, Command, Settings, settings_of
from stepkeep.cli.naming import optional_session, session_argument, session_option
from stepkeep.cli.printing import ProgressLine, lines
from stepkeep.text import clean, count

EXAMPLE = "stepkeep verify research-42"


@click.command("verify", cls=Command, example=EXAMPLE)
@session_argument()
@session_option()
@settings_of
def verify(settings: Settings, session: str | None, session_option: str | None) -> int:
    """Check every stored byte of SESSION, or of the whole store.

    Exits with 4 when something is not as it was written.
    """
    key = optional_session(session, session_option)
    with api.open(settings.store, create=False) as store:
        target: Store | Session = store if key is None else store.get(key)
        progress = ProgressLine("verifying", target.usage().checkpoints)
        try:
            report = target.verify(progress=progress.advance)
        finally:
            progress.close()
    settings.show(report, _print)
    return 0 if report.is_intact else DAMAGE


def _print(report: VerifyReport) -> None:
    texts = []
    for finding in report.findings:
        number = "" if finding.seq is None else f" #{finding.seq}"
        id = finding.checkpoint
        where = f" {id}" if id and id not in finding.message else ""
        texts.append(
            f"DAMAGED {clean(finding.session)}{number}{where}: {clean(finding.message)} ({finding.code})"
        )
    looked_at = f"{count(report.checkpoints, 'checkpoint')} in {count(report.sessions, 'session')}"
    removed = f", {report.pruned} removed on purpose" if report.pruned else ""
    verdict = "intact" if report.is_intact else count(len(report.findings), "finding")
    lines([*texts, f"Verified {looked_at}{removed}: {verdict}"])


COMMANDS = {"verify": verify}
