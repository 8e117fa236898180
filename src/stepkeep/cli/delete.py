"""`stepkeep delete`."""

from __future__ import annotations

import sys

import click

from stepkeep import operations
from stepkeep.cli.app import Command, Settings, settings_of
from stepkeep.cli.naming import ref_argument, session_and_refs, session_argument, session_option
from stepkeep.cli.printing import clean, count, lines, note
from stepkeep.operations import Deleted

EXAMPLE = """\
stepkeep delete research-42 step-5
stepkeep delete research-42 --yes"""


@click.command("delete", cls=Command, example=EXAMPLE)
@session_argument()
@ref_argument(many=True)
@session_option("The session, instead of the argument.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@settings_of
def delete(
    settings: Settings,
    session: str | None,
    refs: tuple[str, ...],
    session_option: str | None,
    yes: bool,
) -> int:
    """Remove checkpoints of SESSION, or without REF the whole session, for good.

    The bytes are overwritten. The session must be named here; STEPKEEP_SESSION does not count.
    """
    key, chosen = session_and_refs([session, *refs], session_option, use_environment=False)
    with operations.open_store(settings.store) as store:
        known = operations.session_named(store, key)
        what = ", ".join(chosen) if chosen else f"all {count(known.checkpoints, 'checkpoint')}"
        if not yes and not _is_confirmed(f"Remove {what} of session {key} for good?"):
            note("Nothing removed.")
            return 1
        deleted = operations.delete(store, key, chosen)
    settings.show(deleted, _print)
    return 0


def _print(deleted: Deleted) -> None:
    whole = " (the whole session)" if deleted.is_whole_session else ""
    lines([f"Removed {count(deleted.count, 'checkpoint')} of {clean(deleted.session)}{whole}"])


def _is_confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask: say --yes to remove for good.")
    return click.confirm(clean(question), err=True)


COMMANDS = {"delete": delete}
