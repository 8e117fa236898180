"""`stepkeep import`: one command for each system that something can come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from stepkeep import api
from stepkeep.api import FileImport, FilesImport, Store
from stepkeep.cli.app import DAMAGE, Command, Settings, settings_of
from stepkeep.cli.printing import ProgressLine, lines
from stepkeep.errors import NotFound, driver_missing
from stepkeep.text import clean, count

if TYPE_CHECKING:
    from stepkeep.adapters.langgraph.migration import LangGraphImport

EXAMPLE: Final = "stepkeep import langgraph --from sqlite:checkpoints.sqlite"
FILES_EXAMPLE: Final = """\
stepkeep import files ~/.prodigy --layout workflow --dry-run
stepkeep import files checkpoints --layout run"""
LANGGRAPH_EXAMPLE: Final = """\
stepkeep import langgraph --from sqlite:checkpoints.sqlite
stepkeep import langgraph --from postgresql://localhost/agents --thread 42"""
MAX_SHOWN: Final = 200


@click.command("files", cls=Command, example=FILES_EXAMPLE)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--layout",
    required=True,
    type=click.Choice(api.LAYOUTS),
    help="Whose files they are: how they are named and shaped.",
)
@click.option("--session", metavar="KEY", help="Put all of them into this session.")
@click.option(
    "--accept-unverified", is_flag=True, help="Also adopt files whose checksum cannot be confirmed."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be adopted, and why not.")
@settings_of
def files(
    settings: Settings,
    directory: Path,
    layout: str,
    session: str | None,
    accept_unverified: bool,
    dry_run: bool,
) -> int:
    """Adopt checkpoint files of other systems in DIR: check what can be checked, and report the rest.

    The files are only read. Their ids become external ids, their times are in the metadata. Repeating it adds nothing.
    Exits with 4 when a file had to be skipped.
    """
    with _opened(settings.store, dry_run=dry_run) as store:
        report = store.import_files(
            directory,
            layout,
            session=session,
            accept_unverified=accept_unverified,
            dry_run=dry_run,
        )
    settings.show(report, lambda report: lines(_files_texts(report)))
    return DAMAGE if report.skipped else 0


def _opened(url: str | None, *, dry_run: bool) -> Store:
    """The store to import into, made if need be; a dry run makes none."""
    try:
        return api.open(url, create=not dry_run)
    except NotFound:
        return api.open("memory:")


def _files_texts(report: FilesImport) -> list[str]:
    texts = [_file_text(each) for each in report.files]
    if report.note is not None:
        texts.append(clean(f"{report.note}: {report.fixes[0]}"))
    would = "would be " if report.is_dry_run else ""
    counts = (
        f"{report.imported:,} {would}imported, {report.present:,} already there, "
        f"{report.ours:,} of Stepkeep, {report.skipped:,} skipped"
    )
    texts.append(counts)
    if report.is_dry_run:
        texts.append("This was a dry run: nothing was imported.")
    return texts


def _file_text(each: FileImport) -> str:
    start = f"{each.outcome:<8}  {clean(each.file)}"
    if each.code is not None or each.message is not None:
        code = "" if each.code is None else f" ({each.code})"
        return f"{start}: {clean(each.message or '')}{code}"
    checked = f"verified: {', '.join(each.verified) or 'nothing'}"
    unchecked = f"; not verified: {', '.join(each.unverified)}" if each.unverified else ""
    return f"{start} -> {clean(each.session or '')}, {clean(each.external_id or '')} ({checked}{unchecked})"


@click.command("langgraph", cls=Command, example=LANGGRAPH_EXAMPLE)
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
    try:
        from stepkeep.adapters.langgraph import migration  # importing LangGraph takes a second
    except ImportError as exc:
        raise driver_missing("LangGraph", "langgraph", exc) from exc
    progress = ProgressLine("importing", migration.count(source, threads))
    try:
        with api.open(settings.store) as store:
            report = migration.migrate(store, source, threads, progress.advance)
    finally:
        progress.close()
    settings.show(report, lambda report: lines(_threads_texts(report)))
    return DAMAGE if report.refused else 0


def _threads_texts(report: LangGraphImport) -> list[str]:
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


class ImportGroup(Command, click.Group):
    """A group that also takes the common options."""


@click.group("import", cls=ImportGroup, example=EXAMPLE)
def import_() -> None:
    """Bring in what another system saved, verifying what can be verified and reporting the rest."""


import_.add_command(files)
import_.add_command(langgraph)

COMMANDS = {"import": import_}
