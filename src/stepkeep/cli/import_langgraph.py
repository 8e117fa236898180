"""`stepkeep import langgraph`."""

from __future__ import annotations

from typing import Final

import click

from stepkeep import operations
from stepkeep.cli.app import DAMAGE, Command, Settings, settings_of
from stepkeep.cli.printing import ProgressLine, clean, count, lines
from stepkeep.operations import LangGraphImport

EXAMPLE: Final = """\
stepkeep import langgraph --from sqlite:checkpoints.sqlite
stepkeep import langgraph --from postgresql://localhost/agents --thread 42"""
MAX_SHOWN: Final = 200


@click.command("langgraph", cls=Command, example=EXAMPLE)
@click.option(
    "--from", "source", required=True, metavar="URL", help="sqlite:PATH or postgresql://… of the saver."
)
@click.option("--thread", "threads", multiple=True, metavar="ID", help="Import this thread only; repeatable.")
@settings_of
def langgraph(settings: Settings, source: str, threads: tuple[str, ...]) -> int:
    """Copy the threads of SqliteSaver or PostgresSaver into the store, and verify each checkpoint.

    The source is only read. Repeat it after an interruption, or to bring over what is new. Exits with 4 when
    something could not be brought over.
    """
    progress = ProgressLine("importing", operations.count_langgraph(source, threads))
    try:
        with operations.open_store(settings.store, create=True) as store:
            report = operations.import_langgraph(store, source, threads=threads, progress=progress.advance)
    finally:
        progress.close()
    settings.show(report, lambda report: lines(_texts(report)))
    return DAMAGE if report.refused else 0


def _texts(report: LangGraphImport) -> list[str]:
    texts = [
        f"REFUSED {clean(each.thread)} {clean(each.checkpoint or '')}: {clean(each.message)} ({each.code})"
        for each in report.refused[:MAX_SHOWN]
    ]
    if len(report.refused) > MAX_SHOWN:
        texts.append(f"REFUSED {len(report.refused) - MAX_SHOWN:,} more; --json lists all")
    there = f", {report.present:,} were there" if report.present else ""
    done = f"{count(report.imported, 'checkpoint')} in {count(report.threads, 'thread')}"
    texts.append(
        f"Imported {done}{there}, with {count(report.writes, 'write')}; {report.verified:,} verified"
    )
    if report.classes:
        texts.append(f"To load them, StepkeepSaver needs allow= for: {clean(', '.join(report.classes))}")
    return texts
