"""`stepkeep clean`, also `cleanup`."""

from __future__ import annotations

import click

from stepkeep import api
from stepkeep.api import CleanReport
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.printing import lines, note, table
from stepkeep.text import count, size

EXAMPLE = """\
stepkeep clean --dry-run
stepkeep clean"""


def _clean(settings: Settings, dry_run: bool) -> int:
    """Remove whole sessions that ended long enough ago, with all their checkpoints.

    How long they stay depends on how they ended, and on their own policy, workflow, profile and the configuration.
    Sessions that are active or that someone holds stay.
    """
    with api.open(settings.store, create=False) as store:
        cleaned = store.clean(dry_run=dry_run)
    settings.show(cleaned, _print)
    return 1 if cleaned.errors else 0


def _print(cleaned: CleanReport) -> None:
    for warning in cleaned.warnings:
        note(f"warning: {warning}")
    if cleaned.sessions:
        _print_sessions(cleaned)
        lines([""])
    lines(_total(cleaned))


def _print_sessions(cleaned: CleanReport) -> None:
    goes = "goes" if cleaned.is_dry_run else "gone"
    table(
        ["plan" if cleaned.is_dry_run else "done", "session", "because"],
        [[goes if each.goes else "stays", each.session, each.reason] for each in cleaned.sessions],
        colours=["red" if each.goes else None for each in cleaned.sessions],
        wrap=True,
    )


def _total(cleaned: CleanReport) -> list[str]:
    failed = count(cleaned.error, "error")
    if cleaned.is_dry_run:
        would = f"{count(cleaned.cleaned, 'session')} would go, {cleaned.retained:,} would stay, {failed}"
        return [would, "This was a dry run: nothing was removed."]
    freed = f", {size(cleaned.reclaimed_bytes)} reclaimed" if cleaned.reclaimed_bytes else ""
    return [f"{count(cleaned.cleaned, 'session')} cleaned, {cleaned.retained:,} retained, {failed}{freed}"]


def _command(name: str) -> click.Command:
    option = click.option("--dry-run", is_flag=True, help="Only show what would go and stay, and why.")
    return click.command(name, cls=Command, example=EXAMPLE)(option(settings_of(_clean)))


COMMANDS = {"clean": _command("clean"), "cleanup": _command("cleanup")}
