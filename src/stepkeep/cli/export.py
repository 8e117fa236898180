"""`stepkeep export`."""

from __future__ import annotations

from pathlib import Path

import click

from stepkeep import api
from stepkeep.api import Exported
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.files import export_tar, files_option
from stepkeep.cli.naming import chosen_session_and_refs, ref_argument, session_argument, session_option
from stepkeep.cli.printing import lines, note, write
from stepkeep.text import clean, size

EXAMPLE = """\
stepkeep export research-42 --output debug.json
stepkeep export research-42 step-5 --output - | jq .state
stepkeep export research-42 --format run --output snapshot.json
stepkeep export research-42 --files --output files.tar"""


@click.command("export", cls=Command, example=EXAMPLE)
@session_argument()
@ref_argument()
@session_option()
@click.option("-o", "--output", required=True, metavar="FILE|-", help="Where to write it; - is stdout.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option(
    "--format",
    "form",
    type=click.Choice(api.FORMATS),
    default=api.FORMATS[0],
    help="Which document to write: ours, or that of a layout of readable files.",
)
@files_option("Write the project files of the checkpoint, as a tar archive.")
@settings_of
def export(
    settings: Settings,
    session: str | None,
    ref: str | None,
    session_option: str | None,
    output: str,
    force: bool,
    form: str,
    is_files: bool,
) -> None:
    """Write a checkpoint of SESSION as readable JSON: its header and its state, decompressed.

    With --format run it is the document of the snapshot lifecycle, with the triggers that were merged into the
    checkpoint; workflow and phase are the documents of the other layouts. The last line of these proves all others.

    The file appears whole or not at all, readable only by you.
    """
    if output == "-" and settings.json:
        raise click.UsageError("--json describes the file that was written; with --output - there is none.")
    path = None if output == "-" else Path(output)
    with api.open(settings.store, create=False) as store:
        key, refs = chosen_session_and_refs(store, [session, ref], session_option)
        if len(refs) > 1:
            raise click.UsageError("One checkpoint at a time.")
        if is_files:
            export_tar(settings, store.get(key), refs[0] if refs else "latest", output=path, force=force)
            return
        exported, content = store.get(key).export(
            refs[0] if refs else "latest", output=path, force=force, format=form
        )
    if exported.encoding != "json":
        note(f"note: values JSON lacks are written as objects with one $ key ({exported.encoding})")
    if path is None:
        write(content)
    else:
        settings.show(exported, _print)


def _print(exported: Exported) -> None:
    place = clean(exported.output or "stdout")
    lines([f"Wrote {exported.checkpoint} to {place} ({size(exported.size_bytes)})"])


COMMANDS = {"export": export}
