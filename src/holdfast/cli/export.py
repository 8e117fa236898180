"""`holdfast export`."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast import operations
from holdfast.cli.app import Command, Settings, settings_of
from holdfast.cli.naming import ref_argument, session_and_refs, session_argument, session_option
from holdfast.cli.printing import clean, lines, note, size, write
from holdfast.operations import Exported

EXAMPLE = """\
holdfast export research-42 --output debug.json
holdfast export research-42 step-5 --output - | jq .state"""


@click.command("export", cls=Command, example=EXAMPLE)
@session_argument()
@ref_argument()
@session_option()
@click.option("-o", "--output", required=True, metavar="FILE|-", help="Where to write it; - is stdout.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@settings_of
def export(
    settings: Settings,
    session: str | None,
    ref: str | None,
    session_option: str | None,
    output: str,
    force: bool,
) -> None:
    """Write a checkpoint of SESSION as readable JSON: its header and its state, decompressed.

    The file appears whole or not at all, readable only by you.
    """
    key, refs = session_and_refs([session, ref], session_option)
    if len(refs) > 1:
        raise click.UsageError("One checkpoint at a time.")
    if output == "-" and settings.json:
        raise click.UsageError("--json describes the file that was written; with --output - there is none.")
    path = None if output == "-" else Path(output)
    with operations.open_store(settings.store) as store:
        exported, content = operations.export(
            store, key, refs[0] if refs else "latest", output=path, force=force
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
