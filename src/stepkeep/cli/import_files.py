"""`stepkeep import files`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from stepkeep import operations
from stepkeep.cli.app import DAMAGE, Command, Settings, settings_of
from stepkeep.cli.printing import clean, lines
from stepkeep.operations import FileImport, FilesImport

EXAMPLE: Final = """\
stepkeep import files ~/.prodigy --layout workflow --dry-run
stepkeep import files checkpoints --layout run"""


@click.command("files", cls=Command, example=EXAMPLE)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--layout",
    required=True,
    type=click.Choice(operations.LAYOUTS),
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
    with operations.open_for_import(settings.store, dry_run=dry_run) as store:
        report = operations.import_files(
            store,
            directory,
            layout,
            session=session,
            accept_unverified=accept_unverified,
            dry_run=dry_run,
        )
    settings.show(report, lambda report: lines(_texts(report)))
    return DAMAGE if report.skipped else 0


def _texts(report: FilesImport) -> list[str]:
    texts = [_text(each) for each in report.files]
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


def _text(each: FileImport) -> str:
    start = f"{each.outcome:<8}  {clean(each.file)}"
    if each.code is not None or each.message is not None:
        code = "" if each.code is None else f" ({each.code})"
        return f"{start}: {clean(each.message or '')}{code}"
    checked = f"verified: {', '.join(each.verified) or 'nothing'}"
    unchecked = f"; not verified: {', '.join(each.unverified)}" if each.unverified else ""
    return f"{start} -> {clean(each.session or '')}, {clean(each.external_id or '')} ({checked}{unchecked})"
